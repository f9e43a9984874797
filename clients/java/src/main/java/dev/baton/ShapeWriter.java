package dev.baton;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes histories in the shapes of models. */
final class ShapeWriter {
    private static final String ANY_BYTES = "application/octet-stream";

    private ShapeWriter() {}

    /** Writes a part, whose place is {@code at}. */
    private interface PartWriter {
        Map<String, Object> write(String at, Map<?, ?> part);
    }

    static List<Map<String, Object>> openAiChat(List<History.Entry> history) {
        History.checkEntries(history);
        List<Map<String, Object>> messages = new ArrayList<>();
        for (int index = 0; index < history.size(); index++) {
            History.Entry entry = history.get(index);
            Object content = content("/" + index, entry, !entry.role().equals("user"), ShapeWriter::chatPart);
            Map<String, Object> message = object("role", entry.role(), "content", content);
            boolean isResult = entry.role().equals("tool");
            put(message, isResult ? "tool_call_id" : "name", isResult ? entry.toolCallId() : entry.name());
            if (!entry.toolCalls().isEmpty()) {
                List<Object> calls = new ArrayList<>();
                for (History.Call call : entry.toolCalls()) {
                    Object function = object("name", call.name(), "arguments", call.arguments());
                    calls.add(object("id", call.id(), "type", "function", "function", function));
                }
                message.put("content", entry.saysNothing() ? null : content);
                message.put("tool_calls", calls);
            }
            messages.add(message);
        }
        return messages;
    }

    static List<Map<String, Object>> openAiResponses(List<History.Entry> history) {
        History.checkEntries(history);
        List<Map<String, Object>> items = new ArrayList<>();
        for (int index = 0; index < history.size(); index++) {
            History.Entry entry = history.get(index);
            String at = "/" + index;
            if (entry.role().equals("tool")) {
                Object output = content(at, entry, false, ShapeWriter::responsesInput);
                items.add(object("type", "function_call_output", "call_id", entry.toolCallId(), "output", output));
                continue;
            }
            boolean isOutput = entry.role().equals("assistant");
            PartWriter part = isOutput ? ShapeWriter::responsesOutput : ShapeWriter::responsesInput;
            Object content = content(at, entry, isOutput, part);
            if (!entry.saysNothing() || entry.toolCalls().isEmpty()) {
                items.add(object("role", entry.role(), "content", content));
            }
            for (History.Call call : entry.toolCalls()) {
                items.add(object(
                        "type", "function_call", "call_id", call.id(), "name", call.name(), "arguments", call.arguments()));
            }
        }
        return items;
    }

    static Shapes.Prompted anthropic(List<History.Entry> history) {
        History.checkEntries(history);
        Beside beside = new Beside("content");
        for (int index = 0; index < history.size(); index++) {
            History.Entry entry = history.get(index);
            String at = "/" + index;
            if (entry.role().equals("system")) {
                beside.system.add(onlyText(at, entry));
                continue;
            }
            boolean isAssistant = entry.role().equals("assistant");
            Object content = content(at, entry, isAssistant, ShapeWriter::anthropicBlock);
            if (entry.role().equals("tool")) {
                beside.addResult(object("type", "tool_result", "tool_use_id", entry.toolCallId(), "content", content));
                continue;
            }
            if (!entry.toolCalls().isEmpty()) {
                List<Object> blocks = new ArrayList<>();
                if (content instanceof List<?> parts) {
                    blocks.addAll(parts);
                } else if (!entry.saysNothing()) {
                    blocks.add(object("type", "text", "text", content));
                }
                for (History.Call call : entry.toolCalls()) {
                    blocks.add(object("type", "tool_use", "id", call.id(), "name", call.name(), "input", arguments(call)));
                }
                content = blocks;
            }
            beside.addMessage(object("role", entry.role(), "content", content));
        }
        return beside.prompted();
    }

