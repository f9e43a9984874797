package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOffer;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffReject;
import dev.baton.v1.HandoffState;
import dev.baton.v1.NextStep;
import dev.baton.v1.OfferOutcome;
import dev.baton.v1.Receipt;
import dev.baton.v1.RejectReason;
import dev.baton.v1.SectionWish;
import dev.baton.v1.SenderView;
import dev.baton.v1.TaskContextTransfer;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;

/** A handoff that this agent requested, from the request's receipt to its end. */
final class Handover {
    /** Reasons of a refused step that an earlier process has completed, or whose handoff is over. */
    static final Set<String> DONE_OR_OVER =
            Set.of("HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED", "STALE_EPOCH");

    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Set<HandoffState> OPEN = EnumSet.of(
            HandoffState.HANDOFF_STATE_REQUESTED,
            HandoffState.HANDOFF_STATE_DECIDING,
            HandoffState.HANDOFF_STATE_ACCEPTED,
            HandoffState.HANDOFF_STATE_CONTEXT_SENT);
    private static final int CANCEL_TEXT_LENGTH_MAX = 1024;
    private static final Duration CANCEL_TIME = Duration.ofSeconds(10);
    private static final int ATTEMPTS_MAX = 10;
    private static final long ATTEMPT_MILLIS = 200;

    private final Agent agent;
    private final Conversation mail;
    private final List<ContextSection> context;
    private final String handoffId;
    private final String taskId;
    private final long epoch;
    private final Map<String, Rejection> rejections = new LinkedHashMap<>();
    private boolean isContextSent;

    Handover(Agent agent, Conversation mail, List<ContextSection> context, Envelope request) {
        this(agent, mail, context, request.getMessageId(), request.getTaskId(), request.getEpoch());
    }

    Handover(
            Agent agent,
            Conversation mail,
            List<ContextSection> context,
            String handoffId,
            String taskId,
            long epoch) {
        this.agent = agent;
        this.mail = mail;
        this.context = context;
        this.handoffId = handoffId;
        this.taskId = taskId;
        this.epoch = epoch;
    }

    static boolean isOpen(Handoff handoff) {
        return OPEN.contains(handoff.getState());
    }

    /** Returns the context of these sections. */
    static TaskContextTransfer contextOf(List<ContextSection> sections) {
        return TaskContextTransfer.newBuilder()
                .addAllSections(sections)
                .setContextDigest(ByteString.copyFrom(Signing.contextDigest(sections)))
                .build();
    }

    /** Sends what the candidate of an accepted handoff wants of the context. */
    static Receipt sendContext(Agent agent, ContextWanted wanted, List<ContextSection> sections)
            throws InterruptedException {
        KnownSections known = agent.knownSections();
        String taskId = wanted.taskId();
        Receipt receipt;
        try {
            receipt = sendContext(agent, wanted, sections, (name, sha256) -> known.find(taskId, name, sha256));
        } catch (BatonException e) {
            if (!isBaseUnknown(e)) {
                throw e;
            }
            // The broker does not have the version that the candidate has.
            known.forget(taskId);
            receipt = sendContext(agent, wanted, sections, (name, sha256) -> null);
        }
        known.note(taskId, sections);
        return receipt;
    }

    private static Receipt sendContext(
            Agent agent,
            ContextWanted wanted,
            List<ContextSection> sections,
            BiFunction<String, ByteString, String> known)
            throws InterruptedException {
        List<ContextSection> chosen =
                Sections.forWishes(sections, wanted.wantedSections(), wanted.wishes(), known);
        return agent.send(wanted.candidateId(), aboutOf(wanted), contextOf(chosen));
    }

    /** Whether the broker does not have the base of a delta, or another one. */
    static boolean isBaseUnknown(BatonException error) {
        return error.reason().equals("CONTEXT_BASE_UNKNOWN") || error.reason().equals("CONTEXT_DELTA_INVALID");
    }

    /** Throws the exception of sending all sections: IllegalArgumentException, or BatonException, PAYLOAD_TOO_LARGE. */
    static void checkContext(List<ContextSection> sections) {
        Limits.checkPayload(contextOf(sections).getSerializedSize());
    }

