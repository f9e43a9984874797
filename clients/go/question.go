package baton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Prompt is a question about a task to one agent: see OwnedTask.Ask.
type Prompt struct {
	// The question for people, 1 to 16384 bytes. Required.
	Text string
	// The agent that is to answer: its id, or "type:NAME" for one able agent of the type. Required.
	AnswerBy string
	// The time after which the question expires; 0: it does not expire.
	Within time.Duration
	// The JSON Schema that the answer's data must fit, at most 65536 bytes as JSON: a value that encoding/json encodes, for
	// example a json.RawMessage. Nil: any data.
	Schema any
	// The details of the status update, for people.
	Details string
}

// Answer is the answer to a question.
type Answer struct {
	// The agent that answered.
	AgentID string
	// The answer for people; may be empty.
	Text string
	// The answer for programs. It fits the question's schema, if the question has one. A number is a json.Number.
	Data map[string]any
}

// DataInto decodes the answer for programs into a value, as json.Unmarshal does: an int64 gets each digit.
func (a *Answer) DataInto(into any) error { return decodeInto(a.Data, into) }

// NoAnswerReason is the reason why a question ended without an answer.
type NoAnswerReason string

const (
	// The question's deadline passed.
	QuestionExpired NoAnswerReason = "EXPIRED"
	// The next status update of the task or a move of the task withdrew the question, or another process of this agent got
	// its answer.
	QuestionWithdrawn NoAnswerReason = "WITHDRAWN"
)

// NoAnswerError says that a question ended without an answer.
type NoAnswerError struct {
	// The message_id of the status update that asked.
	QuestionID string
	// The reason.
	Reason NoAnswerReason
	// The explanation, for people.
	Message string
}

