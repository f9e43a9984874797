package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import java.util.HexFormat;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The context of a handoff. {@link #complete} makes this agent the task's owner; {@link #fail} leaves it with the
 * sender.
 */
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
        agent.knownSections().note(offer.taskId(), context.getSectionsList());
    }

    /** Returns the sections of the context. */
    public List<ContextSection> sections() {
        return context.getSectionsList();
    }

    /** Returns one section. Throws {@link NoSuchElementException}. */
    public ContextSection section(String name) {
        return sections().stream()
                .filter(section -> section.getName().equals(name))
                .findFirst()
                .orElseThrow(() -> new NoSuchElementException("there is no section " + name));
    }

    /**
     * Returns a section with its content. Fetches from the broker what the message does not have: the whole of a section
     * that came as a change, compared with the digest that the sender has signed, and a section that the sender did not
     * send from the latest version that has it, whose digest is the broker's word. Empty: no version that this agent may
     * read has it. Throws {@link VerificationException}, CONTEXT_DIGEST_MISMATCH, for another content.
     */
    public Optional<ContextSection> fetch(String name) {
        Optional<ContextSection> sent =
                sections().stream().filter(one -> one.getName().equals(name)).findFirst();
        boolean isWhole = sent.isPresent() && !sent.get().hasDelta();
        return isWhole ? sent : agent.contexts().fetch(offer.taskId(), name, sent);
    }

    /** Returns the subtask of a plan that the handoff carries out, with its inputs. Empty: it carries out none. */
    public Optional<Subtask> subtask() {
        return Subtask.of(sections());
    }

    /**
     * As {@link #subtask}, with the whole of the results that the context had no room for. To be called after
     * {@link #complete}: from then on the broker shows the plan to this agent. Throws {@link BatonException},
     * PERMISSION_DENIED, before.
     */
    public Optional<Subtask> wholeSubtask() {
        return subtask().map(subtask -> subtask.omitted().isEmpty()
                ? subtask
                : subtask.filled(agent.plans().plan(subtask.planId()).results()));
    }

    /**
     * Takes ownership of the task: this agent owns it from the return on. Of a resumed task it returns what this agent
     * owns already, and sends nothing. Throws {@link VerificationException},
     * CONTEXT_DIGEST_MISMATCH if the sections differ from the sender's digest; {@link BatonException} if it is too
     * late.
     */
    public OwnedTask complete() throws InterruptedException {
        if (offer.isResumed()) {
            return offer.task().orElseThrow();
        }
        ByteString digest = ByteString.copyFrom(Signing.contextDigest(sections()));
        if (!digest.equals(context.getContextDigest())) {
            throw new VerificationException(
                    "CONTEXT_DIGEST_MISMATCH",
                    "the sections have the digest " + HexFormat.of().formatHex(digest.toByteArray()));
        }
        OwnedTask task;
        try {
            Receipt receipt = agent.reply(delivery, answer(HandoffOutcome.HANDOFF_OUTCOME_SUCCESS, digest, ""));
            Tenure tenure = agent.workload().of(offer.taskId(), receipt.getEpoch());
            task = new OwnedTask(agent, tenure, receipt.getTaskStatus(), "", false);
        } catch (BatonException e) {
            task = ownedBefore(e);
        }
        offer.own(task);
        offer.end();
        return task;
    }

    /** Refuses the context for the reason in {@code details}. The handoff fails and the sender keeps the task. */
    public void fail(String details) throws InterruptedException {
        if (offer.isResumed()) {
            throw new IllegalStateException("the task is this agent's; it ends by OwnedTask.fail");
        }
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

    /** Returns the task if an earlier process completed the handoff and still owns it; otherwise throws the error. */
    private OwnedTask ownedBefore(BatonException error) throws InterruptedException {
        if (!Handover.DONE_OR_OVER.contains(error.reason())) {
            throw error;
        }
        Handoff handoff = agent.readHandoff(offer.handoffId());
        boolean isOurs = handoff.getState() == HandoffState.HANDOFF_STATE_COMPLETED
                && handoff.getCandidateId().equals(agent.id());
        if (!isOurs) {
            throw error;
        }
        Task task = agent.readTask(offer.taskId());
        if (!task.getOwnerId().equals(agent.id()) || task.getEpoch() != offer.epoch() + 1) {
            throw error; // the task has changed hands or epoch since
        }
        return OwnedTask.of(agent, task);
    }
}
