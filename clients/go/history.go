package baton

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The section schema of histories. Every broker knows it without a registration.
const (
	HistorySchemaID      = "baton.history"
	HistorySchemaVersion = "1"
)

// ErrHistory is the cause of an error of HistoryOf and HistorySection, and of the conversions of histories: a value is not of
// the shape baton.history, version 1, or has no form in the other shape.
var ErrHistory = errors.New("baton: no history")

// HistoryError is the error of a value that is no history, or that a conversion has no form for. ErrHistory is its cause.
type HistoryError struct {
	// Pointer is the JSON Pointer of the part that does not fit, in the value that was read.
	Pointer string
	// Problem says what is wrong with it.
	Problem string
}

// Error names the place and the problem.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("%v: %q %s", ErrHistory, e.Pointer, e.Problem)
}

// Unwrap returns ErrHistory.
func (e *HistoryError) Unwrap() error { return ErrHistory }

// HistoryEntry is an entry of a chat history in the shape baton.history, version 1. Filters of a history work on this shape
// and on no other, because a list of another shape may keep tool calls where a filter does not know them.
type HistoryEntry struct {
	Role string `json:"role"` // system, user, assistant or tool
	// Content is the text, and Parts its parts. One of them is set: an entry with parts has no text.
	Content string        `json:"-"`
	Parts   []HistoryPart `json:"-"`
	Name    string        `json:"name,omitempty"`
	// ToolCalls are the calls of an assistant.
	ToolCalls []HistoryCall `json:"tool_calls,omitempty"`
	// ToolCallID is the id of the call that a tool's entry is the result of.
	ToolCallID string `json:"tool_call_id,omitempty"`
	AgentID    string `json:"agent_id,omitempty"`
	Time       string `json:"time,omitempty"` // as in RFC 3339
}

// HistoryCall is a call of a tool. Its result has the same id.
type HistoryCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is the JSON of the arguments, as the model wrote it.
	Arguments string `json:"arguments"`
}

// HistoryPart is a part of a content. An image and a file have a URL, or bytes in base64.
type HistoryPart struct {
	Type      string // text, image, file or data
	Text      string
	URL       string
	Base64    string
	MediaType string
	Name      string
	Data      json.RawMessage // any JSON, of the type data
}

