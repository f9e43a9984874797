package baton

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const threadsPerPage = 200

// PutAgentSpec registers the spec of a persona, or a further revision of it, and returns it with its revision. The same
// spec again is the same revision. By default only operators may. It authenticates as an operator, or as this agent if
// operatorToken is empty.
func (a *Agent) PutAgentSpec(ctx context.Context, operatorToken string, spec *v1.AgentSpec) (*v1.AgentSpec, error) {
	answer, err := administer(ctx, a, operatorToken, a.threads.PutAgentSpec, &v1.PutAgentSpecRequest{Spec: spec})
	return answer.GetSpec(), err
}

// GetAgentSpec returns one revision of the spec of a persona; 0: the latest. It fails with an Error, SPEC_UNKNOWN.
func (a *Agent) GetAgentSpec(ctx context.Context, specID string, revision uint64) (*v1.AgentSpec, error) {
	request := &v1.GetAgentSpecRequest{SpecId: specID, Revision: revision}
	answer, err := call(ctx, a, a.threads.GetAgentSpec, request)
	return answer.GetSpec(), err
}

// AgentSpecs iterates over the latest revisions of the specs of personas, newest first, without their prompts.
func (a *Agent) AgentSpecs(ctx context.Context) iter.Seq2[*v1.AgentSpec, error] {
	return pages(func(token string) ([]*v1.AgentSpec, string, error) {
		request := &v1.ListAgentSpecsRequest{PageSize: threadsPerPage, PageToken: token}
		page, err := call(ctx, a, a.threads.ListAgentSpecs, request)
		return page.GetSpecs(), page.GetNextPageToken(), err
	})
}

// PutModelSpec registers the spec of a model, as PutAgentSpec that of a persona.
func (a *Agent) PutModelSpec(ctx context.Context, operatorToken string, spec *v1.ModelSpec) (*v1.ModelSpec, error) {
	answer, err := administer(ctx, a, operatorToken, a.threads.PutModelSpec, &v1.PutModelSpecRequest{Spec: spec})
	return answer.GetSpec(), err
}

// ModelSpecs iterates over the latest revisions of the specs of models, newest first, without their parameters.
func (a *Agent) ModelSpecs(ctx context.Context) iter.Seq2[*v1.ModelSpec, error] {
	return pages(func(token string) ([]*v1.ModelSpec, string, error) {
		request := &v1.ListModelSpecsRequest{PageSize: threadsPerPage, PageToken: token}
		page, err := call(ctx, a, a.threads.ListModelSpecs, request)
		return page.GetSpecs(), page.GetNextPageToken(), err
	})
}

// CreateThread creates a thread; an empty thread_id gets a new one, so that the call creates one thread, however often it
// is repeated. It fails with an Error, among others HANDOFF_RESOLVE_FAILED if the base spec or its model is not there.
func (a *Agent) CreateThread(ctx context.Context, request *v1.CreateThreadRequest) (*Thread, error) {
	asked := proto.CloneOf(request)
	asked.ThreadId = orElse(asked.GetThreadId(), newID())
	answer, err := persist(ctx, a, a.threads.CreateThread, asked)
	if err != nil {
		return nil, err
	}
	return a.Thread(answer.GetThread().GetThreadId()), nil
}

// Thread returns the thread with this id. It sends nothing.
func (a *Agent) Thread(threadID string) *Thread { return &Thread{a, threadID} }

// Threads iterates over the threads that match the request's filters, newest first. It sets the request's page_token.
func (a *Agent) Threads(ctx context.Context, request *v1.ListThreadsRequest) iter.Seq2[*v1.Thread, error] {
	asked := &v1.ListThreadsRequest{
		TaskId: request.GetTaskId(), InForceSpecId: request.GetInForceSpecId(),
		PageSize: orElse(request.GetPageSize(), threadsPerPage),
	}
	return pages(func(token string) ([]*v1.Thread, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.threads.ListThreads, asked)
		return page.GetThreads(), page.GetNextPageToken(), err
	})
}

