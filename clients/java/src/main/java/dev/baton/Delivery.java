package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.Ack;
import dev.baton.v1.Acknowledgement;
import dev.baton.v1.ConnectRequest;
import dev.baton.v1.Envelope;
import dev.baton.v1.Extend;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Nack;
import dev.baton.v1.NackCause;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.TaskAccept;
import dev.baton.v1.TaskRequest;
import dev.baton.v1.TraceContext;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * A message that the broker delivered to this agent, its signature verified. It must be acked, nacked or extended
 * before the broker's ack wait is over.
 *
 * @param <M> the type of the payload
 */
public final class Delivery<M extends Message> {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final int TEXT_BYTES_MAX = 4096;

    private final Envelope envelope;
    private final M payload;
    private final long sequence;
    private final Key key;
    private final TraceContext traceContext;
    private final Acknowledger acknowledger;
    private String deliveryId;
    private int attempt;
    private boolean isSettled;
    private ScheduledFuture<?> extending;

    /** Identifies a message over its deliveries. A redriven request has the same message_id and another handoff. */
    record Key(String messageId, String handoffId) {
        static Key of(dev.baton.v1.Delivery delivery) {
            String named = delivery.getHandoffId();
            Envelope envelope = delivery.getEnvelope();
            return new Key(envelope.getMessageId(), named.isEmpty() ? Envelopes.handoffIdOf(envelope) : named);
        }
    }

    /** The parts of an agent that a delivery uses. */
    interface Acknowledger {
        Link link();

        Duration ackWait();

        ScheduledExecutorService scheduler();

        /** Records that a message is handled; its redelivery is acked. */
        void handled(Key key);

        /** Drops the record of {@link #handled}. Returns false if there is none. */
        boolean forget(Key key);

        /** Records that a delivery was acked or nacked. */
        void settled(Delivery<?> delivery);
    }

    Delivery(dev.baton.v1.Delivery delivery, M payload, Acknowledger acknowledger) {
        this.envelope = delivery.getEnvelope();
        this.payload = payload;
        this.sequence = delivery.getSequence();
        this.key = Key.of(delivery);
        this.traceContext = delivery.getTraceContext();
        this.acknowledger = acknowledger;
        renew(delivery);
    }

    /** Returns the envelope as its sender sent it. */
    public Envelope envelope() {
        return envelope;
    }

    /** Returns the payload as the message of baton.v1 that message_type names. */
    public M payload() {
        return payload;
    }

    /** Returns the message's position in the order of everything that the broker stored. */
    public long sequence() {
        return sequence;
    }

    /** Returns the trace context that the receiver continues, as the listener of the message does; empty if none is known. */
    public Optional<TraceContext> traceContext() {
        return Optional.of(traceContext).filter(Traces::isValid);
    }

    /**
     * Returns the terms of the handoff that the message asks this agent to take: those of a HandoffRequest, of a
     * TaskAccept with a task, or of the requester's mandate in a NegotiationClosed. Null for any other message.
     */
    HandoffRequest terms() {
        if (payload instanceof HandoffRequest request) {
            return request;
        }
        if (payload instanceof TaskAccept award && award.hasHandoff()) {
            return award.getHandoff();
        }
        if (payload instanceof NegotiationClosed closed && closed.hasTaskRequest()) {
            // An award whose mandate does not parse is no delivery: Mandate.check.
            return ((TaskRequest) Envelopes.payloadOf(closed.getTaskRequest())).getHandoff();
        }
        return null;
    }

    /** Returns the agent that an answer goes to: the sender, or the requester whose mandate an award shows. */
    String answerTo() {
        boolean isMandate = payload instanceof NegotiationClosed closed && closed.hasTaskRequest();
        return isMandate
                ? ((NegotiationClosed) payload).getTaskRequest().getSenderId()
                : envelope.getSenderId();
    }

    /**
     * Returns the handoff that the message belongs to, if any. For a redriven request it differs from the message_id.
     */
    public String handoffId() {
        return key.handoffId();
    }

    Key key() {
        return key;
    }

    /** Returns the id of this delivery attempt. */
    public synchronized String deliveryId() {
        return deliveryId;
    }

    /** Returns the delivery attempt, starting at 1. From 2 on the message may have been handled before. */
    public synchronized int attempt() {
        return attempt;
    }

    /** Whether this delivery was acked or nacked by this process. */
    public synchronized boolean isSettled() {
        return isSettled;
    }

