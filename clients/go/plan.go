package baton

import (
	"context"
	"encoding/json"
	"iter"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const plansPerPage = 200

// Plan is a plan of subtasks that was submitted. Agent.SubmitPlan and Agent.Plan return it.
type Plan struct {
	agent *Agent
	id    string
}

// ValidatePlan returns all problems of a plan and submits nothing. Without an error among them the plan can be submitted.
// It fails with an Error, FIELD_INVALID, if a field has no meaning.
func (a *Agent) ValidatePlan(ctx context.Context, plan *v1.Plan) ([]*v1.PlanProblem, error) {
	answer, err := call(ctx, a, a.plans.ValidatePlan, &v1.ValidatePlanRequest{Plan: plan})
	return answer.GetProblems(), err
}

// SubmitPlan signs and submits a plan; an empty plan_id gets a new one. The same plan again is the same plan. It fails
// with an Error: PLAN_INVALID, whose Fields name each problem, or PLAN_EXISTS for another plan with the id.
func (a *Agent) SubmitPlan(ctx context.Context, plan *v1.Plan) (*Plan, error) {
	submitted := proto.CloneOf(plan)
	submitted.PlanId = orElse(submitted.GetPlanId(), newID())
	if _, err := a.Send(ctx, "", About{}, &v1.PlanSubmission{Plan: submitted}); err != nil {
		return nil, err
	}
	return a.Plan(submitted.GetPlanId()), nil
}

// Plan returns the plan with this id. It sends nothing.
func (a *Agent) Plan(planID string) *Plan { return &Plan{a, planID} }

// Plans iterates over the plans in one of these states, all without states, newest first and without their subtasks. It
// reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) Plans(ctx context.Context, states ...v1.PlanState) iter.Seq2[*v1.PlanRun, error] {
	return pages(func(token string) ([]*v1.PlanRun, string, error) {
		request := &v1.ListPlansRequest{PageSize: plansPerPage, PageToken: token, States: states}
		page, err := call(ctx, a, a.plans.ListPlans, request)
		return page.GetPlans(), page.GetNextPageToken(), err
	})
}

// ID returns the id of the plan.
func (p *Plan) ID() string { return p.id }

// Workspace returns the workspace of the plan, which has the results of the subtasks by topic.
func (p *Plan) Workspace() *Workspace { return p.agent.Workspace("plan:" + p.id) }

// State returns the present state of the plan. It fails with an Error, PLAN_UNKNOWN.
func (p *Plan) State(ctx context.Context) (*v1.PlanRun, error) {
	answer, err := call(ctx, p.agent, p.agent.plans.GetPlan, &v1.GetPlanRequest{PlanId: p.id})
	return answer.GetPlan(), err
}

// Watch follows the log of the plan from after a number: each entry once and in order, or a gap that covers it, also over
// lost connections and restarts of the broker, and one caught_up after the entries that existed at the start. The
// iteration ends when the plan has ended, or with an error: the cause of ctx, Agent.Err, or the broker's refusal.
func (p *Plan) Watch(ctx context.Context, after uint64) iter.Seq2[*v1.WatchPlanResponse, error] {
	open := func(ctx context.Context, after uint64) (grpc.ServerStreamingClient[v1.WatchPlanResponse], error) {
		request := &v1.WatchPlanRequest{PlanId: p.id, AfterNumber: after}
		return p.agent.plans.WatchPlan(p.agent.Authorize(ctx), request)
	}
	// A plan that was retried has the ends of its earlier rounds in the log, so an entry alone is not the end.
	isOver := func(ctx context.Context, last uint64) (bool, error) {
		plan, err := p.State(ctx)
		return plan.GetState() > v1.PlanState_PLAN_STATE_RUNNING && plan.GetLogLength() <= last, err
	}
	return followLog(ctx, p.agent, after, logStream[v1.WatchPlanResponse]{
		open:       open,
		number:     func(update *v1.WatchPlanResponse) uint64 { return update.GetEntry().GetNumber() },
		isCaughtUp: func(update *v1.WatchPlanResponse) bool { return update.GetCaughtUp() != nil },
		isOver:     isOver,
	})
}

