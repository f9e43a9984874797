package baton

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

var (
	dataURL   = regexp.MustCompile(`(?s)^data:([^;,]*)(?:;[^,]*)?;base64,(.*)$`)
	reasoning = []string{"thinking", "redacted_thinking", "reasoning", "reasoning_content"}
	// Calls that a message of LangChain has a second time in its content.
	repeated = []string{"tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta"}
)

// shapeReader collects the entries of the messages. It keeps the first failure; what is read after it does not count.
type shapeReader struct {
	messages []*shaped
	system   *shaped
	history  []HistoryEntry
	failure  *HistoryError
	// The calls of Gemini without a result, the earliest first, and the number of all calls.
	open  []HistoryCall
	count int
}

// shaped is a value of the messages. raw is nil if there is no such value.
type shaped struct {
	read    *shapeReader
	at      string
	raw     json.RawMessage
	members map[string]json.RawMessage
}

type partReader func(part *shaped) []HistoryPart

func readShape(messages, system any, convert func(*shapeReader)) ([]HistoryEntry, error) {
	read := &shapeReader{history: []HistoryEntry{}}
	text, err := shapeJSON(messages)
	if err != nil {
		return nil, &HistoryError{"", fmt.Sprintf("cannot be read: %v", err)}
	}
	list := &shaped{read: read, raw: text}
	if !list.has() {
		list.fail("must be a list")
	}
	read.messages = list.list()
	if prompt, isText := system.(string); isText {
		system = json.RawMessage(jsonOf(prompt))
	}
	if text, err = shapeJSON(system); err != nil {
		return nil, &HistoryError{"/system", fmt.Sprintf("cannot be read: %v", err)}
	}
	read.system = &shaped{read: read, at: "/system", raw: text}
	convert(read)
	if read.failure != nil {
		return nil, read.failure
	}
	return read.history, nil
}

func (m *shaped) fail(problem string) { m.read.fail(m.at, problem) }

func (read *shapeReader) fail(pointer, problem string) {
	if read.failure == nil {
		read.failure = &HistoryError{pointer, problem}
	}
}

func (m *shaped) unknown(name string) {
	kind := m.get(name)
	written := "without a " + name
	if kind.has() {
		written = string(kind.raw)
	}
	kind.fail(fmt.Sprintf("is %s, which baton.history has no form for", written))
}

func (m *shaped) has() bool { return m.raw != nil && string(m.raw) != "null" }

func (m *shaped) isObject() bool { return bytes.HasPrefix(m.raw, []byte("{")) }

func (m *shaped) isText() bool { return bytes.HasPrefix(m.raw, []byte(`"`)) }

// get returns a member, which is empty if there is none.
func (m *shaped) get(name string) *shaped {
	if m.members == nil && m.isObject() {
		_ = json.Unmarshal(m.raw, &m.members) // It is valid JSON.
	}
	return &shaped{read: m.read, at: m.at + "/" + name, raw: m.members[name]}
}

// either returns a member by its name in JSON, or by its name in Python.
func (m *shaped) either(name string) *shaped {
	if found := m.get(name); found.has() {
		return found
	}
	return m.get(camel.ReplaceAllStringFunc(name, func(letter string) string { return "_" + strings.ToLower(letter) }))
}

var camel = regexp.MustCompile(`[A-Z]`)

func (m *shaped) list() []*shaped {
	if !m.has() {
		return nil
	}
	var items []json.RawMessage
	if json.Unmarshal(m.raw, &items) != nil {
		m.fail("must be a list")
	}
	list := make([]*shaped, len(items))
	for index, item := range items {
		list[index] = &shaped{read: m.read, at: fmt.Sprintf("%s/%d", m.at, index), raw: item}
	}
	return list
}

// text returns a text that must be there.
func (m *shaped) text() string {
	if !m.has() {
		m.fail("is missing")
	}
	return m.optional()
}

// optional returns a text, "" without one.
func (m *shaped) optional() string {
	text := ""
	if m.has() && json.Unmarshal(m.raw, &text) != nil {
		m.fail("must be a text")
	}
	return text
}

// kind returns the member "type", "" if it is no text.
func (m *shaped) kind() string {
	text := ""
	_ = json.Unmarshal(m.get("type").raw, &text)
	return text
}

