package baton

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Histories in the shapes of models, by the vectors.

type shapeCase struct {
	Shape, Name string
	System      any
	Messages    []any
	History     *[]HistoryEntry
	Pointer     string
	Back        []any
	BackSystem  *string `json:"back_system"`
}

type shapeWays struct {
	from func(messages, system any) ([]HistoryEntry, error)
	to   func(history []HistoryEntry) (string, []map[string]any, error)
}

var shapeNames = []string{"openai-chat", "openai-responses", "anthropic", "gemini", "langchain"}

var shapes = map[string]shapeWays{
	"openai-chat":      {alone(FromOpenAIChat), withoutSystem(ToOpenAIChat)},
	"openai-responses": {alone(FromOpenAIResponses), withoutSystem(ToOpenAIResponses)},
	"anthropic":        {FromAnthropic, ToAnthropic},
	"gemini":           {FromGemini, ToGemini},
	"langchain":        {alone(FromLangChain), withoutSystem(ToLangChain)},
}

func alone(from func(any) ([]HistoryEntry, error)) func(messages, system any) ([]HistoryEntry, error) {
	return func(messages, _ any) ([]HistoryEntry, error) { return from(messages) }
}

func withoutSystem(
	to func([]HistoryEntry) ([]map[string]any, error),
) func([]HistoryEntry) (string, []map[string]any, error) {
	return func(history []HistoryEntry) (string, []map[string]any, error) {
		messages, err := to(history)
		return "", messages, err
	}
}

func shapeCases(t *testing.T) []shapeCase {
	t.Helper()
	cases := loadVectors[struct{ Cases []shapeCase }](t, "history-v1.json").Cases
	if len(cases) < 29 {
		t.Fatalf("%d cases", len(cases))
	}
	return cases
}

func theConversation(t *testing.T) []HistoryEntry {
	t.Helper()
	for _, one := range shapeCases(t) {
		if one.Shape == "openai-chat" && one.History != nil {
			return *one.History
		}
	}
	t.Fatal("there is no conversation")
	return nil
}