// Thread is one conversation that changes its persona at step boundaries. CreateThread and Agent.Thread return it.
type Thread struct {
	agent *Agent
	id    string
}

// ID returns the id of the thread.
func (t *Thread) ID() string { return t.id }

// Workspace returns the workspace of the thread.
func (t *Thread) Workspace() *Workspace { return t.agent.Workspace("thread:" + t.id) }

// State returns the present state of the thread. It fails with an Error: THREAD_UNKNOWN, or
// PERMISSION_DENIED for a thread in which this agent takes no part.
func (t *Thread) State(ctx context.Context) (*v1.Thread, error) {
	answer, err := call(ctx, t.agent, t.agent.threads.GetThread, &v1.GetThreadRequest{ThreadId: t.id})
	return answer.GetThread(), err
}

// Request requests another persona for the next boundary, in place of an earlier request. The answer warns if the spec does
// not resolve at present. It fails with an Error, HANDOFF_PLUGIN_MISSING, if the spec in force does not permit actions.
func (t *Thread) Request(ctx context.Context, specID string) (*v1.ApplyHandoffActionResponse, error) {
	return t.act(ctx, &v1.ApplyHandoffActionRequest{Action: &v1.ApplyHandoffActionRequest_RequestSpecId{RequestSpecId: specID}})
}

// Activate makes a spec active, which is in force from the next boundary on. It fails as Request, and with
// HANDOFF_RESOLVE_FAILED if the spec or its model is not there.
func (t *Thread) Activate(ctx context.Context, specID string) (*v1.ApplyHandoffActionResponse, error) {
	return t.act(ctx, &v1.ApplyHandoffActionRequest{Action: &v1.ApplyHandoffActionRequest_ActivateSpecId{ActivateSpecId: specID}})
}

// Clear returns to the base spec from the next boundary on. It fails as Request.
func (t *Thread) Clear(ctx context.Context) (*v1.ApplyHandoffActionResponse, error) {
	return t.act(ctx, &v1.ApplyHandoffActionRequest{Action: &v1.ApplyHandoffActionRequest_Clear{Clear: true}})
}

func (t *Thread) act(
	ctx context.Context, request *v1.ApplyHandoffActionRequest,
) (*v1.ApplyHandoffActionResponse, error) {
	// The id lets the broker recognise a repeat.
	request.ThreadId, request.ActionId = t.id, newID()
	return persist(ctx, t.agent, t.agent.threads.ApplyHandoffAction, request)
}

// Watch follows the log of the thread from after a number: each entry once and in order, or a gap that covers it, also over
// lost connections and restarts of the broker, and one caught_up after the entries that existed at the start. The
// iteration ends with an error: the cause of ctx, Agent.Err, or the broker's refusal.
func (t *Thread) Watch(ctx context.Context, after uint64) iter.Seq2[*v1.WatchThreadResponse, error] {
	open := func(ctx context.Context, after uint64) (grpc.ServerStreamingClient[v1.WatchThreadResponse], error) {
		request := &v1.WatchThreadRequest{ThreadId: t.id, AfterNumber: after}
		return t.agent.threads.WatchThread(t.agent.Authorize(ctx), request)
	}
	return followLog(ctx, t.agent, after, logStream[v1.WatchThreadResponse]{
		open:       open,
		number:     func(update *v1.WatchThreadResponse) uint64 { return update.GetEntry().GetNumber() },
		isCaughtUp: func(update *v1.WatchThreadResponse) bool { return update.GetCaughtUp() != nil },
	})
}

// Run opens a run under a new id, with its first step. It fails with an Error, RUN_OPEN, while another run holds its
// lease, at most 60 s after its last boundary.
func (t *Thread) Run(ctx context.Context) (*ThreadRun, error) { return t.RunAs(ctx, newID()) }

