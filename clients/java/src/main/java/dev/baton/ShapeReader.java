package dev.baton;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads messages in the shapes of models as a history. Each reader reads one history. */
final class ShapeReader {
    private static final Pattern DATA_URL = Pattern.compile("data:([^;,]*)(?:;[^,]*)?;base64,(.+)", Pattern.DOTALL);
    private static final Set<String> REASONING =
            Set.of("thinking", "redacted_thinking", "reasoning", "reasoning_content");
    /** Calls that a message of LangChain has a second time in its content. */
    private static final Set<String> REPEATED =
            Set.of("tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta");
    private static final String NO_FORM = ", which baton.history has no form for";

    private static final Map<String, String> SPOKEN_ROLES =
            Map.of("system", "system", "developer", "system", "user", "user", "assistant", "assistant");
    private static final Map<String, String> LANG_CHAIN_ROLES = Map.of(
            "system", "system", "developer", "system", "user", "user", "human", "user", "assistant", "assistant", "ai",
            "assistant", "tool", "tool");
    private static final Map<String, String> CHAT_ROLES = Map.of(
            "system", "system", "developer", "system", "user", "user", "assistant", "assistant", "tool", "tool");

    private final List<History.Entry> history = new ArrayList<>();

    /** The calls of Gemini that have no result yet, the earliest first. */
    private final List<History.Call> open = new ArrayList<>();

    /** The number of calls of Gemini. */
    private int count;

    List<History.Entry> openAiChat(Object messages) {
        for (Place message : messagesOf(messages)) {
            chatMessage(message, message.role(CHAT_ROLES));
        }
        return history;
    }

    List<History.Entry> openAiResponses(Object items) {
        messagesOf(items).forEach(this::responsesItem);
        return history;
    }

    List<History.Entry> anthropic(Object messages, Object system) {
        systemPrompt(systemOf(system), ShapeReader::anthropicPart);
        messagesOf(messages).forEach(this::anthropicMessage);
        return history;
    }

    List<History.Entry> gemini(Object contents, Object system) {
        Place prompt = systemOf(system);
        systemPrompt(prompt.get("parts").has() ? prompt.get("parts") : prompt, ShapeReader::geminiPart);
        messagesOf(contents).forEach(this::geminiContent);
        return history;
    }

    List<History.Entry> langChain(Object messages) {
        messagesOf(messages).forEach(this::langChainMessage);
        return history;
    }

    /** A value of the messages with its JSON Pointer. What is not there is null. */
    private record Place(String at, JsonElement value) {
        Place get(String name) {
            JsonElement found = value instanceof JsonObject object ? object.get(name) : null;
            return new Place(at + "/" + name, found == null ? JsonNull.INSTANCE : found);
        }

        /** Returns a member by its name in JSON, or by its name in Python. */
        Place either(String name) {
            Place found = get(name);
            return found.has() ? found : get(name.replaceAll("[A-Z]", "_$0").toLowerCase(Locale.ROOT));
        }

        boolean has() {
            return !value.isJsonNull();
        }

        boolean isText() {
            return value instanceof JsonPrimitive text && text.isString();
        }

        boolean is(String text) {
            return isText() && value.getAsString().equals(text);
        }

        List<Place> list() {
            List<Place> places = new ArrayList<>();
            if (value instanceof JsonArray items) {
                items.forEach(item -> places.add(new Place(at + "/" + places.size(), item)));
            } else if (has()) {
                throw wrong("must be a list");
            }
            return places;
        }

        /** Returns a text that must be there. */
        String text() {
            if (!has()) {
                throw wrong("is missing");
            }
            return optional();
        }

        /** Returns a text that must not be empty. */
        String filled() {
            if (text().isEmpty()) {
                throw wrong("is empty");
            }
            return text();
        }

        /** Returns a text, empty without one. */
        String optional() {
            if (has() && !isText()) {
                throw wrong("must be a text");
            }
            return has() ? value.getAsString() : "";
        }

        /** Returns the member "type", empty if it is no text. */
        String kind() {
            return get("type").isText() ? get("type").optional() : "";
        }

        /** Returns the JSON of the value, empty without one. */
        String json() {
            return has() ? value.toString() : "";
        }

        HistoryException wrong(String problem) {
            return new HistoryException(at, problem);
        }

