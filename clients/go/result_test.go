package baton

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

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

const (
	bigID   = 1234567890123456789
	bigText = `{"count":42,"id":1234567890123456789,"list":[1234567890123456790,{"deep":-1234567890123456789}],"none":null,"ratio":42.0}`
)

// bigData is bigText as a value.
func bigData() map[string]any {
	list := []any{bigID + 1, map[string]any{"deep": -bigID}}
	return map[string]any{"id": bigID, "count": 42, "ratio": json.Number("42.0"), "none": nil, "list": list}
}

type order struct {
	ID    int64   `json:"id"`
	Count int     `json:"count"`
	Ratio float64 `json:"ratio"`
}

var bigOrder = order{bigID, 42, 42}

func TestJSONIsTheSameAfterItsText(t *testing.T) {
	if text := ok[string](t)(JSONText(bigData())); text != bigText {
		t.Error(text)
	}
	object := ok[map[string]any](t)(JSONObject(bigText))
	if text := ok[string](t)(JSONText(object)); text != bigText {
		t.Error(text)
	}
	if text := ok[string](t)(JSONText(bigOrder)); text != `{"id":1234567890123456789,"count":42,"ratio":42}` {
		t.Error(text)
	}
	var into order
	if err := (&Outcome{Result: object}).ResultInto(&into); err != nil || into != bigOrder {
		t.Error(into, err)
	}
	if object := ok[map[string]any](t)(JSONObject("")); object == nil || len(object) > 0 {
		t.Error(object)
	}
}

func TestAResultAndAnAnswerArriveAsTheyWereSent(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	answers, mail, ticket := make(chan *Answer, 1), make(chan string, 1), unique("order")
	serve(t, alice, Handlers{Prompt: func(ctx context.Context, q *Question) error {
		_, err := q.Answer(ctx, "none", map[string]any{"a": []any{math.NaN()}})
		if wrong := refused(t, err, "FIELD_INVALID"); !strings.Contains(wrong.Message, "data_json must have finite numbers only, not NaN, at /a/0") {
			t.Error(wrong)
		}
		_, err = q.Answer(ctx, "this one", bigData())
		return err
	}})
	serve(t, bob, Handlers{
		Offer: func(ctx context.Context, offer *Offer) error {
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err != nil {
				return err
			}
			answer, err := task.Ask(ctx, Prompt{Text: "Which order?", AnswerBy: alice.ID()})
			if err != nil {
				return err
			}
			answers <- answer
			_, err = task.Finish(ctx, bigData(), "")
			return err
		},
		Info: func(_ context.Context, _ *Delivery, info *v1.Info) error {
			mail <- info.GetDataJson()
			return nil
		},
	})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, &v1.Info{Text: "the order", DataJson: bigText}))
	outcome := ok[*Outcome](t)(alice.Delegate(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	answer := await(t, answers)
	for _, object := range []map[string]any{outcome.Result, answer.Data} {
		if text := ok[string](t)(JSONText(object)); text != bigText {
			t.Error(text)
		}
	}
	var result, data order
	if err := errors.Join(outcome.ResultInto(&result), answer.DataInto(&data)); err != nil || result != bigOrder || data != bigOrder {
		t.Error(result, data, err)
	}
	task := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket))
	if texts := []string{task.GetResultJson(), task.GetLastAnswer().GetAnswer().GetDataJson(), await(t, mail)}; !slices.Equal(texts, []string{bigText, bigText, bigText}) {
		t.Error(texts)
	}
}

