package dev.baton;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.protobuf.util.JsonFormat;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.SubtaskResult;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

/**
 * A subtask of a plan as its agent sees it: what is to be done, and what it gets for it. {@link Offer#subtask} and
 * {@link Takeover#subtask} return it.
 *
 * @param planId the plan
 * @param subtaskId the id of the subtask
 * @param description what is to be done
 * @param role the role of the agent; empty before the context has arrived
 * @param attempt the attempt, from 1 on; 0 before the context has arrived
 * @param input what the plan gives to this subtask
 * @param planInput what the plan gives to every subtask
 * @param previousResults the results of all earlier subtasks or ancestors, by subtask
 * @param dependencyResults the results of the direct dependencies, by subtask
 * @param consumed the results of the producers of each topic that the subtask consumes, by topic and subtask
 * @param omitted the subtasks whose results were too large for the context; their results here have success and
 *     numeric_value alone, and {@link Takeover#wholeSubtask} gets the rest
 */
public record Subtask(
        String planId,
        String subtaskId,
        String description,
        String role,
        long attempt,
        Struct input,
        Struct planInput,
        Map<String, SubtaskResult> previousResults,
        Map<String, SubtaskResult> dependencyResults,
        Map<String, Map<String, SubtaskResult>> consumed,
        Set<String> omitted) {

    /** Returns the subtask of a request, without its inputs; empty for another handoff. */
    static Optional<Subtask> of(HandoffRequest request) {
        if (request.getOnBehalfOf().getPlanId().isEmpty()) {
            return Optional.empty();
        }
        Struct none = Struct.getDefaultInstance();
        return Optional.of(new Subtask(
                request.getOnBehalfOf().getPlanId(),
                request.getOnBehalfOf().getSubtaskId(),
                request.getInitialContextSummary(),
                "",
                0,
                none,
                none,
                Map.of(),
                Map.of(),
                Map.of(),
                Set.of()));
    }

    /** Returns the subtask of a context; empty for another context. */
    static Optional<Subtask> of(List<ContextSection> sections) {
        Struct head = json(sections, "task_description");
        String planId = text(head, "plan_id");
        String subtaskId = text(head, "subtask_id");
        if (planId.isEmpty() || subtaskId.isEmpty()) {
            return Optional.empty();
        }
        Set<String> omitted = new TreeSet<>();
        Map<String, Map<String, SubtaskResult>> consumed = new HashMap<>();
        json(sections, "consumed")
                .getFieldsMap()
                .forEach((topic, results) -> consumed.put(topic, results(results.getStructValue(), omitted)));
        return Optional.of(new Subtask(
                planId,
                subtaskId,
                text(head, "description"),
                text(head, "role"),
                Math.max(1, (long) number(head, "attempt")),
                json(sections, "input"),
                json(sections, "plan_input"),
                results(json(sections, "previous_results"), omitted),
                results(json(sections, "dependency_results"), omitted),
                consumed,
                omitted));
    }

    /** Returns the subtask with whole results in the places of those that were omitted. */
    Subtask filled(Map<String, SubtaskResult> whole) {
        Map<String, Map<String, SubtaskResult>> filled = new HashMap<>();
        consumed.forEach((topic, results) -> filled.put(topic, filled(results, whole)));
        Set<String> rest = new TreeSet<>(omitted);
        rest.removeAll(whole.keySet());
        return new Subtask(
                planId,
                subtaskId,
                description,
                role,
                attempt,
                input,
                planInput,
                filled(previousResults, whole),
                filled(dependencyResults, whole),
                filled,
                rest);
    }

    private Map<String, SubtaskResult> filled(
            Map<String, SubtaskResult> results, Map<String, SubtaskResult> whole) {
        Map<String, SubtaskResult> filled = new HashMap<>(results);
        filled.replaceAll((id, result) -> omitted.contains(id) ? whole.getOrDefault(id, result) : result);
        return filled;
    }

    private static Map<String, SubtaskResult> results(Struct all, Set<String> omitted) {
        Map<String, SubtaskResult> results = new HashMap<>();
        all.getFieldsMap().forEach((id, value) -> {
            Struct result = value.getStructValue();
            if (flag(result, "omitted")) {
                omitted.add(id);
            }
            results.put(id, resultOf(id, result));
        });
        return results;
    }

    private static SubtaskResult resultOf(String id, Struct result) {
        SubtaskResult.Builder one = SubtaskResult.newBuilder()
                .setSubtaskId(id)
                .setResponse(text(result, "response"))
                .setTokens((long) number(result, "tokens"))
                .setSuccess(flag(result, "success"));
        field(result, "tools_used").getListValue().getValuesList().stream()
                .filter(Value::hasStringValue)
                .forEach(tool -> one.addToolsUsed(tool.getStringValue()));
        if (field(result, "numeric_value").hasNumberValue()) {
            one.setNumericValue(number(result, "numeric_value"));
        }
        if (result.containsFields("result")) {
            one.setResultJson(printed(field(result, "result")));
        }
        return one.build();
    }

    /** Returns a section as an object; empty if it is missing or of another form. */
    private static Struct json(List<ContextSection> sections, String name) {
        Struct.Builder object = Struct.newBuilder();
        for (ContextSection section : sections) {
            if (section.getName().equals(name) && section.hasJson()) {
                try {
                    JsonFormat.parser().merge(section.getJson(), object);
                } catch (InvalidProtocolBufferException e) {
                    return Struct.getDefaultInstance();
                }
            }
        }
        return object.build();
    }

    private static String printed(Value value) {
        try {
            return JsonFormat.printer().omittingInsignificantWhitespace().print(value);
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException(e);
        }
    }

    private static Value field(Struct object, String name) {
        return object.getFieldsOrDefault(name, Value.getDefaultInstance());
    }

    private static String text(Struct object, String name) {
        return field(object, name).getStringValue();
    }

    private static double number(Struct object, String name) {
        return field(object, name).getNumberValue();
    }

    private static boolean flag(Struct object, String name) {
        return field(object, name).getBoolValue();
    }
}
