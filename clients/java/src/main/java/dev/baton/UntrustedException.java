package dev.baton;

import io.grpc.Status;

/** The server's certificate is not signed by the trusted CA or has another name. A retry does not help. */
public final class UntrustedException extends BatonException {
    private static final long serialVersionUID = 1;

    UntrustedException(Status.Code code, String message) {
        super(code, message);
    }

    @Override
    public boolean isPassing() {
        return false;
    }
}
