package baton

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Plans: a report from two calculations.

func reportPlan(kind string) *v1.Plan {
	return &v1.Plan{
		PlanId: unique("report"), WholeTimeout: durationpb.New(3 * patience),
		Subtasks: []*v1.Subtask{
			{Id: "growth", Description: "the growth", AgentType: kind, Produces: []string{"figures"}},
			{Id: "margin", Description: "the margin", AgentType: kind},
			{Id: "report", Description: "the report", Role: "author", AgentType: kind, Dependencies: []string{"growth", "margin"}, Consumes: []string{"figures"}},
		},
	}
}

// subtaskWorker serves an agent of the type that carries out subtasks by the function.
func subtaskWorker(t *testing.T, b *broker, kind string, work func(context.Context, *Subtask) (map[string]any, error)) *Agent {
	t.Helper()
	options := b.options(t, "worker")
	options.Card = &v1.AgentCard{AgentTypes: []string{kind}}
	agent := connected(t, options)
	serve(t, agent, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		if offered := offer.Subtask(); offered == nil || offered.Attempt != 0 {
			t.Error(offered)
		}
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		subtask := offer.Subtask()
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		if err := subtask.Fetch(ctx); err != nil {
			return err
		}
		result, err := work(ctx, subtask)
		if err != nil {
			_, err = task.Update(ctx, &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_FAILED, Details: err.Error()})
			return err
		}
		_, err = task.Finish(ctx, result, "")
		return err
	}})
	return agent
}

func TestAConditionLeavesABranchOut(t *testing.T) {
	b := newBroker(t, "")
	alice, kind := b.agent(t, "alice"), unique("desk")
	subtaskWorker(t, b, kind, func(_ context.Context, subtask *Subtask) (map[string]any, error) {
		return map[string]any{"response": "0.7", "of": subtask.SubtaskID}, nil
	})
	less := func(negate bool) *v1.Condition {
		return &v1.Condition{
			SubtaskId: "check", Pointer: "/numeric_value", Comparison: &v1.Condition_Less{Less: 0.5}, Negate: negate,
		}
	}
	plan := ok[*Plan](t)(alice.SubmitPlan(patient(t), &v1.Plan{
		Defaults: &v1.SubtaskDefaults{AgentType: kind},
		Subtasks: []*v1.Subtask{
			{Id: "check"},
			{Id: "mend", Dependencies: []string{"check"}, When: less(false)},
			{Id: "publish", Dependencies: []string{"check"}, When: less(true)},
		},
	}))
	if ended := ok[*v1.PlanRun](t)(plan.Ended(patient(t))); ended.GetState() != v1.PlanState_PLAN_STATE_COMPLETED {
		t.Error(ended)
	}
	results := ok[map[string]*v1.SubtaskResult](t)(plan.Results(patient(t)))
	if !slices.Equal(slices.Sorted(maps.Keys(results)), []string{"check", "publish"}) {
		t.Error(results)
	}
}

func TestAPlanGivesTypedInputsAndFailsAndIsRetriedOverARestart(t *testing.T) {
	b := newBroker(t, "")
	alice, kind := b.agent(t, "alice"), unique("analyst")
	subtasks := make(chan *Subtask, 8)
	var failures = make(chan error, 1)
	failures <- errors.New("no data")
	subtaskWorker(t, b, kind, func(_ context.Context, subtask *Subtask) (map[string]any, error) {
		switch subtask.SubtaskID {
		case "growth":
			return map[string]any{"response": "增长率15.3%"}, nil
		case "margin":
			select {
			case failure := <-failures:
				return nil, failure
			default:
				return map[string]any{"response": "a margin of 7.2 %", "tools_used": []any{"sql"}}, nil
			}
		}
		subtasks <- subtask
		return map[string]any{"response": "done"}, nil
	})
	plan := ok[*Plan](t)(alice.SubmitPlan(patient(t), reportPlan(kind)))
	_, err := plan.Retry(patient(t))
	if err == nil {
		t.Error("it runs")
	}
	failed := ok[*v1.PlanRun](t)(plan.Ended(patient(t)))
	if failed.GetState() != v1.PlanState_PLAN_STATE_FAILED || failed.GetSubtasks()[2].GetState() != v1.SubtaskState_SUBTASK_STATE_SKIPPED {
		t.Error(failed)
	}
	ok[*v1.PlanRun](t)(plan.Retry(patient(t)))
	b.kill()
	b.restart(t)
	ended := ok[*v1.PlanRun](t)(plan.Ended(patient(t)))
	if ended.GetState() != v1.PlanState_PLAN_STATE_COMPLETED || ended.GetRound() != 2 {
		t.Error(ended)
	}
	inputs := await(t, subtasks)
	if inputs.PreviousResults["growth"].GetNumericValue() != 15.3 || inputs.DependencyResults["margin"].GetNumericValue() != 7.2 {
		t.Error(inputs)
	}
	if !slices.Equal(inputs.PreviousResults["margin"].GetToolsUsed(), []string{"sql"}) || inputs.Consumed["figures"]["growth"] == nil {
		t.Error(inputs)
	}
	if inputs.PlanID != plan.ID() || inputs.Role != "author" || inputs.Attempt != 1 || inputs.Description != "the report" {
		t.Error(inputs)
	}
	results := ok[map[string]*v1.SubtaskResult](t)(plan.Results(patient(t)))
	if !slices.Equal(slices.Sorted(maps.Keys(results)), []string{"growth", "margin", "report"}) {
		t.Error(results)
	}
	number := uint64(0)
	for update, err := range plan.Watch(patient(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if entry := update.GetEntry(); entry != nil {
			if number++; entry.GetNumber() != number {
				t.Error(entry)
			}
		}
	}
	if number != ended.GetLogLength() {
		t.Error(number, ended)
	}
	_, err = plan.Cancel(patient(t), "late")
	refused(t, err, "PLAN_FINAL")
	var ids []string
	for one, err := range alice.Plans(patient(t), v1.PlanState_PLAN_STATE_COMPLETED) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one.GetPlanId())
	}
	if !slices.Equal(ids, []string{plan.ID()}) {
		t.Error(ids)
	}
}

