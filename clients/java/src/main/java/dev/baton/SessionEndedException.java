package dev.baton;

import io.grpc.Status;
import java.time.Duration;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The session ended with its open questions. The broker may or may not have taken them. */
final class SessionEndedException extends BatonException {
    private static final long serialVersionUID = 1;
    private static final Set<Status.Code> REFUSALS =
            EnumSet.of(Status.Code.INVALID_ARGUMENT, Status.Code.OUT_OF_RANGE);

    private final transient BatonException refusal;

    SessionEndedException(String message, String reason, Duration retryDelay) {
        super(Status.Code.UNAVAILABLE, message, reason, Map.of(), List.of(), retryDelay);
        refusal = null;
    }

    private SessionEndedException(BatonException broken) {
        super(
                Status.Code.UNAVAILABLE,
                broken.getMessage(),
                broken.reason(),
                Map.of(),
                List.of(),
                broken.retryDelay().orElse(null));
        refusal = REFUSALS.contains(broken.code()) ? broken : null;
    }

    /** Returns the end by this error of the stream. */
    static SessionEndedException by(BatonException broken) {
        return new SessionEndedException(broken);
    }

    /**
     * Returns the broker's refusal of a frame, if it ended the session; otherwise null. The same bytes would end the
     * next session too.
     */
    BatonException refusal() {
        return refusal;
    }

    static SessionEndedException plain() {
        return new SessionEndedException("the session has ended", "", null);
    }
}
