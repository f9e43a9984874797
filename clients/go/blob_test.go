package baton

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const mebi = 1 << 20

func randomBytes(count int) []byte {
	data := make([]byte, count)
	_, _ = rand.Read(data) // never fails
	return data
}

func digestOfBytes(data []byte) []byte {
	digest := sha256.Sum256(data)
	return digest[:]
}

// steps records what a progress shows.
type steps struct{ done []uint64 }

func (s *steps) add(done, _ uint64) { s.done = append(s.done, done) }

func blobsOf(t *testing.T, agent *Agent, workspaceID string) (digests [][]byte) {
	t.Helper()
	for blob, err := range agent.Blobs(patient(t), workspaceID) {
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, blob.GetSha256())
	}
	return digests
}

func TestABlobIsWrittenReadAndReferredTo(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	task := ownedBy(t, alice, shared.agent(t, "carol").ID(), Handlers{})
	workspace, whole := "task:"+task.TaskID, randomBytes(3*mebi+7)
	digest, path := digestOfBytes(whole), filepath.Join(t.TempDir(), "figures")
	if missing := ok[[][]byte](t)(alice.MissingBlobs(patient(t), digest)); len(missing) != 1 {
		t.Error(missing)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	var seen steps
	options := BlobOptions{MediaType: "text/csv", Progress: seen.add}
	blob := ok[*v1.Blob](t)(alice.PutBlobFile(patient(t), path, workspace, options))
	if !bytes.Equal(blob.GetSha256(), digest) || blob.GetSizeBytes() != uint64(len(whole)) || blob.GetMediaType() != "text/csv" {
		t.Error(blob)
	}
	if seen.done[0] != 0 || seen.done[len(seen.done)-1] != blob.GetSizeBytes() || !slices.IsSorted(seen.done) {
		t.Error(seen)
	}
	ok[*v1.Blob](t)(alice.PutBlob(patient(t), bytes.NewReader(whole), workspace, BlobOptions{}))
	if missing := ok[[][]byte](t)(alice.MissingBlobs(patient(t), digest)); len(missing) != 0 {
		t.Error(missing)
	}
	if held := blobsOf(t, alice, workspace); len(held) != 1 || !bytes.Equal(held[0], digest) {
		t.Error(held)
	}
	same(t, "range", ok[[]byte](t)(alice.GetBlobRange(patient(t), digest, mebi-1, 5)), whole[mebi-1:mebi+4])
	same(t, "end", ok[[]byte](t)(alice.GetBlobRange(patient(t), digest, uint64(len(whole)-3), 0)), whole[len(whole)-3:])
	_, err := alice.GetBlobRange(patient(t), digest, uint64(len(whole)+1), 0)
	refused(t, err, "BLOB_OUT_OF_RANGE")
	if _, err := bob.GetBlob(patient(t), digest); err == nil {
		t.Error("a digest is no right to read")
	}
	got := make(chan []byte, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		data, err := bob.GetBlob(ctx, takeover.Section("figures").GetReference().GetSha256())
		if err != nil {
			return err
		}
		got <- data
		_, err = takeover.Complete(ctx)
		return err
	}})
	figures := ReferenceSection("figures", BlobReference(blob))
	ok[*HandedOver](t)(task.HandOver(patient(t), bob.ID(), supportRequest(), figures))
	same(t, "digest of what bob got", digestOfBytes(await(t, got)), digest)
	empty := ok[*v1.Blob](t)(bob.PutBlob(patient(t), bytes.NewReader(nil), workspace, BlobOptions{}))
	if none := ok[[]byte](t)(bob.GetBlob(patient(t), empty.GetSha256())); len(none) != 0 || empty.GetMediaType() == "" {
		t.Error(none, empty)
	}
	if err := bob.DeleteBlob(patient(t), empty.GetSha256(), workspace); err != nil {
		t.Error(err)
	}
	if held := blobsOf(t, bob, workspace); len(held) != 1 {
		t.Error(held)
	}
}

