package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	// LoanTimeoutDefault is the loan timeout of Delegate if neither the request nor the context limits the loan.
	LoanTimeoutDefault = time.Hour

	loanTimeoutMin   = time.Second
	loanTimeoutMax   = 30 * 24 * time.Hour
	takeBackTime     = 10 * time.Second
	takeBackAttempts = 10
	attemptWait      = 200 * time.Millisecond
	lastNewsTime     = time.Second
)

// Outcome is the outcome of a delegated task, which this agent owns again.
type Outcome struct {
	// The task's id.
	TaskID string
	// The epoch that began with the task's return.
	Epoch uint64
	// COMPLETED, FAILED or CANCELED; another status if a handoff returned the task unfinished.
	Status v1.TaskStatus
	// The result; empty if the delegate gave none. A number is a json.Number, which keeps each digit.
	Result map[string]any
	// The delegate's explanation.
	Details string
}

// ResultInto decodes the result into a value, as json.Unmarshal does: an int64 gets each digit.
func (o *Outcome) ResultInto(into any) error { return decodeInto(o.Result, into) }

// RecallReason is the reason why a lent task came back without a result.
type RecallReason string

const (
	// The loan timeout passed, and the broker recalled the task.
	RecalledByLoanTimeout RecallReason = "LOAN_TIMEOUT"
	// The context of Delegate ended, and the client recalled the task.
	RecalledByDeadline RecallReason = "DEADLINE"
	// A Recall by this agent, or by an agent that had lent the task to it.
	RecalledByRecall RecallReason = "RECALL"
	// An operator reassigned the task.
	RecalledByOperator RecallReason = "REASSIGNED"
	// The delegate gave no sign of work for the silence timeout of the request, or was gone.
	RecalledAsAbandoned RecallReason = "ABANDONED"
	// The task was cancelled with the task that it is a part of, or because no agent had worked on it for long.
	RecalledByCancel RecallReason = "CANCELED"
)

// TaskRecalledError says that a lent task was taken back before its delegate reported a final status.
type TaskRecalledError struct {
	// The task's id.
	TaskID string
	// The handoff that lent the task.
	HandoffID string
	// The reason.
	Reason RecallReason
	// The explanation, for people.
	Message string
	// The task's epoch after the recall.
	Epoch uint64
	// Whether this agent owns the task again. False: an agent that had lent the task to this one, or an operator, took
	// it.
	IsOwner bool

	cause error
}

