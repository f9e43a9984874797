package baton

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	creditDefault = 16
	creditMax     = 4096
	callTimeout   = 30 * time.Second
	keysKeptFor   = time.Minute
	// A connection on which nothing came for so long is asked whether it is still there.
	pingAfter = 20 * time.Second
	// The longest that a broker may be silent with its connection open before the session ends.
	silenceMax     = 30 * time.Second
	handlerDefault = 10 * time.Minute
	stopDefault    = 10 * time.Second
	lookDefault    = 30 * time.Second
)

// Options says who connects to what. Target, AgentID and Key are required.
type Options struct {
	// The broker, HOST:PORT; or http://HOST:PORT without TLS, to a broker on this machine that takes such connections.
	Target string
	// Who one is.
	AgentID string
	// Signs what the agent sends, and proves who it is unless Certificate or Token does.
	Key ed25519.PrivateKey
	// The key's name among the agent's keys; default "k1".
	KeyID string

	// The CAs that the broker's certificate may be signed by; default: the system's. See LoadCA.
	RootCAs *x509.CertPool
	// A client certificate that proves who one is.
	Certificate *tls.Certificate
	// A token that proves who one is, from "baton token" or CreateToken. It is not renewed.
	Token string

	// If set, the agent is registered with this card before it connects; its agent_id and keys are filled in. The same
	// card again is no error, and a known agent changes its own.
	Card *v1.AgentCard
	// An invitation to register with, where enrolment is not open.
	Invitation string
	// An operator's token to register with.
	OperatorToken string

	// The most deliveries that are handed out and not yet acknowledged, up to 4096; default 16. So many handlers run at a
	// time. Mail is taken only while Serve, Receive, HandOver, ResumeHandOver or Delegate is called.
	Credit uint32
	// How long a handler may have one delivery in hand, which is extended meanwhile; default 10 minutes. Once it is
	// acknowledged, as an offer is when it is completed, the handler may take its time.
	HandlerTimeout time.Duration
	// How long Serve waits at its end for handlers that are at work; default 10 s.
	StopTimeout time.Duration
	// Senders' keys that are not asked from the directory: by agent id, all keys that are good.
	PinnedKeys map[string][]*v1.AgentKey
	// Operators' public keys by their operator_key_id. If there are any, other agents' keys from the directory are good
	// only with a voucher of one of them.
	OperatorKeys map[string]ed25519.PublicKey
	// Where to log; default slog.Default().
	Logger *slog.Logger
}

func (o *Options) complete() error {
	if o.Target == "" || o.AgentID == "" || len(o.Key) != ed25519.PrivateKeySize {
		return errors.New("baton: Target, AgentID and Key are required")
	}
	if o.Credit > creditMax {
		return fmt.Errorf("baton: Credit is at most %d", creditMax)
	}
	o.KeyID = orElse(o.KeyID, "k1")
	o.Credit = orElse(o.Credit, creditDefault)
	o.HandlerTimeout = orElse(o.HandlerTimeout, handlerDefault)
	o.StopTimeout = orElse(o.StopTimeout, stopDefault)
	o.Logger = orElse(o.Logger, slog.Default()).With("agent_id", o.AgentID)
	return nil
}

// Agent is one agent with a session at the broker. When the session breaks, the agent opens another by itself, for as
// long as it is not closed. All methods may be called from several goroutines.
type Agent struct {
	options  Options
	conn     *grpc.ClientConn
	tls      *watchedTransport
	broker   v1.BrokerServiceClient
	agents   v1.AgentServiceClient
	handoffs v1.HandoffServiceClient
	tasks    v1.TaskServiceClient
	// As it came.
	inbox chan inboxEntry
	// Checked, for Serve and Receive.
	mail    chan *Delivery
	serving sync.Mutex
	keys    keyCache
	// After how long without mail a call looks at its handoff.
	lookAfter time.Duration
	// The mail of conversations.
	letters *jobs
	// Held while a credit is on its way, so that the latest one is in force.
	crediting sync.Mutex

	life    context.Context
	end     context.CancelCauseFunc
	running sync.WaitGroup

	mu      sync.Mutex
	token   string
	session *session      // nil while there is none
	changed chan struct{} // closed when session changes
	credit  uint32
	taking  bool // Serve or Receive was called
	// Credit was given since the agent waits for mail; it may be 0, for a pause.
	isCredited bool
	waiting    map[string]*conversation
	heartbeat  *v1.Heartbeat
}

// Connect registers the agent if Options.Card is set, proves who it is and opens its session. It fails at once where the
// broker cannot be reached; once there was a session, the agent keeps trying. ctx is for connecting alone: Close ends the
// agent.
func Connect(ctx context.Context, options Options) (*Agent, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	target, transport, err := newTransport(&options)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(frameBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: silenceMax - pingAfter}),
		// Our own backoff decides when to try; it resets this one.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		options:   options,
		conn:      conn,
		tls:       transport,
		broker:    v1.NewBrokerServiceClient(conn),
		agents:    v1.NewAgentServiceClient(conn),
		handoffs:  v1.NewHandoffServiceClient(conn),
		tasks:     v1.NewTaskServiceClient(conn),
		inbox:     make(chan inboxEntry, creditMax),
		mail:      make(chan *Delivery, creditMax),
		letters:   newJobs(),
		waiting:   map[string]*conversation{},
		lookAfter: lookDefault,
		changed:   make(chan struct{}),
		token:     options.Token,
		heartbeat: &v1.Heartbeat{Status: "ok"},
	}
	a.life, a.end = context.WithCancelCause(context.Background())
	first, err := a.enter(ctx)
	if err != nil {
		a.end(ErrClosed)
		_ = conn.Close()
		return nil, err
	}
	a.running.Go(func() { a.keepConnected(first) })
	a.running.Go(a.sortMail)
	return a, nil
}