func TestAWholeResultIsFetchedThatTheContextHadNoRoomFor(t *testing.T) {
	alice, kind := shared.agent(t, "alice"), unique("analyst")
	long := make([]byte, 230<<10)
	for i := range long {
		long[i] = 'x'
	}
	subtasks := make(chan *Subtask, 1)
	subtaskWorker(t, shared, kind, func(_ context.Context, subtask *Subtask) (map[string]any, error) {
		if subtask.SubtaskID == "last" {
			subtasks <- subtask
		}
		return map[string]any{"response": string(long)}, nil
	})
	plan := &v1.Plan{Mode: v1.PlanMode_PLAN_MODE_SEQUENTIAL, WholeTimeout: durationpb.New(3 * patience)}
	for _, id := range []string{"one", "two", "three", "four", "last"} {
		plan.Subtasks = append(plan.Subtasks, &v1.Subtask{Id: id, Description: id, AgentType: kind})
	}
	submitted := ok[*Plan](t)(alice.SubmitPlan(patient(t), plan))
	inputs := await(t, subtasks)
	for id, result := range inputs.PreviousResults {
		if len(inputs.Omitted) != 0 || len(result.GetResponse()) != len(long) {
			t.Error(id, inputs.Omitted, len(result.GetResponse()))
		}
	}
	if state := ok[*v1.PlanRun](t)(submitted.Ended(patient(t))); len(inputs.PreviousResults) != 4 || state.GetState() != v1.PlanState_PLAN_STATE_COMPLETED {
		t.Error(state)
	}
}

func TestAWrongPlanNamesItsProblemsAndAPlanIsCancelled(t *testing.T) {
	alice, kind := shared.agent(t, "alice"), unique("analyst")
	plan := reportPlan(kind)
	plan.Subtasks[0].Dependencies = []string{"report"}
	problems := ok[[]*v1.PlanProblem](t)(alice.ValidatePlan(patient(t), plan))
	if !slices.ContainsFunc(problems, func(problem *v1.PlanProblem) bool { return problem.GetCode() == "CYCLE" }) {
		t.Error(problems)
	}
	_, err := alice.SubmitPlan(patient(t), plan)
	refused(t, err, "PLAN_INVALID")
	_, err = alice.Plan(unique("missing")).State(patient(t))
	refused(t, err, "PLAN_UNKNOWN")
	options := shared.options(t, "silent")
	options.Card = &v1.AgentCard{AgentTypes: []string{kind}}
	connected(t, options)
	plan.Subtasks[0].Dependencies = nil
	submitted := ok[*Plan](t)(alice.SubmitPlan(patient(t), plan))
	ok[*Plan](t)(alice.SubmitPlan(patient(t), plan))
	plan.Description = "another"
	_, err = alice.SubmitPlan(patient(t), plan)
	refused(t, err, "PLAN_EXISTS")
	_, err = submitted.Retry(patient(t))
	refused(t, err, "PLAN_RUNNING")
	if cancelled := ok[*v1.PlanRun](t)(submitted.Cancel(patient(t), "enough")); cancelled.GetState() != v1.PlanState_PLAN_STATE_CANCELLED {
		t.Error(cancelled)
	}
}

