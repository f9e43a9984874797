package baton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Contexts beyond one message: checkpoints, versions, sections on demand.

func textSection(name, text string) *v1.ContextSection {
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Json{Json: text}}
}

// versionsOf returns the numbers of the versions that an agent may read.
func versionsOf(t *testing.T, agent *Agent, taskID string) (numbers []uint64) {
	t.Helper()
	for version, err := range agent.ContextVersions(patient(t), taskID) {
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, version.GetVersion())
	}
	return numbers
}

func TestCheckpointsAreVersionsAlsoAfterARestart(t *testing.T) {
	b := newBroker(t, "")
	alice := b.agent(t, "alice")
	task := ownedBy(t, alice, b.agent(t, "bob").ID(), Handlers{})
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), textSection("notes", `{"n":1}`)))
	b.kill()
	b.restart(t)
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), textSection("notes", `{"n":2}`), goals(t)))
	if numbers := versionsOf(t, alice, task.TaskID); !slices.Equal(numbers, []uint64{2, 1}) {
		t.Error(numbers)
	}
	latest := ok[*v1.ContextVersion](t)(alice.ContextVersion(patient(t), task.TaskID, 0))
	if latest.GetVersion() != 2 || len(latest.GetSections()) != 2 || latest.GetAuthorId() != alice.ID() {
		t.Error(latest)
	}
	first := &v1.GetContextSectionRequest{TaskId: task.TaskID, Name: "notes", Version: 1}
	if section := ok[*v1.GetContextSectionResponse](t)(alice.GetContextSection(patient(t), first)); section.GetJson() != `{"n":1}` {
		t.Error(section)
	}
	first.HaveSha256 = SectionDigest(textSection("notes", `{"n":1}`))
	if section := ok[*v1.GetContextSectionResponse](t)(alice.GetContextSection(patient(t), first)); !section.GetNotModified() {
		t.Error(section)
	}
	part := &v1.GetContextSectionRequest{TaskId: task.TaskID, Name: "notes", Filter: &v1.ContextFilter{JsonPointers: []string{"/n"}}}
	if section := ok[*v1.GetContextSectionResponse](t)(alice.GetContextSection(patient(t), part)); section.GetJson() != `{"/n":2}` || !section.GetDerived() {
		t.Error(section)
	}
	_, err := alice.ContextVersion(patient(t), task.TaskID, 3)
	refused(t, err, "CONTEXT_VERSION_UNKNOWN")
	_, err = (&OwnedTask{TaskID: task.TaskID, Epoch: 2, agent: alice}).Checkpoint(patient(t), goals(t))
	refused(t, err, "EPOCH_AHEAD")
	if _, err := alice.AuditTask(patient(t), task.TaskID); err != nil {
		t.Error(err)
	}
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
	_, err = task.Checkpoint(patient(t), goals(t))
	refused(t, err, "TASK_FINAL")
}

func TestACandidateGetsWhatItWantsAndFetchesTheRest(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	task := ownedBy(t, alice, shared.agent(t, "carol").ID(), Handlers{})
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), textSection("notes", `{"a":1}`), textSection("earlier", `[1]`)))
	type fetched struct {
		sections []*v1.ContextSection
		err      error
	}
	done := make(chan fetched, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		wishes := []*v1.SectionWish{Want("notes"), WantLast("missing", 1)}
		takeover, err := offer.Accept(ctx, &v1.HandoffAccept{WantedSections: []string{"goals"}, Wishes: wishes})
		if err != nil {
			return err
		}
		result := fetched{sections: takeover.Sections}
		for _, name := range []string{"notes", "earlier", "goals", "missing"} {
			section, err := takeover.Fetch(ctx, name)
			if err != nil {
				result.err = err
				break
			}
			result.sections = append(result.sections, section)
		}
		done <- result
		_, err = takeover.Complete(ctx)
		return err
	}})
	changed := textSection("notes", `{"a":1,"b":2}`)
	delta := &v1.ContextSection{Name: "notes", Content: &v1.ContextSection_Delta{Delta: &v1.ContextDelta{
		BaseSha256: SectionDigest(textSection("notes", `{"a":1}`)), MergePatch: `{"b":2}`, ResultSha256: SectionDigest(changed),
	}}}
	handed := ok[*HandedOver](t)(task.HandOver(patient(t), bob.ID(), supportRequest(), delta, goals(t), textSection("unwanted", "{}")))
	result := await(t, done)
	if result.err != nil || handed.OwnerID != bob.ID() || len(result.sections) != 6 {
		t.Fatal(result, handed)
	}
	names := []string{result.sections[0].GetName(), result.sections[1].GetName()}
	if !slices.Equal(names, []string{"notes", "goals"}) || result.sections[0].GetDelta() == nil {
		t.Error(names)
	}
	got := result.sections[2:]
	if got[0].GetJson() != changed.GetJson() || got[1].GetJson() != "[1]" || got[2].GetJson() == "" || got[3] != nil {
		t.Error(got)
	}
}

