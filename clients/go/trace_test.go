package baton

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var traced = &v1.TraceContext{Traceparent: parent, Tracestate: "rojo=1"}

// continued is what a handler and the answer to it had.
type continued struct{ delivered, inContext, sent *v1.TraceContext }

// talk sends a message to bob in ctx, who answers. It returns what reached bob and alice.
func talk(ctx context.Context, t *testing.T, alice, bob *Agent) continued {
	reached, answered := make(chan continued, 16), make(chan *v1.TraceContext, 16)
	stopBob := serve(t, bob, Handlers{Info: func(ctx context.Context, d *Delivery, _ *v1.Info) error {
		reached <- continued{delivered: d.TraceContext, inContext: TraceFromContext(ctx)}
		_, err := bob.Send(ctx, alice.ID(), About{}, hello("yes"))
		return err
	}})
	stopAlice := serve(t, alice, Handlers{Info: func(_ context.Context, d *Delivery, _ *v1.Info) error {
		answered <- d.Envelope.GetTraceContext()
		return nil
	}})
	ok[*v1.Receipt](t)(alice.Send(ctx, bob.ID(), About{}, hello("ready?")))
	found := await(t, reached)
	found.sent = await(t, answered)
	for _, stop := range []func() error{stopBob, stopAlice} {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	return found
}

func sameTrace(t *testing.T, found continued, expected *v1.TraceContext) {
	t.Helper()
	for _, one := range []*v1.TraceContext{found.delivered, found.inContext, found.sent} {
		if !proto.Equal(one, expected) {
			t.Errorf("%v, expected %v", one, expected)
		}
	}
}

func TestAHandlerContinuesTheTraceOfItsDelivery(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	sameTrace(t, talk(ContextWithTrace(patient(t), traced), t, alice, bob), traced)
	sameTrace(t, talk(patient(t), t, alice, bob), nil)
}

type spanKey struct{}

// A library for traces whose spans are texts, and which makes a span of its own for each handler.
func texts() *Tracing {
	return &Tracing{
		Inject: func(ctx context.Context, carrier map[string]string) {
			if span, ok := ctx.Value(spanKey{}).(string); ok {
				carrier["traceparent"] = span
			}
		},
		Extract: func(ctx context.Context, carrier map[string]string) context.Context {
			span := carrier["traceparent"]
			return context.WithValue(ctx, spanKey{}, strings.Replace(span, "b7ad6b7169203331", "5555555555555555", 1))
		},
	}
}

func TestAMessageCarriesTheActiveSpanOfALibrary(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	alice.options.Tracing, bob.options.Tracing = texts(), texts()
	found := talk(context.WithValue(patient(t), spanKey{}, parent), t, alice, bob)
	if got := found.delivered.GetTraceparent(); got != parent {
		t.Error(got)
	}
	if got := found.sent.GetTraceparent(); !strings.Contains(got, "-5555555555555555-") {
		t.Error(got)
	}
}

func TestATraceContextThatIsNotValidCountsAsNone(t *testing.T) {
	zero := "00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("1", 16) + "-01"
	for _, wrong := range []string{"", "00-aa-bb-01", parent + "-x", strings.ToUpper(parent), "ff" + parent[2:], zero} {
		if validTrace(&v1.TraceContext{Traceparent: wrong}) != nil {
			t.Error(wrong)
		}
	}
	if validTrace(traced) != traced {
		t.Error("a valid one is none")
	}
}