    /**
     * Sends the context of an accepted handoff. Returns null, or the handoff's state if the broker expects no context:
     * an earlier process of this agent has sent it, or the handoff is over. If no valid context can be sent, cancels
     * the handoff and throws the error.
     */
    static Handoff giveContext(Agent agent, ContextWanted wanted, List<ContextSection> sections)
            throws InterruptedException {
        try {
            sendContext(agent, wanted, sections);
            return null;
        } catch (BatonException e) {
            if (DONE_OR_OVER.contains(e.reason())) {
                return agent.readHandoff(wanted.handoffId());
            }
            // After a passing error the outcome is unknown, so the handoff stays open for resumeHandOver.
            if (!e.isPassing()) {
                takeBack(agent, wanted, e);
            }
            throw e;
        } catch (IllegalArgumentException e) {
            takeBack(agent, wanted, e);
            throw e;
        }
    }

    /**
     * Processes the mail of the handoff to its end. Throws {@link HandoffFailedException}; {@link BatonException},
     * DEADLINE_EXCEEDED.
     */
    HandedOver end(Deadline deadline) throws InterruptedException {
        while (true) {
            Delivery<?> delivery = mail.next(deadline.leftAtMost(agent.lookInterval()));
            HandedOver ended = delivery == null ? look() : take(delivery);
            if (ended != null) {
                return ended;
            }
            deadline.check("handoff " + handoffId + " has not ended in time; it stays open");
        }
    }

    /**
     * Cancels the handoff at the time limit of its call. Returns if the task has moved before. Throws
     * {@link HandoffFailedException}; {@link BatonException}, DEADLINE_EXCEEDED, if it may still be open.
     */
    HandedOver endAtLimit() throws InterruptedException {
        String text = "the time limit of the call passed";
        Deadline deadline = Deadline.in(CANCEL_TIME);
        boolean isStored = false;
        BatonException last = null;
        for (int attempt = 0; attempt < ATTEMPTS_MAX && !deadline.isOver(); attempt++) {
            try {
                Handoff handoff = agent.readHandoff(handoffId);
                isStored = true;
                if (!isOpen(handoff)) {
                    return goOnFrom(handoff);
                }
                HandoffCancel cancel = HandoffCancel.newBuilder().setReasonText(text).build();
                Envelopes.About about = new Envelopes.About(taskId, epoch, handoffId);
                Envelope envelope = agent.envelope(handoff.getCandidateId(), about, cancel);
                agent.sendOwn(envelope, deadline.leftAtMost(CANCEL_TIME));
            } catch (BatonException e) {
                // The request may still be on its way, or the handoff has moved on since the look.
                last = e;
                Thread.sleep(ATTEMPT_MILLIS);
            }
        }
        if (!isStored && last != null && !last.isPassing()) {
            throw failed("HANDOFF_CANCELLED", text);
        }
        throw new BatonException(
                Status.Code.DEADLINE_EXCEEDED,
                text + ", and handoff " + handoffId + " could not be cancelled; its timeouts end it");
    }

    /**
     * Takes the step that the state asks for. Returns null while the handoff is open. Throws
     * {@link HandoffFailedException}.
     */
    HandedOver goOnFrom(Handoff handoff) throws InterruptedException {
        for (HandoffOffer offer : handoff.getOffersList()) {
            if (offer.getOutcome() == OfferOutcome.OFFER_OUTCOME_REJECTED) {
                rejected(offer.getCandidateId(), offer.getRejectReason(), offer.getReasonText());
            }
        }
        return switch (handoff.getState()) {
            case HANDOFF_STATE_REQUESTED, HANDOFF_STATE_DECIDING -> null;
            case HANDOFF_STATE_ACCEPTED -> sendContext(
                    handoff.getCandidateId(), handoff.getWantedSectionsList(), List.of());
            case HANDOFF_STATE_CONTEXT_SENT -> {
                isContextSent = true;
                yield null;
            }
            case HANDOFF_STATE_COMPLETED -> completed(handoff.getCandidateId());
            case HANDOFF_STATE_REJECTED,
                    HANDOFF_STATE_FAILED,
                    HANDOFF_STATE_CANCELLED,
                    HANDOFF_STATE_UNSPECIFIED,
                    UNRECOGNIZED -> throw failed(
                    codeOf(handoff.getErrorCode(), handoff.getErrorCodeValue()), handoff.getErrorMessage());
        };
    }

