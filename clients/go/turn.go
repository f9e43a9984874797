package baton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const transferPrefix = "transfer_to_"

// ErrResponse is the cause of an error of ReadTurn: a value is no response of a known interface.
var ErrResponse = errors.New("baton: no response of a known interface")

// ResponseShape is the interface that a response belongs to.
type ResponseShape string

// The interfaces whose responses ReadTurn reads.
const (
	OpenAIResponses ResponseShape = "OPENAI_RESPONSES"
	OpenAIChat      ResponseShape = "OPENAI_CHAT"
	Anthropic       ResponseShape = "ANTHROPIC"
	MCPSampling     ResponseShape = "MCP_SAMPLING"
	MCPCall         ResponseShape = "MCP_CALL"
)

// ModelTurn is what a run records of a model's response.
type ModelTurn struct {
	Shape ResponseShape
	Calls []*v1.ToolCall
	// Output is the text of the response.
	Output string
	// Finished says whether the model ended its turn by itself and without a tool call.
	Finished bool
}

// TurnAnswer is the broker's answer to a response that Run.TurnOf reported.
type TurnAnswer struct {
	*v1.RecordTurnResponse
	// Messages are the results of the transfer calls as messages for the model's history, in the shape of the response.
	// The results of all other calls are the runtime's own.
	Messages []map[string]any
}

// TurnOf reports a response of the node's model as it is: see ReadTurn. It is Turn with the calls of the response, and with
// its text as the output of the node if the model has finished. It fails with ErrResponse as ReadTurn does, and with an
// Error as Turn does.
func (r *Run) TurnOf(ctx context.Context, nodeID string, response any) (*TurnAnswer, error) {
	read, err := ReadTurn(response)
	if err != nil {
		return nil, err
	}
	turn := NewTurn(read.Calls...)
	if turn.Finished = read.Finished; turn.Finished {
		turn.Output = read.Output
	}
	answer, err := r.Turn(ctx, nodeID, turn)
	if err != nil {
		return nil, err
	}
	return &TurnAnswer{answer, ResultMessages(read.Shape, read.Calls, answer.GetToolResults())}, nil
}

// ReadTurn reads a response: the value of an SDK, its JSON as []byte, json.RawMessage or string, or the same as parsed JSON.
// Known are a Response and a ChatCompletion of OpenAI, a Message of Anthropic, and of MCP a CreateMessageResult and a
// CallToolRequest, whose call is named "call". It fails with ErrResponse for any other value.
func ReadTurn(response any) (*ModelTurn, error) {
	text, err := responseJSON(response)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResponse, err)
	}
	var read modelResponse
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResponse, err)
	}
	switch {
	case read.Output != nil:
		return read.ofResponses(), nil
	case read.Choices != nil:
		return read.ofChat()
	case read.Params.Name != "":
		call := toolCall("call", read.Params.Name, string(read.Params.Arguments))
		return &ModelTurn{Shape: MCPCall, Calls: []*v1.ToolCall{call}}, nil
	case read.Role == "assistant" && len(read.Content) > 0:
		return read.ofMessage()
	}
	return nil, fmt.Errorf("%w: %T", ErrResponse, response)
}

// ResultMessages returns the results of the transfer calls as messages for the model's history.
func ResultMessages(shape ResponseShape, calls []*v1.ToolCall, results []*v1.ToolResult) []map[string]any {
	isTransfer := map[string]bool{}
	for _, call := range calls {
		isTransfer[call.GetCallId()] = strings.HasPrefix(call.GetName(), transferPrefix)
	}
	messages, blocks := []map[string]any{}, []map[string]any{}
	for _, one := range results {
		if !isTransfer[one.GetCallId()] {
			continue
		}
		id, text, isError := one.GetCallId(), one.GetText(), one.GetIsError()
		parts := []map[string]any{{"type": "text", "text": text}}
		switch shape {
		case OpenAIResponses:
			messages = append(messages, map[string]any{"type": "function_call_output", "call_id": id, "output": text})
		case OpenAIChat:
			messages = append(messages, map[string]any{"role": "tool", "tool_call_id": id, "content": text})
		case Anthropic:
			blocks = append(blocks, map[string]any{"type": "tool_result", "tool_use_id": id, "content": text, "is_error": isError})
		case MCPSampling:
			blocks = append(blocks, map[string]any{"type": "tool_result", "toolUseId": id, "content": parts, "isError": isError})
		case MCPCall:
			messages = append(messages, map[string]any{"content": parts, "isError": isError})
		}
	}
	if len(blocks) > 0 {
		messages = append(messages, map[string]any{"role": "user", "content": blocks})
	}
	return messages
}

