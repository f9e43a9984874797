package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import java.util.HexFormat;
import java.util.List;
import java.util.NoSuchElementException;

/** A context that was handed over: complete makes this agent the task's owner, fail leaves it where it is. */
public final class Takeover {
    private final Agent agent;
    private final Offer offer;
    private final Delivery<?> delivery;
    private final TaskContextTransfer context;

    Takeover(Agent agent, Offer offer, Delivery<?> delivery, TaskContextTransfer context) {
        this.agent = agent;
        this.offer = offer;
        this.delivery = delivery;
        this.context = context;
    }

    /** The context. */
    public List<ContextSection> sections() {
        return context.getSectionsList();
    }

    /** One section. Throws {@link NoSuchElementException}. */
    public ContextSection section(String name) {
        return sections().stream()
                .filter(section -> section.getName().equals(name))
                .findFirst()
                .orElseThrow(() -> new NoSuchElementException("there is no section " + name));
    }

    /**
     * Takes the task over: from here on, and not before, it is this agent's. Throws {@link VerificationException},
     * CONTEXT_DIGEST_MISMATCH if the sections are not what the sender said; {@link BatonException} if it is too late.
     */
    public OwnedTask complete() throws InterruptedException {
        ByteString digest = ByteString.copyFrom(Signing.contextDigest(sections()));
        if (!digest.equals(context.getContextDigest())) {
            throw new VerificationException(
                    "CONTEXT_DIGEST_MISMATCH",
                    "the sections have the digest " + HexFormat.of().formatHex(digest.toByteArray()));
        }
        long epoch;
        try {
            epoch = agent.reply(delivery, answer(HandoffOutcome.HANDOFF_OUTCOME_SUCCESS, digest, ""))
                    .getEpoch();
        } catch (BatonException e) {
            epoch = epochIfDoneBefore(e);
        }
        offer.end();
        return new OwnedTask(agent, offer.taskId(), epoch);
    }

    /** Refuses the context, with the reason in words: the handoff fails and the sender keeps the task. */
    public void fail(String details) throws InterruptedException {
        agent.reply(delivery, answer(HandoffOutcome.HANDOFF_OUTCOME_FAILURE, ByteString.EMPTY, details));
        offer.end();
    }

    private static HandoffComplete answer(HandoffOutcome outcome, ByteString digest, String details) {
        return HandoffComplete.newBuilder()
                .setOutcome(outcome)
                .setContextDigest(digest)
                .setDetails(details)
                .build();
    }

    /** The epoch, if it was an earlier life of this agent that completed the handoff; else throws the error. */
    private long epochIfDoneBefore(BatonException error) {
        if (!error.reason().equals("HANDOFF_FINAL")) {
            throw error;
        }
        Task task = agent.getTask(offer.taskId());
        boolean isOurs = task.getHopsCount() > 0
                && task.getHops(task.getHopsCount() - 1).getHandoffId().equals(offer.handoffId())
                && task.getOwnerId().equals(agent.id());
        if (!isOurs) {
            throw error;
        }
        return task.getEpoch();
    }
}
