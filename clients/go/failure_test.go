package baton

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// What becomes of a task whose handler fails, and of results that the broker would refuse.

type routerError struct{ number int }

func (e *routerError) Error() string { return fmt.Sprintf("router %d does not answer", e.number) }

func TestAHandlerThatFailsAfterTheTakeoverEndsItsTaskAtOnce(t *testing.T) {
	alice := shared.agent(t, "alice")
	for name, one := range map[string]struct {
		work    func(context.Context, *OwnedTask) error
		details string
	}{
		"an error": {
			func(context.Context, *OwnedTask) error { return errors.New("no such router") },
			"no such router",
		},
		"an error with a type": {
			func(context.Context, *OwnedTask) error { return &routerError{3} },
			"*baton.routerError: router 3 does not answer",
		},
		"a panic": {
			func(context.Context, *OwnedTask) error { panic("a bug") },
			"baton: a handler panicked: a bug",
		},
		"a long error": {
			func(context.Context, *OwnedTask) error { return errors.New(strings.Repeat("é", 10000)) },
			strings.Repeat("é", 8192),
		},
		"a result that is refused": {
			func(ctx context.Context, task *OwnedTask) error {
				_, err := task.Finish(ctx, map[string]any{"value": math.NaN()}, "")
				return err
			},
			"*baton.Error: baton: FIELD_INVALID: envelope.payload.result_json must have finite numbers only, not NaN, at /value",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bob := shared.agent(t, "bob")
			takes(t, bob, one.work)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			outcome := ok[*Outcome](t)(alice.Delegate(ctx, bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
			if outcome.Status != v1.TaskStatus_TASK_STATUS_FAILED || outcome.Details != one.details {
				t.Errorf("%+v", outcome)
			}
		})
	}
}

func TestATransferredTaskWhoseHandlerFailsHasFailed(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	takes(t, bob, func(context.Context, *OwnedTask) error { return errors.New("no such router") })
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	for {
		task := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket))
		if task.GetStatus() == v1.TaskStatus_TASK_STATUS_FAILED {
			if task.GetDetails() != "no such router" || task.GetOwnerId() != bob.ID() {
				t.Error(task)
			}
			return
		}
	}
}

func TestAHandlerOfSingleStepsThatFailsEndsItsTask(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	handlers, _ := taker(bob)
	complete := handlers.TaskContextTransfer
	handlers.TaskContextTransfer = func(ctx context.Context, d *Delivery, transfer *v1.TaskContextTransfer) error {
		return errors.Join(complete(ctx, d, transfer), errors.New("no such router"))
	}
	serve(t, bob, handlers)
	outcome := ok[*Outcome](t)(alice.Delegate(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
	if outcome.Status != v1.TaskStatus_TASK_STATUS_FAILED || outcome.Details != "no such router" {
		t.Errorf("%+v", outcome)
	}
	noDeadLetters(t, bob)
}

func TestATaskThatHasMovedOnDoesNotFailWithItsHandler(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	handlers, _ := taking()
	serve(t, carol, handlers)
	failed := make(chan bool, 1)
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		defer close(failed)
		_, err := task.HandOver(ctx, carol.ID(), supportRequest())
		return errors.Join(err, errors.New("after the handover"))
	})
	ticket := unique("ticket")
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	await(t, failed)
	time.Sleep(200 * time.Millisecond) // a status would have come
	task := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket))
	if task.GetOwnerId() != carol.ID() || isFinalStatus(task.GetStatus()) {
		t.Error(task)
	}
}

func TestTheStopOfAWorkerIsNoFailure(t *testing.T) {
	options := shared.options(t, "bob")
	options.StopTimeout = 200 * time.Millisecond
	alice, bob, ticket := shared.agent(t, "alice"), connected(t, options), unique("ticket")
	began, ended := make(chan bool, 1), make(chan bool, 1)
	stop := takes(t, bob, func(ctx context.Context, _ *OwnedTask) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	await(t, began)
	if err := stop(); err != nil {
		t.Error(err)
	}
	await(t, ended)
	_ = bob.Close()
	if task := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)); isFinalStatus(task.GetStatus()) {
		t.Error(task)
	}
}

func TestATaskObjectFollowsItsEpoch(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	w := newWorker(t, carol) // takes its time
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err := task.Delegate(short, carol.ID(), supportRequest())
		recalled(t, err, RecalledByDeadline, 4, true)
		if _, err := task.Report(ctx, "by myself then"); err != nil {
			return err
		}
		// The same at the agent, which knows whose handler this is.
		lending := delegateAt(t, ctx, bob, carol.ID(), task.TaskID, task.Epoch)
		await(t, w.owned)
		again := await(t, w.owned)
		ok[*v1.Receipt](t)(again.Finish(ctx, map[string]any{"cause": "a loose cable"}, ""))
		if one := await(t, lending); one.err != nil {
			return one.err
		}
		if task.Epoch != 6 {
			t.Error(task.Epoch)
		}
		return errors.New("not mine")
	})
	outcome := ok[*Outcome](t)(alice.Delegate(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
	if outcome.Status != v1.TaskStatus_TASK_STATUS_FAILED || outcome.Details != "not mine" || outcome.Epoch != 7 {
		t.Errorf("%+v", outcome)
	}
}

func delegateAt(t *testing.T, ctx context.Context, agent *Agent, receiverID, taskID string, epoch uint64) <-chan lent {
	t.Helper()
	done := make(chan lent, 1)
	go func() {
		outcome, err := agent.Delegate(ctx, receiverID, taskID, epoch, supportRequest())
		done <- lent{outcome, err}
	}()
	return done
}
