package dev.baton;

import static dev.baton.Vectors.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.genai.types.SdkContent;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.openai.models.SdkResponse;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Histories in the shapes of models, by the vectors. */
class ShapesTest {
    private static final List<String> SHAPES =
            List.of("openai-chat", "openai-responses", "anthropic", "gemini", "langchain");
    private static final JsonObject VECTORS = Vectors.load("history-v1.json");

    private static Stream<JsonObject> cases(boolean areRefused) {
        return StreamSupport.stream(VECTORS.getAsJsonArray("cases").spliterator(), false)
                .map(JsonElement::getAsJsonObject)
                .filter(one -> one.get("history").isJsonNull() == areRefused);
    }

    private static List<History.Entry> historyOf(JsonObject one) {
        return History.read(one.get("history").toString());
    }

    private static List<History.Entry> conversation() {
        return historyOf(cases(false).findFirst().orElseThrow());
    }

    private static List<History.Entry> read(String shape, Object messages, Object system) {
        return switch (shape) {
            case "openai-chat" -> Shapes.fromOpenAiChat(messages);
            case "openai-responses" -> Shapes.fromOpenAiResponses(messages);
            case "anthropic" -> Shapes.fromAnthropic(messages, system);
            case "gemini" -> Shapes.fromGemini(messages, system);
            case "langchain" -> Shapes.fromLangChain(messages);
            default -> throw new AssertionError(shape);
        };
    }

    private static Shapes.Prompted write(String shape, List<History.Entry> history) {
        return switch (shape) {
            case "openai-chat" -> new Shapes.Prompted("", Shapes.toOpenAiChat(history));
            case "openai-responses" -> new Shapes.Prompted("", Shapes.toOpenAiResponses(history));
            case "anthropic" -> Shapes.toAnthropic(history);
            case "gemini" -> Shapes.toGemini(history);
            case "langchain" -> new Shapes.Prompted("", Shapes.toLangChain(history));
            default -> throw new AssertionError(shape);
        };
    }

    private static void refused(String pointer, Supplier<?> convert) {
        HistoryException refused = assertThrows(HistoryException.class, convert::get);
        assertEquals(pointer, refused.pointer(), refused.getMessage());
    }

    @TestFactory
    Stream<DynamicTest> aHistoryComesFromAShapeAndGoesBack() {
        return cases(false).map(one -> DynamicTest.dynamicTest(text(one, "shape") + ": " + text(one, "name"), () -> {
            String shape = text(one, "shape");
            JsonElement messages = one.get("messages");
            JsonElement given = one.get("system");
            Object system = given instanceof JsonPrimitive text ? text.getAsString() : given;
            List<History.Entry> history = read(shape, messages, system);
            assertEquals(historyOf(one), history);
            assertEquals(history, read(shape, messages.toString(), system), "of the JSON");
            Object maps = Json.object("{\"messages\":" + messages + "}").get("messages");
            assertEquals(history, read(shape, maps, system), "of Maps");
            History.section("history_log", history);
            Shapes.Prompted written = write(shape, history);
            JsonElement back = one.has("back") ? one.get("back") : messages;
            assertEquals(back, JsonParser.parseString(ModelJson.text(written.messages())));
            JsonElement prompt = one.has("back_system") ? one.get("back_system") : given;
            assertEquals(prompt == null ? "" : prompt.getAsString(), written.system());
        }));
    }

    @TestFactory
    Stream<DynamicTest> whatHasNoFormIsRefusedWithItsPlace() {
        return cases(true).map(one -> DynamicTest.dynamicTest(
                text(one, "shape") + ": " + text(one, "name"),
                () -> refused(text(one, "pointer"), () -> read(text(one, "shape"), one.get("messages"), null))));
    }

    @Test
    void theVectorsHaveEachShapeBothWays() {
        for (String shape : SHAPES) {
            assertTrue(cases(false).filter(one -> text(one, "shape").equals(shape)).count() >= 2, shape);
            assertTrue(cases(true).anyMatch(one -> text(one, "shape").equals(shape)), shape);
        }
    }

