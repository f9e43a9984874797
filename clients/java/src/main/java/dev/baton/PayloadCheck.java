package dev.baton;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import dev.baton.v1.Delegation;
import dev.baton.v1.Info;
import dev.baton.v1.Plan;
import dev.baton.v1.PlanSubmission;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskStatusUpdate;
import java.util.List;
import java.util.Map;

/**
 * The check of a payload before it is signed: JSON that the broker is sure to refuse, and text that UTF-8 does not have. A
 * refusal has the broker's code, FIELD_INVALID, and names the field, the limit and what was found.
 */
final class PayloadCheck {
    /** The maximum size of a result, in bytes of JSON. */
    static final int RESULT_BYTES_MAX = 256 * 1024;
    /** The maximum size of the data of an answer, in bytes of JSON. */
    static final int DATA_BYTES_MAX = 64 * 1024;

    private PayloadCheck() {}

    /** Throws {@link BatonException}, FIELD_INVALID. */
    static void check(Message payload) {
        walk(payload, "envelope.payload");
        if (payload instanceof TaskStatusUpdate update) {
            Json.check(update.getResultJson(), "envelope.payload.result_json", RESULT_BYTES_MAX);
        } else if (payload instanceof TaskInput input) {
            Json.check(input.getDataJson(), "envelope.payload.data_json", DATA_BYTES_MAX);
        } else if (payload instanceof Info info) {
            Json.check(info.getDataJson(), "envelope.payload.data_json", Integer.MAX_VALUE);
        } else if (payload instanceof Delegation delegation) {
            Json.check(delegation.getInputJson(), "envelope.payload.input_json", Integer.MAX_VALUE);
        } else if (payload instanceof PlanSubmission submission) {
            check(submission.getPlan());
        }
    }

    private static void check(Plan plan) {
        Json.check(plan.getInputJson(), "envelope.payload.plan.input_json", Integer.MAX_VALUE);
        for (int i = 0; i < plan.getSubtasksCount(); i++) {
            String path = "envelope.payload.plan.subtasks[" + i + "].input_json";
            Json.check(plan.getSubtasks(i).getInputJson(), path, Integer.MAX_VALUE);
        }
    }

    private static void walk(Message message, String path) {
        for (Map.Entry<FieldDescriptor, Object> field : message.getAllFields().entrySet()) {
            FieldDescriptor descriptor = field.getKey();
            String name = path + "." + descriptor.getName();
            if (descriptor.isRepeated()) {
                int index = 0;
                for (Object one : (List<?>) field.getValue()) {
                    walkField(descriptor, one, name + "[" + index + "]");
                    index++;
                }
            } else {
                walkField(descriptor, field.getValue(), name);
            }
        }
    }

    private static void walkField(FieldDescriptor field, Object value, String path) {
        if (value instanceof String text) {
            String wrong = Json.wrongText(text);
            if (wrong != null) {
                throw Json.refusal(path, wrong + ": it is no Unicode text");
            }
        } else if (field.getJavaType() == FieldDescriptor.JavaType.MESSAGE) {
            walk((Message) value, path);
        }
    }
}
