package baton

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// serve runs Serve until the test ends, or until the returned function is called.
func serve(t *testing.T, agent *Agent, handler Handler) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Serve(ctx, handler) }()
	stop = func() error { cancel(); return await(t, done) }
	t.Cleanup(cancel)
	return stop
}

func await[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatal("it does not come")
	}
	return value
}

// taker accepts and takes over every offer, and sends the owned tasks to the channel.
func taker(agent *Agent) (Handlers, <-chan *v1.Receipt) {
	owned := make(chan *v1.Receipt, 16)
	return Handlers{
		HandoffRequest: func(ctx context.Context, d *Delivery, _ *v1.HandoffRequest) error {
			_, err := agent.Accept(ctx, d, &v1.HandoffAccept{WantedSections: []string{"goals"}})
			return err
		},
		TaskContextTransfer: func(ctx context.Context, d *Delivery, _ *v1.TaskContextTransfer) error {
			receipt, err := agent.Complete(ctx, d)
			if err == nil {
				owned <- receipt
			}
			return err
		},
	}, owned
}

// giver sends the context to each agent that accepts, and sends completed handoffs to the channel.
func giver(t *testing.T, agent *Agent) (Handlers, <-chan *v1.HandoffComplete) {
	t.Helper()
	goals := ok[*v1.ContextSection](t)(JSONSection("goals", []string{"find the cause"}))
	completed := make(chan *v1.HandoffComplete, 16)
	return Handlers{
		HandoffAccept: func(ctx context.Context, d *Delivery, _ *v1.HandoffAccept) error {
			_, err := agent.SendContext(ctx, d, goals, BytesSection("log", "text/plain", []byte("not wanted")))
			return err
		},
		HandoffComplete: func(_ context.Context, _ *Delivery, complete *v1.HandoffComplete) error {
			completed <- complete
			return nil
		},
	}, completed
}

func TestAWholeHandoff(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	handlers, completed := giver(t, alice)
	serve(t, alice, handlers)
	handlers, owned := taker(bob)
	serve(t, bob, handlers)
	task := unique("ticket")
	request := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), task, 1, supportRequest()))
	if receipt := await(t, owned); receipt.GetOwnerId() != bob.ID() || receipt.GetEpoch() != 2 {
		t.Errorf("%v", receipt)
	}
	if complete := await(t, completed); complete.GetOutcome() != v1.HandoffOutcome_HANDOFF_OUTCOME_SUCCESS {
		t.Errorf("%v", complete)
	}
	handoff := ok[*v1.Handoff](t)(alice.GetHandoff(patient(t), request.GetHandoffId()))
	if handoff.GetState() != v1.HandoffState_HANDOFF_STATE_COMPLETED {
		t.Errorf("%v", handoff)
	}
	_, err := alice.UpdateStatus(patient(t), task, 1, &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_COMPLETED})
	if refused(t, err, "STALE_EPOCH").Metadata == nil {
		t.Error(err)
	}
	ok[*v1.Receipt](t)(bob.UpdateStatus(patient(t), task, 2, &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_COMPLETED}))
	for _, agent := range []*Agent{alice, bob} {
		entries := ok[[]*v1.CustodyEntry](t)(agent.AuditTask(patient(t), task))
		last := entries[len(entries)-1]
		if last.GetOwnerId() != bob.ID() || last.GetEpoch() != 2 || last.GetTaskStatus() != v1.TaskStatus_TASK_STATUS_COMPLETED {
			t.Errorf("%v", last)
		}
	}
	auditSees(t, alice, task)
}

