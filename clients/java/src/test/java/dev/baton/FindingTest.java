package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentLoad;
import dev.baton.v1.AgentMatch;
import dev.baton.v1.AgentSkill;
import dev.baton.v1.FindAgentsRequest;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.ListAgentsRequest;
import dev.baton.v1.MatchFactor;
import dev.baton.v1.Presence;
import dev.baton.v1.WatchAgentsRequest;
import dev.baton.v1.WatchAgentsResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Finding agents, changing their cards, and following the directory. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class FindingTest {
    private static final Duration PATIENCE = Duration.ofSeconds(PATIENCE_SECONDS);

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    @Test
    void agentsAreFoundBestFirstAndWithReasons() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent printer = skilled("printer", "office.printers");
                Agent router = skilled("router", "network.routers")) {
            FindAgentsRequest request = FindAgentsRequest.newBuilder()
                    .setAgentType("support")
                    .addPreferredSkills("network.routers")
                    .build();
            List<AgentMatch> found = alice.findAgents(request, 10);
            assertEquals(List.of("router", "printer"), ids(found));
            assertEquals(List.of("router"), ids(alice.findAgents(request, 1)));
            assertEquals(List.of(), alice.findAgents(request, 0));
            assertTrue(Explanation.of(found.get(0)).contains("skill cover"), Explanation.of(found.get(0)));
            FindAgentsRequest.Builder as = request.toBuilder().setAsSenderId("router");
            assertRefused("SENDER_MISMATCH", () -> alice.findAgents(as.build(), 10));
            List<String> skills = Collections.nCopies(33, "network");
            FindAgentsRequest.Builder many = request.toBuilder().addAllRequiredSkills(skills);
            assertRefused("FIELD_INVALID", () -> alice.findAgents(many.build(), 10));
        }
    }

    @Test
    void anExplanationHasALineForEachFactor() {
        AgentMatch match = AgentMatch.newBuilder()
                .setAgentId("bob")
                .setRank(1)
                .setScore(0.5875)
                .setPresence(Presence.PRESENCE_ALIVE)
                .addFactors(factor("skill cover", 1, 0.4, "1 of 1 skills"))
                .addFactors(factor("free capacity", 0.75, 0.25, "1 of 4 in use"))
                .setLoad(AgentLoad.newBuilder().setIsFull(true))
                .build();
        String expected = "1. bob: 0.588, ALIVE, full\n"
                + "   skill cover    1.00 x 0.40 = 0.400  1 of 1 skills\n"
                + "   free capacity  0.75 x 0.25 = 0.188  1 of 4 in use";
        assertEquals(expected, Explanation.of(match));
    }

    @Test
    void theProcessesOfAnAgentAreListed() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob"))) {
            // The first frame of a session names its process.
            RealBroker.until(
                    "the process", () -> !alice.listProcesses("bob").get(0).getInstanceId().isEmpty());
            List<dev.baton.v1.Process> processes = alice.listProcesses("bob");
            assertEquals(1, processes.size());
            assertTrue(processes.get(0).getListsWork());
            assertEquals(0, processes.get(0).getTaskCount());
            assertRefused("AGENT_UNKNOWN", () -> alice.listProcesses("nobody"));
        }
    }

    @Test
    void aCardChangesByFieldAndEtag() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = skilled("bob", "network.routers")) {
            String etag = bob.getAgent("bob").getEtag();
            AgentCard card = AgentCard.newBuilder().setAgentId("bob").setDescription("knows routers").build();
            AgentCard after = bob.updateAgent(card, etag, "description").getCard();
            assertEquals(List.of("knows routers", "support"), List.of(after.getDescription(), after.getAgentTypes(0)));
            assertRefused("CONFLICT", () -> bob.updateAgent(card, etag, "description"));
            assertRefused("FIELD_INVALID", () -> bob.updateAgent(card, "", "keys"));
            AgentCard.Builder slow = AgentCard.newBuilder().setAgentId("bob");
            slow.getDecidesWithinBuilder().setSeconds(28_800);
            AgentCard stated = bob.updateAgent(slow.build(), "", "decides_within").getCard();
            assertEquals(28_800, stated.getDecidesWithin().getSeconds());
            slow.getDecidesWithinBuilder().setSeconds(700_000);
            assertRefused("FIELD_INVALID", () -> bob.updateAgent(slow.build(), "", "decides_within"));
            assertRefused("PERMISSION_DENIED", () -> alice.updateAgent(card, "", "description"));
            assertEquals(0, bob.updateAgent(card, "").getCard().getAgentTypesCount());
        }
    }

    @Test
    void aBusyAgentIsDeregisteredByForceOnly() throws Exception {
        String token = broker.operatorToken();
        begin(broker.agent("bob")).close();
        try (Agent alice = begin(broker.agent("alice"));
                Agent operator = broker.agent("operator").operatorToken(token).build()) {
            HandoffRequest request = HandoffRequest.newBuilder().setTaskType("support").build();
            alice.send("bob", Envelopes.About.task("ticket-1", 1), request);
            assertRefused("AGENT_BUSY", () -> operator.deregisterAgent("bob", "gone", false));
            var gone = operator.deregisterAgent("bob", "gone", true);
            assertTrue(gone.hasDeregisterTime());
            assertEquals(gone.getDeregisterTime(), operator.deregisterAgent("bob", "", false).getDeregisterTime());
            List<String> left = alice.listAgents(ListAgentsRequest.getDefaultInstance()).stream()
                    .map(agent -> agent.getCard().getAgentId())
                    .toList();
            assertTrue(left.contains("alice") && !left.contains("bob"), left.toString());
        }
    }

    @Test
    void aWatchOfTheDirectoryGoesOnAfterARestart() throws Exception {
        WatchAgentsRequest request =
                WatchAgentsRequest.newBuilder().setAgentType("support").setCardsOnly(true).build();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = skilled("bob", "network.routers");
                Watch<WatchAgentsResponse> watch = alice.watchAgents(request)) {
            assertEquals("bob", next(watch).getAgent().getCard().getAgentId());
            assertTrue(next(watch).getCaughtUp());
            broker.kill();
            broker.start();
            try (Agent carol = skilled("carol", "network.routers")) {
                WatchAgentsResponse third = next(watch); // neither bob nor caught_up again
                assertEquals("carol", third.getAgent().getCard().getAgentId());
                AgentCard card = AgentCard.newBuilder().setAgentId("carol").addAgentTypes("other").build();
                carol.updateAgent(card, "", "agent_types");
                assertEquals("carol", next(watch).getLeftAgentId());
                WatchAgentsRequest later = request.toBuilder().setAfterCursor(third.getCursor()).build();
                try (Watch<WatchAgentsResponse> again = carol.watchAgents(later)) {
                    assertEquals("carol", next(again).getLeftAgentId());
                }
            }
        }
    }

    @Test
    void aWatchEndsWithItsAgent() throws Exception {
        Agent alice = begin(broker.agent("alice"));
        Watch<WatchAgentsResponse> watch = alice.watchAgents(WatchAgentsRequest.getDefaultInstance());
        next(watch);
        alice.close();
        while (!watch.isOver()) {
            try {
                watch.next(PATIENCE);
            } catch (BatonException e) {
                assertTrue(watch.isOver());
            }
        }
        assertThrows(BatonException.class, () -> watch.next(PATIENCE));
    }

    private Agent skilled(String id, String skill) throws Exception {
        Agent agent = broker.agent(id).build();
        agent.register(AgentCard.newBuilder()
                .addAgentTypes("support")
                .addSkills(AgentSkill.newBuilder().setName(skill))
                .build());
        agent.connect();
        return agent;
    }

    private static MatchFactor factor(String name, double value, double weight, String text) {
        return MatchFactor.newBuilder()
                .setName(name)
                .setValue(value)
                .setWeight(weight)
                .setText(text)
                .build();
    }

    private static List<String> ids(List<AgentMatch> found) {
        return found.stream().map(AgentMatch::getAgentId).toList();
    }

    private static WatchAgentsResponse next(Watch<WatchAgentsResponse> watch) throws InterruptedException {
        return watch.next(PATIENCE).orElseThrow();
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
