package dev.baton;

import com.google.protobuf.Message;

/**
 * Handles one kind of message.
 *
 * @param <M> the payload, for example {@code dev.baton.v1.Info}
 */
@FunctionalInterface
public interface MessageListener<M extends Message> {
    /**
     * Called on a thread of its own. When it returns, the message is acked, unless it did that itself. When it throws,
     * the message is nacked: as POISON for a {@link PoisonException}, with its time for a {@link RetryLaterException},
     * else as FAILURE.
     */
    void onMessage(Delivery<M> delivery) throws Exception;
}