// auditSees changes each property that an audit checks.
func auditSees(t *testing.T, agent *Agent, task string) {
	t.Helper()
	page := ok[*v1.GetCustodyLogResponse](t)(agent.tasks.GetCustodyLog(
		agent.Authorize(patient(t)), &v1.GetCustodyLogRequest{TaskId: task, IncludeEnvelopes: true, PageSize: 1}))
	keys := ok[*v1.Agent](t)(agent.GetAgent(patient(t), "baton")).GetCard().GetKeys()
	changes := []struct {
		reason string
		change func(*v1.CustodyLogEntry)
	}{
		{"CUSTODY_INVALID", func(e *v1.CustodyLogEntry) { e.EntryBytes = append(e.EntryBytes, 0x78, 1) }},
		{"CUSTODY_INVALID", func(e *v1.CustodyLogEntry) { e.CustodyHash = make([]byte, 32) }},
		{"CUSTODY_INVALID", func(e *v1.CustodyLogEntry) { e.Envelope.TaskId = "another" }},
		{"CUSTODY_INVALID", func(e *v1.CustodyLogEntry) { e.Receipt = nil }},
		{"SIGNATURE_INVALID", func(e *v1.CustodyLogEntry) { e.Receipt.Epoch++ }},
		{"SIGNATURE_MISSING", func(e *v1.CustodyLogEntry) { e.Envelope.Signature = nil }},
	}
	for _, one := range changes {
		entry := proto.CloneOf(page.GetEntries()[0])
		head := CustodyHash(make([]byte, 32), entry.GetEntryBytes())
		if _, err := agent.auditEntry(patient(t), entry, 1, head, keys); err != nil {
			t.Fatal(err)
		}
		one.change(entry)
		head = CustodyHash(make([]byte, 32), entry.GetEntryBytes())
		_, err := agent.auditEntry(patient(t), entry, 1, head, keys)
		refusedHere(t, err, one.reason)
	}
}

func TestARejectedHandoffGoesToTheNext(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	rejected := make(chan *v1.HandoffReject, 1)
	handlers, completed := giver(t, alice)
	handlers.HandoffReject = func(_ context.Context, _ *Delivery, reject *v1.HandoffReject) error {
		rejected <- reject
		return nil
	}
	serve(t, alice, handlers)
	serve(t, bob, Handlers{HandoffRequest: func(ctx context.Context, d *Delivery, _ *v1.HandoffRequest) error {
		_, err := bob.Reject(ctx, d, v1.RejectReason_REJECT_REASON_OVERLOADED, "too much to do")
		return err
	}})
	handlers, owned := taker(carol)
	serve(t, carol, handlers)
	request := supportRequest()
	request.FallbackCandidates = []string{carol.ID()}
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, request))
	if reject := await(t, rejected); reject.GetReason() != v1.RejectReason_REJECT_REASON_OVERLOADED {
		t.Errorf("%v", reject)
	}
	if receipt := await(t, owned); receipt.GetOwnerId() != carol.ID() {
		t.Errorf("%v", receipt)
	}
	await(t, completed)
}

