package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import dev.baton.v1.Blob;
import dev.baton.v1.ContextReference;
import dev.baton.v1.DeleteBlobRequest;
import dev.baton.v1.FindMissingBlobsRequest;
import dev.baton.v1.GetBlobRequest;
import dev.baton.v1.GetBlobWriteRequest;
import dev.baton.v1.ListBlobsRequest;
import dev.baton.v1.ListBlobsResponse;
import dev.baton.v1.WriteBlobRequest;
import dev.baton.v1.WriteBlobResponse;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;

/**
 * Blobs: content that is too large for a message, written and read with progress, and continued after a break of the
 * connection and after the death of the process. {@link Agent#blobs} returns it.
 *
 * <p>A write and a read give up after the agent's send timeout without progress. All calls throw
 * {@link BatonException} if the broker refuses, for example BLOB_UNKNOWN or PERMISSION_DENIED.
 */
public final class Blobs {
    private static final int PAGE_SIZE = 200;
    private static final int PART_BYTES = 256 * 1024;

    private final Connection connection;
    private final Duration patience;

    Blobs(Connection connection, Duration patience) {
        this.connection = connection;
        this.patience = patience;
    }

    /** Shows how far a write or a read has come. */
    @FunctionalInterface
    public interface Progress {
        /** Shows nothing. */
        Progress NONE = (done, size) -> {};

        /** Gets the bytes that are done, and all bytes. A write that continues after a break may go back. */
        void at(long done, long size);
    }

    /** Returns the reference to a blob, for a section of a context or an entry of a workspace. */
    public static ContextReference reference(Blob blob) {
        String hex = HexFormat.of().formatHex(blob.getSha256().toByteArray());
        return ContextReference.newBuilder()
                .setUri("baton:blob/" + hex)
                .setSha256(blob.getSha256())
                .setSizeBytes(blob.getSizeBytes())
                .setMediaType(blob.getMediaType())
                .build();
    }

    /**
     * Writes a file as a blob that the workspace holds from then on, for example {@code task:crash-7}. Continues an
     * unfinished write of the same bytes, also that of an earlier process. Throws {@link BatonException}, for example
     * WORKSPACE_UNKNOWN or QUOTA_EXCEEDED; {@link VerificationException} if the file has changed meanwhile.
     */
    public Blob put(Path file, String workspaceId, String mediaType, Progress progress)
            throws IOException, InterruptedException {
        return write(
                offset -> {
                    InputStream stream = Files.newInputStream(file);
                    stream.skipNBytes(offset);
                    return stream;
                },
                workspaceId,
                mediaType,
                progress);
    }

    /** Writes bytes as a blob: see {@link #put(Path, String, String, Progress)}. */
    public Blob put(byte[] data, String workspaceId, String mediaType) throws IOException, InterruptedException {
        return write(
                offset -> new ByteArrayInputStream(data, (int) offset, data.length),
                workspaceId,
                mediaType,
                Progress.NONE);
    }

    /**
     * Opens a blob from an offset on, for this many bytes, or all for 0. The reader compares the digest:
     * {@link #get(ByteString)} does so. A read throws {@link BatonException}, for example BLOB_OUT_OF_RANGE.
     */
    public InputStream open(ByteString sha256, long offset, long length) {
        return new BlobInputStream(connection, patience, sha256, offset, length);
    }

    /** Returns a whole blob. Throws {@link VerificationException}, BLOB_DIGEST_MISMATCH, for other bytes. */
    public byte[] get(ByteString sha256) throws IOException {
        byte[] data = get(sha256, 0, 0);
        check(Signing.sha256(data), sha256);
        return data;
    }

    /** Returns the bytes of a blob from an offset on, this many, or all for 0. */
    public byte[] get(ByteString sha256, long offset, long length) throws IOException {
        try (InputStream stream = open(sha256, offset, length)) {
            return stream.readAllBytes();
        }
    }

    /**
     * Reads a blob into a file. The bytes go to a file beside it that ends in {@code .part}, where a later call
     * continues; once they have the digest, the file gets its name. Throws {@link VerificationException},
     * BLOB_DIGEST_MISMATCH, for other bytes.
     */
    public Blob get(ByteString sha256, Path file, Progress progress) throws IOException {
        Blob blob = stat(sha256);
        Path part = file.resolveSibling(file.getFileName() + ".part");
        byte[] found = read(blob, part, progress);
        try {
            check(found, sha256);
        } catch (VerificationException e) {
            Files.delete(part);
            throw e;
        }
        Files.move(part, file, StandardCopyOption.REPLACE_EXISTING);
        return blob;
    }

    /** Returns what the broker knows of a blob. */
    public Blob stat(ByteString sha256) {
        GetBlobRequest request = GetBlobRequest.newBuilder().setSha256(sha256).build();
        return connection.blobs(stub -> stub.getBlob(request)).getBlob();
    }

    /** Returns those of at most 1000 blobs that this agent cannot read: it writes them before it refers to them. */
    public List<ByteString> missing(Collection<ByteString> sha256s) {
        FindMissingBlobsRequest request =
                FindMissingBlobsRequest.newBuilder().addAllSha256S(sha256s).build();
        return connection.blobs(stub -> stub.findMissingBlobs(request)).getSha256SList();
    }

