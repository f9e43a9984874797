package dev.baton;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Info;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskAccept;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRequest;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** The program for {@code baton conformance --client}; docs/conformance-client.md defines its protocol. */
final class Harness {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Gson JSON = new Gson();

    private final Map<String, JsonObject> how = new ConcurrentHashMap<>();
    private final ExecutorService work = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    });
    private final Map<Long, Future<?>> calls = new ConcurrentHashMap<>();
    private volatile CountDownLatch released = new CountDownLatch(1);
    private volatile Duration grace = Duration.ZERO;
    private volatile Agent agent;
    private volatile Negotiation negotiation;
    private final Map<String, Bid> bids = new ConcurrentHashMap<>();

    private Harness() {}

    public static void main(String[] arguments) throws IOException {
        new Harness().run();
    }

    private void run() throws IOException {
        JsonObject hello = new JsonObject();
        hello.addProperty("protocol", 1);
        hello.addProperty("language", "java");
        hello.addProperty("library", "dev.baton:baton-client");
        say("hello", hello);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            switch (text(command, "command")) {
                // In order of arrival.
                case "handle", "release" -> obey(command);
                default -> calls.put(command.get("id").getAsLong(), work.submit(() -> obey(command)));
            }
        }
    }

    private void obey(JsonObject command) {
        JsonObject answer;
        String event = "done";
        try {
            answer = done(command);
        } catch (InterruptedException | IOException | RuntimeException e) {
            event = "failed";
            answer = account(e);
        }
        answer.add("id", command.get("id"));
        say(event, answer);
    }

    private JsonObject done(JsonObject command) throws InterruptedException, IOException {
        JsonObject facts = new JsonObject();
        switch (text(command, "command")) {
            case "connect" -> connect(command);
            case "handle" -> how.put(text(command, "type"), command);
            case "release" -> {
                CountDownLatch waiting = released;
                released = new CountDownLatch(1);
                waiting.countDown();
            }
            case "send" -> {
                boolean isSized = command.has("bytes");
                String text = isSized ? "x".repeat(command.get("bytes").getAsInt()) : text(command, "text");
                Info info = Info.newBuilder().setText(text).build();
                String id = agent.send(text(command, "to"), Envelopes.About.NOTHING, info).getMessageId();
                facts.addProperty("message_id", id);
            }
            case "hand_over" -> {
                long epoch = command.get("epoch").getAsLong();
                String to = text(command, "to");
                Duration limit = command.has("timeout_ms") ? millisOf(command, "timeout_ms") : null;
                List<ContextSection> context = contextOf(command);
                handed(
                        facts,
                        agent.handOver(to, text(command, "task_id"), epoch, requestOf(command), context, limit));
            }
            case "resume" -> handed(facts, agent.resumeHandOver(text(command, "handoff_id"), contextOf(command)));
            case "delegate" -> {
                long epoch = command.get("epoch").getAsLong();
                String to = text(command, "to");
                String taskId = text(command, "task_id");
                HandoffRequest request = requestOf(command);
                List<ContextSection> context = contextOf(command);
                Outcome outcome = command.has("timeout_ms")
                        ? agent.delegate(to, taskId, epoch, request, context, millisOf(command, "timeout_ms"))
                        : agent.delegate(to, taskId, epoch, request, context);
                facts.addProperty("epoch", outcome.epoch());
                facts.addProperty("status", outcome.status().name().substring("TASK_STATUS_".length()));
                facts.add("result", JsonParser.parseString(Json.text(outcome.result())));
            }
            case "recall" -> {
                OwnedTask task = agent.recall(text(command, "handoff_id"), text(command, "text"));
                facts.addProperty("epoch", task.epoch());
            }
            case "cancel" -> calls.get(command.get("call").getAsLong()).cancel(true);
            case "owned_tasks" -> {
                JsonArray tasks = new JsonArray();
                for (OwnedTask owned : agent.ownedTasks()) {
                    JsonObject task = new JsonObject();
                    task.addProperty("task_id", owned.taskId());
                    task.addProperty("epoch", owned.epoch());
                    task.addProperty("handoff_id", owned.openHandoffId());
                    tasks.add(task);
                }
                facts.add("tasks", tasks);
            }
            case "negotiate" -> {
                TaskRequest request = TaskRequest.newBuilder()
                        .setDescription(text(command, "text"))
                        .build();
                Negotiation begun =
                        agent.negotiations().begin(text(command, "to"), Envelopes.About.NOTHING, request);
                negotiation = begun;
                work.submit(() -> sayOffers(begun));
                facts.addProperty("negotiation_id", begun.id());
            }
            case "counter" -> {
                Bid bid = bids.get(text(command, "offer_id"));
                double cost = command.get("cost").getAsDouble();
                bid.counter(bid.terms().toBuilder().setCost(cost).build());
            }
            case "award" -> negotiation.award(bids.get(text(command, "offer_id")), text(command, "text"));
            case "close" -> agent.close(grace);
            default -> throw new IllegalArgumentException("a command that cannot be: " + command);
        }
        return facts;
    }

    private static HandoffRequest requestOf(JsonObject command) {
        HandoffRequest.Builder request = HandoffRequest.newBuilder().setTaskType(text(command, "task_type"));
        if (command.has("loan_timeout_ms")) {
            request.setLoanTimeout(Times.ofDuration(millisOf(command, "loan_timeout_ms")));
        }
        return request.build();
    }

    private static Duration millisOf(JsonObject command, String name) {
        return Duration.ofMillis(command.get(name).getAsLong());
    }

    private static List<ContextSection> contextOf(JsonObject command) {
        return command.getAsJsonObject("context").entrySet().stream()
                .map(section -> Envelopes.jsonSection(section.getKey(), JSON.toJson(section.getValue())))
                .toList();
    }

    private static void handed(JsonObject facts, HandedOver handed) {
        facts.addProperty("owner_id", handed.ownerId());
        facts.addProperty("epoch", handed.epoch());
    }

    private void connect(JsonObject command) throws InterruptedException, IOException {
        grace = Duration.ofMillis(command.get("stop_grace_ms").getAsLong());
        AgentBuilder builder = Agent.builder()
                .server(text(command, "server"))
                .caFile(Path.of(text(command, "ca")))
                .id(text(command, "agent_id"))
                .keyId(text(command, "key_id"))
                .key(Keys.load(Path.of(text(command, "key"))))
                .credit(command.get("credit").getAsInt())
                .onHandoff(this::take)
                .onRecalled(Harness::recalled)
                .onOfferWanted(this::bid)
                .on(Info.class, this::read)
                .on(TaskAccept.class, this::read)
                .on(NegotiationClosed.class, this::read);
        if (command.has("handler_timeout_ms")) {
            builder.listenerTimeout(
                    Duration.ofMillis(command.get("handler_timeout_ms").getAsLong()));
        }
        if (command.has("resume")) {
            builder.resume(command.get("resume").getAsBoolean());
        }
        if (command.has("context")) {
            List<ContextSection> context = contextOf(command);
            builder.contextProvider(wanted -> context);
        }
        agent = builder.connect();
        Agent connected = agent;
        work.execute(() -> {
            try {
                connected.awaitEnd();
            } catch (BatonException e) {
                say("ended", account(e));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        });
    }

    private void take(Offer offer) throws InterruptedException, IOException {
        JsonObject handling = new JsonObject();
        handling.addProperty("handoff_id", offer.handoffId());
        handling.addProperty("task_id", offer.taskId());
        if (offer.isResumed()) {
            JsonObject resumed = new JsonObject();
            resumed.addProperty("task_id", offer.taskId());
            resumed.addProperty("epoch", offer.epoch() + 1);
            say("resumed", resumed);
        }
        String told = offer.isResumed()
                ? text(how.getOrDefault("HandoffRequest", new JsonObject()), "as")
                : does("HandoffRequest", handling);
        if (told.equals("reject")) {
            offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "told to reject");
            return;
        }
        OwnedTask task = offer.accept().complete();
        if (!task.isResumed()) {
            JsonObject owned = new JsonObject();
            owned.addProperty("task_id", task.taskId());
            owned.addProperty("handoff_id", offer.handoffId());
            owned.addProperty("epoch", task.epoch());
            say("owned", owned);
        }
        if (told.equals("fail")) {
            throw new IllegalStateException("told to fail");
        }
        if (told.equals("finish")) {
            task.finish(resultOf(how.get("HandoffRequest")), "");
        }
        if (told.equals("work")) {
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException e) {
                JsonObject stopped = new JsonObject();
                stopped.addProperty("task_id", task.taskId());
                say("stopped", stopped);
            }
        }
    }

    private static Map<String, Object> resultOf(JsonObject command) {
        if (command.has("bytes")) {
            return Map.of("text", "x".repeat(command.get("bytes").getAsInt()));
        }
        return Json.object(JSON.toJson(command.get("result")));
    }

    private static void recalled(Recalled recalled) {
        JsonObject facts = new JsonObject();
        facts.addProperty("task_id", recalled.taskId());
        facts.addProperty("handoff_id", recalled.handoffId());
        facts.addProperty("epoch", recalled.epoch());
        say("recalled", facts);
    }

    private BidAnswer bid(OfferWanted wanted) throws InterruptedException {
        JsonObject handling = new JsonObject();
        handling.addProperty("negotiation_id", wanted.negotiationId());
        String told = does(wanted.counter().isPresent() ? "TaskOffer" : "TaskRequest", handling);
        if (told.equals("decline")) {
            return BidAnswer.decline(RejectReason.REJECT_REASON_OVERLOADED, "told to decline");
        }
        if (told.equals("withdraw")) {
            wanted.withdraw();
            return BidAnswer.later();
        }
        double cost = wanted.counter().map(TaskOffer::getCost).orElse(5.0);
        return BidAnswer.offer(
                TaskOffer.newBuilder().setConfidence(0.9).setCost(cost).build());
    }

    /** Reports each offer, and then the end. */
    private Void sayOffers(Negotiation begun) throws InterruptedException {
        for (Optional<Bid> next = begun.next(); next.isPresent(); next = begun.next()) {
            Bid bid = next.get();
            bids.put(bid.offerId(), bid);
            JsonObject offered = new JsonObject();
            offered.addProperty("negotiation_id", begun.id());
            offered.addProperty("agent_id", bid.agentId());
            offered.addProperty("offer_id", bid.offerId());
            offered.addProperty("cost", bid.terms().getCost());
            offered.addProperty("round", bid.terms().getRound());
            say("offered", offered);
        }
        JsonObject closed = new JsonObject();
        closed.addProperty("negotiation_id", begun.id());
        closed.addProperty("state", begun.closed().getState().name().substring("NEGOTIATION_STATE_".length()));
        say("closed", closed);
        return null;
    }

    private void read(Delivery<?> delivery) throws InterruptedException {
        Envelope envelope = delivery.envelope();
        JsonObject handling = new JsonObject();
        handling.addProperty("message_id", envelope.getMessageId());
        handling.addProperty("sender_id", envelope.getSenderId());
        handling.addProperty("attempt", delivery.attempt());
        if (delivery.payload() instanceof NegotiationClosed closed) {
            handling.addProperty("winner_id", closed.getWinnerId());
        }
        does(delivery.payload().getClass().getSimpleName(), handling);
    }

    /** Reports that a listener has a message, and follows its instruction; the caller handles the rest. */
    private String does(String kind, JsonObject handling) throws InterruptedException {
        // Read before the report, since the suite may change the instruction at once after it.
        CountDownLatch waiting = released;
        String told = text(how.getOrDefault(kind, new JsonObject()), "as");
        handling.addProperty("type", kind);
        say("handling", handling);
        switch (told) {
            case "throw" -> throw new IllegalStateException("told to throw");
            case "poison" -> throw new PoisonException("told that it is poison");
            case "later" -> throw new RetryLaterException(Duration.ofSeconds(7), "told to ask for it later");
            case "wait" -> waiting.await();
            default -> {}
        }
        return told;
    }

    /** Converts an error to the protocol's JSON form. */
    private static JsonObject account(Exception error) {
        JsonObject account = new JsonObject();
        account.addProperty("message", error.toString());
        String kind = "other";
        if (error instanceof UntrustedException) {
            kind = "untrusted";
        } else if (error instanceof BatonException refused && !refused.reason().isEmpty()) {
            kind = "refused";
            account.addProperty("reason", refused.reason());
            account.addProperty("code", refused.code().name());
            account.add("metadata", JSON.toJsonTree(refused.metadata()));
            refused.retryDelay().ifPresent(delay -> account.addProperty("retry_delay_ms", delay.toMillis()));
        } else if (error instanceof BatonException) {
            kind = "unavailable";
        } else if (error instanceof VerificationException unverified) {
            kind = "unverified";
            account.addProperty("reason", unverified.reason());
        } else if (error instanceof InterruptedException) {
            kind = "cancelled";
        } else if (error instanceof TaskRecalledException recalled) {
            kind = "recalled";
            account.addProperty("reason", recalled.reason().name());
            account.addProperty("epoch", recalled.epoch());
        } else if (error instanceof HandoffFailedException failed) {
            kind = "handoff_failed";
            account.addProperty("reason", failed.reason());
        }
        account.addProperty("kind", kind);
        return account;
    }

    private static String text(JsonObject command, String name) {
        JsonElement value = command.get(name);
        return value == null ? "" : value.getAsString();
    }

    private static void say(String event, JsonObject facts) {
        facts.addProperty("event", event);
        OUT.println(facts);
    }
}