func TestCancelAndFailedTakeover(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	first := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	next[*v1.HandoffRequest](t, bob)
	ok[*v1.Receipt](t)(alice.Cancel(patient(t), first.GetHandoffId(), "done by phone"))
	next[*v1.HandoffCancel](t, bob)

	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	request, _ := next[*v1.HandoffRequest](t, bob)
	ok[*v1.Receipt](t)(bob.KeepTurn(patient(t), request, "looking into it"))
	ok[*v1.Receipt](t)(bob.Accept(patient(t), request, nil))
	var accept *Delivery
	for accept == nil { // the status precedes it
		d := ok[*Delivery](t)(alice.Receive(patient(t)))
		if _, is := d.Payload.(*v1.HandoffAccept); is {
			accept = d
		}
		if err := d.Ack(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	ok[*v1.Receipt](t)(alice.SendContext(patient(t), accept))
	transfer, _ := next[*v1.TaskContextTransfer](t, bob)
	failed := ok[*v1.Receipt](t)(bob.FailTakeover(patient(t), transfer, "no room"))
	if failed.GetOwnerId() != alice.ID() || failed.GetEpoch() != 1 {
		t.Errorf("%v", failed)
	}
	transfer.Payload.(*v1.TaskContextTransfer).Sections = []*v1.ContextSection{BytesSection("more", "text/plain", nil)}
	_, err := bob.Complete(patient(t), transfer)
	refusedHere(t, err, "CONTEXT_DIGEST_MISMATCH")
}

// A handler that fails in each of its ways and gets the message again.
func TestAHandlerThatFailsGetsTheMessageAgain(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	attempts := make(chan uint32, 16)
	var calls atomic.Int32
	serve(t, bob, Handlers{Info: func(_ context.Context, d *Delivery, _ *v1.Info) error {
		attempts <- d.Attempt
		switch calls.Add(1) {
		case 1:
			return RetryAfter(time.Millisecond, errors.New("not now"))
		case 2:
			panic("a bug")
		}
		return nil
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("")))
	// An attempt that a lost session took away has a number, too.
	for last := uint32(0); calls.Load() < 3 || len(attempts) > 0; {
		found := await(t, attempts)
		if found <= last {
			t.Errorf("attempt %d after %d", found, last)
		}
		last = found
	}
}

func TestPoisonAndWhatHasNoHandlerBecomeDeadLetters(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	told := make(chan v1.ErrorCode, 16)
	serve(t, alice, Handlers{ErrorNotification: func(_ context.Context, _ *Delivery, e *v1.ErrorNotification) error {
		told <- e.GetErrorCode()
		return nil
	}})
	serve(t, bob, Handlers{Info: func(context.Context, *Delivery, *v1.Info) error { return Poison(errors.New("no")) }})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("")))
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	if code := await(t, told); code != v1.ErrorCode_ERROR_CODE_NO_CANDIDATE {
		t.Error(code)
	}
	letters, ctx := v1.NewDeadLetterServiceClient(bob.Conn()), patient(t)
	list := &v1.ListDeadLettersRequest{Filter: &v1.DeadLetterFilter{AgentId: bob.ID()}}
	for len(ok[*v1.ListDeadLettersResponse](t)(letters.ListDeadLetters(bob.Authorize(ctx), list)).GetDeadLetters()) < 2 {
	}
}

const shortAckWait = "enrollment = \"open\"\n[delivery]\nack_wait_ms = 3000"

func TestADeliveryIsExtendedWhileItsHandlerWorks(t *testing.T) {
	b := newBroker(t, shortAckWait)
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	calls, finished := atomic.Int32{}, make(chan uint32, 1)
	serve(t, bob, Handlers{Info: func(_ context.Context, d *Delivery, info *v1.Info) error {
		if info.GetText() == "long" {
			calls.Add(1)
			before, _ := d.handle()
			time.Sleep(7 * time.Second) // more than twice the ack wait, as the handler's work; it waits for no event
			if now, _ := d.handle(); now != before {
				t.Error("it was delivered again")
			}
		}
		finished <- d.Attempt
		return nil
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("long")))
	if attempt := await(t, finished); attempt != 1 || calls.Load() != 1 {
		t.Errorf("attempt %d, %d calls", attempt, calls.Load())
	}
	// A redelivery of the first would precede this one: mail to a receiver is in order.
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("short")))
	if await(t, finished); calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestAHandlerThatNeverReturnsIsGivenUp(t *testing.T) {
	b := newBroker(t, shortAckWait)
	alice, options := b.agent(t, "alice"), b.options(t, "bob")
	options.HandlerTimeout = time.Second
	bob := connected(t, options)
	type call struct {
		attempt uint32
		at      time.Time
	}
	calls, causes, never := make(chan call, 16), make(chan error, 16), make(chan struct{})
	t.Cleanup(func() { close(never) })
	serve(t, bob, Handlers{Info: func(ctx context.Context, d *Delivery, _ *v1.Info) error {
		calls <- call{d.Attempt, time.Now()}
		switch d.Attempt {
		case 1: // obeys its context
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		case 2: // ignores its context
			<-never
		}
		return nil
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("")))
	first := await(t, calls)
	second := await(t, calls)
	if second.attempt != 2 || second.at.Sub(first.at) < options.HandlerTimeout {
		t.Errorf("attempt %d came after %v, within the ack wait of a dead agent", second.attempt, second.at.Sub(first.at))
	}
	if cause := await(t, causes); !errors.Is(cause, errHandlerTimeout) {
		t.Error(cause)
	}
	if third := await(t, calls); third.attempt != 3 || third.at.Sub(second.at) < options.HandlerTimeout {
		t.Errorf("attempt %d after %v", third.attempt, third.at.Sub(second.at))
	}
}

func TestAHandlerThatAcksByItselfMayTakeItsTime(t *testing.T) {
	b := newBroker(t, shortAckWait)
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	calls := atomic.Int32{}
	handlers, _ := giver(t, alice)
	serve(t, alice, handlers)
	handlers, owning := taker(bob)
	handlers.HandoffRequest = func(ctx context.Context, d *Delivery, _ *v1.HandoffRequest) error {
		calls.Add(1)
		if err := d.Ack(ctx); err != nil {
			return err
		}
		if _, err := bob.KeepTurn(ctx, d, "asking a person"); err != nil {
			return err
		}
		time.Sleep(7 * time.Second) // more than twice the ack wait, as the handler's work
		_, err := bob.Accept(ctx, d, nil)
		return errors.Join(err, errors.New("only logged"))
	}
	serve(t, bob, handlers)
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	if receipt := await(t, owning); receipt.GetOwnerId() != bob.ID() || calls.Load() != 1 {
		t.Errorf("%v, %d calls", receipt, calls.Load())
	}
}

func TestCreditBoundsWhatIsInWork(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	options.Credit = 2
	bob := connected(t, options)
	begun, goOn := make(chan struct{}, 16), make(chan struct{})
	var working, most atomic.Int32
	serve(t, bob, Handlers{Info: func(context.Context, *Delivery, *v1.Info) error {
		most.Store(max(most.Load(), working.Add(1)))
		begun <- struct{}{}
		<-goOn
		working.Add(-1)
		return nil
	}})
	for range 5 {
		ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("")))
	}
	for range 5 {
		await(t, begun)
		if len(begun) == 0 && working.Load() == 2 {
			goOn <- struct{}{}
		}
	}
	close(goOn)
	if most.Load() != 2 {
		t.Errorf("%d at a time", most.Load())
	}
}

