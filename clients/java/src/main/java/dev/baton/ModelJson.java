package dev.baton;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.gson.JsonSerializer;
import java.util.List;

/** The JSON of what programs have from models: texts, parsed JSON, and objects of SDKs. */
final class ModelJson {
    private static final double NUMBER_MAX = (1L << 53) - 1;
    private static final Gson GSON =
            new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    /** Writes a whole number without a fraction, because canonical JSON has one form of it. */
    private static final Gson WHOLE = GSON.newBuilder()
            .registerTypeAdapter(Double.class, (JsonSerializer<Double>) (number, type, context) ->
                    number == Math.rint(number) && Math.abs(number) <= NUMBER_MAX
                            ? new JsonPrimitive(number.longValue())
                            : new JsonPrimitive(number))
            .create();

    private ModelJson() {}

    /**
     * Returns the JSON of an object: of a String, the JSON that it is; of an object of an SDK, what the SDK's own mapper
     * writes. The client depends on no SDK, so it asks by name. Throws JsonParseException, IllegalArgumentException or
     * ReflectiveOperationException.
     */
    static JsonElement of(Object value) throws ReflectiveOperationException {
        if (value instanceof String text) {
            return JsonParser.parseString(text);
        }
        if (value instanceof JsonElement read) {
            return read;
        }
        if (value != null) {
            String name = value.getClass().getName();
            for (String sdk : List.of("com.openai.", "com.anthropic.")) {
                if (name.startsWith(sdk)) {
                    return JsonParser.parseString(writtenBy(sdk + "core.ObjectMappers", value));
                }
            }
            if (name.startsWith("com.google.genai.")) {
                return JsonParser.parseString(
                        (String) value.getClass().getMethod("toJson").invoke(value));
            }
        }
        return GSON.toJsonTree(value);
    }

    /** Returns the JSON of a list of such objects, in which a String is a text. */
    static JsonElement ofMessages(Object value) throws ReflectiveOperationException {
        if (!(value instanceof Iterable<?> messages) || value instanceof JsonElement) {
            return of(value);
        }
        JsonArray list = new JsonArray();
        for (Object one : messages) {
            list.add(one instanceof String text ? new JsonPrimitive(text) : of(one));
        }
        return list;
    }

    /** Returns the text of a value of parsed JSON. Throws IllegalArgumentException for NaN and infinities. */
    static String text(Object value) {
        return WHOLE.toJson(value);
    }

    private static String writtenBy(String mappers, Object value) throws ReflectiveOperationException {
        Class<?> found = Class.forName(mappers, true, value.getClass().getClassLoader());
        Object mapper = found.getMethod("jsonMapper").invoke(null);
        return (String) mapper.getClass().getMethod("writeValueAsString", Object.class).invoke(mapper, value);
    }
}
