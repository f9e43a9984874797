package baton

import "strings"

// FromOpenAIChat converts messages of OpenAI Chat Completions: a slice of an SDK's values, their JSON as []byte,
// json.RawMessage or string, or the same as parsed JSON. The client itself needs no SDK. It fails with a HistoryError, which has
// the place of what baton.history has no form for.
func FromOpenAIChat(messages any) ([]HistoryEntry, error) {
	return readShape(messages, nil, func(read *shapeReader) {
		for _, message := range read.messages {
			if message.checkObject() {
				read.chatMessage(message, message.role(chatRoles))
			}
		}
	})
}

// ToOpenAIChat converts a history to messages of OpenAI Chat Completions. It fails with a HistoryError for a part that the
// interface does not take in that place.
func ToOpenAIChat(history []HistoryEntry) ([]map[string]any, error) {
	messages := []map[string]any{}
	err := writeShape(history, func(write *shapeWriter, at string, entry HistoryEntry) {
		content := write.content(at, entry, entry.Role != "user", write.chatPart)
		message := map[string]any{"role": entry.Role, "content": content}
		if entry.Role == "tool" {
			message["tool_call_id"] = entry.ToolCallID
		} else {
			put(message, "name", entry.Name)
		}
		if len(entry.ToolCalls) > 0 {
			if entry.saysNothing() {
				message["content"] = nil
			}
			calls := []map[string]any{}
			for _, call := range entry.ToolCalls {
				function := map[string]any{"name": call.Name, "arguments": call.Arguments}
				calls = append(calls, map[string]any{"id": call.ID, "type": "function", "function": function})
			}
			message["tool_calls"] = calls
		}
		messages = append(messages, message)
	})
	return orNone(messages, err)
}

// FromOpenAIResponses converts items of OpenAI Responses: an input, or the Output of responses, given as for FromOpenAIChat. It
// drops reasoning, and the calls of tools that the provider runs. It fails with a HistoryError, which has the place of what
// baton.history has no form for.
func FromOpenAIResponses(items any) ([]HistoryEntry, error) {
	return readShape(items, nil, func(read *shapeReader) {
		for _, item := range read.messages {
			if item.checkObject() {
				read.responsesItem(item)
			}
		}
	})
}

// ToOpenAIResponses converts a history to items of OpenAI Responses. It fails with a HistoryError for a part that the
// interface does not take in that place.
func ToOpenAIResponses(history []HistoryEntry) ([]map[string]any, error) {
	items := []map[string]any{}
	err := writeShape(history, func(write *shapeWriter, at string, entry HistoryEntry) {
		if entry.Role == "tool" {
			output := write.content(at, entry, false, responsesInput)
			items = append(items, map[string]any{"type": "function_call_output", "call_id": entry.ToolCallID, "output": output})
			return
		}
		part := responsesInput
		if entry.Role == "assistant" {
			part = func(_ string, part HistoryPart) map[string]any {
				return map[string]any{"type": "output_text", "text": part.text()}
			}
		}
		content := write.content(at, entry, entry.Role == "assistant", part)
		if !entry.saysNothing() || len(entry.ToolCalls) == 0 {
			items = append(items, map[string]any{"role": entry.Role, "content": content})
		}
		for _, call := range entry.ToolCalls {
			items = append(items, map[string]any{
				"type": "function_call", "call_id": call.ID, "name": call.Name, "arguments": call.Arguments,
			})
		}
	})
	return orNone(items, err)
}

// FromAnthropic converts messages of Anthropic, given as for FromOpenAIChat, and the system prompt, which is beside them: a text,
// blocks, or nil. It drops thinking, and the calls of tools that the provider runs. It fails with a HistoryError, which has the
// place of what baton.history has no form for.
func FromAnthropic(messages, system any) ([]HistoryEntry, error) {
	return readShape(messages, system, func(read *shapeReader) {
		read.systemPrompt(read.system, read.anthropicPart)
		for _, message := range read.messages {
			if message.checkMembers("content") {
				read.anthropicMessage(message)
			}
		}
	})
}

// ToAnthropic converts a history to the system prompt, "" without one, and the messages of Anthropic. It fails with a
// HistoryError for a part that the interface does not take in that place.
func ToAnthropic(history []HistoryEntry) (system string, messages []map[string]any, err error) {
	var prompts []string
	var results *[]map[string]any
	messages = []map[string]any{}
	err = writeShape(history, func(write *shapeWriter, at string, entry HistoryEntry) {
		if entry.Role == "system" {
			prompts = append(prompts, write.onlyText(at, entry))
			return
		}
		content := write.content(at, entry, entry.Role == "assistant", anthropicBlock)
		if entry.Role == "tool" {
			if results == nil {
				results = &[]map[string]any{}
				messages = append(messages, map[string]any{"role": "user"})
			}
			*results = append(*results, map[string]any{
				"type": "tool_result", "tool_use_id": entry.ToolCallID, "content": content,
			})
			messages[len(messages)-1]["content"] = *results
			return
		}
		results = nil
		if len(entry.ToolCalls) > 0 {
			blocks, isList := content.([]map[string]any)
			if !isList && entry.Content != "" {
				blocks = []map[string]any{{"type": "text", "text": entry.Content}}
			}
			for _, call := range entry.ToolCalls {
				blocks = append(blocks, map[string]any{
					"type": "tool_use", "id": call.ID, "name": call.Name, "input": argumentsOf(call),
				})
			}
			content = blocks
		}
		messages = append(messages, map[string]any{"role": entry.Role, "content": content})
	})
	messages, err = orNone(messages, err)
	return strings.Join(prompts, "\n\n"), messages, err
}