func TestServeStopsInOrder(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	options.Credit = 1
	bob := connected(t, options)
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	stop := serve(t, bob, Handlers{Info: func(ctx context.Context, _ *Delivery, _ *v1.Info) error {
		begun <- struct{}{}
		<-goOn
		return ctx.Err()
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("in work")))
	await(t, begun)
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("for later")))
	time.AfterFunc(50*time.Millisecond, func() { close(goOn) })
	if err := stop(); err != nil {
		t.Error(err)
	}
	// The messages in work were acked. Another session gets the rest, for this one takes no more.
	d, info := next[*v1.Info](t, connected(t, options))
	if info.GetText() != "for later" || d.Attempt != 1 {
		t.Errorf("%v, attempt %d", info, d.Attempt)
	}
}

func TestAHandlerThatDoesNotEndIsGivenBackAtTheStop(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	options.StopTimeout = 50 * time.Millisecond
	bob := connected(t, options)
	begun := make(chan struct{}, 1)
	stop := serve(t, bob, Handlers{Info: func(ctx context.Context, _ *Delivery, _ *v1.Info) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("")))
	await(t, begun)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if d, _ := next[*v1.Info](t, bob); d.Attempt != 2 {
		t.Errorf("attempt %d", d.Attempt)
	}
}

func TestABrokerThatIsKilledInMidHandoff(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	calls, inWork, goOn := atomic.Int32{}, make(chan struct{}, 1), make(chan struct{})
	handlers, completed := giver(t, alice)
	serve(t, alice, handlers)
	handlers, owned := taker(bob)
	accept := handlers.HandoffRequest
	handlers.HandoffRequest = func(ctx context.Context, d *Delivery, request *v1.HandoffRequest) error {
		calls.Add(1)
		inWork <- struct{}{}
		<-goOn
		return accept(ctx, d, request)
	}
	serve(t, bob, handlers)
	task := unique("ticket")
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), task, 1, supportRequest()))
	await(t, inWork)

	b.kill()
	close(goOn) // bob accepts while alice is away
	other := make(chan *v1.Receipt, 1)
	go func() { // and alice requests another one
		receipt, _ := alice.RequestHandoff(context.Background(), bob.ID(), unique("other"), 1, supportRequest())
		other <- receipt
	}()
	b.restart(t)

	if receipt := await(t, owned); receipt.GetOwnerId() != bob.ID() || receipt.GetEpoch() != 2 {
		t.Errorf("%v", receipt)
	}
	await(t, completed)
	if await(t, other) == nil {
		t.Error("the other request was lost")
	}
	await(t, owned)
	if calls.Load() != 2 {
		t.Errorf("%d calls for two requests", calls.Load())
	}
}

