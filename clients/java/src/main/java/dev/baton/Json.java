package dev.baton;

import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import com.google.gson.stream.JsonWriter;
import dev.baton.BatonException.FieldViolation;
import io.grpc.Status;
import java.io.IOException;
import java.io.StringReader;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Objects of JSON, as results, answers and inputs have them, and their text, as the fields of {@code dev.baton.v1} have it
 * whose names end in {@code json}. They arrive as they were sent, up to 128 objects and lists inside each other.
 *
 * <p>A value is a Map with names, a List, a String, a Number, a Boolean or null. An integer is read as a Long, or as a
 * BigInteger beyond 64 bits; any other number as a Double, or as a BigDecimal where a Double would round it.
 */
public final class Json {
    /** The maximum number of objects and lists inside each other. */
    static final int LEVELS_MAX = 128;

    private static final int POINTER_LENGTH_MAX = 200;

    private Json() {}

    /**
     * Returns the text of an object. Throws {@link BatonException}, FIELD_INVALID, with the JSON pointer of what cannot be
     * sent: a number that is not finite, half of a surrogate pair, a name that is no String, a value that JSON does not
     * have, or over 128 objects and lists inside each other.
     */
    public static String text(Map<String, ?> object) {
        return text(object, "value");
    }

    /** Reads the text of an object; an empty text is an empty object. Throws IllegalArgumentException for other text. */
    public static Map<String, Object> object(String text) {
        if (text.isEmpty()) {
            return Map.of();
        }
        try {
            return read(text);
        } catch (Wrong e) {
            throw new IllegalArgumentException(e.getMessage() + e.place());
        }
    }

    /** As {@link #text(Map)}, for a field of a payload. */
    static String text(Map<String, ?> object, String field) {
        StringWriter text = new StringWriter();
        JsonWriter writer = new JsonWriter(text);
        writer.setStrictness(Strictness.STRICT);
        writer.setHtmlSafe(false);
        try {
            write(writer, object, "", 0);
            writer.flush();
        } catch (Wrong e) {
            throw refusal("envelope.payload." + field, e.getMessage() + e.place());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return text.toString();
    }

    /** Throws {@link BatonException}, FIELD_INVALID, for a text that the broker would refuse; an empty one is none. */
    static void check(String text, String path, int bytesMax) {
        if (text.isEmpty()) {
            return;
        }
        try {
            read(text);
        } catch (Wrong e) {
            throw refusal(path, e.getMessage() + e.place());
        }
        int bytesCount = text.getBytes(StandardCharsets.UTF_8).length;
        if (bytesCount > bytesMax) {
            String size = "has " + bytesCount + " bytes as JSON, over the limit of " + bytesMax;
            throw refusal(path, size + "; store it elsewhere and send a reference to it");
        }
    }

    /** Returns what is wrong with a text in UTF-8; null: nothing is. */
    static String wrongText(String text) {
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            if (!Character.isSurrogate(one)) {
                continue;
            }
            if (i + 1 == text.length() || !Character.isSurrogatePair(one, text.charAt(i + 1))) {
                return String.format("has an unpaired surrogate, \\u%04x at character %d", (int) one, i);
            }
            i++;
        }
        return null;
    }

    static BatonException refusal(String field, String problem) {
        List<FieldViolation> violations = List.of(new FieldViolation(field, problem));
        return new BatonException(
                Status.Code.INVALID_ARGUMENT, field + " " + problem, "FIELD_INVALID", Map.of(), violations, null);
    }

    /** What is wrong with a value, and its place. */
    private static final class Wrong extends RuntimeException {
        private static final long serialVersionUID = 1L;
        private final String pointer;

        Wrong(String problem, String pointer) {
            super(problem, null, false, false);
            this.pointer = pointer;
        }

        String place() {
            boolean isLong = pointer.length() > POINTER_LENGTH_MAX;
            String shown = isLong ? pointer.substring(0, POINTER_LENGTH_MAX) + "..." : pointer;
            return shown.isEmpty() ? "" : " (at " + shown + ")";
        }
    }

