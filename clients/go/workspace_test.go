package baton

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// sharedWorkspace returns the workspace of a new task of an agent.
func sharedWorkspace(t *testing.T, b *broker) (*OwnedTask, *Workspace) {
	t.Helper()
	task := ownedBy(t, b.agent(t, "alice"), b.agent(t, "bob").ID(), Handlers{})
	return task, task.Workspace()
}

func appended(t *testing.T, w *Workspace, topic string, value any) uint64 {
	t.Helper()
	return ok[uint64](t)(w.Append(patient(t), topic, value))
}

func TestEntriesAreAppendedInOrderAndListed(t *testing.T) {
	_, w := sharedWorkspace(t, shared)
	if number := appended(t, w, "Growth Metrics", map[string]any{"rate": 0.4}); number != 1 {
		t.Error(number)
	}
	data := &v1.WorkspaceAppend{Topic: "raw", Entry: &v1.WorkspaceAppend_Bytes{
		Bytes: &v1.ContextBytes{MediaType: "text/plain", Data: []byte("hello")},
	}}
	if number := ok[uint64](t)(w.AppendEntry(patient(t), data)); number != 2 || data.GetWorkspaceId() != "" {
		t.Error(number, data)
	}
	if number := ok[uint64](t)(w.AppendAfter(patient(t), 2, "raw", "more")); number != 3 {
		t.Error(number)
	}
	_, err := w.AppendAfter(patient(t), 2, "raw", "late")
	if conflict := refused(t, err, "SEQUENCE_CONFLICT"); conflict.Metadata["last_sequence"] != "3" {
		t.Error(conflict.Metadata)
	}
	for _, reading := range []*Workspace{w, w.Verifying()} {
		page := ok[*v1.ListEntriesResponse](t)(reading.List(patient(t), &v1.ListEntriesRequest{Topics: []string{"raw"}}))
		if len(page.GetEntries()) != 2 || !bytes.Equal(page.GetEntries()[0].GetBytes().GetData(), []byte("hello")) {
			t.Error(page)
		}
	}
	page := ok[*v1.ListEntriesResponse](t)(w.List(patient(t), &v1.ListEntriesRequest{
		AfterSequence: 3, Wait: durationpb.New(time.Millisecond),
	}))
	if len(page.GetEntries()) != 0 || page.GetLastSequence() != 3 {
		t.Error(page)
	}
	topics := ok[[]*v1.WorkspaceTopic](t)(w.Topics(patient(t)))
	if len(topics) != 2 || topics[0].GetName() != "growth_metrics" || topics[1].GetEntryCount() != 2 {
		t.Error(topics)
	}
	if shown := ok[*v1.Workspace](t)(w.Show(patient(t))); shown.GetLastSequence() != 3 || shown.GetClosed() {
		t.Error(shown)
	}
}

func TestAnEntryThatMayNotBeIsRefused(t *testing.T) {
	task, w := sharedWorkspace(t, shared)
	_, err := w.Append(patient(t), "raw", strings.Repeat("x", 1<<20))
	refused(t, err, "ENTRY_TOO_LARGE")
	appended(t, w, "raw", strings.Repeat("x", 1<<20-2)) // with its quotes exactly the limit
	_, err = w.Append(patient(t), "no/topic", 1)
	refused(t, err, "FIELD_INVALID")
	_, err = shared.agent(t, "stranger").Workspace(w.ID()).Append(patient(t), "raw", 1)
	refused(t, err, "PERMISSION_DENIED")
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
	_, err = w.Append(patient(t), "raw", 1)
	refused(t, err, "WORKSPACE_CLOSED")
}

// watched follows a workspace, and sends each update.
func watched(t *testing.T, ctx context.Context, w *Workspace, after uint64, topics ...string) (<-chan *v1.WatchEntriesResponse, <-chan error) {
	t.Helper()
	updates, ended := make(chan *v1.WatchEntriesResponse, 64), make(chan error, 1)
	go func() {
		defer close(ended)
		for update, err := range w.Watch(ctx, after, topics...) {
			if err != nil {
				ended <- err
				return
			}
			updates <- update
		}
	}()
	return updates, ended
}

func TestAWatchHasEachEntryOnceOverARestartOfTheBroker(t *testing.T) {
	b := newBroker(t, "")
	task, w := sharedWorkspace(t, b)
	appended(t, w, "a", 1)
	updates, ended := watched(t, patient(t), w.Verifying(), 0)
	if first := await(t, updates); first.GetEntry().GetSequence() != 1 || first.GetEntry().GetAuthorId() != task.agent.ID() {
		t.Fatal(first)
	}
	if second := await(t, updates); second.GetCaughtUp().GetLastSequence() != 1 {
		t.Fatal(second)
	}
	for number := uint64(2); number < 5; number++ {
		b.kill()
		b.restart(t)
		appended(t, w, "b", number)
		if update := await(t, updates); update.GetEntry().GetSequence() != number {
			t.Fatal(update)
		}
	}
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
	if last := await(t, updates); last.GetClosed().GetLastSequence() != 4 {
		t.Fatal(last)
	}
	if err := await(t, ended); err != nil {
		t.Error(err)
	}
}

