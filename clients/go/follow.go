package baton

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// stream is a call whose answers go on for as long as the broker serves it.
type stream[A any] struct {
	// open begins the call after what take has taken.
	open func(context.Context) (grpc.ServerStreamingClient[A], error)
	// take handles an answer. It reports whether the caller wants more, or fails with an error that ends the call.
	take func(*A) (bool, error)
	// isOver reports whether a call that the broker has ended without an error has no more answers.
	isOver func(context.Context) (bool, error)
}

// follow reads a stream and opens it again each time it breaks, with a backoff of 0.1 to 10 s, until take wants no more
// or the stream is over. It fails with the broker's refusal, the cause of ctx, or Agent.Err.
func follow[A any](ctx context.Context, a *Agent, s stream[A]) error {
	backoff := reconnectFirst
	for isProven := false; ; {
		began := time.Now()
		isDone, err := followOnce(ctx, s)
		switch {
		case isDone:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case a.life.Err() != nil:
			return a.Err()
		case isTokenOver(err) && a.options.Token == "" && !isProven:
			if err = a.prove(ctx); err == nil {
				isProven = true
				continue
			}
		}
		if !isPassing(err) {
			return err
		}
		isProven = false
		if time.Since(began) >= steadyAfter {
			backoff = reconnectFirst
		}
		var refused *Error
		wait := jittered(backoff)
		if errors.As(err, &refused) {
			wait = max(wait, refused.RetryDelay)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		backoff = min(2*backoff, reconnectMost)
	}
}

// followOnce reads one call to its end. It reports whether the stream is done; its error is final then.
func followOnce[A any](ctx context.Context, s stream[A]) (bool, error) {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	answers, err := s.open(reading)
	if err != nil {
		return false, errorOf(ctx, err)
	}
	for {
		answer, err := answers.Recv()
		if errors.Is(err, io.EOF) {
			isOver, err := s.isOver(ctx)
			if err == nil && !isOver {
				err = errSessionEnded
			}
			return isOver, err
		}
		if err != nil {
			return false, errorOf(ctx, err)
		}
		if isMore, err := s.take(answer); err != nil || !isMore {
			return true, err
		}
	}
}

// followChanges follows changes that have a cursor, with one caught_up, without an end. open begins the call after the
// cursor, which each change moves on.
func followChanges[A any, E interface {
	*A
	GetCursor() uint64
	GetCaughtUp() bool
}](
	ctx context.Context, a *Agent, cursor *uint64,
	open func(context.Context) (grpc.ServerStreamingClient[A], error),
) iter.Seq2[*A, error] {
	return func(yield func(*A, error) bool) {
		isCaughtUp := false
		take := func(event *A) (bool, error) {
			*cursor = max(*cursor, E(event).GetCursor())
			if E(event).GetCaughtUp() {
				if isCaughtUp {
					return true, nil
				}
				isCaughtUp = true
			}
			return yield(event, nil), nil
		}
		if err := follow(ctx, a, stream[A]{open: open, take: take, isOver: isNeverOver}); err != nil {
			yield(nil, err)
		}
	}
}

// logStream is a call that follows a log with numbered entries.
type logStream[A any] struct {
	// open begins the call after a number.
	open func(ctx context.Context, after uint64) (grpc.ServerStreamingClient[A], error)
	// number returns the number of the update's entry, from 1 on; 0 without one.
	number func(*A) uint64
	// isCaughtUp reports whether the update says that the entries of the start are through.
	isCaughtUp func(*A) bool
	// isLast reports whether this update is the last one; nil for a log whose entries alone do not tell its end.
	isLast func(*A) bool
	// isOver reports whether nothing follows this number although the call has ended; nil for a log without an end.
	isOver func(ctx context.Context, last uint64) (bool, error)
}

// followLog follows a log from after a number: each entry once and in order, or a gap that covers it, and one caught_up. It
// leaves out updates of a newer schema.
func followLog[A any, U interface {
	*A
	GetGap() *v1.WatchGap
}](ctx context.Context, a *Agent, after uint64, log logStream[A]) iter.Seq2[*A, error] {
	return func(yield func(*A, error) bool) {
		last, isCaughtUp := after, false
		watch := stream[A]{isOver: isNeverOver}
		watch.open = func(ctx context.Context) (grpc.ServerStreamingClient[A], error) { return log.open(ctx, last) }
		if log.isOver != nil {
			watch.isOver = func(ctx context.Context) (bool, error) { return log.isOver(ctx, last) }
		}
		watch.take = func(update *A) (bool, error) {
			number, gap := log.number(update), U(update).GetGap()
			switch {
			case number > 0:
				last = number
			case gap != nil:
				last = max(last, gap.GetLastNumber())
			case log.isCaughtUp(update) && !isCaughtUp:
				isCaughtUp = true
			default:
				return true, nil
			}
			return yield(update, nil) && (log.isLast == nil || !log.isLast(update)), nil
		}
		if err := follow(ctx, a, watch); err != nil {
			yield(nil, err)
		}
	}
}

// isNeverOver is for streams without an end of their own.
func isNeverOver(context.Context) (bool, error) { return false, nil }

func isTokenOver(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_TOKEN_INVALID
}

// persist repeats a call that is the same call again, until the broker answers, or until ctx or the agent ends. A lease of
// another runner is an answer.
func persist[Q, A any](
	ctx context.Context, a *Agent, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	backoff := reconnectFirst
	for {
		answer, err := call(ctx, a, method, request)
		var refused *Error
		isLeased := errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_RUN_OPEN
		if err == nil || !isPassing(err) || isLeased {
			return answer, err
		}
		if a.life.Err() != nil {
			return answer, a.Err()
		}
		wait := jittered(backoff)
		if errors.As(err, &refused) {
			wait = max(wait, refused.RetryDelay)
		}
		if err := sleep(ctx, wait); err != nil {
			return answer, err
		}
		backoff = min(2*backoff, reconnectMost)
	}
}

// pages iterates over a list page by page. read returns a page and the token of the next one, empty after the last.
func pages[T any](read func(token string) ([]T, string, error)) func(yield func(T, error) bool) {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			page, next, err := read(token)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range page {
				if !yield(one, nil) {
					return
				}
			}
			if token = next; token == "" {
				return
			}
		}
	}
}