    static Shapes.Prompted gemini(List<History.Entry> history) {
        History.checkEntries(history);
        Beside beside = new Beside("parts");
        Map<String, String> names = new HashMap<>();
        for (int index = 0; index < history.size(); index++) {
            History.Entry entry = history.get(index);
            String at = "/" + index;
            if (entry.role().equals("system")) {
                beside.system.add(onlyText(at, entry));
                continue;
            }
            if (entry.role().equals("tool")) {
                String name = names.get(entry.toolCallId());
                if (name == null) {
                    String problem = "is that of no call, and a result of Gemini has the call's name";
                    throw new HistoryException(at + "/tool_call_id", problem);
                }
                String text = onlyText(at, entry);
                Map<String, Object> response = parsed(text);
                Object answer = response == null ? object("result", text) : response;
                beside.addResult(object("functionResponse", object("name", name, "response", answer)));
                continue;
            }
            List<Object> parts = new ArrayList<>();
            Object content = content(at, entry, false, ShapeWriter::geminiPart);
            if (content instanceof List<?> list) {
                parts.addAll(list);
            } else if (!entry.saysNothing()) {
                parts.add(object("text", content));
            }
            for (History.Call call : entry.toolCalls()) {
                names.put(call.id(), call.name());
                parts.add(object("functionCall", object("name", call.name(), "args", arguments(call))));
            }
            if (parts.isEmpty()) {
                parts.add(object("text", ""));
            }
            beside.addMessage(object("role", entry.role().equals("assistant") ? "model" : "user", "parts", parts));
        }
        return beside.prompted();
    }

    static List<Map<String, Object>> langChain(List<History.Entry> history) {
        History.checkEntries(history);
        List<Map<String, Object>> messages = new ArrayList<>();
        for (int index = 0; index < history.size(); index++) {
            History.Entry entry = history.get(index);
            String kind =
                    switch (entry.role()) {
                        case "user" -> "human";
                        case "assistant" -> "ai";
                        default -> entry.role();
                    };
            Object content = content("/" + index, entry, false, ShapeWriter::langChainPart);
            Map<String, Object> data = object("content", content, "type", kind);
            boolean isResult = kind.equals("tool");
            put(data, isResult ? "tool_call_id" : "name", isResult ? entry.toolCallId() : entry.name());
            if (kind.equals("ai")) {
                List<Object> calls = new ArrayList<>();
                List<Object> broken = new ArrayList<>();
                for (History.Call call : entry.toolCalls()) {
                    Map<String, Object> args = parsed(call.arguments());
                    if (args != null) {
                        calls.add(object("name", call.name(), "args", args, "id", call.id(), "type", "tool_call"));
                        continue;
                    }
                    Map<String, Object> invalid = object("name", call.name(), "args", call.arguments(), "id", call.id());
                    invalid.put("error", null);
                    invalid.put("type", "invalid_tool_call");
                    broken.add(invalid);
                }
                data.put("tool_calls", calls);
                data.put("invalid_tool_calls", broken);
            }
            messages.add(object("type", kind, "data", data));
        }
        return messages;
    }

    /** The system prompt and the messages beside it. Successive results of tools are one message of the user. */
    private static final class Beside {
        private final List<String> system = new ArrayList<>();
        private final List<Map<String, Object>> messages = new ArrayList<>();
        /** The name of the member with the results. */
        private final String member;

        private List<Object> results;

        Beside(String member) {
            this.member = member;
        }

        void addMessage(Map<String, Object> message) {
            results = null;
            messages.add(message);
        }

        void addResult(Map<String, Object> result) {
            if (results == null) {
                results = new ArrayList<>();
                messages.add(object("role", "user", member, results));
            }
            results.add(result);
        }

        Shapes.Prompted prompted() {
            return new Shapes.Prompted(String.join("\n\n", system), messages);
        }
    }

    /** Returns the content of an entry: the text, or the parts as {@code write} makes them. */
    private static Object content(String at, History.Entry entry, boolean isOnlyText, PartWriter write) {
        if (!(entry.content() instanceof List<?> parts)) {
            return entry.content();
        }
        List<Object> written = new ArrayList<>();
        for (Object one : parts) {
            Map<?, ?> part = (Map<?, ?>) one;
            String place = at + "/content/" + written.size();
            if (isOnlyText && (is(part, "image") || is(part, "file"))) {
                String problem =
                        "is of the type " + part.get("type") + ", which the interface does not take from " + entry.role();
                throw new HistoryException(place, problem);
            }
            written.add(write.write(place, part));
        }
        return written;
    }

    private static String onlyText(String at, History.Entry entry) {
        StringBuilder text = new StringBuilder();
        Object content = content(at, entry, true, (place, part) -> {
            text.append(text(part));
            return Map.of();
        });
        return content instanceof String whole ? whole : text.toString();
    }