func TestAFailingPlanUndoesWhatHasCompleted(t *testing.T) {
	b := newBroker(t, "")
	alice, kind := b.agent(t, "alice"), unique("booker")
	undone := make(chan *Subtask, 8)
	subtaskWorker(t, b, kind, func(_ context.Context, subtask *Subtask) (map[string]any, error) {
		switch {
		case subtask.IsCompensation:
			undone <- subtask
		case subtask.SubtaskID == "pay":
			return nil, errors.New("the card is refused")
		}
		return map[string]any{"response": "204"}, nil
	})
	room := &v1.Subtask{Id: "room", AgentType: kind, Compensate: &v1.Compensation{AgentType: kind, Description: "cancel the room"}}
	pay := &v1.Subtask{Id: "pay", AgentType: kind, Dependencies: []string{"room"}}
	plan := ok[*Plan](t)(alice.SubmitPlan(patient(t), &v1.Plan{
		PlanId: unique("trip"), WholeTimeout: durationpb.New(3 * patience), Subtasks: []*v1.Subtask{room, pay},
	}))
	ended := ok[*v1.PlanRun](t)(plan.Ended(patient(t)))
	if ended.GetState() != v1.PlanState_PLAN_STATE_FAILED {
		t.Error(ended)
	}
	if ended.GetSubtasks()[0].GetCompensation().GetState() != v1.SubtaskState_SUBTASK_STATE_COMPLETED {
		t.Error(ended)
	}
	inputs := await(t, undone)
	if inputs.SubtaskID != "room" || inputs.Description != "cancel the room" || inputs.DependencyResults["room"].GetResponse() != "204" {
		t.Error(inputs)
	}
}

// TestAPlanGrowsAndItsSubtasksChange adds a list of subtasks, cancels one, starts it again, and gives it to another agent.
func TestAPlanGrowsAndItsSubtasksChange(t *testing.T) {
	b := newBroker(t, "")
	alice, kind := b.agent(t, "alice"), unique("scout")
	extended, elements := make(chan struct{}), make(chan *Element, 8)
	subtaskWorker(t, b, kind, func(_ context.Context, subtask *Subtask) (map[string]any, error) {
		if subtask.Element != nil {
			elements <- subtask.Element
			return map[string]any{"place": subtask.Element.Index}, nil
		}
		<-extended
		return map[string]any{"response": "found", "all": []any{"x", map[string]any{"y": 1}}}, nil
	})
	idle := b.options(t, "idle")
	idle.Card = &v1.AgentCard{AgentTypes: []string{kind + "-idle"}}
	connected(t, idle)
	wait := &v1.Subtask{Id: "wait", AgentType: kind + "-idle", Optional: true}
	plan := ok[*Plan](t)(alice.SubmitPlan(patient(t), &v1.Plan{
		PlanId: unique("growth"), WholeTimeout: durationpb.New(3 * patience), Subtasks: []*v1.Subtask{{Id: "find", AgentType: kind}, wait},
	}))
	look := &v1.Subtask{Id: "look", Dependencies: []string{"find"}, ForEach: &v1.ForEach{SubtaskId: "find", Pointer: "/result/all"}}
	for range 2 {
		if err := plan.Extend(patient(t), &v1.SubtaskDefaults{AgentType: kind}, look); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, plan.Extend(patient(t), nil, &v1.Subtask{Id: "find", AgentType: kind}), "PLAN_INVALID")
	_, err := plan.CancelSubtask(patient(t), "missing", "")
	refused(t, err, "SUBTASK_UNKNOWN")
	_, err = plan.RetrySubtask(patient(t), "wait")
	refused(t, err, "SUBTASK_STATE")
	_, err = plan.ReassignSubtask(patient(t), "wait", alice.ID(), "")
	refused(t, err, "RECEIVER_INVALID")
	ok[*v1.PlanRun](t)(plan.ReassignSubtask(patient(t), "wait", "type:"+kind+"-idle", "no answer"))
	ok[*v1.PlanRun](t)(plan.CancelSubtask(patient(t), "wait", "enough"))
	again := ok[*v1.PlanRun](t)(plan.RetrySubtask(patient(t), "wait"))
	if again.GetRound() != 2 {
		t.Error(again)
	}
	ok[*v1.PlanRun](t)(plan.CancelSubtask(patient(t), "wait", "enough"))
	close(extended)
	if ended := ok[*v1.PlanRun](t)(plan.Ended(patient(t))); ended.GetState() != v1.PlanState_PLAN_STATE_COMPLETED {
		t.Error(ended)
	}
	for range 2 {
		if element := await(t, elements); element.Count != 2 || len(element.Value) == 0 {
			t.Error(element)
		}
	}
	results := ok[map[string]*v1.SubtaskResult](t)(plan.Results(patient(t)))
	if got := results["look"].GetResultJson(); got != `{"results":[{"place":0},{"place":1}]}` {
		t.Error(got)
	}
}
