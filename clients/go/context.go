package baton

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	versionsPerPage = 200
	// The number of versions among which a section that a context does not have is looked for.
	versionsLookedAt = 50
)

// Want returns a wish for a whole section, for HandoffAccept.wishes.
func Want(name string) *v1.SectionWish { return &v1.SectionWish{Name: name} }

// WantChanges returns a wish for a section as a change to the one that this agent has, for HandoffAccept.wishes. The owner
// sends it whole where that is less, or where it does not have this version.
func WantChanges(have *v1.ContextSection) *v1.SectionWish {
	return &v1.SectionWish{Name: have.GetName(), HaveSha256: SectionDigest(have)}
}

// WantLast returns a wish for the latest entries of a history, for HandoffAccept.wishes. The owner's
// client filters, and sends the section whole if the filter does not fit.
func WantLast(name string, entries uint32) *v1.SectionWish {
	filter := &v1.ContextFilter{History: v1.HistoryFilter_HISTORY_FILTER_LAST, Last: entries}
	return &v1.SectionWish{Name: name, Filter: filter}
}

// namesOf returns the names of the sections that a candidate wants; none for all.
func namesOf(accept *v1.HandoffAccept) []string {
	names := slices.Clone(accept.GetWantedSections())
	for _, wish := range accept.GetWishes() {
		names = append(names, wish.GetName())
	}
	return names
}

// ContextVersion returns one version of a task's context, without the contents of its sections; 0: the latest one. It
// fails with an Error: CONTEXT_VERSION_UNKNOWN, TASK_UNKNOWN or PERMISSION_DENIED.
func (a *Agent) ContextVersion(ctx context.Context, taskID string, version uint64) (*v1.ContextVersion, error) {
	request := &v1.GetContextRequest{TaskId: taskID, Version: version}
	answer, err := call(ctx, a, a.contexts.GetContext, request)
	return answer.GetVersion(), err
}

// ContextVersions iterates over the versions of a task's context that this agent may read, newest first. It reads page by
// page, and ends with an error if a page cannot be read.
func (a *Agent) ContextVersions(ctx context.Context, taskID string) iter.Seq2[*v1.ContextVersion, error] {
	return pages(func(token string) ([]*v1.ContextVersion, string, error) {
		request := &v1.ListContextVersionsRequest{TaskId: taskID, PageSize: versionsPerPage, PageToken: token}
		page, err := call(ctx, a, a.contexts.ListContextVersions, request)
		return page.GetVersions(), page.GetNextPageToken(), err
	})
}

// GetContextSection returns one section as the request asks for it: whole, as a change to the version that the caller
// has, or a part of it. A whole content has the digest that the answer names, or GetContextSection fails with a
// VerificationError, CONTEXT_DIGEST_MISMATCH. It fails with an Error, FIELD_INVALID, for a filter that does not fit.
func (a *Agent) GetContextSection(
	ctx context.Context, request *v1.GetContextSectionRequest,
) (*v1.GetContextSectionResponse, error) {
	answer, err := call(ctx, a, a.contexts.GetContextSection, request)
	if err != nil || answer.GetDerived() {
		return answer, err
	}
	section := sectionOf(answer)
	if section.GetContent() != nil && !bytes.Equal(SectionDigest(section), answer.GetSection().GetSha256()) {
		return nil, wrongSection(request.GetName())
	}
	return answer, nil
}

// Checkpoint stores a context of the task at the broker, without a handoff: the agent that owns the task next can go on
// with it, also if this one is gone. A JSON section of which this process has sent or received an earlier version goes as
// a delta where that is less. Checkpoint fails with an Error: STALE_EPOCH after the task has moved on, TASK_FINAL after it
// has ended.
func (t *OwnedTask) Checkpoint(ctx context.Context, sections ...*v1.ContextSection) (*v1.Receipt, error) {
	known := &t.agent.known
	short, whole := withDeltas(sections, func(name string) string { return known.get(t.TaskID, name) })
	receipt, err := t.checkpoint(ctx, short)
	if isBaseUnknown(err) {
		// The broker has another version than this process. The whole sections need no base.
		known.forget(t.TaskID)
		receipt, err = t.checkpoint(ctx, whole)
	}
	if err == nil {
		known.note(t.TaskID, whole)
	}
	return receipt, err
}

