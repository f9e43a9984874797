package baton

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// taking takes over every offer and sends the owned tasks to the channel.
func taking() (Handlers, <-chan *OwnedTask) {
	owned := make(chan *OwnedTask, 16)
	return Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err == nil {
			owned <- task
		}
		return err
	}}, owned
}

func goals(t *testing.T) *v1.ContextSection {
	t.Helper()
	return ok[*v1.ContextSection](t)(JSONSection("goals", []string{"find the cause"}))
}

type handedOver struct {
	done *HandedOver
	err  error
}

// resume joins a handoff in another goroutine.
func resume(t *testing.T, agent *Agent, handoffID string) <-chan handedOver {
	t.Helper()
	done, section := make(chan handedOver, 1), goals(t)
	go func() {
		one, err := agent.ResumeHandOver(patient(t), handoffID, section)
		done <- handedOver{one, err}
	}()
	return done
}

// untilState waits for a state of a handoff.
func untilState(t *testing.T, agent *Agent, handoffID string, state v1.HandoffState) {
	t.Helper()
	for ctx := patient(t); ; {
		if ok[*v1.Handoff](t)(agent.GetHandoff(ctx, handoffID)).GetState() == state {
			return
		}
	}
}

// noDeadLetters checks that an agent has no dead letters.
func noDeadLetters(t *testing.T, agent *Agent) {
	t.Helper()
	list := &v1.ListDeadLettersRequest{Filter: &v1.DeadLetterFilter{AgentId: agent.ID()}}
	letters := v1.NewDeadLetterServiceClient(agent.Conn())
	found := ok[*v1.ListDeadLettersResponse](t)(letters.ListDeadLetters(agent.Authorize(patient(t)), list))
	if len(found.GetDeadLetters()) > 0 {
		t.Errorf("%v", found)
	}
}

// receive takes one delivery without an ack: its agent dies.
func receive[P any](t *testing.T, agent *Agent) *Delivery {
	t.Helper()
	d := ok[*Delivery](t)(agent.Receive(patient(t)))
	if _, is := d.Payload.(P); !is {
		t.Fatalf("a %T came", d.Payload)
	}
	return d
}

func TestATaskIsHandedOverWithoutServe(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	handlers, owned := taking()
	serve(t, bob, handlers)
	serve(t, carol, Handlers{}) // takes no handoffs
	ok[*v1.Receipt](t)(carol.Send(patient(t), alice.ID(), About{}, hello("for later")))
	request, task := supportRequest(), unique("ticket")
	request.FallbackCandidates = []string{bob.ID()}
	done := ok[*HandedOver](t)(alice.HandOver(patient(t), carol.ID(), task, 1, request, goals(t)))
	if done.TaskID != task || done.OwnerID != bob.ID() || done.Epoch != 2 || len(done.Rejections) != 1 {
		t.Errorf("%v", done)
	}
	if text := done.Rejections[0].String(); text != carol.ID()+": this agent takes no handoffs" {
		t.Error(text)
	}
	if one := await(t, owned); one.TaskID != task || one.Epoch != 2 {
		t.Errorf("%v", one)
	}
	// Mail that arrived meanwhile was given back.
	if _, info := next[*v1.Info](t, alice); info.GetText() != "for later" {
		t.Errorf("%v", info)
	}
}

func TestAFailedHandoffIsATypedError(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		return offer.Reject(ctx, &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL})
	}})
	_, err := alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), goals(t))
	var failed *HandoffFailedError
	if !errors.As(err, &failed) || failed.Reason != "NO_CANDIDATE" || failed.Rejections[0].String() != bob.ID()+": NO_SKILL" {
		t.Error(err)
	}
	serve(t, alice, Handlers{})
	_, err = alice.HandOver(patient(t), "unknown-"+bob.ID(), unique("ticket"), 1, supportRequest())
	refused(t, err, "RECEIVER_UNKNOWN")
}

