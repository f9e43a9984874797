package baton

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// worker is a delegate that takes the task over, and then works until it is stopped.
type worker struct {
	owned    chan *OwnedTask
	stopped  chan error
	recalled chan *Recalled
}

func newWorker(t *testing.T, agent *Agent) *worker {
	t.Helper()
	w := &worker{make(chan *OwnedTask, 4), make(chan error, 4), make(chan *Recalled, 4)}
	serve(t, agent, Handlers{
		Offer: func(ctx context.Context, offer *Offer) error {
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err != nil {
				return err
			}
			w.owned <- task
			<-ctx.Done()
			w.stopped <- context.Cause(ctx)
			return nil
		},
		Recalled: func(_ context.Context, r *Recalled) error {
			w.recalled <- r
			return nil
		},
	})
	return w
}

func (w *worker) isStopped(t *testing.T, taskID string, epoch uint64) *Recalled {
	t.Helper()
	r := await(t, w.recalled)
	if r.TaskID != taskID || r.Epoch != epoch {
		t.Errorf("%v", r)
	}
	recalled(t, await(t, w.stopped), RecalledByRecall, epoch, false)
	return r
}

// recalled checks that an error says that the task was recalled.
func recalled(t *testing.T, err error, reason RecallReason, epoch uint64, isOwner bool) {
	t.Helper()
	var back *TaskRecalledError
	if !errors.As(err, &back) || back.Reason != reason || back.Epoch != epoch || back.IsOwner != isOwner {
		t.Fatalf("%v: %+v", err, back)
	}
}

func owns(t *testing.T, agent *Agent, taskID string, epoch uint64) {
	t.Helper()
	task := ok[*v1.Task](t)(agent.GetTask(patient(t), taskID))
	if task.GetOwnerId() != agent.ID() || task.GetEpoch() != epoch || task.GetOpenHandoffId() != "" {
		t.Errorf("%v", task)
	}
}

type lent struct {
	outcome *Outcome
	err     error
}

// delegate lends a task in another goroutine.
func delegate(t *testing.T, ctx context.Context, agent *Agent, receiverID, taskID string, request *v1.HandoffRequest) <-chan lent {
	t.Helper()
	done, section := make(chan lent, 1), goals(t)
	go func() {
		outcome, err := agent.Delegate(ctx, receiverID, taskID, 1, request, section)
		done <- lent{outcome, err}
	}()
	return done
}

func TestTheLoanTimeoutBringsTheTaskBack(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w, request := newWorker(t, bob), supportRequest()
	request.LoanTimeout = durationpb.New(time.Second)
	_, err := alice.Delegate(patient(t), bob.ID(), ticket, 1, request, goals(t))
	recalled(t, err, RecalledByLoanTimeout, 3, true)
	w.isStopped(t, ticket, 3)
	owns(t, alice, ticket, 3)
	_, err = await(t, w.owned).Finish(patient(t), nil, "")
	refused(t, err, "STALE_EPOCH")
}

