package baton

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Results that the broker would refuse are refused before they are sent.

// takes serves an agent whose handler goes on with each task that it takes over.
func takes(t *testing.T, agent *Agent, work func(context.Context, *OwnedTask) error) (stop func() error) {
	t.Helper()
	return serve(t, agent, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		return work(ctx, task)
	}})
}

// nested returns an object of this many levels of objects, with a number in the innermost.
func nested(levels int) map[string]any {
	inner := map[string]any{"a": 1}
	for range levels - 1 {
		inner = map[string]any{"a": inner}
	}
	return inner
}

func nestedArrays(levels int) map[string]any {
	var inner any = 1
	for range levels {
		inner = []any{inner}
	}
	return map[string]any{"a": inner}
}

func TestAResultIsRefusedBeforeItIsSent(t *testing.T) {
	task := &OwnedTask{TaskID: "ticket", Epoch: 1, agent: &Agent{}} // without a connection
	type line struct {
		Text json.RawMessage `json:"text"`
	}
	for name, one := range map[string]struct {
		result  map[string]any
		problem string
	}{
		"too large":        {map[string]any{"a": strings.Repeat("x", 300<<10)}, "has 307208 bytes as JSON, over the limit of 262144"},
		"too deep":         {nested(34), "is nested too deep: 34 objects and 0 arrays"},
		"too deep, arrays": {nestedArrays(49), "the limit is 100 levels"},
		"NaN":              {map[string]any{"a": []any{1, math.NaN()}}, "envelope.payload.result.a[] must be a finite number, not NaN"},
		"infinite":         {map[string]any{"a": math.Inf(-1)}, "must be a finite number, not -Inf"},
		"half a pair":      {map[string]any{"a": line{json.RawMessage(`"\ud83d"`)}}, `has half a surrogate pair, \ud83d`},
		"no UTF-8":         {map[string]any{"a": "\xed\xa0\xbd"}, `envelope.payload.result.a has a text that is not valid UTF-8: "\xed\xa0\xbd"`},
		"no JSON":          {map[string]any{"a": make(chan int)}, "cannot be encoded as JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := task.Finish(patient(t), one.result, "")
			if wrong := refused(t, err, "FIELD_INVALID"); !strings.Contains(wrong.Message, one.problem) {
				t.Error(wrong)
			}
		})
	}
}

func TestWhatTheClientSendsAtTheLimitTheBrokerTakes(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	results := []map[string]any{
		nested(33), nestedArrays(48), {"a": strings.Repeat("x", 262144-8)}, {"a": strings.Repeat("\n", 131072-4)},
		{"list": []string{"a struct", "as JSON"}, "of": struct{ Number int }{3}},
	}
	for _, result := range results {
		carol := shared.agent(t, "carol")
		takes(t, carol, func(ctx context.Context, task *OwnedTask) error {
			_, err := task.Finish(ctx, result, "")
			return err
		})
		outcome := ok[*Outcome](t)(alice.Delegate(patient(t), carol.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
		if outcome.Status != v1.TaskStatus_TASK_STATUS_COMPLETED {
			t.Error(outcome.Status, outcome.Details)
		}
	}
	// The measure is the broker's: one more is refused there too.
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	for _, value := range []any{strings.Repeat("x", 262144-7), strings.Repeat("\n", 131072-3)} {
		object := ok[*structpb.Struct](t)(structpb.NewStruct(map[string]any{"a": value}))
		update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, Result: object}
		refused(t, checkPayload(update), "FIELD_INVALID")
		envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), "", About{TaskID: task.TaskID, Epoch: 1}, update))
		SignEnvelope(envelope, "k1", alice.options.Key)
		_, err := alice.SendEnvelope(patient(t), envelope)
		refused(t, err, "FIELD_INVALID")
	}
}

func TestNumbersAreMeasuredAsTheBrokerWritesThem(t *testing.T) {
	for number, text := range map[float64]string{
		3: "3", -0.5: "-0.5", 1e15: "1000000000000000", 1 << 53: "9007199254740992", 1e16: "1e16", 1.5e300: "1.5e300",
		0.00001: "0.00001", 0.000001: "1e-6", 1.25e-7: "1.25e-7", 9007199254740994: "9007199254740994.0",
	} {
		if bytes := numberBytes(number); bytes != len(text) {
			t.Error(number, bytes, text)
		}
	}
}
