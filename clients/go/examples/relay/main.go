// Relay is the Go agent of the great relay (tests/relay): a task goes from language to language.
//
//	relay SERVER CA.pem ID KEY.pem pass NEXT     takes the task and hands it on
//	relay SERVER CA.pem ID KEY.pem reject WHY    rejects it
//	relay SERVER CA.pem ID KEY.pem audit TASK    checks its custody log
//
// It prints what happens as JSON lines.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

type facts map[string]any

func say(event string, said facts) {
	said["event"] = event
	line, err := json.Marshal(said)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 6 {
		return errors.New("usage: relay SERVER CA.pem ID KEY.pem (pass NEXT | reject WHY | audit TASK)")
	}
	server, ca, id, keyFile, command, argument :=
		arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]
	key, err := baton.LoadKey(keyFile)
	if err != nil {
		return err
	}
	roots, err := baton.LoadCA(ca)
	if err != nil {
		return err
	}
	agent, err := baton.Connect(ctx, baton.Options{
		Target: server, AgentID: id, Key: key, RootCAs: roots, Card: &v1.AgentCard{AgentTypes: []string{"relay"}},
	})
	if err != nil {
		return err
	}
	defer agent.Close()
	switch command {
	case "pass":
		say("ready", facts{})
		return agent.Serve(ctx, passing(agent, argument))
	case "reject":
		say("ready", facts{})
		return agent.Serve(ctx, rejecting(agent, argument))
	case "audit":
		return audit(ctx, agent, argument)
	}
	return errors.New("no such command: " + command)
}

func passing(agent *baton.Agent, next string) baton.Handlers {
	var contexts sync.Map // of what is handed on, by task id
	return baton.Handlers{
		HandoffRequest: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffRequest) error {
			_, err := agent.Accept(ctx, d, nil)
			return err
		},
		TaskContextTransfer: func(ctx context.Context, d *baton.Delivery, transfer *v1.TaskContextTransfer) error {
			receipt, err := agent.Complete(ctx, d)
			if err != nil {
				return err
			}
			digest := hex.EncodeToString(baton.ContextDigest(transfer.GetSections()))
			say("taken", facts{"sender": d.Envelope.GetSenderId(), "epoch": receipt.GetEpoch(), "digest": digest})
			contexts.Store(receipt.GetTaskId(), transfer.GetSections())
			request := &v1.HandoffRequest{TaskType: "relay", InitialContextSummary: "handed on by " + agent.ID()}
			_, err = agent.RequestHandoff(ctx, next, receipt.GetTaskId(), receipt.GetEpoch(), request)
			return err
		},
		HandoffAccept: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffAccept) error {
			sections, ok := contexts.Load(d.Envelope.GetTaskId())
			if !ok {
				return baton.Poison(errors.New("the task is not here"))
			}
			_, err := agent.SendContext(ctx, d, sections.([]*v1.ContextSection)...)
			return err
		},
		HandoffComplete: func(_ context.Context, d *baton.Delivery, _ *v1.HandoffComplete) error {
			say("handed", facts{"receiver": d.Envelope.GetSenderId(), "epoch": d.Envelope.GetEpoch() + 1})
			return nil
		},
	}
}

func rejecting(agent *baton.Agent, why string) baton.Handlers {
	return baton.Handlers{
		HandoffRequest: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffRequest) error {
			_, err := agent.Reject(ctx, d, v1.RejectReason_REJECT_REASON_OVERLOADED, why)
			if err == nil {
				say("rejected", facts{"sender": d.Envelope.GetSenderId(), "epoch": d.Envelope.GetEpoch()})
			}
			return err
		},
	}
}

func audit(ctx context.Context, agent *baton.Agent, taskID string) error {
	entries, err := agent.AuditTask(ctx, taskID)
	if err != nil {
		return err
	}
	last := entries[len(entries)-1]
	say("audited", facts{"entries": len(entries), "owner": last.GetOwnerId(), "epoch": last.GetEpoch()})
	return nil
}