// json returns the text of the value without space, "" without one. Names and numbers stay as they are.
func (m *shaped) json() string {
	if !m.has() {
		return ""
	}
	var text bytes.Buffer
	_ = json.Compact(&text, m.raw) // It is valid JSON.
	return text.String()
}

func (m *shaped) checkObject() bool {
	if !m.isObject() {
		m.fail("must be an object")
	}
	return m.isObject()
}

// checkMembers refuses a message of another shape, whose calls or texts would be overlooked.
func (m *shaped) checkMembers(needed string) bool {
	if !m.checkObject() {
		return false
	}
	found, calls := m.get(needed), m.get("tool_calls")
	switch {
	case found.raw == nil:
		found.fail("is missing")
	case calls.has() && string(calls.raw) != "[]":
		calls.fail("is of another shape")
	default:
		return true
	}
	return false
}

var (
	chatRoles = map[string]string{
		"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
	}
	spokenRoles    = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
	anthropicRoles = map[string]string{"system": "system", "user": "user", "assistant": "assistant"}
	langChainRoles = map[string]string{
		"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant", "ai": "assistant",
		"tool": "tool",
	}
)

// role returns the role of a message in a history, by its name in the shape.
func (m *shaped) role(roles map[string]string) string {
	found := m.get("role")
	role, isKnown := roles[found.optional()]
	if !isKnown {
		m.unknown("role")
	}
	return role
}

// call returns a call. A call without arguments has an empty object.
func callOf(id, name *shaped, arguments string) HistoryCall {
	return HistoryCall{ID: id.text(), Name: name.text(), Arguments: orElse(arguments, "{}")}
}

// partsOf returns the parts of a content: of a text, of parts, or none.
func partsOf(content *shaped, read partReader) []HistoryPart {
	switch {
	case !content.has():
		return nil
	case content.isText():
		return []HistoryPart{textPart(content)}
	case !bytes.HasPrefix(content.raw, []byte("[")):
		content.fail("must be a text or a list")
		return nil
	}
	parts := []HistoryPart{}
	for _, part := range content.list() {
		if part.isText() {
			parts = append(parts, textPart(part))
			continue
		}
		if part.checkObject() {
			parts = append(parts, read(part)...)
		}
	}
	return parts
}

// add adds an entry with its parts: their text if there is one text alone. callsAt is the place of its calls.
func (read *shapeReader) add(entry HistoryEntry, parts []HistoryPart, callsAt *shaped) {
	switch {
	case len(parts) == 1 && parts[0].Type == "text":
		entry.Content = parts[0].Text
	case len(parts) > 0:
		entry.Parts = parts
	}
	if len(entry.ToolCalls) > 0 && entry.Role != "assistant" {
		callsAt.fail("has calls, which are for the role assistant")
	}
	read.history = append(read.history, entry)
}

func (read *shapeReader) addResult(callID string, parts []HistoryPart) {
	read.add(HistoryEntry{Role: "tool", ToolCallID: callID}, parts, nil)
}

// addCall adds a call to the assistant's entry that is the last one.
func (read *shapeReader) addCall(call HistoryCall) {
	if len(read.history) == 0 || read.history[len(read.history)-1].Role != "assistant" {
		read.history = append(read.history, HistoryEntry{Role: "assistant"})
	}
	last := &read.history[len(read.history)-1]
	last.ToolCalls = append(last.ToolCalls, call)
}

func (read *shapeReader) systemPrompt(system *shaped, part partReader) {
	if parts := partsOf(system, part); len(parts) > 0 && string(system.raw) != `""` {
		read.add(HistoryEntry{Role: "system"}, parts, nil)
	}
}

func (read *shapeReader) chatMessage(message *shaped, role string) {
	entry := HistoryEntry{Role: role}
	if function := message.get("function_call"); function.has() {
		function.fail("has no id: use tool_calls")
	}
	if role == "tool" {
		entry.ToolCallID = message.get("tool_call_id").text()
	} else {
		entry.Name = message.get("name").optional()
	}
	for _, call := range message.get("tool_calls").list() {
		id, function, custom := call.get("id"), call.get("function"), call.get("custom")
		if function.has() {
			entry.ToolCalls = append(entry.ToolCalls, callOf(id, function.get("name"), function.get("arguments").optional()))
		} else {
			entry.ToolCalls = append(entry.ToolCalls, callOf(id, custom.get("name"), custom.get("input").json()))
		}
	}
	content := message.get("content")
	if !content.has() {
		content = message.get("refusal")
	}
	read.add(entry, partsOf(content, read.chatPart), message.get("tool_calls"))
}