    private static Map<String, Object> chatPart(String at, Map<?, ?> part) {
        if (is(part, "image")) {
            return object("type", "image_url", "image_url", object("url", url(part)));
        }
        if (!is(part, "file")) {
            return object("type", "text", "text", text(part));
        }
        if (part.containsKey("url")) {
            throw new HistoryException(at + "/url", "is a file elsewhere, which Chat Completions does not take");
        }
        Map<String, Object> file = object("file_data", url(part));
        put(file, "filename", part.get("name"));
        return object("type", "file", "file", file);
    }

    private static Map<String, Object> responsesInput(String at, Map<?, ?> part) {
        if (is(part, "image")) {
            return object("type", "input_image", "image_url", url(part), "detail", "auto");
        }
        if (!is(part, "file")) {
            return object("type", "input_text", "text", text(part));
        }
        Map<String, Object> made = object("type", "input_file", part.containsKey("url") ? "file_url" : "file_data", url(part));
        put(made, "filename", part.get("name"));
        return made;
    }

    private static Map<String, Object> responsesOutput(String at, Map<?, ?> part) {
        return object("type", "output_text", "text", text(part));
    }

    private static Map<String, Object> anthropicBlock(String at, Map<?, ?> part) {
        if (!is(part, "image") && !is(part, "file")) {
            return object("type", "text", "text", text(part));
        }
        Map<String, Object> source =
                part.containsKey("url")
                        ? object("type", "url", "url", part.get("url"))
                        : object("type", "base64", "media_type", mediaType(part, ANY_BYTES), "data", part.get("data"));
        Map<String, Object> made = object("type", is(part, "image") ? "image" : "document", "source", source);
        if (is(part, "file")) {
            put(made, "title", part.get("name"));
        }
        return made;
    }

    private static Map<String, Object> geminiPart(String at, Map<?, ?> part) {
        if (!is(part, "image") && !is(part, "file")) {
            return object("text", text(part));
        }
        Map<String, Object> held = object("mimeType", mediaType(part, is(part, "image") ? "image/png" : ANY_BYTES));
        put(held, "displayName", part.get("name"));
        boolean isElsewhere = part.containsKey("url");
        held.put(isElsewhere ? "fileUri" : "data", part.get(isElsewhere ? "url" : "data"));
        return object(isElsewhere ? "fileData" : "inlineData", held);
    }

    private static Map<String, Object> langChainPart(String at, Map<?, ?> part) {
        if (is(part, "image")) {
            return object("type", "image_url", "image_url", object("url", url(part)));
        }
        if (!is(part, "file")) {
            return object("type", "text", "text", text(part));
        }
        Map<String, Object> made = object("type", "file");
        put(made, "base64", part.get("data"));
        put(made, "url", part.get("url"));
        put(made, "mime_type", part.get("media_type"));
        put(made, "filename", part.get("name"));
        return made;
    }

    private static boolean is(Map<?, ?> part, String kind) {
        return kind.equals(part.get("type"));
    }

    /** Returns the text of a part of the type text or data. */
    private static String text(Map<?, ?> part) {
        return is(part, "text") ? (String) part.get("text") : ModelJson.text(part.get("data"));
    }

    /** Returns the URL of an image or a file, which has its bytes in it where they are not elsewhere. */
    private static String url(Map<?, ?> part) {
        return part.get("url") instanceof String url
                ? url
                : "data:" + mediaType(part, ANY_BYTES) + ";base64," + part.get("data");
    }

    private static Object mediaType(Map<?, ?> part, String otherwise) {
        return part.containsKey("media_type") ? part.get("media_type") : otherwise;
    }

    /** Returns the arguments of a call. A model may write what is no object; its text stays. */
    private static Map<String, Object> arguments(History.Call call) {
        Map<String, Object> read = parsed(call.arguments());
        return read == null ? object("arguments", call.arguments()) : read;
    }

    /** Returns an object of JSON, null for another text. */
    private static Map<String, Object> parsed(String text) {
        try {
            return text.isEmpty() ? null : Json.object(text);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    private static Map<String, Object> object(Object... members) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int at = 0; at < members.length; at += 2) {
            object.put((String) members[at], members[at + 1]);
        }
        return object;
    }

    private static void put(Map<String, Object> members, String name, Object value) {
        if (value != null) {
            members.put(name, value);
        }
    }
}