func (e *TaskRecalledError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

// Unwrap returns the cause of the context's end, if that ended the loan: for example context.DeadlineExceeded.
func (e *TaskRecalledError) Unwrap() error { return e.cause }

// Recalled is a task that was taken from this agent: another agent recalled it, its loan timeout passed, this agent gave no
// sign of work, the task was cancelled with its parent, or an operator reassigned it.
type Recalled struct {
	// The task's id.
	TaskID string
	// The handoff that lent the task, to this agent or before it.
	HandoffID string
	// The task's epoch after the recall. The broker refuses messages about the task of a lower one.
	Epoch uint64
	// The explanation, for people.
	Message string
	// RecalledByRecall, also for a loan timeout, RecalledAsAbandoned, RecalledByCancel or RecalledByOperator.
	Reason RecallReason
	// Whether an operator reassigned the task.
	IsReassigned bool
}

func (r *Recalled) lost() error {
	return &TaskRecalledError{
		TaskID: r.TaskID, HandoffID: r.HandoffID, Reason: r.Reason, Message: r.Message, Epoch: r.Epoch,
	}
}

// failed returns the end of a handoff of the task.
func (r *Recalled) failed(handoffID string) error {
	reason := "TASK_RECALLED"
	if r.Reason != RecalledByRecall {
		reason = "TASK_" + string(r.Reason)
	}
	return &HandoffFailedError{HandoffID: handoffID, Reason: reason, Message: r.Message}
}

// recallReasons are the reasons of the broker's notices about a task that was taken from its owner.
var recallReasons = map[v1.ErrorCode]RecallReason{
	v1.ErrorCode_ERROR_CODE_TASK_RECALLED:   RecalledByRecall,
	v1.ErrorCode_ERROR_CODE_TASK_REASSIGNED: RecalledByOperator,
	v1.ErrorCode_ERROR_CODE_TASK_ABANDONED:  RecalledAsAbandoned,
	v1.ErrorCode_ERROR_CODE_TASK_CANCELED:   RecalledByCancel,
}

// recallNotice returns the broker's notice about a task that was taken from its owner, or nil if the delivery is another
// message.
func recallNotice(d *Delivery) *v1.ErrorNotification {
	notice, _ := d.Payload.(*v1.ErrorNotification)
	if _, is := recallReasons[notice.GetErrorCode()]; is && d.Envelope.GetSenderId() == brokerID {
		return notice
	}
	return nil
}

// takenBy returns what the broker took from this agent by this delivery, or nil.
func takenBy(d *Delivery) *Recalled {
	notice := recallNotice(d)
	if notice.GetNextStep() != v1.NextStep_NEXT_STEP_DROP_TASK {
		return nil
	}
	return &Recalled{
		TaskID: d.Envelope.GetTaskId(), HandoffID: d.HandoffID, Epoch: d.Envelope.GetEpoch(),
		Message:      notice.GetErrorMessage(),
		Reason:       recallReasons[notice.GetErrorCode()],
		IsReassigned: notice.GetErrorCode() == v1.ErrorCode_ERROR_CODE_TASK_REASSIGNED,
	}
}

// work is work on a task of this agent, which a recall of the task ends.
type work struct {
	taskID string
	// The task's epoch when the work began. A recall to a later one ends it.
	epoch uint64
	// Ends the work. Returns whether the notice needs no handler.
	stop func(*Recalled) bool
}

// watch has stop called when the task is recalled from this agent. It returns the function that ends this.
func (a *Agent) watch(taskID string, epoch uint64, stop func(*Recalled) bool) func() {
	w := &work{taskID, epoch, stop}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.works[w] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.works, w)
	}
}

// stopWork ends the work on a task that the broker took from this agent. It reports whether the notice needs no
// handler.
func (a *Agent) stopWork(d *Delivery) bool {
	recalled := takenBy(d)
	if recalled == nil {
		return false
	}
	isCanceled := recalled.Reason == RecalledByCancel // the end of the task, maybe at the same epoch
	lostAt := recalled.Epoch
	if !isCanceled && lostAt > 0 {
		lostAt--
	}
	a.lost(recalled.TaskID, lostAt)
	var ended []*work
	a.mu.Lock()
	for w := range a.works {
		if w.taskID == recalled.TaskID && w.epoch <= lostAt {
			ended = append(ended, w)
			delete(a.works, w)
		}
	}
	a.mu.Unlock()
	isDone := false
	for _, w := range ended {
		isDone = w.stop(recalled) || isDone
	}
	return isDone
}

// UntilRecalled returns a context that also ends when the task is recalled from this agent, with a TaskRecalledError as
// its cause. Until cancel the heartbeats of this process list the task, so that it does not count as abandoned: use it for
// work that goes on after the Offer function. Call cancel when the work on the task is done. The context of Handlers.Offer
// ends in the same way.
func (t *OwnedTask) UntilRecalled(ctx context.Context) (working context.Context, cancel context.CancelFunc) {
	working, end := context.WithCancelCause(ctx)
	unwatch := t.agent.watch(t.TaskID, t.present(), func(r *Recalled) bool {
		end(r.lost())
		return false
	})
	held := t.agent.take(t, false)
	return working, func() {
		unwatch()
		t.agent.release(held)
		end(nil)
	}
}

