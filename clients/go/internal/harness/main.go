// Harness is the Go client's program for "baton conformance --client"; docs/conformance-client.md defines its protocol.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// command is one command of the suite.
type command struct {
	Command          string                     `json:"command"`
	ID               uint64                     `json:"id"`
	Server           string                     `json:"server"`
	CA               string                     `json:"ca"`
	AgentID          string                     `json:"agent_id"`
	KeyID            string                     `json:"key_id"`
	Key              string                     `json:"key"`
	Credit           uint32                     `json:"credit"`
	HandlerTimeoutMS int64                      `json:"handler_timeout_ms"`
	StopGraceMS      int64                      `json:"stop_grace_ms"`
	Type             string                     `json:"type"`
	As               string                     `json:"as"`
	To               string                     `json:"to"`
	Text             string                     `json:"text"`
	Bytes            int                        `json:"bytes"`
	HandoffID        string                     `json:"handoff_id"`
	TaskID           string                     `json:"task_id"`
	Epoch            uint64                     `json:"epoch"`
	TaskType         string                     `json:"task_type"`
	Context          map[string]json.RawMessage `json:"context"`
	TimeoutMS        int64                      `json:"timeout_ms"`
	LoanTimeoutMS    int64                      `json:"loan_timeout_ms"`
	Call             uint64                     `json:"call"`
	OfferID          string                     `json:"offer_id"`
	Resume           bool                       `json:"resume"`
	Result           map[string]any             `json:"result"`
	Cost             float64                    `json:"cost"`
}

type event map[string]any

type harness struct {
	agent   *baton.Agent
	stop    context.CancelFunc
	stopped chan struct{}
	out     sync.Mutex

	mu       sync.Mutex
	how      map[string]string
	results  map[string]map[string]any // of "finish"
	released chan struct{}
	calls    map[uint64]context.CancelFunc

	negotiation *baton.Negotiation
	bids        map[string]*baton.Bid
}

func main() {
	// Logs are for people and go to stderr.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	h := &harness{
		stopped:  make(chan struct{}),
		how:      map[string]string{},
		results:  map[string]map[string]any{},
		released: make(chan struct{}),
		calls:    map[uint64]context.CancelFunc{},
		bids:     map[string]*baton.Bid{},
	}
	h.say(event{"event": "hello", "protocol": 1, "language": "go", "library": "github.com/baton-broker/baton/clients/go"})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "harness:", err)
			os.Exit(1)
		}
		h.obey(c)
	}
}

func (h *harness) obey(c command) {
	switch c.Command {
	case "connect":
		h.answer(c, nil, h.connect(c))
	case "handle":
		h.mu.Lock()
		h.how[c.Type], h.results[c.Type] = c.As, c.Result
		if c.Bytes > 0 {
			h.results[c.Type] = map[string]any{"text": strings.Repeat("x", c.Bytes)}
		}
		h.mu.Unlock()
		h.answer(c, nil, nil)
	case "release":
		h.mu.Lock()
		close(h.released)
		h.released = make(chan struct{})
		h.mu.Unlock()
		h.answer(c, nil, nil)
	case "cancel":
		h.mu.Lock()
		h.calls[c.Call]()
		h.mu.Unlock()
		h.answer(c, nil, nil)
	case "send", "hand_over", "resume", "delegate", "recall", "owned_tasks", "negotiate", "counter", "award":
		ctx, cancel := context.WithCancel(context.Background())
		h.mu.Lock()
		h.calls[c.ID] = cancel
		h.mu.Unlock()
		go func() {
			defer cancel()
			facts, err := h.call(ctx, c)
			h.answer(c, facts, err)
		}()
	case "close":
		go func() {
			h.stop()
			<-h.stopped
			h.answer(c, nil, h.agent.Close())
		}()
	default:
		h.answer(c, nil, errors.New("a command that cannot be: "+c.Command))
	}
}

