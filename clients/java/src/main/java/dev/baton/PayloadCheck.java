package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.ListValue;
import com.google.protobuf.Message;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import dev.baton.BatonException.FieldViolation;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskStatusUpdate;
import io.grpc.Status;
import java.math.BigDecimal;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;

/**
 * The check of a payload before it is signed: what the broker cannot parse or is sure to refuse, and text that UTF-8 does
 * not have. A refusal has the broker's code, FIELD_INVALID, and names the field, the limit and what was found.
 */
final class PayloadCheck {
    /** The maximum size of a result, in bytes of JSON. */
    static final int RESULT_BYTES_MAX = 256 * 1024;
    /** The maximum size of the data of an answer, in bytes of JSON. */
    static final int DATA_BYTES_MAX = 64 * 1024;
    /** The number of nested objects below the outermost one that the broker's parser reads. */
    static final int LEVELS_MAX = 32;

    /** The number of nested messages that the broker's parser reads, with the entries of maps. */
    private static final int MESSAGES_MAX = 100;
    /** The largest integer up to which JSON text has no fraction. */
    private static final double INTEGER_MAX = 9_007_199_254_740_992.0;

    private static final int POINTER_LENGTH_MAX = 200;

    private PayloadCheck() {}

    /** Throws {@link BatonException}, FIELD_INVALID. */
    static void check(Message payload) {
        walk(payload, "envelope.payload", MESSAGES_MAX);
        if (payload instanceof TaskStatusUpdate update && update.hasResult()) {
            bound("envelope.payload.result", update.getResult(), RESULT_BYTES_MAX);
        } else if (payload instanceof TaskInput input && input.hasData()) {
            bound("envelope.payload.data", input.getData(), DATA_BYTES_MAX);
        }
    }

    private static void bound(String path, Struct value, int bytesMax) {
        // A byte of the message gives at most six bytes of JSON.
        if (value.getSerializedSize() > bytesMax / 6) {
            long bytesCount = jsonSize(value);
            if (bytesCount > bytesMax) {
                throw wrong(
                        path,
                        "has " + bytesCount + " bytes as JSON, over the limit of " + bytesMax
                                + "; store it elsewhere and send a reference to it");
            }
        }
    }

    /** Checks a message in which the parser has this many levels of nested messages left. */
    private static void walk(Message message, String path, int left) {
        if (message instanceof Struct object) {
            walkObject(object, new Root(path, object), "", left);
            return;
        }
        for (Map.Entry<FieldDescriptor, Object> field : message.getAllFields().entrySet()) {
            FieldDescriptor descriptor = field.getKey();
            String name = path + "." + descriptor.getName();
            if (descriptor.isRepeated()) {
                int index = 0;
                for (Object one : (List<?>) field.getValue()) {
                    walkField(descriptor, one, name + "[" + index + "]", left);
                    index++;
                }
            } else {
                walkField(descriptor, field.getValue(), name, left);
            }
        }
    }

    private static void walkField(FieldDescriptor field, Object value, String path, int left) {
        if (value instanceof String text) {
            checkText(text, path, "");
        } else if (field.getJavaType() == FieldDescriptor.JavaType.MESSAGE) {
            walk((Message) value, path, left - 1);
        }
    }

    /** A struct of a payload, and its path. */
    private record Root(String path, Struct object) {
        BatonException tooDeep(String pointer) {
            String text = "is nested " + levelsOf(object) + " levels deep, over the limit of " + LEVELS_MAX
                    + " levels of objects" + at(pointer) + "; flatten it, or send it as JSON text";
            return wrong(path, text);
        }
    }

    private static void walkObject(Struct object, Root root, String pointer, int left) {
        for (Map.Entry<String, Value> field : object.getFieldsMap().entrySet()) {
            checkText(field.getKey(), root.path(), pointer);
            // The entry of the map, and the value in it.
            walkValue(field.getValue(), root, pointer + "/" + field.getKey(), left - 2);
        }
    }

