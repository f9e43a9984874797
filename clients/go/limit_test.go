package baton

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// cancelledAtLimit fails the test unless a time limit has cancelled the handoff.
func cancelledAtLimit(t *testing.T, err error) *HandoffFailedError {
	t.Helper()
	var failed *HandoffFailedError
	if !errors.As(err, &failed) || failed.Reason != "HANDOFF_CANCELLED" || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return failed
}

func TestATaskMovesWithinTheTimeLimit(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	newWorker(t, bob)
	limited := WithHandOverLimit(patient(t), 2*time.Minute)
	handed := ok[*HandedOver](t)(alice.HandOver(limited, bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
	if handed.OwnerID != bob.ID() || handed.Epoch != 2 {
		t.Error(handed)
	}
}

func TestTheTimeLimitCancelsTheHandoffAndTheTaskStays(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	ticket, next := unique("ticket"), unique("ticket")
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		return offer.Reject(ctx, &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL, ReasonText: "not mine"})
	}})
	request := supportRequest()
	request.FallbackCandidates = []string{carol.ID()}
	_, err := alice.HandOver(WithHandOverLimit(patient(t), 2*time.Second), bob.ID(), ticket, 1, request, goals(t))
	if failed := cancelledAtLimit(t, err); len(failed.Rejections) != 1 || failed.Rejections[0].Text != "not mine" {
		t.Error(failed.Rejections)
	}
	owns(t, alice, ticket, 1)
	// The request of the cancelled handoff is not in the mailbox of an agent that serves later.
	ran := make(chan string, 2)
	serve(t, carol, Handlers{Offer: func(_ context.Context, offer *Offer) error {
		ran <- offer.TaskID
		return nil
	}})
	_, err = alice.HandOver(WithHandOverLimit(patient(t), time.Second), carol.ID(), next, 1, supportRequest(), goals(t))
	cancelledAtLimit(t, err)
	if one := await(t, ran); one != next {
		t.Error(one)
	}
}

func TestATakeoverJustBeforeTheLimitCounts(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	newWorker(t, bob)
	moved := ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	request := &v1.Envelope{MessageId: moved.HandoffID, TaskId: ticket, Epoch: 1}
	handed := ok[*HandedOver](t)(alice.endAtLimit(patient(t), request, false))
	if handed.OwnerID != bob.ID() || handed.Epoch != 2 || handed.HandoffID != moved.HandoffID {
		t.Error(handed)
	}
}

func TestALimitBeforeTheRequestIsStoredLeavesNothing(t *testing.T) {
	alice, ticket := shared.agent(t, "alice"), unique("ticket")
	request := &v1.Envelope{MessageId: "00000000-0000-4000-8000-00000000000b", TaskId: ticket, Epoch: 1}
	_, err := alice.endAtLimit(patient(t), request, false)
	cancelledAtLimit(t, err)
}

func TestAnOwnedTaskPassesTheTimeLimitOnAndTheEndOfTheContextLeavesTheHandoff(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	task := ok[*OwnedTask](t)(alice.CreateTask(patient(t), ticket, &v1.TaskCreate{TaskType: "support"}))
	_, err := task.HandOver(WithHandOverLimit(patient(t), time.Second), bob.ID(), supportRequest(), goals(t))
	cancelledAtLimit(t, err)
	owns(t, alice, ticket, 1)
	ended, cancel := context.WithTimeout(WithHandOverLimit(patient(t), time.Hour), time.Second)
	defer cancel()
	if _, err := task.HandOver(ended, bob.ID(), supportRequest(), goals(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetOpenHandoffId() == "" {
		t.Error("the handoff has ended")
	}
}
