package dev.baton;

import dev.baton.v1.CustodyEntry;
import dev.baton.v1.Envelope;
import dev.baton.v1.MessageType;
import dev.baton.v1.TaskStatusUpdate;
import dev.baton.v1.WatchTaskResponse;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalDouble;

/** The status updates of a lent task, for the listener of the call that waits for it. An error ends only the watch. */
final class ProgressWatch implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration LOOK = Duration.ofMinutes(1);

    private final Agent agent;
    private final HandedOver lent;
    private final ProgressListener listener;
    private final Watch<WatchTaskResponse> watch;
    private final Thread teller;

    /** Begins to tell. */
    ProgressWatch(Agent agent, HandedOver lent, ProgressListener listener) {
        this.agent = agent;
        this.lent = lent;
        this.listener = listener;
        this.watch = agent.tasks().watch(lent.taskId(), 0);
        this.teller = new Thread(this::tell, "baton-progress-" + agent.id() + "-" + lent.taskId());
        teller.setDaemon(true);
        teller.start();
    }

    /** Waits, for a second at most, until the listener has what came before the end of the loan. */
    void awaitEnd() throws InterruptedException {
        teller.join(Agent.NOTICE_TIME.toMillis());
    }

    @Override
    public void close() {
        watch.close();
    }

    private void tell() {
        try {
            while (!watch.isOver()) {
                Optional<WatchTaskResponse> update = watch.next(LOOK);
                if (update.isPresent() && isEnd(update.get())) {
                    return;
                }
            }
            watch.next(Duration.ZERO); // throws if the watch has failed
        } catch (BatonException | VerificationException e) {
            LOG.log(Level.WARNING, "the progress of task {0} is not followed: {1}", lent.taskId(), e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Tells the listener. Returns whether the entry ends the loan, or the task. */
    private boolean isEnd(WatchTaskResponse update) {
        CustodyEntry entry = update.getEntry().getEntry();
        if (entry.getEpoch() < lent.epoch()) {
            return false;
        }
        boolean isStatus =
                entry.getAccepted().getMessageType() == MessageType.MESSAGE_TYPE_TASK_STATUS_UPDATE;
        if (isStatus) {
            Envelope envelope = update.getEntry().getEnvelope();
            agent.directory().verify(envelope);
            TaskStatusUpdate status = (TaskStatusUpdate) Envelopes.payloadOf(envelope);
            if (!Tasks.FINAL.contains(status.getStatus())) {
                tell(envelope.getSenderId(), status);
            }
        }
        boolean isBack = entry.getEpoch() > lent.epoch() && entry.getOwnerId().equals(agent.id());
        return isBack || Tasks.FINAL.contains(entry.getTaskStatus());
    }

    private void tell(String agentId, TaskStatusUpdate status) {
        Progress progress = new Progress(
                lent.taskId(),
                agentId,
                status.getStatus(),
                status.hasProgress() ? OptionalDouble.of(status.getProgress()) : OptionalDouble.empty(),
                status.getDetails(),
                status.hasPrompt() ? Optional.of(status.getPrompt()) : Optional.empty());
        try {
            listener.onProgress(progress);
        } catch (RuntimeException e) {
            LOG.log(Level.WARNING, "the listener of progress of task " + lent.taskId() + " failed", e);
        }
    }
}