func (h *harness) connect(c command) error {
	key, err := baton.LoadKey(c.Key)
	if err != nil {
		return err
	}
	roots, err := baton.LoadCA(c.CA)
	if err != nil {
		return err
	}
	h.agent, err = baton.Connect(context.Background(), baton.Options{
		Target: c.Server, AgentID: c.AgentID, Key: key, KeyID: c.KeyID, RootCAs: roots, Credit: c.Credit,
		HandlerTimeout: time.Duration(c.HandlerTimeoutMS) * time.Millisecond,
		StopTimeout:    time.Duration(c.StopGraceMS) * time.Millisecond,
		Resume:         c.Resume,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.stopped)
		if err := h.agent.Serve(ctx, h.handlers(c.Context)); err != nil {
			ended := account(err)
			ended["event"] = "ended"
			h.say(ended)
		}
	}()
	return nil
}

// handlers returns the agent's handlers, with a context provider if the command has a context.
func (h *harness) handlers(given map[string]json.RawMessage) baton.Handlers {
	handlers := baton.Handlers{
		Info: h.info, Offer: h.offer, Recalled: h.recalled, Bid: h.bid, TaskAccept: h.awarded, NegotiationClosed: h.bidEnded,
	}
	if given != nil {
		handlers.Context = func(context.Context, *baton.WantedContext) ([]*v1.ContextSection, error) {
			return sectionsOf(given)
		}
	}
	return handlers
}

func (h *harness) info(_ context.Context, d *baton.Delivery, _ *v1.Info) error {
	_, err := h.does("Info", event{"message_id": d.Envelope.GetMessageId(), "sender_id": d.Envelope.GetSenderId()})
	return err
}

func (h *harness) offer(ctx context.Context, offer *baton.Offer) error {
	if offer.Resumed {
		h.say(event{"event": "resumed", "task_id": offer.TaskID, "epoch": offer.Epoch})
	}
	facts := event{"sender_id": offer.SenderID, "task_id": offer.TaskID, "handoff_id": offer.HandoffID}
	told, err := h.does("HandoffRequest", facts)
	if err != nil {
		return err
	}
	if told == "reject" {
		reject := &v1.HandoffReject{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL, ReasonText: "told to reject"}
		return offer.Reject(ctx, reject)
	}
	takeover, err := offer.Accept(ctx, nil)
	if err != nil {
		return err
	}
	task, err := takeover.Complete(ctx)
	if err != nil {
		return err
	}
	h.say(event{"event": "owned", "task_id": task.TaskID, "handoff_id": offer.HandoffID, "epoch": task.Epoch})
	switch told {
	case "work":
		<-ctx.Done()
		h.say(event{"event": "stopped", "task_id": task.TaskID})
	case "fail":
		return errors.New("told to fail")
	case "finish":
		h.mu.Lock()
		result := h.results["HandoffRequest"]
		h.mu.Unlock()
		_, err := task.Finish(ctx, result, "")
		return err
	}
	return nil
}

func (h *harness) recalled(_ context.Context, r *baton.Recalled) error {
	h.say(event{"event": "recalled", "task_id": r.TaskID, "handoff_id": r.HandoffID, "epoch": r.Epoch})
	return nil
}

func (h *harness) bid(ctx context.Context, wanted *baton.OfferWanted) (*v1.TaskOffer, error) {
	kind, cost := "TaskRequest", 5.0
	if wanted.Counter != nil {
		kind, cost = "TaskOffer", wanted.Counter.GetCost()
	}
	told, err := h.does(kind, event{"negotiation_id": wanted.NegotiationID})
	switch {
	case err != nil:
		return nil, err
	case told == "decline":
		return nil, baton.Decline(v1.RejectReason_REJECT_REASON_OVERLOADED, "told to decline")
	case told == "withdraw":
		_, err := wanted.Withdraw(ctx)
		return nil, err
	}
	return &v1.TaskOffer{Confidence: 0.9, Cost: cost}, nil
}

