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
		HandoffRequest: func(ctx context.Context, d *baton.Delivery, request *v1.HandoffRequest) error {
			_, err := bob.Accept(ctx, d, nil)
			return err
		},
		TaskContextTransfer: func(ctx context.Context, d *baton.Delivery, context *v1.TaskContextTransfer) error {
			receipt, err := bob.Complete(ctx, d) // checks the context's digest
			if err != nil {
				return err
			}
			fmt.Println("mine now:", receipt.GetTaskId(), "at epoch", receipt.GetEpoch())
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

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