// ID is the agent's id.
func (a *Agent) ID() string { return a.options.AgentID }

// Done is closed when the agent is at its end: by Close, or because the broker does not let it in any more. Err says why.
func (a *Agent) Done() <-chan struct{} { return a.life.Done() }

// Err is nil until Done, then ErrClosed or what the broker said.
func (a *Agent) Err() error { return context.Cause(a.life) }

// Close ends the session and the connection. What is not acknowledged is delivered again. To stop in order, end the
// context of Serve first and wait for it.
func (a *Agent) Close() error {
	a.end(ErrClosed)
	a.running.Wait()
	return a.conn.Close()
}

// Conn is the connection, for stubs of services that this package does not wrap; Authorize gives them the agent's token.
func (a *Agent) Conn() grpc.ClientConnInterface { return a.conn }

// Authorize adds the agent's token to what a call of a generated stub sends.
func (a *Agent) Authorize(ctx context.Context) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return withToken(ctx, a.token)
}

// SetHeartbeat sets what the agent says of itself at every heartbeat, from the next one on. It fails with an Error,
// FIELD_INVALID, if the broker would not take it.
func (a *Agent) SetHeartbeat(heartbeat *v1.Heartbeat) error {
	if err := checkHeartbeat(heartbeat); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heartbeat = proto.CloneOf(heartbeat)
	return nil
}

// GetTask looks at a task that this agent takes or took part in.
func (a *Agent) GetTask(ctx context.Context, taskID string) (*v1.Task, error) {
	answer, err := call(ctx, a, a.tasks.GetTask, &v1.GetTaskRequest{TaskId: taskID})
	return answer.GetTask(), err
}

// GetHandoff looks at a handoff that this agent takes or took part in.
func (a *Agent) GetHandoff(ctx context.Context, handoffID string) (*v1.Handoff, error) {
	answer, err := call(ctx, a, a.handoffs.GetHandoff, &v1.GetHandoffRequest{HandoffId: handoffID})
	return answer.GetHandoff(), err
}

// GetAgent looks an agent up in the directory.
func (a *Agent) GetAgent(ctx context.Context, agentID string) (*v1.Agent, error) {
	answer, err := call(ctx, a, a.agents.GetAgent, &v1.GetAgentRequest{AgentId: agentID})
	return answer.GetAgent(), err
}

// enter registers, proves and opens the first session.
func (a *Agent) enter(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if a.options.Card != nil {
		if err := a.register(ctx); err != nil {
			return nil, a.tls.explain(err)
		}
	}
	session, err := a.open(ctx)
	return session, a.tls.explain(err)
}

func (a *Agent) register(ctx context.Context) error {
	card := proto.CloneOf(a.options.Card)
	card.AgentId = a.options.AgentID
	if len(card.GetKeys()) == 0 {
		public := a.options.Key.Public().(ed25519.PublicKey)
		card.Keys = []*v1.AgentKey{{KeyId: a.options.KeyID, PublicKey: public}}
	}
	request := &v1.RegisterAgentRequest{Card: card, Invitation: a.options.Invitation}
	_, err := a.agents.RegisterAgent(withToken(ctx, a.options.OperatorToken), request)
	if err == nil {
		return nil
	}
	err = errorOf(ctx, err)
	var refused *Error
	if !errors.As(err, &refused) || refused.ErrorCode() != v1.ErrorCode_ERROR_CODE_AGENT_EXISTS {
		return err
	}
	// Known with another card: it may change its own, once it has proven who it is.
	if err := a.prove(ctx); err != nil {
		return err
	}
	if _, err := a.agents.RegisterAgent(a.Authorize(ctx), request); err != nil {
		return errorOf(ctx, err)
	}
	return nil
}

// prove signs a challenge for a token, unless something else proves who the agent is. Tokens do not outlive the broker,
// so every session begins with it.
func (a *Agent) prove(ctx context.Context) error {
	if a.options.Token != "" || a.options.Certificate != nil {
		return nil
	}
	o := &a.options
	challenge, err := a.agents.CreateChallenge(ctx, &v1.CreateChallengeRequest{AgentId: o.AgentID})
	if err != nil {
		return errorOf(ctx, err)
	}
	signature := signSession(o.AgentID, o.KeyID, challenge.GetChallenge(), o.Key)
	answer, err := a.agents.CreateToken(ctx, &v1.CreateTokenRequest{
		AgentId: o.AgentID, KeyId: o.KeyID, Challenge: challenge.GetChallenge(), Signature: signature,
	})
	if err != nil {
		return errorOf(ctx, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = answer.GetToken()
	return nil
}

// call makes a unary call as this agent. A token whose time is over is renewed once.
func call[Q, A any](
	ctx context.Context, a *Agent, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	answer, err := method(a.Authorize(ctx), request)
	if err == nil {
		return answer, nil
	}
	err = errorOf(ctx, err)
	var refused *Error
	isOver := errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_TOKEN_INVALID
	if !isOver || a.options.Token != "" {
		return answer, err
	}
	if err := a.prove(ctx); err != nil {
		return answer, err
	}
	if answer, err = method(a.Authorize(ctx), request); err != nil {
		return answer, errorOf(ctx, err)
	}
	return answer, nil
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// isUnavailable tells whether there is no connection at all.
func isUnavailable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codes.Unavailable && e.Reason == ""
}
