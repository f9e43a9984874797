package baton

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// unanswered returns a session whose broker answers nothing, and the frames that it gets.
func unanswered(t *testing.T) (*session, <-chan *v1.ConnectRequest) {
	t.Helper()
	s := &session{frames: make(chan *v1.ConnectRequest), answers: map[uint64]*question{}}
	s.ended, s.end = context.WithCancelCause(context.Background())
	t.Cleanup(func() { s.end(nil) })
	return s, s.frames
}

// Serve ends with a change of the credit, which waits for the frame before. The clock of this test is not the
// machine's.
func TestCreditThatTheBrokerDoesNotAnswerEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{changed: make(chan struct{}), credit: 16}
		a.life, a.end = context.WithCancelCause(context.Background())
		defer a.end(ErrClosed)
		s, frames := unanswered(t)
		entered := make(chan struct{})
		go func() {
			a.enterSession(s)
			close(entered)
		}()
		if frame := <-frames; frame.GetCredit().GetMaxOutstanding() != 16 {
			t.Errorf("%v", frame)
		}
		<-entered
		if cause := context.Cause(s.ended); !errors.Is(cause, context.DeadlineExceeded) {
			t.Error(cause)
		}
	})
}

func TestOnlyAnEnvelopeIsBlamedForItsSize(t *testing.T) {
	s, frames := unanswered(t)
	asked := func(request *v1.ConnectRequest) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := s.ask(context.Background(), request)
			result <- err
		}()
		await(t, frames)
		return result
	}
	ack := &v1.Acknowledgement{DeliveryId: strings.Repeat("x", 1000)}
	acked := asked(&v1.ConnectRequest{Request: &v1.ConnectRequest_Acknowledgement{Acknowledgement: ack}})
	tooLarge := status.Error(codes.OutOfRange, "too large")
	s.blameLargest(tooLarge) // no envelope waits
	small := asked(&v1.ConnectRequest{Request: &v1.ConnectRequest_Envelope{Envelope: &v1.Envelope{TaskId: "a"}}})
	large := asked(&v1.ConnectRequest{Request: &v1.ConnectRequest_Envelope{Envelope: &v1.Envelope{TaskId: "a ticket"}}})
	s.blameLargest(tooLarge)
	s.end(tooLarge)
	var e *Error
	if err := await(t, large); !errors.As(err, &e) || e.Code != codes.OutOfRange {
		t.Error(err)
	}
	for _, one := range []<-chan error{acked, small} {
		if err := await(t, one); !errors.Is(err, errSessionEnded) {
			t.Error(err)
		}
	}
}

// moody is a broker that fails the proof of an agent with these codes, one after another.
type moody struct {
	v1.UnimplementedAgentServiceServer
	v1.UnimplementedBrokerServiceServer

	mu       sync.Mutex
	failures []codes.Code
	sessions chan context.CancelFunc // each ends one session
}

func (m *moody) CreateChallenge(context.Context, *v1.CreateChallengeRequest) (*v1.CreateChallengeResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.failures) == 0 {
		return &v1.CreateChallengeResponse{}, nil
	}
	code := m.failures[0]
	m.failures = m.failures[1:]
	return nil, status.Error(code, "not in the mood")
}

func (m *moody) CreateToken(context.Context, *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	return &v1.CreateTokenResponse{Token: "token"}, nil
}

func (m *moody) Connect(stream grpc.BidiStreamingServer[v1.ConnectRequest, v1.ConnectResponse]) error {
	ctx, end := context.WithCancel(stream.Context())
	defer end()
	welcome := &v1.Welcome{BrokerKey: &v1.AgentKey{}}
	if err := stream.Send(&v1.ConnectResponse{Response: &v1.ConnectResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	m.sessions <- end
	<-ctx.Done()
	return nil
}

func TestARefusalToReconnectCountsOnlyIfTheNextAttemptIsRefusedToo(t *testing.T) {
	broker := &moody{sessions: make(chan context.CancelFunc, 16)}
	server, listener := grpc.NewServer(), ok[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	v1.RegisterAgentServiceServer(server, broker)
	v1.RegisterBrokerServiceServer(server, broker)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	options := shared.options(t, "alice")
	options.Target, options.Card = "http://"+listener.Addr().String(), nil
	alice := connected(t, options)
	end := await(t, broker.sessions)
	broker.mu.Lock()
	broker.failures = []codes.Code{
		codes.PermissionDenied, codes.Unavailable, codes.PermissionDenied, codes.Unauthenticated,
	}
	broker.mu.Unlock()
	end()
	await(t, alice.Done())
	// The last one is the first refusal that follows another.
	var refused *Error
	if !errors.As(alice.Err(), &refused) || refused.Code != codes.Unauthenticated {
		t.Error(alice.Err())
	}
}
