package dev.baton;

import dev.baton.v1.ContextSection;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Chat histories in the one shape of the section schema {@code baton.history}, version 1. Filters of a history work on this
 * shape and on no other, because a list of another shape may keep tool calls where a filter does not know them.
 * {@link Shapes} converts from and to the shapes of models.
 */
public final class History {
    /** The id of the schema. Every broker knows it without a registration. */
    public static final String SCHEMA_ID = "baton.history";
    /** The version of the schema. */
    public static final String SCHEMA_VERSION = "1";

    private static final Set<String> ENTRY =
            Set.of("role", "content", "name", "tool_calls", "tool_call_id", "agent_id", "time");
    private static final Set<String> MEDIA = Set.of("type", "url", "data", "media_type", "name");
    private static final List<String> CALL = List.of("id", "name", "arguments");
    private static final Set<String> ROLES = Set.of("system", "user", "assistant", "tool");

    private History() {}

    /**
     * A call of a tool. Its result has the same id.
     *
     * @param id the id
     * @param name the name of the tool
     * @param arguments the JSON of the arguments, as the model wrote it
     */
    public record Call(String id, String name, String arguments) {}

    /**
     * An entry. Null: the entry has no such member.
     *
     * @param role system, user, assistant or tool
     * @param content a String, or a List of parts, each of which is a Map as the schema has it
     * @param name the name of the speaker
     * @param toolCalls the calls of an assistant; empty for all others
     * @param toolCallId the id of the call whose result a tool's entry is
     * @param agentId the id of the agent that wrote the entry
     * @param time the time as in RFC 3339
     */
    public record Entry(
            String role,
            Object content,
            String name,
            List<Call> toolCalls,
            String toolCallId,
            String agentId,
            String time) {
        /** Returns a text of a role. */
        public static Entry text(String role, String text) {
            return new Entry(role, text, null, List.of(), null, null, null);
        }

        /** Returns a text of the assistant with calls of tools. */
        public static Entry calls(String text, List<Call> calls) {
            return new Entry("assistant", text, null, calls, null, null, null);
        }

        /** Returns the result of a call. */
        public static Entry result(String callId, String text) {
            return new Entry("tool", text, null, List.of(), callId, null, null);
        }

        boolean saysNothing() {
            return "".equals(content) || List.of().equals(content);
        }

        Entry withCalls(List<Call> calls) {
            return new Entry(role, content, name, calls, toolCallId, agentId, time);
        }
    }

    /**
     * Returns a section with a history, marked as one of {@code baton.history}. Throws {@link HistoryException}, which
     * names the first part that does not fit.
     */
    public static ContextSection section(String name, List<Entry> entries) {
        List<Object> values = new ArrayList<>();
        entries.forEach(entry -> values.add(membersOf(entry, plain(entry.content()))));
        check(values);
        return ContextSection.newBuilder()
                .setName(name)
                .setSchemaId(SCHEMA_ID)
                .setSchemaVersion(SCHEMA_VERSION)
                .setJson(CanonicalJson.write(values))
                .build();
    }

    /**
     * Reads the JSON of a section as a history. Throws {@link HistoryException}, which names the first part that does not
     * fit, and {@link SectionException} for a text that is no JSON.
     */
    public static List<Entry> read(String json) {
        List<Entry> entries = new ArrayList<>();
        for (Object value : check(CanonicalJson.parse(json))) {
            Map<?, ?> entry = (Map<?, ?>) value;
            List<Call> calls = new ArrayList<>();
            for (Object one : listOf(entry.get("tool_calls"))) {
                Map<?, ?> call = (Map<?, ?>) one;
                calls.add(new Call(text(call, "id"), text(call, "name"), text(call, "arguments")));
            }
            entries.add(new Entry(
                    text(entry, "role"),
                    entry.get("content"),
                    text(entry, "name"),
                    calls,
                    text(entry, "tool_call_id"),
                    text(entry, "agent_id"),
                    text(entry, "time")));
        }
        return entries;
    }

    /**
     * Returns the latest entries: as many as {@code last}, or more where the first one would be the result of a call
     * before it.
     */
    public static List<Entry> latest(List<Entry> entries, int last) {
        Map<String, Integer> known = new HashMap<>();
        int[] calls = new int[entries.size()];
        for (int index = 0; index < calls.length; index++) {
            for (Call call : entries.get(index).toolCalls()) {
                known.put(call.id(), index);
            }
            calls[index] = known.getOrDefault(entries.get(index).toolCallId(), index);
        }
        return List.copyOf(entries.subList(start(calls, Math.max(last, 0)), calls.length));
    }

