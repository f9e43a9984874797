package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import dev.baton.v1.ContextSection;
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
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskContextTransfer;
import java.lang.System.Logger.Level;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A handoff that this agent asked for, from the request's receipt to its end. */
final class Handover {
    /** How a broker refuses a step that an earlier process of the agent has done, or whose handoff is over. */
    static final Set<String> DONE_OR_OVER =
            Set.of("HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED", "STALE_EPOCH");

    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Set<HandoffState> OPEN = EnumSet.of(
            HandoffState.HANDOFF_STATE_REQUESTED,
            HandoffState.HANDOFF_STATE_DECIDING,
            HandoffState.HANDOFF_STATE_ACCEPTED,
            HandoffState.HANDOFF_STATE_CONTEXT_SENT);
    private static final int CANCEL_TEXT_LENGTH_MAX = 1024;

    private final Agent agent;
    private final Conversation mail;
    private final List<ContextSection> context;
    private final String handoffId;
    private final String taskId;
    private final long epoch;
    private final Map<String, String> rejections = new LinkedHashMap<>();
    private boolean isContextSent;

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

    /** The context of the sections that are wanted, all if none are named. */
    static TaskContextTransfer contextFor(List<ContextSection> sections, List<String> wanted) {
        List<ContextSection> chosen = sections.stream()
                .filter(section -> wanted.isEmpty() || wanted.contains(section.getName()))
                .toList();
        return TaskContextTransfer.newBuilder()
                .addAllSections(chosen)
                .setContextDigest(ByteString.copyFrom(Signing.contextDigest(chosen)))
                .build();
    }

    /** Throws what sending all of them would: IllegalArgumentException, or BatonException, PAYLOAD_TOO_LARGE. */
    static void checkContext(List<ContextSection> sections) {
        Limits.checkPayload(contextFor(sections, List.of()).getSerializedSize());
    }

    /**
     * Sends the context of a handoff that was accepted. Returns the handoff as it stands where the broker wants no context:
     * an earlier process of this agent sent it, or the handoff is over; else null. Where there is no context that can be
     * sent, the handoff is cancelled, and the error thrown.
     */
    static Handoff giveContext(Agent agent, ContextWanted wanted, List<ContextSection> sections)
            throws InterruptedException {
        try {
            agent.send(wanted.candidateId(), aboutOf(wanted), contextFor(sections, wanted.wantedSections()));
            return null;
        } catch (BatonException e) {
            if (DONE_OR_OVER.contains(e.reason())) {
                return agent.getHandoff(wanted.handoffId());
            }
            // After any other error that passes nobody knows, and the handoff stays open for resumeHandOver.
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
     * Goes on with each mail of the handoff, to its end. Throws {@link HandoffFailedException}; {@link BatonException},
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

    /** Does what is to be done in this state. Null: it is still open. Throws {@link HandoffFailedException}. */
    HandedOver goOnFrom(Handoff handoff) throws InterruptedException {
        for (HandoffOffer offer : handoff.getOffersList()) {
            if (offer.getOutcome() == OfferOutcome.OFFER_OUTCOME_REJECTED) {
                rejected(offer.getCandidateId(), offer.getRejectReason(), offer.getReasonText());
            }
        }
        return switch (handoff.getState()) {
            case HANDOFF_STATE_REQUESTED, HANDOFF_STATE_DECIDING -> null;
            case HANDOFF_STATE_ACCEPTED -> sendContext(handoff.getCandidateId(), handoff.getWantedSectionsList());
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

    /** A handoff can end without a word to its sender, for example when the sender itself cancels it. */
    private HandedOver look() throws InterruptedException {
        Handoff handoff;
        try {
            handoff = agent.getHandoff(handoffId);
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
            mail.put(delivery); // for the dispatcher, which settles what no conversation waits for
            throw e;
        }
        delivery.ackForSure();
        return ended;
    }

    private HandedOver goOn(Delivery<?> delivery) throws InterruptedException {
        Message payload = delivery.payload();
        String senderId = delivery.envelope().getSenderId();
        if (payload instanceof HandoffAccept accept) {
            return sendContext(senderId, accept.getWantedSectionsList());
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

    private HandedOver sendContext(String candidateId, List<String> wantedSections) throws InterruptedException {
        if (isContextSent) {
            return null; // an accept that came again
        }
        ContextWanted wanted = new ContextWanted(handoffId, taskId, epoch, candidateId, wantedSections);
        Handoff handoff = giveContext(agent, wanted, context);
        isContextSent = true;
        return handoff == null ? null : goOnFrom(handoff);
    }

    private void rejected(String candidateId, RejectReason reason, String text) {
        rejections.put(candidateId, candidateId + ": " + (text.isEmpty() ? reason.name() : text));
    }

    private HandedOver completed(String ownerId) {
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

    /** A stable code, as ErrorInfo.reason has it; of a newer schema its number. */
    static String codeOf(ErrorCode code, int number) {
        return code == ErrorCode.UNRECOGNIZED ? Integer.toString(number) : code.name().substring("ERROR_CODE_".length());
    }
}
