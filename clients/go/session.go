package baton

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = 10 * time.Second
	// steadyAfter is the age from which a session resets the backoff.
	steadyAfter = 5 * time.Second
	// The time for which a session is still read after a GoAway, for answers in flight.
	goAwayPatience = 5 * time.Second
)

// session is one Connect stream: it matches answers to questions.
type session struct {
	stream  v1.BrokerService_ConnectClient
	welcome *v1.Welcome
	frames  chan *v1.ConnectRequest
	ended   context.Context
	end     context.CancelCauseFunc

	mu      sync.Mutex
	answers map[uint64]*question
	next    uint64
	leaving bool // after a GoAway: no new questions
	wait    time.Duration
}

// question is a frame without an answer yet.
type question struct {
	answer chan *v1.ConnectResponse
	// The size of the frame's envelope; 0 for any other frame.
	envelopeBytes int
}

type inboxEntry struct {
	delivery *v1.Delivery
	session  *session
}

// open proves the agent's identity and opens a session.
func (a *Agent) open(ctx context.Context) (*session, error) {
	if err := a.prove(ctx); err != nil {
		return nil, err
	}
	ended, end := context.WithCancelCause(a.life)
	// The stream lives as long as the session; ctx bounds only the opening.
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	stream, err := a.broker.Connect(a.Authorize(ended))
	if err != nil {
		end(err)
		return nil, errorOf(ctx, err)
	}
	first, err := stream.Recv()
	if err != nil {
		end(err)
		return nil, errorOf(ctx, err)
	}
	if !stop() || first.GetWelcome().GetBrokerKey() == nil {
		err := &Error{Code: codes.Internal, Reason: "MALFORMED", Message: "the first frame is not a welcome"}
		end(err)
		return nil, err
	}
	s := &session{
		stream: stream, welcome: first.GetWelcome(), frames: make(chan *v1.ConnectRequest),
		ended: ended, end: end, answers: map[uint64]*question{},
	}
	a.running.Go(s.write)
	a.running.Go(func() { s.read(a) })
	a.sayHello(s)
	a.running.Go(func() { s.beat(a) })
	return s, nil
}

// keepConnected opens a new session each time the present one ends.
func (a *Agent) keepConnected(s *session) {
	backoff := reconnectFirst
	for {
		entered := time.Now()
		a.enterSession(s)
		<-s.ended.Done()
		if time.Since(entered) >= steadyAfter {
			backoff = reconnectFirst
		}
		a.setSession(nil)
		if a.life.Err() != nil {
			return
		}
		a.options.Logger.Info("the session has ended; connecting again", "cause", context.Cause(s.ended))
		next, err := a.reopen(s.reconnectAfter(), &backoff)
		if err != nil {
			a.end(err)
			return
		}
		s = next
	}
}

// reopen opens a session after a wait that grows with each failure, also over sessions that end at once.
func (a *Agent) reopen(wait time.Duration, backoff *time.Duration) (*session, error) {
	refusals := 0
	for {
		if err := sleep(a.life, max(wait, jittered(*backoff))); err != nil {
			return nil, err
		}
		*backoff = min(2**backoff, reconnectMost)
		a.conn.ResetConnectBackoff()
		ctx, cancel := context.WithTimeout(a.life, callTimeout)
		s, err := a.open(ctx)
		cancel()
		if err == nil {
			return s, nil
		}
		// A slow broker is asked again. One that restarts between two steps of the proof refuses the second, so a refusal
		// counts only when the next attempt is refused too.
		if isPassing(err) || errors.Is(err, context.DeadlineExceeded) {
			refusals = 0
		} else if refusals++; refusals > 1 || a.life.Err() != nil {
			return nil, err
		}
		a.options.Logger.Debug("failed to connect", "error", a.tls.explain(err))
		wait = 0
		var refused *Error
		if errors.As(err, &refused) {
			wait = refused.RetryDelay
		}
	}
}

// enterSession makes a session the present one and sends the agent's credit.
func (a *Agent) enterSession(s *session) {
	a.crediting.Lock()
	defer a.crediting.Unlock()
	a.setSession(s)
	a.mu.Lock()
	credit := a.credit
	a.mu.Unlock()
	if credit > 0 {
		// Each change of the credit waits for this one, also at the end of Serve.
		ctx, cancel := context.WithTimeout(a.life, callTimeout)
		defer cancel()
		if err := s.giveCredit(ctx, credit); err != nil {
			s.end(err)
		}
	}
}

func (a *Agent) setSession(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = s
	close(a.changed)
	a.changed = make(chan struct{})
}

// current waits for a session that takes questions.
func (a *Agent) current(ctx context.Context) (*session, error) {
	for {
		a.mu.Lock()
		s, changed := a.session, a.changed
		a.mu.Unlock()
		if s != nil && s.isOpen() {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-a.life.Done():
			return nil, a.Err()
		}
	}
}