// FromGemini converts contents of Gemini, given as for FromOpenAIChat, and the system instruction, which is beside them: a text,
// a content, parts, or nil. It drops thoughts, and the code that the provider runs. A call of Gemini may have no id. Then it gets
// one by its place, and a result belongs to the first open call of its name. It fails with a HistoryError, which has the place
// of what baton.history has no form for.
func FromGemini(contents, system any) ([]HistoryEntry, error) {
	return readShape(contents, system, func(read *shapeReader) {
		if parts := read.system.get("parts"); parts.has() {
			read.system = parts
		}
		read.systemPrompt(read.system, read.geminiPart)
		for _, content := range read.messages {
			if content.checkMembers("parts") {
				read.geminiContent(content)
			}
		}
	})
}

// ToGemini converts a history to the system instruction, "" without one, and the contents of Gemini. It fails with a
// HistoryError for a part that the interface does not take in that place.
func ToGemini(history []HistoryEntry) (system string, contents []map[string]any, err error) {
	var prompts []string
	var results *[]map[string]any
	names := map[string]string{}
	contents = []map[string]any{}
	err = writeShape(history, func(write *shapeWriter, at string, entry HistoryEntry) {
		switch entry.Role {
		case "system":
			prompts = append(prompts, write.onlyText(at, entry))
			return
		case "tool":
			name, isKnown := names[entry.ToolCallID]
			if !isKnown {
				write.fail(at+"/tool_call_id", "is that of no call, and a result of Gemini has the call's name")
			}
			if results == nil {
				results = &[]map[string]any{}
				contents = append(contents, map[string]any{"role": "user"})
			}
			text := write.onlyText(at, entry)
			response, isObject := parsedObject(text)
			if !isObject {
				response = map[string]any{"result": text}
			}
			*results = append(*results, map[string]any{
				"functionResponse": map[string]any{"name": name, "response": response},
			})
			contents[len(contents)-1]["parts"] = *results
			return
		}
		results = nil
		parts, isList := write.content(at, entry, false, geminiPartOf).([]map[string]any)
		if !isList && entry.Content != "" {
			parts = []map[string]any{{"text": entry.Content}}
		}
		for _, call := range entry.ToolCalls {
			names[call.ID] = call.Name
			parts = append(parts, map[string]any{
				"functionCall": map[string]any{"name": call.Name, "args": argumentsOf(call)},
			})
		}
		if len(parts) == 0 {
			parts = []map[string]any{{"text": ""}}
		}
		role := "user"
		if entry.Role == "assistant" {
			role = "model"
		}
		contents = append(contents, map[string]any{"role": role, "parts": parts})
	})
	contents, err = orNone(contents, err)
	return strings.Join(prompts, "\n\n"), contents, err
}

// FromLangChain converts messages of LangChain, given as for FromOpenAIChat: what messages_to_dict and toDict write,
// {role, content}, [role, text] and texts. It drops reasoning. It fails with a HistoryError, which has the place of what
// baton.history has no form for.
func FromLangChain(messages any) ([]HistoryEntry, error) {
	return readShape(messages, nil, func(read *shapeReader) {
		for _, message := range read.messages {
			read.langChainMessage(message)
		}
	})
}

// ToLangChain converts a history to what messages_from_dict and mapStoredMessagesToChatMessages of LangChain take. It fails
// with a HistoryError for entries that are no history.
func ToLangChain(history []HistoryEntry) ([]map[string]any, error) {
	messages := []map[string]any{}
	err := writeShape(history, func(write *shapeWriter, at string, entry HistoryEntry) {
		kind := entry.Role
		switch kind {
		case "user":
			kind = "human"
		case "assistant":
			kind = "ai"
		}
		data := map[string]any{"content": write.content(at, entry, false, langChainPartOf), "type": kind}
		if kind == "tool" {
			data["tool_call_id"] = entry.ToolCallID
		} else {
			put(data, "name", entry.Name)
		}
		if kind == "ai" {
			calls, broken := []map[string]any{}, []map[string]any{}
			for _, call := range entry.ToolCalls {
				if args, isObject := parsedObject(call.Arguments); isObject {
					calls = append(calls, map[string]any{"name": call.Name, "args": args, "id": call.ID, "type": "tool_call"})
					continue
				}
				broken = append(broken, map[string]any{
					"name": call.Name, "args": call.Arguments, "id": call.ID, "error": nil, "type": "invalid_tool_call",
				})
			}
			data["tool_calls"], data["invalid_tool_calls"] = calls, broken
		}
		messages = append(messages, map[string]any{"type": kind, "data": data})
	})
	return orNone(messages, err)
}
