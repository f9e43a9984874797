package baton

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const runsPerPage = 200

// RegisterGraph registers a graph, or a further revision of it, and returns it with its revision and the warnings. The
// same graph again is the same revision. It fails with an Error, GRAPH_INVALID, whose Fields name each problem.
func (a *Agent) RegisterGraph(ctx context.Context, graph *v1.Graph) (*v1.Graph, []*v1.GraphProblem, error) {
	answer, err := persist(ctx, a, a.routing.RegisterGraph, &v1.RegisterGraphRequest{Graph: graph})
	return answer.GetGraph(), answer.GetProblems(), err
}

// ValidateGraph returns all problems of a graph and registers nothing. Without an error among them the graph can be
// registered.
func (a *Agent) ValidateGraph(ctx context.Context, graph *v1.Graph) ([]*v1.GraphProblem, error) {
	answer, err := call(ctx, a, a.routing.ValidateGraph, &v1.ValidateGraphRequest{Graph: graph})
	return answer.GetProblems(), err
}

// GetGraph returns the latest revision of a graph. It fails with an Error, GRAPH_UNKNOWN.
func (a *Agent) GetGraph(ctx context.Context, graphID string) (*v1.Graph, error) {
	answer, err := call(ctx, a, a.routing.GetGraph, &v1.GetGraphRequest{GraphId: graphID})
	return answer.GetGraph(), err
}

// Graphs iterates over the graphs, newest first and without their nodes. It reads page by page, and ends with an error if
// a page cannot be read.
func (a *Agent) Graphs(ctx context.Context) iter.Seq2[*v1.Graph, error] {
	return pages(func(token string) ([]*v1.Graph, string, error) {
		request := &v1.ListGraphsRequest{PageSize: runsPerPage, PageToken: token}
		page, err := call(ctx, a, a.routing.ListGraphs, request)
		return page.GetGraphs(), page.GetNextPageToken(), err
	})
}

// Runs iterates over the runs that match the request's filters, newest first, each with its graph without nodes. It sets
// the request's page_token, reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) Runs(ctx context.Context, request *v1.ListRunsRequest) iter.Seq2[*v1.Run, error] {
	asked := proto.CloneOf(request)
	asked.PageSize = orElse(asked.GetPageSize(), runsPerPage)
	return pages(func(token string) ([]*v1.Run, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.routing.ListRuns, asked)
		return page.GetRuns(), page.GetNextPageToken(), err
	})
}

// StartRun starts a run through a graph. An empty run_id gets a new one, so that the call starts one run, however often it
// is repeated: StartRun repeats it until the broker answers or ctx ends. It fails with an Error, among others GRAPH_UNKNOWN,
// and NOT_OWNER if this agent does not own the task.
func (a *Agent) StartRun(ctx context.Context, request *v1.StartRunRequest) (*Run, error) {
	asked := proto.CloneOf(request)
	asked.RunId = orElse(asked.GetRunId(), newID())
	answer, err := persist(ctx, a, a.routing.StartRun, asked)
	if err != nil {
		return nil, err
	}
	return a.Run(answer.GetRun().GetRunId()), nil
}

// Run returns the run with this id. It sends nothing.
func (a *Agent) Run(runID string) *Run { return &Run{a, runID} }

// Run is a run through a graph: the tools of its nodes, and the turns of their models. StartRun and Agent.Run return it.
type Run struct {
	agent *Agent
	id    string
}

// Turn is a turn of a node's model, for Run.Turn.
type Turn struct {
	// The id of the turn, a UUID: the idempotency key. NewTurn sets it.
	ID string
	// All tool calls of the turn, at most 128.
	Calls []*v1.ToolCall
	// Whether the model has finished. Without a transfer call the node then leads to its forward outputs.
	Finished bool
	// The output of the node for the nodes that follow, at most 65536 bytes.
	Output string
	// The error that ended the node's work, at most 65536 bytes. Not together with a transfer call.
	Error string
}