    @Test
    void aConversationIsTheSameAfterAnyTwoShapes() {
        for (String first : SHAPES) {
            for (String second : SHAPES) {
                List<History.Entry> history = conversation();
                for (String shape : List.of(first, second)) {
                    Shapes.Prompted written = write(shape, history);
                    history = read(shape, written.messages(), written.system());
                }
                // A call of Gemini has no id.
                String text = History.section("history_log", history).getJson();
                String plain = text.replace("call_1", "c1").replace("call_2", "c2");
                assertEquals(conversation(), History.read(plain), first + ", " + second);
            }
        }
    }

    @Test
    void aPartThatAnInterfaceDoesNotTakeIsRefused() {
        Object image = List.of(Map.of("type", "image", "url", "https://example.com/a.png"));
        List<History.Entry> shown =
                List.of(new History.Entry("assistant", image, null, List.of(), null, null, null));
        for (String shape : List.of("openai-chat", "openai-responses", "anthropic")) {
            refused("/0/content/0", () -> write(shape, shown));
        }
        Object file = List.of(Map.of("type", "file", "url", "https://example.com/a.pdf"));
        refused(
                "/0/content/0/url",
                () -> Shapes.toOpenAiChat(
                        List.of(new History.Entry("user", file, null, List.of(), null, null, null))));
        refused("/0/tool_call_id", () -> Shapes.toGemini(List.of(History.Entry.result("c", "a"))));
        for (String shape : SHAPES) {
            List<History.Entry> wrong =
                    List.of(History.Entry.text("user", ""), History.Entry.text("agent", "hi"));
            refused("/1/role", () -> write(shape, wrong));
        }
    }

    @Test
    void whatIsNoMessageIsRefused() {
        List<String> wrong = List.of(
                "null",
                "7",
                "{}",
                "[7]",
                "[null]",
                "[{}]",
                "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]",
                "[{\"role\": \"user\", \"content\": 7}]",
                "no JSON");
        for (String shape : SHAPES) {
            for (String messages : wrong) {
                assertThrows(HistoryException.class, () -> read(shape, messages, null), shape + ": " + messages);
            }
            assertThrows(HistoryException.class, () -> read(shape, null, null));
        }
        String call = "[{'role': 'assistant', 'tool_calls': [%s]}]";
        Map<String, String> places = Map.of(
                "/0/content", "[{'role': 'user', 'content': 7}]",
                "/0/content/1", "[{'role': 'user', 'content': ['a', 7]}]",
                "/0/name", "[{'role': 'user', 'content': 'a', 'name': 7}]",
                "/0/tool_call_id", "[{'role': 'tool', 'content': 'a'}]",
                "/0/tool_calls/0/id", call.formatted("{'function': {'name': 'f', 'arguments': '{}'}}"),
                "/0/tool_calls/0/function/arguments", call.formatted("{'id': 'c', 'function': {'name': 'f', 'arguments': 7}}"),
                "/0/tool_calls", "[{'role': 'user', 'tool_calls': [{'id': 'c', 'function': {'name': 'f'}}]}]",
                "/0/function_call", "[{'role': 'assistant', 'function_call': {'name': 'f', 'arguments': '{}'}}]",
                "/0/content/0/image_url/url", "[{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}]");
        places.forEach((pointer, messages) -> refused(pointer, () -> Shapes.fromOpenAiChat(messages.replace('\'', '"'))));
        List<Object> other = List.of(Map.of("role", "user", "content", "a", "tool_calls", List.of(Map.of())));
        refused("/0/tool_calls", () -> Shapes.fromAnthropic(other, null));
        refused("/system/0/type", () -> Shapes.fromAnthropic(List.of(), List.of(Map.of("type", "hologram"))));
        refused("/0/0", () -> Shapes.fromLangChain(List.of(List.of("function", "a"))));
        Object empty = Map.of("type", "human", "data", Map.of("content", List.of(Map.of("type", "text"))));
        refused("/0/content/0/text", () -> Shapes.fromLangChain(List.of(empty)));
    }

