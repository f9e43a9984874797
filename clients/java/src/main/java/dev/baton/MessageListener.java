package dev.baton;

import com.google.protobuf.Message;

/**
 * Handles one kind of message.
 *
 * @param <M> the type of the payload, for example {@code dev.baton.v1.Info}
 */
@FunctionalInterface
public interface MessageListener<M extends Message> {
    /**
     * Handles one message, on its own thread. On return the agent acks the message unless the listener has settled it.
     * After an exception the agent nacks the message: a {@link PoisonException} as POISON, a
     * {@link RetryLaterException} as FAILURE with its delay, any other as FAILURE.
     */
    void onMessage(Delivery<M> delivery) throws Exception;
}
