package dev.baton;

import static dev.baton.Vectors.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.openai.models.SdkResponse;
import dev.baton.v1.ToolCall;
import dev.baton.v1.ToolResult;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Responses of models, by the vectors. */
class ModelTurnTest {
    private static final JsonObject VECTORS = Vectors.load("turns-v1.json");

    @TestFactory
    Stream<DynamicTest> turnsAreThoseOfTheVectors() {
        return Vectors.each(VECTORS, "cases", one -> {
            String json = one.get("response").toString();
            List<Object> responses = List.of(
                    json, one.get("response"), new Gson().fromJson(json, Map.class), new SdkResponse(json));
            for (Object response : responses) {
                if (one.get("calls").isJsonNull()) {
                    assertThrows(IllegalArgumentException.class, () -> ModelTurn.read(response));
                    continue;
                }
                ModelTurn turn = ModelTurn.read(response);
                assertEquals(text(one, "shape"), turn.shape().name());
                assertEquals(text(one, "output"), turn.output());
                assertEquals(one.get("finished").getAsBoolean(), turn.isFinished());
                List<ToolCall> calls = calls(one.get("calls"));
                assertEquals(calls.size(), turn.calls().size());
                for (int at = 0; at < calls.size(); at++) {
                    ToolCall found = turn.calls().get(at);
                    JsonElement arguments = JsonParser.parseString(found.getArgumentsJson());
                    assertEquals(JsonParser.parseString(calls.get(at).getArgumentsJson()), arguments);
                    assertEquals(calls.get(at).getCallId(), found.getCallId());
                    assertEquals(calls.get(at).getName(), found.getName());
                }
            }
        });
    }

    @Test
    void resultsAreThoseOfTheVectors() {
        JsonObject results = VECTORS.getAsJsonObject("results");
        List<ToolResult> told = new ArrayList<>();
        for (JsonElement one : results.getAsJsonArray("tool_results")) {
            told.add(ToolResult.newBuilder()
                    .setCallId(text(one.getAsJsonObject(), "call_id"))
                    .setText(text(one.getAsJsonObject(), "text"))
                    .build());
        }
        results.getAsJsonObject("messages").entrySet().forEach(shape -> {
            ModelTurn turn =
                    new ModelTurn(ModelTurn.Shape.valueOf(shape.getKey()), calls(results.get("calls")), "", false);
            assertEquals(shape.getValue(), new Gson().toJsonTree(turn.messages(told)), shape.getKey());
        });
    }

    @Test
    void whatIsNoResponseIsRefused() {
        for (Object response : new Object[] {"text", "[1]", 7, List.of()}) {
            assertThrows(IllegalArgumentException.class, () -> ModelTurn.read(response));
        }
    }

    private static List<ToolCall> calls(JsonElement calls) {
        List<ToolCall> made = new ArrayList<>();
        for (JsonElement one : calls.getAsJsonArray()) {
            made.add(ToolCall.newBuilder()
                    .setCallId(text(one.getAsJsonObject(), "call_id"))
                    .setName(text(one.getAsJsonObject(), "name"))
                    .setArgumentsJson(text(one.getAsJsonObject(), "arguments_json"))
                    .build());
        }
        return made;
    }
}
