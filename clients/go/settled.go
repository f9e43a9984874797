package baton

import (
	"context"
	"errors"
	"sync"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const logPerPage = 200

// remembered is a set of the latest ids that were added.
type remembered struct {
	mu    sync.Mutex
	known map[string]bool
	order []string
}

func (r *remembered) add(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == "" || r.known[id] {
		return
	}
	if r.known == nil {
		r.known = map[string]bool{}
	}
	r.known[id] = true
	r.order = append(r.order, id)
	if len(r.order) > rememberedMax {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
}

func (r *remembered) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[id]
}

// isSettled reports whether a call of this process has read at the broker what the delivery says. It needs no handling.
func (a *Agent) isSettled(d *Delivery) bool {
	if a.settled.has(d.Envelope.GetMessageId()) {
		return true
	}
	switch d.Payload.(type) {
	case *v1.HandoffAccept, *v1.HandoffReject, *v1.HandoffComplete:
		return a.settled.has(d.HandoffID)
	case *v1.ErrorNotification:
		return d.Envelope.GetSenderId() == brokerID && recallNotice(d) == nil && a.settled.has(d.HandoffID)
	}
	return false
}

// found returns a message that was read at the broker instead of received, after a verification. Its acknowledgement sends
// nothing.
func (a *Agent) found(ctx context.Context, envelope *v1.Envelope, handoffID string) (*Delivery, error) {
	if err := a.verifySender(ctx, envelope); err != nil {
		return nil, err
	}
	payload, err := PayloadOf(envelope)
	if err != nil {
		return nil, err
	}
	return &Delivery{Envelope: envelope, Payload: payload, Attempt: 1, HandoffID: handoffID, agent: a}, nil
}

// eachEntry calls a function with the entries of a task's custody log after a number, oldest first, until it returns false.
func (a *Agent) eachEntry(ctx context.Context, taskID string, after uint64, each func(*v1.CustodyLogEntry) bool) error {
	for {
		page, err := call(ctx, a, a.tasks.GetCustodyLog, &v1.GetCustodyLogRequest{
			TaskId: taskID, AfterNumber: after, PageSize: logPerPage,
		})
		if err != nil {
			return err
		}
		for _, found := range page.GetEntries() {
			if after = found.GetEntry().GetNumber(); !each(found) {
				return nil
			}
		}
		if gap := page.GetGap(); gap != nil {
			after = max(after, gap.GetLastNumber())
		}
		if len(page.GetEntries()) == 0 && page.GetGap() == nil || after >= page.GetCustodyLength() {
			return nil
		}
	}
}

// loanStart returns a number in the task's custody log before the loan of this epoch began.
func (a *Agent) loanStart(ctx context.Context, task *v1.Task, epoch uint64) (uint64, error) {
	for after := task.GetCustodyLength(); after > 0; {
		after -= min(after, logPerPage/4)
		isBefore := false
		err := a.eachEntry(ctx, task.GetTaskId(), after, func(found *v1.CustodyLogEntry) bool {
			isBefore = found.GetEntry().GetEpoch() < epoch
			return false
		})
		if err != nil || isBefore {
			return after, err
		}
	}
	return 0, nil
}

// endOfLoan reads in the custody log how the loan of a task ended that this agent lent: by the delegate's final status,
// whichever process of this agent got the message, or by a recall.
func (a *Agent) endOfLoan(ctx context.Context, lent *HandedOver, task *v1.Task) (*Outcome, error) {
	after, err := a.loanStart(ctx, task, lent.Epoch)
	if err != nil {
		return a.endWithoutLog(lent, task, err)
	}
	var end *v1.CustodyLogEntry
	err = a.eachEntry(ctx, lent.TaskID, after, func(found *v1.CustodyLogEntry) bool {
		entry := found.GetEntry()
		if entry.GetEpoch() > lent.Epoch && entry.GetOwnerId() == a.ID() {
			end = found
		}
		return end == nil
	})
	if err != nil {
		return a.endWithoutLog(lent, task, err)
	}
	entry := end.GetEntry()
	recalled := &TaskRecalledError{
		TaskID: lent.TaskID, HandoffID: lent.HandoffID, Reason: RecalledByRecall,
		Message: "the loan has ended without a final status of the delegate", Epoch: task.GetEpoch(),
	}
	if end == nil {
		if task.GetStatus() == v1.TaskStatus_TASK_STATUS_CANCELED {
			recalled.Reason = RecalledByCancel
		}
		return nil, recalled // an agent that lent the task to this one has it, or an operator
	}
	recalled.Epoch, recalled.IsOwner = entry.GetEpoch(), true
	switch kind := entry.GetAccepted().GetMessageType(); {
	case kind == v1.MessageType_MESSAGE_TYPE_TASK_STATUS_UPDATE && end.GetEnvelope() != nil:
		d, err := a.found(ctx, end.GetEnvelope(), lent.HandoffID)
		if err != nil {
			return nil, err
		}
		a.settled.add(d.Envelope.GetMessageId())
		update, _ := d.Payload.(*v1.TaskStatusUpdate)
		return &Outcome{
			TaskID: lent.TaskID, Epoch: entry.GetEpoch(), Status: update.GetStatus(), Result: objectOf(update.GetResultJson()),
			Details: update.GetDetails(),
		}, nil
	case kind == v1.MessageType_MESSAGE_TYPE_HANDOFF_COMPLETE: // a handoff returned the task unfinished
		return &Outcome{
			TaskID: lent.TaskID, Epoch: entry.GetEpoch(), Status: entry.GetTaskStatus(), Result: map[string]any{},
			Details: task.GetDetails(),
		}, nil
	case entry.GetTime().GetOfTask():
		recalled.Reason = RecalledByLoanTimeout
	case entry.GetSilent() != nil:
		recalled.Reason = RecalledAsAbandoned
	case entry.GetTaskStatus() == v1.TaskStatus_TASK_STATUS_CANCELED:
		recalled.Reason = RecalledByCancel
	}
	return nil, recalled
}

// endWithoutLog is endOfLoan where the broker does not show the log: the task has the result, but not how the loan ended.
func (a *Agent) endWithoutLog(lent *HandedOver, task *v1.Task, refusal error) (*Outcome, error) {
	isBack := task.GetOwnerId() == a.ID() && task.GetResultJson() != ""
	if isPassing(refusal) || !isBack {
		return nil, refusal
	}
	status := task.GetStatus()
	if !isFinalStatus(status) {
		status = v1.TaskStatus_TASK_STATUS_COMPLETED
	}
	return &Outcome{
		TaskID: lent.TaskID, Epoch: task.GetEpoch(), Status: status, Result: objectOf(task.GetResultJson()),
		Details: task.GetDetails(),
	}, nil
}

// isEndedBy reports whether a call's time is over, so that it reads the state once more.
func isEndedBy(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// lastLook returns the context of a call's last look at the broker, after the end of its own.
func (a *Agent) lastLook(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), lookAfterReconnect)
}