func TestTheInputAndTheResultsOfAPlanArriveAsTheyWereSent(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	got := make(chan *Subtask, 2)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		inputs := takeover.Subtask()
		got <- inputs
		_, err = task.Finish(ctx, inputs.Input, "")
		return err
	}})
	plan := ok[*Plan](t)(alice.SubmitPlan(patient(t), &v1.Plan{InputJson: bigText, Subtasks: []*v1.Subtask{
		{Id: "first", AgentId: bob.ID(), InputJson: bigText},
		{Id: "second", AgentId: bob.ID(), InputJson: `{"count":42}`, Dependencies: []string{"first"}},
	}}))
	if run := ok[*v1.PlanRun](t)(plan.Ended(patient(t))); run.GetState() != v1.PlanState_PLAN_STATE_COMPLETED {
		t.Fatal(run)
	}
	first, second := await(t, got), await(t, got)
	var into, shared order
	if err := errors.Join(first.InputInto(&into), second.PlanInputInto(&shared)); err != nil || into != bigOrder || shared != bigOrder {
		t.Error(into, shared, err)
	}
	if text := ok[string](t)(JSONText(second.Input)); text != `{"count":42}` {
		t.Error(text)
	}
	given := ok[map[string]any](t)(JSONObject(second.DependencyResults["first"].GetResultJson()))
	if text := ok[string](t)(JSONText(given)); text != bigText {
		t.Error(text)
	}
	results := ok[map[string]*v1.SubtaskResult](t)(plan.Results(patient(t)))
	if results["first"].GetResultJson() != bigText || results["second"].GetResultJson() != `{"count":42}` {
		t.Error(results)
	}
	wrong := &v1.Plan{Subtasks: []*v1.Subtask{{Id: "a", AgentId: bob.ID(), InputJson: `{"a":[1e999]}`}}}
	_, err := alice.SubmitPlan(patient(t), wrong)
	if wrong := refused(t, err, "FIELD_INVALID"); !strings.Contains(wrong.Message, "plan.subtasks[0].input_json must have finite numbers only, not 1e999, at /a/0") {
		t.Error(wrong)
	}
}

func TestAResultIsRefusedBeforeItIsSent(t *testing.T) {
	task := &OwnedTask{TaskID: "ticket", Epoch: 1, agent: &Agent{}} // without a connection
	type line struct {
		Text json.RawMessage `json:"text"`
	}
	for name, one := range map[string]struct {
		result  any
		problem string
	}{
		"too large":        {map[string]any{"a": strings.Repeat("x", 300<<10)}, "has 307208 bytes as JSON, over the limit of 262144"},
		"too deep":         {nested(129), "is nested too deep: the limit is 128 objects and arrays inside each other, at /a/a/a"},
		"too deep, arrays": {nestedArrays(128), "is nested too deep: the limit is 128 objects and arrays inside each other, at /a/0/0"},
		"too deep, raw":    {json.RawMessage(strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129)), "is nested too deep"},
		"NaN":              {map[string]any{"a": []any{1, math.NaN()}}, "envelope.payload.result_json must have finite numbers only, not NaN, at /a/1"},
		"infinite":         {map[string]any{"a": math.Inf(-1)}, "must have finite numbers only, not -Inf, at /a"},
		"half a pair":      {map[string]any{"a/b": line{json.RawMessage(`"\ud83d"`)}}, `has half a surrogate pair, \ud83d, at /a~1b/text`},
		"no UTF-8":         {map[string]any{"a": "\xed\xa0\xbd"}, `has a text that is not valid UTF-8: "\xed\xa0\xbd", at /a`},
		"no JSON":          {map[string]any{"a": make(chan int)}, "cannot be encoded as JSON: json: unsupported type: chan int, at /a"},
		"a name twice":     {json.RawMessage(`{"a":{"b":1,"b":2}}`), `has the name "b" twice, at /a`},
		"no object":        {[]any{1}, "must be a JSON object"},
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
	results := []any{
		nested(128), nestedArrays(127), map[string]any{"a": strings.Repeat("x", 262144-8)}, map[string]any{"a": strings.Repeat("\n", 131072-4)},
		map[string]any{"list": []string{"a struct", "as JSON"}, "of": struct{ Number int }{3}}, bigOrder,
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
	deep := strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129)
	for _, text := range []string{`{"a":"` + strings.Repeat("x", 262144-7) + `"}`, deep, `{"a":1,"a":2}`, `{"a":"\ud83d"}`, `[1]`} {
		update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, ResultJson: text}
		refused(t, checkPayload(update), "FIELD_INVALID")
		envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), "", About{TaskID: task.TaskID, Epoch: 1}, update))
		SignEnvelope(envelope, "k1", alice.options.Key)
		_, err := alice.SendEnvelope(patient(t), envelope)
		refused(t, err, "FIELD_INVALID")
	}
}
