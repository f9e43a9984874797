package dev.baton;

import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** The session ended with its open questions. The broker may or may not have taken them. */
final class SessionEndedException extends BatonException {
    private static final long serialVersionUID = 1;

    SessionEndedException(String message, String reason, Duration retryDelay) {
        super(Status.Code.UNAVAILABLE, message, reason, Map.of(), List.of(), retryDelay);
    }

    /** Returns the end by this error of the stream. */
    static SessionEndedException by(BatonException broken) {
        return new SessionEndedException(broken.getMessage(), broken.reason(), broken.retryDelay().orElse(null));
    }

    static SessionEndedException plain() {
        return new SessionEndedException("the session has ended", "", null);
    }
}
