/**
 * The trace context of messages: what a message sent now carries, and what the handler of a delivery continues. Where the package
 * `@opentelemetry/api` is installed, it is the active span of OpenTelemetry. Otherwise it is passed on as it came.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { createRequire } from "node:module";
import { create } from "@bufbuild/protobuf";
import type * as OpenTelemetry from "@opentelemetry/api";
import { type TraceContext, TraceContextSchema } from "./v1.js";

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})$/;

const continued = new AsyncLocalStorage<TraceContext | undefined>();
const otel = openTelemetry();

/** Returns the context that a message sent now carries: the active span, or what is continued here. */
export function currentTrace(): TraceContext | undefined {
  const span = otel?.trace.getSpanContext(otel.context.active());
  if (otel === undefined || span === undefined || !otel.isSpanContextValid(span)) return continued.getStore();
  const flags = span.traceFlags.toString(16).padStart(2, "0");
  const tracestate = span.traceState?.serialize() ?? "";
  return create(TraceContextSchema, { traceparent: `00-${span.traceId}-${span.spanId}-${flags}`, tracestate });
}

/**
 * Runs a function in a context, for example that of a delivery: the messages that it sends and the spans that it begins belong to
 * it, also those of its promises. Undefined: they belong to no trace.
 */
export function inTrace<T>(context: TraceContext | undefined, body: () => T): T {
  const run = (): T => continued.run(context, body);
  if (otel === undefined) return run();
  const [, traceId = "", spanId = "", flags = "0"] = TRACEPARENT.exec(context?.traceparent ?? "") ?? [];
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- its successor is in the SDK, which an agent need not have
  const traceState = otel.createTraceState(context?.tracestate);
  const span = { traceId, spanId, traceFlags: parseInt(flags, 16), isRemote: true, traceState };
  // Without the span that is active here: a message without a context continues nothing.
  const active = otel.isSpanContextValid(span) ? otel.trace.setSpanContext(otel.ROOT_CONTEXT, span) : otel.ROOT_CONTEXT;
  return otel.context.with(active, run);
}

/** Returns the context if it is a valid one. */
export function validTrace(context: TraceContext | undefined): TraceContext | undefined {
  return context !== undefined && TRACEPARENT.test(context.traceparent) ? context : undefined;
}

function openTelemetry(): typeof OpenTelemetry | undefined {
  try {
    return createRequire(import.meta.url)("@opentelemetry/api") as typeof OpenTelemetry;
  } catch {
    return undefined; // it is not needed
  }
}