    /**
     * Returns the entries without calls of tools and without their results. An entry that only calls tools is left out.
     */
    public static List<Entry> withoutToolCalls(List<Entry> entries) {
        return entries.stream()
                .filter(entry -> !"tool".equals(entry.role()))
                .filter(entry -> entry.toolCalls().isEmpty() || !entry.saysNothing())
                .map(entry -> entry.withCalls(List.of()))
                .toList();
    }

    /**
     * Returns the entries without calls that have no result yet, and without results of unknown calls: interfaces of models
     * refuse such a history. A handoff leaves them, because the call of a handoff is open while it is made.
     */
    public static List<Entry> settled(List<Entry> entries) {
        Set<String> answered = new HashSet<>();
        entries.stream().filter(entry -> "tool".equals(entry.role())).forEach(entry -> answered.add(entry.toolCallId()));
        Set<String> known = new HashSet<>();
        List<Entry> kept = new ArrayList<>();
        for (Entry entry : entries) {
            List<Call> calls = entry.toolCalls().stream()
                    .filter(call -> answered.contains(call.id()))
                    .toList();
            calls.forEach(call -> known.add(call.id()));
            boolean isLost = "tool".equals(entry.role()) && !known.contains(entry.toolCallId());
            boolean isEmpty = !entry.toolCalls().isEmpty() && calls.isEmpty() && entry.saysNothing();
            if (!isLost && !isEmpty) {
                kept.add(entry.withCalls(calls));
            }
        }
        return kept;
    }

    /** Throws {@link HistoryException} for entries that are not of the shape. */
    static void checkEntries(List<Entry> entries) {
        List<Object> values = new ArrayList<>();
        entries.forEach(entry -> values.add(membersOf(entry, entry.content())));
        check(values);
    }

    /** Returns the entries of a parsed value. Throws {@link HistoryException}. */
    static List<?> check(Object value) {
        if (!(value instanceof List<?> entries)) {
            throw wrong("", "must be a list");
        }
        for (int index = 0; index < entries.size(); index++) {
            checkEntry("/" + index, entries.get(index));
        }
        return entries;
    }

    /**
     * Returns the last entries, and more where the first one would be the result of a call before it. The number is
     * unsigned.
     */
    static List<?> latestValues(List<?> entries, int last) {
        int bounded = Integer.compareUnsigned(last, entries.size()) >= 0 ? entries.size() : last;
        return entries.subList(start(callsOfResults(entries), bounded), entries.size());
    }

    /** Returns the index of the first of the latest entries. {@code calls} has for each entry the index of its call. */
    private static int start(int[] calls, int last) {
        int start = Math.max(calls.length - last, 0);
        for (int at = calls.length - 1; at >= start; at--) {
            start = Math.min(start, calls[at]);
        }
        return start;
    }

    /** Returns the entries without calls of tools and their results. An entry that only calls is left out. */
    static List<Object> valuesWithoutToolCalls(List<?> entries) {
        List<Object> kept = new ArrayList<>();
        for (Object value : entries) {
            Map<Object, Object> entry = new HashMap<>((Map<?, ?>) value);
            boolean calls = !listOf(entry.remove("tool_calls")).isEmpty();
            boolean saysNothing = entry.get("content").equals("") || entry.get("content").equals(List.of());
            if (!"tool".equals(entry.get("role")) && !(calls && saysNothing)) {
                kept.add(entry);
            }
        }
        return kept;
    }

    /** Returns for each entry the index of its call, or its own index. */
    private static int[] callsOfResults(List<?> entries) {
        Map<Object, Integer> known = new HashMap<>();
        int[] found = new int[entries.size()];
        for (int index = 0; index < found.length; index++) {
            Map<?, ?> entry = (Map<?, ?>) entries.get(index);
            for (Object call : listOf(entry.get("tool_calls"))) {
                known.put(((Map<?, ?>) call).get("id"), index);
            }
            Integer call = entry.containsKey("tool_call_id") ? known.get(entry.get("tool_call_id")) : null;
            found[index] = call == null ? index : call;
        }
        return found;
    }

