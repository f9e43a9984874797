// Ticketagent is a support agent that hands tickets over or takes them.
//
//	ticketagent -id bob -key bob.pem serve
//	ticketagent -id carol -key carol.pem serve -then bob
//	ticketagent -id alice -key alice.pem offer -to carol
//
// The agent creates the key file if it does not exist. With "-then" it hands each ticket on, with its context. "offer"
// ends when the other agent owns the ticket, or with exit code 1 if the handoff fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
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

// serve prints the tickets of an earlier run, then takes over each new ticket, and hands it on if then names an agent.
func serve(ctx context.Context, agent *baton.Agent, then string) error {
	for task, err := range agent.OwnedTasks(ctx) {
		if err != nil {
			return err
		}
		fmt.Printf("%s: still here, at epoch %d\n", task.TaskID, task.Epoch)
	}
	fmt.Println(agent.ID() + ": waiting for tickets")
	return agent.Serve(ctx, baton.Handlers{
		Offer: func(ctx context.Context, offer *baton.Offer) error {
			fmt.Printf("%s: %s asks: %s\n", offer.TaskID, offer.SenderID, offer.Request.GetInitialContextSummary())
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err != nil {
				return err
			}
			fmt.Printf("%s: taken over from %s at epoch %d, with %d sections\n",
				task.TaskID, offer.SenderID, task.Epoch, len(takeover.Sections))
			if then == "" {
				return nil
			}
			request := &v1.HandoffRequest{TaskType: "support-ticket", InitialContextSummary: "handed on by " + agent.ID()}
			done, err := task.HandOver(ctx, then, request, takeover.Sections...)
			var failed *baton.HandoffFailedError
			switch {
			case errors.As(err, &failed):
				fmt.Printf("%s: stays here: %s\n", task.TaskID, failed.Message)
				return nil
			case err != nil:
				return err
			}
			fmt.Printf("%s: handed on to %s\n", task.TaskID, done.OwnerID)
			return nil
		},
	})
}

// offer hands one ticket over.
func offer(ctx context.Context, agent *baton.Agent, to, task, title string) error {
	description, err := baton.JSONSection("task_description", map[string]string{"title": title, "customer": "4711"})
	if err != nil {
		return err
	}
	fmt.Printf("%s: offered to %s\n", task, to)
	request := &v1.HandoffRequest{TaskType: "support-ticket", InitialContextSummary: title}
	done, err := agent.HandOver(ctx, to, task, 1, request, description)
	if err != nil {
		return err
	}
	fmt.Printf("%s: handed over to %s\n", task, done.OwnerID)
	return nil
}