// Ended waits for the end of the plan, and returns its state: COMPLETED, FAILED or CANCELLED. It fails as Watch.
func (p *Plan) Ended(ctx context.Context) (*v1.PlanRun, error) {
	for _, err := range p.Watch(ctx, 0) {
		if err != nil {
			return nil, err
		}
	}
	answer, err := persist(ctx, p.agent, p.agent.plans.GetPlan, &v1.GetPlanRequest{PlanId: p.id})
	return answer.GetPlan(), err
}

// Results returns the results of the subtasks that have completed, by their ids. It fails with an Error, PLAN_UNKNOWN.
func (p *Plan) Results(ctx context.Context) (map[string]*v1.SubtaskResult, error) {
	results := map[string]*v1.SubtaskResult{}
	for result, err := range p.eachResult(ctx) {
		if err != nil {
			return nil, err
		}
		results[result.GetSubtaskId()] = result
	}
	return results, nil
}

func (p *Plan) eachResult(ctx context.Context) iter.Seq2[*v1.SubtaskResult, error] {
	return pages(func(token string) ([]*v1.SubtaskResult, string, error) {
		request := &v1.ListPlanResultsRequest{PlanId: p.id, PageToken: token}
		page, err := call(ctx, p.agent, p.agent.plans.ListPlanResults, request)
		return page.GetResults(), page.GetNextPageToken(), err
	})
}

// Cancel ends the plan at once, and returns it: its open handoffs are cancelled and its tasks taken back. It fails with an
// Error, PLAN_FINAL, if the plan has ended otherwise.
func (p *Plan) Cancel(ctx context.Context, reason string) (*v1.PlanRun, error) {
	request := &v1.CancelPlanRequest{PlanId: p.id, ReasonText: reason}
	answer, err := call(ctx, p.agent, p.agent.plans.CancelPlan, request)
	return answer.GetPlan(), err
}

// Extend signs and adds subtasks to the plan while it runs; they may depend on those that it has. defaults, or nil, stand for
// what they leave out. The same extension again changes nothing. It fails with an Error: PLAN_INVALID, whose Fields name each
// problem, PLAN_FINAL if the plan has ended, or CONFLICT if another extension came first.
func (p *Plan) Extend(ctx context.Context, defaults *v1.SubtaskDefaults, subtasks ...*v1.Subtask) error {
	extension := &v1.PlanExtension{PlanId: p.id, Subtasks: subtasks, Defaults: defaults}
	_, err := p.agent.Send(ctx, "", About{}, &v1.PlanSubmission{Extension: extension})
	return err
}

// CancelSubtask ends one subtask at once, and returns the plan. It fails with an Error: SUBTASK_UNKNOWN, SUBTASK_STATE if the
// subtask has ended otherwise, or PLAN_FINAL.
func (p *Plan) CancelSubtask(ctx context.Context, subtaskID, reason string) (*v1.PlanRun, error) {
	request := &v1.CancelSubtaskRequest{PlanId: p.id, SubtaskId: subtaskID, ReasonText: reason}
	answer, err := call(ctx, p.agent, p.agent.plans.CancelSubtask, request)
	return answer.GetPlan(), err
}

// RetrySubtask starts one subtask again that did not complete, and returns the plan. It fails with an Error: SUBTASK_UNKNOWN,
// SUBTASK_STATE in another state, or PLAN_FINAL.
func (p *Plan) RetrySubtask(ctx context.Context, subtaskID string) (*v1.PlanRun, error) {
	request := &v1.RetrySubtaskRequest{PlanId: p.id, SubtaskId: subtaskID}
	answer, err := call(ctx, p.agent, p.agent.plans.RetrySubtask, request)
	return answer.GetPlan(), err
}

