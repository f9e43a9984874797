package baton

import (
	"context"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Tracing connects the agent with a library for traces, whose spans it keeps in contexts. Both functions exchange W3C
// Trace Context, under the keys "traceparent" and "tracestate". The package otelbaton has those of OpenTelemetry.
type Tracing struct {
	// Inject writes the active span of a context into the carrier; none leaves the carrier empty.
	Inject func(ctx context.Context, carrier map[string]string)
	// Extract returns the context with the span in the carrier as the active one, or without one for an empty carrier.
	Extract func(ctx context.Context, carrier map[string]string) context.Context
}

type traceKey struct{}

// ContextWithTrace returns a context whose messages carry this trace context, for example that of a delivery; nil: none.
// Serve does so for each handler.
func ContextWithTrace(ctx context.Context, trace *v1.TraceContext) context.Context {
	return context.WithValue(ctx, traceKey{}, trace)
}

// TraceFromContext returns the trace context that ContextWithTrace has set, or nil. A message carries it unless
// Options.Tracing finds an active span.
func TraceFromContext(ctx context.Context) *v1.TraceContext {
	trace, _ := ctx.Value(traceKey{}).(*v1.TraceContext)
	return trace
}

var traceparent = regexp.MustCompile("^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

// validTrace returns the trace context if it is a valid one, or nil.
func validTrace(trace *v1.TraceContext) *v1.TraceContext {
	parent := trace.GetTraceparent()
	if !traceparent.MatchString(parent) || strings.HasPrefix(parent, "ff") ||
		strings.Trim(parent[3:35], "0") == "" || strings.Trim(parent[36:52], "0") == "" {
		return nil
	}
	return trace
}

// newEnvelope is NewEnvelope for this agent, with the trace context and the parent of ctx. It refuses a payload that the
// broker is known to refuse.
func (a *Agent) newEnvelope(
	ctx context.Context, receiverID string, about About, payload proto.Message,
) (*v1.Envelope, error) {
	if err := checkPayload(payload); err != nil {
		return nil, err
	}
	envelope, err := NewEnvelope(a.options.AgentID, receiverID, about, a.withParent(ctx, about, payload))
	if err != nil {
		return nil, err
	}
	envelope.TraceContext = TraceFromContext(ctx)
	if a.options.Tracing != nil {
		carrier := map[string]string{}
		a.options.Tracing.Inject(ctx, carrier)
		if parent := carrier["traceparent"]; parent != "" {
			envelope.TraceContext = &v1.TraceContext{Traceparent: parent, Tracestate: carrier["tracestate"]}
		}
	}
	return envelope, nil
}

// inTrace returns the context of a delivery's handler.
func (a *Agent) inTrace(ctx context.Context, d *Delivery) context.Context {
	ctx = ContextWithTrace(ctx, d.TraceContext)
	if a.options.Tracing == nil {
		return ctx
	}
	carrier := map[string]string{}
	if d.TraceContext != nil {
		carrier["traceparent"] = d.TraceContext.GetTraceparent()
		carrier["tracestate"] = d.TraceContext.GetTracestate()
	}
	return a.options.Tracing.Extract(ctx, carrier)
}