        HistoryException unknown(String name) {
            Place kind = get(name);
            return kind.wrong("is " + (kind.has() ? kind.value.toString() : "without a " + name) + NO_FORM);
        }

        void checkObject() {
            if (!(value instanceof JsonObject)) {
                throw wrong("must be an object");
            }
        }

        /** Refuses a message of another shape, whose calls or texts would be overlooked. */
        void checkMembers(String needed) {
            checkObject();
            if (!value.getAsJsonObject().has(needed)) {
                throw get(needed).wrong("is missing");
            }
            Place calls = get("tool_calls");
            if (calls.has() && !(calls.value instanceof JsonArray list && list.isEmpty())) {
                throw calls.wrong("is of another shape");
            }
        }

        /** Returns the role of a message in a history, by its name in the shape. */
        String role(Map<String, String> known) {
            checkObject();
            String role = known.get(get("role").optional());
            if (role == null) {
                throw unknown("role");
            }
            return role;
        }
    }

    private static List<Place> messagesOf(Object messages) {
        Place list = placeOf("", messages, false);
        if (!list.has()) {
            throw list.wrong("must be a list");
        }
        return list.list();
    }

    private static Place systemOf(Object system) {
        return placeOf("/system", system, true);
    }

    private static Place placeOf(String at, Object value, boolean isPlain) {
        try {
            return new Place(at, isPlain && value instanceof String text ? new JsonPrimitive(text) : ModelJson.ofMessages(value));
        } catch (JsonParseException | IllegalArgumentException | ReflectiveOperationException e) {
            throw new HistoryException(at, "cannot be read: " + e.getMessage());
        }
    }

    /** Returns the parts of a content: of a text, of parts, or none. */
    private static List<Map<String, Object>> partsOf(Place content, Function<Place, Map<String, Object>> read) {
        List<Map<String, Object>> parts = new ArrayList<>();
        if (content.isText()) {
            parts.add(textPart(content));
        } else if (content.value() instanceof JsonArray) {
            for (Place part : content.list()) {
                addPart(parts, part, read);
            }
        } else if (content.has()) {
            throw content.wrong("must be a text or a list");
        }
        return parts;
    }

    /** Adds a part, unless the shape drops it. */
    private static void addPart(
            List<Map<String, Object>> parts, Place part, Function<Place, Map<String, Object>> read) {
        if (part.isText()) {
            parts.add(textPart(part));
            return;
        }
        part.checkObject();
        Map<String, Object> made = read.apply(part);
        if (!made.isEmpty()) {
            parts.add(made);
        }
    }

    /** Returns the parts, or their text if there is one text alone. */
    private static Object joined(List<Map<String, Object>> parts) {
        if (parts.isEmpty()) {
            return "";
        }
        Map<String, Object> first = parts.get(0);
        return parts.size() == 1 && first.get("type").equals("text") ? first.get("text") : parts;
    }

    /** Adds an entry. {@code callsAt} is the place of its calls. */
    private void add(
            String role, String name, List<Map<String, Object>> parts, List<History.Call> calls, Place callsAt) {
        if (!calls.isEmpty() && !role.equals("assistant")) {
            throw callsAt.wrong("has calls, which are for the role assistant");
        }
        String shown = name.isEmpty() ? null : name;
        history.add(new History.Entry(role, joined(parts), shown, List.copyOf(calls), null, null, null));
    }

    private void add(String role, List<Map<String, Object>> parts) {
        add(role, "", parts, List.of(), null);
    }

    private void addResult(String callId, List<Map<String, Object>> parts) {
        history.add(new History.Entry("tool", joined(parts), null, List.of(), callId, null, null));
    }

    /** Adds a call to the assistant's entry that is the last one. */
    private void addCall(History.Call call) {
        int last = history.size() - 1;
        if (last < 0 || !history.get(last).role().equals("assistant")) {
            history.add(History.Entry.calls("", List.of(call)));
            return;
        }
        List<History.Call> calls = new ArrayList<>(history.get(last).toolCalls());
        calls.add(call);
        history.set(last, history.get(last).withCalls(List.copyOf(calls)));
    }

    /** Returns a call. Without arguments they are an empty object. */
    private static History.Call call(Place id, Place name, String arguments) {
        return new History.Call(id.text(), name.text(), arguments.isEmpty() ? "{}" : arguments);
    }

