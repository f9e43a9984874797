package baton

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	blobsPerPage  = 200
	blobPartBytes = 256 << 10
	// The number of breaks without progress after which a write or a read of a blob gives up.
	blobBreaksMax = 5
)

// BlobProgress gets the bytes of a blob that are done, and all bytes. It must not block.
type BlobProgress func(done, size uint64)

// BlobOptions has what is optional for a blob that is written.
type BlobOptions struct {
	// The media type; default "application/octet-stream".
	MediaType string
	// Called at the start, after each part, and at the end; a write that continues after a break may go back.
	Progress BlobProgress
}

// BlobReference returns the reference to a blob, for a section of a context or an entry of a workspace.
func BlobReference(blob *v1.Blob) *v1.ContextReference {
	return &v1.ContextReference{
		Uri: "baton:blob/" + hex.EncodeToString(blob.GetSha256()), Sha256: blob.GetSha256(),
		SizeBytes: blob.GetSizeBytes(), MediaType: blob.GetMediaType(),
	}
}

// ReferenceSection returns a section that refers to a content.
func ReferenceSection(name string, reference *v1.ContextReference) *v1.ContextSection {
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Reference{Reference: reference}}
}

// PutBlob writes the source, from its start, as a blob that the workspace holds from then on, for example "task:crash-7".
// It reads the source twice: for the digest, and to write it. It continues an unfinished write of the same bytes, also
// that of an earlier process, and continues by itself after a break of the connection. It fails with an Error, for example
// WORKSPACE_UNKNOWN, PERMISSION_DENIED, QUOTA_EXCEEDED, or the last break after five without progress; with a
// VerificationError if the source has changed meanwhile; and with the source's own error.
func (a *Agent) PutBlob(
	ctx context.Context, source io.ReadSeeker, workspaceID string, options BlobOptions,
) (*v1.Blob, error) {
	digest, size, err := digestOf(source)
	if err != nil {
		return nil, err
	}
	blob := &v1.Blob{
		Sha256: digest, SizeBytes: size, MediaType: orElse(options.MediaType, "application/octet-stream"),
	}
	progress := options.Progress
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	breaks := blobBreaks{agent: a}
	for {
		answer, err := a.writeBlob(ctx, source, blob, workspaceID, progress, &breaks)
		switch {
		case err != nil:
			if err := breaks.wait(ctx, err); err != nil {
				return nil, err
			}
		case answer.GetBlob() == nil:
			return nil, &VerificationError{"BLOB_DIGEST_MISMATCH", "the source has changed while it was written"}
		default:
			progress(size, size)
			return answer.GetBlob(), nil
		}
	}
}

// PutBlobFile writes a file as a blob: see PutBlob.
func (a *Agent) PutBlobFile(ctx context.Context, path, workspaceID string, options BlobOptions) (*v1.Blob, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return a.PutBlob(ctx, file, workspaceID, options)
}

