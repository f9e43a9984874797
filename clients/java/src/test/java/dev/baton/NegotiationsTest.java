package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.Duration;
import dev.baton.v1.AwardRule;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.ListNegotiationsRequest;
import dev.baton.v1.NegotiationState;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRequest;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Negotiations: offers, counter-offers, awards. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class NegotiationsTest {
    private static final Envelopes.About TASK = Envelopes.About.task("report-1", 1);
    private static final Envelopes.About NO_TASK = Envelopes.About.task("", 0);
    private static final HandoffRequest REPORT =
            HandoffRequest.newBuilder().setTaskType("report").build();
    private static final TaskOffer COUNTER =
            TaskOffer.newBuilder().setConfidence(1).setCost(1).build();

    private final BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();
    private final List<Agent> agents = new ArrayList<>();

    @TempDir
    Path folder;

    private RealBroker broker;
    private Agent alice;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        alice = begin(broker.agent("alice"));
        agents.add(alice);
    }

    @AfterEach
    void stop() throws Exception {
        agents.forEach(Agent::close);
        broker.close();
    }

    @Test
    void anOfferIsCounteredAndItsBidderTakesTheTask() throws Exception {
        bidder("bob", 7);
        bidder("carol", 6);
        silent();
        try (Negotiation negotiation =
                alice.negotiations().begin("all:analyst", TASK, sums(PATIENCE_SECONDS).build())) {
            Map<String, List<Double>> costs = new TreeMap<>();
            Bid best = null;
            while (best == null || costs.size() < 2) {
                Bid bid = negotiation.next().orElseThrow();
                costs.computeIfAbsent(bid.agentId(), id -> new ArrayList<>()).add(bid.terms().getCost());
                assertEquals("in euros", bid.terms().getConditions());
                if (bid.agentId().equals("bob") && bid.terms().getRound() < 3) {
                    bid.counter(COUNTER);
                } else if (bid.agentId().equals("bob")) {
                    assertRefused("ROUND_LIMIT", () -> bid.counter(COUNTER));
                    best = bid;
                }
            }
            assertEquals(Map.of("bob", List.of(7.0, 6.0, 5.0, 4.0), "carol", List.of(6.0)), costs);
            Bid chosen = best;
            HandedOver handed = negotiation.handOver(chosen, REPORT, context());
            assertEquals(List.of("bob", 2L), List.of(handed.ownerId(), handed.epoch()));
            assertEquals("report-1", taken().taskId());
            dev.baton.v1.Negotiation ended = negotiation.ended();
            assertEquals(NegotiationState.NEGOTIATION_STATE_SETTLED, ended.getState());
            assertEquals("bob", ended.getWinnerId());
            assertRefused("NEGOTIATION_CLOSED", negotiation::cancel);
            assertRefused("NEGOTIATION_CLOSED", () -> negotiation.award(chosen, ""));
        }
    }

    @Test
    void theBrokerAwardsUnderTheMandateOverARestart() throws Exception {
        bidder("bob", 7);
        bidder("carol", 3);
        silent();
        TaskRequest request = sums(8)
                .clearDecisionTimeout()
                .setAwardRule(AwardRule.AWARD_RULE_LOWEST_COST)
                .setHandoff(REPORT)
                .build();
        try (Negotiation negotiation = alice.negotiations().begin("all:analyst", TASK, request)) {
            negotiation.next().orElseThrow();
            negotiation.next().orElseThrow();
            broker.kill();
            broker.start();
            assertEquals("carol", negotiation.handOverToWinner(context()).ownerId());
            assertEquals(2, taken().epoch());
            assertEquals("carol", negotiation.ended().getWinnerId());
        }
    }

    @Test
    void aNegotiationWithoutAnOfferFails() throws Exception {
        bidder("bob", 7);
        TaskRequest request = sums(PATIENCE_SECONDS)
                .setDescription("a poem")
                .clearDecisionTimeout()
                .setAwardRule(AwardRule.AWARD_RULE_LOWEST_COST)
                .setHandoff(REPORT)
                .build();
        try (Negotiation negotiation = alice.negotiations().begin("all:analyst", TASK, request)) {
            var failed = assertThrows(
                    NegotiationFailedException.class, () -> negotiation.handOverToWinner(context()));
            assertEquals(List.of("NO_OFFER", negotiation.id()), List.of(failed.reason(), failed.negotiationId()));
        }
        assertRefused("RECEIVER_UNKNOWN", () -> alice.negotiations().begin("all:poet", NO_TASK, sums(PATIENCE_SECONDS).build()));
    }

    @Test
    void aNegotiationIsResumedAwardedAsMailAndCancelled() throws Exception {
        Agent bob = bidder("bob", 7);
        silent();
        TaskRequest request = sums(PATIENCE_SECONDS).build();
        Negotiations negotiations = alice.negotiations();
        String id;
        try (Negotiation begun = negotiations.begin("all:analyst", NO_TASK, request)) {
            id = begun.id();
            assertEquals("bob", begun.next().orElseThrow().agentId());
        }
        try (Negotiation resumed = negotiations.resume(id, 0)) {
            Bid bid = resumed.next().orElseThrow();
            assertEquals(7, bid.terms().getCost());
            resumed.award(bid, "thank you");
            assertEquals("bob", resumed.ended().getWinnerId());
            assertEquals(NegotiationState.NEGOTIATION_STATE_SETTLED, resumed.closed().getState());
        }
        assertRefused("NOT_ASKED", () -> bob.negotiations().resume(id, 0));
        try (Negotiation other = negotiations.begin("all:analyst", NO_TASK, request)) {
            NegotiationState cancelled = NegotiationState.NEGOTIATION_STATE_CANCELLED;
            assertEquals(cancelled, other.cancel().getState());
            assertEquals(cancelled, other.closed().getState());
            ListNegotiationsRequest own =
                    ListNegotiationsRequest.newBuilder().setAgentId("alice").build();
            List<String> ids = negotiations.list(own).stream().map(one -> one.getNegotiationId()).toList();
            assertEquals(List.of(other.id(), id), ids);
        }
    }

    @Test
    void anAgentWithoutAListenerDeclines() throws Exception {
        AgentBuilder builder = broker.agent("dave").onPrompt(question -> {});
        agents.add(begin(builder, "analyst"));
        try (Negotiation negotiation = alice.negotiations()
                .begin("all:analyst", NO_TASK, sums(PATIENCE_SECONDS).build())) {
            assertEquals(true, negotiation.next().isEmpty());
            assertEquals(NegotiationState.NEGOTIATION_STATE_FAILED, negotiation.closed().getState());
        }
    }

    /** Returns an analyst that makes an offer at this cost, 1 less in each round, and takes tasks over. */
    private Agent bidder(String id, double cost) throws Exception {
        AgentBuilder builder = broker.agent(id)
                .onOfferWanted(wanted -> {
                    if (!wanted.request().orElseThrow().getDescription().equals("the sums of march")) {
                        return BidAnswer.decline(RejectReason.REJECT_REASON_NO_SKILL, "only sums");
                    }
                    return BidAnswer.offer(TaskOffer.newBuilder()
                            .setConfidence(0.9)
                            .setCost(cost - wanted.round())
                            .setConditions("in euros")
                            .build());
                })
                .onHandoff(offer -> owned.add(offer.accept().complete()));
        Agent agent = begin(builder, "analyst");
        agents.add(agent);
        return agent;
    }

    /** Adds an analyst that does not answer, so that a negotiation stays open until its deadline. */
    private void silent() throws Exception {
        agents.add(begin(broker.agent("silent").credit(0), "analyst"));
    }

    private OwnedTask taken() throws Exception {
        return owned.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    private static TaskRequest.Builder sums(long seconds) {
        return TaskRequest.newBuilder()
                .setDescription("the sums of march")
                .setOffersDeadline(Times.ofInstant(Instant.now().plusSeconds(seconds)))
                .setDecisionTimeout(Duration.newBuilder().setSeconds(PATIENCE_SECONDS));
    }

    private static List<dev.baton.v1.ContextSection> context() {
        return List.of(Envelopes.jsonSection("goals", "[]"));
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
