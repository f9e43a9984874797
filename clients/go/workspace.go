package baton

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Workspace is a workspace that this agent takes part in: numbered entries that the agents of a task share. Agent.Workspace
// returns it. Its methods may be called from several goroutines.
type Workspace struct {
	agent    *Agent
	id       string
	verifies bool
}

// Workspace returns the workspace with this id, for example "task:crash-7". It sends nothing.
func (a *Agent) Workspace(id string) *Workspace { return &Workspace{agent: a, id: id} }

// Workspace returns the workspace of the task.
func (t *OwnedTask) Workspace() *Workspace { return t.agent.Workspace("task:" + t.TaskID) }

// ID returns the workspace's id.
func (w *Workspace) ID() string { return w.id }

// Verifying returns the same workspace, whose reads check the signature of each entry's author, and that the broker shows
// what the author has signed. They ask for the envelopes, and fail with a VerificationError at an entry that does not
// verify: ENTRY_INVALID if it differs from its envelope.
func (w *Workspace) Verifying() *Workspace { return &Workspace{w.agent, w.id, true} }

// Append appends a value that encoding/json encodes, at most 1 MiB as JSON, and returns the number of its entry. It
// repeats the same message over successive sessions, which gives one entry. It fails with an Error: ENTRY_TOO_LARGE
// before anything is sent, and WORKSPACE_CLOSED, QUOTA_EXCEEDED or PERMISSION_DENIED by the broker.
func (w *Workspace) Append(ctx context.Context, topic string, value any) (uint64, error) {
	return w.appendJSON(ctx, &v1.WorkspaceAppend{Topic: topic}, value)
}

// AppendAfter is Append, if last is the number of the workspace's last entry; 0: if it has none. Otherwise it fails with
// an Error, SEQUENCE_CONFLICT, whose Metadata has the right number as "last_sequence".
func (w *Workspace) AppendAfter(ctx context.Context, last uint64, topic string, value any) (uint64, error) {
	return w.appendJSON(ctx, &v1.WorkspaceAppend{Topic: topic, ExpectedLastSequence: &last}, value)
}

func (w *Workspace) appendJSON(ctx context.Context, entry *v1.WorkspaceAppend, value any) (uint64, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	entry.Entry = &v1.WorkspaceAppend_Json{Json: string(text)}
	return w.AppendEntry(ctx, entry)
}

// AppendEntry is Append for an entry with all its fields but the workspace's id: bytes, a reference, a time of its own.
func (w *Workspace) AppendEntry(ctx context.Context, entry *v1.WorkspaceAppend) (uint64, error) {
	entry = proto.CloneOf(entry)
	entry.WorkspaceId = w.id
	if found := contentSize(entry); found > entryBytesMax {
		return 0, entryTooLarge(found)
	}
	receipt, err := w.agent.Send(ctx, "", About{}, entry)
	return receipt.GetResourceSequence(), err
}

func contentSize(entry *v1.WorkspaceAppend) int {
	switch content := entry.GetEntry().(type) {
	case *v1.WorkspaceAppend_Json:
		return len(content.Json)
	case *v1.WorkspaceAppend_Bytes:
		return len(content.Bytes.GetData())
	case *v1.WorkspaceAppend_Reference:
		return len(content.Reference.GetUri())
	}
	return 0
}

// List returns a page of entries, oldest first. It sets the request's workspace_id and include_envelopes. The broker
// waits up to the request's wait, at most 60 s, if no entry exists yet.
func (w *Workspace) List(ctx context.Context, request *v1.ListEntriesRequest) (*v1.ListEntriesResponse, error) {
	asked := proto.CloneOf(request)
	if asked == nil {
		asked = &v1.ListEntriesRequest{}
	}
	asked.WorkspaceId = w.id
	asked.IncludeEnvelopes = asked.GetIncludeEnvelopes() || w.verifies
	page, err := call(ctx, w.agent, w.agent.workspaces.ListEntries, asked)
	if err != nil {
		return nil, err
	}
	for _, entry := range page.GetEntries() {
		if err := w.check(ctx, entry); err != nil {
			return nil, err
		}
	}
	return page, nil
}

// Topics returns the topics that have entries, by name.
func (w *Workspace) Topics(ctx context.Context) ([]*v1.WorkspaceTopic, error) {
	request := &v1.ListTopicsRequest{WorkspaceId: w.id}
	answer, err := call(ctx, w.agent, w.agent.workspaces.ListTopics, request)
	return answer.GetTopics(), err
}

// Show returns the state of the workspace.
func (w *Workspace) Show(ctx context.Context) (*v1.Workspace, error) {
	request := &v1.GetWorkspaceRequest{WorkspaceId: w.id}
	answer, err := call(ctx, w.agent, w.agent.workspaces.GetWorkspace, request)
	return answer.GetWorkspace(), err
}