    private static Map<String, Object> textPart(Place text) {
        return part("text", "text", text.text());
    }

    /** Returns a part with these members, of which the empty ones are left out. */
    private static Map<String, Object> part(String kind, String... members) {
        Map<String, Object> part = new LinkedHashMap<>();
        part.put("type", kind);
        for (int at = 0; at < members.length; at += 2) {
            if (!members[at + 1].isEmpty() || members[at].equals("text")) {
                part.put(members[at], members[at + 1]);
            }
        }
        return part;
    }

    /** Returns an image or a file by its URL, whose bytes may be in it. */
    private static Map<String, Object> media(String kind, Place url, String name) {
        Matcher data = DATA_URL.matcher(url.filled());
        return data.matches()
                ? part(kind, "data", data.group(2), "media_type", data.group(1), "name", name)
                : part(kind, "url", url.text(), "name", name);
    }

    private void systemPrompt(Place system, Function<Place, Map<String, Object>> read) {
        List<Map<String, Object>> parts = partsOf(system, read);
        if (!parts.isEmpty() && !system.is("")) {
            add("system", parts);
        }
    }

    private void chatMessage(Place message, String role) {
        if (message.get("function_call").has()) {
            throw message.get("function_call").wrong("has no id: use tool_calls");
        }
        Place content = message.get("content").has() ? message.get("content") : message.get("refusal");
        List<Map<String, Object>> parts = partsOf(content, ShapeReader::chatPart);
        if (role.equals("tool")) {
            addResult(message.get("tool_call_id").text(), parts);
            return;
        }
        List<History.Call> calls = new ArrayList<>();
        for (Place call : message.get("tool_calls").list()) {
            Place function = call.get("function");
            Place custom = call.get("custom");
            calls.add(
                    function.has()
                            ? call(call.get("id"), function.get("name"), function.get("arguments").optional())
                            : call(call.get("id"), custom.get("name"), custom.get("input").json()));
        }
        add(role, message.get("name").optional(), parts, calls, message.get("tool_calls"));
    }

    private static Map<String, Object> chatPart(Place part) {
        switch (part.kind()) {
            case "text":
                return textPart(part.get("text"));
            case "refusal":
                return textPart(part.get("refusal"));
            case "image_url":
                Place image = part.get("image_url");
                return media("image", image.isText() ? image : image.get("url"), "");
            case "file":
                Place file = part.get("file");
                if (file.get("file_data").has()) {
                    return media("file", file.get("file_data"), file.get("filename").optional());
                }
                break;
            case "input_audio":
                Place audio = part.get("input_audio");
                String format = audio.get("format").text();
                return part("file", "data", audio.get("data").filled(), "media_type", "audio/" + format);
            default:
                break;
        }
        throw part.unknown("type");
    }

    private void responsesItem(Place item) {
        item.checkObject();
        String kind = item.get("type").has() ? item.kind() : "message";
        item.checkMembers(kind.equals("message") ? "content" : "type");
        Place id = item.get("call_id");
        switch (kind) {
            case "message" -> add(item.role(SPOKEN_ROLES), partsOf(item.get("content"), ShapeReader::responsesPart));
            case "function_call" -> addCall(call(id, item.get("name"), item.get("arguments").optional()));
            case "custom_tool_call" -> addCall(call(id, item.get("name"), item.get("input").json()));
            case "function_call_output", "custom_tool_call_output" -> addResult(
                    id.text(), partsOf(item.get("output"), ShapeReader::responsesPart));
            case "reasoning", "item_reference", "compaction" -> {
                // Dropped.
            }
            default -> {
                // What the provider runs by itself is dropped.
                if (!kind.endsWith("_call") && !kind.endsWith("_call_output") && !kind.startsWith("mcp_")) {
                    throw item.unknown("type");
                }
            }
        }
    }

    private static Map<String, Object> responsesPart(Place part) {
        switch (part.kind()) {
            case "input_text", "output_text", "text":
                return textPart(part.get("text"));
            case "refusal":
                return textPart(part.get("refusal"));
            case "input_image":
                if (part.get("image_url").has()) {
                    return media("image", part.get("image_url"), "");
                }
                break;
            case "input_file":
                Place url = part.get("file_data").has() ? part.get("file_data") : part.get("file_url");
                if (url.has()) {
                    return media("file", url, part.get("filename").optional());
                }
                break;
            default:
                break;
        }
        throw part.unknown("type");
    }