func (read *shapeReader) chatPart(part *shaped) []HistoryPart {
	switch part.kind() {
	case "text":
		return []HistoryPart{textPart(part.get("text"))}
	case "refusal":
		return []HistoryPart{textPart(part.get("refusal"))}
	case "image_url":
		url := part.get("image_url")
		if !url.isText() {
			url = url.get("url")
		}
		return []HistoryPart{mediaPart("image", url, "")}
	case "file":
		if file := part.get("file"); file.get("file_data").has() {
			return []HistoryPart{mediaPart("file", file.get("file_data"), file.get("filename").optional())}
		}
	case "input_audio":
		audio := part.get("input_audio")
		made := HistoryPart{Type: "file", MediaType: "audio/" + audio.get("format").text()}
		made.Base64 = audio.get("data").filled()
		return []HistoryPart{made}
	}
	part.unknown("type")
	return nil
}

func (read *shapeReader) responsesItem(item *shaped) {
	kind := item.get("type")
	needed := "type"
	if !kind.has() || item.kind() == "message" {
		needed = "content"
	}
	if !item.checkMembers(needed) {
		return
	}
	switch name := orElse(kind.optional(), "message"); name {
	case "message":
		read.add(HistoryEntry{Role: item.role(spokenRoles)}, partsOf(item.get("content"), read.responsesPart), nil)
	case "function_call":
		read.addCall(callOf(item.get("call_id"), item.get("name"), item.get("arguments").optional()))
	case "custom_tool_call":
		read.addCall(callOf(item.get("call_id"), item.get("name"), item.get("input").json()))
	case "function_call_output", "custom_tool_call_output":
		read.addResult(item.get("call_id").text(), partsOf(item.get("output"), read.responsesPart))
	case "reasoning", "item_reference", "compaction":
	default:
		if !strings.HasSuffix(name, "_call") && !strings.HasSuffix(name, "_call_output") && !strings.HasPrefix(name, "mcp_") {
			item.unknown("type")
		}
	}
}

func (read *shapeReader) responsesPart(part *shaped) []HistoryPart {
	switch part.kind() {
	case "input_text", "output_text", "text":
		return []HistoryPart{textPart(part.get("text"))}
	case "refusal":
		return []HistoryPart{textPart(part.get("refusal"))}
	case "input_image":
		if url := part.get("image_url"); url.has() {
			return []HistoryPart{mediaPart("image", url, "")}
		}
	case "input_file":
		for _, name := range []string{"file_data", "file_url"} {
			if url := part.get(name); url.has() {
				return []HistoryPart{mediaPart("file", url, part.get("filename").optional())}
			}
		}
	}
	part.unknown("type")
	return nil
}

func (read *shapeReader) anthropicMessage(message *shaped) {
	entry, content := HistoryEntry{Role: message.role(anthropicRoles)}, message.get("content")
	if content.isText() {
		read.add(entry, partsOf(content, nil), nil)
		return
	}
	parts := []HistoryPart{}
	blocks := content.list()
	for _, block := range blocks {
		switch kind := block.kind(); {
		case kind == "tool_use":
			entry.ToolCalls = append(entry.ToolCalls, callOf(block.get("id"), block.get("name"), block.get("input").json()))
		case kind == "tool_result":
			read.addResult(block.get("tool_use_id").text(), partsOf(block.get("content"), read.anthropicPart))
		case kind == "server_tool_use", slices.Contains(reasoning, kind), strings.HasSuffix(kind, "_tool_result"):
		default:
			if block.checkObject() {
				parts = append(parts, read.anthropicPart(block)...)
			}
		}
	}
	if len(parts) > 0 || len(entry.ToolCalls) > 0 || len(blocks) == 0 {
		read.add(entry, parts, message)
	}
}

func (read *shapeReader) anthropicPart(block *shaped) []HistoryPart {
	made, source := HistoryPart{Type: "image"}, block.get("source")
	switch block.kind() {
	case "text":
		return []HistoryPart{textPart(block.get("text"))}
	case "document", "file":
		made.Type = "file"
	case "image":
	default:
		block.unknown("type")
		return nil
	}
	made.Name = block.get("title").optional()
	switch kind := source.kind(); {
	case kind == "base64":
		made.Base64, made.MediaType = source.get("data").filled(), source.get("media_type").text()
	case kind == "url":
		made.URL = source.get("url").filled()
	case kind == "text" && made.Type == "file":
		return []HistoryPart{textPart(source.get("data"))}
	default:
		block.unknown("type")
	}
	return []HistoryPart{made}
}