    private static void write(JsonWriter writer, Object value, String pointer, int level) throws IOException {
        if (value instanceof Map<?, ?> members) {
            checkLevel(level, pointer);
            writer.beginObject();
            for (Map.Entry<?, ?> member : members.entrySet()) {
                if (!(member.getKey() instanceof String name)) {
                    throw new Wrong("must have Strings as names, not " + member.getKey(), pointer);
                }
                writer.name(whole(name, pointer));
                write(writer, member.getValue(), step(pointer, name), level + 1);
            }
            writer.endObject();
        } else if (value instanceof Collection<?> list) {
            checkLevel(level, pointer);
            writer.beginArray();
            int index = 0;
            for (Object one : list) {
                write(writer, one, pointer + "/" + index, level + 1);
                index++;
            }
            writer.endArray();
        } else if (value instanceof Number number) {
            writer.value(finite(number, pointer));
        } else if (value instanceof String text) {
            writer.value(whole(text, pointer));
        } else if (value instanceof Boolean flag) {
            writer.value(flag);
        } else if (value == null) {
            writer.nullValue();
        } else {
            throw new Wrong("must be JSON, which has no " + value.getClass().getName(), pointer);
        }
    }

    private static Map<String, Object> read(String text) {
        JsonReader reader = new JsonReader(new StringReader(text));
        reader.setStrictness(Strictness.STRICT);
        try {
            if (reader.peek() != JsonToken.BEGIN_OBJECT) {
                throw new Wrong("must be a JSON object", "");
            }
            Map<String, Object> object = members(reader, "", 0);
            if (reader.peek() != JsonToken.END_DOCUMENT) {
                throw new Wrong("must be one JSON object", "");
            }
            return object;
        } catch (IOException | IllegalStateException | NumberFormatException e) {
            throw new Wrong("is no JSON: " + e.getMessage().lines().findFirst().orElse(""), ""); // the rest is a link
        }
    }

    private static Object value(JsonReader reader, String pointer, int level) throws IOException {
        return switch (reader.peek()) {
            case BEGIN_OBJECT -> members(reader, pointer, level);
            case BEGIN_ARRAY -> list(reader, pointer, level);
            case STRING -> whole(reader.nextString(), pointer);
            case NUMBER -> number(reader.nextString(), pointer);
            case BOOLEAN -> reader.nextBoolean();
            case NULL -> {
                reader.nextNull();
                yield null;
            }
            case NAME, END_ARRAY, END_OBJECT, END_DOCUMENT -> throw new Wrong("is no JSON", pointer);
        };
    }

    private static Map<String, Object> members(JsonReader reader, String pointer, int level) throws IOException {
        checkLevel(level, pointer);
        Map<String, Object> members = new LinkedHashMap<>();
        reader.beginObject();
        while (reader.hasNext()) {
            String name = whole(reader.nextName(), pointer);
            if (members.containsKey(name)) {
                throw new Wrong("has the name " + name + " twice", pointer);
            }
            members.put(name, value(reader, step(pointer, name), level + 1));
        }
        reader.endObject();
        return Collections.unmodifiableMap(members);
    }

    private static List<Object> list(JsonReader reader, String pointer, int level) throws IOException {
        checkLevel(level, pointer);
        List<Object> list = new ArrayList<>();
        reader.beginArray();
        while (reader.hasNext()) {
            list.add(value(reader, pointer + "/" + list.size(), level + 1));
        }
        reader.endArray();
        return Collections.unmodifiableList(list);
    }

    private static Number number(String digits, String pointer) {
        double rounded = Double.parseDouble(digits);
        if (Double.isInfinite(rounded)) {
            throw new Wrong("must have finite numbers only, not " + digits, pointer);
        }
        boolean isInteger = digits.chars().allMatch(one -> one == '-' || one >= '0' && one <= '9');
        if (isInteger && !digits.equals("-0")) {
            BigInteger integer = new BigInteger(digits);
            return integer.bitLength() < Long.SIZE ? (Number) integer.longValue() : integer;
        }
        BigDecimal exact = new BigDecimal(digits);
        return exact.compareTo(new BigDecimal(Double.toString(rounded))) == 0 ? (Number) rounded : exact;
    }

    private static Number finite(Number number, String pointer) {
        if (!Double.isFinite(number.doubleValue())) {
            boolean isFloating = number instanceof Double || number instanceof Float;
            String found = isFloating ? number.toString() : "one beyond 1.8e308";
            throw new Wrong("must have finite numbers only, not " + found, pointer);
        }
        return number;
    }

    private static String whole(String text, String pointer) {
        String wrong = wrongText(text);
        if (wrong != null) {
            throw new Wrong(wrong, pointer);
        }
        return text;
    }

    private static void checkLevel(int level, String pointer) {
        if (level == LEVELS_MAX) {
            throw new Wrong("is nested too deep: the limit is " + LEVELS_MAX + " objects and lists in each other", pointer);
        }
    }

    private static String step(String pointer, String name) {
        return pointer + "/" + name.replace("~", "~0").replace("/", "~1");
    }
}