    /**
     * Acks the message: the broker never delivers it again. Throws {@link BatonException}, DELIVERY_UNKNOWN after the
     * delivery's deadline. If the session ends before the broker confirms the ack, or the redelivery arrives meanwhile,
     * the agent acks the redelivery.
     */
    public void ack() throws InterruptedException {
        try {
            sendAck();
        } catch (SessionEndedException e) {
            // The agent acks the redelivery.
        } catch (BatonException e) {
            // Without the record the redelivery has arrived, and the agent acks it.
            if (acknowledger.forget(key)) {
                throw e;
            }
        } catch (InterruptedException e) {
            acknowledger.forget(key);
            throw e;
        }
    }

    /** Acks a handled message. If the broker cannot take the ack now, the agent acks the redelivery. */
    void ackForSure() throws InterruptedException {
        try {
            sendAck();
        } catch (BatonException e) {
            logLostAck(e);
        }
    }

    /** Acks the redelivery of a handled message. If the broker cannot take the ack now, the agent acks the next one. */
    void ackAgain() throws InterruptedException {
        try {
            askForAck();
        } catch (BatonException e) {
            acknowledger.handled(key);
            logLostAck(e);
        }
    }

    /**
     * Nacks the message for this cause. It is redelivered by the broker's backoff; a POISON becomes a dead letter at
     * once.
     */
    public void nack(NackCause cause, String text) throws InterruptedException {
        nack(cause, text, null);
    }

    /** Nacks the message for this cause. It is redelivered after this time. Throws {@link BatonException}. */
    public void nack(NackCause cause, String text, Duration retryAfter) throws InterruptedException {
        settle();
        acknowledger.link().askAndWait(frame(acknowledgement().setNack(nackOf(cause, text, retryAfter))));
    }

    /** Extends the deadline to one ack wait from now. Throws {@link BatonException}. */
    public void extend() throws InterruptedException {
        acknowledger.link().askAndWait(frame(acknowledgement().setExtend(Extend.getDefaultInstance())));
    }

    /** Extends the deadline to this time from now, at most 10 minutes. Throws {@link BatonException}. */
    public void extend(Duration extension) throws InterruptedException {
        Extend.Builder extend = Extend.newBuilder().setExtension(Times.ofDuration(extension));
        acknowledger.link().askAndWait(frame(acknowledgement().setExtend(extend)));
    }

    /** Takes over the delivery id of a redelivery of the same message. Returns false if this delivery is settled. */
    synchronized boolean renew(dev.baton.v1.Delivery delivery) {
        if (isSettled) {
            return false;
        }
        deliveryId = delivery.getDeliveryId();
        attempt = delivery.getAttempt();
        return true;
    }

    /** Extends the delivery periodically until it is acked or nacked. */
    synchronized void keep() {
        if (extending == null && !isSettled) {
            // Uses the local monotonic clock, which is independent of the broker's wall clock.
            long millis = Math.max(1, acknowledger.ackWait().toMillis() / 3);
            extending = acknowledger.scheduler()
                    .scheduleAtFixedRate(this::extendSoon, millis, millis, TimeUnit.MILLISECONDS);
        }
    }

    /** Stops the periodic extension. */
    synchronized void letGo() {
        if (extending != null) {
            extending.cancel(false);
            extending = null;
        }
    }

    /** Nacks the message without waiting for the answer, for callers that must not block. */
    void nackSoon(NackCause cause, String text) {
        settle();
        acknowledger.link().ask(frame(acknowledgement().setNack(nackOf(cause, text, null))));
    }

    private void extendSoon() {
        acknowledger.link()
                .ask(frame(acknowledgement().setExtend(Extend.getDefaultInstance())))
                .whenComplete((answer, error) -> {
                    if (error != null) {
                        // After the session's end the broker redelivers the message, and renew sets its new delivery
                        // id.
                        LOG.log(Level.DEBUG, "message {0} was not extended: {1}", envelope.getMessageId(), error);
                    }
                });
    }

    private void sendAck() throws InterruptedException {
        // Recorded before it is settled, so that a redelivery finds either the delivery in work or the record.
        acknowledger.handled(key);
        settle();
        askForAck();
        acknowledger.forget(key);
    }

    private void askForAck() throws InterruptedException {
        acknowledger.link().askAndWait(frame(acknowledgement().setAck(Ack.getDefaultInstance())));
    }

    private void logLostAck(BatonException why) {
        String id = envelope.getMessageId();
        LOG.log(Level.INFO, "message {0} is acked when it comes again: {1}", id, why.getMessage());
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
        Nack.Builder nack = Nack.newBuilder().setCause(cause).setReasonText(Failure.cut(text, TEXT_BYTES_MAX));
        if (retryAfter != null) {
            nack.setRetryAfter(Times.ofDuration(retryAfter));
        }
        return nack.build();
    }

    @Override
    public String toString() {
        return payload.getDescriptorForType().getName() + " " + envelope.getMessageId() + " of "
                + envelope.getSenderId() + ", attempt " + attempt();
    }
}
