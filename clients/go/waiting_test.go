package baton

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// requested begins a loan as a process that is about to die does: it sends the request, and no more.
func requested(t *testing.T, agent *Agent, receiverID, taskID string) string {
	t.Helper()
	request := supportRequest()
	request.Mode = v1.HandoffMode_HANDOFF_MODE_DELEGATE
	return ok[*v1.Receipt](t)(agent.RequestHandoff(patient(t), receiverID, taskID, 1, request)).GetHandoffId()
}

// waiting waits for a loan in another goroutine.
func waiting(ctx context.Context, agent *Agent, handoffID string, sections ...*v1.ContextSection) <-chan lent {
	done := make(chan lent, 1)
	go func() {
		outcome, err := agent.WaitForLoan(ctx, handoffID, sections...)
		done <- lent{outcome, err}
	}()
	return done
}

func TestALaterProcessGetsTheResultOfALoanWheneverItComes(t *testing.T) {
	options, bob, ticket := shared.options(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	before := connected(t, options)
	handoffID := requested(t, before, bob.ID(), ticket)
	_ = before.Close()

	alice := connected(t, options)
	var reports []string
	ctx := WithProgress(patient(t), func(update *v1.TaskStatusUpdate) { reports = append(reports, update.GetDetails()) })
	done := waiting(ctx, alice, handoffID, goals(t))
	task := await(t, w.owned)
	ok[*v1.Receipt](t)(task.Report(patient(t), "half of it"))
	ok[*v1.Receipt](t)(task.Finish(patient(t), map[string]any{"cause": "a loose cable"}, "found"))
	first := await(t, done)
	if first.err != nil || first.outcome.Epoch != 3 || first.outcome.Result["cause"] != "a loose cable" {
		t.Fatalf("%v", first)
	}
	if len(reports) == 0 || reports[0] != "half of it" {
		t.Error(reports)
	}
	// From the records alone, also once the task has ended.
	again := ok[*Outcome](t)(alice.WaitForLoan(patient(t), handoffID))
	ended := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_COMPLETED}
	ok[*v1.Receipt](t)(alice.UpdateStatus(patient(t), ticket, 3, ended))
	later := ok[*Outcome](t)(alice.WaitForLoan(patient(t), handoffID, goals(t)))
	for _, one := range []*Outcome{again, later} {
		if one.Epoch != 3 || one.Status != first.outcome.Status || one.Result["cause"] != "a loose cable" {
			t.Errorf("%v", one)
		}
	}
}

func TestTheEndOfAWaitEndsNothingAndARecallEndsTheWait(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	handoffID := requested(t, alice, bob.ID(), ticket)
	ctx, cancel := context.WithCancel(patient(t))
	first := waiting(ctx, alice, handoffID, goals(t))
	await(t, w.owned)
	_, err := alice.WaitForLoan(patient(t), handoffID)
	waited(t, err)
	cancel()
	if done := await(t, first); !errors.Is(done.err, context.Canceled) {
		t.Errorf("%v", done)
	}
	owns(t, bob, ticket, 2)
	second := waiting(patient(t), alice, handoffID)
	for isWaiting := false; !isWaiting; time.Sleep(5 * time.Millisecond) {
		alice.mu.Lock()
		isWaiting = alice.waiting[ofTask(ticket)] != nil
		alice.mu.Unlock()
	}
	ok[*OwnedTask](t)(alice.Recall(patient(t), handoffID, ""))
	recalled(t, await(t, second).err, RecalledByRecall, 3, true)
	_, err = alice.WaitForLoan(patient(t), handoffID)
	recalled(t, err, RecalledByRecall, 3, true)
}

func TestAWaitForWhatIsNoLoanOfThisAgentIsRefused(t *testing.T) {
	alice, bob, given, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket"), unique("ticket")
	w := newWorker(t, bob)
	handed := ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), given, 1, supportRequest(), goals(t)))
	await(t, w.owned)
	for _, one := range []struct {
		agent             *Agent
		handoffID, reason string
	}{
		{alice, handed.HandoffID, "NOT_LENT"},
		{bob, handed.HandoffID, "NOT_OWNER"},
		{alice, "00000000-0000-4000-8000-000000000000", "HANDOFF_UNKNOWN"},
	} {
		_, err := one.agent.WaitForLoan(patient(t), one.handoffID)
		refused(t, err, one.reason)
	}
	first := requested(t, alice, bob.ID(), ticket)
	done := waiting(patient(t), alice, first, goals(t))
	ok[*v1.Receipt](t)(await(t, w.owned).Finish(patient(t), nil, ""))
	back := await(t, done)
	if back.err != nil {
		t.Fatal(back.err)
	}
	again := make(chan error, 1)
	section := goals(t)
	go func() {
		_, err := alice.Delegate(patient(t), bob.ID(), ticket, back.outcome.Epoch, supportRequest(), section)
		again <- err
	}()
	ok[*v1.Receipt](t)(await(t, w.owned).Finish(patient(t), nil, ""))
	if err := await(t, again); err != nil {
		t.Fatal(err)
	}
	_, err := alice.WaitForLoan(patient(t), first)
	refused(t, err, "NOT_LENT")
}

func TestAWaitForAHandoffThatFailsHasItsEndAndOneWithoutAContextLeavesItToTheHandler(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	rejects := make(chan bool, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		if <-rejects {
			return offer.Reject(ctx, &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL, ReasonText: "not mine"})
		}
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		_, err = task.Finish(ctx, nil, "")
		return err
	}})
	rejects <- true
	_, err := alice.WaitForLoan(patient(t), requested(t, alice, bob.ID(), unique("ticket")))
	var failed *HandoffFailedError
	isMine := func(one Rejection) bool { return one.Text == "not mine" }
	if !errors.As(err, &failed) || !slices.ContainsFunc(failed.Rejections, isMine) {
		t.Error(err)
	}
	section := goals(t)
	serve(t, alice, Handlers{Context: func(context.Context, *WantedContext) ([]*v1.ContextSection, error) {
		return []*v1.ContextSection{section}, nil
	}})
	rejects <- false
	ok[*Outcome](t)(alice.WaitForLoan(patient(t), requested(t, alice, bob.ID(), unique("ticket"))))
}
