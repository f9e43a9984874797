package dev.baton;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;
import dev.baton.v1.ToolCall;
import dev.baton.v1.ToolResult;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * What a run records of a model's response.
 *
 * @param shape the interface that the response belongs to
 * @param calls the tool calls
 * @param output the text of the response
 * @param isFinished whether the model ended its turn by itself and without a tool call
 */
public record ModelTurn(Shape shape, List<ToolCall> calls, String output, boolean isFinished) {
    private static final String TRANSFER_PREFIX = "transfer_to_";
    private static final Set<String> ENDS = Set.of("end_turn", "stop_sequence", "endTurn", "stopSequence");

    /** The interface that a response belongs to. */
    public enum Shape {
        /** A Response of OpenAI. */
        OPENAI_RESPONSES,
        /** A ChatCompletion of OpenAI. */
        OPENAI_CHAT,
        /** A Message of Anthropic. */
        ANTHROPIC,
        /** A CreateMessageResult of MCP. */
        MCP_SAMPLING,
        /** A CallToolRequest of MCP. */
        MCP_CALL
    }

    /** Copies the list. */
    public ModelTurn {
        calls = List.copyOf(calls);
    }

    /**
     * Reads a response: its JSON as a String, the same as parsed JSON (a Map, or a JsonElement of Gson), or an object of
     * the SDKs for Java of OpenAI and of Anthropic, which their own mapper writes. The call of a CallToolRequest of MCP is
     * named {@code call}. Throws IllegalArgumentException for any other object.
     */
    public static ModelTurn read(Object response) {
        if (!(json(response) instanceof JsonObject read)) {
            throw unknown(response, null);
        }
        if (read.get("output") instanceof JsonArray items) {
            return ofResponses(read, items);
        }
        if (read.get("choices") instanceof JsonArray choices) {
            return ofChat(choices);
        }
        JsonObject params = object(read.get("params"));
        if (!text(params.get("name")).isEmpty()) {
            ToolCall call = call("call", text(params.get("name")), written(params.get("arguments")));
            return new ModelTurn(Shape.MCP_CALL, List.of(call), "", false);
        }
        if (text(read.get("role")).equals("assistant") && !written(read.get("content")).isEmpty()) {
            return ofMessage(read);
        }
        throw unknown(response, null);
    }

    /**
     * Returns the results of the transfer calls as messages for the model's history, in the shape of the response. The
     * results of all other calls are the runtime's own.
     */
    public List<Map<String, Object>> messages(List<ToolResult> results) {
        Set<String> transfers = calls.stream()
                .filter(call -> call.getName().startsWith(TRANSFER_PREFIX))
                .map(ToolCall::getCallId)
                .collect(Collectors.toSet());
        List<Map<String, Object>> messages = new ArrayList<>();
        for (ToolResult result : results) {
            if (transfers.contains(result.getCallId())) {
                messages.add(message(result));
            }
        }
        boolean areBlocks = shape == Shape.ANTHROPIC || shape == Shape.MCP_SAMPLING;
        return areBlocks && !messages.isEmpty() ? List.of(Map.of("role", "user", "content", messages)) : messages;
    }

    private Map<String, Object> message(ToolResult one) {
        String id = one.getCallId();
        Object text = one.getText();
        boolean isError = one.getIsError();
        List<Map<String, Object>> parts = List.of(Map.of("type", "text", "text", text));
        return switch (shape) {
            case OPENAI_RESPONSES -> Map.of("type", "function_call_output", "call_id", id, "output", text);
            case OPENAI_CHAT -> Map.of("role", "tool", "tool_call_id", id, "content", text);
            case ANTHROPIC -> Map.of("type", "tool_result", "tool_use_id", id, "content", text, "is_error", isError);
            case MCP_SAMPLING -> Map.of("type", "tool_result", "toolUseId", id, "content", parts, "isError", isError);
            case MCP_CALL -> Map.of("content", parts, "isError", isError);
        };
    }