func (h *harness) awarded(_ context.Context, d *baton.Delivery, _ *v1.TaskAccept) error {
	_, err := h.does("TaskAccept", event{"message_id": d.Envelope.GetMessageId()})
	return err
}

func (h *harness) bidEnded(_ context.Context, d *baton.Delivery, closed *v1.NegotiationClosed) error {
	facts := event{"message_id": d.Envelope.GetMessageId(), "winner_id": closed.GetWinnerId()}
	_, err := h.does("NegotiationClosed", facts)
	return err
}

// sayOffers reports each offer, and then the end.
func (h *harness) sayOffers(negotiation *baton.Negotiation) {
	for bid, err := range negotiation.Offers(context.Background()) {
		if err != nil {
			return
		}
		h.mu.Lock()
		h.bids[bid.OfferID] = bid
		h.mu.Unlock()
		h.say(event{
			"event": "offered", "negotiation_id": negotiation.ID, "agent_id": bid.AgentID, "offer_id": bid.OfferID,
			"cost": bid.Terms.GetCost(), "round": bid.Terms.GetRound(),
		})
	}
	closed, err := negotiation.Closed(context.Background())
	if err == nil {
		state := strings.TrimPrefix(closed.GetState().String(), "NEGOTIATION_STATE_")
		h.say(event{"event": "closed", "negotiation_id": negotiation.ID, "state": state})
	}
}

// negotiated executes a command about a negotiation.
func (h *harness) negotiated(ctx context.Context, c command) (event, error) {
	if c.Command == "negotiate" {
		negotiation, err := h.agent.Negotiate(ctx, c.To, baton.About{}, &v1.TaskRequest{Description: c.Text})
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		h.negotiation = negotiation
		h.mu.Unlock()
		go h.sayOffers(negotiation)
		return event{"negotiation_id": negotiation.ID}, nil
	}
	h.mu.Lock()
	bid, negotiation := h.bids[c.OfferID], h.negotiation
	h.mu.Unlock()
	if bid == nil {
		return nil, errors.New("no such offer was heard: " + c.OfferID)
	}
	if c.Command == "award" {
		_, err := negotiation.Award(ctx, bid, c.Text)
		return nil, err
	}
	_, err := bid.Counter(ctx, &v1.TaskOffer{Confidence: bid.Terms.GetConfidence(), Cost: c.Cost})
	return nil, err
}

// call executes a command that may take long.
func (h *harness) call(ctx context.Context, c command) (event, error) {
	sections, err := sectionsOf(c.Context)
	if err != nil {
		return nil, err
	}
	request := &v1.HandoffRequest{TaskType: c.TaskType}
	switch c.Command {
	case "hand_over":
		if c.TimeoutMS > 0 {
			ctx = baton.WithHandOverLimit(ctx, time.Duration(c.TimeoutMS)*time.Millisecond)
		}
		return handedOver(h.agent.HandOver(ctx, c.To, c.TaskID, c.Epoch, request, sections...))
	case "resume":
		return handedOver(h.agent.ResumeHandOver(ctx, c.HandoffID, sections...))
	case "recall":
		task, err := h.agent.Recall(ctx, c.HandoffID, c.Text)
		if err != nil {
			return nil, err
		}
		return event{"epoch": task.Epoch}, nil
	case "negotiate", "counter", "award":
		return h.negotiated(ctx, c)
	case "delegate":
		if c.LoanTimeoutMS > 0 {
			request.LoanTimeout = durationpb.New(time.Duration(c.LoanTimeoutMS) * time.Millisecond)
		}
		if c.TimeoutMS > 0 {
			limited, cancel := context.WithTimeout(ctx, time.Duration(c.TimeoutMS)*time.Millisecond)
			defer cancel()
			ctx = limited
		}
		outcome, err := h.agent.Delegate(ctx, c.To, c.TaskID, c.Epoch, request, sections...)
		if err != nil {
			return nil, err
		}
		status := strings.TrimPrefix(outcome.Status.String(), "TASK_STATUS_")
		return event{"epoch": outcome.Epoch, "status": status, "result": outcome.Result}, nil
	case "owned_tasks":
		tasks := []event{}
		for task, err := range h.agent.OwnedTasks(ctx) {
			if err != nil {
				return nil, err
			}
			tasks = append(tasks, event{"task_id": task.TaskID, "epoch": task.Epoch, "handoff_id": task.HandoffID})
		}
		return event{"tasks": tasks}, nil
	}
	text := c.Text
	if c.Bytes > 0 {
		text = strings.Repeat("x", c.Bytes)
	}
	receipt, err := h.agent.Send(ctx, c.To, baton.About{}, &v1.Info{Text: text})
	return event{"message_id": receipt.GetMessageId()}, err
}