func (read *shapeReader) geminiContent(content *shaped) {
	entry, parts := HistoryEntry{Role: "user"}, []HistoryPart{}
	if content.get("role").optional() == "model" {
		entry.Role = "assistant"
	}
	found := content.get("parts").list()
	for _, part := range found {
		call, response := part.either("functionCall"), part.either("functionResponse")
		switch {
		case call.has():
			read.count++
			made := HistoryCall{ID: call.get("id").optional(), Name: call.get("name").text()}
			made.ID, made.Arguments = orElse(made.ID, fmt.Sprintf("call_%d", read.count)), orElse(call.get("args").json(), "{}")
			read.open = append(read.open, made)
			entry.ToolCalls = append(entry.ToolCalls, made)
		case response.has():
			id, name := response.get("id").optional(), response.get("name").optional()
			at := slices.IndexFunc(read.open, func(call HistoryCall) bool { return call.ID == id })
			if at < 0 {
				at = slices.IndexFunc(read.open, func(call HistoryCall) bool { return call.Name == name })
			}
			if at < 0 {
				part.fail("is the result of no call")
				continue
			}
			text := HistoryPart{Type: "text", Text: responseText(response.get("response"))}
			if extra := response.get("parts"); extra.has() && string(extra.raw) != "[]" {
				extra.fail("are what baton.history has no form for in a result")
			}
			read.addResult(read.open[at].ID, []HistoryPart{text})
			read.open = slices.Delete(read.open, at, at+1)
		case part.isText():
			parts = append(parts, textPart(part))
		case part.checkObject():
			parts = append(parts, read.geminiPart(part)...)
		}
	}
	if len(parts) > 0 || len(entry.ToolCalls) > 0 || len(found) == 0 {
		read.add(entry, parts, content)
	}
}

func (read *shapeReader) geminiPart(part *shaped) []HistoryPart {
	if string(part.get("thought").raw) == "true" || part.either("executableCode").has() || part.either("codeExecutionResult").has() {
		return nil
	}
	if text := part.get("text"); text.has() {
		return []HistoryPart{textPart(text)}
	}
	held := part.either("inlineData")
	if !held.has() {
		held = part.either("fileData")
	}
	if !held.has() {
		part.fail("is no part that baton.history has a form for")
		return nil
	}
	made := HistoryPart{Type: "file", Name: held.either("displayName").optional(), MediaType: held.either("mimeType").optional()}
	if strings.HasPrefix(made.MediaType, "image/") {
		made.Type = "image"
	}
	if made.Base64 = held.get("data").optional(); made.Base64 == "" {
		made.URL = held.either("fileUri").filled()
	}
	return []HistoryPart{made}
}

func (read *shapeReader) langChainMessage(message *shaped) {
	data := message.get("data")
	switch {
	case message.isText():
		read.add(HistoryEntry{Role: "user"}, partsOf(message, nil), nil)
		return
	case bytes.HasPrefix(message.raw, []byte("[")):
		pair := message.list()
		if len(pair) != 2 {
			message.fail("must be a role and a content")
			return
		}
		role, isKnown := langChainRoles[pair[0].text()]
		if !isKnown || role == "tool" {
			pair[0].fail(fmt.Sprintf("is %s, which baton.history has no form for", pair[0].raw))
		}
		read.add(HistoryEntry{Role: role}, partsOf(pair[1], read.langChainPart), nil)
		return
	case !message.checkObject():
		return
	case !data.has():
		if !message.get("role").has() {
			message.members["role"] = message.get("type").raw
		}
		read.chatMessage(message, message.role(langChainRoles))
		return
	case !data.checkObject():
		return
	}
	data.at = message.at // A message's object does not have "data", so places do not name it.
	content := data.get("content")
	entry := HistoryEntry{Name: data.get("name").optional()}
	switch strings.ToLower(strings.TrimSuffix(message.kind(), "MessageChunk")) {
	case "tool":
		read.addResult(data.get("tool_call_id").text(), partsOf(content, read.langChainPart))
		return
	case "human":
		entry.Role = "user"
	case "ai":
		entry.Role = "assistant"
	case "system", "developer":
		entry.Role = "system"
	default:
		message.unknown("type")
	}
	for _, call := range data.get("tool_calls").list() {
		entry.ToolCalls = append(entry.ToolCalls, callOf(call.get("id"), call.get("name"), call.get("args").json()))
	}
	for _, call := range data.get("invalid_tool_calls").list() {
		entry.ToolCalls = append(entry.ToolCalls, callOf(call.get("id"), call.get("name"), call.get("args").optional()))
	}
	read.add(entry, partsOf(content, read.langChainPart), data.get("tool_calls"))
}

