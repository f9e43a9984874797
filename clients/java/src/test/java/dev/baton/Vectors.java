package dev.baton;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.baton.v1.Envelope;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;

/** The vectors that the tests of every language run. */
final class Vectors {
    private static final Path FOLDER = Path.of("../../vectors");

    private Vectors() {}

    static JsonObject load(String name) {
        try {
            return JsonParser.parseString(Files.readString(FOLDER.resolve(name))).getAsJsonObject();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static Stream<DynamicTest> each(JsonObject file, String list, Consumer<JsonObject> test) {
        List<JsonElement> cases = file.getAsJsonArray(list).asList();
        if (cases.isEmpty()) {
            throw new AssertionError("there are no " + list);
        }
        return cases.stream()
                .map(JsonElement::getAsJsonObject)
                .map(one -> DynamicTest.dynamicTest(one.get("name").getAsString(), () -> test.accept(one)));
    }

    static String text(JsonObject object, String name) {
        return object.get(name).getAsString();
    }

    static byte[] bytes(JsonObject object, String name) {
        return HexFormat.of().parseHex(text(object, name));
    }

    static ByteString string(JsonObject object, String name) {
        return ByteString.copyFrom(bytes(object, name));
    }

    static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    static void time(JsonObject object, String name, Consumer<Timestamp> set) {
        if (!object.get(name).isJsonNull()) {
            var parts = object.getAsJsonArray(name);
            set.accept(Timestamp.newBuilder()
                    .setSeconds(parts.get(0).getAsLong())
                    .setNanos(parts.get(1).getAsInt())
                    .build());
        }
    }

    static Envelope.Builder envelope(JsonObject fields) {
        JsonObject payload = fields.getAsJsonObject("payload");
        Envelope.Builder envelope = Envelope.newBuilder()
                .setMessageId(text(fields, "message_id"))
                .setSenderId(text(fields, "sender_id"))
                .setReceiverId(text(fields, "receiver_id"))
                .setMessageTypeValue(fields.get("message_type").getAsInt())
                .setCorrelationId(text(fields, "correlation_id"))
                .setTaskId(text(fields, "task_id"))
                .setEpoch(fields.get("epoch").getAsBigInteger().longValue())
                .setKeyId(text(fields, "key_id"))
                .setPayload(Any.newBuilder()
                        .setTypeUrl(text(payload, "type_url"))
                        .setValue(string(payload, "value")));
        time(fields, "timestamp", envelope::setTimestamp);
        time(fields, "expires_at", envelope::setExpiresAt);
        return envelope;
    }
}