func TestATaskIsDelegatedAndComesBack(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	serve(t, carol, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		if _, err := task.Report(ctx, "looking"); err != nil {
			return err
		}
		// alice receives it too, and must not take it for the end of its own loan.
		update := &v1.TaskStatusUpdate{
			Status: v1.TaskStatus_TASK_STATUS_COMPLETED, Details: "found", ResultJson: `{"cause":"a loose cable"}`,
		}
		_, err = carol.Send(ctx, alice.ID(), About{TaskID: task.TaskID, Epoch: task.Epoch}, update)
		return err
	}})
	// bob lends it further, inside the handler of its own offer.
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		outcome, err := task.Delegate(ctx, carol.ID(), supportRequest(), takeover.Sections...)
		if err != nil {
			return err
		}
		_, err = bob.UpdateStatus(ctx, outcome.TaskID, outcome.Epoch, &v1.TaskStatusUpdate{
			Status: outcome.Status, Details: "by carol: " + outcome.Result["cause"].(string),
		})
		return err
	}})
	task := unique("ticket")
	outcome := ok[*Outcome](t)(alice.Delegate(patient(t), bob.ID(), task, 1, supportRequest(), goals(t)))
	if outcome.TaskID != task || outcome.Epoch != 5 || outcome.Status != v1.TaskStatus_TASK_STATUS_COMPLETED {
		t.Errorf("%v", outcome)
	}
	if outcome.Details != "by carol: a loose cable" {
		t.Error(outcome.Details)
	}
	if owner := ok[*v1.Task](t)(alice.GetTask(patient(t), task)).GetOwnerId(); owner != alice.ID() {
		t.Error(owner)
	}
}

func TestAnOfferThatIsCancelledEndsItsHandler(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	ended := make(chan error, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		_, err := offer.Accept(ctx, nil)
		ended <- err
		return err
	}})
	request := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	untilState(t, alice, request.GetHandoffId(), v1.HandoffState_HANDOFF_STATE_ACCEPTED)
	ok[*v1.Receipt](t)(alice.Cancel(patient(t), request.GetHandoffId(), "done by phone"))
	var failed *HandoffFailedError
	if err := await(t, ended); !errors.As(err, &failed) || failed.Reason != "HANDOFF_CANCELLED" {
		t.Error(err)
	}
	noDeadLetters(t, bob)
}

// Its notices are lost here: they go to another process of the same agents.
func TestAHandoffThatEndsWithoutAWordIsLookedAt(t *testing.T) {
	alices, bobs := shared.options(t, "alice"), shared.options(t, "bob")
	alice, bob := connected(t, alices), connected(t, bobs)
	alice.lookAfter, bob.lookAfter = 50*time.Millisecond, 50*time.Millisecond
	accepted, ended := make(chan string, 1), make(chan error, 1)
	stop := serve(t, bob, Handlers{HandoffRequest: func(ctx context.Context, d *Delivery, _ *v1.HandoffRequest) error {
		accepted <- d.HandoffID
		_, err := bob.Accept(ctx, d, nil)
		return err
	}})
	section := goals(t)
	go func() {
		_, err := alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), section)
		ended <- err
	}()
	handoffID := await(t, accepted)
	untilState(t, alice, handoffID, v1.HandoffState_HANDOFF_STATE_CONTEXT_SENT)
	_ = stop()
	if err := alice.SetCredit(patient(t), 0); err != nil {
		t.Fatal(err)
	}
	ok[*v1.Receipt](t)(connected(t, alices).Cancel(patient(t), handoffID, "by another process"))
	var failed *HandoffFailedError
	if err := await(t, ended); !errors.As(err, &failed) || failed.Reason != "HANDOFF_CANCELLED" {
		t.Error(err)
	}
}

func TestAnOfferHandlerThatFailsGetsItsContextAgain(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	calls := 0
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		switch calls++; calls {
		case 1:
			return RetryAfter(time.Millisecond, errors.New("not now"))
		case 2:
			panic("a bug")
		}
		if offer.Request != nil || takeover.Section("goals") == nil {
			t.Errorf("%v", offer)
		}
		_, err = takeover.Complete(ctx)
		return err
	}})
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