func TestAWriteAndAReadContinueAfterAKill(t *testing.T) {
	b := newBroker(t, "")
	alice := b.agent(t, "alice")
	task := ownedBy(t, alice, b.agent(t, "bob").ID(), Handlers{})
	whole, path := randomBytes(12*mebi), filepath.Join(t.TempDir(), "copy")
	var seen steps
	killAt := func(at uint64) BlobProgress {
		isKilled := false
		return func(done, size uint64) {
			seen.add(done, size)
			if done >= at && !isKilled {
				isKilled = true
				b.kill()
				b.restart(t)
			}
		}
	}
	options := BlobOptions{Progress: killAt(8 * mebi)}
	blob := ok[*v1.Blob](t)(alice.PutBlob(patient(t), bytes.NewReader(whole), "task:"+task.TaskID, options))
	turn := 0
	for at := 1; at < len(seen.done); at++ {
		if seen.done[at] < seen.done[at-1] {
			turn = at
		}
	}
	if blob.GetSizeBytes() != uint64(len(whole)) || seen.done[turn] == 0 {
		t.Error(turn, seen.done)
	}
	seen.done = nil
	ok[*v1.Blob](t)(alice.GetBlobFile(patient(t), blob.GetSha256(), path, killAt(2*mebi)))
	same(t, "digest of the copy", digestOfBytes(ok[[]byte](t)(os.ReadFile(path))), digestOfBytes(whole))
	if _, err := os.Stat(path + ".part"); !errors.Is(err, os.ErrNotExist) || !slices.IsSorted(seen.done) {
		t.Error(err, seen.done)
	}
}

func TestAReadIntoAFileContinuesWhereItStopped(t *testing.T) {
	alice := shared.agent(t, "alice")
	task := ownedBy(t, alice, shared.agent(t, "bob").ID(), Handlers{})
	whole, path := randomBytes(2*mebi), filepath.Join(t.TempDir(), "copy")
	blob := ok[*v1.Blob](t)(alice.PutBlob(patient(t), bytes.NewReader(whole), "task:"+task.TaskID, BlobOptions{}))
	read := func(part []byte, progress BlobProgress) error {
		if err := os.WriteFile(path+".part", part, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := alice.GetBlobFile(patient(t), blob.GetSha256(), path, progress)
		return err
	}
	var seen steps
	if err := read(whole[:mebi], seen.add); err != nil || seen.done[0] != mebi {
		t.Error(err, seen)
	}
	refusedHere(t, read(make([]byte, mebi), nil), "BLOB_DIGEST_MISMATCH")
	if _, err := os.Stat(path + ".part"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := read(make([]byte, 3*mebi), nil); err != nil {
		t.Error(err)
	}
	if err := read(whole, nil); err != nil {
		t.Error(err)
	}
	same(t, "digest of the copy", digestOfBytes(ok[[]byte](t)(os.ReadFile(path))), digestOfBytes(whole))
}

// changing gives other bytes when it is read again.
type changing struct{ *bytes.Reader }

func (c *changing) Seek(offset int64, whence int) (int64, error) {
	if c.Len() == 0 {
		c.Reader = bytes.NewReader(make([]byte, c.Size()))
	}
	return c.Reader.Seek(offset, whence)
}

func TestOtherBytesThanTheDigestAreRefused(t *testing.T) {
	alice := shared.agent(t, "alice")
	task := ownedBy(t, alice, shared.agent(t, "bob").ID(), Handlers{})
	source := &changing{bytes.NewReader(randomBytes(100))}
	_, err := alice.PutBlob(patient(t), source, "task:"+task.TaskID, BlobOptions{})
	refused(t, err, "BLOB_DIGEST_MISMATCH")
	mallory := shared.agent(t, "mallory")
	_, err = mallory.PutBlob(patient(t), bytes.NewReader([]byte("mine")), "task:"+task.TaskID, BlobOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Reason != "PERMISSION_DENIED" && e.Reason != "WORKSPACE_UNKNOWN" {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(patient(t))
	cancel()
	if _, err := alice.PutBlob(ended, bytes.NewReader([]byte("late")), "task:"+task.TaskID, BlobOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