// plainJSON returns a value as it is after its way through JSON.
func plainJSON(t *testing.T, value any) any {
	t.Helper()
	var plain any
	if err := json.Unmarshal([]byte(jsonOf(value)), &plain); err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestAHistoryComesFromAShapeAndGoesBack(t *testing.T) {
	for _, one := range shapeCases(t) {
		if one.History == nil {
			continue
		}
		t.Run(one.Shape+": "+one.Name, func(t *testing.T) {
			ways := shapes[one.Shape]
			history := ok[[]HistoryEntry](t)(ways.from(one.Messages, one.System))
			if !reflect.DeepEqual(history, *one.History) {
				t.Fatalf("%+v, expected %+v", history, *one.History)
			}
			if _, err := HistorySection("history_log", history); err != nil {
				t.Error(err)
			}
			system, messages, err := ways.to(history)
			if err != nil {
				t.Fatal(err)
			}
			back, prompt := one.Back, one.System
			if back == nil {
				back = one.Messages
			}
			if one.BackSystem != nil {
				prompt = *one.BackSystem
			}
			if prompt == nil {
				prompt = ""
			}
			if found := plainJSON(t, messages); !reflect.DeepEqual(found, any(back)) {
				t.Errorf("%s, expected %s", jsonOf(found), jsonOf(back))
			}
			if system != prompt {
				t.Errorf("the system prompt %q, expected %q", system, prompt)
			}
			// The same as JSON.
			again := ok[[]HistoryEntry](t)(ways.from(jsonOf(one.Messages), one.System))
			if !reflect.DeepEqual(again, history) {
				t.Errorf("%+v from the JSON", again)
			}
		})
	}
}

func TestWhatHasNoFormIsRefusedWithItsPlace(t *testing.T) {
	for _, one := range shapeCases(t) {
		if one.History != nil {
			continue
		}
		t.Run(one.Shape+": "+one.Name, func(t *testing.T) {
			history, err := shapes[one.Shape].from(one.Messages, one.System)
			refusedAt(t, err, one.Pointer)
			if history != nil {
				t.Errorf("%+v", history)
			}
		})
	}
}

func refusedAt(t *testing.T, err error, pointer string) {
	t.Helper()
	var refused *HistoryError
	if !errors.As(err, &refused) || !errors.Is(err, ErrHistory) || refused.Pointer != pointer {
		t.Errorf("%v, expected a refusal at %q", err, pointer)
	}
}

func TestAConversationIsTheSameAfterAnyTwoShapes(t *testing.T) {
	expected := theConversation(t)
	for _, first := range shapeNames {
		for _, second := range shapeNames {
			history := expected
			for _, name := range []string{first, second} {
				system, messages, err := shapes[name].to(history)
				if err != nil {
					t.Fatalf("%s, %s: %v", first, second, err)
				}
				history = ok[[]HistoryEntry](t)(shapes[name].from(messages, system))
			}
			// A call of Gemini has no id.
			var plain []HistoryEntry
			text := strings.NewReplacer("call_1", "c1", "call_2", "c2").Replace(jsonOf(history))
			if err := json.Unmarshal([]byte(text), &plain); err != nil || !reflect.DeepEqual(plain, expected) {
				t.Errorf("%s, %s: %s", first, second, text)
			}
		}
	}
}

func TestAPartThatAnInterfaceDoesNotTakeIsRefused(t *testing.T) {
	image := []HistoryEntry{{Role: "assistant", Parts: []HistoryPart{{Type: "image", URL: "https://example.com/a.png"}}}}
	for _, name := range []string{"openai-chat", "openai-responses", "anthropic"} {
		_, messages, err := shapes[name].to(image)
		refusedAt(t, err, "/0/content/0")
		if messages != nil {
			t.Errorf("%s: %v", name, messages)
		}
	}
	_, err := ToOpenAIChat([]HistoryEntry{{Role: "user", Parts: []HistoryPart{{Type: "file", URL: "https://example.com/a.pdf"}}}})
	refusedAt(t, err, "/0/content/0/url")
	_, _, err = ToGemini([]HistoryEntry{{Role: "tool", Content: "a", ToolCallID: "c"}})
	refusedAt(t, err, "/0/tool_call_id")
	for _, name := range shapeNames {
		_, _, err := shapes[name].to([]HistoryEntry{{Role: "user"}, {Role: "agent", Content: "hi"}})
		refusedAt(t, err, "/1/role")
	}
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	wrong := []any{
		7, "x", map[string]any{}, []any{7}, []any{nil}, []any{map[string]any{}},
		[]any{map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{}}}},
		[]any{map[string]any{"role": "user", "content": 7}},
	}
	for _, name := range shapeNames {
		for _, messages := range wrong {
			if history, err := shapes[name].from(messages, nil); !errors.Is(err, ErrHistory) {
				t.Errorf("%s: %v gives %v, %v", name, messages, history, err)
			}
		}
	}
	for pointer, messages := range map[string]string{
		"/0/content":                         `[{"role": "user", "content": 7}]`,
		"/0/content/1":                       `[{"role": "user", "content": ["a", 7]}]`,
		"/0/name":                            `[{"role": "user", "content": "a", "name": 7}]`,
		"/0/tool_call_id":                    `[{"role": "tool", "content": "a"}]`,
		"/0/tool_calls/0/id":                 `[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]`,
		"/0/tool_calls/0/function/arguments": `[{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 7}}]}]`,
		"/0/tool_calls":                      `[{"role": "user", "content": "a", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}]`,
		"/0/function_call":                   `[{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]`,
		"/0/content/0/image_url/url":         `[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]`,
		"/0/content/0/input_audio/format":    `[{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGk="}}]}]`,
	} {
		_, err := FromOpenAIChat(messages)
		refusedAt(t, err, pointer)
	}
	_, err := FromAnthropic(`[{"role": "user", "content": "a", "tool_calls": [{}]}]`, nil)
	refusedAt(t, err, "/0/tool_calls")
	_, err = FromAnthropic(`[]`, []map[string]any{{"type": "hologram"}})
	refusedAt(t, err, "/system/0/type")
	_, err = FromLangChain(`[["function", "a"]]`)
	refusedAt(t, err, "/0/0")
	_, err = FromLangChain(`[{"type": "human", "data": {"content": [{"type": "text"}]}}]`)
	refusedAt(t, err, "/0/content/0/text")
}

