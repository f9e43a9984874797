package baton

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	// laterAfter is the redelivery delay of a message that no call of this process waits for yet.
	laterAfter = 2 * time.Second
	// The silence after a reconnect after which a waiting call reads the state at the broker.
	lookAfterReconnect = time.Second
	// conversationMax is the maximum number of letters in one conversation. The broker delivers one message of a task at a
	// time.
	conversationMax = 16
)

// conversation is the mail of one handoff or negotiation, the final status of one lent task, or the answer to one question,
// while a call or a handler waits for it.
type conversation struct {
	agent *Agent
	key   string
	mail  chan *letter
	// afterEpoch excludes the result of an earlier loan of the same task.
	afterEpoch uint64
	// Whether the waiting call knows the end, so that further mail about it needs no handling. The call sets it before
	// close.
	isOver bool
	// Closed by fail, after err is set.
	failed   chan struct{}
	failOnce sync.Once
	err      error
}

// fail ends the conversation with an error for its call, after the letters that wait.
func (c *conversation) fail(err error) {
	c.failOnce.Do(func() {
		c.err = err
		close(c.failed)
	})
}

// letter is a delivery in a conversation. The conversation extends it until finish.
type letter struct {
	*Delivery
	result  chan error
	settled chan struct{}
}

func ofHandoff(id string) string { return "handoff " + id }
func ofTask(id string) string    { return "task " + id }

func ofQuestion(id string) string { return "question " + id }

func ofNegotiation(id string) string { return "negotiation " + id }

