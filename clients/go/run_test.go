package baton

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// A graph in which a triage chooses between billing and support, and its runs.

func triageGraph() *v1.Graph {
	return &v1.Graph{
		GraphId: unique("triage"), EntryNodeIds: []string{"triage"},
		Nodes: []*v1.Node{
			{NodeId: "triage", Description: "reads the ticket", Handoffs: proto.Uint32(2), OutputNodes: []string{"billing", "support", "end"}},
			{NodeId: "billing", Description: "knows invoices", OutputNodes: []string{"end"}},
			{NodeId: "support", Description: "knows routers", OutputNodes: []string{"end"}},
		},
	}
}

func registered(t *testing.T, agent *Agent, graph *v1.Graph) *v1.Graph {
	t.Helper()
	known, problems, err := agent.RegisterGraph(patient(t), graph)
	if err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	return known
}

func started(t *testing.T, agent *Agent, request *v1.StartRunRequest) *Run {
	t.Helper()
	return ok[*Run](t)(agent.StartRun(patient(t), request))
}

// transfer is the turn of a model that calls a transfer tool.
func transfer(to string) *Turn {
	return NewTurn(&v1.ToolCall{CallId: "1", Name: "transfer_to_" + to, ArgumentsJson: `{"reason":"an invoice"}`})
}

func TestAGraphIsRegisteredOnceAndAWrongOneNamesItsProblems(t *testing.T) {
	alice, graph := shared.agent(t, "alice"), triageGraph()
	known := registered(t, alice, graph)
	if again := registered(t, alice, graph); known.GetRevision() != 1 || again.GetRevision() != 1 {
		t.Error(known, again)
	}
	graph.Description = "tickets"
	if next := registered(t, alice, graph); next.GetRevision() != 2 {
		t.Error(next)
	}
	if latest := ok[*v1.Graph](t)(alice.GetGraph(patient(t), graph.GetGraphId())); latest.GetDescription() != "tickets" {
		t.Error(latest)
	}
	var ids []string
	for one, err := range alice.Graphs(patient(t)) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one.GetGraphId())
	}
	if !slices.Contains(ids, graph.GetGraphId()) {
		t.Error(ids)
	}
	graph.Nodes[1].OutputNodes = []string{"nowhere"}
	problems := ok[[]*v1.GraphProblem](t)(alice.ValidateGraph(patient(t), graph))
	if len(problems) == 0 || problems[0].GetCode() != "OUTPUT_UNKNOWN" {
		t.Error(problems)
	}
	_, _, err := alice.RegisterGraph(patient(t), graph)
	if wrong := refused(t, err, "GRAPH_INVALID"); len(wrong.Fields) == 0 {
		t.Error(wrong)
	}
	_, err = alice.GetGraph(patient(t), unique("missing"))
	refused(t, err, "GRAPH_UNKNOWN")
}

func TestAModelRoutesARun(t *testing.T) {
	alice := shared.agent(t, "alice")
	graph := registered(t, alice, triageGraph())
	run := started(t, alice, &v1.StartRunRequest{GraphId: graph.GetGraphId()})
	tools := ok[*v1.GetNodeToolsResponse](t)(run.Tools(patient(t), "triage", v1.ToolShape_TOOL_SHAPE_ANTHROPIC))
	if len(tools.GetTools()) != 3 || len(tools.GetToolsJson()) != 3 || tools.GetRemaining() != 2 {
		t.Error(tools)
	}
	wrong := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "triage", transfer("nowhere")))
	if wrong.GetOutcome() != v1.TurnOutcome_TURN_OUTCOME_REFUSED || wrong.GetErrorCode() != v1.ErrorCode_ERROR_CODE_TRANSFER_NOT_OFFERED {
		t.Error(wrong)
	}
	turn := transfer("billing")
	chosen := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "triage", turn))
	if !slices.Equal(chosen.GetNextNodeIds(), []string{"billing"}) || chosen.GetChoice().GetReason() != "an invoice" {
		t.Error(chosen)
	}
	again := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "triage", turn))
	if again.GetChoice().GetChoiceId() != chosen.GetChoice().GetChoiceId() {
		t.Error(again)
	}
	turn.Output = "another"
	_, err := run.Turn(patient(t), "triage", turn)
	refused(t, err, "MESSAGE_ID_REUSED")
	_, err = run.Tools(patient(t), "triage", v1.ToolShape_TOOL_SHAPE_OPENAI)
	refused(t, err, "NODE_NOT_ACTIVE")
	last := NewTurn()
	last.Finished, last.Output = true, "paid twice"
	ended := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "billing", last))
	if ended.GetRun().GetState() != v1.RunState_RUN_STATE_COMPLETED {
		t.Error(ended)
	}
	_, err = run.Tools(patient(t), "billing", v1.ToolShape_TOOL_SHAPE_OPENAI)
	refused(t, err, "RUN_FINAL")
	_, err = run.Cancel(patient(t), "late")
	refused(t, err, "RUN_FINAL")
	var ids []string
	for one, err := range alice.Runs(patient(t), &v1.ListRunsRequest{GraphId: graph.GetGraphId()}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one.GetRunId())
	}
	if !slices.Equal(ids, []string{run.ID()}) {
		t.Error(ids)
	}
	_, err = alice.Run(newID()).State(patient(t))
	refused(t, err, "RUN_UNKNOWN")
	_, err = alice.StartRun(patient(t), &v1.StartRunRequest{GraphId: unique("missing")})
	refused(t, err, "GRAPH_UNKNOWN")
}

