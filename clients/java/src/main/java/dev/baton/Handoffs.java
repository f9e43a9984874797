package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffReject;
import dev.baton.v1.NextStep;
import dev.baton.v1.Receipt;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskStatusUpdate;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** A handoff as its sender lives through it. */
final class Handoffs {
    private static final Set<String> SENT_OR_OVER = Set.of("HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED");

    private Handoffs() {}

    /** Goes through a handoff that was asked for, to its end. */
    static HandedOver handOver(Agent agent, Conversation mail, Receipt request, List<ContextSection> context)
            throws InterruptedException {
        List<String> rejections = new ArrayList<>();
        String handoffId = request.getHandoffId();
        while (true) {
            Delivery<?> delivery = mail.next();
            Message payload = delivery.payload();
            String senderId = delivery.envelope().getSenderId();
            if (payload instanceof HandoffAccept) {
                sendContext(agent, delivery, context);
            }
            delivery.ack();
            if (payload instanceof HandoffReject reject) {
                String text = reject.getReasonText();
                rejections.add(senderId + ": " + (text.isEmpty() ? reject.getReason().name() : text));
            } else if (payload instanceof HandoffComplete complete
                    && complete.getOutcome() == HandoffOutcome.HANDOFF_OUTCOME_SUCCESS) {
                long epoch = request.getEpoch() + 1;
                return new HandedOver(handoffId, request.getTaskId(), senderId, epoch, List.copyOf(rejections));
            } else if (payload instanceof ErrorNotification told
                    && told.getNextStep() == NextStep.NEXT_STEP_KEEP_TASK) {
                throw new HandoffFailedException(handoffId, Agent.codeOf(told), told.getErrorMessage(), rejections);
            }
        }
    }

    /** Waits for the final status of a delegated task. */
    static Outcome outcome(Conversation results) throws InterruptedException {
        Delivery<?> delivery = results.next();
        delivery.ack();
        Envelope envelope = delivery.envelope();
        TaskStatusUpdate update = (TaskStatusUpdate) delivery.payload();
        return new Outcome(
                envelope.getTaskId(),
                envelope.getEpoch() + 1,
                update.getStatus(),
                update.getResult(),
                update.getDetails());
    }

    /** The context for the candidate of a delivered HandoffAccept: the sections that it wants, or all of them. */
    static TaskContextTransfer contextFor(Delivery<?> accept, List<ContextSection> sections) {
        List<String> wanted = accept.payload() instanceof HandoffAccept asked
                ? asked.getWantedSectionsList()
                : List.of();
        List<ContextSection> chosen = sections.stream()
                .filter(section -> wanted.isEmpty() || wanted.contains(section.getName()))
                .toList();
        return TaskContextTransfer.newBuilder()
                .addAllSections(chosen)
                .setContextDigest(ByteString.copyFrom(Signing.contextDigest(chosen)))
                .build();
    }

    private static void sendContext(Agent agent, Delivery<?> accept, List<ContextSection> sections)
            throws InterruptedException {
        try {
            agent.sendContext(accept, sections);
        } catch (BatonException | IllegalArgumentException e) {
            if (e instanceof BatonException refused && SENT_OR_OVER.contains(refused.reason())) {
                return; // sent before, or over: the next mail says how it ended
            }
            agent.reply(accept, HandoffCancel.newBuilder().setReasonText("there is no context").build());
            accept.ack();
            throw e;
        }
    }
}
