package dev.baton;

import dev.baton.v1.Task;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;

/** The end of a task whose listener has failed after the takeover. */
final class Failure {
    /** The maximum size of the details of a status update, in bytes. */
    static final int DETAILS_BYTES_MAX = 16384;

    private static final System.Logger LOG = System.getLogger("dev.baton");

    private Failure() {}

    /** Whether an exception only says that the agent stops. */
    static boolean isOfStop(Throwable thrown) {
        return thrown instanceof InterruptedException || thrown instanceof SessionEndedException;
    }

    /**
     * Ends the task as FAILED, with the type and the message of the exception as the details, so that its delegator
     * learns of it at once. Does nothing if the task has ended, was handed on, or has moved.
     */
    static void say(Agent agent, OwnedTask task, Throwable thrown) {
        try {
            if (task.tenure().state() == Tenure.State.AWAY) {
                look(agent, task);
            }
            if (task.tenure().state() == Tenure.State.OWNED) {
                task.fail(cut(words(thrown), DETAILS_BYTES_MAX));
            }
        } catch (BatonException e) {
            LOG.log(Level.WARNING, "{0} was not ended as FAILED: {1}", task, e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Reads whether the task is still, or again, with this agent and free. */
    private static void look(Agent agent, OwnedTask owned) throws InterruptedException {
        Task task = agent.readTask(owned.taskId());
        boolean isOurs = task.getOwnerId().equals(agent.id())
                && task.getOpenHandoffId().isEmpty()
                && !Tasks.FINAL.contains(task.getStatus());
        if (isOurs) {
            owned.tenure().owned(task.getEpoch());
        }
    }

    /** Returns the type and the message of an exception as text that UTF-8 has. */
    private static String words(Throwable thrown) {
        String message = thrown.getMessage();
        String type = thrown.getClass().getSimpleName();
        return message == null || message.isEmpty() ? type : type + ": " + message;
    }

    /** Cuts a text to a number of bytes, at a whole character. Half a surrogate pair becomes a question mark. */
    static String cut(String text, int bytesMax) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(bytes.length, bytesMax);
        while (length < bytes.length && (bytes[length] & 0xc0) == 0x80) {
            length--;
        }
        return new String(bytes, 0, length, StandardCharsets.UTF_8);
    }
}