    private static void walkValue(Value value, Root root, String pointer, int left) {
        boolean isNesting = value.hasStructValue() || value.hasListValue();
        if (left < (isNesting ? 1 : 0)) {
            throw root.tooDeep(pointer);
        }
        switch (value.getKindCase()) {
            case NUMBER_VALUE -> {
                if (!Double.isFinite(value.getNumberValue())) {
                    String found = value.getNumberValue() + at(pointer);
                    throw wrong(root.path(), "must have finite numbers only, not " + found);
                }
            }
            case STRING_VALUE -> checkText(value.getStringValue(), root.path(), pointer);
            case STRUCT_VALUE -> walkObject(value.getStructValue(), root, pointer, left - 1);
            case LIST_VALUE -> {
                ListValue list = value.getListValue();
                for (int i = 0; i < list.getValuesCount(); i++) {
                    walkValue(list.getValues(i), root, pointer + "/" + i, left - 2);
                }
            }
            case NULL_VALUE, BOOL_VALUE, KIND_NOT_SET -> {}
        }
    }

    /** Returns the number of objects and lists in the longest chain below the object. Not recursive: it may be long. */
    private static int levelsOf(Struct object) {
        record Nested(Value value, int level) {}
        Deque<Nested> open = new ArrayDeque<>();
        object.getFieldsMap().values().forEach(value -> open.add(new Nested(value, 0)));
        int levels = 0;
        for (Nested next = open.poll(); next != null; next = open.poll()) {
            int level = next.level() + 1;
            boolean isNesting = next.value().hasStructValue() || next.value().hasListValue();
            levels = isNesting ? Math.max(levels, level) : levels;
            next.value().getStructValue().getFieldsMap().values().forEach(one -> open.add(new Nested(one, level)));
            next.value().getListValue().getValuesList().forEach(one -> open.add(new Nested(one, level)));
        }
        return levels;
    }

    private static void checkText(String text, String path, String pointer) {
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            if (!Character.isSurrogate(one)) {
                continue;
            }
            boolean isPair = Character.isHighSurrogate(one)
                    && i + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(i + 1));
            if (!isPair) {
                String found = String.format("\\u%04x at character %d", (int) one, i);
                throw wrong(path, "has an unpaired surrogate, " + found + at(pointer) + ": it is no Unicode text");
            }
            i++;
        }
    }

    /** Returns the place of a pointer as text, cut; empty for the whole. */
    private static String at(String pointer) {
        boolean isLong = pointer.length() > POINTER_LENGTH_MAX;
        String shown = isLong ? pointer.substring(0, POINTER_LENGTH_MAX) + "..." : pointer;
        return shown.isEmpty() ? "" : " (at " + shown + ")";
    }

    private static BatonException wrong(String field, String problem) {
        List<FieldViolation> violations = List.of(new FieldViolation(field, problem));
        return new BatonException(
                Status.Code.INVALID_ARGUMENT, field + " " + problem, "FIELD_INVALID", Map.of(), violations, null);
    }

    /** Returns the bytes of a struct as JSON text without white space; a fraction counts as its shortest digits. */
    static long jsonSize(Struct object) {
        long size = 2 + Math.max(0, object.getFieldsCount() - 1);
        for (Map.Entry<String, Value> field : object.getFieldsMap().entrySet()) {
            size += textSize(field.getKey()) + 1 + jsonSize(field.getValue());
        }
        return size;
    }

    private static long jsonSize(Value value) {
        return switch (value.getKindCase()) {
            case NULL_VALUE, KIND_NOT_SET -> 4;
            case BOOL_VALUE -> value.getBoolValue() ? 4 : 5;
            case NUMBER_VALUE -> numberSize(value.getNumberValue());
            case STRING_VALUE -> textSize(value.getStringValue());
            case STRUCT_VALUE -> jsonSize(value.getStructValue());
            case LIST_VALUE -> {
                ListValue list = value.getListValue();
                long size = 2 + Math.max(0, list.getValuesCount() - 1);
                for (Value one : list.getValuesList()) {
                    size += jsonSize(one);
                }
                yield size;
            }
        };
    }

    private static int numberSize(double number) {
        if (number == Math.rint(number) && Math.abs(number) <= INTEGER_MAX) {
            return Long.toString((long) number).length();
        }
        int digits = BigDecimal.valueOf(number).stripTrailingZeros().precision();
        return digits + (number < 0 ? 2 : 1);
    }

    private static int textSize(String text) {
        int size = 2 + ByteString.copyFromUtf8(text).size();
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            boolean isShort = one == '"' || one == '\\' || one == '\b' || one == '\f' || one == '\n' || one == '\r'
                    || one == '\t';
            size += isShort ? 1 : one < 0x20 ? 5 : 0;
        }
        return size;
    }
}