// Recall takes back the task that a handoff of this agent lent. This agent owns it from Recall's return on. The loans
// within this one end too, and an open handoff of the task is cancelled. The broker tells the agents that work on the
// task. It fails with an Error: NOT_LENT if the loan has ended or the handoff did not lend the task, NOT_OWNER if
// another agent lent it.
func (a *Agent) Recall(ctx context.Context, handoffID, reason string) (*OwnedTask, error) {
	handoff, err := a.GetHandoff(ctx, handoffID)
	if err != nil {
		return nil, err
	}
	taskID := handoff.GetTaskId()
	about := About{TaskID: taskID, Epoch: handoff.GetEpoch(), CorrelationID: handoffID}
	receipt, err := a.Send(ctx, "", about, &v1.TaskRecall{ReasonText: clipped(reason)})
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	results := a.waiting[ofTask(taskID)]
	a.mu.Unlock()
	if results != nil && receipt.GetEpoch() > results.afterEpoch+1 {
		results.fail(&TaskRecalledError{
			TaskID: taskID, HandoffID: handoffID, Reason: RecalledByRecall, Message: "this agent recalled the task",
			Epoch: receipt.GetEpoch(), IsOwner: true,
		})
	}
	a.moved(taskID, handoff.GetEpoch(), receipt.GetEpoch())
	return a.ownedBy(receipt, taskID), nil
}

// Delegate lends a task and waits for its final status: HandOver with HANDOFF_MODE_DELEGATE, then the result. On return
// this agent owns the task again, at the next epoch.
//
// Delegate fails with ErrWaitedFor if another call of this Agent hands the task over, or waits for its result.
//
// ctx limits the whole call, and HandoffRequest.LoanTimeout the loan at the broker, 1 s to 30 days after the
// completion; default: the time until the deadline of ctx, or without a deadline LoanTimeoutDefault. When ctx ends, the
// agent takes the task back: it recalls it, or cancels a handoff that is still open, for at most 10 s. Without a
// deadline the whole timeout of the handoff and the loan timeout limit the call: the broker ends both, and the call reads
// the state there each 5 s, so that it gets its result also if another process of the agent took the message.
// WithProgress shows the delegate's reports meanwhile.
//
// Delegate fails with a TaskRecalledError if the task came back without a result; it wraps the cause of ctx if that has
// ended. Where the loan timeout is the deadline of ctx, RecalledByDeadline is the reason of both. It fails with a HandoffFailedError if the task was not lent: NO_CANDIDATE after rejections, HANDOFF_CANCELLED
// when ctx ends, and others as HandOver.
//
// A process that restarts while the task is lent goes on by WaitForLoan. Without it, it gets the final status as a
// TaskStatusUpdate, and OwnedTasks lists the task from then on.
func (a *Agent) Delegate(
	ctx context.Context, receiverID, taskID string, epoch uint64, request *v1.HandoffRequest, sections ...*v1.ContextSection,
) (*Outcome, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	lent := loanOf(ctx, request)
	// Then the loan timeout at the broker is the limit of the call, and either of the two may pass first.
	_, hasDeadline := ctx.Deadline()
	isOneTime := hasDeadline && request.GetLoanTimeout() == nil
	envelope, err := a.newEnvelope(ctx, receiverID, About{TaskID: taskID, Epoch: epoch}, lent)
	if err != nil {
		return nil, err
	}
	release, err := a.hands(tenure{taskID, epoch})
	if err != nil {
		return nil, err
	}
	defer release()
	results, err := a.converse(ctx, ofTask(taskID), epoch)
	if err != nil {
		return nil, err
	}
	defer results.close()
	defer a.watch(taskID, epoch, func(r *Recalled) bool {
		results.fail(r.lost())
		return false
	})()
	handed, err := a.handOverOnce(ctx, envelope, sections, true)
	var outcome *Outcome
	if err == nil {
		showLast := a.showProgress(ctx, handed)
		outcome, err = a.outcomeOf(ctx, results, handed, a.lookAfter)
		showLast()
	}
	var failed *HandoffFailedError
	var recalled *TaskRecalledError
	if err != nil && ctx.Err() != nil && !errors.As(err, &failed) && !errors.As(err, &recalled) {
		outcome, err = a.endLoan(ctx, results, envelope)
	}
	if isOneTime {
		err = byLimit(err, RecalledByLoanTimeout, context.DeadlineExceeded)
	}
	a.moved(taskID, epoch, backAt(outcome, err))
	return outcome, err
}