    private static ModelTurn ofResponses(JsonObject response, JsonArray items) {
        List<ToolCall> calls = new ArrayList<>();
        StringBuilder texts = new StringBuilder();
        for (JsonElement one : items) {
            JsonObject item = object(one);
            String id = text(item.get("call_id"));
            switch (text(item.get("type"))) {
                case "function_call" -> calls.add(call(id, text(item.get("name")), text(item.get("arguments"))));
                case "custom_tool_call" -> calls.add(call(id, text(item.get("name")), written(item.get("input"))));
                case "message" -> list(item.get("content")).forEach(part -> {
                    if (text(object(part).get("type")).equals("output_text")) {
                        texts.append(text(object(part).get("text")));
                    }
                });
                default -> {
                    // reasoning, and calls that the provider runs by itself
                }
            }
        }
        String status = text(response.get("status"));
        boolean isFinished = calls.isEmpty() && (status.isEmpty() || status.equals("completed"));
        return new ModelTurn(Shape.OPENAI_RESPONSES, calls, texts.toString(), isFinished);
    }

    private static ModelTurn ofChat(JsonArray choices) {
        if (choices.size() != 1) {
            throw new IllegalArgumentException("a turn is one choice of the model, not " + choices.size());
        }
        JsonObject choice = object(choices.get(0));
        JsonObject message = object(choice.get("message"));
        List<ToolCall> calls = new ArrayList<>();
        for (JsonElement one : list(message.get("tool_calls"))) {
            JsonObject made = object(one);
            JsonObject function = object(made.get("function"));
            JsonObject custom = object(made.get("custom"));
            String id = text(made.get("id"));
            boolean isFunction = made.get("function") instanceof JsonObject;
            calls.add(
                    isFunction
                            ? call(id, text(function.get("name")), text(function.get("arguments")))
                            : call(id, text(custom.get("name")), written(custom.get("input"))));
        }
        boolean isFinished = calls.isEmpty() && text(choice.get("finish_reason")).equals("stop");
        return new ModelTurn(Shape.OPENAI_CHAT, calls, text(message.get("content")), isFinished);
    }

    /** Reads a message of Anthropic or of MCP, which differ in the names of their stop reasons. */
    private static ModelTurn ofMessage(JsonObject message) {
        JsonElement content = message.get("content");
        JsonArray blocks = content instanceof JsonArray array ? array : new JsonArray();
        if (content instanceof JsonObject) {
            blocks.add(content);
        }
        List<ToolCall> calls = new ArrayList<>();
        StringBuilder texts = new StringBuilder();
        for (JsonElement one : blocks) {
            JsonObject block = object(one);
            switch (text(block.get("type"))) {
                case "tool_use" -> calls.add(
                        call(text(block.get("id")), text(block.get("name")), written(block.get("input"))));
                case "text" -> texts.append(text(block.get("text")));
                default -> {
                    // thinking, and tools that the provider runs by itself
                }
            }
        }
        String anthropic = text(message.get("stop_reason"));
        String stop = anthropic.isEmpty() ? text(message.get("stopReason")) : anthropic;
        Shape shape = text(message.get("type")).equals("message") ? Shape.ANTHROPIC : Shape.MCP_SAMPLING;
        return new ModelTurn(shape, calls, texts.toString(), calls.isEmpty() && ENDS.contains(stop));
    }

    private static JsonElement json(Object response) {
        try {
            return ModelJson.of(response);
        } catch (JsonParseException | ReflectiveOperationException e) {
            throw unknown(response, e);
        }
    }

    private static ToolCall call(String id, String name, String arguments) {
        return ToolCall.newBuilder()
                .setCallId(id)
                .setName(name)
                .setArgumentsJson(arguments.isEmpty() ? "{}" : arguments)
                .build();
    }

    private static JsonObject object(JsonElement value) {
        return value instanceof JsonObject object ? object : new JsonObject();
    }

    private static JsonArray list(JsonElement value) {
        return value instanceof JsonArray list ? list : new JsonArray();
    }

    private static String text(JsonElement value) {
        return value instanceof JsonPrimitive text && text.isString() ? text.getAsString() : "";
    }

    private static String written(JsonElement value) {
        return value == null || value.isJsonNull() ? "" : value.toString();
    }

    private static IllegalArgumentException unknown(Object response, Exception cause) {
        String name = response == null ? "null" : response.getClass().getName();
        return new IllegalArgumentException(name + " is no response of a known interface", cause);
    }
}
