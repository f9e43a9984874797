package dev.baton;

import java.util.List;
import java.util.Map;

/**
 * Histories from and to the shapes of models: OpenAI, Anthropic, Gemini and LangChain.
 *
 * <p>Each {@code from} method takes the messages as a List of Maps or of objects of the SDKs for Java of OpenAI, Anthropic and
 * Gemini, as a JsonElement of Gson, or as a String with their JSON. The client depends on no SDK. It throws
 * {@link HistoryException} with the place of what {@code baton.history} has no form for; it drops reasoning, the ids of
 * messages, and the calls of tools that the provider runs by itself. Each {@code to} method returns the messages as parsed
 * JSON, and throws {@link HistoryException} for entries that are no history, and for a part that the interface does not take in
 * that place.
 */
public final class Shapes {
    private Shapes() {}

    /**
     * A system prompt, and the messages beside it.
     *
     * @param system the system prompt, empty without one
     * @param messages the messages
     */
    public record Prompted(String system, List<Map<String, Object>> messages) {}

    /** Converts messages of OpenAI Chat Completions. Throws {@link HistoryException}. */
    public static List<History.Entry> fromOpenAiChat(Object messages) {
        return new ShapeReader().openAiChat(messages);
    }

    /** Converts a history to messages of OpenAI Chat Completions. Throws {@link HistoryException}. */
    public static List<Map<String, Object>> toOpenAiChat(List<History.Entry> history) {
        return ShapeWriter.openAiChat(history);
    }

    /** Converts items of OpenAI Responses: an input, or the output of responses. Throws {@link HistoryException}. */
    public static List<History.Entry> fromOpenAiResponses(Object items) {
        return new ShapeReader().openAiResponses(items);
    }

    /** Converts a history to items of OpenAI Responses. Throws {@link HistoryException}. */
    public static List<Map<String, Object>> toOpenAiResponses(List<History.Entry> history) {
        return ShapeWriter.openAiResponses(history);
    }

    /**
     * Converts messages of Anthropic, and the system prompt, which is beside them: a String, blocks, or null. Throws
     * {@link HistoryException}.
     */
    public static List<History.Entry> fromAnthropic(Object messages, Object system) {
        return new ShapeReader().anthropic(messages, system);
    }

    /** Converts a history to the system prompt and the messages of Anthropic. Throws {@link HistoryException}. */
    public static Prompted toAnthropic(List<History.Entry> history) {
        return ShapeWriter.anthropic(history);
    }

    /**
     * Converts contents of Gemini, and the system instruction, which is beside them: a String, a content, parts, or null. A
     * call of Gemini may have no id. Then it gets one by its place, and a result belongs to the first open call of its name.
     * Throws {@link HistoryException}.
     */
    public static List<History.Entry> fromGemini(Object contents, Object system) {
        return new ShapeReader().gemini(contents, system);
    }

    /**
     * Converts a history to the system instruction and the contents of Gemini. Throws {@link HistoryException}, also for the
     * result of a call that the history does not have, because a result of Gemini has the call's name.
     */
    public static Prompted toGemini(List<History.Entry> history) {
        return ShapeWriter.gemini(history);
    }

    /**
     * Converts messages of LangChain: what {@code messages_to_dict} and {@code toDict} write, {@code {role, content}},
     * {@code [role, text]} and texts. Throws {@link HistoryException}.
     */
    public static List<History.Entry> fromLangChain(Object messages) {
        return new ShapeReader().langChain(messages);
    }

    /**
     * Converts a history to what {@code messages_from_dict} and {@code mapStoredMessagesToChatMessages} of LangChain take.
     * Throws {@link HistoryException}.
     */
    public static List<Map<String, Object>> toLangChain(List<History.Entry> history) {
        return ShapeWriter.langChain(history);
    }
}