    @Test
    void theArgumentsOfACallKeepWhatTheModelWrote() {
        String input = "{\"z\":9223372036854775807,\"a\":42.0,\"n\":null,\"t\":\"<&é\"}";
        String messages = "[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":"
                + input + "}]}]";
        List<History.Entry> history = Shapes.fromAnthropic(messages, null);
        assertEquals(input, history.get(0).toolCalls().get(0).arguments());
        Map<String, Object> written = inputOf(history);
        assertEquals(9223372036854775807L, written.get("z"));
        // A Map keeps its nulls.
        Map<String, Object> nothing = Collections.singletonMap("n", null);
        Object block = Map.of("type", "tool_use", "id", "c", "name", "f", "input", nothing);
        List<Object> given = List.of(Map.of("role", "assistant", "content", List.of(block)));
        assertEquals("{\"n\":null}", Shapes.fromAnthropic(given, null).get(0).toolCalls().get(0).arguments());
        // What is no object stays a text.
        List<History.Entry> broken = List.of(History.Entry.calls("", List.of(new History.Call("c", "f", "{a"))));
        assertEquals(Map.of("arguments", "{a"), inputOf(broken));
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> inputOf(List<History.Entry> history) {
        List<Object> blocks = (List<Object>) Shapes.toAnthropic(history).messages().get(0).get("content");
        return (Map<String, Object>) ((Map<String, Object>) blocks.get(0)).get("input");
    }

    @Test
    void aHistoryComesFromObjectsOfAnSdk() {
        List<Object> given = List.of(new SdkResponse("{\"role\": \"user\", \"content\": \"where?\"}"));
        List<History.Entry> expected = List.of(History.Entry.text("user", "where?"));
        assertEquals(expected, Shapes.fromOpenAiChat(given));
        SdkContent content = new SdkContent("{\"role\": \"user\", \"parts\": [{\"text\": \"where?\"}]}");
        assertEquals(expected, Shapes.fromGemini(List.of(content), null));
        assertEquals(expected, Shapes.fromLangChain(List.of("where?")));
        refused("", () -> Shapes.fromOpenAiChat(List.of(Map.of("role", "user", "content", Double.NaN))));
    }

    @Test
    void aPartOfDataIsWrittenAsText() {
        Object parts = List.of(Map.of("type", "data", "data", Map.of("id", 7)));
        List<History.Entry> history = List.of(new History.Entry("user", parts, null, List.of(), null, null, null));
        Object text = List.of(Map.of("type", "text", "text", "{\"id\":7}"));
        assertEquals(text, Shapes.toOpenAiChat(history).get(0).get("content"));
        List<History.Entry> read = History.read(History.section("history_log", history).getJson());
        assertEquals(text, Shapes.toOpenAiChat(read).get(0).get("content"));
    }

    @Test
    void openCallsAndLostResultsAreLeftOut() {
        List<History.Call> calls = List.of(new History.Call("c1", "f", "{}"), new History.Call("c2", "f", "{}"));
        History.Entry result = History.Entry.result("c1", "1");
        History.Entry lost = History.Entry.result("c0", "0");
        History.Entry entry = History.Entry.calls("", calls);
        History.Entry said = History.Entry.text("assistant", "I look");
        History.Entry closed = History.Entry.calls("", calls.subList(0, 1));
        assertEquals(List.of(closed, result), History.settled(List.of(lost, entry, result)));
        assertEquals(List.of(), History.settled(List.of(entry)));
        assertEquals(List.of(said), History.settled(List.of(History.Entry.calls("I look", calls))));
        assertEquals(List.of(entry, result), History.latest(List.of(lost, entry, result), 1));
        assertEquals(List.of(), History.latest(List.of(entry, result), 0));
        assertEquals(List.of(entry, result), History.latest(List.of(entry, result), 9));
        List<History.Entry> all = List.of(entry, result, History.Entry.calls("I look", calls));
        assertEquals(List.of(said), History.withoutToolCalls(all));
    }
}