func TestASenderThatRestartsSendsTheContext(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	handlers, owned := taking()
	serve(t, bob, handlers)
	before := connected(t, options)
	request := ok[*v1.Receipt](t)(before.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	receive[*v1.HandoffAccept](t, before)
	_ = before.Close()

	alice, section := connected(t, options), goals(t)
	serve(t, alice, Handlers{Context: func(_ context.Context, wanted *WantedContext) ([]*v1.ContextSection, error) {
		if wanted.HandoffID != request.GetHandoffId() || wanted.CandidateID != bob.ID() {
			t.Errorf("%v", wanted)
		}
		return []*v1.ContextSection{section}, nil
	}})
	await(t, owned)
	noDeadLetters(t, alice)
}

func TestAnAcceptThatNothingWaitsForIsNotPoison(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	handlers, owned := taking()
	serve(t, bob, handlers)
	before := connected(t, options)
	task := unique("ticket")
	request := ok[*v1.Receipt](t)(before.RequestHandoff(patient(t), bob.ID(), task, 1, supportRequest()))
	receive[*v1.HandoffAccept](t, before)
	_ = before.Close()

	waits := make(chan struct{}, 64)
	options.Logger = slog.New(told{slog.DiscardHandler, "a message waits", waits})
	alice := connected(t, options)
	serve(t, alice, Handlers{})
	await(t, waits)
	one := onlyTask(t, alice)
	if one.TaskID != task || one.HandoffID != request.GetHandoffId() {
		t.Errorf("%v", one)
	}
	done := await(t, resume(t, alice, one.HandoffID))
	if done.err != nil || done.done.OwnerID != bob.ID() || done.done.Epoch != 2 {
		t.Errorf("%v", done)
	}
	await(t, owned)
	noDeadLetters(t, alice)
}

// told is a log that signals one message.
type told struct {
	slog.Handler
	message string
	came    chan struct{}
}

func (h told) Enabled(context.Context, slog.Level) bool { return true }

func (h told) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h told) Handle(_ context.Context, record slog.Record) error {
	if record.Message == h.message {
		h.came <- struct{}{}
	}
	return nil
}

// onlyTask returns the one task that an agent owns.
func onlyTask(t *testing.T, agent *Agent) *OwnedTask {
	t.Helper()
	var found []*OwnedTask
	for task, err := range agent.OwnedTasks(patient(t)) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, task)
	}
	if len(found) != 1 {
		t.Fatalf("%d tasks: %v", len(found), found)
	}
	return found[0]
}

