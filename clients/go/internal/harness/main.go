// Harness is the Go client's for "baton conformance --client": docs/conformance-client.md has its protocol.
package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
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

	baton "github.com/baton-broker/baton/clients/go"
	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// command is what the harness is told.
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
	TaskID           string                     `json:"task_id"`
	Epoch            uint64                     `json:"epoch"`
	TaskType         string                     `json:"task_type"`
	Context          map[string]json.RawMessage `json:"context"`
}

type event map[string]any

// asked is a handoff that this agent has asked for.
type asked struct {
	command  command
	sections []*v1.ContextSection
}

type harness struct {
	agent   *baton.Agent
	key     ed25519.PrivateKey
	stop    context.CancelFunc
	stopped chan struct{}
	out     sync.Mutex

	mu       sync.Mutex
	how      map[string]string
	released chan struct{}
	asked    map[string]asked
}

func main() {
	// Logs are for people, and go to stderr.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	h := &harness{
		stopped:  make(chan struct{}),
		how:      map[string]string{},
		released: make(chan struct{}),
		asked:    map[string]asked{},
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
		h.how[c.Type] = c.As
		h.mu.Unlock()
		h.answer(c, nil, nil)
	case "release":
		h.mu.Lock()
		close(h.released)
		h.released = make(chan struct{})
		h.mu.Unlock()
		h.answer(c, nil, nil)
	case "send":
		go func() {
			receipt, err := h.agent.Send(context.Background(), c.To, baton.About{}, &v1.Info{Text: c.Text})
			h.answer(c, event{"message_id": receipt.GetMessageId()}, err)
		}()
	case "hand_over":
		go func() {
			if err := h.handOver(c); err != nil {
				h.answer(c, nil, err)
			}
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
	h.key = key
	h.agent, err = baton.Connect(context.Background(), baton.Options{
		Target: c.Server, AgentID: c.AgentID, Key: key, KeyID: c.KeyID, RootCAs: roots, Credit: c.Credit,
		HandlerTimeout: time.Duration(c.HandlerTimeoutMS) * time.Millisecond,
		StopTimeout:    time.Duration(c.StopGraceMS) * time.Millisecond,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() {
		defer close(h.stopped)
		if err := h.agent.Serve(ctx, h.handlers()); err != nil {
			ended := account(err)
			ended["event"] = "ended"
			h.say(ended)
		}
	}()
	return nil
}

func (h *harness) handlers() baton.Handlers {
	return baton.Handlers{
		Info: func(_ context.Context, d *baton.Delivery, _ *v1.Info) error {
			_, err := h.does("Info", d)
			return err
		},
		HandoffRequest: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffRequest) error {
			told, err := h.does("HandoffRequest", d)
			if err != nil {
				return err
			}
			if told == "reject" {
				_, err = h.agent.Reject(ctx, d, v1.RejectReason_REJECT_REASON_NO_SKILL, "told to reject")
				return err
			}
			_, err = h.agent.Accept(ctx, d, nil)
			return err
		},
		TaskContextTransfer: func(ctx context.Context, d *baton.Delivery, _ *v1.TaskContextTransfer) error {
			receipt, err := h.agent.Complete(ctx, d)
			if err == nil {
				h.say(event{
					"event": "owned", "task_id": receipt.GetTaskId(), "handoff_id": d.HandoffID, "epoch": receipt.GetEpoch(),
				})
			}
			return err
		},
		HandoffAccept: func(ctx context.Context, d *baton.Delivery, _ *v1.HandoffAccept) error {
			h.mu.Lock()
			sections := h.asked[d.HandoffID].sections
			h.mu.Unlock()
			_, err := h.agent.SendContext(ctx, d, sections...)
			return err
		},
		HandoffComplete: func(_ context.Context, d *baton.Delivery, _ *v1.HandoffComplete) error {
			if a, ok := h.settled(d.HandoffID); ok {
				h.answer(a.command, event{"owner_id": d.Envelope.GetSenderId(), "epoch": d.Envelope.GetEpoch() + 1}, nil)
			}
			return nil
		},
		ErrorNotification: func(_ context.Context, d *baton.Delivery, told *v1.ErrorNotification) error {
			if a, ok := h.settled(d.HandoffID); ok {
				reason := strings.TrimPrefix(told.GetErrorCode().String(), "ERROR_CODE_")
				h.say(event{
					"event": "failed", "id": a.command.ID, "kind": "handoff_failed", "reason": reason,
					"message": told.GetErrorMessage(),
				})
			}
			return nil
		},
	}
}

// handOver asks; the handlers do the rest.
func (h *harness) handOver(c command) error {
	var sections []*v1.ContextSection
	for name, value := range c.Context {
		section, err := baton.JSONSection(name, value)
		if err != nil {
			return err
		}
		sections = append(sections, section)
	}
	about := baton.About{TaskID: c.TaskID, Epoch: c.Epoch}
	envelope, err := baton.NewEnvelope(h.agent.ID(), c.To, about, &v1.HandoffRequest{TaskType: c.TaskType})
	if err != nil {
		return err
	}
	baton.SignEnvelope(envelope, "k1", h.key)
	// Known before it is sent: the answer may be quicker than the receipt.
	h.mu.Lock()
	h.asked[envelope.GetMessageId()] = asked{c, sections}
	h.mu.Unlock()
	if _, err = h.agent.SendEnvelope(context.Background(), envelope); err != nil {
		h.settled(envelope.GetMessageId())
	}
	return err
}

func (h *harness) settled(handoffID string) (asked, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, ok := h.asked[handoffID]
	delete(h.asked, handoffID)
	return a, ok
}

// does says that a handler of this kind has a message, and does what it was told to; the rest of it is the caller's.
func (h *harness) does(kind string, d *baton.Delivery) (string, error) {
	// Before it says so: whoever hears of it may tell it otherwise at once.
	h.mu.Lock()
	told, released := h.how[kind], h.released
	h.mu.Unlock()
	h.sayHandling(kind, d)
	switch told {
	case "throw":
		return told, errors.New("told to throw")
	case "poison":
		return told, baton.Poison(errors.New("told that it is poison"))
	case "later":
		return told, baton.RetryAfter(7*time.Second, errors.New("told to ask for it later"))
	case "wait":
		<-released // whatever its context says
	}
	return told, nil
}

func (h *harness) sayHandling(kind string, d *baton.Delivery) {
	h.say(event{
		"event": "handling", "type": kind, "message_id": d.Envelope.GetMessageId(), "sender_id": d.Envelope.GetSenderId(),
		"task_id": d.Envelope.GetTaskId(), "handoff_id": d.HandoffID, "attempt": d.Attempt,
	})
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

// account is an error in the protocol's words.
func account(err error) event {
	var refused *baton.Error
	var unverified *baton.VerificationError
	var untrusted *tls.CertificateVerificationError
	said := event{"kind": "other", "message": err.Error()}
	switch {
	case errors.As(err, &untrusted):
		said["kind"] = "untrusted"
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

// codeName is a code as gRPC writes it: FAILED_PRECONDITION.
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
