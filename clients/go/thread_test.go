package baton

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Threads: a conversation that changes its persona at step boundaries.

const handoffPlugin = "agent_handoff"

// personas registers a router and an expert, which permit actions, and returns their ids.
func personas(t *testing.T, b *broker) (router, expert string) {
	t.Helper()
	operator, token := b.agent(t, "operator"), b.operatorToken(t)
	model := &v1.ModelSpec{ModelId: unique("model"), ModelName: "large"}
	known := ok[*v1.ModelSpec](t)(operator.PutModelSpec(patient(t), token, model))
	router, expert = unique("router"), unique("expert")
	for id, plugin := range map[string]string{router: "memory", expert: "search"} {
		spec := &v1.AgentSpec{SpecId: id, ModelId: known.GetModelId(), PluginIds: []string{handoffPlugin, plugin}}
		first := ok[*v1.AgentSpec](t)(operator.PutAgentSpec(patient(t), token, spec))
		again := ok[*v1.AgentSpec](t)(operator.PutAgentSpec(patient(t), token, spec))
		if first.GetRevision() != 1 || again.GetRevision() != 1 {
			t.Error(first, again)
		}
	}
	return router, expert
}

func TestAThreadChangesItsPersonaAtABoundary(t *testing.T) {
	b := newBroker(t, "")
	router, expert := personas(t, b)
	alice := b.agent(t, "alice")
	thread := ok[*Thread](t)(alice.CreateThread(patient(t), &v1.CreateThreadRequest{BaseSpecId: router}))
	run := ok[*ThreadRun](t)(thread.Run(patient(t)))
	if step := run.Step(); step.Number != 1 || step.Spec.GetSpecId() != router || step.Model.GetModelName() != "large" {
		t.Error(step)
	}
	_, err := thread.Run(patient(t))
	refused(t, err, "RUN_OPEN")
	ok[*v1.ApplyHandoffActionResponse](t)(thread.Request(patient(t), expert))
	if err := run.Keep(patient(t)); err != nil || run.Step().Spec.GetSpecId() != router {
		t.Error(err, run.Step())
	}
	b.kill()
	b.restart(t)
	step := ok[*Step](t)(run.NextStep(patient(t)))
	if step.Number != 2 || step.Spec.GetSpecId() != expert || !step.Switched || step.Request == nil {
		t.Error(step)
	}
	if !slices.Equal(step.DeactivatePluginIDs, []string{"memory"}) || !slices.Equal(step.ActivatePluginIDs, []string{"search"}) {
		t.Error(step)
	}
	if err := run.Keep(patient(t)); err != nil || run.Step() != step {
		t.Error(err, run.Step())
	}
	ok[*v1.ApplyHandoffActionResponse](t)(thread.Clear(patient(t)))
	if back := ok[*Step](t)(run.NextStep(patient(t))); back.Spec.GetSpecId() != router || back.Number != 3 {
		t.Error(back)
	}
	ok[uint64](t)(thread.Workspace().Append(patient(t), "messages", map[string]string{"text": "hello"}))
	ended := ok[*v1.Thread](t)(run.End(patient(t)))
	if ended.GetRunId() != "" || ended.GetInForceSpecId() != router {
		t.Error(ended)
	}
	_, err = thread.RunAs(patient(t), run.ID())
	refused(t, err, "RUN_FINAL")
	_, err = run.NextStep(patient(t))
	refused(t, err, "RUN_FINAL")
	ok[*v1.ApplyHandoffActionResponse](t)(thread.Activate(patient(t), expert))
	if next := ok[*ThreadRun](t)(thread.Run(patient(t))); next.Step().Spec.GetSpecId() != expert {
		t.Error(next.Step())
	}
	state, number := ok[*v1.Thread](t)(thread.State(patient(t))), uint64(0)
	for update, err := range thread.Watch(patient(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if update.GetCaughtUp() != nil {
			break
		}
		if number++; update.GetEntry().GetNumber() != number {
			t.Error(update)
		}
	}
	if number != state.GetLogLength() {
		t.Error(number, state)
	}
	for one, err := range alice.Threads(patient(t), &v1.ListThreadsRequest{InForceSpecId: expert}) {
		if err != nil || one.GetThreadId() != thread.ID() {
			t.Error(one, err)
		}
	}
}

func TestTheResultOfADelegationIsInItsThread(t *testing.T) {
	router, _ := personas(t, shared)
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	thread := ok[*Thread](t)(alice.CreateThread(patient(t), &v1.CreateThreadRequest{BaseSpecId: router}))
	w := newWorker(t, bob)
	request := supportRequest()
	request.ThreadId = thread.ID()
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, request)
	ok[*v1.Receipt](t)(await(t, w.owned).Finish(patient(t), map[string]any{"answer": 42}, ""))
	if done := await(t, lending); done.err != nil {
		t.Error(done.err)
	}
	page := ok[*v1.ListEntriesResponse](t)(
		thread.Workspace().Verifying().List(patient(t), &v1.ListEntriesRequest{Topics: []string{"messages"}}))
	if len(page.GetEntries()) != 1 {
		t.Fatal(page)
	}
	message := page.GetEntries()[0].GetJson()
	if !strings.Contains(message, `"task_id":"`+ticket+`"`) || !strings.Contains(message, `"result":{"answer":42}`) {
		t.Error(message)
	}
}

func TestAThreadNeedsSpecsThatAreThere(t *testing.T) {
	router, _ := personas(t, shared)
	alice := shared.agent(t, "alice")
	_, err := alice.CreateThread(patient(t), &v1.CreateThreadRequest{BaseSpecId: unique("missing")})
	refused(t, err, "HANDOFF_RESOLVE_FAILED")
	thread := ok[*Thread](t)(alice.CreateThread(patient(t), &v1.CreateThreadRequest{BaseSpecId: router}))
	_, err = thread.Activate(patient(t), unique("missing"))
	refused(t, err, "HANDOFF_RESOLVE_FAILED")
	if answer := ok[*v1.ApplyHandoffActionResponse](t)(thread.Request(patient(t), unique("missing"))); answer.GetWarning() == "" {
		t.Error(answer)
	}
	_, err = alice.PutAgentSpec(patient(t), "", &v1.AgentSpec{SpecId: unique("own"), ModelId: "large"})
	refused(t, err, "PERMISSION_DENIED")
	_, err = alice.Thread(unique("missing")).State(patient(t))
	refused(t, err, "PERMISSION_DENIED")
	if spec := ok[*v1.AgentSpec](t)(alice.GetAgentSpec(patient(t), router, 1)); spec.GetSpecId() != router {
		t.Error(spec)
	}
	for _, list := range []func() (string, error){
		func() (string, error) { return first(alice.AgentSpecs(patient(t)), (*v1.AgentSpec).GetSpecId) },
		func() (string, error) { return first(alice.ModelSpecs(patient(t)), (*v1.ModelSpec).GetModelId) },
	} {
		if id, err := list(); id == "" || err != nil {
			t.Error(id, err)
		}
	}
}

func first[T any](list func(func(T, error) bool), id func(T) string) (string, error) {
	for one, err := range list {
		return id(one), err
	}
	return "", nil
}