func TestACheckpointAndAHandoffSendChangesByThemselves(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	task := ownedBy(t, alice, shared.agent(t, "carol").ID(), Handlers{})
	story := func(count int) *v1.ContextSection {
		return textSection("story", fmt.Sprintf(`{"count":%d,"text":%q}`, count, strings.Repeat("x", 2000)))
	}
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), story(1)))
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), story(2)))
	isDelta := func(taskID string) bool {
		latest := ok[*v1.ContextVersion](t)(alice.ContextVersion(patient(t), taskID, 0))
		return latest.GetSections()[0].GetOrigin() == v1.SectionOrigin_SECTION_ORIGIN_DELTA
	}
	if !isDelta(task.TaskID) {
		t.Error("the second checkpoint is no delta")
	}
	// Another process of alice has stored a version that this one does not know.
	alice.known.note(task.TaskID, []*v1.ContextSection{story(77)})
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), story(3)))
	if isDelta(task.TaskID) || !slices.Equal(versionsOf(t, alice, task.TaskID), []uint64{3, 2, 1}) {
		t.Error("the third checkpoint is a delta")
	}
	type fetched struct {
		sent, whole *v1.ContextSection
		part        []*v1.ContextSection
		err         error
	}
	done := make(chan fetched, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		accept := &v1.HandoffAccept{Wishes: []*v1.SectionWish{WantChanges(story(3)), WantLast("history_log", 1)}}
		takeover, err := offer.Accept(ctx, accept)
		if err != nil {
			return err
		}
		whole, err := takeover.Fetch(ctx, "story")
		done <- fetched{takeover.Section("story"), whole, takeover.Sections[1:], err}
		_, err = takeover.Complete(ctx)
		return err
	}})
	history := textSection("history_log", `[{"role":"user","content":"a"}, {"role":"assistant","content":"b"}]`)
	ok[*HandedOver](t)(task.HandOver(patient(t), bob.ID(), supportRequest(), story(4), history, goals(t)))
	result := await(t, done)
	if result.err != nil || result.sent.GetDelta().GetMergePatch() != `{"count":4}` || result.whole.GetJson() != story(4).GetJson() {
		t.Error(result)
	}
	if len(result.part) != 1 || result.part[0].GetJson() != `[{"content":"b","role":"assistant"}]` {
		t.Error(result.part)
	}
}

func TestABaseThatTheBrokerDoesNotHaveGoesWhole(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	task := ownedBy(t, alice, shared.agent(t, "carol").ID(), Handlers{})
	long := func(text string) *v1.ContextSection {
		return textSection("notes", fmt.Sprintf(`{"a":%q,"b":%q}`, text, strings.Repeat("y", 500)))
	}
	alice.known.note(task.TaskID, []*v1.ContextSection{long("elsewhere")})
	done := make(chan *v1.ContextSection, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		wishes := []*v1.SectionWish{WantChanges(long("elsewhere"))}
		takeover, err := offer.Accept(ctx, &v1.HandoffAccept{Wishes: wishes})
		if err != nil {
			return err
		}
		done <- takeover.Section("notes")
		_, err = takeover.Complete(ctx)
		return err
	}})
	ok[*HandedOver](t)(task.HandOver(patient(t), bob.ID(), supportRequest(), long("now")))
	if sent := await(t, done); sent.GetJson() != long("now").GetJson() {
		t.Error(sent)
	}
}

func TestASmallChangeIsADeltaAndALargeOneIsNot(t *testing.T) {
	base := fmt.Sprintf(`{"count":1,"text":%q}`, strings.Repeat("x", 2000))
	change := textSection("story", strings.Replace(base, ":1", ":2", 1))
	change.Summary, change.Secret, change.SchemaId = "short", true, "story"
	known := func(string) string { return base }
	short, whole := withDeltas([]*v1.ContextSection{change}, known)
	if short[0].GetDelta().GetMergePatch() != `{"count":2}` || short[0].GetSummary() != "short" || !short[0].GetSecret() {
		t.Error(short)
	}
	if whole[0].GetJson() != change.GetJson() || whole[0].GetSchemaId() != "story" {
		t.Error(whole)
	}
	other := textSection("story", fmt.Sprintf(`{"other":%q}`, strings.Repeat("y", 2000)))
	if short, _ := withDeltas([]*v1.ContextSection{other}, known); short[0] != other {
		t.Error(short)
	}
	if short, _ := withDeltas([]*v1.ContextSection{change}, func(string) string { return "" }); short[0] != change {
		t.Error(short)
	}
	if delta, _ := DeltaBetween(`{"a":1}`, `{"a":null}`); delta != nil {
		t.Error(delta)
	}
}

func TestASectionThatTheFilterDoesNotFitIsLeftOut(t *testing.T) {
	goals := textSection("goals", `{"not":"a history"}`)
	elsewhere := &v1.ContextSection_Reference{Reference: &v1.ContextReference{Uri: "https://example.com/a"}}
	reference := &v1.ContextSection{Name: "trace", Content: elsewhere}
	accept := &v1.HandoffAccept{Wishes: []*v1.SectionWish{WantLast("goals", 1), WantLast("trace", 1)}}
	known := func(string, []byte) string { return "" }
	if sent := forWishes([]*v1.ContextSection{goals, reference}, accept, known); len(sent) != 0 {
		t.Error("what the filter is to keep back was sent:", sent)
	}
}