// backAt returns the epoch at which a lent task is this agent's again; 0 if it is not.
func backAt(outcome *Outcome, err error) uint64 {
	var recalled *TaskRecalledError
	switch {
	case outcome != nil:
		return outcome.Epoch
	case errors.As(err, &recalled) && recalled.IsOwner:
		return recalled.Epoch
	}
	return 0
}

// byLimit returns the end of a delegation with the limit of the call as the reason in place of another reason.
func byLimit(err error, other RecallReason, cause error) error {
	var recalled *TaskRecalledError
	if !errors.As(err, &recalled) || recalled.Reason != other || !recalled.IsOwner {
		return err
	}
	limited := *recalled
	limited.Reason, limited.cause = RecalledByDeadline, cause
	return &limited
}

// loanOf returns the request of a delegation.
func loanOf(ctx context.Context, request *v1.HandoffRequest) *v1.HandoffRequest {
	lent := proto.CloneOf(request)
	lent.Mode = v1.HandoffMode_HANDOFF_MODE_DELEGATE
	deadline, hasDeadline := ctx.Deadline()
	if lent.GetLoanTimeout() == nil {
		// If this process dies, nothing but the loan timeout brings the task back.
		loan := LoanTimeoutDefault
		if hasDeadline {
			loan = min(max(time.Until(deadline), loanTimeoutMin), loanTimeoutMax)
		}
		lent.LoanTimeout = durationpb.New(loan)
	}
	return lent
}

// outcomeOf waits for the final status of a delegated task.
func (a *Agent) outcomeOf(
	ctx context.Context, results *conversation, lent *HandedOver, lookAfter time.Duration,
) (*Outcome, error) {
	for {
		l, err := results.nextWithin(ctx, lookAfter)
		if errors.Is(err, errNoMail) {
			task, err := a.backFrom(ctx, lent)
			if err != nil {
				return nil, err
			}
			if task == nil {
				continue
			}
			outcome, err := a.endOfLoan(ctx, lent, task)
			if isPassing(err) {
				continue
			}
			return outcome, err
		}
		if err != nil {
			return nil, err
		}
		update, isStatus := l.Payload.(*v1.TaskStatusUpdate)
		if !isStatus {
			l.finish(nil)
			notice := recallNotice(l.Delivery)
			reason := recallReasons[notice.GetErrorCode()]
			if reason == RecalledByRecall {
				reason = RecalledByLoanTimeout // a recall by this agent has no notice to it
			}
			return nil, &TaskRecalledError{
				TaskID: lent.TaskID, HandoffID: lent.HandoffID, Reason: reason,
				Message: notice.GetErrorMessage(), Epoch: l.Envelope.GetEpoch(), IsOwner: true,
			}
		}
		isOver, err := a.isReturned(ctx, lent.TaskID, lent.Epoch, l.Envelope.GetEpoch())
		l.finish(err)
		if err != nil {
			return nil, err
		}
		if isOver {
			return &Outcome{
				TaskID: lent.TaskID, Epoch: l.Envelope.GetEpoch() + 1, Status: update.GetStatus(),
				Result: objectOf(update.GetResultJson()), Details: update.GetDetails(),
			}, nil
		}
	}
}

// isReturned reports whether a final status ended the loan of a task that was lent at this epoch. A status of a later
// epoch may have ended a further loan by the delegate, which names this agent as a receiver too.
func (a *Agent) isReturned(ctx context.Context, taskID string, lentAt, endedAt uint64) (bool, error) {
	if endedAt == lentAt {
		return true, nil
	}
	task, err := a.GetTask(ctx, taskID)
	return task.GetOwnerId() == a.ID() && task.GetEpoch() == endedAt+1, err
}