// ReassignSubtask gives one subtask to another agent, or to one of "type:NAME", and returns the plan. It fails with an Error:
// SUBTASK_UNKNOWN, SUBTASK_STATE if the subtask has ended, RECEIVER_UNKNOWN, RECEIVER_INVALID if the agent lacks what the
// subtask demands, AGENT_GONE, or PLAN_FINAL.
func (p *Plan) ReassignSubtask(ctx context.Context, subtaskID, to, reason string) (*v1.PlanRun, error) {
	request := &v1.ReassignSubtaskRequest{PlanId: p.id, SubtaskId: subtaskID, To: to, ReasonText: reason}
	answer, err := call(ctx, p.agent, p.agent.plans.ReassignSubtask, request)
	return answer.GetPlan(), err
}

// Retry starts again what did not complete, and returns the plan. It fails with an Error: PLAN_RUNNING, or PLAN_FINAL if
// nothing is left to retry.
func (p *Plan) Retry(ctx context.Context) (*v1.PlanRun, error) {
	answer, err := call(ctx, p.agent, p.agent.plans.RetryPlan, &v1.RetryPlanRequest{PlanId: p.id})
	return answer.GetPlan(), err
}

// SubtaskResults are results of subtasks, by their ids.
type SubtaskResults map[string]*v1.SubtaskResult

// Element is an element of the list that a subtask works on.
type Element struct {
	// The place in the list, from 0 on.
	Index int `json:"index"`
	// The number of elements of the list.
	Count int `json:"count"`
	// The value as JSON; ValueInto decodes it.
	Value json.RawMessage `json:"value"`
}

// ValueInto decodes the value, as json.Unmarshal does.
func (e *Element) ValueInto(into any) error { return json.Unmarshal(e.Value, into) }

// Subtask is a subtask of a plan as its agent sees it: what is to be done, and what it gets for it. Offer.Subtask and
// Takeover.Subtask return it.
type Subtask struct {
	// The plan.
	PlanID string
	// The id of the subtask.
	SubtaskID string
	// What is to be done.
	Description string
	// The role of the agent. Empty before the context has arrived.
	Role string
	// The attempt, from 1 on. 0 before the context has arrived.
	Attempt uint64
	// Whether the work undoes that of the subtask, whose result is in DependencyResults. False before the context has arrived.
	IsCompensation bool
	// The element of the list of which this work is a part; nil: the work is the whole subtask.
	Element *Element
	// What the plan gives to this subtask; nil for nothing. A number is a json.Number, which keeps each digit.
	Input map[string]any
	// What the plan gives to every subtask; nil for nothing.
	PlanInput map[string]any
	// The results of all earlier subtasks or ancestors.
	PreviousResults SubtaskResults
	// The results of the direct dependencies.
	DependencyResults SubtaskResults
	// The results of the producers of each topic that the subtask consumes, by topic.
	Consumed map[string]SubtaskResults
	// The subtasks whose results were too large for the context. Their results above have Success and NumericValue alone;
	// Fetch gets the rest.
	Omitted []string

	agent *Agent
}

// Subtask returns the subtask that the handoff carries out: its ids and description, and after Accept also its inputs. It
// returns nil for a handoff that carries out none.
func (o *Offer) Subtask() *Subtask {
	o.mu.Lock()
	takeover := o.takeover
	o.mu.Unlock()
	if takeover != nil {
		return takeover.Subtask()
	}
	behalf := o.Request.GetOnBehalfOf()
	if behalf.GetPlanId() == "" {
		return nil
	}
	return &Subtask{
		PlanID: behalf.GetPlanId(), SubtaskID: behalf.GetSubtaskId(), Description: o.Request.GetInitialContextSummary(),
		agent: o.agent,
	}
}

