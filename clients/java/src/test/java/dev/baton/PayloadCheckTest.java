package dev.baton;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Message;
import dev.baton.v1.Info;
import dev.baton.v1.Plan;
import dev.baton.v1.PlanSubmission;
import dev.baton.v1.Subtask;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskStatusUpdate;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

final class PayloadCheckTest {
    /** An object with numbers that a double rounds, and its text. */
    static final String TEXT = "{\"id\":1234567890123456789,\"count\":42,\"ratio\":42.0,\"none\":null,"
            + "\"list\":[1234567890123456790,{\"deep\":-1234567890123456789}],\"most\":18446744073709551615,"
            + "\"exact\":0.12345678901234567890123}";

    /** Returns this many objects in each other. */
    static Map<String, Object> nested(int levels) {
        Map<String, Object> object = Map.of("leaf", 1L);
        for (int i = 1; i < levels; i++) {
            object = Map.of("c", object);
        }
        return object;
    }

    private static TaskStatusUpdate update(String resultJson) {
        return TaskStatusUpdate.newBuilder().setResultJson(resultJson).build();
    }

    private static String refused(String field, Message payload) {
        var error = assertThrows(BatonException.class, () -> PayloadCheck.check(payload));
        assertEquals("FIELD_INVALID", error.reason());
        assertEquals("envelope.payload." + field, error.fieldViolations().get(0).field());
        return error.getMessage();
    }

    private static String refused(Map<String, ?> object) {
        var error = assertThrows(BatonException.class, () -> Json.text(object, "result_json"));
        assertEquals("FIELD_INVALID", error.reason());
        assertEquals("envelope.payload.result_json", error.fieldViolations().get(0).field());
        return error.getMessage();
    }

    private static void assertHas(String part, String message) {
        assertTrue(message.contains(part), message);
    }

    @Test
    void jsonIsTheSameAfterItsText() {
        Map<String, Object> object = Json.object(TEXT);
        assertEquals(TEXT, Json.text(object));
        assertEquals(1234567890123456789L, object.get("id"));
        assertEquals(42L, object.get("count"));
        assertEquals(42.0, object.get("ratio"));
        assertEquals(new BigInteger("18446744073709551615"), object.get("most"));
        assertEquals(new BigDecimal("0.12345678901234567890123"), object.get("exact"));
        assertTrue(object.containsKey("none"));
        assertEquals("{\"a\":[1,null,true,\"</ü\\u2028\"]}", Json.text(Map.of("a", Arrays.asList(1, null, true, "</ü\u2028"))));
        assertEquals(Map.of(), Json.object(""));
        assertThrows(IllegalArgumentException.class, () -> Json.object("[1]"));
    }

    @Test
    void aResultOverTheLimitIsRefusedWithItsSize() {
        String fits = "{\"a\":\"" + "x".repeat(PayloadCheck.RESULT_BYTES_MAX - "{\"a\":\"\"}".length());
        assertDoesNotThrow(() -> PayloadCheck.check(update(fits + "\"}")));
        String message = refused("result_json", update(fits + "x\"}"));
        assertHas("has 262145 bytes as JSON, over the limit of 262144", message);
    }

    @Test
    void theDataOfAnAnswerHasALimitOfItsOwn() {
        String data = Json.text(Map.of("a", "x".repeat(70_000)));
        assertHas("over the limit of 65536", refused("data_json", TaskInput.newBuilder().setDataJson(data).build()));
    }

    @Test
    void aResultThatIsTooDeepIsRefusedWithItsPlace() {
        String deepest = Json.text(nested(128));
        assertDoesNotThrow(() -> PayloadCheck.check(update(deepest)));
        assertEquals(nested(128), Json.object(deepest));
        String limit = "is nested too deep: the limit is 128 objects and lists in each other (at /c/c/c";
        assertHas(limit, refused(nested(129)));
        String deeper = "{\"c\":" + deepest + "}";
        assertHas(limit, refused("result_json", update(deeper)));
        assertHas(limit, refused("data_json", Info.newBuilder().setDataJson(deeper).build()));
        String lists = "{\"c\":" + "[".repeat(128) + "]".repeat(128) + "}";
        assertHas(limit.replace("/c/c/c", "/c/0/0"), refused("result_json", update(lists)));
    }

    @Test
    void whatJsonDoesNotHaveIsRefusedWithItsPlace() {
        assertHas("must have finite numbers only, not NaN (at /a/1)", refused(Map.of("a", List.of(1, Double.NaN))));
        assertHas("must have finite numbers only, not -Infinity (at /a)", refused(Map.of("a", Double.NEGATIVE_INFINITY)));
        assertHas("not one beyond 1.8e308 (at /a)", refused(Map.of("a", BigInteger.TEN.pow(400))));
        assertHas("has an unpaired surrogate, \\ud83d at character 2 (at /a~1b)", refused(Map.of("a/b", "ab\ud83d")));
        assertHas("has an unpaired surrogate, \\ude00 at character 0 (at /a)", refused(Map.of("a", Map.of("\ude00", 1))));
        assertHas("which has no java.lang.Object (at /a)", refused(Map.of("a", new Object())));
        Map<Object, Object> numbered = new HashMap<>(Map.of(1, 2));
        assertHas("must have Strings as names, not 1 (at /a)", refused(Map.of("a", numbered)));
        assertEquals("{\"a\":\"\ud83d\ude00\"}", Json.text(Map.of("a", "\ud83d\ude00")));
    }

    @Test
    void aTextThatTheBrokerWouldRefuseIsRefused() {
        assertHas("has the name b twice (at /a)", refused("result_json", update("{\"a\":{\"b\":1,\"b\":2}}")));
        assertHas("not 1e999 (at /a)", refused("result_json", update("{\"a\":1e999}")));
        assertHas("Unpaired surrogate", refused("result_json", update("{\"a\":\"\\ud83d\"}")));
        assertHas("must be a JSON object", refused("result_json", update("[1]")));
        assertHas("is no JSON", refused("result_json", update("{\"a\":NaN}")));
        Plan plan = Plan.newBuilder()
                .addSubtasks(Subtask.newBuilder().setInputJson("{\"a\":[1e999]}"))
                .build();
        String message = refused(
                "plan.subtasks[0].input_json", PlanSubmission.newBuilder().setPlan(plan).build());
        assertHas("must have finite numbers only, not 1e999 (at /a/0)", message);
        assertHas(
                "has an unpaired surrogate",
                refused("details", TaskStatusUpdate.newBuilder().setDetails("\ude00").build()));
    }
}