func TestABrokerThatStopsInOrderIsComeBackTo(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	before := ok[*session](t)(alice.current(patient(t)))
	b.stop()
	<-before.ended.Done()
	if before.reconnectAfter() <= 0 {
		t.Error("the broker did not say when to come back")
	}
	b.restart(t)
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("again")))
	if _, info := next[*v1.Info](t, bob); info.GetText() != "again" {
		t.Errorf("%v", info)
	}
}

// A message sent on a session that broke is sent again under its id, and taken once.
func TestAnUnansweredMessageIsSentAgain(t *testing.T) {
	const cuts = 5 // the wait grows with each of them
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	for range cuts {
		s := ok[*session](t)(alice.current(patient(t)))
		go s.end(errors.New("cut by the test"))
		ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("once")))
	}
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("last")))
	for count := 0; ; count++ {
		if _, info := next[*v1.Info](t, bob); info.GetText() == "last" {
			if count != cuts {
				t.Errorf("%d messages came, %d were sent", count, cuts)
			}
			return
		}
	}
}

func TestAMessageThatWaitedForTooLongIsMadeAnew(t *testing.T) {
	b := newBroker(t, "enrollment = \"open\"\n[session]\nclock_window_ms = 1000")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	b.kill()
	sent := make(chan error, 1)
	go func() {
		_, err := alice.Send(patient(t), bob.ID(), About{}, hello("late"))
		sent <- err
	}()
	time.Sleep(3500 * time.Millisecond) // longer than the clock window: the outage itself
	b.restart(t)
	if err := await(t, sent); err != nil {
		t.Fatal(err)
	}
	if _, info := next[*v1.Info](t, bob); info.GetText() != "late" {
		t.Errorf("%v", info)
	}
}

// An agent that stops between its accept and its ack gets the request again. The refusal of its second accept must not
// cause five redeliveries.
func TestAnAgentThatRestartsGoesOnWithItsHandoff(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	handlers, completed := giver(t, alice)
	serve(t, alice, handlers)
	before := connected(t, options)
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), before.ID(), unique("ticket"), 1, supportRequest()))
	request := ok[*Delivery](t)(before.Receive(patient(t)))
	ok[*v1.Receipt](t)(before.Accept(patient(t), request, nil))
	_ = before.Close()

	bob := connected(t, options)
	handlers, owned := taker(bob)
	accept, calls := handlers.HandoffRequest, make(chan error, 16)
	handlers.HandoffRequest = func(ctx context.Context, d *Delivery, request *v1.HandoffRequest) error {
		err := accept(ctx, d, request)
		calls <- err
		return err
	}
	serve(t, bob, handlers)
	refused(t, await(t, calls), "HANDOFF_STATE")
	await(t, owned)
	await(t, completed)
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("other"), 1, supportRequest()))
	if err := await(t, calls); err != nil { // the next request, not a redelivery of the first
		t.Error(err)
	}
}