func TestARunIsFollowedOverARestartAndATurnIsRepeated(t *testing.T) {
	b := newBroker(t, "")
	alice := b.agent(t, "alice")
	graph := registered(t, alice, triageGraph())
	run := started(t, alice, &v1.StartRunRequest{GraphId: graph.GetGraphId()})
	numbers, ended := make(chan uint64, 64), make(chan error, 1)
	caughtUp := make(chan bool, 4)
	go func() {
		defer close(ended)
		for update, err := range run.Watch(patient(t), 0) {
			switch {
			case err != nil:
				ended <- err
			case update.GetCaughtUp() != nil:
				caughtUp <- true
			default:
				numbers <- update.GetEntry().GetNumber()
			}
		}
	}()
	await(t, caughtUp)
	b.kill()
	reported := make(chan error, 1)
	go func() {
		_, err := run.Turn(patient(t), "triage", transfer("end"))
		reported <- err
	}()
	b.restart(t)
	if err := await(t, reported); err != nil {
		t.Fatal(err)
	}
	if err := await(t, ended); err != nil {
		t.Fatal(err)
	}
	state := ok[*v1.Run](t)(run.State(patient(t)))
	for number := uint64(1); number <= state.GetLogLength(); number++ {
		if found := await(t, numbers); found != number {
			t.Fatal(found, number)
		}
	}
	if len(numbers) > 0 || len(caughtUp) > 0 || state.GetState() != v1.RunState_RUN_STATE_COMPLETED {
		t.Error(len(numbers), len(caughtUp), state)
	}
	for update, err := range run.Watch(patient(t), state.GetLogLength()) { // of an ended run: it ends
		if err != nil || update.GetCaughtUp() == nil {
			t.Error(update, err)
		}
	}
}

func TestAChoiceOfAnotherAgentsNodeIsAHandoff(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	graph := triageGraph()
	graph.Nodes[1].AgentId = bob.ID()
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	_, err := bob.StartRun(patient(t), &v1.StartRunRequest{GraphId: registered(t, alice, graph).GetGraphId(), TaskId: task.TaskID})
	refused(t, err, "NOT_OWNER")
	run := started(t, alice, &v1.StartRunRequest{GraphId: graph.GetGraphId(), TaskId: task.TaskID})
	handlers, owned := taker(bob)
	serve(t, bob, handlers)
	choice := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "triage", transfer("billing")))
	if choice.GetOutcome() != v1.TurnOutcome_TURN_OUTCOME_PROPOSED || choice.GetHandoffReceiverId() != bob.ID() {
		t.Fatal(choice)
	}
	handed := ok[*HandedOver](t)(task.HandOver(patient(t), bob.ID(), choice.GetHandoffProposal(), goals(t)))
	await(t, owned)
	_, err = run.Turn(patient(t), "billing", NewTurn())
	refused(t, err, "NOT_OWNER")
	last := NewTurn()
	last.Finished = true
	ended := ok[*v1.RecordTurnResponse](t)(bob.Run(run.ID()).Turn(patient(t), "billing", last))
	if ended.GetRun().GetState() != v1.RunState_RUN_STATE_COMPLETED || handed.OwnerID != bob.ID() {
		t.Error(ended, handed)
	}
}

func TestAPlainEdgeToAnotherAgentsNodeIsAHandoff(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	graph := triageGraph()
	graph.Nodes = graph.Nodes[:2]
	graph.Nodes[0].Handoffs = nil
	graph.Nodes[0].OutputNodes = []string{"billing"}
	graph.Nodes[1].AgentId = bob.ID()
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	registered(t, alice, graph)
	run := started(t, alice, &v1.StartRunRequest{GraphId: graph.GetGraphId(), TaskId: task.TaskID})
	handlers, owned := taker(bob)
	told := make(chan *v1.Info, 1)
	handlers.Info = func(_ context.Context, _ *Delivery, letter *v1.Info) error {
		told <- letter
		return nil
	}
	serve(t, bob, handlers)
	first := NewTurn()
	first.Finished = true
	step := ok[*v1.RecordTurnResponse](t)(run.Turn(patient(t), "triage", first))
	if step.GetHandoffReceiverId() != bob.ID() || len(step.GetNextNodeIds()) != 0 {
		t.Fatal(step)
	}
	_, err := run.Turn(patient(t), "billing", NewTurn())
	refused(t, err, "NODE_NOT_ACTIVE")
	ok[*HandedOver](t)(task.HandOver(patient(t), step.GetHandoffReceiverId(), step.GetHandoffProposal(), goals(t)))
	await(t, owned)
	letter := await(t, told)
	if letter.GetTopic() != "run.node_active" || !strings.Contains(letter.GetDataJson(), run.ID()) {
		t.Error(letter)
	}
	last := NewTurn()
	last.Finished = true
	ended := ok[*v1.RecordTurnResponse](t)(bob.Run(run.ID()).Turn(patient(t), "billing", last))
	if ended.GetRun().GetState() != v1.RunState_RUN_STATE_COMPLETED {
		t.Error(ended)
	}
}

func TestARunIsCancelled(t *testing.T) {
	alice := shared.agent(t, "alice")
	run := started(t, alice, &v1.StartRunRequest{GraphId: registered(t, alice, triageGraph()).GetGraphId()})
	if cancelled := ok[*v1.Run](t)(run.Cancel(patient(t), "enough")); cancelled.GetState() != v1.RunState_RUN_STATE_CANCELLED {
		t.Error(cancelled)
	}
	_, err := run.Turn(patient(t), "triage", transfer("end"))
	refused(t, err, "RUN_FINAL")
}
