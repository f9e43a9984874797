// Ticketagent is a support agent that hands tickets over, or takes them.
//
//	ticketagent -id bob -key bob.pem serve
//	ticketagent -id carol -key carol.pem serve -then bob
//	ticketagent -id alice -key alice.pem offer -to carol
//
// The key file is made if it is not there. With "-then" each ticket is handed on, with its context. "offer" ends when the ticket is the other's, or with exit code 1 when it is not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ticketagent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	server := flag.String("server", "127.0.0.1:22866", "the broker, `HOST:PORT`")
	ca := flag.String("ca", "baton-data/tls/ca.pem", "its CA, a PEM `file`")
	id := flag.String("id", "", "the agent's `id`")
	keyFile := flag.String("key", "", "the agent's key, a PEM `file`, made if missing")
	flag.Parse()
	offering := flag.NewFlagSet("offer", flag.ExitOnError)
	to := offering.String("to", "", "to whom: an agent's id or type:NAME")
	task := offering.String("task", fmt.Sprintf("ticket-%d", time.Now().UnixMilli()), "the ticket's `id`")
	title := offering.String("title", "Router drops the line every evening.", "what it is about")

	agent, err := connect(ctx, *server, *ca, *id, *keyFile)
	if err != nil {
		return err
	}
	defer agent.Close()
	switch flag.Arg(0) {
	case "serve":
		serving := flag.NewFlagSet("serve", flag.ExitOnError)
		then := serving.String("then", "", "hand each ticket on: an agent's `id` or type:NAME")
		if err := serving.Parse(flag.Args()[1:]); err != nil {
			return err
		}
		return serve(ctx, agent, *then)
	case "offer":
		if err := offering.Parse(flag.Args()[1:]); err != nil {
			return err
		}
		return offer(ctx, agent, *to, *task, *title)
	}
	return errors.New("what to do? serve, or offer")
}

func connect(ctx context.Context, server, ca, id, keyFile string) (*baton.Agent, error) {
	key, err := baton.LoadKey(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if key, err = baton.GenerateKey(); err == nil {
			err = baton.SaveKey(keyFile, key)
		}
	}
	if err != nil {
		return nil, err
	}
	roots, err := baton.LoadCA(ca)
	if err != nil {
		return nil, err
	}
	return baton.Connect(ctx, baton.Options{
		Target: server, AgentID: id, Key: key, RootCAs: roots,
		Card: &v1.AgentCard{AgentTypes: []string{"support"}, Description: "Takes and hands over support tickets."},
	})
}

// serve takes every ticket, and hands it on if there is somebody to take it then.
func serve(ctx context.Context, agent *baton.Agent, then string) error {
	fmt.Println(agent.ID() + ": waiting for tickets")
	var contexts sync.Map // of the tickets that are handed on, by task id
	return agent.Serve(ctx, baton.Handlers{
		HandoffRequest: func(ctx context.Context, d *baton.Delivery, request *v1.HandoffRequest) error {
			fmt.Printf("%s: %s asks: %s\n", d.Envelope.GetTaskId(), d.Envelope.GetSenderId(), request.GetInitialContextSummary())
			_, err := agent.Accept(ctx, d, nil)
			return err
		},
		TaskContextTransfer: func(ctx context.Context, d *baton.Delivery, transfer *v1.TaskContextTransfer) error {
			receipt, err := agent.Complete(ctx, d)
			if err != nil {
				return err
			}
			sender := d.Envelope.GetSenderId()
			fmt.Printf("%s: taken over from %s at epoch %d, with %d sections\n",
				receipt.GetTaskId(), sender, receipt.GetEpoch(), len(transfer.GetSections()))
			if then == "" {
				return nil
			}
			contexts.Store(receipt.GetTaskId(), transfer.GetSections())
			request := &v1.HandoffRequest{TaskType: "support-ticket", InitialContextSummary: "handed on by " + agent.ID()}
			_, err = agent.RequestHandoff(ctx, then, receipt.GetTaskId(), receipt.GetEpoch(), request)
			return err
		},
		HandoffAccept: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffAccept) error {
			sections, ok := contexts.Load(d.Envelope.GetTaskId())
			if !ok {
				return baton.Poison(errors.New("the ticket is not here"))
			}
			_, err := agent.SendContext(ctx, d, sections.([]*v1.ContextSection)...)
			return err
		},
		HandoffComplete: func(_ context.Context, d *baton.Delivery, _ *v1.HandoffComplete) error {
			contexts.Delete(d.Envelope.GetTaskId())
			fmt.Printf("%s: handed on to %s\n", d.Envelope.GetTaskId(), d.Envelope.GetSenderId())
			return nil
		},
		ErrorNotification: func(_ context.Context, d *baton.Delivery, problem *v1.ErrorNotification) error {
			fmt.Printf("%s: %s\n", d.Envelope.GetTaskId(), problem.GetErrorMessage())
			return nil
		},
	})
}

// offer hands one ticket over.
func offer(ctx context.Context, agent *baton.Agent, to, task, title string) error {
	ctx, done := context.WithCancelCause(ctx)
	defer done(nil)
	description, err := baton.JSONSection("task_description", map[string]string{"title": title, "customer": "4711"})
	if err != nil {
		return err
	}
	request := &v1.HandoffRequest{TaskType: "support-ticket", InitialContextSummary: title}
	receipt, err := agent.RequestHandoff(ctx, to, task, 1, request)
	if err != nil {
		return err
	}
	fmt.Printf("%s: offered to %s, handoff %s\n", task, to, receipt.GetHandoffId())
	err = agent.Serve(ctx, baton.Handlers{
		HandoffAccept: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffAccept) error {
			_, err := agent.SendContext(ctx, d, description)
			return err
		},
		HandoffComplete: func(_ context.Context, d *baton.Delivery, complete *v1.HandoffComplete) error {
			if complete.GetOutcome() == v1.HandoffOutcome_HANDOFF_OUTCOME_SUCCESS {
				fmt.Printf("%s: handed over to %s\n", task, d.Envelope.GetSenderId())
				done(nil)
			}
			return nil
		},
		ErrorNotification: func(_ context.Context, _ *baton.Delivery, problem *v1.ErrorNotification) error {
			done(errors.New("not handed over: " + problem.GetErrorMessage()))
			return nil
		},
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
