package baton_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	key, err := baton.LoadKey("bob.pem")
	if err != nil {
		log.Fatal(err)
	}
	roots, err := baton.LoadCA("baton-data/tls/ca.pem")
	if err != nil {
		log.Fatal(err)
	}
	bob, err := baton.Connect(ctx, baton.Options{
		Target: "127.0.0.1:22866", AgentID: "bob", Key: key, RootCAs: roots,
		Card: &v1.AgentCard{AgentTypes: []string{"support"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer bob.Close()
	err = bob.Serve(ctx, baton.Handlers{
		Offer: func(ctx context.Context, offer *baton.Offer) error {
			takeover, err := offer.Accept(ctx, nil) // waits for the context
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx) // verifies the context's digest
			if err != nil {
				return err
			}
			fmt.Println("mine now:", task.TaskID, "at epoch", task.Epoch)
			_, err = task.Finish(ctx, map[string]any{"cause": "a loose cable"}, "")
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleAgent_HandOver() {
	var alice *baton.Agent
	goals, err := baton.JSONSection("goals", []string{"find the cause"})
	if err != nil {
		log.Fatal(err)
	}
	request := &v1.HandoffRequest{TaskType: "support-ticket", InitialContextSummary: "Router drops the line every evening."}
	done, err := alice.HandOver(context.Background(), "bob", "ticket-1", 1, request, goals)
	var failed *baton.HandoffFailedError
	switch {
	case errors.As(err, &failed):
		fmt.Println("still mine:", failed.Reason, failed.Rejections)
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("now of", done.OwnerID, "at epoch", done.Epoch)
	}
}

// A conversation with a model of OpenAI goes on with a model of Anthropic.
func ExampleToAnthropic() {
	history, err := baton.FromOpenAIChat(`[
		{"role": "system", "content": "Be brief."},
		{"role": "user", "content": "Where is order 7?"},
		{"role": "assistant", "content": null, "tool_calls": [
			{"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": "{\"id\":7}"}}
		]},
		{"role": "tool", "tool_call_id": "c1", "content": "shelf 9"}
	]`)
	if err != nil {
		log.Fatal(err)
	}
	system, messages, err := baton.ToAnthropic(history)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(system)
	for _, message := range messages {
		fmt.Println(message["role"], message["content"])
	}
	// Output:
	// Be brief.
	// user Where is order 7?
	// assistant [map[id:c1 input:map[id:7] name:find_order type:tool_use]]
	// user [map[content:shelf 9 tool_use_id:c1 type:tool_result]]
}

// After a restart: continues the work of an earlier process of this agent.
func ExampleAgent_OwnedTasks() {
	var alice *baton.Agent
	ctx := context.Background()
	for task, err := range alice.OwnedTasks(ctx) {
		switch {
		case err != nil:
			log.Fatal(err)
		case task.HandoffID != "":
			done, err := alice.ResumeHandOver(ctx, task.HandoffID, contextOf(task.TaskID)...)
			fmt.Println(done, err)
		default:
			fmt.Println("to go on with:", task.TaskID)
		}
	}
}

// contextOf returns the context that the agent stores for a task.
func contextOf(string) []*v1.ContextSection { return nil }

func ExampleError() {
	var agent *baton.Agent
	_, err := agent.UpdateStatus(context.Background(), "ticket-1", 1, &v1.TaskStatusUpdate{
		Status: v1.TaskStatus_TASK_STATUS_COMPLETED,
	})
	var refused *baton.Error
	if errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_STALE_EPOCH {
		fmt.Println("the task is another agent's now, at epoch", refused.Metadata["current_epoch"])
	}
}