func TestTheDeadlineOfTheCallRecallsTheTask(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	ctx, cancel := context.WithTimeout(patient(t), 8*time.Second)
	defer cancel()
	_, err := alice.Delegate(ctx, bob.ID(), ticket, 1, supportRequest(), goals(t))
	recalled(t, err, RecalledByDeadline, 3, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	w.isStopped(t, ticket, 3)
	owns(t, alice, ticket, 3)
}

func TestTheDeadlineOfTheCallCancelsAnOpenHandoff(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	ctx, cancel := context.WithTimeout(patient(t), time.Second)
	defer cancel()
	_, err := alice.Delegate(ctx, bob.ID(), ticket, 1, supportRequest(), goals(t))
	var failed *HandoffFailedError
	if !errors.As(err, &failed) || failed.Reason != "HANDOFF_CANCELLED" || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	owns(t, alice, ticket, 1)
}

func TestACancelledCallRecallsTheTask(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	ctx, cancel := context.WithCancel(patient(t))
	lending := delegate(t, ctx, alice, bob.ID(), ticket, supportRequest())
	working, done := await(t, w.owned).UntilRecalled(patient(t))
	defer done()
	cancel()
	err := await(t, lending).err
	recalled(t, err, RecalledByDeadline, 3, true)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	owns(t, alice, ticket, 3)
	w.isStopped(t, ticket, 3)
	<-working.Done()
	recalled(t, context.Cause(working), RecalledByRecall, 3, false)
}

func TestACancelledCallCancelsAnOpenHandoff(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	ctx, cancel := context.WithCancel(patient(t))
	viewed := WithSenderView(ctx, func(view v1.SenderView) {
		if view == v1.SenderView_SENDER_VIEW_AWAITING_HANDOFF_ACCEPT {
			cancel()
		}
	})
	err := await(t, delegate(t, viewed, alice, bob.ID(), ticket, supportRequest())).err
	var failed *HandoffFailedError
	if !errors.As(err, &failed) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	owns(t, alice, ticket, 1)
}

func TestARecallEndsTheCallAndASecondOneIsRefused(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	await(t, w.owned)
	handoff := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetLoans()[0].GetHandoffId()
	_, err := bob.Recall(patient(t), handoff, "")
	refused(t, err, "NOT_OWNER")
	task := ok[*OwnedTask](t)(alice.Recall(patient(t), handoff, "done by phone"))
	if task.Epoch != 3 {
		t.Error(task.Epoch)
	}
	recalled(t, await(t, lending).err, RecalledByRecall, 3, true)
	w.isStopped(t, ticket, 3)
	_, err = alice.Recall(patient(t), handoff, "")
	refused(t, err, "NOT_LENT")
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
}

func TestAnOuterRecallEndsTheInnerLoan(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	w, ticket := newWorker(t, carol), unique("ticket")
	inner, told := make(chan error, 1), make(chan *Recalled, 1)
	serve(t, bob, Handlers{
		Offer: func(ctx context.Context, offer *Offer) error {
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err != nil {
				return err
			}
			_, err = task.Delegate(context.WithoutCancel(ctx), carol.ID(), supportRequest(), takeover.Sections...)
			inner <- err
			return nil
		},
		Recalled: func(_ context.Context, r *Recalled) error {
			told <- r
			return nil
		},
	})
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	await(t, w.owned)
	outer := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetLoans()[0].GetHandoffId()
	ok[*OwnedTask](t)(alice.Recall(patient(t), outer, ""))
	recalled(t, await(t, inner), RecalledByRecall, 4, false)
	if r := await(t, told); r.Epoch != 4 {
		t.Errorf("%v", r)
	}
	if r := w.isStopped(t, ticket, 4); r.HandoffID != outer {
		t.Errorf("%v", r)
	}
	recalled(t, await(t, lending).err, RecalledByRecall, 4, true)
	owns(t, alice, ticket, 4)
}

func TestARecallByAnotherProcessEndsTheCall(t *testing.T) {
	options := shared.options(t, "alice")
	alice, bob, ticket := connected(t, options), shared.agent(t, "bob"), unique("ticket")
	alice.lookAfter = 200 * time.Millisecond
	w := newWorker(t, bob)
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	await(t, w.owned)
	handoff := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetLoans()[0].GetHandoffId()
	ok[*OwnedTask](t)(connected(t, options).Recall(patient(t), handoff, ""))
	recalled(t, await(t, lending).err, RecalledByRecall, 3, true)
}

func TestWithoutADeadlineTheLoanHasTheDefaultTimeout(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	lending := delegate(t, context.Background(), alice, bob.ID(), ticket, supportRequest())
	task := await(t, w.owned)
	due := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetLoans()[0].GetDueTime().AsTime()
	if left := time.Until(due); left < 50*time.Minute || left > LoanTimeoutDefault+time.Second {
		t.Error(left)
	}
	failed := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_FAILED, Details: "no such router"}
	ok[*v1.Receipt](t)(task.Update(patient(t), failed))
	done := await(t, lending)
	if done.err != nil || done.outcome.Epoch != 3 || done.outcome.Status != failed.GetStatus() || done.outcome.Details != "no such router" {
		t.Errorf("%v", done)
	}
}

func TestALoanThatIsRejectedIsAFailedHandoff(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		return offer.Reject(ctx, &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL})
	}})
	_, err := alice.Delegate(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), goals(t))
	var failed *HandoffFailedError
	if !errors.As(err, &failed) || failed.Reason != "NO_CANDIDATE" || len(failed.Rejections) != 1 {
		t.Error(err)
	}
}

func waited(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrWaitedFor) {
		t.Errorf("%v, expected that another call waits for it", err)
	}
}

func TestASecondCallForATaskThatIsLentIsRefusedAtOnce(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	w := newWorker(t, bob)
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	task := await(t, w.owned)
	_, err := alice.Delegate(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t))
	waited(t, err)
	if !strings.Contains(err.Error(), ticket) {
		t.Error(err)
	}
	_, err = alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t))
	waited(t, err)
	_, err = alice.Delegate(patient(t), bob.ID(), ticket, 3, supportRequest(), goals(t))
	waited(t, err)
	ok[*v1.Receipt](t)(task.Finish(patient(t), map[string]any{"cause": "a cable"}, ""))
	// The first call has lost nothing.
	if done := await(t, lending); done.err != nil || done.outcome.Result["cause"] != "a cable" {
		t.Errorf("%+v", done)
	}
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 3, supportRequest(), goals(t)))
}