func handedOver(done *baton.HandedOver, err error) (event, error) {
	if err != nil {
		return nil, err
	}
	return event{"owner_id": done.OwnerID, "epoch": done.Epoch}, nil
}

func sectionsOf(values map[string]json.RawMessage) ([]*v1.ContextSection, error) {
	var sections []*v1.ContextSection
	for name, value := range values {
		section, err := baton.JSONSection(name, value)
		if err != nil {
			return nil, err
		}
		sections = append(sections, section)
	}
	return sections, nil
}

// does reports that a handler of this kind has a message, and follows its instruction; the caller handles the rest.
func (h *harness) does(kind string, facts event) (string, error) {
	// Read before the report, since the suite may change the instruction at once after it.
	h.mu.Lock()
	told, released := h.how[kind], h.released
	h.mu.Unlock()
	facts["event"], facts["type"] = "handling", kind
	h.say(facts)
	switch told {
	case "throw":
		return told, errors.New("told to throw")
	case "poison":
		return told, baton.Poison(errors.New("told that it is poison"))
	case "later":
		return told, baton.RetryAfter(7*time.Second, errors.New("told to ask for it later"))
	case "wait":
		<-released // independent of its context
	}
	return told, nil
}

func (h *harness) answer(c command, facts event, err error) {
	answer := event{"event": "done"}
	if err != nil {
		answer = account(err)
		answer["event"] = "failed"
	} else {
		for name, fact := range facts {
			answer[name] = fact
		}
	}
	answer["id"] = c.ID
	h.say(answer)
}

func (h *harness) say(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		line = []byte(fmt.Sprintf("%q", err))
	}
	h.out.Lock()
	defer h.out.Unlock()
	fmt.Println(string(line))
}

// account converts an error to the protocol's JSON form.
func account(err error) event {
	var refused *baton.Error
	var unverified *baton.VerificationError
	var failed *baton.HandoffFailedError
	var untrusted *tls.CertificateVerificationError
	var recalled *baton.TaskRecalledError
	said := event{"kind": "other", "message": err.Error()}
	switch {
	case errors.Is(err, context.Canceled):
		said["kind"] = "cancelled"
	case errors.As(err, &recalled):
		said["kind"], said["reason"], said["epoch"] = "recalled", recalled.Reason, recalled.Epoch
	case errors.As(err, &untrusted):
		said["kind"] = "untrusted"
	case errors.As(err, &failed):
		said["kind"], said["reason"] = "handoff_failed", failed.Reason
	case errors.As(err, &unverified):
		said["kind"], said["reason"] = "unverified", unverified.Reason
	case errors.As(err, &refused) && refused.Reason == "":
		said["kind"] = "unavailable"
	case errors.As(err, &refused):
		said["kind"], said["reason"], said["metadata"] = "refused", refused.Reason, refused.Metadata
		said["code"] = codeName(refused.Code)
		if refused.RetryDelay > 0 {
			said["retry_delay_ms"] = refused.RetryDelay.Milliseconds()
		}
	}
	return said
}

// codeName returns a code as gRPC writes it: FAILED_PRECONDITION.
func codeName(code codes.Code) string {
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteString(strings.ToUpper(string(letter)))
	}
	return name.String()
}
