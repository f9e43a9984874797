package dev.baton;

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
 * @param isCompensation whether the work undoes that of the subtask, whose result is in {@code dependencyResults}; false
 *     before the context has arrived
 * @param element the element of the list of which this work is a part; empty: the work is the whole subtask, or the
 *     context has not arrived
 * @param input what the plan gives to this subtask, as it was sent: see {@link Json}
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
        boolean isCompensation,
        Optional<Element> element,
        Map<String, Object> input,
        Map<String, Object> planInput,
        Map<String, SubtaskResult> previousResults,
        Map<String, SubtaskResult> dependencyResults,
        Map<String, Map<String, SubtaskResult>> consumed,
        Set<String> omitted) {

    /**
     * An element of the list that a subtask works on.
     *
     * @param index the place in the list, from 0 on
     * @param count the number of elements of the list
     * @param value the value, as it was sent: see {@link Json}; null for a null
     */
    public record Element(int index, int count, Object value) {}

    /** Returns the subtask of a request, without its inputs; empty for another handoff. */
    static Optional<Subtask> of(HandoffRequest request) {
        if (request.getOnBehalfOf().getPlanId().isEmpty()) {
            return Optional.empty();
        }
        return Optional.of(new Subtask(
                request.getOnBehalfOf().getPlanId(),
                request.getOnBehalfOf().getSubtaskId(),
                request.getInitialContextSummary(),
                "",
                0,
                false,
                Optional.empty(),
                Map.of(),
                Map.of(),
                Map.of(),
                Map.of(),
                Map.of(),
                Set.of()));
    }

    /** Returns the subtask of a context; empty for another context. */
    static Optional<Subtask> of(List<ContextSection> sections) {
        Map<String, Object> head = json(sections, "task_description");
        String planId = text(head, "plan_id");
        String subtaskId = text(head, "subtask_id");
        if (planId.isEmpty() || subtaskId.isEmpty()) {
            return Optional.empty();
        }
        Set<String> omitted = new TreeSet<>();
        Map<String, Map<String, SubtaskResult>> consumed = new HashMap<>();
        json(sections, "consumed").forEach((topic, results) -> consumed.put(topic, results(object(results), omitted)));
        return Optional.of(new Subtask(
                planId,
                subtaskId,
                text(head, "description"),
                text(head, "role"),
                Math.max(1, number(head, "attempt").longValue()),
                head.containsKey("compensates"),
                element(json(sections, "element")),
                json(sections, "input"),
                json(sections, "plan_input"),
                results(json(sections, "previous_results"), omitted),
                results(json(sections, "dependency_results"), omitted),
                consumed,
                omitted));
    }

    private static Optional<Element> element(Map<String, Object> section) {
        if (section.isEmpty()) {
            return Optional.empty();
        }
        int index = number(section, "index").intValue();
        return Optional.of(new Element(index, number(section, "count").intValue(), section.get("value")));
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
                isCompensation,
                element,
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

    private static Map<String, SubtaskResult> results(Map<String, Object> all, Set<String> omitted) {
        Map<String, SubtaskResult> results = new HashMap<>();
        all.forEach((id, value) -> {
            Map<String, Object> result = object(value);
            if (flag(result, "omitted")) {
                omitted.add(id);
            }
            results.put(id, resultOf(id, result));
        });
        return results;
    }

    private static SubtaskResult resultOf(String id, Map<String, Object> result) {
        SubtaskResult.Builder one = SubtaskResult.newBuilder()
                .setSubtaskId(id)
                .setResponse(text(result, "response"))
                .setTokens(number(result, "tokens").longValue())
                .setSuccess(flag(result, "success"));
        if (result.get("tools_used") instanceof List<?> tools) {
            tools.stream().filter(String.class::isInstance).forEach(tool -> one.addToolsUsed((String) tool));
        }
        if (result.get("numeric_value") instanceof Number number) {
            one.setNumericValue(number.doubleValue());
        }
        if (result.get("result") instanceof Map<?, ?>) {
            one.setResultJson(Json.text(object(result.get("result"))));
        }
        return one.build();
    }

    /** Returns a section as an object; empty if it is missing or of another form. */
    private static Map<String, Object> json(List<ContextSection> sections, String name) {
        for (ContextSection section : sections) {
            if (section.getName().equals(name) && section.hasJson()) {
                try {
                    return Json.object(section.getJson());
                } catch (IllegalArgumentException e) {
                    return Map.of();
                }
            }
        }
        return Map.of();
    }

    /** Returns a value of {@link Json} as an object; empty if it is another one. */
    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object value) {
        return value instanceof Map<?, ?> ? (Map<String, Object>) value : Map.of();
    }

    private static String text(Map<String, Object> object, String name) {
        return object.get(name) instanceof String text ? text : "";
    }

    private static Number number(Map<String, Object> object, String name) {
        return object.get(name) instanceof Number number ? number : 0;
    }

    private static boolean flag(Map<String, Object> object, String name) {
        return object.get(name) instanceof Boolean flag && flag;
    }
}