// ask sends a frame and waits for its answer. It fails with errSessionEnded when the session ends first.
func (s *session) ask(ctx context.Context, request *v1.ConnectRequest) (*v1.ConnectResponse, error) {
	answer, err := s.put(ctx, request)
	defer s.forget(request.GetRequestId())
	if err != nil {
		return nil, err
	}
	return s.await(ctx, answer)
}

// put sends a frame whose answer goes to the returned channel, until forget.
func (s *session) put(ctx context.Context, request *v1.ConnectRequest) (<-chan *v1.ConnectResponse, error) {
	answer := make(chan *v1.ConnectResponse, 1)
	envelopeBytes := proto.Size(request.GetEnvelope())
	s.mu.Lock()
	if s.leaving {
		s.mu.Unlock()
		return nil, errSessionEnded
	}
	s.next++
	request.RequestId = s.next
	s.answers[s.next] = &question{answer, envelopeBytes}
	s.mu.Unlock()
	// A select between two that are ready takes either: a context that has ended already must send nothing.
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case s.frames <- request:
		return answer, nil
	case <-s.ended.Done():
		return nil, errSessionEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *session) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.answers, id)
}

func (s *session) await(ctx context.Context, answer <-chan *v1.ConnectResponse) (*v1.ConnectResponse, error) {
	select {
	case response := <-answer:
		return checkAnswer(response)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.ended.Done():
	}
	select {
	case response := <-answer: // the answer arrived just before the end
		return checkAnswer(response)
	default:
		return nil, errSessionEnded
	}
}

// giveCredit sends the credit. The session's end is not an error: the next session begins with the credit.
func (s *session) giveCredit(ctx context.Context, maxOutstanding uint32) error {
	credit := &v1.Credit{MaxOutstanding: maxOutstanding}
	_, err := s.ask(ctx, &v1.ConnectRequest{Request: &v1.ConnectRequest_Credit{Credit: credit}})
	if errors.Is(err, errSessionEnded) {
		return nil
	}
	return err
}

func checkAnswer(response *v1.ConnectResponse) (*v1.ConnectResponse, error) {
	if refused := response.GetError(); refused != nil {
		return nil, errorOfStatus(status.FromProto(refused))
	}
	return response, nil
}

func (s *session) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.leaving && s.ended.Err() == nil
}

func (s *session) write() {
	for {
		select {
		case frame := <-s.frames:
			// The reader gets the reason of a failed send.
			if s.stream.Send(frame) != nil {
				return
			}
		case <-s.ended.Done():
			return
		}
	}
}

func (s *session) read(a *Agent) {
	for {
		frame, err := s.stream.Recv()
		if err != nil {
			s.leave(0)
			if isTooLarge(err) {
				s.blameLargest(err)
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("the broker closed it")
			}
			s.end(err)
			return
		}
		switch response := frame.GetResponse().(type) {
		case *v1.ConnectResponse_Delivery:
			select {
			case a.inbox <- inboxEntry{response.Delivery, s}:
			case <-s.ended.Done():
			}
		case *v1.ConnectResponse_GoAway:
			s.leave(response.GoAway.GetReconnectAfter().AsDuration())
			time.AfterFunc(goAwayPatience, func() { s.end(errors.New(response.GoAway.GetReasonText())) })
		default:
			s.answered(a, frame)
		}
	}
}

// isTooLarge reports whether a session ended because of an oversized frame. An older broker gives no reason.
func isTooLarge(err error) bool {
	e := errorOfStatus(status.Convert(err))
	return e.Code == codes.OutOfRange || e.ErrorCode() == v1.ErrorCode_ERROR_CODE_PAYLOAD_TOO_LARGE
}

// blameLargest refuses the largest unanswered envelope after the broker has ended the session because of a frame's
// size. Sent again, the envelope would end the next session too. No other frame can be too large.
func (s *session) blameLargest(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var largest *question
	for _, one := range s.answers {
		if one.envelopeBytes > 0 && (largest == nil || one.envelopeBytes > largest.envelopeBytes) {
			largest = one
		}
	}
	if largest == nil {
		return
	}
	refusal := &v1.ConnectResponse{Response: &v1.ConnectResponse_Error{Error: status.Convert(err).Proto()}}
	select {
	case largest.answer <- refusal:
	default: // already answered
	}
}

func (s *session) leave(wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	s.wait = max(s.wait, wait)
}

func (s *session) reconnectAfter() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wait
}

func (s *session) answered(a *Agent, frame *v1.ConnectResponse) {
	s.mu.Lock()
	asked := s.answers[frame.GetRequestId()]
	s.mu.Unlock()
	if asked != nil {
		select {
		case asked.answer <- frame:
		default: // a second answer to the same question
		}
	} else if refused := frame.GetError(); refused != nil {
		a.options.Logger.Warn("the broker refused a frame that no call waits for", "error", refused.GetMessage())
	}
}

func sleep(ctx context.Context, span time.Duration) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// jittered returns the span plus or minus a fifth, to spread the reconnects of many agents.
func jittered(span time.Duration) time.Duration {
	return time.Duration(float64(span) * (0.8 + 0.4*rand.Float64()))
}
