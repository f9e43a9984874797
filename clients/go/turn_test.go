package baton

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Responses of models, by the vectors.

type turnVectors struct {
	Cases []struct {
		Name, Shape, Output string
		Response            json.RawMessage
		Calls               *[]json.RawMessage
		Finished            bool
	}
	Results struct {
		Calls       []json.RawMessage
		ToolResults []json.RawMessage `json:"tool_results"`
		Messages    map[string]any
	}
}

// sdkValue keeps the text that it was read from, as the values of the SDKs of OpenAI and Anthropic do.
type sdkValue struct{ text string }

func (v sdkValue) RawJSON() string { return v.text }

func messagesOf[T any, M interface {
	*T
	proto.Message
}](t *testing.T, texts []json.RawMessage) (messages []M) {
	t.Helper()
	for _, text := range texts {
		message := M(new(T))
		if err := protojson.Unmarshal(text, message); err != nil {
			t.Fatal(err)
		}
		messages = append(messages, message)
	}
	return messages
}

func TestTurnsAreThoseOfTheVectors(t *testing.T) {
	for _, one := range loadVectors[turnVectors](t, "turns-v1.json").Cases {
		t.Run(one.Name, func(t *testing.T) {
			var parsed any
			if err := json.Unmarshal(one.Response, &parsed); err != nil {
				t.Fatal(err)
			}
			for _, response := range []any{one.Response, []byte(one.Response), string(one.Response), parsed, sdkValue{string(one.Response)}} {
				turn, err := ReadTurn(response)
				if one.Calls == nil {
					if !errors.Is(err, ErrResponse) {
						t.Errorf("%T: %+v, %v", response, turn, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				calls := messagesOf[v1.ToolCall](t, *one.Calls)
				if len(turn.Calls) != len(calls) || string(turn.Shape) != one.Shape || turn.Output != one.Output || turn.Finished != one.Finished {
					t.Fatalf("%T: %+v", response, turn)
				}
				for at, call := range calls {
					var wanted, found any
					wrong := errors.Join(
						json.Unmarshal([]byte(call.GetArgumentsJson()), &wanted),
						json.Unmarshal([]byte(turn.Calls[at].GetArgumentsJson()), &found))
					if wrong != nil || turn.Calls[at].GetCallId() != call.GetCallId() || turn.Calls[at].GetName() != call.GetName() || !reflect.DeepEqual(wanted, found) {
						t.Errorf("%T: %v, expected %v (%v)", response, turn.Calls[at], call, wrong)
					}
				}
			}
		})
	}
}

func TestResultsAreThoseOfTheVectors(t *testing.T) {
	results := loadVectors[turnVectors](t, "turns-v1.json").Results
	calls, told := messagesOf[v1.ToolCall](t, results.Calls), messagesOf[v1.ToolResult](t, results.ToolResults)
	for shape, messages := range results.Messages {
		text := ok[[]byte](t)(json.Marshal(ResultMessages(ResponseShape(shape), calls, told)))
		var found any
		if err := json.Unmarshal(text, &found); err != nil || !reflect.DeepEqual(found, messages) {
			t.Errorf("%s: %s", shape, text)
		}
	}
}

func TestARunReadsTheResponseOfAModel(t *testing.T) {
	alice := shared.agent(t, "alice")
	graph := registered(t, alice, triageGraph())
	run := started(t, alice, &v1.StartRunRequest{GraphId: graph.GetGraphId()})
	answer := ok[*TurnAnswer](t)(run.TurnOf(patient(t), "triage", `{"type":"message","role":"assistant","stop_reason":"tool_use",
		"content":[{"type":"tool_use","id":"c1","name":"transfer_to_billing","input":{"reason":"all facts hold"}}]}`))
	if answer.GetChoice().GetTargetNodeId() != "billing" || len(answer.Messages) != 1 || answer.Messages[0]["role"] != "user" {
		t.Error(answer)
	}
	answer = ok[*TurnAnswer](t)(run.TurnOf(patient(t), "billing", `{"choices":[{"finish_reason":"stop","message":{"content":"42"}}]}`))
	if len(answer.Messages) != 0 {
		t.Error(answer)
	}
	if state := ok[*v1.Run](t)(run.State(patient(t))); state.GetState() != v1.RunState_RUN_STATE_COMPLETED {
		t.Error(state)
	}
	if _, err := run.TurnOf(patient(t), "billing", map[string]any{}); !errors.Is(err, ErrResponse) {
		t.Error(err)
	}
}