// backFrom reads the task. It returns the task if its loan has ended.
func (a *Agent) backFrom(ctx context.Context, lent *HandedOver) (*v1.Task, error) {
	task, err := a.GetTask(ctx, lent.TaskID)
	if isPassing(err) {
		return nil, nil
	}
	for _, loan := range task.GetLoans() {
		if loan.GetHandoffId() == lent.HandoffID {
			return nil, err
		}
	}
	if err != nil || task.GetEpoch() <= lent.Epoch {
		return nil, err
	}
	return task, nil
}

// endLoan takes the task back after the end of the call's context. It returns the delegate's result if it came first.
func (a *Agent) endLoan(ctx context.Context, results *conversation, request *v1.Envelope) (*Outcome, error) {
	const text = "the delegating call has ended"
	cause := context.Cause(ctx)
	handoffID, taskID := request.GetMessageId(), request.GetTaskId()
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	receipt, err := a.takeBack(back, request, text)
	if err != nil {
		return nil, fmt.Errorf("baton: task %s is not taken back, its loan timeout returns it: %w", taskID, errors.Join(cause, err))
	}
	if receipt != nil {
		return nil, &TaskRecalledError{
			TaskID: taskID, HandoffID: handoffID, Reason: RecalledByDeadline, Message: text, Epoch: receipt.GetEpoch(),
			IsOwner: true, cause: cause,
		}
	}
	notLent := &HandoffFailedError{HandoffID: handoffID, Reason: "HANDOFF_CANCELLED", Message: text, cause: cause}
	handoff, err := a.GetHandoff(back, handoffID)
	switch {
	case err != nil && (isPassing(err) || back.Err() != nil):
		return nil, errors.Join(cause, err)
	case err != nil:
		return nil, notLent // the request was not stored
	case !isFinalState(handoff.GetState()):
		return nil, fmt.Errorf("baton: the handoff of task %s could not be cancelled: %w", taskID, cause)
	}
	h := &handOver{agent: a, mail: results, epoch: request.GetEpoch(), view: func(v1.SenderView) {}}
	h.HandoffID, h.TaskID = handoffID, taskID
	h.knows(handoff)
	lent, err := h.ended(handoff)
	if err != nil {
		errors.As(err, &notLent)
		notLent.cause = cause
		return nil, notLent
	}
	waiting, stop := context.WithTimeout(context.WithoutCancel(ctx), 4*takeBackTime)
	defer stop()
	outcome, err := a.outcomeOf(waiting, results, lent, takeBackTime)
	// A loan that has ended by then without news has ended by the same limit.
	return outcome, byLimit(err, RecalledByRecall, cause)
}

// takeBack cancels the handoff of this request, or recalls the task that it lent. It returns the receipt of the recall;
// nil if the task was not lent or its loan has ended.
func (a *Agent) takeBack(ctx context.Context, request *v1.Envelope, text string) (*v1.Receipt, error) {
	about := About{TaskID: request.GetTaskId(), Epoch: request.GetEpoch(), CorrelationID: request.GetMessageId()}
	var last error
	for range takeBackAttempts {
		var receipt *v1.Receipt
		handoff, err := a.GetHandoff(ctx, request.GetMessageId())
		switch {
		case err != nil:
		case handoff.GetState() == v1.HandoffState_HANDOFF_STATE_COMPLETED:
			receipt, err = a.Send(ctx, "", about, &v1.TaskRecall{ReasonText: text})
		case isFinalState(handoff.GetState()):
			return nil, nil
		default:
			_, err = a.Send(ctx, handoff.GetCandidateId(), about, &v1.HandoffCancel{ReasonText: text})
		}
		var refused *Error
		if err == nil || errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_NOT_LENT {
			return receipt, nil
		}
		// The request may still be on its way, or the handoff has moved on since the look.
		last = err
		if err := sleep(ctx, attemptWait); err != nil {
			return nil, &Error{Code: codes.DeadlineExceeded, Message: "no answer in time", cause: last}
		}
	}
	if isPassing(last) {
		return nil, last
	}
	return nil, nil
}

