package dev.baton;

import dev.baton.Envelopes.About;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.TaskContextTransfer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;

/**
 * An agent that proceeds to the step on its command line, reports it, and waits to be killed: see {@link RestartsTest}.
 * SERVER CA.pem ID KEY.pem STEP
 */
final class Mortal {
    static final String TASK = "ticket-1";
    static final HandoffRequest REQUEST = HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    static final List<ContextSection> SECTIONS = List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));

    /** The steps at which an agent dies. */
    enum Step {
        REQUEST_STORED,
        ACCEPT_DELIVERED,
        CONTEXT_STORED,
        COMPLETION_DELIVERED,
        OFFER_DELIVERED,
        ACCEPT_STORED,
        OFFER_ACCEPTED,
        CONTEXT_DELIVERED,
        COMPLETION_STORED,
        TASK_OWNED
    }

    private final Agent agent;

    private Mortal(Agent agent) {
        this.agent = agent;
    }

    public static void main(String[] arguments) throws Exception {
        Agent agent = Agent.builder()
                .server(arguments[0])
                .caFile(Path.of(arguments[1]))
                .id(arguments[2])
                .key(Keys.load(Path.of(arguments[3])))
                .connect();
        new Mortal(agent).goTo(Step.valueOf(arguments[4]));
        System.out.println("there");
        Thread.sleep(Long.MAX_VALUE);
    }

    private Delivery<?> goTo(Step step) throws InterruptedException {
        switch (step) {
            case REQUEST_STORED -> agent.send("bob", About.task(TASK, 1), REQUEST);
            case ACCEPT_DELIVERED -> {
                goTo(Step.REQUEST_STORED);
                return next();
            }
            case CONTEXT_STORED -> {
                Delivery<?> accept = goTo(Step.ACCEPT_DELIVERED);
                agent.sendContext(accept, SECTIONS);
                return accept;
            }
            case COMPLETION_DELIVERED -> {
                goTo(Step.CONTEXT_STORED).ack();
                return next();
            }
            case OFFER_DELIVERED -> {
                return next();
            }
            case ACCEPT_STORED -> {
                Delivery<?> request = goTo(Step.OFFER_DELIVERED);
                agent.reply(request, HandoffAccept.getDefaultInstance());
                return request;
            }
            case OFFER_ACCEPTED -> goTo(Step.ACCEPT_STORED).ack();
            case CONTEXT_DELIVERED -> {
                goTo(Step.OFFER_ACCEPTED);
                return next();
            }
            case COMPLETION_STORED -> {
                Delivery<?> context = goTo(Step.CONTEXT_DELIVERED);
                TaskContextTransfer transfer = (TaskContextTransfer) context.payload();
                agent.reply(context, HandoffComplete.newBuilder()
                        .setOutcome(HandoffOutcome.HANDOFF_OUTCOME_SUCCESS)
                        .setContextDigest(transfer.getContextDigest())
                        .build());
                return context;
            }
            case TASK_OWNED -> goTo(Step.COMPLETION_STORED).ack();
        }
        return null;
    }

    private Delivery<?> next() throws InterruptedException {
        return agent.poll(Duration.ofSeconds(RealBroker.PATIENCE_SECONDS)).orElseThrow();
    }
}