func TestAWatchOfOneTopicEndsWithItsContextOrARefusal(t *testing.T) {
	_, w := sharedWorkspace(t, shared)
	ctx, cancel := context.WithCancel(patient(t))
	updates, ended := watched(t, ctx, w, 0, "b")
	await(t, updates) // caught up
	appended(t, w, "a", 1)
	appended(t, w, "B ", 2)
	if update := await(t, updates); update.GetEntry().GetSequence() != 2 {
		t.Error(update)
	}
	cancel()
	if err := await(t, ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_, ended = watched(t, patient(t), w, 0, "no/topic")
	refused(t, await(t, ended), "FIELD_INVALID")
}

func TestTopicsAreWaitedFor(t *testing.T) {
	task, w := sharedWorkspace(t, shared)
	appended(t, w, "market_analysis", "first")
	appended(t, w, "market_analysis", "second")
	type waited struct {
		found map[string]*v1.WorkspaceEntry
		err   error
	}
	done := make(chan waited, 1)
	go func() {
		found, err := w.WaitFor(patient(t), "Market Analysis", "market analysis", "growth")
		done <- waited{found, err}
	}()
	appended(t, w, "growth", 3)
	both := await(t, done)
	if both.err != nil || len(both.found) != 2 || both.found["market_analysis"].GetJson() != `"first"` || both.found["growth"].GetSequence() != 3 {
		t.Error(both)
	}
	ctx, cancel := context.WithTimeout(patient(t), 300*time.Millisecond)
	defer cancel()
	found, err := w.WaitFor(ctx, "growth", "missing")
	if !errors.Is(err, context.DeadlineExceeded) || len(found) != 1 {
		t.Error(found, err)
	}
	_, err = w.WaitFor(patient(t), "no/topic")
	refused(t, err, "FIELD_INVALID")
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
	if found := ok[map[string]*v1.WorkspaceEntry](t)(w.WaitFor(patient(t), "growth", "missing")); len(found) != 1 {
		t.Error(found)
	}
}

func TestAnEntryThatItsAuthorDidNotSignIsFound(t *testing.T) {
	_, w := sharedWorkspace(t, shared)
	appended(t, w, "a", 1)
	page := ok[*v1.ListEntriesResponse](t)(w.Verifying().List(patient(t), &v1.ListEntriesRequest{}))
	check := func(change func(*v1.WorkspaceEntry)) error {
		page := ok[*v1.ListEntriesResponse](t)(w.List(patient(t), &v1.ListEntriesRequest{IncludeEnvelopes: true}))
		change(page.GetEntries()[0])
		return w.Verifying().check(patient(t), page.GetEntries()[0])
	}
	if err := check(func(*v1.WorkspaceEntry) {}); err != nil || len(page.GetEntries()) != 1 {
		t.Error(err)
	}
	for _, change := range []func(*v1.WorkspaceEntry){
		func(entry *v1.WorkspaceEntry) { entry.Entry = &v1.WorkspaceEntry_Json{Json: "2"} },
		func(entry *v1.WorkspaceEntry) { entry.Topic = "b" },
		func(entry *v1.WorkspaceEntry) { entry.AuthorId = "mallory" },
		func(entry *v1.WorkspaceEntry) { entry.MessageId = "other" },
	} {
		refusedHere(t, check(change), "ENTRY_INVALID")
	}
	refusedHere(t, check(func(entry *v1.WorkspaceEntry) { entry.Envelope.Signature[0] ^= 1 }), "SIGNATURE_INVALID")
	refusedHere(t, check(func(entry *v1.WorkspaceEntry) { entry.Envelope.Signature = nil }), "SIGNATURE_MISSING")
}

func TestATopicIsNormalisedAsTheBrokerDoes(t *testing.T) {
	for name, expected := range map[string]string{
		"growth_metrics": "growth_metrics", "  GROWTH \t\n metrics ": "growth_metrics", "growth\u00a0metrics": "growth_metrics",
		"ÄRGER Größe": "ärger_größe", "任务.1-a": "任务.1-a", "ΣΑΣ": "σας", strings.Repeat("é", 128): strings.Repeat("é", 128),
	} {
		if found, err := Topic(name); err != nil || found != expected {
			t.Error(name, found, err)
		}
	}
	for _, space := range "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000" {
		name := fmt.Sprintf("%cGrowth%c%cMetrics%c", space, space, space, space)
		if found, err := Topic(name); err != nil || found != "growth_metrics" {
			t.Errorf("%q: %q, %v", name, found, err)
		}
	}
	for _, letter := range "\x1c\x1d\x1e\x1f\u180e\u200b\u2060\ufeff" {
		_, err := Topic(fmt.Sprintf("a%cb", letter))
		refused(t, err, "FIELD_INVALID")
	}
	for _, name := range []string{"", " ", "\t\n", "a/b", "a:b", "a\x00b", "a\u200bb", "🚀", strings.Repeat("a", 129)} {
		_, err := Topic(name)
		refused(t, err, "FIELD_INVALID")
	}
}