// WaitForLoan waits for the final status of a task that a handoff of this agent lends, also one of an earlier process. It
// returns or fails as Delegate, also when the loan has ended meanwhile. Of a handoff that is still open, the sections go to
// the agent that accepts; without any, Handlers.Context gives them, or another call. The end of this wait ends nothing: when
// ctx ends, the loan stays as it is. WithProgress shows the delegate's reports from the takeover on.
//
// WaitForLoan fails with an Error: HANDOFF_UNKNOWN; NOT_OWNER if another agent requested the handoff; NOT_LENT if it lends
// nothing, or if the task has been handed on since the loan ended. It fails with ErrWaitedFor while another call of this
// Agent waits for the task.
func (a *Agent) WaitForLoan(ctx context.Context, handoffID string, sections ...*v1.ContextSection) (*Outcome, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	handoff, err := a.GetHandoff(ctx, handoffID)
	if err != nil {
		return nil, err
	}
	taskID, epoch := handoff.GetTaskId(), handoff.GetEpoch()
	switch {
	case handoff.GetSenderId() != a.ID():
		text := fmt.Sprintf("handoff %s was asked for by %s", handoffID, handoff.GetSenderId())
		return nil, &Error{Code: codes.PermissionDenied, Reason: "NOT_OWNER", Message: text}
	case handoff.GetMode() != v1.HandoffMode_HANDOFF_MODE_DELEGATE:
		return nil, notLent(fmt.Sprintf("handoff %s hands the task over for good", handoffID))
	}
	results, err := a.converse(ctx, ofTask(taskID), epoch)
	if err != nil {
		return nil, err
	}
	defer results.close()
	defer a.watch(taskID, epoch, func(r *Recalled) bool {
		results.fail(r.lost())
		return false
	})()
	lent, err := a.lentBy(ctx, handoff, sections)
	if err != nil {
		return nil, err
	}
	lookAfter, err := a.lookAfterOf(ctx, lent)
	if err != nil {
		return nil, err
	}
	showLast := a.showProgress(ctx, lent)
	outcome, err := a.outcomeOf(ctx, results, lent, lookAfter)
	showLast()
	a.moved(taskID, epoch, backAt(outcome, err))
	return outcome, err
}

// lentBy goes on with a handoff until it has lent the task. It fails with a HandoffFailedError.
func (a *Agent) lentBy(ctx context.Context, handoff *v1.Handoff, sections []*v1.ContextSection) (*HandedOver, error) {
	if len(sections) > 0 && !isFinalState(handoff.GetState()) {
		return a.ResumeHandOver(ctx, handoff.GetHandoffId(), sections...)
	}
	if !isFinalState(handoff.GetState()) {
		for step, err := range a.WatchHandoff(ctx, handoff.GetHandoffId()) {
			if err != nil {
				return nil, err
			}
			handoff = step
		}
	}
	h := &handOver{agent: a, epoch: handoff.GetEpoch(), view: func(v1.SenderView) {}}
	h.HandoffID, h.TaskID = handoff.GetHandoffId(), handoff.GetTaskId()
	h.knows(handoff)
	a.settled.add(h.HandoffID)
	return h.ended(handoff)
}

// lookAfterOf returns the silence after which the wait for a loan looks at the broker: a short one if the loan has ended,
// for the message about its end. It fails with NOT_LENT if this agent has handed the task on since.
func (a *Agent) lookAfterOf(ctx context.Context, lent *HandedOver) (time.Duration, error) {
	task, err := a.GetTask(ctx, lent.TaskID)
	if err != nil {
		return 0, err
	}
	for _, loan := range task.GetLoans() {
		if loan.GetHandoffId() == lent.HandoffID {
			return a.lookAfter, nil
		}
	}
	for _, hop := range task.GetHops() {
		if hop.GetSenderId() == a.ID() && hop.GetEpoch() > lent.Epoch {
			text := "handoff %s lends nothing any more: %s has moved the task since"
			return 0, notLent(fmt.Sprintf(text, lent.HandoffID, hop.GetHandoffId()))
		}
	}
	return min(lastNewsTime, a.lookAfter), nil
}

func notLent(text string) error {
	return &Error{Code: codes.FailedPrecondition, Reason: "NOT_LENT", Message: text}
}
