package dev.baton;

import dev.baton.v1.AnsweredPrompt;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatusUpdate;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;

/** A question to this agent about another agent's task: {@link #answer} answers it once. */
public final class Question {
    private final Agent agent;
    private final Envelope envelope;
    private final TaskStatusUpdate update;

    Question(Agent agent, Envelope envelope, TaskStatusUpdate update) {
        this.agent = agent;
        this.envelope = envelope;
        this.update = update;
    }

    /** Returns the message_id of the status update that asks. */
    public String questionId() {
        return envelope.getMessageId();
    }

    /** Returns the task's id. */
    public String taskId() {
        return envelope.getTaskId();
    }

    /** Returns the task's epoch at its owner. */
    public long epoch() {
        return envelope.getEpoch();
    }

    /** Returns the task's owner, which asks. */
    public String ownerId() {
        return envelope.getSenderId();
    }

    /** Returns the question, for people. */
    public String text() {
        return prompt().getQuestion();
    }

    /** Returns the details of the status update, for people. */
    public String details() {
        return update.getDetails();
    }

    /** Returns the JSON Schema that the answer's data must fit, as text; empty: any data. */
    public Optional<String> schemaJson() {
        return Optional.of(prompt().getAnswerSchemaJson()).filter(text -> !text.isEmpty());
    }

    /** Returns the time at which the question expires; empty: never. */
    public Optional<Instant> answerBefore() {
        return prompt().hasAnswerBefore() ? Optional.of(Times.toInstant(prompt().getAnswerBefore())) : Optional.empty();
    }

    /**
     * Answers the question. The first answer counts. Throws {@link BatonException}: INPUT_TAKEN, INPUT_EXPIRED,
     * STALE_EPOCH or TASK_FINAL if the question is no longer open, FIELD_INVALID if the data does not fit the schema, or
     * cannot be sent: see {@link Json}.
     */
    public Receipt answer(String text, Map<String, ?> data) throws InterruptedException {
        return agent.answer(taskId(), epoch(), questionId(), text, data);
    }

    /** As {@link #answer(String, Map)}, without data. */
    public Receipt answer(String text) throws InterruptedException {
        return answer(text, null);
    }

    /**
     * Waits for the answer to a question, by its mail or, where another process of this agent got that, by the task.
     * Throws {@link NoAnswerException}.
     */
    static Answer answerTo(Agent agent, Conversation answers, String taskId, String questionId)
            throws InterruptedException {
        boolean wasClosed = false;
        while (true) {
            Delivery<?> delivery = answers.next(wasClosed ? Agent.NOTICE_TIME : agent.lookInterval());
            if (delivery != null) {
                delivery.ackForSure();
                if (delivery.payload() instanceof TaskInput input) {
                    return new Answer(delivery.envelope().getSenderId(), input.getText(), Json.object(input.getDataJson()));
                }
                // The only other mail of a question is the broker's notice of its expiry.
                String text = ((ErrorNotification) delivery.payload()).getErrorMessage();
                throw new NoAnswerException(questionId, NoAnswerException.Reason.EXPIRED, text);
            }
            Task task = look(agent, taskId);
            if (task == null || task.getOpenPrompt().getMessageId().equals(questionId)) {
                continue;
            }
            if (task.getLastAnswer().getQuestion().getMessageId().equals(questionId)) {
                return of(task.getLastAnswer());
            }
            if (wasClosed) {
                // The answer, or the notice of the expiry, would have arrived by now.
                String text = "the question is no longer open";
                throw new NoAnswerException(questionId, NoAnswerException.Reason.WITHDRAWN, text);
            }
            wasClosed = true;
        }
    }

    /** Returns the answer that a task shows. */
    static Answer of(AnsweredPrompt answered) {
        TaskInput input = answered.getAnswer();
        return new Answer(answered.getQuestion().getAskedAgentId(), input.getText(), Json.object(input.getDataJson()));
    }

    /** Returns the task, or null if the broker cannot be asked now. */
    private static Task look(Agent agent, String taskId) throws InterruptedException {
        try {
            return agent.readTask(taskId);
        } catch (BatonException e) {
            if (!e.isPassing()) {
                throw e;
            }
            return null;
        }
    }

    private TaskPrompt prompt() {
        return update.getPrompt();
    }
}
