package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import com.google.protobuf.ProtocolMessageEnum;
import com.google.protobuf.util.JsonFormat;
import dev.baton.v1.AgentCard;
import dev.baton.v1.Envelope;
import dev.baton.v1.Handoff;
import dev.baton.v1.NackCause;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import java.security.KeyPair;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Runs one file of clients/scenarios, whose README defines the format. */
final class Scenario implements AutoCloseable {
    private static final Pattern NAME = Pattern.compile("\\$\\{([^}]+)}");
    private static final Duration STEP_TIME = Duration.ofSeconds(RealBroker.PATIENCE_SECONDS);

    /** One of its agents, connected or not. */
    private static final class Player {
        final KeyPair key = Keys.generate();
        String id;
        Agent agent;
    }

    private final RealBroker broker;
    private final JsonObject scenario;
    private final Map<String, String> names = new HashMap<>();
    private final Map<String, Player> players = new LinkedHashMap<>();
    private final Map<String, Envelope> sent = new HashMap<>();
    private final Map<String, Receipt> receipts = new HashMap<>();
    private final Map<String, Delivery<?>> received = new HashMap<>();

    Scenario(RealBroker broker, JsonObject scenario) {
        this.broker = broker;
        this.scenario = scenario;
    }

    void play() throws Exception {
        String mark = UUID.randomUUID().toString().substring(0, 8);
        for (String name : scenario.getAsJsonObject("agents").keySet()) {
            Player player = new Player();
            player.id = name + "-" + mark;
            players.put(name, player);
            names.put(name, player.id);
        }
        if (scenario.has("names")) {
            scenario.getAsJsonArray("names").forEach(name -> names.put(name.getAsString(), name.getAsString() + "-" + mark));
        }
        for (Map.Entry<String, Player> entry : players.entrySet()) {
            enter(entry.getValue(), bound(scenario.getAsJsonObject("agents").get(entry.getKey())).getAsJsonObject());
        }
        int number = 0;
        for (JsonElement step : scenario.getAsJsonArray("steps")) {
            number++;
            try {
                step(bound(step).getAsJsonObject());
            } catch (AssertionError | Exception e) {
                throw new AssertionError("step " + number + ", " + step + ": " + e.getMessage(), e);
            }
        }
    }

    @Override
    public void close() {
        players.values().stream().filter(player -> player.agent != null).forEach(player -> player.agent.close());
    }

    private void enter(Player player, JsonObject options) throws Exception {
        List<String> types = new ArrayList<>();
        if (options.has("types")) {
            options.getAsJsonArray("types").forEach(type -> types.add(type.getAsString()));
        }
        try (Agent registering = broker.agent(player.id).key(player.key).build()) {
            registering.register(AgentCard.newBuilder().addAllAgentTypes(types).build());
        }
        if (!options.has("connected") || options.get("connected").getAsBoolean()) {
            player.agent = broker.agent(player.id).key(player.key).connect();
        }
    }

    private void step(JsonObject step) throws Exception {
        Player player = players.get(step.remove("as").getAsString());
        JsonObject expected = step.has("expect") ? step.remove("expect").getAsJsonObject() : null;
        assertEquals(1, step.size(), "a step has one key");
        String key = step.keySet().iterator().next();
        JsonElement value = step.get(key);
        switch (key) {
            case "send" -> send(player, value.getAsJsonObject(), expected);
            case "repeat" -> answered(() -> player.agent.send(sent.get(value.getAsString())), expected);
            case "receive" -> receive(player, value.getAsJsonObject());
            case "acknowledge" -> {
                JsonObject what = value.getAsJsonObject();
                Delivery<?> delivery = received.get(what.get("delivery").getAsString());
                answered(() -> then(delivery, what.get("then")), expected);
            }
            case "connect" -> player.agent = broker.agent(player.id)
                    .key(player.key)
                    .credit(value.getAsJsonObject().get("credit").getAsInt())
                    .connect();
            case "disconnect" -> {
                player.agent.close();
                player.agent = null;
            }
            case "task" -> check(expected, seen(player.agent.getTask(value.getAsString())));
            case "handoff" -> check(expected, seen(player.agent.getHandoff(value.getAsString())));
            default -> fail("there is no step " + key);
        }
    }