// ReadBlob iterates over the bytes of a blob from offset on, length of them or all for 0, in parts of at most 256 KiB. It
// continues by itself after a break of the connection. The reader compares the digest: GetBlob does so. It ends with an
// Error, for example BLOB_UNKNOWN, BLOB_OUT_OF_RANGE, or the last break after five without progress.
func (a *Agent) ReadBlob(ctx context.Context, digest []byte, offset, length uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		breaks, isWanted, done := blobBreaks{agent: a}, true, uint64(0)
		for {
			request := &v1.ReadBlobRequest{Sha256: digest, ReadOffset: offset + done}
			if length > 0 {
				request.ReadLength = length - done
			}
			err := a.readBlob(ctx, request, func(data []byte) bool {
				done += uint64(len(data))
				breaks.came(done)
				isWanted = yield(data, nil)
				return isWanted
			})
			if err == nil || !isWanted || length > 0 && done >= length {
				return
			}
			if err := breaks.wait(ctx, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// GetBlob returns a whole blob. It fails as ReadBlob, and with a VerificationError, BLOB_DIGEST_MISMATCH, for other bytes.
func (a *Agent) GetBlob(ctx context.Context, digest []byte) ([]byte, error) {
	data, err := a.GetBlobRange(ctx, digest, 0, 0)
	if err != nil {
		return nil, err
	}
	found := sha256.Sum256(data)
	return data, checkBlob(found[:], digest)
}

// GetBlobRange returns the bytes of a blob from offset on, length of them or all for 0. It fails as ReadBlob.
func (a *Agent) GetBlobRange(ctx context.Context, digest []byte, offset, length uint64) ([]byte, error) {
	var whole bytes.Buffer
	for data, err := range a.ReadBlob(ctx, digest, offset, length) {
		if err != nil {
			return nil, err
		}
		whole.Write(data)
	}
	return whole.Bytes(), nil
}

// GetBlobFile reads a blob into a file. The bytes go to a file beside it that ends in ".part", where a later call
// continues; once they have the digest, the file gets its name. progress may be nil. It fails as GetBlob, and with the
// errors of the files.
func (a *Agent) GetBlobFile(ctx context.Context, digest []byte, path string, progress BlobProgress) (*v1.Blob, error) {
	blob, err := a.StatBlob(ctx, digest)
	if err != nil {
		return nil, err
	}
	part := path + ".part"
	found, err := a.readBlobPart(ctx, blob, part, progress)
	if err != nil {
		return nil, err
	}
	if err := checkBlob(found, digest); err != nil {
		return nil, errors.Join(err, os.Remove(part))
	}
	return blob, os.Rename(part, path)
}

// readBlobPart writes the bytes to a file that may have the first ones, and returns the digest of the whole file.
func (a *Agent) readBlobPart(ctx context.Context, blob *v1.Blob, path string, progress BlobProgress) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	hash, size := sha256.New(), blob.GetSizeBytes()
	read, err := io.Copy(hash, file)
	if err != nil {
		return nil, err
	}
	done := uint64(read)
	if done > size {
		// The file is of another blob.
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		if err := file.Truncate(0); err != nil {
			return nil, err
		}
		hash.Reset()
		done = 0
	}
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	progress(done, size)
	if done < size {
		for data, err := range a.ReadBlob(ctx, blob.GetSha256(), done, 0) {
			if err != nil {
				return nil, err
			}
			if _, err := io.MultiWriter(file, hash).Write(data); err != nil {
				return nil, err
			}
			done += uint64(len(data))
			progress(done, size)
		}
	}
	return hash.Sum(nil), file.Close()
}

// StatBlob returns what the broker knows of a blob. It fails with an Error, BLOB_UNKNOWN.
func (a *Agent) StatBlob(ctx context.Context, digest []byte) (*v1.Blob, error) {
	answer, err := call(ctx, a, a.blobs.GetBlob, &v1.GetBlobRequest{Sha256: digest})
	return answer.GetBlob(), err
}

// MissingBlobs returns those of at most 1000 blobs that this agent cannot read: it writes them before it refers to them.
func (a *Agent) MissingBlobs(ctx context.Context, digests ...[]byte) ([][]byte, error) {
	answer, err := call(ctx, a, a.blobs.FindMissingBlobs, &v1.FindMissingBlobsRequest{Sha256S: digests})
	return answer.GetSha256S(), err
}

// Blobs iterates over the blobs that a workspace holds, by digest. It reads page by page, and ends with an error if a page
// cannot be read.
func (a *Agent) Blobs(ctx context.Context, workspaceID string) iter.Seq2[*v1.Blob, error] {
	return pages(func(token string) ([]*v1.Blob, string, error) {
		request := &v1.ListBlobsRequest{WorkspaceId: workspaceID, PageSize: blobsPerPage, PageToken: token}
		page, err := call(ctx, a, a.blobs.ListBlobs, request)
		return page.GetBlobs(), page.GetNextPageToken(), err
	})
}

// DeleteBlob ends the hold of one workspace. The blob stays while another one holds it.
func (a *Agent) DeleteBlob(ctx context.Context, digest []byte, workspaceID string) error {
	_, err := call(ctx, a, a.blobs.DeleteBlob, &v1.DeleteBlobRequest{Sha256: digest, WorkspaceId: workspaceID})
	return err
}

// writeBlob writes the blob once, from where the broker has it to the end or to a break.
func (a *Agent) writeBlob(
	ctx context.Context, source io.ReadSeeker, blob *v1.Blob, workspaceID string, progress BlobProgress, breaks *blobBreaks,
) (*v1.WriteBlobResponse, error) {
	offset, err := a.writtenOf(ctx, blob.GetSha256())
	if err != nil {
		return nil, err
	}
	breaks.came(offset)
	progress(offset, blob.GetSizeBytes())
	if _, err := source.Seek(int64(offset), io.SeekStart); err != nil {
		return nil, err
	}
	writing, cancel := context.WithCancel(a.Authorize(ctx))
	defer cancel()
	stream, err := a.blobs.WriteBlob(writing)
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	request := &v1.WriteBlobRequest{Blob: blob, WorkspaceId: workspaceID, WriteOffset: offset}
	for buffer := make([]byte, blobPartBytes); ; {
		if err := stream.Send(request); err != nil {
			break // CloseAndRecv has the cause, or the answer
		}
		count, err := io.ReadFull(source, buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		if count == 0 {
			break
		}
		request = &v1.WriteBlobRequest{WriteOffset: offset, Data: bytes.Clone(buffer[:count])}
		offset += uint64(count)
		progress(min(offset, blob.GetSizeBytes()), blob.GetSizeBytes())
	}
	answer, err := stream.CloseAndRecv()
	if err != nil {
		return nil, errorOf(ctx, err)
	}
	return answer, nil
}

// writtenOf returns the number of bytes that an unfinished write has stored.
func (a *Agent) writtenOf(ctx context.Context, digest []byte) (uint64, error) {
	answer, err := call(ctx, a, a.blobs.GetBlobWrite, &v1.GetBlobWriteRequest{Sha256: digest})
	var refused *Error
	if errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_UPLOAD_UNKNOWN {
		return 0, nil
	}
	return answer.GetCommittedBytes(), err
}

// readBlob reads one stream to its end, or until take wants no more.
func (a *Agent) readBlob(ctx context.Context, request *v1.ReadBlobRequest, take func([]byte) bool) error {
	reading, cancel := context.WithCancel(a.Authorize(ctx))
	defer cancel()
	stream, err := a.blobs.ReadBlob(reading, request)
	if err != nil {
		return errorOf(ctx, err)
	}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errorOf(ctx, err)
		}
		if len(answer.GetData()) > 0 && !take(answer.GetData()) {
			return nil
		}
	}
}

// blobBreaks counts the breaks of a write or a read without progress.
type blobBreaks struct {
	agent    *Agent
	count    int
	furthest uint64
	isProven bool
}

// came notes how many bytes are done.
func (b *blobBreaks) came(done uint64) {
	if done > b.furthest {
		b.count, b.furthest, b.isProven = 0, done, false
	}
}

// wait waits before the next attempt. It fails with the error of the last one if there is none.
func (b *blobBreaks) wait(ctx context.Context, failure error) error {
	a := b.agent
	var refused *Error
	if isTokenOver(failure) && a.options.Token == "" && !b.isProven {
		b.isProven = true
		return a.prove(ctx)
	}
	// For the broker the stream before may not have ended yet.
	canContinue := errors.As(failure, &refused) && isPassing(failure) && refused.Reason != "QUOTA_EXCEEDED"
	if !canContinue || b.count >= blobBreaksMax || ctx.Err() != nil {
		return failure
	}
	if a.life.Err() != nil {
		return a.Err()
	}
	wait := max(refused.RetryDelay, jittered(min(reconnectFirst<<b.count, reconnectMost)))
	b.count++
	if err := sleep(ctx, wait); err != nil {
		return err
	}
	// Without a connection a further attempt would fail too.
	_, err := a.current(ctx)
	return err
}

func checkBlob(found, expected []byte) error {
	if bytes.Equal(found, expected) {
		return nil
	}
	return &VerificationError{"BLOB_DIGEST_MISMATCH", fmt.Sprintf("the bytes have the digest %x", found)}
}

// digestOf returns the SHA-256 and the size of a source.
func digestOf(source io.ReadSeeker) ([]byte, uint64, error) {
	if _, err := source.Seek(0, io.SeekStart); err != nil {
		return nil, 0, err
	}
	hash := sha256.New()
	size, err := io.Copy(hash, source)
	return hash.Sum(nil), uint64(size), err
}
