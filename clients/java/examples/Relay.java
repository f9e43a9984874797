import com.google.protobuf.InvalidProtocolBufferException;
import dev.baton.Agent;
import dev.baton.AgentBuilder;
import dev.baton.CustodyLog;
import dev.baton.HandedOver;
import dev.baton.Keys;
import dev.baton.Offer;
import dev.baton.OwnedTask;
import dev.baton.Signing;
import dev.baton.Takeover;
import dev.baton.v1.AgentCard;
import dev.baton.v1.CustodyEntry;
import dev.baton.v1.HandoffRequest;
import java.nio.file.Path;
import java.util.HexFormat;

/**
 * The Java agent of the relay test (tests/relay): a task goes from language to language.
 *
 *     Relay.java SERVER CA.pem ID KEY.pem pass NEXT     takes the task and hands it on
 *     Relay.java SERVER CA.pem ID KEY.pem hold NEXT     accepts it, and with the context in hand waits to be killed
 *     Relay.java SERVER CA.pem ID KEY.pem audit TASK    checks its custody log
 *
 * Prints each event as a JSON line.
 */
public final class Relay {
    private Relay() {}

    public static void main(String[] arguments) throws Exception {
        String command = arguments[4];
        String argument = arguments[5];
        AgentBuilder from = Agent.builder()
                .server(arguments[0])
                .caFile(Path.of(arguments[1]))
                .id(arguments[2])
                .key(Keys.load(Path.of(arguments[3])))
                .onHandoff(offer -> take(offer, command, argument));
        try (Agent agent = from.build()) {
            if (command.equals("audit")) {
                audit(agent, argument);
                return;
            }
            agent.register(AgentCard.newBuilder().addAgentTypes("relay").build());
            agent.connect();
            say("ready", "");
            agent.awaitEnd();
        }
    }

    private static void take(Offer offer, String command, String next) throws InterruptedException {
        boolean isAnew = offer.request().isEmpty();
        Takeover takeover = offer.accept();
        if (command.equals("hold")) {
            say("holding", "\"sender\": \"%s\", \"epoch\": %d".formatted(offer.senderId(), offer.epoch()));
            Thread.sleep(Long.MAX_VALUE);
        }
        OwnedTask task = takeover.complete();
        String digest = HexFormat.of().formatHex(Signing.contextDigest(takeover.sections()));
        String taken = "\"sender\": \"%s\", \"epoch\": %d, \"digest\": \"%s\", \"acceptedBefore\": %b";
        say("taken", taken.formatted(offer.senderId(), task.epoch(), digest, isAnew));
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("relay").build();
        HandedOver handed = task.handOver(next, request, takeover.sections());
        say("handed", "\"receiver\": \"%s\", \"epoch\": %d".formatted(handed.ownerId(), handed.epoch()));
    }

    private static void audit(Agent agent, String taskId) throws InvalidProtocolBufferException {
        CustodyLog log = agent.verifyCustody(taskId);
        int count = log.entries().size();
        CustodyEntry last = CustodyEntry.parseFrom(log.entries().get(count - 1).getEntryBytes());
        String facts = "\"entries\": %d, \"owner\": \"%s\", \"epoch\": %d";
        say("audited", facts.formatted(count, last.getOwnerId(), last.getEpoch()));
    }

    /** Prints one event. The facts are JSON without its braces; ids need no escapes. */
    private static void say(String event, String facts) {
        System.out.printf("{\"event\": \"%s\"%s%s}%n", event, facts.isEmpty() ? "" : ", ", facts);
    }
}