func TestTheArgumentsOfACallKeepWhatTheModelWrote(t *testing.T) {
	input := `{"z": 9223372036854775807, "a": 42.0, "t": "<&é"}`
	written := `{"z":9223372036854775807,"a":42.0,"t":"<&é"}`
	history := ok[[]HistoryEntry](t)(FromAnthropic(
		`[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":`+input+`}]}]`, nil))
	if found := history[0].ToolCalls[0].Arguments; found != written {
		t.Errorf("%s", found)
	}
	_, messages, err := ToAnthropic(history)
	if err != nil {
		t.Fatal(err)
	}
	number := messages[0]["content"].([]map[string]any)[0]["input"].(map[string]any)["z"]
	if number != json.Number("9223372036854775807") {
		t.Errorf("%v", number)
	}
	// What is no object stays a text.
	broken := []HistoryEntry{{Role: "assistant", ToolCalls: []HistoryCall{{ID: "c", Name: "f", Arguments: "{a"}}}}
	_, messages, err = ToAnthropic(broken)
	if text := jsonOf(messages); err != nil || !strings.Contains(text, `"input":{"arguments":"{a"}`) {
		t.Errorf("%s, %v", text, err)
	}
}

// rawMessage is a value as SDKs have it: it keeps the JSON that it was read from.
type rawMessage struct{ text string }

func (m rawMessage) RawJSON() string { return m.text }

func TestAHistoryComesFromValuesOfAnSDK(t *testing.T) {
	type param struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	expected := []HistoryEntry{{Role: "user", Content: "where?"}, {Role: "assistant", Content: "here"}}
	given := []any{param{"user", "where?"}, rawMessage{`{"role": "assistant", "content": "here"}`}}
	if found := ok[[]HistoryEntry](t)(FromOpenAIChat(given)); !reflect.DeepEqual(found, expected) {
		t.Errorf("%+v", found)
	}
	if found := ok[[]HistoryEntry](t)(FromLangChain([]string{"where?"})); !reflect.DeepEqual(found, expected[:1]) {
		t.Errorf("%+v", found)
	}
	_, err := FromOpenAIChat([]any{func() {}})
	refusedAt(t, err, "")
}

func TestOpenCallsAndLostResultsAreLeftOut(t *testing.T) {
	calls := []HistoryCall{{"c1", "f", "{}"}, {"c2", "f", "{}"}}
	result := HistoryEntry{Role: "tool", Content: "1", ToolCallID: "c1"}
	lost := HistoryEntry{Role: "tool", Content: "0", ToolCallID: "c0"}
	entry := HistoryEntry{Role: "assistant", ToolCalls: calls}
	closed, spoken := entry, entry
	closed.ToolCalls, spoken.Content = calls[:1], "I look"
	for _, one := range []struct{ found, expected []HistoryEntry }{
		{HistorySettled([]HistoryEntry{lost, entry, result}), []HistoryEntry{closed, result}},
		{HistorySettled([]HistoryEntry{entry}), []HistoryEntry{}},
		{HistorySettled([]HistoryEntry{spoken}), []HistoryEntry{{Role: "assistant", Content: "I look"}}},
		{HistoryLatest([]HistoryEntry{lost, entry, result}, 1), []HistoryEntry{entry, result}},
		{HistoryLatest([]HistoryEntry{entry, result}, 0), []HistoryEntry{}},
		{HistoryLatest([]HistoryEntry{entry, result}, 9), []HistoryEntry{entry, result}},
		{HistoryWithoutToolCalls([]HistoryEntry{entry, result, spoken}), []HistoryEntry{{Role: "assistant", Content: "I look"}}},
	} {
		if !reflect.DeepEqual(one.found, one.expected) {
			t.Errorf("%+v, expected %+v", one.found, one.expected)
		}
	}
	if len(entry.ToolCalls) != 2 {
		t.Error("the history that was given has changed")
	}
}
