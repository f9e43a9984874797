package otelbaton

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTheActiveSpanIsInjected(t *testing.T) {
	carrier := map[string]string{}
	Tracing().Inject(context.Background(), carrier)
	if len(carrier) != 0 {
		t.Error(carrier)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{5}, SpanID: [8]byte{7}, TraceFlags: 1})
	Tracing().Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	if carrier["traceparent"] != "00-05000000000000000000000000000000-0700000000000000-01" {
		t.Error(carrier)
	}
}

func TestTheContextOfADeliveryIsExtracted(t *testing.T) {
	serving := trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{5}, SpanID: [8]byte{7}})
	ctx := trace.ContextWithSpanContext(context.Background(), serving)
	carrier := map[string]string{"traceparent": parent, "tracestate": "rojo=1"}
	span := trace.SpanContextFromContext(Tracing().Extract(ctx, carrier))
	if !span.IsRemote() || !span.IsSampled() || span.SpanID().String() != "b7ad6b7169203331" ||
		span.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || span.TraceState().Get("rojo") != "1" {
		t.Error(span)
	}
	for _, carrier := range []map[string]string{{}, {"traceparent": "wrong"}} {
		if span := trace.SpanContextFromContext(Tracing().Extract(ctx, carrier)); span.IsValid() {
			t.Error(span)
		}
	}
}