func TestAPartOfAnotherShapeNamesNoSchema(t *testing.T) {
	history := ok[*v1.ContextSection](t)(HistorySection("history_log", []HistoryEntry{{Role: "user", Content: "hi"}}))
	known := func(string, []byte) string { return "" }
	part := func(filter v1.HistoryFilter) *v1.ContextSection {
		wish := &v1.SectionWish{Name: "history_log", Filter: &v1.ContextFilter{History: filter}}
		return forWishes([]*v1.ContextSection{history}, &v1.HandoffAccept{Wishes: []*v1.SectionWish{wish}}, known)[0]
	}
	if full := part(v1.HistoryFilter_HISTORY_FILTER_FULL); full.GetSchemaId() != HistorySchemaID {
		t.Error(full)
	}
	summary := part(v1.HistoryFilter_HISTORY_FILTER_SUMMARY)
	if summary.GetSchemaId() != "" || summary.GetJson() != `{"entries":1,"summary":""}` {
		t.Error(summary)
	}
}

func TestAHistoryIsReadAsItWasWritten(t *testing.T) {
	entries := []HistoryEntry{
		{Role: "system", Content: "be brief"},
		{Role: "user", Name: "ann", Parts: []HistoryPart{
			{Type: "text", Text: "see"},
			{Type: "image", Base64: "aGk=", MediaType: "image/png"},
			{Type: "file", URL: "https://example.com/a.pdf", Name: "a.pdf"},
			{Type: "data", Data: json.RawMessage(`{"n":1}`)},
		}},
		{Role: "assistant", AgentID: "a", ToolCalls: []HistoryCall{{ID: "c1", Name: "find", Arguments: `{"id":7}`}}},
		{Role: "tool", Content: "9", ToolCallID: "c1", Time: "2026-11-22T10:00:00Z"},
	}
	section := ok[*v1.ContextSection](t)(HistorySection("history_log", entries))
	if read := ok[[]HistoryEntry](t)(HistoryOf(section.GetJson())); !reflect.DeepEqual(read, entries) {
		t.Errorf("%+v", read)
	}
	_, err := HistorySection("history_log", []HistoryEntry{{Role: "agent", Content: "hi"}})
	if !errors.Is(err, ErrHistory) || !strings.Contains(err.Error(), `"/0/role"`) {
		t.Error(err)
	}
	if _, err := HistoryOf(`[{"role":"tool","content":"9"}]`); !errors.Is(err, ErrHistory) {
		t.Error(err)
	}
}

func TestASchemaVersionThatIsNotReadIsLeftOut(t *testing.T) {
	sections := []*v1.ContextSection{{Name: "notes", SchemaId: "notes", SchemaVersion: "2"}}
	wish := &v1.SectionWish{Name: "notes", SchemaVersions: []string{"1"}}
	accept := &v1.HandoffAccept{Wishes: []*v1.SectionWish{wish}}
	known := func(string, []byte) string { return "" }
	if wanted := forWishes(sections, accept, known); len(wanted) != 0 {
		t.Error(wanted)
	}
	wish.SchemaVersions = append(wish.SchemaVersions, "2")
	if wanted := forWishes(sections, accept, known); len(wanted) != 1 {
		t.Error(wanted)
	}
	if wanted := forWishes(sections, &v1.HandoffAccept{}, known); len(wanted) != 1 {
		t.Error(wanted)
	}
}

// compressed counts what a connection sends.
type compressed struct {
	length, wire atomic.Int64
}

func (c *compressed) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c *compressed) HandleRPC(_ context.Context, one stats.RPCStats) {
	if payload, is := one.(*stats.OutPayload); is {
		c.length.Add(int64(payload.Length))
		c.wire.Add(int64(payload.CompressedLength))
	}
}

func (c *compressed) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *compressed) HandleConn(context.Context, stats.ConnStats) {}

func TestAContextGoesCompressed(t *testing.T) {
	var seen compressed
	options := shared.options(t, "alice")
	options.Gzip, options.DialOptions = true, []grpc.DialOption{grpc.WithStatsHandler(&seen)}
	alice := connected(t, options)
	task := ownedBy(t, alice, shared.agent(t, "carol").ID(), Handlers{})
	long := textSection("notes", fmt.Sprintf(`{"text":%q}`, strings.Repeat("baton ", 100_000)))
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), long))
	if length, wire := seen.length.Load(), seen.wire.Load(); length < 600_000 || wire > length/10 {
		t.Errorf("%d of %d bytes were sent", wire, length)
	}
	request := &v1.GetContextSectionRequest{TaskId: task.TaskID, Name: "notes"}
	if answer := ok[*v1.GetContextSectionResponse](t)(alice.GetContextSection(patient(t), request)); answer.GetJson() != long.GetJson() {
		t.Error("another content")
	}
}
