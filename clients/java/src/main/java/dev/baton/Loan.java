package dev.baton;

import com.google.protobuf.Struct;
import dev.baton.v1.Envelope;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatusUpdate;

/** A delegated task, from the delegate's takeover to its return. */
final class Loan {
    private final Agent agent;
    private final Conversation results;
    private final HandedOver lent;

    Loan(Agent agent, Conversation results, HandedOver lent) {
        this.agent = agent;
        this.results = results;
        this.lent = lent;
    }

    /** Waits for the task's final status. Throws {@link BatonException}, DEADLINE_EXCEEDED. */
    Outcome outcome(Deadline deadline) throws InterruptedException {
        boolean isBack = false;
        while (true) {
            Delivery<?> delivery = results.next(deadline.leftAtMost(agent.lookInterval()));
            if (delivery != null) {
                return outcomeOf(delivery);
            }
            Task task = returned();
            if (task != null && isBack) {
                // A final status would have arrived by now: a handoff returned the task.
                Struct nothing = Struct.getDefaultInstance();
                return new Outcome(task.getTaskId(), task.getEpoch(), task.getStatus(), nothing, task.getDetails());
            }
            isBack = task != null;
            deadline.check("task " + lent.taskId() + " has not come back in time; it stays lent to " + lent.ownerId());
        }
    }

    private static Outcome outcomeOf(Delivery<?> delivery) throws InterruptedException {
        delivery.ackForSure();
        Envelope envelope = delivery.envelope();
        TaskStatusUpdate update = (TaskStatusUpdate) delivery.payload();
        return new Outcome(
                envelope.getTaskId(),
                envelope.getEpoch() + 1,
                update.getStatus(),
                update.getResult(),
                update.getDetails());
    }

    /** Returns the task if this agent owns it again; otherwise null. */
    private Task returned() {
        try {
            Task task = agent.getTask(lent.taskId());
            return task.getOwnerId().equals(agent.id()) && task.getEpoch() > lent.epoch() ? task : null;
        } catch (BatonException e) {
            if (!e.isPassing()) {
                throw e;
            }
            return null;
        }
    }
}
