// Relay is the Go agent of the relay test (tests/relay): a task goes from language to language.
//
//	relay SERVER CA.pem ID KEY.pem pass NEXT     takes the task and hands it on
//	relay SERVER CA.pem ID KEY.pem reject WHY    rejects it
//	relay SERVER CA.pem ID KEY.pem node N        rejects N tasks, takes one, and finishes its node of the run over it
//	relay SERVER CA.pem ID KEY.pem audit TASK    checks its custody log
//
// It prints each event as a JSON line.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
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
		return errors.New("usage: relay SERVER CA.pem ID KEY.pem (pass NEXT | reject WHY | node N | audit TASK)")
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
		return agent.Serve(ctx, rejecting(argument))
	case "node":
		rejections, err := strconv.Atoi(argument)
		if err != nil {
			return err
		}
		say("ready", facts{})
		return agent.Serve(ctx, node(agent, rejections))
	case "audit":
		return audit(ctx, agent, argument)
	}
	return errors.New("no such command: " + command)
}

func passing(agent *baton.Agent, next string) baton.Handlers {
	return baton.Handlers{Offer: func(ctx context.Context, offer *baton.Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		digest := hex.EncodeToString(baton.ContextDigest(takeover.Sections))
		say("taken", facts{"sender": offer.SenderID, "epoch": task.Epoch, "digest": digest})
		request := &v1.HandoffRequest{TaskType: "relay", InitialContextSummary: "handed on by " + agent.ID()}
		done, err := task.HandOver(ctx, next, request, takeover.Sections...)
		if err == nil {
			say("handed", facts{"receiver": done.OwnerID, "epoch": done.Epoch})
		}
		return err
	}}
}

func rejecting(why string) baton.Handlers {
	return baton.Handlers{Offer: func(ctx context.Context, offer *baton.Offer) error {
		err := offer.Reject(ctx, &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_OVERLOADED, ReasonText: why})
		if err == nil {
			say("rejected", facts{"sender": offer.SenderID, "epoch": offer.Epoch})
		}
		return err
	}}
}

// node rejects this number of offers. It takes the next one, and finishes the node of the run that has its name.
func node(agent *baton.Agent, rejections int) baton.Handlers {
	var seen atomic.Int64
	reject := rejecting("too much to do").Offer
	return baton.Handlers{Offer: func(ctx context.Context, offer *baton.Offer) error {
		if seen.Add(1) <= int64(rejections) {
			return reject(ctx, offer)
		}
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		say("taken", facts{"sender": offer.SenderID, "epoch": task.Epoch})
		turn := baton.NewTurn()
		turn.Finished, turn.Output = true, "done by "+agent.ID()
		answer, err := agent.Run(offer.Request.GetRouting().GetRunId()).Turn(ctx, agent.ID(), turn)
		if err == nil {
			say("finished", facts{"run": answer.GetRun().GetState().String()})
		}
		return err
	}}
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