func (e *NoAnswerError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

// Question is a question to this agent about another agent's task: Answer answers it once. Handlers.Prompt gets it.
type Question struct {
	// The message_id of the status update that asks.
	QuestionID string
	// The task's id.
	TaskID string
	// The task's epoch at its owner.
	Epoch uint64
	// The task's owner, which asks.
	OwnerID string
	// The question, for people.
	Text string
	// The details of the status update, for people.
	Details string
	// The JSON Schema that the answer's data must fit; nil: any data.
	Schema json.RawMessage
	// The time at which the question expires; the zero time: never.
	AnswerBefore time.Time

	agent *Agent
}

// Answer answers the question. The first answer counts. data is nil, or a map or a
// struct that encoding/json encodes as an object. It fails with an
// Error: INPUT_TAKEN, INPUT_EXPIRED, STALE_EPOCH or TASK_FINAL if the question is no longer open, FIELD_INVALID if the
// data does not fit the schema.
func (q *Question) Answer(ctx context.Context, text string, data any) (*v1.Receipt, error) {
	return q.agent.AnswerQuestion(ctx, q.TaskID, q.Epoch, q.QuestionID, text, data)
}

// AnswerQuestion answers a question to this agent, also one that an earlier process received: see Question.Answer.
func (a *Agent) AnswerQuestion(
	ctx context.Context, taskID string, epoch uint64, questionID, text string, data any,
) (*v1.Receipt, error) {
	input := &v1.TaskInput{Text: text}
	var err error
	if input.DataJson, err = jsonText(dataField, data, dataBytesMax); err != nil {
		return nil, err
	}
	return a.Send(ctx, "", About{TaskID: taskID, Epoch: epoch, CorrelationID: questionID}, input)
}

// Ask asks one agent a question about the task and waits for the answer: it reports WAITING_FOR_INPUT with the prompt.
// It fails with a NoAnswerError if the question ends without an answer, and with an Error if the broker refuses it:
// RECEIVER_UNKNOWN if no able agent can be asked, FIELD_INVALID for an invalid prompt. If ctx ends first, the question
// stays open, and its answer goes to Handlers.TaskInput.
func (t *OwnedTask) Ask(ctx context.Context, prompt Prompt) (*Answer, error) {
	asked, err := prompt.message()
	if err != nil {
		return nil, err
	}
	a := t.agent
	update := &v1.TaskStatusUpdate{
		Status: v1.TaskStatus_TASK_STATUS_WAITING_FOR_INPUT, Details: prompt.Details, Prompt: asked,
	}
	envelope, err := a.newEnvelope(ctx, "", About{TaskID: t.TaskID, Epoch: t.present()}, update)
	if err != nil {
		return nil, err
	}
	// Registered before the question is sent, for the answer may arrive before the receipt.
	mail, err := a.converse(ctx, ofQuestion(envelope.GetMessageId()), 0)
	if err != nil {
		return nil, err
	}
	defer mail.close()
	if _, err := a.signAndSend(ctx, envelope); err != nil {
		return nil, err
	}
	return a.answerTo(ctx, mail, t.TaskID, envelope.GetMessageId())
}

func (p *Prompt) message() (*v1.TaskPrompt, error) {
	asked := &v1.TaskPrompt{Question: p.Text, AnswerBy: p.AnswerBy}
	if p.Within > 0 {
		asked.AnswerBefore = timestamppb.New(time.Now().Add(p.Within))
	}
	if p.Schema != nil {
		text, err := json.Marshal(p.Schema)
		if err != nil {
			return nil, err
		}
		asked.AnswerSchemaJson = string(text)
	}
	return asked, nil
}

// answerTo waits for the answer to a question, and looks at the task after each silence.
func (a *Agent) answerTo(ctx context.Context, mail *conversation, taskID, questionID string) (*Answer, error) {
	for wasClosed := false; ; {
		l, err := mail.nextWithin(ctx, a.lookAfter)
		switch {
		case err == nil:
			l.finish(nil)
			if input, isAnswer := l.Payload.(*v1.TaskInput); isAnswer {
				return &Answer{l.Envelope.GetSenderId(), input.GetText(), objectOf(input.GetDataJson())}, nil
			}
			// The only other mail of a question is the broker's notice of its expiry.
			told, _ := l.Payload.(*v1.ErrorNotification)
			return nil, &NoAnswerError{questionID, QuestionExpired, told.GetErrorMessage()}
		case !errors.Is(err, errNoMail) && !isEndedBy(ctx):
			return nil, err
		case !errors.Is(err, errNoMail):
			looking, cancel := a.lastLook(ctx)
			defer cancel()
			if task, lookErr := a.GetTask(looking, taskID); lookErr == nil {
				if answer := a.answerOf(task, questionID); answer != nil {
					return answer, nil
				}
			}
			return nil, err
		case wasClosed:
			// The answer, or the notice of the expiry, would have arrived since the last look.
			return nil, &NoAnswerError{questionID, QuestionWithdrawn, "the question is no longer open"}
		}
		task, err := a.GetTask(ctx, taskID)
		if err != nil && !isPassing(err) {
			return nil, err
		}
		if answer := a.answerOf(task, questionID); answer != nil {
			return answer, nil
		}
		wasClosed = err == nil && task.GetOpenPrompt().GetMessageId() != questionID
	}
}

// answerOf returns the answer that a task shows to a question, or to any question with an empty id; nil: none.
func (a *Agent) answerOf(task *v1.Task, questionID string) *Answer {
	last := task.GetLastAnswer()
	asked := last.GetQuestion().GetMessageId()
	if last == nil || questionID != "" && asked != questionID {
		return nil
	}
	a.settled.add(last.GetAnswerId())
	return &Answer{last.GetQuestion().GetAskedAgentId(), last.GetAnswer().GetText(), objectOf(last.GetAnswer().GetDataJson())}
}

// ResumeAsk goes on with a question that an earlier process of this agent, or another one, asked about a task: it waits for
// the answer to the open question, or returns the answer to the latest question, if no question is open. It fails as
// OwnedTask.Ask, with QuestionWithdrawn if the task has neither a question nor an answer, and with an Error if the agent may
// not read the task.
func (a *Agent) ResumeAsk(ctx context.Context, taskID string) (*Answer, error) {
	for {
		task, err := persist(ctx, a, a.tasks.GetTask, &v1.GetTaskRequest{TaskId: taskID})
		if err != nil {
			return nil, err
		}
		questionID := task.GetTask().GetOpenPrompt().GetMessageId()
		if questionID == "" {
			if answer := a.answerOf(task.GetTask(), ""); answer != nil {
				return answer, nil
			}
			return nil, &NoAnswerError{"", QuestionWithdrawn, "the task has no question"}
		}
		mail, err := a.converse(ctx, ofQuestion(questionID), 0)
		if err != nil {
			return nil, err
		}
		// Read after the conversation is registered: an earlier answer shows here, and a later one arrives as mail.
		answer, err := a.openAnswer(ctx, mail, taskID, questionID)
		mail.close()
		if answer != nil || err != nil {
			return answer, err
		}
	}
}

// openAnswer waits for the answer to a question, if that is still open. It returns nil otherwise.
func (a *Agent) openAnswer(ctx context.Context, mail *conversation, taskID, questionID string) (*Answer, error) {
	task, err := persist(ctx, a, a.tasks.GetTask, &v1.GetTaskRequest{TaskId: taskID})
	if err != nil || task.GetTask().GetOpenPrompt().GetMessageId() != questionID {
		return nil, err
	}
	return a.answerTo(ctx, mail, taskID, questionID)
}

// questionOf returns the question of a delivery, or nil.
func questionOf(d *Delivery) *Question {
	update, _ := d.Payload.(*v1.TaskStatusUpdate)
	prompt := update.GetPrompt()
	if prompt == nil {
		return nil
	}
	q := &Question{
		QuestionID: d.Envelope.GetMessageId(), TaskID: d.Envelope.GetTaskId(), Epoch: d.Envelope.GetEpoch(),
		OwnerID: d.Envelope.GetSenderId(), Text: prompt.GetQuestion(), Details: update.GetDetails(), agent: d.agent,
	}
	if schema := prompt.GetAnswerSchemaJson(); schema != "" {
		q.Schema = json.RawMessage(schema)
	}
	if prompt.GetAnswerBefore() != nil {
		q.AnswerBefore = prompt.GetAnswerBefore().AsTime()
	}
	return q
}
