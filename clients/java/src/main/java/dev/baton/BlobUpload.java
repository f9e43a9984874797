package dev.baton;

import dev.baton.v1.WriteBlobRequest;
import dev.baton.v1.WriteBlobResponse;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;

/** One call that writes a blob. It sends no faster than the broker takes. */
final class BlobUpload implements ClientResponseObserver<WriteBlobRequest, WriteBlobResponse>, AutoCloseable {
    private ClientCallStreamObserver<WriteBlobRequest> stream;
    private WriteBlobResponse answer = WriteBlobResponse.getDefaultInstance();
    private BatonException failure;
    private boolean isOver;

    /** Sends a message. Returns whether the broker wants more: it may have answered, or the call may have broken. */
    synchronized boolean send(WriteBlobRequest request) throws InterruptedException {
        while (!isOver && !stream.isReady()) {
            wait();
        }
        if (!isOver) {
            stream.onNext(request);
        }
        return !isOver;
    }

    /** Ends the messages and returns the answer. Throws {@link BatonException}. */
    synchronized WriteBlobResponse end() throws InterruptedException {
        if (!isOver) {
            stream.onCompleted();
        }
        while (!isOver) {
            wait();
        }
        if (failure != null) {
            throw failure;
        }
        return answer;
    }

    /** Cancels the call if it is not over. */
    @Override
    public synchronized void close() {
        if (!isOver) {
            stream.cancel("the write has ended", null);
        }
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<WriteBlobRequest> requests) {
        stream = requests;
        requests.setOnReadyHandler(() -> {
            synchronized (this) {
                notifyAll();
            }
        });
    }

    @Override
    public synchronized void onNext(WriteBlobResponse response) {
        answer = response;
    }

    @Override
    public synchronized void onError(Throwable error) {
        boolean isStatus = error instanceof StatusRuntimeException;
        failure = BatonException.of(
                isStatus ? (StatusRuntimeException) error : Status.fromThrowable(error).asRuntimeException());
        over();
    }

    @Override
    public synchronized void onCompleted() {
        over();
    }

    private void over() {
        isOver = true;
        notifyAll();
    }
}