func TestASenderThatRestartsResumesInEachState(t *testing.T) {
	accepting := Handlers{HandoffRequest: func(ctx context.Context, d *Delivery, _ *v1.HandoffRequest) error {
		_, err := d.agent.Accept(ctx, d, nil)
		return err
	}}
	for _, one := range []struct {
		name string
		// die brings the handoff to the state in which alice dies.
		die    func(t *testing.T, alice, bob *Agent, handoffID string)
		reason string
	}{
		{"requested", func(*testing.T, *Agent, *Agent, string) {}, ""},
		{"accepted", func(t *testing.T, alice, bob *Agent, _ string) {
			serveUntil(t, bob, accepting, func() { receive[*v1.HandoffAccept](t, alice) })
		}, ""},
		{"context sent", func(t *testing.T, alice, bob *Agent, _ string) {
			serveUntil(t, bob, accepting, func() {
				accept := receive[*v1.HandoffAccept](t, alice)
				ok[*v1.Receipt](t)(alice.SendContext(patient(t), accept, goals(t)))
			})
		}, ""},
		{"completed", func(t *testing.T, alice, bob *Agent, handoffID string) {
			handlers, _ := taking()
			serveUntil(t, bob, handlers, func() {
				accept := receive[*v1.HandoffAccept](t, alice)
				ok[*v1.Receipt](t)(alice.SendContext(patient(t), accept, goals(t)))
				untilState(t, alice, handoffID, v1.HandoffState_HANDOFF_STATE_COMPLETED)
			})
		}, ""},
		{"cancelled", func(t *testing.T, alice, _ *Agent, handoffID string) {
			ok[*v1.Receipt](t)(alice.Cancel(patient(t), handoffID, "done by phone"))
		}, "HANDOFF_CANCELLED"},
	} {
		t.Run(one.name, func(t *testing.T) {
			options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
			before := connected(t, options)
			request := ok[*v1.Receipt](t)(before.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
			one.die(t, before, bob, request.GetHandoffId())
			_ = before.Close()
			alice := connected(t, options)
			resumed := resume(t, alice, request.GetHandoffId())
			handlers, _ := taking()
			serve(t, bob, handlers)
			switch done := await(t, resumed); {
			case one.reason == "":
				if done.err != nil || done.done.OwnerID != bob.ID() || done.done.Epoch != 2 {
					t.Errorf("%v", done)
				}
			default:
				var failed *HandoffFailedError
				if !errors.As(done.err, &failed) || failed.Reason != one.reason {
					t.Error(done.err)
				}
			}
			noDeadLetters(t, alice)
			noDeadLetters(t, bob)
		})
	}
}

func serveUntil(t *testing.T, agent *Agent, handlers Handlers, act func()) {
	t.Helper()
	stop := serve(t, agent, handlers)
	act()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestAReceiverThatRestartsGoesOnInEachState(t *testing.T) {
	takes := func(t *testing.T, bob *Agent) *Delivery {
		t.Helper()
		request := receive[*v1.HandoffRequest](t, bob)
		ok[*v1.Receipt](t)(bob.Accept(patient(t), request, nil))
		if err := request.Ack(patient(t)); err != nil {
			t.Fatal(err)
		}
		return receive[*v1.TaskContextTransfer](t, bob)
	}
	for _, one := range []struct {
		name string
		// die brings the handoff to the step at which bob dies.
		die func(t *testing.T, bob *Agent)
	}{
		{"offer delivered", func(t *testing.T, bob *Agent) { receive[*v1.HandoffRequest](t, bob) }},
		{"accept stored, request not acked", func(t *testing.T, bob *Agent) {
			ok[*v1.Receipt](t)(bob.Accept(patient(t), receive[*v1.HandoffRequest](t, bob), nil))
		}},
		{"accepted, before the context comes", func(t *testing.T, bob *Agent) {
			request := receive[*v1.HandoffRequest](t, bob)
			ok[*v1.Receipt](t)(bob.Accept(patient(t), request, nil))
			if err := request.Ack(patient(t)); err != nil {
				t.Fatal(err)
			}
		}},
		{"context delivered", func(t *testing.T, bob *Agent) { takes(t, bob) }},
		{"complete stored, context not acked", func(t *testing.T, bob *Agent) {
			ok[*v1.Receipt](t)(bob.Complete(patient(t), takes(t, bob)))
		}},
	} {
		t.Run(one.name, func(t *testing.T) {
			alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
			handed, task := make(chan handedOver, 1), unique("ticket")
			before, section := connected(t, options), goals(t)
			go func() {
				done, err := alice.HandOver(patient(t), before.ID(), task, 1, supportRequest(), section)
				handed <- handedOver{done, err}
			}()
			one.die(t, before)
			_ = before.Close()
			bob := connected(t, options)
			handlers, owned := taking()
			serve(t, bob, handlers)
			if mine := await(t, owned); mine.TaskID != task || mine.Epoch != 2 {
				t.Errorf("%v", mine)
			}
			if done := await(t, handed); done.err != nil || done.done.Epoch != 2 {
				t.Errorf("%v", done)
			}
			// As the owner it may die again: the next process finds the task.
			_ = bob.Close()
			mine := onlyTask(t, connected(t, options))
			if mine.TaskID != task || mine.Epoch != 2 || mine.HandoffID != "" {
				t.Errorf("%v", mine)
			}
			ok[*v1.Receipt](t)(mine.Finish(patient(t), nil, "done"))
			noDeadLetters(t, alice)
		})
	}
}

func TestADelegatorThatRestartsHasItsTaskAgain(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	handlers, owned := taking()
	serve(t, bob, handlers)
	before, lent, section := connected(t, options), make(chan error, 1), goals(t)
	go func() {
		_, err := before.Delegate(context.Background(), bob.ID(), unique("ticket"), 1, supportRequest(), section)
		lent <- err
	}()
	task := await(t, owned)
	_ = before.Close() // the end of its context would take the task back
	await(t, lent)
	ok[*v1.Receipt](t)(task.Finish(patient(t), map[string]any{"answer": 42}, ""))

	alice, told := connected(t, options), make(chan *v1.TaskStatusUpdate, 1)
	serve(t, alice, Handlers{TaskStatusUpdate: func(_ context.Context, _ *Delivery, update *v1.TaskStatusUpdate) error {
		told <- update
		return nil
	}})
	if update := await(t, told); update.GetResultJson() != `{"answer":42}` {
		t.Errorf("%v", update)
	}
	if mine := onlyTask(t, alice); mine.TaskID != task.TaskID || mine.Epoch != 3 {
		t.Errorf("%v", mine)
	}
}

func TestOnlyTasksThatAreOwnedAndNotFinalAreListed(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	var expected []string
	for range 3 {
		task := unique("ticket")
		request := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), task, 1, supportRequest()))
		ok[*v1.Receipt](t)(alice.Cancel(patient(t), request.GetHandoffId(), ""))
		expected = append([]string{task}, expected...)
	}
	ok[*v1.Receipt](t)(alice.UpdateStatus(patient(t), expected[1], 1, &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_FAILED}))
	expected = []string{expected[0], expected[2]}
	var found []string
	for task, err := range alice.OwnedTasks(patient(t)) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, task.TaskID)
	}
	if strings.Join(found, " ") != strings.Join(expected, " ") {
		t.Errorf("%v, expected %v", found, expected)
	}
	for range bob.OwnedTasks(patient(t)) {
		t.Error("bob owns nothing")
	}
}