    private void send(Player player, JsonObject what, JsonObject expected) throws Exception {
        only(what, Set.of("type", "payload", "id", "to", "task", "epoch", "correlation", "sender", "message_id",
                "clock_offset_ms", "expires_in_ms", "signed_by", "changed"));
        Message payload = payload(text(what, "type"), what.get("payload"));
        if (payload instanceof TaskContextTransfer context && context.getContextDigest().isEmpty()) {
            byte[] digest = Signing.contextDigest(context.getSectionsList());
            payload = context.toBuilder().setContextDigest(ByteString.copyFrom(digest)).build();
        }
        Instant now = Instant.now().plusMillis(number(what, "clock_offset_ms"));
        String sender = what.has("sender") ? text(what, "sender") : player.id;
        Envelope.Builder made = Envelopes.make(payload, sender, "", Envelopes.About.NOTHING, now).toBuilder();
        fields(made, what);
        if (what.has("message_id")) {
            made.setMessageId(text(what, "message_id"));
        }
        if (what.has("expires_in_ms")) {
            made.setExpiresAt(Times.ofInstant(Instant.now().plusMillis(number(what, "expires_in_ms"))));
        }
        String signer = what.has("signed_by") ? text(what, "signed_by") : null;
        KeyPair key = signer == null ? player.key : signer.isEmpty() ? null : players.get(signer).key;
        Envelope signed = key == null
                ? made.setKeyId("k1").setSignatureVersion(1).build()
                : Signing.sign(made.build(), "k1", key);
        if (what.has("changed")) {
            Envelope.Builder changed = signed.toBuilder();
            fields(changed, what.getAsJsonObject("changed"));
            signed = changed.build();
        }
        Envelope envelope = signed;
        if (what.has("id")) {
            String id = text(what, "id");
            sent.put(id, envelope);
            names.put(id, envelope.getMessageId());
            if (payload instanceof TaskContextTransfer context) {
                byte[] digest = context.getContextDigest().toByteArray();
                names.put(id + ".digest", Base64.getEncoder().encodeToString(digest));
            }
        }
        Object answer = answered(() -> player.agent.send(envelope), expected);
        if (what.has("id") && answer instanceof Receipt receipt) {
            receipts.put(text(what, "id"), receipt);
        }
    }

    private void receive(Player player, JsonObject what) throws Exception {
        only(what, Set.of("type", "from", "to", "task", "epoch", "correlation", "message", "attempt", "payload", "id",
                "then"));
        // The client verified the signature with the sender's key.
        Delivery<?> delivery = player.agent.poll(STEP_TIME).orElseThrow(() -> new AssertionError("nothing came"));
        Envelope envelope = delivery.envelope();
        JsonObject seen = new JsonObject();
        seen.addProperty("type", delivery.payload().getDescriptorForType().getName());
        seen.addProperty("from", envelope.getSenderId());
        seen.addProperty("to", envelope.getReceiverId());
        seen.addProperty("task", envelope.getTaskId());
        seen.addProperty("epoch", envelope.getEpoch());
        seen.addProperty("correlation", envelope.getCorrelationId());
        seen.addProperty("message", envelope.getMessageId());
        seen.addProperty("attempt", delivery.attempt());
        seen.add("payload", JsonParser.parseString(JsonFormat.printer().print(delivery.payload())));
        JsonObject expected = what.deepCopy();
        expected.remove("id");
        expected.remove("then");
        check(expected, seen);
        if (delivery.payload() instanceof TaskContextTransfer context) {
            byte[] digest = Signing.contextDigest(context.getSectionsList());
            assertEquals(context.getContextDigest(), ByteString.copyFrom(digest), "the context's digest");
        }
        if (what.has("id")) {
            received.put(text(what, "id"), delivery);
        }
        then(delivery, what.has("then") ? what.get("then") : new JsonPrimitive("ack"));
    }

    private static Object then(Delivery<?> delivery, JsonElement then) throws InterruptedException {
        if (then.isJsonPrimitive()) {
            switch (then.getAsString()) {
                case "ack" -> delivery.ack();
                case "nothing" -> {}
                default -> fail("there is no " + then);
            }
            return null;
        }
        JsonObject what = then.getAsJsonObject();
        if (what.has("extend_ms")) {
            delivery.extend(Duration.ofMillis(number(what, "extend_ms")));
        } else {
            Duration retryAfter = what.has("retry_after_ms") ? Duration.ofMillis(number(what, "retry_after_ms")) : null;
            delivery.nack(NackCause.valueOf("NACK_CAUSE_" + text(what, "nack")), "", retryAfter);
        }
        return null;
    }

    private interface Question {
        Object ask() throws Exception;
    }

    /** Makes a call and compares the receipt or the refusal with the expected one. */
    private Object answered(Question question, JsonObject expected) throws Exception {
        boolean isRefusalExpected = expected != null && expected.has("error");
        JsonObject seen = new JsonObject();
        Object answer;
        try {
            answer = question.ask();
        } catch (BatonException e) {
            if (!isRefusalExpected) {
                throw e;
            }
            refused(expected, e);
            return null;
        }
        assertTrue(!isRefusalExpected, "it was not refused");
        if (expected != null && answer instanceof Receipt receipt) {
            if (expected.has("same_receipt_as")) {
                Receipt first = receipts.get(expected.remove("same_receipt_as").getAsString());
                assertEquals(first.toByteString(), receipt.toByteString(), "the first receipt");
            }
            seen.addProperty("state", plain(receipt.getHandoffState(), "HANDOFF_STATE_"));
            seen.addProperty("status", plain(receipt.getTaskStatus(), "TASK_STATUS_"));
            seen.addProperty("epoch", receipt.getEpoch());
            seen.addProperty("owner", receipt.getOwnerId());
            seen.addProperty("handoff", receipt.getHandoffId());
            check(expected, seen);
        }
        return answer;
    }