func (t *OwnedTask) checkpoint(ctx context.Context, sections []*v1.ContextSection) (*v1.Receipt, error) {
	checkpoint := &v1.TaskContextTransfer{Sections: sections, ContextDigest: ContextDigest(sections)}
	envelope, err := t.agent.newEnvelope(ctx, "", About{TaskID: t.TaskID, Epoch: t.present()}, checkpoint)
	if err != nil {
		return nil, err
	}
	envelope.MessageType = v1.MessageType_MESSAGE_TYPE_CONTEXT_CHECKPOINT
	return t.agent.signAndSend(ctx, envelope)
}

// Fetch returns a section with its content. It fetches from the broker what the message does not have: the whole of a
// section that came as a change, compared with the digest that the sender has signed, and a section that the sender did
// not send from the latest version that has it, whose digest is the broker's word. It returns nil if no version that this
// agent may read has it, and fails with a VerificationError, CONTEXT_DIGEST_MISMATCH, for another content.
func (t *Takeover) Fetch(ctx context.Context, name string) (*v1.ContextSection, error) {
	sent := t.Section(name)
	if sent != nil && sent.GetDelta() == nil {
		return sent, nil
	}
	a, looked := t.offer.agent, 0
	if section := t.applied(sent.GetDelta(), name); section != nil {
		return withContent(sent, section), nil
	}
	for version, err := range a.ContextVersions(ctx, t.TaskID) {
		if err != nil {
			return nil, err
		}
		if looked++; looked > versionsLookedAt {
			break
		}
		for _, info := range version.GetSections() {
			isIt := sent == nil || bytes.Equal(info.GetSha256(), SectionDigest(sent))
			if info.GetName() != name || version.GetDigestsOnly() || !isIt {
				continue
			}
			request := &v1.GetContextSectionRequest{TaskId: t.TaskID, Name: name, Version: version.GetVersion()}
			answer, err := a.GetContextSection(ctx, request)
			if err != nil {
				return nil, err
			}
			if fetched := sectionOf(answer); bytes.Equal(SectionDigest(fetched), info.GetSha256()) {
				a.known.note(t.TaskID, []*v1.ContextSection{fetched})
				return fetched, nil
			}
			return nil, wrongSection(name)
		}
	}
	if sent != nil {
		return nil, wrongSection(name)
	}
	return nil, nil
}

// applied returns the content that a delta gives if this process has its base; otherwise nil.
func (t *Takeover) applied(delta *v1.ContextDelta, name string) *v1.ContextSection {
	known := &t.offer.agent.known
	text, err := ApplyDelta(known.find(t.TaskID, name, delta.GetBaseSha256()), delta.GetMergePatch())
	section := &v1.ContextSection{Name: name, Content: &v1.ContextSection_Json{Json: text}}
	if err != nil || !bytes.Equal(SectionDigest(section), delta.GetResultSha256()) {
		return nil
	}
	known.note(t.TaskID, []*v1.ContextSection{section})
	return section
}

// isBaseUnknown reports whether the broker does not have the base of a delta, or another one.
func isBaseUnknown(err error) bool {
	var refused *Error
	return errors.As(err, &refused) &&
		(refused.Reason == "CONTEXT_BASE_UNKNOWN" || refused.Reason == "CONTEXT_DELTA_INVALID")
}

// sectionOf returns a section with the content of an answer. It has no content if the answer has none of its own.
func sectionOf(answer *v1.GetContextSectionResponse) *v1.ContextSection {
	info := answer.GetSection()
	section := &v1.ContextSection{
		Name: info.GetName(), SchemaId: info.GetSchemaId(), SchemaVersion: info.GetSchemaVersion(),
		Secret: info.GetSecret(), Summary: info.GetSummary(),
	}
	switch content := answer.GetContent().(type) {
	case *v1.GetContextSectionResponse_Json:
		section.Content = &v1.ContextSection_Json{Json: content.Json}
	case *v1.GetContextSectionResponse_Bytes:
		section.Content = &v1.ContextSection_Bytes{Bytes: content.Bytes}
	case *v1.GetContextSectionResponse_Reference:
		section.Content = &v1.ContextSection_Reference{Reference: content.Reference}
	}
	return section
}

func wrongSection(name string) error {
	text := fmt.Sprintf("section %s does not have the digest that was signed", name)
	return &VerificationError{"CONTEXT_DIGEST_MISMATCH", text}
}
