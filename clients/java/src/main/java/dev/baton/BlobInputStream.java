package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ReadBlobRequest;
import dev.baton.v1.ReadBlobResponse;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.Objects;

/** The bytes of a blob, read by calls that continue where the one before has broken. */
final class BlobInputStream extends InputStream {
    private final Connection connection;
    private final ByteString sha256;
    private final long offset;
    private final long length;
    private final BlobBreaks breaks;
    private Context.CancellableContext context = Context.ROOT.withCancellation();
    private Iterator<ReadBlobResponse> call = Collections.emptyIterator();
    private ByteString part = ByteString.EMPTY;
    private long done;
    private boolean isOpen;
    private boolean isOver;

    BlobInputStream(Connection connection, Duration patience, ByteString sha256, long offset, long length) {
        this.connection = connection;
        this.sha256 = sha256;
        this.offset = offset;
        this.length = length;
        this.breaks = new BlobBreaks(connection, patience);
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : Byte.toUnsignedInt(one[0]);
    }

    @Override
    public int read(byte[] into, int at, int count) throws IOException {
        Objects.checkFromIndexSize(at, count, into.length);
        if (count == 0) {
            return 0;
        }
        while (part.isEmpty()) {
            if (isOver) {
                return -1;
            }
            next();
        }
        int taken = Math.min(count, part.size());
        part.copyTo(into, 0, at, taken);
        part = part.substring(taken);
        return taken;
    }

    @Override
    public void close() {
        isOver = true;
        part = ByteString.EMPTY;
        context.cancel(null);
    }

    /** Reads the next part, or notes the end. */
    private void next() throws IOException {
        try {
            if (!isOpen) {
                open();
            }
            if (call.hasNext()) {
                part = call.next().getData();
                done += part.size();
                breaks.came(done);
            } else {
                isOver = true;
            }
        } catch (StatusRuntimeException e) {
            broken(BatonException.of(e));
        }
    }

    private void open() {
        ReadBlobRequest.Builder request =
                ReadBlobRequest.newBuilder().setSha256(sha256).setReadOffset(offset + done);
        if (length > 0) {
            request.setReadLength(length - done);
        }
        context.cancel(null);
        context = Context.ROOT.withCancellation();
        Context before = context.attach();
        try {
            call = connection.readBlob(stub -> stub.readBlob(request.build()));
        } finally {
            context.detach(before);
        }
        isOpen = true;
    }

    private void broken(BatonException error) throws InterruptedIOException {
        isOpen = false;
        if (length > 0 && done >= length) {
            isOver = true; // the break was after the last byte
            return;
        }
        try {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            breaks.await(error);
        } catch (InterruptedException e) {
            close();
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("the read of a blob was interrupted");
        } catch (BatonException e) {
            close();
            throw e;
        }
    }
}