    private void anthropicMessage(Place message) {
        message.checkMembers("content");
        String role = message.role(SPOKEN_ROLES);
        Place content = message.get("content");
        if (content.isText()) {
            add(role, partsOf(content, ShapeReader::anthropicPart));
            return;
        }
        List<Map<String, Object>> parts = new ArrayList<>();
        List<History.Call> calls = new ArrayList<>();
        List<Place> blocks = content.list();
        for (Place block : blocks) {
            String kind = block.kind();
            if (kind.equals("tool_use")) {
                calls.add(call(block.get("id"), block.get("name"), block.get("input").json()));
            } else if (kind.equals("tool_result")) {
                List<Map<String, Object>> result = partsOf(block.get("content"), ShapeReader::anthropicPart);
                addResult(block.get("tool_use_id").text(), result);
            } else if (!kind.equals("server_tool_use") && !REASONING.contains(kind) && !kind.endsWith("_tool_result")) {
                block.checkObject();
                parts.add(anthropicPart(block));
            }
        }
        if (!parts.isEmpty() || !calls.isEmpty() || blocks.isEmpty()) {
            add(role, "", parts, calls, message);
        }
    }

    private static Map<String, Object> anthropicPart(Place block) {
        if (block.kind().equals("text")) {
            return textPart(block.get("text"));
        }
        boolean isImage = block.kind().equals("image");
        if (!isImage && !block.kind().equals("document") && !block.kind().equals("file")) {
            throw block.unknown("type");
        }
        String kind = isImage ? "image" : "file";
        Place source = block.get("source");
        String name = block.get("title").optional();
        return switch (source.kind()) {
            case "base64" -> part(
                    kind, "data", source.get("data").filled(), "media_type", source.get("media_type").text(), "name", name);
            case "url" -> part(kind, "url", source.get("url").filled(), "name", name);
            case "text" -> {
                if (isImage) {
                    throw block.unknown("type");
                }
                yield textPart(source.get("data"));
            }
            default -> throw block.unknown("type");
        };
    }

    private void geminiContent(Place content) {
        content.checkMembers("parts");
        List<Map<String, Object>> parts = new ArrayList<>();
        List<History.Call> calls = new ArrayList<>();
        List<Place> found = content.get("parts").list();
        for (Place part : found) {
            Place call = part.either("functionCall");
            Place response = part.either("functionResponse");
            if (call.has()) {
                count++;
                String id = call.get("id").optional();
                String args = call.get("args").json();
                History.Call made = new History.Call(
                        id.isEmpty() ? "call_" + count : id, call.get("name").text(), args.isEmpty() ? "{}" : args);
                open.add(made);
                calls.add(made);
            } else if (response.has()) {
                if (!response.get("parts").list().isEmpty()) {
                    throw response.get("parts").wrong("are what baton.history has no form for in a result");
                }
                addResult(
                        callOf(part, response).id(),
                        List.of(part("text", "text", responseText(response.get("response")))));
            } else {
                addPart(parts, part, ShapeReader::geminiPart);
            }
        }
        if (!parts.isEmpty() || !calls.isEmpty() || found.isEmpty()) {
            add(content.get("role").is("model") ? "assistant" : "user", "", parts, calls, content);
        }
    }

    /** Takes the open call of a result of Gemini: that of its id, or the first one of its name. */
    private History.Call callOf(Place part, Place response) {
        String id = response.get("id").optional();
        String name = response.get("name").optional();
        History.Call found = open.stream()
                .filter(call -> call.id().equals(id))
                .findFirst()
                .or(() -> open.stream().filter(call -> call.name().equals(name)).findFirst())
                .orElseThrow(() -> part.wrong("is the result of no call"));
        open.remove(found);
        return found;
    }

    /** Returns the text of a result of Gemini. A text alone is under the name "result" or "output". */
    private static String responseText(Place response) {
        if (response.value() instanceof JsonObject members && members.size() == 1) {
            for (String name : List.of("result", "output")) {
                if (response.get(name).isText()) {
                    return response.get(name).text();
                }
            }
        }
        return response.has() ? response.json() : "{}";
    }

