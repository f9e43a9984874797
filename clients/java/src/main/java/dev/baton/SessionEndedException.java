package dev.baton;

import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** The session has ended, and with it every question on it; what was sent may or may not have been taken. */
final class SessionEndedException extends BatonException {
    private static final long serialVersionUID = 1;

    SessionEndedException(String message, String reason, Duration retryDelay) {
        super(Status.Code.UNAVAILABLE, message, reason, Map.of(), List.of(), retryDelay);
    }

    static SessionEndedException plain() {
        return new SessionEndedException("the session has ended", "", null);
    }
}