// converse opens a conversation. It registers the conversation before it returns, so that no answer is missed.
func (a *Agent) converse(ctx context.Context, key string, afterEpoch uint64) (*conversation, error) {
	c := &conversation{
		agent: a, key: key, mail: make(chan *letter, conversationMax), afterEpoch: afterEpoch, failed: make(chan struct{}),
	}
	isTaken := false
	err := a.wantMail(ctx, func() {
		if _, isTaken = a.waiting[key]; !isTaken {
			a.waiting[key] = c
		}
	})
	if isTaken {
		return nil, waitedFor(key)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func waitedFor(key string) error { return fmt.Errorf("%w: %s", ErrWaitedFor, key) }

// close ends the conversation without waiting. Its remaining letters are redelivered to a later conversation, or
// settled if the conversation is over.
func (c *conversation) close() {
	a := c.agent
	a.mu.Lock()
	if a.waiting[c.key] == c {
		delete(a.waiting, c.key)
	}
	a.mu.Unlock()
	go func() {
		ctx, cancel := context.WithTimeout(a.life, callTimeout)
		defer cancel()
		if err := a.adjustCredit(ctx); err != nil {
			a.options.Logger.Debug("failed to change the credit", "error", err)
		}
	}()
	var rest error
	if !c.isOver {
		rest = later(0, "what waited for it has ended")
	}
	for {
		select {
		case l := <-c.mail:
			l.tell(rest)
		default:
			return
		}
	}
}

// next waits for the next letter, which the caller finishes.
func (c *conversation) next(ctx context.Context) (*letter, error) {
	select {
	case l := <-c.mail:
		return l, nil
	default:
	}
	select {
	case l := <-c.mail:
		return l, nil
	case <-c.failed:
		return nil, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.agent.life.Done():
		return nil, c.agent.Err()
	}
}

// nextWithin is next, but fails with errNoMail after a silence: the mail may have expired, or another process of this agent
// may have it. After a reconnect it waits for a second only, for what was on its way may be lost.
func (c *conversation) nextWithin(ctx context.Context, silence time.Duration) (*letter, error) {
	a := c.agent
	due := time.Now().Add(silence)
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		select {
		case l := <-c.mail:
			return l, nil
		default:
		}
		select {
		case l := <-c.mail:
			return l, nil
		case <-c.failed:
			return nil, c.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-a.life.Done():
			return nil, a.Err()
		case <-timer.C:
			return nil, errNoMail
		case <-changed:
			a.mu.Lock()
			isConnected := a.session != nil
			a.mu.Unlock()
			if isConnected {
				timer.Reset(max(min(time.Until(due), lookAfterReconnect), 0))
			}
		}
	}
}

// nextOrLook is next, but calls look with the handoff's state after a silence.
func (c *conversation) nextOrLook(ctx context.Context, look func(*v1.Handoff) error) (*letter, error) {
	for {
		l, err := c.nextWithin(ctx, c.agent.lookAfter)
		if !errors.Is(err, errNoMail) {
			return l, err
		}
		handoff, err := c.agent.GetHandoff(ctx, strings.TrimPrefix(c.key, ofHandoff("")))
		if err == nil {
			err = look(handoff)
		} else if isPassing(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
}

// errNoMail is the cause for a look at the handoff.
var errNoMail = errors.New("baton: no mail came")

// finish acknowledges the letter by a handler's result, and waits for the broker's answer.
func (l *letter) finish(result error) {
	l.tell(result)
	<-l.settled
}

// tell is finish without waiting.
func (l *letter) tell(result error) {
	select {
	case l.result <- result:
	default: // finished before
	}
}

// wantMail changes the mail that this agent waits for. The agent gives credit while it waits for any mail.
func (a *Agent) wantMail(ctx context.Context, change func()) error {
	a.mu.Lock()
	change()
	isRight := a.wantsMail() == a.isCredited
	a.mu.Unlock()
	if isRight {
		return nil
	}
	return a.adjustCredit(ctx)
}

// adjustCredit gives credit while the agent waits for mail, and none otherwise.
func (a *Agent) adjustCredit(ctx context.Context) error {
	a.crediting.Lock()
	defer a.crediting.Unlock()
	a.mu.Lock()
	wants, s := a.wantsMail(), a.session
	if wants == a.isCredited {
		a.mu.Unlock()
		return nil
	}
	a.isCredited, a.credit = wants, 0
	if wants {
		a.credit = a.options.Credit
	}
	credit := a.credit
	a.mu.Unlock()
	if s == nil {
		return nil // the next session begins with it
	}
	return s.giveCredit(ctx, credit)
}

// wantsMail requires a.mu.
func (a *Agent) wantsMail() bool { return a.taking || len(a.waiting) > 0 }

// sortMail verifies each delivery and routes it, until the agent's end.
func (a *Agent) sortMail() {
	for {
		select {
		case entry := <-a.inbox:
			if d := a.checked(a.life, entry); d != nil {
				a.route(d)
			}
		case <-a.life.Done():
			return
		}
	}
}

// route gives a delivery to its conversation, to Serve or Receive, or back to the broker.
func (a *Agent) route(d *Delivery) {
	switch state, running := a.letters.again(d); state {
	case jobRunning:
		if running.renew(d) {
			a.running.Go(func() { a.settle(running, nil) })
		}
		return
	case jobDone:
		a.running.Go(func() { a.settle(d, nil) })
		return
	case jobNew:
	}
	a.noteMoved(d)
	if a.stopWork(d) || a.isSettled(d) {
		a.running.Go(func() { a.settle(d, nil) })
		return
	}
	a.mu.Lock()
	c := a.conversationOf(d)
	wantsMail := a.wantsMail()
	isQueued := c == nil && a.taking && a.enqueue(d)
	a.mu.Unlock()
	switch {
	case c != nil:
		c.put(d)
	case !isQueued && wantsMail:
		// Without Serve and Receive only conversations take mail.
		a.running.Go(func() { a.settle(d, later(laterAfter, "the agent does not take mail at present")) })
	case !isQueued:
		a.running.Go(func() { a.settle(d, errStopped) })
	}
}

// enqueue stores a delivery for Serve or Receive. Credit bounds the deliveries of the present session, so a full queue
// starts with those of ended sessions, which the broker redelivers.
func (a *Agent) enqueue(d *Delivery) bool {
	for {
		select {
		case a.mail <- d:
			return true
		default:
		}
		select {
		case <-a.mail:
		default:
		}
	}
}

// put adds a delivery to the conversation, which extends it until it is finished.
func (c *conversation) put(d *Delivery) {
	a := c.agent
	l := &letter{Delivery: d, result: make(chan error, 1), settled: make(chan struct{})}
	a.letters.begin(d)
	select {
	case c.mail <- l:
	default:
		l.result <- later(laterAfter, "too many messages wait")
	}
	a.running.Go(func() {
		defer close(l.settled)
		a.letters.end(d, a.handle(a.life, HandlerFunc(l.wait), d))
	})
}

func (l *letter) wait(ctx context.Context, _ *Delivery) error {
	select {
	case result := <-l.result:
		return result
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// conversationOf requires a.mu.
func (a *Agent) conversationOf(d *Delivery) *conversation {
	switch payload := d.Payload.(type) {
	case *v1.HandoffAccept, *v1.HandoffReject, *v1.HandoffCancel, *v1.TaskContextTransfer, *v1.HandoffComplete:
		return a.waiting[ofHandoff(d.HandoffID)]
	case *v1.ErrorNotification:
		if notice := recallNotice(d); notice != nil {
			c := a.waiting[ofTask(d.Envelope.GetTaskId())]
			isBack := notice.GetNextStep() == v1.NextStep_NEXT_STEP_KEEP_TASK
			if c == nil || !isBack {
				return nil
			}
			// A task that was cancelled may not have been lent yet.
			isEnd := notice.GetErrorCode() == v1.ErrorCode_ERROR_CODE_TASK_CANCELED
			if d.Envelope.GetEpoch() > c.afterEpoch+1 || isEnd && d.Envelope.GetEpoch() >= c.afterEpoch {
				return c
			}
			return nil
		}
		if d.Envelope.GetSenderId() != brokerID {
			return nil
		}
		if payload.GetErrorCode() == v1.ErrorCode_ERROR_CODE_INPUT_EXPIRED {
			return a.waiting[ofQuestion(d.Envelope.GetCorrelationId())]
		}
		if c := a.waiting[ofHandoff(d.HandoffID)]; c != nil {
			return c
		}
		return a.waiting[ofNegotiation(d.Envelope.GetCorrelationId())]
	case *v1.TaskOffer, *v1.TaskDecline:
		return a.waiting[ofNegotiation(d.Envelope.GetCorrelationId())]
	case *v1.NegotiationClosed:
		if d.Terms() == nil {
			return a.waiting[ofNegotiation(d.Envelope.GetCorrelationId())]
		}
	case *v1.TaskInput:
		return a.waiting[ofQuestion(d.Envelope.GetCorrelationId())]
	case *v1.TaskStatusUpdate:
		c := a.waiting[ofTask(d.Envelope.GetTaskId())]
		if c != nil && isFinalStatus(payload.GetStatus()) && d.Envelope.GetEpoch() > c.afterEpoch {
			return c
		}
	}
	return nil
}

// later asks for a redelivery that does not count as a failure.
func later(wait time.Duration, text string) error {
	return &nackError{error: errors.New(text), cause: v1.NackCause_NACK_CAUSE_SHUTDOWN, retryAfter: wait}
}

// unclaimed settles mail of a handoff that no call of this process waits for: a context, or an accept whose HandOver
// died with an earlier process. While the handoff is open the message is redelivered, until a call takes it or the
// broker ends the handoff by its timeout.
func (a *Agent) unclaimed(ctx context.Context, d *Delivery) error {
	handoff, err := a.GetHandoff(ctx, d.HandoffID)
	var refused *Error
	switch {
	case err == nil:
	case errors.As(err, &refused) && !isPassing(err):
		return nil // the handoff was removed, or belongs to other agents: no call can wait for it
	default:
		return later(laterAfter, fmt.Sprintf("failed to look at handoff %s: %v", d.HandoffID, err))
	}
	_, isAccept := d.Payload.(*v1.HandoffAccept)
	isSent := handoff.GetState() == v1.HandoffState_HANDOFF_STATE_CONTEXT_SENT
	if isFinalState(handoff.GetState()) || isAccept && isSent {
		return nil
	}
	return later(laterAfter, "no code of this agent waits for it yet")
}

func isFinalState(state v1.HandoffState) bool {
	switch state {
	case v1.HandoffState_HANDOFF_STATE_COMPLETED, v1.HandoffState_HANDOFF_STATE_REJECTED,
		v1.HandoffState_HANDOFF_STATE_FAILED, v1.HandoffState_HANDOFF_STATE_CANCELLED:
		return true
	}
	return false
}

func isFinalStatus(status v1.TaskStatus) bool {
	switch status {
	case v1.TaskStatus_TASK_STATUS_COMPLETED, v1.TaskStatus_TASK_STATUS_FAILED, v1.TaskStatus_TASK_STATUS_CANCELED:
		return true
	}
	return false
}

// jobs records the messages in work, and the messages handled lately.
type jobs struct {
	wait    sync.WaitGroup
	mu      sync.Mutex
	running map[string]*Delivery
	done    map[string]bool
	order   []string
	// Closed when a job ends.
	freed chan struct{}
}

type jobState int

const (
	jobNew jobState = iota
	jobRunning
	jobDone
)

func newJobs() *jobs {
	return &jobs{running: map[string]*Delivery{}, done: map[string]bool{}, freed: make(chan struct{})}
}

// again returns the recorded state of a message, and its delivery in work.
func (j *jobs) again(d *Delivery) (jobState, *Delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := jobID(d)
	if running := j.running[id]; running != nil {
		return jobRunning, running
	}
	if j.done[id] {
		return jobDone, nil
	}
	return jobNew, nil
}

func (j *jobs) begin(d *Delivery) { j.beginID(jobID(d), d) }

func (j *jobs) beginID(id string, d *Delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running[id] = d
}

func (j *jobs) end(d *Delivery, taken bool) { j.endID(jobID(d), taken) }

// count returns the number of jobs in work.
func (j *jobs) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.running)
}

// freedAfter returns a channel that is closed when the next job ends.
func (j *jobs) freedAfter() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.freed
}

func (j *jobs) endID(id string, taken bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.running, id)
	close(j.freed)
	j.freed = make(chan struct{})
	if !taken {
		return
	}
	j.done[id] = true
	j.order = append(j.order, id)
	if len(j.order) > rememberedMax {
		delete(j.done, j.order[0])
		j.order = j.order[1:]
	}
}

// jobID identifies the deliveries of one message in one handoff: a redriven request has another handoff.
func jobID(d *Delivery) string { return d.Envelope.GetMessageId() + " " + d.HandoffID }
