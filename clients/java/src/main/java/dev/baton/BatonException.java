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
 * The broker refused, and nothing was changed; or the connection failed, and nobody knows.
 *
 * <p>{@code UNAVAILABLE} and {@code DEADLINE_EXCEEDED} are of the second kind: send the same envelope again, under its
 * old message id, and the broker answers with its first receipt. {@link #reason} is the stable code to branch on; the
 * broker's {@code docs/errors.md} says what to do about each.
 */
public class BatonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private static final Set<Status.Code> PASSING = EnumSet.of(
            Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.RESOURCE_EXHAUSTED, Status.Code.ABORTED);
    // A broker says why it refuses. What has no reason comes from the connection, also in the words of HTTP/2.
    private static final Set<Status.Code> OF_CONNECTION =
            EnumSet.of(Status.Code.UNKNOWN, Status.Code.INTERNAL, Status.Code.CANCELLED);

    private final Status.Code code;
    private final String reason;
    private final transient Map<String, String> metadata;
    private final transient List<FieldViolation> fieldViolations;
    private final Duration retryDelay;

    /**
     * One field of a request that is wrong.
     *
     * @param field its path, for example {@code envelope.task_id}
     * @param description what it should be
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

    /** The error of a {@code google.rpc.Status}, as it comes on a session and in the details of a call. */
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
            // What does not parse says nothing; the code and the message still do.
        }
        Status.Code code = Status.fromCodeValue(status.getCode()).getCode();
        return new BatonException(
                code, status.getMessage(), info.getReason(), info.getMetadataMap(), violations, retryDelay);
    }

    /** The error of a call that failed. */
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

    /** The gRPC status code. */
    public Status.Code code() {
        return code;
    }

    /** {@code ErrorInfo.reason}, for example {@code STALE_EPOCH}; empty where the error is not the broker's own. */
    public String reason() {
        return reason;
    }

    /** {@code ErrorInfo.metadata}, for example {@code current_epoch}. */
    public Map<String, String> metadata() {
        return metadata;
    }

    /** The fields that are wrong, all of them. */
    public List<FieldViolation> fieldViolations() {
        return fieldViolations;
    }

    /** After how long trying again may help, where it does. */
    public Optional<Duration> retryDelay() {
        return Optional.ofNullable(retryDelay);
    }

    /** Whether the same may work later, without any change. */
    public boolean isPassing() {
        if (PASSING.contains(code)) {
            return true;
        }
        return reason.isEmpty() ? OF_CONNECTION.contains(code) : reason.equals("TOKEN_INVALID");
    }
}
