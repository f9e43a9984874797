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

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
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
	// The idle time of a connection after which gRPC sends a ping.
	pingAfter = 20 * time.Second
	// The maximum silence of a broker on an open connection before the session ends.
	silenceMax     = 30 * time.Second
	handlerDefault = 10 * time.Minute
	stopDefault    = 10 * time.Second
	// The silence after which a waiting call reads the state at the broker.
	lookDefault = 5 * time.Second
)

// Options configures Connect. Target, AgentID and Key are required.
type Options struct {
	// The broker: HOST:PORT with TLS, or http://HOST:PORT without TLS for a broker on this machine.
	Target string
	// The agent's id.
	AgentID string
	// The key that signs the agent's messages. It also proves the agent's identity, unless Certificate or Token does.
	Key ed25519.PrivateKey
	// The id of the key among the agent's keys; default "k1".
	KeyID string

	// The CAs that may have signed the broker's certificate; default: the system's. See LoadCA.
	RootCAs *x509.CertPool
	// The client certificate that proves the agent's identity, instead of the key.
	Certificate *tls.Certificate
	// A token that proves the agent's identity, from "baton token" or CreateToken. The agent does not renew it.
	Token string

	// If set, Connect first registers the agent with this card and fills in its agent_id and keys. Registering the same
	// card again is not an error; a registered agent changes its own card.
	Card *v1.AgentCard
	// The secret of an invitation, to register where registration is not open.
	Invitation string
	// An operator's token, to register where registration is not open.
	OperatorToken string

	// The maximum number of unacknowledged deliveries, and so of concurrent handlers: up to 4096; default 16. The agent
	// takes mail only while Serve, Receive, HandOver, ResumeHandOver or Delegate runs.
	Credit uint32
	// The time limit of a handler for an unacknowledged delivery, which Serve extends meanwhile; default 10 minutes. After
	// the ack, which for an offer is its completion, the handler has no limit.
	HandlerTimeout time.Duration
	// Whether Serve goes on with the tasks of this agent that no connected process works on, for example after the death of
	// the process that had taken them over: it calls Handlers.Offer for each, with Offer.Resumed, as many at a time as Credit
	// leaves room for. Requires Handlers with an Offer function.
	Resume bool
	// The time for which Serve waits for running handlers when it stops; default 10 s.
	StopTimeout time.Duration
	// Pinned keys by agent id: all valid keys of that agent, used instead of the directory's. Those of "baton" verify
	// receipts.
	PinnedKeys map[string][]*v1.AgentKey
	// Operators' public keys by operator_key_id. If any are set, a key from the directory is valid only with a voucher of
	// one of these operators.
	OperatorKeys map[string]ed25519.PublicKey
	// Whether the agent compresses what it sends by gzip. It pays for contexts and results of many kilobytes.
	Gzip bool
	// Further options of the connection, such as interceptors and statistics.
	DialOptions []grpc.DialOption
	// The library for traces whose active span messages carry and handlers continue. Nil: a handler's messages carry the
	// trace context of its delivery as it came.
	Tracing *Tracing
	// The logger; default slog.Default().
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

// Agent is an agent with a session at the broker. When the session ends, the agent opens another, until Close. Its
// methods may be called from several goroutines.
type Agent struct {
	options  Options
	conn     *grpc.ClientConn
	tls      *watchedTransport
	broker   v1.BrokerServiceClient
	agents   v1.AgentServiceClient
	handoffs v1.HandoffServiceClient
	tasks    v1.TaskServiceClient
	// The services of contexts, blobs, schemas, workspaces, graphs and runs, negotiations, plans and threads.
	contexts     v1.ContextServiceClient
	blobs        v1.BlobServiceClient
	schemas      v1.SchemaServiceClient
	workspaces   v1.WorkspaceServiceClient
	routing      v1.RoutingServiceClient
	negotiations v1.NegotiationServiceClient
	plans        v1.PlanServiceClient
	threads      v1.ThreadServiceClient
	deadLetters  v1.DeadLetterServiceClient
	registries   v1.RegistryServiceClient
	audit        v1.AuditServiceClient
	// Unverified deliveries.
	inbox chan inboxEntry
	// Verified deliveries for Serve and Receive.
	mail    chan *Delivery
	serving sync.Mutex
	keys    keyCache
	// The requests for offers to this agent.
	requests requests
	// The bases of the deltas of contexts.
	known knownSections
	// The silence after which a waiting call reads the state at the broker.
	lookAfter time.Duration
	// The id of this process: see Hello.
	instanceID string
	// Filled when the tasks that this process works on have changed.
	workChanged chan struct{}
	// The messages in conversations.
	letters *jobs
	// Held while a Credit frame is sent, so that the latest credit takes effect last.
	crediting sync.Mutex

	life    context.Context
	end     context.CancelCauseFunc
	running sync.WaitGroup

	mu      sync.Mutex
	token   string
	session *session      // nil without a session
	changed chan struct{} // closed when session changes
	credit  uint32
	taking  bool // Serve or Receive was called
	// Whether credit was given since the agent began to wait for mail; it may be 0, for a pause.
	isCredited bool
	waiting    map[string]*conversation
	// The ownerships of tasks that HandOver, ResumeHandOver and Delegate hand over, with the number of their calls.
	handing map[tenure]int
	works   map[*work]bool
	holds   map[*hold]bool
	// What calls of this process know the end of.
	settled remembered
	// The ownerships of tasks that this process has taken over.
	taken remembered
	// Whether Serve is at its end.
	stopping  bool
	heartbeat *v1.Heartbeat
}

// Connect registers the agent if Options.Card is set, proves its identity and opens its session. It fails at once if
// the broker cannot be reached; after the first session the agent keeps trying. ctx bounds only Connect; Close ends the
// agent.
func Connect(ctx context.Context, options Options) (*Agent, error) {
	return connect(ctx, options, uuid.NewString())
}

func connect(ctx context.Context, options Options, instanceID string) (*Agent, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	target, transport, err := newTransport(&options)
	if err != nil {
		return nil, err
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(frameBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: silenceMax - pingAfter}),
		// The agent has its own backoff, which resets gRPC's.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDisableServiceConfig(),
	}
	if options.Gzip {
		dial = append(dial, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
	}
	conn, err := grpc.NewClient(target, append(dial, options.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		options:      options,
		conn:         conn,
		tls:          transport,
		broker:       v1.NewBrokerServiceClient(conn),
		agents:       v1.NewAgentServiceClient(conn),
		handoffs:     v1.NewHandoffServiceClient(conn),
		tasks:        v1.NewTaskServiceClient(conn),
		contexts:     v1.NewContextServiceClient(conn),
		blobs:        v1.NewBlobServiceClient(conn),
		schemas:      v1.NewSchemaServiceClient(conn),
		workspaces:   v1.NewWorkspaceServiceClient(conn),
		routing:      v1.NewRoutingServiceClient(conn),
		negotiations: v1.NewNegotiationServiceClient(conn),
		plans:        v1.NewPlanServiceClient(conn),
		threads:      v1.NewThreadServiceClient(conn),
		deadLetters:  v1.NewDeadLetterServiceClient(conn),
		registries:   v1.NewRegistryServiceClient(conn),
		audit:        v1.NewAuditServiceClient(conn),
		inbox:        make(chan inboxEntry, creditMax),
		mail:         make(chan *Delivery, creditMax),
		letters:      newJobs(),
		waiting:      map[string]*conversation{},
		handing:      map[tenure]int{},
		works:        map[*work]bool{},
		holds:        map[*hold]bool{},
		lookAfter:    lookDefault,
		instanceID:   instanceID,
		workChanged:  make(chan struct{}, 1),
		changed:      make(chan struct{}),
		token:        options.Token,
		heartbeat:    &v1.Heartbeat{Status: "ok"},
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

// ID returns the agent's id.
func (a *Agent) ID() string { return a.options.AgentID }

// Done is closed at the agent's end: by Close, or after the broker refuses it permanently. Err returns the reason.
func (a *Agent) Done() <-chan struct{} { return a.life.Done() }

// Err returns nil until Done, then ErrClosed or the broker's refusal.
func (a *Agent) Err() error { return context.Cause(a.life) }

// Close ends the session and the connection. The broker redelivers unacknowledged messages. For an orderly stop, end
// the context of Serve first and wait for Serve to return.
func (a *Agent) Close() error {
	a.end(ErrClosed)
	a.running.Wait()
	return a.conn.Close()
}

// Conn returns the connection, for stubs of services that this package does not wrap. Authorize adds the agent's token
// to their calls.
func (a *Agent) Conn() grpc.ClientConnInterface { return a.conn }

// Authorize adds the agent's token to the metadata of a stub's call.
func (a *Agent) Authorize(ctx context.Context) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return withToken(ctx, a.token)
}

// SetHeartbeat sets the payload of the agent's heartbeats, from the next one on. The tasks that this process works on are
// added to working_on. It fails with an Error, FIELD_INVALID, if the payload breaks a rule of the schema.
func (a *Agent) SetHeartbeat(heartbeat *v1.Heartbeat) error {
	if err := checkHeartbeat(heartbeat); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heartbeat = proto.CloneOf(heartbeat)
	return nil
}

// GetTask returns a task of which this agent is or was a party.
func (a *Agent) GetTask(ctx context.Context, taskID string) (*v1.Task, error) {
	answer, err := call(ctx, a, a.tasks.GetTask, &v1.GetTaskRequest{TaskId: taskID})
	return answer.GetTask(), err
}

// GetHandoff returns a handoff of which this agent is or was a party.
func (a *Agent) GetHandoff(ctx context.Context, handoffID string) (*v1.Handoff, error) {
	answer, err := call(ctx, a, a.handoffs.GetHandoff, &v1.GetHandoffRequest{HandoffId: handoffID})
	return answer.GetHandoff(), err
}

// GetAgent returns an agent's entry in the directory.
func (a *Agent) GetAgent(ctx context.Context, agentID string) (*v1.Agent, error) {
	answer, err := call(ctx, a, a.agents.GetAgent, &v1.GetAgentRequest{AgentId: agentID})
	return answer.GetAgent(), err
}

// enter registers the agent, proves its identity and opens the first session.
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
	// The agent is registered with another card. It may change its own card once it has proven its identity.
	if err := a.prove(ctx); err != nil {
		return err
	}
	if _, err := a.agents.RegisterAgent(a.Authorize(ctx), request); err != nil {
		return errorOf(ctx, err)
	}
	return nil
}

// prove signs a challenge for a token, unless a certificate or Options.Token proves the agent's identity. Tokens do not
// survive a restart of the broker, so each session begins with a new one.
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

// call makes a unary call as this agent. It renews an expired token once.
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

// isUnavailable reports whether an error means a missing connection.
func isUnavailable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codes.Unavailable && e.Reason == ""
}
