package dev.baton;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertificateException;
import java.time.Duration;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The broker refused and changed nothing, or the connection failed and the outcome is unknown.
 *
 * <p>With {@code UNAVAILABLE} or {@code DEADLINE_EXCEEDED} the outcome is unknown: send the same envelope again, with
 * the same message id, and the broker answers with its first receipt. {@link #reason} is the stable code to branch on;
 * {@code docs/errors.md} of the broker has a remedy for each.
 *
 * <p>If its thread is interrupted, a call that declares {@link InterruptedException} throws that one, wherever it waits. A
 * call that does not declare it throws {@code CANCELLED}, and the thread's interrupt status stays set.
 */
public class BatonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private static final Set<Status.Code> PASSING = EnumSet.of(
            Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.RESOURCE_EXHAUSTED, Status.Code.ABORTED);
    // The broker gives every refusal a reason. A status without one comes from the connection or from HTTP/2.
    private static final Set<Status.Code> OF_CONNECTION =
            EnumSet.of(Status.Code.UNKNOWN, Status.Code.INTERNAL, Status.Code.CANCELLED);

    private final Status.Code code;
    private final String reason;
    private final transient Map<String, String> metadata;
    private final transient List<FieldViolation> fieldViolations;
    private final Duration retryDelay;

    /**
     * One invalid field of a request.
     *
     * @param field the field's path, for example {@code envelope.task_id}
     * @param description the rule that the field breaks
     */
    public record FieldViolation(String field, String description) {}

    BatonException(Status.Code code, String message) {
        this(code, message, "", Map.of(), List.of(), null);
    }

    BatonException(
            Status.Code code,
            String message,
            String reason,
            Map<String, String> metadata,
            List<FieldViolation> fieldViolations,
            Duration retryDelay) {
        super((reason.isEmpty() ? code.name() : reason) + ": " + message);
        this.code = code;
        this.reason = reason;
        this.metadata = Map.copyOf(metadata);
        this.fieldViolations = List.copyOf(fieldViolations);
        this.retryDelay = retryDelay;
    }

    /** Converts a {@code google.rpc.Status}, from a session's frame or the details of a call. */
    static BatonException of(com.google.rpc.Status status) {
        ErrorInfo info = ErrorInfo.getDefaultInstance();
        List<FieldViolation> violations = List.of();
        Duration retryDelay = null;
        try {
            for (com.google.protobuf.Any detail : status.getDetailsList()) {
                if (detail.is(ErrorInfo.class)) {
                    info = detail.unpack(ErrorInfo.class);
                } else if (detail.is(BadRequest.class)) {
                    violations = detail.unpack(BadRequest.class).getFieldViolationsList().stream()
                            .map(one -> new FieldViolation(one.getField(), one.getDescription()))
                            .toList();
                } else if (detail.is(RetryInfo.class)) {
                    retryDelay = Times.toDuration(detail.unpack(RetryInfo.class).getRetryDelay());
                }
            }
        } catch (InvalidProtocolBufferException e) {
            // Details that do not parse are dropped; the code and the message remain.
        }
        Status.Code code = Status.fromCodeValue(status.getCode()).getCode();
        return new BatonException(
                code, status.getMessage(), info.getReason(), info.getMetadataMap(), violations, retryDelay);
    }

    /** Converts the error of a failed call. */
    static BatonException of(Throwable error) {
        if (error instanceof BatonException known) {
            return known;
        }
        Status status = Status.fromThrowable(error);
        com.google.rpc.Status details = StatusProto.fromThrowable(error);
        if (details != null && details.getDetailsCount() > 0) {
            return of(details);
        }
        String message = status.getDescription() == null ? "the call failed" : status.getDescription();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof CertificateException || cause instanceof CertPathBuilderException) {
                return new UntrustedException(status.getCode(), message + ": " + cause.getMessage());
            }
            if (!(cause instanceof StatusRuntimeException) && cause.getMessage() != null) {
                message = status.getDescription() + ": " + cause.getMessage();
            }
        }
        return new BatonException(status.getCode(), message);
    }

    /** Returns the gRPC status code. */
    public Status.Code code() {
        return code;
    }

    /**
     * Returns {@code ErrorInfo.reason}, for example {@code STALE_EPOCH}; empty for an error that the broker did not
     * raise.
     */
    public String reason() {
        return reason;
    }

    /** Returns {@code ErrorInfo.metadata}, for example {@code current_epoch}. */
    public Map<String, String> metadata() {
        return metadata;
    }

    /** Returns all invalid fields. */
    public List<FieldViolation> fieldViolations() {
        return fieldViolations;
    }

    /** Returns the delay after which a retry may succeed; empty if a retry does not help. */
    public Optional<Duration> retryDelay() {
        return Optional.ofNullable(retryDelay);
    }

    /** Whether the same request may succeed later, unchanged. */
    public boolean isPassing() {
        if (PASSING.contains(code)) {
            return true;
        }
        return reason.isEmpty() ? OF_CONNECTION.contains(code) : reason.equals("TOKEN_INVALID");
    }
}