// HistorySection returns a section with a history, marked as one of baton.history. It fails with ErrHistory for entries that
// are not of the shape.
func HistorySection(name string, entries []HistoryEntry) (*v1.ContextSection, error) {
	if entries == nil {
		entries = []HistoryEntry{}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	if _, err := HistoryOf(string(text)); err != nil {
		return nil, err
	}
	content := &v1.ContextSection_Json{Json: string(text)}
	return &v1.ContextSection{Name: name, SchemaId: HistorySchemaID, SchemaVersion: HistorySchemaVersion, Content: content}, nil
}

// HistoryOf reads the JSON of a section as a history. It fails with ErrHistory, which names the first part that does not fit.
func HistoryOf(text string) ([]HistoryEntry, error) {
	value, err := parseJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	if _, err := checkHistory(value); err != nil {
		return nil, err
	}
	var entries []HistoryEntry
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	return entries, nil
}

// checkEntries fails with a HistoryError for entries that are not of the shape.
func checkEntries(entries []HistoryEntry) error {
	if entries == nil {
		entries = []HistoryEntry{}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return &HistoryError{"", fmt.Sprintf("cannot be written: %v", err)}
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return &HistoryError{"", fmt.Sprintf("cannot be read: %v", err)}
	}
	_, err = checkHistory(value)
	return err
}

// MarshalJSON writes the content as a text or as parts, and the id of the call of each result.
func (entry HistoryEntry) MarshalJSON() ([]byte, error) {
	type plain HistoryEntry
	written := struct {
		plain
		Content    any     `json:"content"`
		ToolCallID *string `json:"tool_call_id,omitempty"`
	}{plain: plain(entry), Content: entry.Content}
	if entry.Parts != nil {
		written.Content = entry.Parts
	}
	if entry.Role == "tool" || entry.ToolCallID != "" {
		written.ToolCallID = &entry.ToolCallID
	}
	return json.Marshal(written)
}

// UnmarshalJSON reads an entry whose shape is checked.
func (entry *HistoryEntry) UnmarshalJSON(text []byte) error {
	type plain HistoryEntry
	read := struct {
		*plain
		Content json.RawMessage `json:"content"`
	}{plain: (*plain)(entry)}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if strings.HasPrefix(string(read.Content), "[") {
		return json.Unmarshal(read.Content, &entry.Parts)
	}
	return json.Unmarshal(read.Content, &entry.Content)
}

// MarshalJSON writes the members that a part of the type has.
func (part HistoryPart) MarshalJSON() ([]byte, error) {
	members := map[string]any{"type": part.Type}
	switch part.Type {
	case "text":
		members["text"] = part.Text
	case "data":
		members["data"] = part.Data
	default:
		for name, value := range map[string]string{
			"url": part.URL, "data": part.Base64, "media_type": part.MediaType, "name": part.Name,
		} {
			if value != "" {
				members[name] = value
			}
		}
	}
	return json.Marshal(members)
}

// UnmarshalJSON reads a part whose shape is checked.
func (part *HistoryPart) UnmarshalJSON(text []byte) error {
	var members struct {
		Type, Text, URL, Name string
		MediaType             string `json:"media_type"`
		Data                  json.RawMessage
	}
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	*part = HistoryPart{
		Type: members.Type, Text: members.Text, URL: members.URL, MediaType: members.MediaType, Name: members.Name,
	}
	if members.Type == "data" {
		part.Data = members.Data
		return nil
	}
	if len(members.Data) > 0 {
		return json.Unmarshal(members.Data, &part.Base64)
	}
	return nil
}

// HistoryLatest returns the latest entries: as many as last, or more where the first one would be the result of a call before
// it.
func HistoryLatest(entries []HistoryEntry, last int) []HistoryEntry {
	calls := callsOfResults(len(entries), func(at int) (called []string, result string, isResult bool) {
		for _, call := range entries[at].ToolCalls {
			called = append(called, call.ID)
		}
		return called, entries[at].ToolCallID, entries[at].Role == "tool"
	})
	return entries[latestStart(calls, max(last, 0)):]
}

// HistoryWithoutToolCalls returns the entries without calls of tools and without their results. An entry that only calls
// tools is left out.
func HistoryWithoutToolCalls(entries []HistoryEntry) []HistoryEntry {
	kept := []HistoryEntry{}
	for _, entry := range entries {
		if entry.Role == "tool" || len(entry.ToolCalls) > 0 && entry.saysNothing() {
			continue
		}
		entry.ToolCalls = nil
		kept = append(kept, entry)
	}
	return kept
}

// HistorySettled returns the entries without calls that have no result yet, and without results of unknown calls: interfaces
// of models refuse such a history. A handoff leaves them, because the call of a handoff is open while it is made.
func HistorySettled(entries []HistoryEntry) []HistoryEntry {
	answered, known := map[string]bool{}, map[string]bool{}
	for _, entry := range entries {
		if entry.Role == "tool" {
			answered[entry.ToolCallID] = true
		}
	}
	kept := []HistoryEntry{}
	for _, entry := range entries {
		calls := slices.DeleteFunc(slices.Clone(entry.ToolCalls), func(call HistoryCall) bool { return !answered[call.ID] })
		for _, call := range calls {
			known[call.ID] = true
		}
		isLost := entry.Role == "tool" && !known[entry.ToolCallID]
		if isLost || len(entry.ToolCalls) > 0 && len(calls) == 0 && entry.saysNothing() {
			continue
		}
		if entry.ToolCalls = calls; len(calls) == 0 {
			entry.ToolCalls = nil
		}
		kept = append(kept, entry)
	}
	return kept
}

// saysNothing says whether the content is empty.
func (entry HistoryEntry) saysNothing() bool { return len(entry.Parts) == 0 && entry.Content == "" }

// latestOf returns the last entries, and more where the first one would be the result of a call before it.
func latestOf(entries []any, last uint32) []any {
	calls := callsOfResults(len(entries), func(at int) (called []string, result string, isResult bool) {
		members := entries[at].(map[string]any)
		calls, _ := members["tool_calls"].([]any)
		for _, call := range calls {
			called = append(called, call.(map[string]any)["id"].(string))
		}
		result, isResult = members["tool_call_id"].(string)
		return called, result, isResult
	})
	return entries[latestStart(calls, int(min(uint64(last), uint64(len(entries))))):]
}

// latestStart returns the index where the latest entries begin: as many as last, or more where the first one would be the
// result of a call before it.
func latestStart(calls []int, last int) int {
	start := max(len(calls)-last, 0)
	for at := len(calls) - 1; at >= start; at-- {
		start = min(start, calls[at])
	}
	return start
}

// callsOfResults returns for each entry the index of its call, or its own index. idsOf returns the ids of an entry's calls,
// and the id of the call whose result it is.
func callsOfResults(count int, idsOf func(at int) (called []string, result string, isResult bool)) []int {
	known := map[string]int{}
	found := make([]int, count)
	for index := range found {
		called, result, isResult := idsOf(index)
		for _, id := range called {
			known[id] = index
		}
		found[index] = index
		if call, isKnown := known[result]; isKnown && isResult {
			found[index] = call
		}
	}
	return found
}

// withoutToolCalls returns the entries without calls and results. An entry that only calls tools is left out.
func withoutToolCalls(entries []any) []any {
	kept := []any{}
	for _, entry := range entries {
		members := map[string]any{}
		for name, value := range entry.(map[string]any) {
			members[name] = value
		}
		calls, _ := members["tool_calls"].([]any)
		parts, isList := members["content"].([]any)
		saysNothing := members["content"] == "" || isList && len(parts) == 0
		if members["role"] == "tool" || len(calls) > 0 && saysNothing {
			continue
		}
		delete(members, "tool_calls")
		kept = append(kept, members)
	}
	return kept
}

// checkHistory returns the entries of a parsed value. It fails with ErrHistory.
func checkHistory(value any) ([]any, error) {
	entries, is := value.([]any)
	if !is {
		return nil, noHistory("", "must be a list")
	}
	return entries, each("", entries, checkEntry)
}

func checkEntry(at string, value any) error {
	entry, err := membersOf(at, value, "role", "content", "name", "tool_calls", "tool_call_id", "agent_id", "time")
	if err != nil {
		return err
	}
	if role, _ := entry["role"].(string); !slices.Contains([]string{"system", "user", "assistant", "tool"}, role) {
		return noHistory(at+"/role", "must be system, user, assistant or tool")
	}
	if err := textsOf(at, entry, "name", "agent_id", "time", "tool_call_id"); err != nil {
		return err
	}
	switch _, has := entry["tool_call_id"]; {
	case has && entry["role"] != "tool":
		return noHistory(at+"/tool_call_id", "is for the role tool")
	case !has && entry["role"] == "tool":
		return noHistory(at+"/tool_call_id", "is missing")
	}
	if calls, has := entry["tool_calls"]; has {
		if entry["role"] != "assistant" {
			return noHistory(at+"/tool_calls", "is for the role assistant")
		}
		if err := each(at+"/tool_calls", calls, checkCall); err != nil {
			return err
		}
	}
	switch content, has := entry["content"]; content.(type) {
	case string:
		return nil
	default:
		if !has {
			return noHistory(at+"/content", "is missing")
		}
		return each(at+"/content", content, checkPart)
	}
}

func checkCall(at string, value any) error {
	call, err := membersOf(at, value, "id", "name", "arguments")
	if err != nil {
		return err
	}
	for _, name := range []string{"id", "name", "arguments"} {
		if _, has := call[name]; !has {
			return noHistory(at+"/"+name, "is missing")
		}
	}
	return textsOf(at, call, "id", "name", "arguments")
}

func checkPart(at string, value any) error {
	part, is := value.(map[string]any)
	if !is {
		return noHistory(at, "must be an object")
	}
	switch kind := part["type"]; kind {
	case "text", "data":
		name := kind.(string)
		if _, err := membersOf(at, value, "type", name); err != nil {
			return err
		}
		if _, has := part[name]; !has {
			return noHistory(at+"/"+name, "is missing")
		}
		return textsOf(at, part, "text")
	case "image", "file":
		if _, err := membersOf(at, value, "type", "url", "data", "media_type", "name"); err != nil {
			return err
		}
		_, hasURL := part["url"]
		if _, hasData := part["data"]; hasURL == hasData {
			return noHistory(at, "must have either url or data")
		}
		return textsOf(at, part, "url", "data", "media_type", "name")
	}
	return noHistory(at+"/type", "must be text, image, file or data")
}

func each(at string, value any, check func(at string, value any) error) error {
	values, is := value.([]any)
	if !is {
		return noHistory(at, "must be a list")
	}
	for index, value := range values {
		if err := check(fmt.Sprintf("%s/%d", at, index), value); err != nil {
			return err
		}
	}
	return nil
}

func membersOf(at string, value any, known ...string) (map[string]any, error) {
	members, is := value.(map[string]any)
	if !is {
		return nil, noHistory(at, "must be an object")
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.Contains(known, name) {
			escaped := strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
			return nil, noHistory(at+"/"+escaped, "is no member of the shape")
		}
	}
	return members, nil
}

func textsOf(at string, members map[string]any, names ...string) error {
	for _, name := range names {
		value, has := members[name]
		if _, is := value.(string); has && !is {
			return noHistory(at+"/"+name, "must be a text")
		}
	}
	return nil
}

func noHistory(pointer, problem string) error {
	return &HistoryError{pointer, problem}
}
