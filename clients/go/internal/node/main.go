// Node is an agent that works at one node of a graph, for the tests with clients of other languages. It takes over each
// offered task of a run, reports one turn that finishes its node, and finishes the task.
//
//	node -server HOST:PORT -ca ca.pem -id biller -node billing
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	server := flag.String("server", "127.0.0.1:22866", "the broker, `HOST:PORT`")
	ca := flag.String("ca", "baton-data/tls/ca.pem", "its CA, a PEM `file`")
	id := flag.String("id", "", "the agent's `id`")
	node := flag.String("node", "", "the node's `id`")
	flag.Parse()
	roots, err := baton.LoadCA(*ca)
	if err != nil {
		return err
	}
	key, err := baton.GenerateKey()
	if err != nil {
		return err
	}
	options := baton.Options{Target: *server, AgentID: *id, Key: key, RootCAs: roots, Card: &v1.AgentCard{}}
	agent, err := baton.Connect(ctx, options)
	if err != nil {
		return err
	}
	defer agent.Close()
	return agent.Serve(ctx, baton.Handlers{
		Offer: func(ctx context.Context, offer *baton.Offer) error {
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err != nil {
				return err
			}
			return work(ctx, agent, task, *node)
		},
	})
}

// work reports the turn of the node in the run over the task.
func work(ctx context.Context, agent *baton.Agent, task *baton.OwnedTask, node string) error {
	running := &v1.ListRunsRequest{TaskId: task.TaskID, States: []v1.RunState{v1.RunState_RUN_STATE_RUNNING}}
	for found, err := range agent.Runs(ctx, running) {
		if err != nil {
			return err
		}
		run := agent.Run(found.GetRunId())
		tools, err := run.Tools(ctx, node, v1.ToolShape_TOOL_SHAPE_MCP)
		if err != nil {
			return err
		}
		turn := baton.NewTurn()
		turn.Finished = true
		for _, input := range tools.GetInputs() {
			turn.Output += input.GetNodeId() + " said: " + input.GetOutput()
		}
		if _, err := run.Turn(ctx, node, turn); err != nil {
			return err
		}
		_, err = task.Finish(ctx, map[string]any{"paid": true}, "")
		return err
	}
	return errors.New("the task has no run")
}