func TestWhatIsTooLargeIsRefusedHere(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	before := ok[*session](t)(alice.current(patient(t)))
	for _, bytes := range []int{payloadBytesMax, frameBytesMax + 1} {
		_, err := alice.Send(patient(t), bob.ID(), About{}, hello(strings.Repeat("x", bytes)))
		refused(t, err, "PAYLOAD_TOO_LARGE")
	}
	large := BytesSection("log", "text/plain", make([]byte, payloadBytesMax))
	_, err := alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), large)
	refused(t, err, "PAYLOAD_TOO_LARGE")
	_, err = alice.Send(patient(t), "type:"+strings.Repeat("x", nameLengthMax+1), About{TaskID: strings.Repeat("x", frameBytesMax)}, hello(""))
	if fields := refused(t, err, "FIELD_INVALID").Fields; len(fields) != 2 || fields[0].Field != "envelope.receiver_id" {
		t.Errorf("%v", fields)
	}
	envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello("")))
	envelope.Signature = make([]byte, frameBytesMax)
	_, err = alice.SendEnvelope(patient(t), envelope)
	refused(t, err, "PAYLOAD_TOO_LARGE")
	err = alice.SetHeartbeat(&v1.Heartbeat{Status: strings.Repeat("x", frameBytesMax)})
	refused(t, err, "FIELD_INVALID")
	if now := ok[*session](t)(alice.current(patient(t))); now != before {
		t.Error("the session has ended")
	}
}

// Without the check on this side, the broker would end this session and the next one over the frame.
func TestAFrameThatEndsTheSessionIsNotSentAgain(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello(strings.Repeat("x", frameBytesMax))))
	SignEnvelope(envelope, "k1", alice.options.Key)
	_, err := alice.sendUntilAnswered(patient(t), envelope)
	var e *Error
	if !errors.As(err, &e) || e.Code != codes.OutOfRange && e.Reason != "PAYLOAD_TOO_LARGE" {
		t.Error(err)
	}
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("and goes on")))
}

// relay is a TCP relay before a broker that can fall silent with its connections open.
type relay struct {
	listener net.Listener
	mu       sync.Mutex
	silent   chan struct{} // closed to silence the present connections
	further  int           // the number of next connections that are silent from the start
	opened   chan struct{}
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	r := &relay{
		listener: ok[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")), silent: make(chan struct{}),
		opened: make(chan struct{}, 64),
	}
	t.Cleanup(func() { _ = r.listener.Close() })
	go func() {
		for {
			client, err := r.listener.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			t.Cleanup(func() { _, _ = client.Close(), onward.Close() })
			r.mu.Lock()
			silent := r.silent
			isSilent := r.further > 0
			r.further--
			r.mu.Unlock()
			if isSilent {
				continue
			}
			go pass(client, onward, silent)
			go pass(onward, client, silent)
			r.opened <- struct{}{}
		}
	}()
	return r
}

func pass(from, to net.Conn, silent <-chan struct{}) {
	piece := make([]byte, 16*1024)
	for {
		n, err := from.Read(piece)
		select {
		case <-silent:
			return // reads no more and closes nothing
		default:
		}
		if err == nil {
			_, err = to.Write(piece[:n])
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = from.Close()
			}
			_ = to.Close()
			return
		}
	}
}

// fallSilent silences the present connections and this number of next ones.
func (r *relay) fallSilent(further int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.further = further
	close(r.silent)
	r.silent = make(chan struct{})
}

// The first connection stops answering, and the second does not start TLS.
func TestASilentBrokerIsNoticed(t *testing.T) {
	t.Parallel() // it takes its time
	bob, options := shared.agent(t, "bob"), shared.options(t, "alice")
	r := newRelay(t, shared.address)
	options.Target = r.listener.Addr().String()
	alice := connected(t, options)
	await(t, r.opened)
	r.fallSilent(1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*silenceMax+patience)
	defer cancel()
	if _, err := alice.Send(ctx, bob.ID(), About{}, hello("over the third connection")); err != nil {
		t.Fatal(err)
	}
	if _, info := next[*v1.Info](t, bob); info.GetText() != "over the third connection" {
		t.Errorf("%v", info)
	}
}
