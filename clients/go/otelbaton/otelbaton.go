// Package otelbaton connects agents with OpenTelemetry: the messages of an agent carry the active span, and a handler's
// own spans have that of its delivery as their parent.
//
//	agent, err := baton.Connect(ctx, baton.Options{ /* ... */ Tracing: otelbaton.Tracing()})
package otelbaton

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	baton "github.com/baton-broker/baton/clients/go"
)

// Tracing returns the functions for baton.Options.Tracing.
func Tracing() *baton.Tracing {
	w3c := propagation.TraceContext{}
	return &baton.Tracing{
		Inject: func(ctx context.Context, carrier map[string]string) {
			w3c.Inject(ctx, propagation.MapCarrier(carrier))
		},
		Extract: func(ctx context.Context, carrier map[string]string) context.Context {
			// Without the span in which the agent serves: a message without a context continues nothing.
			none := trace.ContextWithSpanContext(ctx, trace.SpanContext{})
			return w3c.Extract(none, propagation.MapCarrier(carrier))
		},
	}
}