// NewTurn returns a turn under a new id, with these tool calls.
func NewTurn(calls ...*v1.ToolCall) *Turn { return &Turn{ID: newID(), Calls: calls} }

// ID returns the id of the run.
func (r *Run) ID() string { return r.id }

// State returns the present state of the run. It fails with an Error, RUN_UNKNOWN.
func (r *Run) State(ctx context.Context) (*v1.Run, error) {
	answer, err := call(ctx, r.agent, r.agent.routing.GetRun, &v1.GetRunRequest{RunId: r.id})
	return answer.GetRun(), err
}

// Tools returns the tools that the node's model may call in its next turn, in this shape, and what the nodes before it
// gave. It fails with an Error: NODE_NOT_ACTIVE, and RUN_FINAL once the run has ended.
func (r *Run) Tools(ctx context.Context, nodeID string, shape v1.ToolShape) (*v1.GetNodeToolsResponse, error) {
	request := &v1.GetNodeToolsRequest{RunId: r.id, NodeId: nodeID, Shape: shape}
	return call(ctx, r.agent, r.agent.routing.GetNodeTools, request)
}

// Turn reports a turn of the node's model. The same turn again gets its first answer, so Turn repeats the report until
// the broker answers or ctx ends. A wrong transfer is no error: the answer's error_code names the rule, and its
// tool_results are for the model. If the answer has a handoff_proposal, the task's owner hands the task over with it, to
// the answer's handoff_receiver_id. Turn fails with an Error: NODE_NOT_ACTIVE, NOT_OWNER, RUN_FINAL or
// MESSAGE_ID_REUSED.
func (r *Run) Turn(ctx context.Context, nodeID string, turn *Turn) (*v1.RecordTurnResponse, error) {
	request := &v1.RecordTurnRequest{
		RunId: r.id, NodeId: nodeID, TurnId: turn.ID, Calls: turn.Calls, Finished: turn.Finished, Output: turn.Output,
		Error: turn.Error,
	}
	return persist(ctx, r.agent, r.agent.routing.RecordTurn, request)
}

// Cancel cancels the run and returns it. An open handoff of its task goes on. reason has at most 4096 bytes. It fails with
// an Error, RUN_FINAL, if the run has ended otherwise.
func (r *Run) Cancel(ctx context.Context, reason string) (*v1.Run, error) {
	request := &v1.CancelRunRequest{RunId: r.id, ReasonText: clipped(reason)}
	answer, err := call(ctx, r.agent, r.agent.routing.CancelRun, request)
	return answer.GetRun(), err
}

// Watch follows the log of the run from after a number: each entry once and in order, or a gap that covers it, also over
// lost connections and restarts of the broker, and one caught_up after the entries that existed at the start. The
// iteration ends after the entry with the run's end, or with an error: the cause of ctx, Agent.Err, or the broker's
// refusal.
func (r *Run) Watch(ctx context.Context, after uint64) iter.Seq2[*v1.WatchRunResponse, error] {
	open := func(ctx context.Context, after uint64) (grpc.ServerStreamingClient[v1.WatchRunResponse], error) {
		request := &v1.WatchRunRequest{RunId: r.id, AfterNumber: after}
		return r.agent.routing.WatchRun(r.agent.Authorize(ctx), request)
	}
	isLast := func(update *v1.WatchRunResponse) bool { return update.GetEntry().GetEnded() != nil }
	isOver := func(ctx context.Context, last uint64) (bool, error) {
		run, err := r.State(ctx)
		// A run that ended while the stream was broken has further entries.
		return run.GetState() > v1.RunState_RUN_STATE_RUNNING && run.GetLogLength() <= last, err
	}
	return followLog(ctx, r.agent, after, logStream[v1.WatchRunResponse]{
		open:       open,
		number:     func(update *v1.WatchRunResponse) uint64 { return update.GetEntry().GetNumber() },
		isCaughtUp: func(update *v1.WatchRunResponse) bool { return update.GetCaughtUp() != nil },
		isLast:     isLast,
		isOver:     isOver,
	})
}
