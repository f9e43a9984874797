package dev.baton;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ListValue;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import dev.baton.v1.Info;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskStatusUpdate;
import org.junit.jupiter.api.Test;

final class PayloadCheckTest {
    /** Returns an object with this many objects nested in it. */
    static Struct nested(int levels) {
        Struct object = Struct.newBuilder().putFields("leaf", number(1)).build();
        for (int i = 0; i < levels; i++) {
            Value inner = Value.newBuilder().setStructValue(object).build();
            object = Struct.newBuilder().putFields("c", inner).build();
        }
        return object;
    }

    static Struct of(Value value) {
        return Struct.newBuilder().putFields("a", value).build();
    }

    static Value text(String text) {
        return Value.newBuilder().setStringValue(text).build();
    }

    private static Value number(double number) {
        return Value.newBuilder().setNumberValue(number).build();
    }

    private static TaskStatusUpdate update(Struct result) {
        return TaskStatusUpdate.newBuilder().setResult(result).build();
    }

    private static BatonException refused(Struct result) {
        var error = assertThrows(BatonException.class, () -> PayloadCheck.check(update(result)));
        assertEquals("FIELD_INVALID", error.reason());
        assertEquals("envelope.payload.result", error.fieldViolations().get(0).field());
        return error;
    }

    @Test
    void aResultOverTheLimitIsRefusedWithItsSize() {
        String fits = "x".repeat(PayloadCheck.RESULT_BYTES_MAX - "{\"a\":\"\"}".length());
        assertDoesNotThrow(() -> PayloadCheck.check(update(of(text(fits)))));
        String message = refused(of(text(fits + "x"))).getMessage();
        assertTrue(message.contains("has 262145 bytes as JSON, over the limit of 262144"), message);
        String escaped = "\u0001".repeat(PayloadCheck.RESULT_BYTES_MAX / 6);
        assertTrue(refused(of(text(escaped))).getMessage().contains("has 262148 bytes"));
    }

    @Test
    void theDataOfAnAnswerHasALimitOfItsOwn() {
        TaskInput input = TaskInput.newBuilder().setData(of(text("x".repeat(70_000)))).build();
        var error = assertThrows(BatonException.class, () -> PayloadCheck.check(input));
        assertTrue(error.getMessage().contains("over the limit of 65536"), error.getMessage());
    }

    @Test
    void jsonIsCountedAsTheBrokerWritesIt() {
        assertEquals("{\"a\":-3}".length(), PayloadCheck.jsonSize(of(number(-3.0))));
        assertEquals("{\"a\":0}".length(), PayloadCheck.jsonSize(of(number(-0.0))));
        assertEquals("{\"a\":-12345678.5}".length(), PayloadCheck.jsonSize(of(number(-12345678.5))));
        assertEquals("{\"a\":\"\\n\\\"é\"}".length() + 1, PayloadCheck.jsonSize(of(text("\n\"é"))));
        ListValue list = ListValue.newBuilder()
                .addValues(Value.newBuilder().setBoolValue(false))
                .addValues(Value.newBuilder().setNullValueValue(0))
                .build();
        assertEquals(
                "{\"a\":[false,null]}".length(),
                PayloadCheck.jsonSize(of(Value.newBuilder().setListValue(list).build())));
    }

    @Test
    void aResultThatIsTooDeepIsRefusedWithItsDepth() {
        assertDoesNotThrow(() -> PayloadCheck.check(update(nested(PayloadCheck.LEVELS_MAX))));
        String message = refused(nested(40)).getMessage();
        assertTrue(message.contains("is nested 40 levels deep, over the limit of 32 levels"), message);
        assertTrue(refused(nested(33)).getMessage().contains("is nested 33 levels deep"));
        var error = assertThrows(
                BatonException.class,
                () -> PayloadCheck.check(Info.newBuilder().setData(nested(33)).build()));
        assertEquals("envelope.payload.data", error.fieldViolations().get(0).field());
    }

    @Test
    void numbersThatAreNotFiniteAndHalfSurrogatePairsAreRefusedWithTheirPlace() {
        String message = refused(of(number(Double.NaN))).getMessage();
        assertTrue(message.contains("must have finite numbers only, not NaN (at /a)"), message);
        message = refused(of(text("ab\ud83d"))).getMessage();
        assertTrue(message.contains("has an unpaired surrogate, \\ud83d at character 2 (at /a)"), message);
        assertDoesNotThrow(() -> PayloadCheck.check(update(of(text("\ud83d\ude00")))));
        TaskStatusUpdate details = TaskStatusUpdate.newBuilder().setDetails("\ude00").build();
        var error = assertThrows(BatonException.class, () -> PayloadCheck.check(details));
        assertEquals("envelope.payload.details", error.fieldViolations().get(0).field());
    }
}