// responseJSON returns the JSON of a response. The values of SDKs keep the text that they were read from.
func responseJSON(response any) ([]byte, error) {
	switch response := response.(type) {
	case []byte:
		return response, nil
	case json.RawMessage:
		return response, nil
	case string:
		return []byte(response), nil
	case interface{ RawJSON() string }:
		if text := response.RawJSON(); text != "" {
			return []byte(text), nil
		}
	}
	return json.Marshal(response)
}

type modelResponse struct {
	Status  *string       `json:"status"`
	Output  *[]outputItem `json:"output"`
	Choices *[]struct {
		FinishReason string `json:"finish_reason"`
		Message      struct {
			Content   *string `json:"content"`
			ToolCalls []struct {
				ID       string `json:"id"`
				Function *struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
				Custom struct {
					Name  string          `json:"name"`
					Input json.RawMessage `json:"input"`
				} `json:"custom"`
			} `json:"tool_calls"`
		} `json:"message"`
	} `json:"choices"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"params"`
	Type       string          `json:"type"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	StopReason string          `json:"stop_reason"`
	MCPReason  string          `json:"stopReason"`
}

type outputItem struct {
	Type      string          `json:"type"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     json.RawMessage `json:"input"`
	// Other items have a content of other forms.
	Content json.RawMessage `json:"content"`
}

type contentBlock struct {
	Type  string          `json:"type"`
	Text  string          `json:"text"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

func (read *modelResponse) ofResponses() *ModelTurn {
	turn := &ModelTurn{Shape: OpenAIResponses}
	for _, item := range *read.Output {
		switch item.Type {
		case "function_call":
			turn.Calls = append(turn.Calls, toolCall(item.CallID, item.Name, item.Arguments))
		case "custom_tool_call":
			turn.Calls = append(turn.Calls, toolCall(item.CallID, item.Name, string(item.Input)))
		case "message":
			var parts []contentBlock
			if json.Unmarshal(item.Content, &parts) != nil {
				continue
			}
			for _, part := range parts {
				if part.Type == "output_text" {
					turn.Output += part.Text
				}
			}
		}
	}
	turn.Finished = len(turn.Calls) == 0 && (read.Status == nil || *read.Status == "completed")
	return turn
}

func (read *modelResponse) ofChat() (*ModelTurn, error) {
	if count := len(*read.Choices); count != 1 {
		return nil, fmt.Errorf("%w: a turn is one choice of the model, not %d", ErrResponse, count)
	}
	choice, turn := (*read.Choices)[0], &ModelTurn{Shape: OpenAIChat}
	for _, call := range choice.Message.ToolCalls {
		name, arguments := call.Custom.Name, string(call.Custom.Input)
		if call.Function != nil {
			name, arguments = call.Function.Name, call.Function.Arguments
		}
		turn.Calls = append(turn.Calls, toolCall(call.ID, name, arguments))
	}
	if choice.Message.Content != nil {
		turn.Output = *choice.Message.Content
	}
	turn.Finished = len(turn.Calls) == 0 && choice.FinishReason == "stop"
	return turn, nil
}

// ofMessage reads a message of Anthropic or of MCP, which differ in the names of their stop reasons.
func (read *modelResponse) ofMessage() (*ModelTurn, error) {
	turn := &ModelTurn{Shape: MCPSampling}
	if read.Type == "message" {
		turn.Shape = Anthropic
	}
	blocks := []contentBlock{}
	if strings.HasPrefix(string(read.Content), "[") {
		if err := json.Unmarshal(read.Content, &blocks); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrResponse, err)
		}
	} else {
		var block contentBlock
		if err := json.Unmarshal(read.Content, &block); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrResponse, err)
		}
		blocks = append(blocks, block)
	}
	for _, block := range blocks {
		switch block.Type {
		case "tool_use":
			turn.Calls = append(turn.Calls, toolCall(block.ID, block.Name, string(block.Input)))
		case "text":
			turn.Output += block.Text
		}
	}
	switch orElse(read.StopReason, read.MCPReason) {
	case "end_turn", "stop_sequence", "endTurn", "stopSequence":
		turn.Finished = len(turn.Calls) == 0
	}
	return turn, nil
}

func toolCall(id, name, arguments string) *v1.ToolCall {
	if arguments == "null" {
		arguments = ""
	}
	return &v1.ToolCall{CallId: id, Name: name, ArgumentsJson: orElse(arguments, "{}")}
}