    /** Reads the handoff's state: it can end without mail to its sender, for example when the sender cancels it. */
    private HandedOver look() throws InterruptedException {
        Handoff handoff;
        try {
            handoff = agent.readHandoff(handoffId);
        } catch (BatonException e) {
            if (!e.isPassing()) {
                throw e;
            }
            return null;
        }
        return goOnFrom(handoff);
    }

    private HandedOver take(Delivery<?> delivery) throws InterruptedException {
        HandedOver ended;
        try {
            ended = goOn(delivery);
        } catch (InterruptedException | RuntimeException e) {
            mail.put(delivery); // the dispatcher settles the rest
            throw e;
        }
        delivery.ackForSure();
        return ended;
    }

    private HandedOver goOn(Delivery<?> delivery) throws InterruptedException {
        Message payload = delivery.payload();
        String senderId = delivery.envelope().getSenderId();
        if (payload instanceof HandoffAccept accept) {
            return sendContext(senderId, accept.getWantedSectionsList(), accept.getWishesList());
        }
        if (payload instanceof HandoffReject reject) {
            rejected(senderId, reject.getReason(), reject.getReasonText());
        } else if (payload instanceof HandoffComplete complete
                && complete.getOutcome() == HandoffOutcome.HANDOFF_OUTCOME_SUCCESS) {
            return completed(senderId);
        } else if (payload instanceof ErrorNotification told && told.getNextStep() == NextStep.NEXT_STEP_KEEP_TASK) {
            throw failed(Agent.codeOf(told), told.getErrorMessage());
        }
        return null;
    }

    private HandedOver sendContext(String candidateId, List<String> wantedSections, List<SectionWish> wishes)
            throws InterruptedException {
        if (isContextSent) {
            return null; // a redelivered accept
        }
        agent.show(handoffId, SenderView.SENDER_VIEW_CONTEXT_PREPARING);
        ContextWanted wanted = new ContextWanted(handoffId, taskId, epoch, candidateId, wantedSections, wishes);
        Handoff handoff = giveContext(agent, wanted, context);
        isContextSent = true;
        agent.show(handoffId, SenderView.SENDER_VIEW_AWAITING_CONTEXT_ACK);
        return handoff == null ? null : goOnFrom(handoff);
    }

    private void rejected(String candidateId, RejectReason reason, String text) {
        rejections.put(candidateId, new Rejection(candidateId, reason, text));
    }

    private HandedOver completed(String ownerId) {
        agent.show(handoffId, SenderView.SENDER_VIEW_HANDOFF_COMPLETED);
        return new HandedOver(handoffId, taskId, ownerId, epoch + 1, List.copyOf(rejections.values()));
    }

    private HandoffFailedException failed(String reason, String message) {
        return new HandoffFailedException(handoffId, reason, message, List.copyOf(rejections.values()));
    }

    private static void takeBack(Agent agent, ContextWanted wanted, RuntimeException why)
            throws InterruptedException {
        String text = "there is no context: " + why.getMessage();
        String cut = text.substring(0, Math.min(text.length(), CANCEL_TEXT_LENGTH_MAX));
        HandoffCancel cancel = HandoffCancel.newBuilder().setReasonText(cut).build();
        try {
            agent.send(wanted.candidateId(), aboutOf(wanted), cancel);
        } catch (BatonException e) {
            LOG.log(Level.INFO, "handoff {0} ends by its timeout: {1}", wanted.handoffId(), e.getMessage());
        }
    }

    private static Envelopes.About aboutOf(ContextWanted wanted) {
        return new Envelopes.About(wanted.taskId(), wanted.epoch(), wanted.handoffId());
    }

    /** Returns the name of an error code, as in ErrorInfo.reason; the number for a code of a newer schema. */
    static String codeOf(ErrorCode code, int number) {
        return code == ErrorCode.UNRECOGNIZED ? Integer.toString(number) : code.name().substring("ERROR_CODE_".length());
    }
}
