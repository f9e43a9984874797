import dev.baton.Agent;
import dev.baton.AgentBuilder;
import dev.baton.BatonException;
import dev.baton.Envelopes;
import dev.baton.HandedOver;
import dev.baton.HandoffFailedException;
import dev.baton.Keys;
import dev.baton.Offer;
import dev.baton.OwnedTask;
import dev.baton.Takeover;
import dev.baton.v1.AgentCard;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffReason;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Priority;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;

/**
 * A support agent that hands tickets over or takes them.
 *
 *     java -cp 'target/*:target/lib/*' examples/TicketAgent.java SERVER CA.pem ID KEY.pem serve
 *     java -cp 'target/*:target/lib/*' examples/TicketAgent.java SERVER CA.pem ID KEY.pem offer TO [TASK]
 *
 * The agent creates the key file if it does not exist. `offer` ends when another agent owns the ticket, or with exit
 * code 1 if the handoff fails. After a restart the same command with the same TASK continues the handoff.
 */
public final class TicketAgent {
    private TicketAgent() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 5) {
            System.err.println("usage: TicketAgent SERVER CA.pem ID KEY.pem (serve | offer TO [TASK])");
            System.exit(2);
        }
        Path key = Path.of(arguments[3]);
        if (Files.notExists(key)) {
            Keys.save(key, Keys.generate());
        }
        AgentBuilder from = Agent.builder()
                .server(arguments[0])
                .caFile(Path.of(arguments[1]))
                .id(arguments[2])
                .key(Keys.load(key))
                .resume(arguments[4].equals("serve")) // also the tickets that an earlier process did not finish
                .onHandoff(TicketAgent::take);
        int code = 0;
        try (Agent agent = from.build()) {
            agent.register(AgentCard.newBuilder().addAgentTypes("support").build());
            agent.connect();
            if (arguments[4].equals("serve")) {
                System.out.println(agent.id() + ": waiting for tickets");
                agent.awaitEnd();
            } else {
                String task = arguments.length > 6 ? arguments[6] : "ticket-" + UUID.randomUUID();
                code = offer(agent, arguments[5], task);
            }
        } catch (BatonException e) {
            System.err.println("TicketAgent: " + e.getMessage());
            code = 1;
        }
        System.exit(code);
    }

    /** Hands one ticket over and waits for the end of the handoff. */
    private static int offer(Agent agent, String to, String taskId) throws InterruptedException {
        HandoffRequest request = HandoffRequest.newBuilder()
                .setTaskType("support-ticket")
                .setReason(HandoffReason.HANDOFF_REASON_SKILL)
                .setPriority(Priority.PRIORITY_HIGH)
                .setInitialContextSummary("Router drops the line every evening.")
                .build();
        List<ContextSection> ticket = List.of(
                Envelopes.jsonSection("task_description", "{\"customer\": \"4711\", \"product\": \"router\"}"),
                Envelopes.jsonSection("goals", "[\"find the cause\", \"call the customer back\"]"));
        try {
            Optional<String> begun = openHandoff(agent, taskId);
            HandedOver handed = begun.isPresent()
                    ? agent.resumeHandOver(begun.get(), ticket)
                    : agent.handOver(to, taskId, 1, request, ticket);
            System.out.printf("%s: handed over, owned by %s at epoch %d%n", taskId, handed.ownerId(), handed.epoch());
            return 0;
        } catch (HandoffFailedException e) {
            System.out.printf("%s: not handed over: %s%n", taskId, e.getMessage());
            return 1;
        }
    }

    /** Returns the handoff of this ticket that an earlier process began. */
    private static Optional<String> openHandoff(Agent agent, String taskId) {
        return agent.ownedTasks().stream()
                .filter(task -> task.taskId().equals(taskId) && !task.openHandoffId().isEmpty())
                .map(OwnedTask::openHandoffId)
                .findFirst();
    }

    /** Takes over an offered ticket. */
    private static void take(Offer offer) throws InterruptedException {
        Takeover takeover = offer.accept();
        OwnedTask task = takeover.complete(); // verifies the context's digest; on return this agent owns the ticket
        System.out.printf(
                "%s: taken over from %s at epoch %d, with %d sections%n",
                task.taskId(), offer.senderId(), task.epoch(), takeover.sections().size());
        task.report("reading the history");
        task.finish(Map.of(), "a loose cable");
    }
}