    /** Returns the blobs that a workspace holds, by digest. */
    public List<Blob> list(String workspaceId) {
        List<Blob> blobs = new ArrayList<>();
        ListBlobsRequest.Builder request =
                ListBlobsRequest.newBuilder().setWorkspaceId(workspaceId).setPageSize(PAGE_SIZE);
        do {
            ListBlobsRequest asked = request.build();
            ListBlobsResponse page = connection.blobs(stub -> stub.listBlobs(asked));
            blobs.addAll(page.getBlobsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return blobs;
    }

    /** Ends the hold of one workspace. The blob stays while another one holds it. */
    public void delete(ByteString sha256, String workspaceId) {
        DeleteBlobRequest request = DeleteBlobRequest.newBuilder()
                .setSha256(sha256)
                .setWorkspaceId(workspaceId)
                .build();
        connection.blobs(stub -> stub.deleteBlob(request));
    }

    /** The bytes of a blob that is written, from an offset on. */
    private interface Source {
        InputStream open(long offset) throws IOException;
    }

    private Blob write(Source source, String workspaceId, String mediaType, Progress progress)
            throws IOException, InterruptedException {
        MessageDigest digest = sha256();
        long size;
        try (InputStream whole = source.open(0)) {
            size = whole.transferTo(into(digest));
        }
        Blob blob = Blob.newBuilder()
                .setSha256(ByteString.copyFrom(digest.digest()))
                .setSizeBytes(size)
                .setMediaType(mediaType)
                .build();
        BlobBreaks breaks = new BlobBreaks(connection, patience);
        while (true) {
            try {
                WriteBlobResponse answer = writeOnce(source, blob, workspaceId, progress, breaks);
                if (!answer.hasBlob()) {
                    String text = "the source has changed while it was written";
                    throw new VerificationException("BLOB_DIGEST_MISMATCH", text);
                }
                progress.at(size, size);
                return answer.getBlob();
            } catch (BatonException e) {
                breaks.await(e);
            }
        }
    }

    /** Writes the blob once, from where the broker has it to the end or to a break. */
    private WriteBlobResponse writeOnce(
            Source source, Blob blob, String workspaceId, Progress progress, BlobBreaks breaks)
            throws IOException, InterruptedException {
        long size = blob.getSizeBytes();
        long offset = writtenOf(blob.getSha256());
        breaks.came(offset);
        progress.at(offset, size);
        try (InputStream from = source.open(offset);
                BlobUpload upload = new BlobUpload()) {
            connection.writeBlob(upload);
            WriteBlobRequest request = WriteBlobRequest.newBuilder()
                    .setBlob(blob)
                    .setWorkspaceId(workspaceId)
                    .setWriteOffset(offset)
                    .build();
            while (upload.send(request)) {
                byte[] part = from.readNBytes(PART_BYTES);
                if (part.length == 0) {
                    break;
                }
                request = WriteBlobRequest.newBuilder()
                        .setWriteOffset(offset)
                        .setData(UnsafeByteOperations.unsafeWrap(part))
                        .build();
                offset += part.length;
                progress.at(Math.min(offset, size), size);
            }
            return upload.end();
        }
    }

    /** Returns the number of bytes that an unfinished write has stored. */
    private long writtenOf(ByteString sha256) throws InterruptedException {
        GetBlobWriteRequest request =
                GetBlobWriteRequest.newBuilder().setSha256(sha256).build();
        try {
            return Connection.interruptibly(() -> connection.blobs(stub -> stub.getBlobWrite(request)))
                    .getCommittedBytes();
        } catch (BatonException e) {
            if (e.reason().equals("UPLOAD_UNKNOWN")) {
                return 0;
            }
            throw e;
        }
    }

    /** Writes the bytes to a file that may have the first ones, and returns the digest of the whole file. */
    private byte[] read(Blob blob, Path part, Progress progress) throws IOException {
        MessageDigest digest = sha256();
        long size = blob.getSizeBytes();
        try (FileChannel file =
                FileChannel.open(part, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            if (file.size() > size) {
                file.truncate(0); // it is of another blob
            }
            long done = Channels.newInputStream(file).transferTo(into(digest));
            progress.at(done, size);
            if (done == size) {
                return digest.digest();
            }
            OutputStream out = Channels.newOutputStream(file);
            try (InputStream stream = open(blob.getSha256(), done, 0)) {
                byte[] buffer = new byte[PART_BYTES];
                for (int count = stream.read(buffer); count >= 0; count = stream.read(buffer)) {
                    out.write(buffer, 0, count);
                    digest.update(buffer, 0, count);
                    done += count;
                    progress.at(done, size);
                }
            }
        }
        return digest.digest();
    }

    private static void check(byte[] found, ByteString expected) {
        if (!ByteString.copyFrom(found).equals(expected)) {
            String text = "the bytes have the digest " + HexFormat.of().formatHex(found);
            throw new VerificationException("BLOB_DIGEST_MISMATCH", text);
        }
    }

    private static OutputStream into(MessageDigest digest) {
        return new DigestOutputStream(OutputStream.nullOutputStream(), digest);
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every JDK has it
        }
    }
}