// Subtask returns the subtask that the handoff carries out, with its inputs. It returns nil if the context is not that of a
// subtask.
func (t *Takeover) Subtask() *Subtask {
	var head struct {
		PlanID      string `json:"plan_id"`
		SubtaskID   string `json:"subtask_id"`
		Description string `json:"description"`
		Role        string `json:"role"`
		Attempt     uint64 `json:"attempt"`
		Compensates string `json:"compensates"`
	}
	if t.JSON("task_description", &head) != nil || head.PlanID == "" || head.SubtaskID == "" {
		return nil
	}
	s := &Subtask{
		PlanID: head.PlanID, SubtaskID: head.SubtaskID, Description: head.Description, Role: head.Role,
		Attempt: max(head.Attempt, 1), IsCompensation: head.Compensates != "", Consumed: map[string]SubtaskResults{}, agent: t.offer.agent,
	}
	// A section that is missing, or of another form, is none.
	s.Input, s.PlanInput = t.object("input"), t.object("plan_input")
	if t.Section("element") != nil {
		s.Element = &Element{}
		_ = t.JSON("element", s.Element)
	}
	var previous, direct map[string]subtaskResult
	var consumed map[string]map[string]subtaskResult
	_ = t.JSON("previous_results", &previous)
	_ = t.JSON("dependency_results", &direct)
	_ = t.JSON("consumed", &consumed)
	s.PreviousResults, s.DependencyResults = s.resultsOf(previous), s.resultsOf(direct)
	for topic, results := range consumed {
		s.Consumed[topic] = s.resultsOf(results)
	}
	slices.Sort(s.Omitted)
	s.Omitted = slices.Compact(s.Omitted)
	return s
}

// object returns an object of the context with each digit of its numbers; nil: none.
func (t *Takeover) object(name string) map[string]any {
	content, isJSON := t.Section(name).GetContent().(*v1.ContextSection_Json)
	if !isJSON {
		return nil
	}
	object, err := JSONObject(content.Json)
	if err != nil {
		return nil
	}
	return object
}

// InputInto decodes what the plan gives to this subtask into a value, as json.Unmarshal does.
func (s *Subtask) InputInto(into any) error { return decodeInto(s.Input, into) }

// PlanInputInto decodes what the plan gives to every subtask into a value, as json.Unmarshal does.
func (s *Subtask) PlanInputInto(into any) error { return decodeInto(s.PlanInput, into) }

// Fetch gets from the broker the whole of the results that the context had no room for. It is called after
// Takeover.Complete: from then on the broker shows the plan to this agent. It fails with an Error, PERMISSION_DENIED,
// before.
func (s *Subtask) Fetch(ctx context.Context) error {
	if len(s.Omitted) == 0 {
		return nil
	}
	for whole, err := range s.agent.Plan(s.PlanID).eachResult(ctx) {
		if err != nil {
			return err
		}
		id := whole.GetSubtaskId()
		if at := slices.Index(s.Omitted, id); at >= 0 {
			s.Omitted = slices.Delete(s.Omitted, at, at+1)
			s.PreviousResults.fill(id, whole)
			s.DependencyResults.fill(id, whole)
			for _, results := range s.Consumed {
				results.fill(id, whole)
			}
		}
	}
	return nil
}

func (r SubtaskResults) fill(id string, whole *v1.SubtaskResult) {
	if r[id] != nil {
		r[id] = whole
	}
}

// subtaskResult is a result in a context.
type subtaskResult struct {
	Response     string          `json:"response"`
	Tokens       uint64          `json:"tokens"`
	Success      bool            `json:"success"`
	ToolsUsed    []string        `json:"tools_used"`
	NumericValue *float64        `json:"numeric_value"`
	Result       json.RawMessage `json:"result"`
	IsOmitted    bool            `json:"omitted"`
}

func (s *Subtask) resultsOf(all map[string]subtaskResult) SubtaskResults {
	results := SubtaskResults{}
	for id, one := range all {
		if one.IsOmitted {
			s.Omitted = append(s.Omitted, id)
		}
		results[id] = &v1.SubtaskResult{
			SubtaskId: id, Response: one.Response, Tokens: one.Tokens, Success: one.Success, ToolsUsed: one.ToolsUsed,
			NumericValue: one.NumericValue, ResultJson: string(one.Result),
		}
	}
	return results
}