func (read *shapeReader) langChainPart(part *shaped) []HistoryPart {
	kind := part.kind()
	switch {
	case slices.Contains([]string{"text", "image_url", "refusal", "input_audio"}, kind):
		return read.chatPart(part)
	case kind == "input_text", kind == "output_text":
		return []HistoryPart{textPart(part.get("text"))}
	case slices.Contains(reasoning, kind), slices.Contains(repeated, kind):
		return nil
	case slices.Contains([]string{"image", "file", "audio", "video"}, kind):
		if part.get("source").has() {
			return read.anthropicPart(part)
		}
		made := HistoryPart{Type: "file", MediaType: part.get("mime_type").optional(), Base64: part.get("base64").optional()}
		if kind == "image" {
			made.Type = kind
		}
		if made.Base64 == "" && part.get("source_type").optional() == "base64" {
			made.Base64 = part.get("data").optional()
		}
		if made.Base64 == "" {
			made.URL = part.get("url").optional()
		}
		made.Name = orElse(part.get("filename").optional(), part.get("name").optional())
		if made.Base64 != "" || made.URL != "" {
			return []HistoryPart{made}
		}
	}
	part.unknown("type")
	return nil
}

func textPart(text *shaped) HistoryPart { return HistoryPart{Type: "text", Text: text.text()} }

// filled returns a text that must not be empty.
func (m *shaped) filled() string {
	text := m.text()
	if text == "" {
		m.fail("is empty")
	}
	return text
}

// mediaPart returns an image or a file by its URL, whose bytes may be in it.
func mediaPart(kind string, url *shaped, name string) HistoryPart {
	made := HistoryPart{Type: kind, URL: url.filled(), Name: name}
	if found := dataURL.FindStringSubmatch(made.URL); found != nil && found[2] != "" {
		made.URL, made.MediaType, made.Base64 = "", found[1], found[2]
	}
	return made
}

// responseText returns the text of a result of Gemini. A text alone is under the name "result" or "output".
func responseText(response *shaped) string {
	for _, name := range []string{"result", "output"} {
		if text := response.get(name); text.isText() && len(response.members) == 1 {
			return text.text()
		}
	}
	return orElse(response.json(), "{}")
}

// shapeJSON returns the JSON of messages, nil of none. The values of SDKs keep the text that they were read from.
func shapeJSON(value any) (json.RawMessage, error) {
	switch given := value.(type) {
	case nil:
		return nil, nil
	case []byte:
		return checkedJSON(given)
	case json.RawMessage:
		return checkedJSON(given)
	case string:
		return checkedJSON([]byte(given))
	case interface{ RawJSON() string }:
		if text := given.RawJSON(); text != "" {
			return checkedJSON([]byte(text))
		}
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice && list.Type().Elem().Kind() != reflect.Uint8 {
		texts := make([][]byte, list.Len())
		for index := range texts {
			item := list.Index(index).Interface()
			if text, isText := item.(string); isText {
				item = json.RawMessage(jsonOf(text))
			}
			text, err := shapeJSON(item)
			if err != nil {
				return nil, err
			}
			texts[index] = text
			if text == nil {
				texts[index] = []byte("null")
			}
		}
		return slices.Concat([]byte("["), bytes.Join(texts, []byte(",")), []byte("]")), nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSpace(text.Bytes()), err
}

func checkedJSON(text []byte) (json.RawMessage, error) {
	if !json.Valid(text) {
		return nil, errors.New("it is no JSON")
	}
	return bytes.TrimSpace(text), nil
}

// jsonOf returns the JSON of a text or of a parsed value.
func jsonOf(value any) string {
	text, _ := json.Marshal(value) // It has nothing that JSON cannot have.
	return string(text)
}