    private static Map<String, Object> geminiPart(Place part) {
        boolean isThought = part.get("thought").json().equals("true");
        if (isThought || part.either("executableCode").has() || part.either("codeExecutionResult").has()) {
            return Map.of();
        }
        if (part.get("text").has()) {
            return textPart(part.get("text"));
        }
        Place inline = part.either("inlineData");
        Place held = inline.has() ? inline : part.either("fileData");
        if (!held.has()) {
            throw part.wrong("is no part that baton.history has a form for");
        }
        String mediaType = held.either("mimeType").optional();
        String name = held.either("displayName").optional();
        String kind = mediaType.startsWith("image/") ? "image" : "file";
        String data = held.get("data").optional();
        return data.isEmpty()
                ? part(kind, "url", held.either("fileUri").filled(), "media_type", mediaType, "name", name)
                : part(kind, "data", data, "media_type", mediaType, "name", name);
    }

    private void langChainMessage(Place message) {
        if (message.isText()) {
            add("user", partsOf(message, ShapeReader::langChainPart));
            return;
        }
        if (message.value() instanceof JsonArray) {
            langChainPair(message);
            return;
        }
        message.checkObject();
        if (!message.get("data").has()) {
            chatMessage(message, langChainRole(message));
            return;
        }
        message.get("data").checkObject();
        // A message's object does not have "data", so places do not name it.
        Place data = new Place(message.at(), message.get("data").value());
        List<Map<String, Object>> parts = partsOf(data.get("content"), ShapeReader::langChainPart);
        String kind = message.kind().replaceFirst("MessageChunk$", "").toLowerCase(Locale.ROOT);
        String role = switch (kind) {
            case "tool" -> "tool";
            case "human" -> "user";
            case "ai" -> "assistant";
            case "system", "developer" -> "system";
            default -> throw message.unknown("type");
        };
        if (role.equals("tool")) {
            addResult(data.get("tool_call_id").text(), parts);
            return;
        }
        List<History.Call> calls = new ArrayList<>();
        for (Place call : data.get("tool_calls").list()) {
            calls.add(call(call.get("id"), call.get("name"), call.get("args").json()));
        }
        for (Place call : data.get("invalid_tool_calls").list()) {
            calls.add(call(call.get("id"), call.get("name"), call.get("args").optional()));
        }
        add(role, data.get("name").optional(), parts, calls, data.get("tool_calls"));
    }

    private void langChainPair(Place message) {
        List<Place> pair = message.list();
        if (pair.size() != 2) {
            throw message.wrong("must be a role and a content");
        }
        String role = LANG_CHAIN_ROLES.get(pair.get(0).text());
        if (role == null || role.equals("tool")) {
            throw pair.get(0).wrong("is " + pair.get(0).json() + NO_FORM);
        }
        add(role, partsOf(pair.get(1), ShapeReader::langChainPart));
    }

    /** Returns the role of a message of LangChain that is not stored: its role, or its type. */
    private static String langChainRole(Place message) {
        if (message.get("role").has()) {
            return message.role(LANG_CHAIN_ROLES);
        }
        String role = LANG_CHAIN_ROLES.get(message.kind());
        if (role == null) {
            throw message.unknown("type");
        }
        return role;
    }

    private static Map<String, Object> langChainPart(Place part) {
        String kind = part.kind();
        switch (kind) {
            case "text", "image_url", "refusal", "input_audio":
                return chatPart(part);
            case "input_text", "output_text":
                return textPart(part.get("text"));
            case "image", "file", "audio", "video":
                return part.get("source").has() ? anthropicPart(part) : langChainMedia(part);
            default:
                break;
        }
        if (REASONING.contains(kind) || REPEATED.contains(kind)) {
            return Map.of();
        }
        throw part.unknown("type");
    }

    private static Map<String, Object> langChainMedia(Place part) {
        String data = part.get("base64").optional();
        if (data.isEmpty() && part.get("source_type").is("base64")) {
            data = part.get("data").optional();
        }
        String url = data.isEmpty() ? part.get("url").optional() : "";
        if (data.isEmpty() && url.isEmpty()) {
            throw part.unknown("type");
        }
        String fileName = part.get("filename").optional();
        String name = fileName.isEmpty() ? part.get("name").optional() : fileName;
        String kind = part.kind().equals("image") ? "image" : "file";
        return part(kind, "data", data, "url", url, "media_type", part.get("mime_type").optional(), "name", name);
    }
}