func TestASecondCallForATaskThatIsHandedOverIsRefusedAtOnce(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	done, section := make(chan handedOver, 1), goals(t)
	go func() {
		one, err := alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), section)
		done <- handedOver{one, err}
	}()
	request, _ := next[*v1.HandoffRequest](t, bob)
	_, err := alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), section)
	waited(t, err)
	_, err = alice.Delegate(patient(t), bob.ID(), ticket, 1, supportRequest(), section)
	waited(t, err)
	_, err = alice.ResumeHandOver(patient(t), request.HandoffID, section)
	waited(t, err)
	ok[*v1.Receipt](t)(bob.Reject(patient(t), request, v1.RejectReason_REJECT_REASON_NO_SKILL, "only routers"))
	var failed *HandoffFailedError
	if one := await(t, done); !errors.As(one.err, &failed) {
		t.Fatalf("%+v", one)
	}
	expected := []Rejection{{bob.ID(), v1.RejectReason_REJECT_REASON_NO_SKILL, "only routers"}}
	if !slices.Equal(failed.Rejections, expected) {
		t.Errorf("%+v", failed.Rejections)
	}
	// The task is alice's to hand over again.
	newWorker(t, bob)
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), section))
}

func TestAnAgentHandsOnATaskThatComesBackWhileItsCallStillWaits(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	alice.lookAfter = 2 * time.Second
	handed := make(chan error, 1)
	newWorker(t, carol)
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		_, err := task.HandOver(ctx, alice.ID(), supportRequest())
		return err
	})
	takes(t, alice, func(ctx context.Context, task *OwnedTask) error {
		_, err := task.HandOver(ctx, carol.ID(), supportRequest())
		handed <- err
		return err
	})
	lending := delegate(t, patient(t), alice, bob.ID(), unique("ticket"), supportRequest())
	if err := await(t, handed); err != nil {
		t.Error(err)
	}
	// The handoff to alice has ended the loan.
	if done := await(t, lending); done.err != nil || done.outcome.Epoch != 3 || len(done.outcome.Result) > 0 {
		t.Errorf("%+v %v", done.outcome, done.err)
	}
}

func TestTheSenderSeesItsViewsFromTheFirstOn(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	newWorker(t, bob)
	var views []string
	ctx := WithSenderView(patient(t), func(view v1.SenderView) {
		views = append(views, strings.TrimPrefix(view.String(), "SENDER_VIEW_"))
	})
	ok[*HandedOver](t)(alice.HandOver(ctx, bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
	expected := []string{
		"IDLE", "HANDOFF_INITIATED", "AWAITING_HANDOFF_ACCEPT", "CONTEXT_PREPARING", "AWAITING_CONTEXT_ACK",
		"HANDOFF_COMPLETED",
	}
	if !slices.Equal(views, expected) {
		t.Error(views)
	}
}

func TestTheClientKnowsEveryNumberOfTheSchema(t *testing.T) {
	for _, one := range []struct {
		file, prefix string
		known        map[string]int32
	}{
		{"error.proto", "ERROR_CODE", v1.ErrorCode_value},
		{"envelope.proto", "MESSAGE_TYPE", v1.MessageType_value},
	} {
		text := ok[[]byte](t)(os.ReadFile("../../proto/baton/v1/" + one.file))
		found := regexp.MustCompile(`(?m)^  (`+one.prefix+`_\w+) = (\d+);`).FindAllStringSubmatch(string(text), -1)
		if len(found) < 10 || len(found) != len(one.known) {
			t.Errorf("%s: %d of %d", one.file, len(one.known), len(found))
		}
		for _, value := range found {
			if number, is := one.known[value[1]]; !is || strconv.Itoa(int(number)) != value[2] {
				t.Errorf("%s is %d", value[1], number)
			}
		}
	}
	for number, name := range v1.MessageType_name {
		if _, is := payloads[v1.MessageType(number)]; !is && number > 0 {
			t.Errorf("%s has no payload", name)
		}
	}
}

func TestWhereTheLoanTimeoutIsTheDeadlineTheReasonIsTheDeadline(t *testing.T) {
	byTimeout := &TaskRecalledError{TaskID: "t", Reason: RecalledByLoanTimeout, Epoch: 3, IsOwner: true}
	err := byLimit(byTimeout, RecalledByLoanTimeout, context.DeadlineExceeded)
	recalled(t, err, RecalledByDeadline, 3, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	recalled(t, byTimeout, RecalledByLoanTimeout, 3, true)
	lost := &TaskRecalledError{TaskID: "t", Reason: RecalledByRecall, Epoch: 3}
	recalled(t, byLimit(lost, RecalledByRecall, context.DeadlineExceeded), RecalledByRecall, 3, false)
	if err := byLimit(nil, RecalledByLoanTimeout, context.DeadlineExceeded); err != nil {
		t.Error(err)
	}
}
