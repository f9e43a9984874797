package baton

import (
	"encoding/json"
	"fmt"
)

const anyBytes = "application/octet-stream"

// shapeWriter keeps the first failure.
type shapeWriter struct{ failure *HistoryError }

type partWriter func(at string, part HistoryPart) map[string]any

func writeShape(history []HistoryEntry, convert func(write *shapeWriter, at string, entry HistoryEntry)) error {
	if err := checkEntries(history); err != nil {
		return err
	}
	write := &shapeWriter{}
	for index, entry := range history {
		convert(write, fmt.Sprintf("/%d", index), entry)
		if write.failure != nil {
			return write.failure
		}
	}
	return nil
}

func (write *shapeWriter) fail(pointer, problem string) {
	if write.failure == nil {
		write.failure = &HistoryError{pointer, problem}
	}
}

// content returns the content of an entry: the text, or the parts as part makes them.
func (write *shapeWriter) content(at string, entry HistoryEntry, onlyText bool, part partWriter) any {
	if entry.Parts == nil {
		return entry.Content
	}
	parts := []map[string]any{}
	for index, one := range entry.Parts {
		place := fmt.Sprintf("%s/content/%d", at, index)
		if onlyText && (one.Type == "image" || one.Type == "file") {
			write.fail(place, fmt.Sprintf("is of the type %s, which the interface does not take from %s", one.Type, entry.Role))
		}
		parts = append(parts, part(place, one))
	}
	return parts
}

func (write *shapeWriter) onlyText(at string, entry HistoryEntry) string {
	text := entry.Content
	write.content(at, entry, true, func(_ string, part HistoryPart) map[string]any {
		text += part.text()
		return nil
	})
	return text
}

func (write *shapeWriter) chatPart(at string, part HistoryPart) map[string]any {
	switch part.Type {
	case "image":
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": part.url()}}
	case "file":
		if part.URL != "" {
			write.fail(at+"/url", "is a file elsewhere, which Chat Completions does not take")
		}
		file := map[string]any{"file_data": part.url()}
		put(file, "filename", part.Name)
		return map[string]any{"type": "file", "file": file}
	}
	return map[string]any{"type": "text", "text": part.text()}
}

func responsesInput(_ string, part HistoryPart) map[string]any {
	switch part.Type {
	case "image":
		return map[string]any{"type": "input_image", "image_url": part.url(), "detail": "auto"}
	case "file":
		made := map[string]any{"type": "input_file"}
		put(made, "filename", part.Name)
		put(made, "file_url", part.URL)
		if part.URL == "" {
			made["file_data"] = part.url()
		}
		return made
	}
	return map[string]any{"type": "input_text", "text": part.text()}
}

func anthropicBlock(_ string, part HistoryPart) map[string]any {
	if part.Type != "image" && part.Type != "file" {
		return map[string]any{"type": "text", "text": part.text()}
	}
	source := map[string]any{"type": "url", "url": part.URL}
	if part.URL == "" {
		source = map[string]any{"type": "base64", "media_type": orElse(part.MediaType, anyBytes), "data": part.Base64}
	}
	if part.Type == "image" {
		return map[string]any{"type": "image", "source": source}
	}
	made := map[string]any{"type": "document", "source": source}
	put(made, "title", part.Name)
	return made
}

func geminiPartOf(_ string, part HistoryPart) map[string]any {
	held := map[string]any{"mimeType": orElse(part.MediaType, anyBytes)}
	switch part.Type {
	case "image":
		held["mimeType"] = orElse(part.MediaType, "image/png")
	case "file":
	default:
		return map[string]any{"text": part.text()}
	}
	put(held, "displayName", part.Name)
	if part.URL != "" {
		held["fileUri"] = part.URL
		return map[string]any{"fileData": held}
	}
	held["data"] = part.Base64
	return map[string]any{"inlineData": held}
}

func langChainPartOf(_ string, part HistoryPart) map[string]any {
	switch part.Type {
	case "image":
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": part.url()}}
	case "file":
		made := map[string]any{"type": "file"}
		for name, text := range map[string]string{
			"base64": part.Base64, "url": part.URL, "mime_type": part.MediaType, "filename": part.Name,
		} {
			put(made, name, text)
		}
		return made
	}
	return map[string]any{"type": "text", "text": part.text()}
}

// text returns the text of a part of the type text or data.
func (part HistoryPart) text() string {
	if part.Type == "text" {
		return part.Text
	}
	return (&shaped{raw: part.Data}).json()
}

// url returns the URL of an image or a file, which has its bytes in it where they are not elsewhere.
func (part HistoryPart) url() string {
	if part.URL != "" {
		return part.URL
	}
	return fmt.Sprintf("data:%s;base64,%s", orElse(part.MediaType, anyBytes), part.Base64)
}

// argumentsOf returns the arguments of a call. A model may write what is no object; its text stays.
func argumentsOf(call HistoryCall) map[string]any {
	if read, isObject := parsedObject(call.Arguments); isObject {
		return read
	}
	return map[string]any{"arguments": call.Arguments}
}

func parsedObject(text string) (map[string]any, bool) {
	if !json.Valid([]byte(text)) || text == "" {
		return nil, false
	}
	object, err := JSONObject(text)
	return object, err == nil && object != nil
}

func put(members map[string]any, name, text string) {
	if text != "" {
		members[name] = text
	}
}

// orNone returns the messages if there is no error.
func orNone(messages []map[string]any, err error) ([]map[string]any, error) {
	if err != nil {
		return nil, err
	}
	return messages, nil
}