// RunAs is Run under this id, a UUID. The same id again, before its first step has ended, opens no second run. It fails
// with an Error, RUN_FINAL, if the run with this id has ended.
func (t *Thread) RunAs(ctx context.Context, runID string) (*ThreadRun, error) {
	run := &ThreadRun{thread: t, id: runID}
	begun, err := run.begin(ctx)
	if err != nil {
		return nil, err
	}
	run.step = stepOf(max(begun.GetThread().GetStep(), 1), begun)
	return run, nil
}

// ThreadRun is an open run of a thread, which works one step after the other. One goroutine at a time uses it.
//
// The lease of the run lasts 60 s from the begin of a step. A longer step calls Keep within it.
type ThreadRun struct {
	thread *Thread
	id     string
	step   *Step
}

// Step is a step of a run: what it runs with.
type Step struct {
	// The number, starting at 1.
	Number uint64
	// The spec in force, for the whole step.
	Spec *v1.AgentSpec
	// The spec of its model.
	Model *v1.ModelSpec
	// Whether another spec or revision than before is in force.
	Switched bool
	// The plugins to turn off before the step.
	DeactivatePluginIDs []string
	// The plugins to turn on before the step.
	ActivatePluginIDs []string
	// The request that ended at the begin of the step; nil for none.
	Request *v1.ThreadRequestEnded
}

// boundary is the answer of BeginRun or EndStep.
type boundary interface {
	GetSpec() *v1.AgentSpec
	GetModel() *v1.ModelSpec
	GetSwitched() bool
	GetDeactivatePluginIds() []string
	GetActivatePluginIds() []string
	GetRequest() *v1.ThreadRequestEnded
}

func stepOf(number uint64, b boundary) *Step {
	return &Step{
		number, b.GetSpec(), b.GetModel(), b.GetSwitched(), b.GetDeactivatePluginIds(), b.GetActivatePluginIds(),
		b.GetRequest(),
	}
}

// ID returns the id of the run.
func (r *ThreadRun) ID() string { return r.id }

// Thread returns the thread.
func (r *ThreadRun) Thread() *Thread { return r.thread }

// Step returns the present step.
func (r *ThreadRun) Step() *Step { return r.step }

// NextStep ends the present step, and begins the next one. It fails with an Error: RUN_FINAL if the lease is over, RUN_OPEN
// if another run has begun since.
func (r *ThreadRun) NextStep(ctx context.Context) (*Step, error) {
	step, err := r.endStep(ctx, r.step.Number)
	if err == nil {
		r.step = step
	}
	return step, err
}

// Keep renews the lease within a long step. It fails as NextStep.
func (r *ThreadRun) Keep(ctx context.Context) error {
	var err error
	if r.step.Number > 1 {
		_, err = r.endStep(ctx, r.step.Number-1)
	} else {
		_, err = r.begin(ctx)
	}
	return err
}

// End ends the run, and returns the thread. It fails as NextStep.
func (r *ThreadRun) End(ctx context.Context) (*v1.Thread, error) {
	request := &v1.EndRunRequest{ThreadId: r.thread.id, RunId: r.id}
	answer, err := persist(ctx, r.thread.agent, r.thread.agent.threads.EndRun, request)
	return answer.GetThread(), err
}

func (r *ThreadRun) begin(ctx context.Context) (*v1.BeginRunResponse, error) {
	request := &v1.BeginRunRequest{ThreadId: r.thread.id, RunId: r.id}
	return persist(ctx, r.thread.agent, r.thread.agent.threads.BeginRun, request)
}

func (r *ThreadRun) endStep(ctx context.Context, number uint64) (*Step, error) {
	request := &v1.EndStepRequest{ThreadId: r.thread.id, RunId: r.id, Step: number}
	answer, err := persist(ctx, r.thread.agent, r.thread.agent.threads.EndStep, request)
	if err != nil {
		return nil, err
	}
	return stepOf(number+1, answer), nil
}