    private static void checkEntry(String at, Object value) {
        Map<?, ?> entry = membersOf(at, value, ENTRY);
        boolean isTool = "tool".equals(entry.get("role"));
        if (!(entry.get("role") instanceof String role) || !ROLES.contains(role)) {
            throw wrong(at + "/role", "must be system, user, assistant or tool");
        }
        checkTexts(at, entry, List.of("name", "agent_id", "time", "tool_call_id"));
        if (entry.containsKey("tool_call_id") != isTool) {
            throw wrong(at + "/tool_call_id", isTool ? "is missing" : "is for the role tool");
        }
        if (entry.containsKey("tool_calls")) {
            if (!"assistant".equals(entry.get("role"))) {
                throw wrong(at + "/tool_calls", "is for the role assistant");
            }
            List<?> calls = checkedList(at + "/tool_calls", entry.get("tool_calls"));
            for (int index = 0; index < calls.size(); index++) {
                checkCall(at + "/tool_calls/" + index, calls.get(index));
            }
        }
        if (!entry.containsKey("content")) {
            throw wrong(at + "/content", "is missing");
        }
        if (!(entry.get("content") instanceof String)) {
            List<?> parts = checkedList(at + "/content", entry.get("content"));
            for (int index = 0; index < parts.size(); index++) {
                checkPart(at + "/content/" + index, parts.get(index));
            }
        }
    }

    private static void checkCall(String at, Object value) {
        Map<?, ?> call = membersOf(at, value, Set.copyOf(CALL));
        for (String name : CALL) {
            if (!call.containsKey(name)) {
                throw wrong(at + "/" + name, "is missing");
            }
        }
        checkTexts(at, call, CALL);
    }

    private static void checkPart(String at, Object value) {
        if (!(value instanceof Map<?, ?> part)) {
            throw wrong(at, "must be an object");
        }
        String kind = part.get("type") instanceof String text ? text : "";
        switch (kind) {
            case "text", "data" -> {
                membersOf(at, part, Set.of("type", kind));
                if (!part.containsKey(kind)) {
                    throw wrong(at + "/" + kind, "is missing");
                }
                checkTexts(at, part, List.of("text"));
            }
            case "image", "file" -> {
                membersOf(at, part, MEDIA);
                checkTexts(at, part, List.copyOf(MEDIA));
                if (part.containsKey("url") == part.containsKey("data")) {
                    throw wrong(at, "must have either url or data");
                }
            }
            default -> throw wrong(at + "/type", "must be text, image, file or data");
        }
    }

    private static Map<?, ?> membersOf(String at, Object value, Set<String> known) {
        if (!(value instanceof Map<?, ?> members)) {
            throw wrong(at, "must be an object");
        }
        for (Object name : members.keySet()) {
            if (!known.contains(name)) {
                String escaped = ((String) name).replace("~", "~0").replace("/", "~1");
                throw wrong(at + "/" + escaped, "is no member of the shape");
            }
        }
        return members;
    }

    private static Map<String, Object> membersOf(Entry entry, Object content) {
        Map<String, Object> members = new TreeMap<>();
        members.put("role", entry.role());
        members.put("content", content);
        put(members, "name", entry.name());
        put(members, "tool_call_id", entry.toolCallId());
        put(members, "agent_id", entry.agentId());
        put(members, "time", entry.time());
        if (!entry.toolCalls().isEmpty()) {
            List<Object> calls = new ArrayList<>();
            for (Call call : entry.toolCalls()) {
                Map<String, Object> made = new LinkedHashMap<>();
                put(made, "id", call.id());
                put(made, "name", call.name());
                put(made, "arguments", call.arguments());
                calls.add(made);
            }
            members.put("tool_calls", calls);
        }
        return members;
    }

    /** Returns a content with numbers as canonical JSON has them. */
    private static Object plain(Object content) {
        if (content == null || content instanceof String) {
            return content;
        }
        return CanonicalJson.parse(ModelJson.text(content));
    }

    private static void put(Map<String, Object> members, String name, String text) {
        if (text != null) {
            members.put(name, text);
        }
    }

    private static void checkTexts(String at, Map<?, ?> members, List<String> names) {
        for (String name : names) {
            if (members.containsKey(name) && !(members.get(name) instanceof String)) {
                throw wrong(at + "/" + name, "must be a text");
            }
        }
    }

    private static List<?> checkedList(String at, Object value) {
        if (value instanceof List<?> list) {
            return list;
        }
        throw wrong(at, "must be a list");
    }

    private static List<?> listOf(Object value) {
        return value instanceof List<?> list ? list : List.of();
    }

    private static String text(Map<?, ?> members, String name) {
        return (String) members.get(name);
    }

    private static HistoryException wrong(String pointer, String problem) {
        return new HistoryException(pointer, problem);
    }
}
