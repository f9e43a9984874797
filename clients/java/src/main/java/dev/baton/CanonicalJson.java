package dev.baton;

import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.io.StringReader;
import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * JSON whose text is the same in every language (RFC 8785). A value is a Map, a List, a String, a Double, a Boolean or
 * null.
 */
final class CanonicalJson {
    private static final double NUMBER_MAX = (1L << 53) - 1;
    private static final int LEVELS_MAX = 127;
    /** The decimal digits that tell every two doubles apart. */
    private static final int DIGITS_MAX = 17;
    /** The least number that is written without an exponent. */
    private static final double PLAIN_MIN = 1e-6;

    private CanonicalJson() {}

    /**
     * Parses JSON without duplicate names, without numbers beyond 2^53 - 1, and of at most 127 levels. Throws
     * {@link SectionException}.
     */
    static Object parse(String text) {
        if (text.startsWith("\uFEFF")) {
            throw new SectionException("the text begins with a byte order mark");
        }
        JsonReader reader = new JsonReader(new StringReader(text));
        reader.setStrictness(Strictness.STRICT);
        try {
            Object value = value(reader, 0);
            if (reader.peek() != JsonToken.END_DOCUMENT) {
                throw new SectionException("the text has more than one value");
            }
            return value;
        } catch (IOException | IllegalStateException | NumberFormatException e) {
            throw new SectionException("the text is no JSON: " + e.getMessage());
        }
    }

    /** Returns the canonical text of a value. Throws {@link SectionException} over 127 levels. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value, 0);
        return out.toString();
    }

    private static Object value(JsonReader reader, int level) throws IOException {
        checkLevel(level);
        return switch (reader.peek()) {
            case BEGIN_OBJECT -> members(reader, level);
            case BEGIN_ARRAY -> list(reader, level);
            case STRING -> whole(reader.nextString());
            case NUMBER -> number(reader.nextString());
            case BOOLEAN -> reader.nextBoolean();
            case NULL -> {
                reader.nextNull();
                yield null;
            }
            case NAME, END_ARRAY, END_OBJECT, END_DOCUMENT -> throw new SectionException("the text is no JSON");
        };
    }

    private static Map<String, Object> members(JsonReader reader, int level) throws IOException {
        Map<String, Object> members = new TreeMap<>();
        reader.beginObject();
        while (reader.hasNext()) {
            String name = whole(reader.nextName());
            if (members.containsKey(name)) {
                throw new SectionException("a name occurs twice");
            }
            members.put(name, value(reader, level + 1));
        }
        reader.endObject();
        return members;
    }

    private static List<Object> list(JsonReader reader, int level) throws IOException {
        List<Object> list = new ArrayList<>();
        reader.beginArray();
        while (reader.hasNext()) {
            list.add(value(reader, level + 1));
        }
        reader.endArray();
        return list;
    }

    private static Double number(String digits) {
        double number = Double.parseDouble(digits);
        if (Math.abs(number) > NUMBER_MAX) {
            throw new SectionException("a number is beyond 2^53 - 1");
        }
        return number + 0.0; // -0 is 0
    }

    /** Returns a text. Throws {@link SectionException} if it has half of a character. */
    private static String whole(String text) {
        for (int at = 0; at < text.length(); at++) {
            if (Character.isSurrogate(text.charAt(at))) {
                boolean isPair = at + 1 < text.length() && Character.isSurrogatePair(text.charAt(at), text.charAt(at + 1));
                if (!isPair) {
                    throw new SectionException("a text has half of a character");
                }
                at++;
            }
        }
        return text;
    }

    private static void write(StringBuilder out, Object value, int level) {
        checkLevel(level);
        if (value instanceof Map<?, ?> members) {
            String separator = "{";
            // A String compares as UTF-16, which is the order of RFC 8785.
            for (Map.Entry<?, ?> member : new TreeMap<>(members).entrySet()) {
                out.append(separator);
                writeText(out, (String) member.getKey());
                out.append(':');
                write(out, member.getValue(), level + 1);
                separator = ",";
            }
            out.append(members.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String separator = "[";
            for (Object item : list) {
                out.append(separator);
                write(out, item, level + 1);
                separator = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String text) {
            writeText(out, text);
        } else if (value instanceof Double number) {
            out.append(numberText(number));
        } else {
            out.append(value);
        }
    }

    private static void writeText(StringBuilder out, String text) {
        out.append('"');
        for (int at = 0; at < text.length(); at++) {
            char unit = text.charAt(at);
            switch (unit) {
                case '"', '\\' -> out.append('\\').append(unit);
                case '\b' -> out.append("\\b");
                case '\f' -> out.append("\\f");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                default -> {
                    if (unit < ' ') {
                        out.append("\\u%04x".formatted((int) unit));
                    } else {
                        out.append(unit);
                    }
                }
            }
        }
        out.append('"');
    }

    /** Returns a number as ECMAScript writes it. Numbers of 2^53 and above do not occur. */
    private static String numberText(double number) {
        if (number == Math.rint(number)) {
            return Long.toString((long) number);
        }
        BigDecimal shortest = shortest(number).stripTrailingZeros();
        if (Math.abs(number) >= PLAIN_MIN) {
            return shortest.toPlainString();
        }
        String digits = shortest.unscaledValue().abs().toString();
        String fraction = digits.length() == 1 ? "" : "." + digits.substring(1);
        int exponent = digits.length() - 1 - shortest.scale();
        return (number < 0 ? "-" : "") + digits.charAt(0) + fraction + "e" + exponent;
    }

    /** Returns the decimal with the fewest digits that is this double; Double.toString of JDK 17 may have one more. */
    private static BigDecimal shortest(double number) {
        BigDecimal exact = new BigDecimal(number);
        for (int digits = 1; digits < DIGITS_MAX; digits++) {
            // The nearest decimal may be on the side where the doubles are closer together.
            for (RoundingMode mode : List.of(RoundingMode.HALF_EVEN, RoundingMode.DOWN, RoundingMode.UP)) {
                BigDecimal rounded = exact.round(new MathContext(digits, mode));
                if (rounded.doubleValue() == number) {
                    return rounded;
                }
            }
        }
        return exact.round(new MathContext(DIGITS_MAX));
    }

    private static void checkLevel(int level) {
        if (level > LEVELS_MAX) {
            throw new SectionException("the JSON nests deeper than " + LEVELS_MAX + " levels");
        }
    }
}