    private static void refused(JsonObject expected, BatonException refusal) {
        JsonObject seen = new JsonObject();
        seen.addProperty("error", refusal.reason());
        seen.addProperty("code", refusal.code().name());
        JsonObject metadata = new JsonObject();
        refusal.metadata().forEach(metadata::addProperty);
        seen.add("metadata", metadata);
        JsonElement fields = expected.remove("fields");
        check(expected, seen);
        if (fields != null) {
            Set<String> named = new HashSet<>();
            fields.getAsJsonArray().forEach(field -> named.add(field.getAsString()));
            Set<String> found = new HashSet<>();
            refusal.fieldViolations().forEach(violation -> found.add(violation.field()));
            assertEquals(named, found, "fields");
        }
    }

    private static JsonObject seen(Task task) {
        JsonObject seen = new JsonObject();
        seen.addProperty("owner", task.getOwnerId());
        seen.addProperty("epoch", task.getEpoch());
        seen.addProperty("status", plain(task.getStatus(), "TASK_STATUS_"));
        seen.addProperty("open_handoff", task.getOpenHandoffId());
        return seen;
    }

    private static JsonObject seen(Handoff handoff) {
        JsonObject seen = new JsonObject();
        seen.addProperty("state", plain(handoff.getState(), "HANDOFF_STATE_"));
        seen.addProperty("sender_view", plain(handoff.getSenderView(), "SENDER_VIEW_"));
        seen.addProperty("receiver_view", plain(handoff.getReceiverView(), "RECEIVER_VIEW_"));
        seen.addProperty("candidate", handoff.getCandidateId());
        seen.addProperty("error", plain(handoff.getErrorCode(), "ERROR_CODE_"));
        return seen;
    }

    /** Compares the named fields: objects by their named keys in turn, lists as a whole. */
    private static void check(JsonObject expected, JsonObject seen) {
        if (expected == null) {
            return;
        }
        for (Map.Entry<String, JsonElement> entry : expected.entrySet()) {
            JsonElement found = seen.get(entry.getKey());
            if (entry.getValue().isJsonObject() && found != null && found.isJsonObject()) {
                check(entry.getValue().getAsJsonObject(), found.getAsJsonObject());
            } else {
                assertEquals(entry.getValue(), found, entry.getKey());
            }
        }
    }

    /** Returns a copy with every name replaced by its bound value. */
    private JsonElement bound(JsonElement element) {
        if (element.isJsonObject()) {
            JsonObject bound = new JsonObject();
            element.getAsJsonObject().entrySet().forEach(entry -> bound.add(entry.getKey(), bound(entry.getValue())));
            return bound;
        }
        if (element.isJsonArray()) {
            JsonArray bound = new JsonArray();
            element.getAsJsonArray().forEach(one -> bound.add(bound(one)));
            return bound;
        }
        if (element.isJsonPrimitive() && element.getAsJsonPrimitive().isString()) {
            return new JsonPrimitive(NAME.matcher(element.getAsString()).replaceAll(name -> {
                String value = names.get(name.group(1));
                assertTrue(value != null, "nothing is bound to " + name.group(1));
                return Matcher.quoteReplacement(value);
            }));
        }
        return element;
    }

    private static Message payload(String type, JsonElement json) throws Exception {
        Message.Builder payload = (Message.Builder) Class.forName("dev.baton.v1." + type)
                .getMethod("newBuilder")
                .invoke(null);
        if (json != null) {
            JsonFormat.parser().merge(json.toString(), payload);
        }
        return payload.build();
    }

    private static void fields(Envelope.Builder envelope, JsonObject what) {
        if (what.has("to")) {
            envelope.setReceiverId(text(what, "to"));
        }
        if (what.has("task")) {
            envelope.setTaskId(text(what, "task"));
        }
        if (what.has("epoch")) {
            envelope.setEpoch(number(what, "epoch"));
        }
        if (what.has("correlation")) {
            envelope.setCorrelationId(text(what, "correlation"));
        }
    }

    private static void only(JsonObject what, Set<String> known) {
        assertTrue(known.containsAll(what.keySet()), "there is a key that is not known in " + what.keySet());
    }

    private static String plain(ProtocolMessageEnum value, String prefix) {
        return value.getValueDescriptor().getName().substring(prefix.length());
    }

    private static String text(JsonObject object, String name) {
        return object.get(name).getAsString();
    }

    private static long number(JsonObject object, String name) {
        return object.has(name) ? object.get(name).getAsLong() : 0;
    }
}