// Watch follows the workspace from after a number: each entry once and in order, or a gap that covers it, also over lost
// connections and restarts of the broker. Without topics it follows all of them. An update has an entry, a gap, or a
// caught_up, which comes once, after the entries that existed at the start. The iteration ends after closed, when the
// workspace takes no entry any more, or with an error: the cause of ctx, Agent.Err, the broker's refusal, or that of
// Verifying.
func (w *Workspace) Watch(
	ctx context.Context, after uint64, topics ...string,
) iter.Seq2[*v1.WatchEntriesResponse, error] {
	return func(yield func(*v1.WatchEntriesResponse, error) bool) {
		request := &v1.WatchEntriesRequest{
			WorkspaceId: w.id, Topics: topics, AfterSequence: after, IncludeEnvelopes: w.verifies,
		}
		isCaughtUp := false
		err := follow(ctx, w.agent, stream[v1.WatchEntriesResponse]{
			open: func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchEntriesResponse], error) {
				return w.agent.workspaces.WatchEntries(w.agent.Authorize(ctx), request)
			},
			take: func(update *v1.WatchEntriesResponse) (bool, error) {
				wasCaughtUp := isCaughtUp
				switch one := update.GetUpdate().(type) {
				case *v1.WatchEntriesResponse_Entry:
					if err := w.check(ctx, one.Entry); err != nil {
						return false, err
					}
					request.AfterSequence = one.Entry.GetSequence()
				case *v1.WatchEntriesResponse_Gap:
					request.AfterSequence = max(request.GetAfterSequence(), one.Gap.GetLastNumber())
				case *v1.WatchEntriesResponse_CaughtUp:
					// Entries of other topics need not be looked at again.
					request.AfterSequence = max(request.GetAfterSequence(), one.CaughtUp.GetLastSequence())
					if isCaughtUp = true; wasCaughtUp {
						return true, nil
					}
				case *v1.WatchEntriesResponse_Closed:
					yield(update, nil)
					return false, nil
				default:
					return true, nil // of a newer schema
				}
				return yield(update, nil), nil
			},
			isOver: isNeverOver,
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// WaitFor waits until each of these topics has an entry, and returns the first entry of each, by the topic's normalised
// name. If the workspace closes before, the other topics are missing in the answer. If ctx ends before, WaitFor returns
// the entries that it has found and the cause of ctx. It fails with an Error, FIELD_INVALID, for a name that is no topic.
func (w *Workspace) WaitFor(ctx context.Context, topics ...string) (map[string]*v1.WorkspaceEntry, error) {
	wanted, found := map[string]bool{}, map[string]*v1.WorkspaceEntry{}
	for _, topic := range topics {
		normal, err := Topic(topic)
		if err != nil {
			return nil, err
		}
		wanted[normal] = true
	}
	if len(wanted) == 0 {
		return found, nil
	}
	for update, err := range w.Watch(ctx, 0, topics...) {
		if err != nil {
			return found, err
		}
		entry := update.GetEntry()
		if entry == nil {
			continue
		}
		if found[entry.GetTopic()] == nil {
			found[entry.GetTopic()] = entry
		}
		if len(found) == len(wanted) {
			break
		}
	}
	return found, nil
}

// Topic returns the normalised name of a topic: trimmed, in lower case, each run of white space one "_"; then 1 to 128
// letters, digits, "_", "-" and ".". It fails with an Error, FIELD_INVALID, for another name.
func Topic(name string) (string, error) {
	words := strings.Fields(name)
	for i, word := range words {
		words[i] = cases.Lower(language.Und, cases.HandleFinalSigma(true)).String(word)
	}
	normal := strings.Join(words, "_")
	length := utf8.RuneCountInString(normal)
	isWrong := func(letter rune) bool {
		return !unicode.In(letter, unicode.L, unicode.N, unicode.Other_Alphabetic) && !strings.ContainsRune("_-.", letter)
	}
	if length == 0 || length > nameLengthMax || strings.ContainsFunc(normal, isWrong) {
		text := fmt.Sprintf("must be 1 to %d letters, digits, \"_\", \"-\" and \".\", not %q", nameLengthMax, name)
		return "", invalid([]FieldViolation{{"topic", text}})
	}
	return normal, nil
}

// check verifies an entry, if the workspace verifies: the author's signature, and that it covers what the entry shows.
func (w *Workspace) check(ctx context.Context, entry *v1.WorkspaceEntry) error {
	if !w.verifies {
		return nil
	}
	envelope := entry.GetEnvelope()
	if err := w.agent.verifySender(ctx, envelope); err != nil {
		return err
	}
	payload, err := PayloadOf(envelope)
	if err != nil {
		return err
	}
	signed, _ := payload.(*v1.WorkspaceAppend)
	topic, err := Topic(signed.GetTopic())
	isShown := err == nil && topic == entry.GetTopic() && signed.GetWorkspaceId() == w.id &&
		envelope.GetSenderId() == entry.GetAuthorId() && envelope.GetMessageId() == entry.GetMessageId() &&
		isSameContent(signed, entry)
	if !isShown {
		text := fmt.Sprintf("entry %d differs from its envelope", entry.GetSequence())
		return &VerificationError{"ENTRY_INVALID", text}
	}
	return nil
}

func isSameContent(signed *v1.WorkspaceAppend, entry *v1.WorkspaceEntry) bool {
	shown := &v1.WorkspaceAppend{}
	switch content := entry.GetEntry().(type) {
	case *v1.WorkspaceEntry_Json:
		shown.Entry = &v1.WorkspaceAppend_Json{Json: content.Json}
	case *v1.WorkspaceEntry_Bytes:
		shown.Entry = &v1.WorkspaceAppend_Bytes{Bytes: content.Bytes}
	case *v1.WorkspaceEntry_Reference:
		shown.Entry = &v1.WorkspaceAppend_Reference{Reference: content.Reference}
	}
	content := &v1.WorkspaceAppend{Entry: signed.GetEntry(), SourceTime: signed.GetSourceTime()}
	shown.SourceTime = entry.GetSourceTime()
	return shown.Entry != nil && proto.Equal(shown, content)
}

func entryTooLarge(found int) error {
	text := fmt.Sprintf("the entry has %d bytes; the limit is %d", found, entryBytesMax)
	return &Error{Code: codes.InvalidArgument, Reason: "ENTRY_TOO_LARGE", Message: text}
}
