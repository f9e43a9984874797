package baton

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// due is a context whose deadline has passed, and whose timer is late.
type due struct{ context.Context }

func (due) Deadline() (time.Time, bool) { return time.Now(), true }

func TestTheBrokersAnswerAtTheDeadlineOfACallIsTheEndOfItsContext(t *testing.T) {
	ctx, end := context.WithCancelCause(context.Background())
	time.AfterFunc(10*time.Millisecond, func() { end(context.DeadlineExceeded) })
	err := errorOf(due{ctx}, status.Error(codes.DeadlineExceeded, "Timeout expired"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestAnAcceptThatIsCancelledWhileItLooksIsNoRefusal(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	cut, cancel := context.WithCancel(context.Background())
	options.DialOptions = append(options.DialOptions, grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		if strings.HasSuffix(method, "/GetHandoff") {
			cancel()
		}
		return invoker(ctx, method, request, answer, conn, options...)
	}))
	bob, ended := connected(t, options), make(chan error, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		// As an earlier process does that dies before it acks the request.
		if _, err := bob.Accept(ctx, offer.request, nil); err != nil {
			ended <- err
			return err
		}
		_, err := offer.Accept(cut, nil)
		ended <- err
		_, err = offer.Accept(ctx, nil)
		if err == nil {
			_, err = offer.takeover.Complete(ctx)
		}
		return err
	}})
	handed := make(chan error, 1)
	section := goals(t)
	go func() {
		_, err := alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), section)
		handed <- err
	}()
	if err := await(t, ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := await(t, handed); err != nil {
		t.Error(err)
	}
}
