package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.Ack;
import dev.baton.v1.Acknowledgement;
import dev.baton.v1.ConnectRequest;
import dev.baton.v1.Envelope;
import dev.baton.v1.Extend;
import dev.baton.v1.Nack;
import dev.baton.v1.NackCause;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * A message handed out to this agent, its signature checked. To be acked or nacked before the broker's ack wait is over,
 * or extended.
 *
 * @param <M> the payload
 */
public final class Delivery<M extends Message> {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final int TEXT_BYTES_MAX = 4096;

    private final Envelope envelope;
    private final M payload;
    private final long sequence;
    private final String handoffId;
    private final Acknowledger acknowledger;
    private String deliveryId;
    private int attempt;
    private boolean isSettled;
    private ScheduledFuture<?> extending;

    /** What a delivery needs of its agent. */
    interface Acknowledger {
        Link link();

        Duration ackWait();

        ScheduledExecutorService scheduler();

        /** This message is done, though the broker could not be told yet. */
        void ackWhenItReturns(String messageId);

        /** It was acked or nacked. */
        void settled(Delivery<?> delivery);
    }

    Delivery(dev.baton.v1.Delivery delivery, M payload, Acknowledger acknowledger) {
        this.envelope = delivery.getEnvelope();
        this.payload = payload;
        this.sequence = delivery.getSequence();
        this.handoffId = delivery.getHandoffId().isEmpty()
                ? Envelopes.handoffIdOf(envelope)
                : delivery.getHandoffId();
        this.acknowledger = acknowledger;
        renew(delivery);
    }

    /** As its sender sent it. */
    public Envelope envelope() {
        return envelope;
    }

    /** The payload as the message of baton.v1 that message_type names. */
    public M payload() {
        return payload;
    }

    /** The message's place in the order of everything that the broker stored. */
    public long sequence() {
        return sequence;
    }

    /** The handoff that it belongs to, if any. Of a request that was redriven this is not the message_id. */
    public String handoffId() {
        return handoffId;
    }

    /** Names this handing-out. */
    public synchronized String deliveryId() {
        return deliveryId;
    }

    /** The how-manieth handing-out it is; more than 1 means that the message may be known already. */
    public synchronized int attempt() {
        return attempt;
    }

    /** Whether it was acked or nacked here. */
    public synchronized boolean isSettled() {
        return isSettled;
    }

    /**
     * Takes it: it is never delivered again. Throws {@link BatonException}, DELIVERY_UNKNOWN if its time was over. Where
     * the session ends before the broker has said so, the message is acked as soon as it comes again.
     */
    public void ack() throws InterruptedException {
        settle();
        try {
            acknowledger.link().askAndWait(frame(acknowledgement().setAck(Ack.getDefaultInstance())));
        } catch (SessionEndedException e) {
            acknowledger.ackWhenItReturns(envelope.getMessageId());
        }
    }

    /** Acks what is handled: where the broker does not take the ack now, as soon as the message comes again. */
    void ackForSure() throws InterruptedException {
        try {
            ack();
        } catch (BatonException e) {
            String id = envelope.getMessageId();
            LOG.log(Level.INFO, "message {0} is acked when it comes again: {1}", id, e.getMessage());
            acknowledger.ackWhenItReturns(id);
        }
    }

    /** Does not take it, for this cause; delivered again by the broker's backoff, or for POISON a dead letter at once. */
    public void nack(NackCause cause, String text) throws InterruptedException {
        nack(cause, text, null);
    }

    /** Does not take it, for this cause; delivered again after this time. Throws {@link BatonException}. */
    public void nack(NackCause cause, String text, Duration retryAfter) throws InterruptedException {
        settle();
        acknowledger.link().askAndWait(frame(acknowledgement().setNack(nackOf(cause, text, retryAfter))));
    }

    /** Asks for the ack wait once more, from now. Throws {@link BatonException}. */
    public void extend() throws InterruptedException {
        acknowledger.link().askAndWait(frame(acknowledgement().setExtend(Extend.getDefaultInstance())));
    }

    /** Asks for this much more time, from now: at most 10 minutes. Throws {@link BatonException}. */
    public void extend(Duration extension) throws InterruptedException {
        Extend.Builder extend = Extend.newBuilder().setExtension(Times.ofDuration(extension));
        acknowledger.link().askAndWait(frame(acknowledgement().setExtend(extend)));
    }

    /** The same message was handed out anew, to be acknowledged under another id. */
    synchronized void renew(dev.baton.v1.Delivery delivery) {
        deliveryId = delivery.getDeliveryId();
        attempt = delivery.getAttempt();
    }

    /** Extends it again and again from now on, until it is acked or nacked. */
    synchronized void keep() {
        if (extending == null && !isSettled) {
            // By this machine's own monotonic clock: it need not agree with the broker's on what time it is.
            long millis = Math.max(1, acknowledger.ackWait().toMillis() / 3);
            extending = acknowledger.scheduler()
                    .scheduleAtFixedRate(this::extendSoon, millis, millis, TimeUnit.MILLISECONDS);
        }
    }

    /** Extends it no more. */
    synchronized void letGo() {
        if (extending != null) {
            extending.cancel(false);
            extending = null;
        }
    }

    /** Nacks it without waiting for the answer; for what must not block. */
    void nackSoon(NackCause cause, String text) {
        settle();
        acknowledger.link().ask(frame(acknowledgement().setNack(nackOf(cause, text, null))));
    }

    private void extendSoon() {
        acknowledger.link()
                .ask(frame(acknowledgement().setExtend(Extend.getDefaultInstance())))
                .whenComplete((answer, error) -> {
                    if (error != null) {
                        // Where the session has ended, the message comes again and goes on under its new id.
                        LOG.log(Level.DEBUG, "message {0} was not extended: {1}", envelope.getMessageId(), error);
                    }
                });
    }

    private void settle() {
        synchronized (this) {
            isSettled = true;
            letGo();
        }
        acknowledger.settled(this);
    }

    private Acknowledgement.Builder acknowledgement() {
        return Acknowledgement.newBuilder().setDeliveryId(deliveryId());
    }

    private static ConnectRequest.Builder frame(Acknowledgement.Builder acknowledgement) {
        return ConnectRequest.newBuilder().setAcknowledgement(acknowledgement);
    }

    private static Nack nackOf(NackCause cause, String text, Duration retryAfter) {
        Nack.Builder nack = Nack.newBuilder().setCause(cause).setReasonText(cut(text));
        if (retryAfter != null) {
            nack.setRetryAfter(Times.ofDuration(retryAfter));
        }
        return nack.build();
    }

    /** At most as long as the broker takes, and still whole characters. */
    private static String cut(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(bytes.length, TEXT_BYTES_MAX);
        while (length < bytes.length && (bytes[length] & 0xc0) == 0x80) {
            length--;
        }
        return new String(bytes, 0, length, StandardCharsets.UTF_8);
    }

    @Override
    public String toString() {
        return payload.getDescriptorForType().getName() + " " + envelope.getMessageId() + " of "
                + envelope.getSenderId() + ", attempt " + attempt();
    }
}
