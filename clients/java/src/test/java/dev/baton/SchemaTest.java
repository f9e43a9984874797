package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Descriptors.EnumDescriptor;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Message;
import dev.baton.Envelopes.About;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.MessageType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The client knows every error code and every message type of the schema. */
class SchemaTest {
    private static final Path SCHEMA = Path.of("../../proto/baton/v1");

    @Test
    void everyErrorCodeIsKnown() throws IOException {
        assertKnown("error.proto", "ERROR_CODE", ErrorCode.getDescriptor());
    }

    @Test
    void everyMessageTypeHasItsPayload() throws Exception {
        assertKnown("envelope.proto", "MESSAGE_TYPE", MessageType.getDescriptor());
        for (EnumValueDescriptor type : MessageType.getDescriptor().getValues()) {
            // A checkpoint has the payload of a context, which by itself is that of a handoff.
            if (type.getNumber() == MessageType.MESSAGE_TYPE_CONTEXT_CHECKPOINT_VALUE) {
                continue;
            }
            if (type.getNumber() == 0) {
                continue;
            }
            Matcher words = Pattern.compile("_([A-Z])([A-Z]*)").matcher(type.getName().substring("MESSAGE_TYPE".length()));
            String name = words.replaceAll(word -> word.group(1) + word.group(2).toLowerCase());
            Message payload = (Message) Class.forName("dev.baton.v1." + name)
                    .getMethod("getDefaultInstance")
                    .invoke(null);
            Envelope envelope = Envelopes.make(payload, "alice", "bob", About.NOTHING, Instant.now());
            assertEquals(type.getNumber(), envelope.getMessageTypeValue());
            assertEquals(payload, Envelopes.payloadOf(envelope));
        }
    }

    private static void assertKnown(String file, String prefix, EnumDescriptor known) throws IOException {
        Matcher line = Pattern.compile("(?m)^  (" + prefix + "_\\w+) = (\\d+);").matcher(Files.readString(SCHEMA.resolve(file)));
        Map<String, Integer> expected = new TreeMap<>();
        while (line.find()) {
            expected.put(line.group(1), Integer.valueOf(line.group(2)));
        }
        assertTrue(expected.size() > 10);
        Map<String, Integer> seen = known.getValues().stream()
                .collect(Collectors.toMap(EnumValueDescriptor::getName, EnumValueDescriptor::getNumber));
        assertEquals(expected, new TreeMap<>(seen));
    }
}
