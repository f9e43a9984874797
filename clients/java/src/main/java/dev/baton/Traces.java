package dev.baton;

import dev.baton.v1.TraceContext;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;
import io.opentelemetry.context.propagation.TextMapSetter;
import java.util.List;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * The trace context of messages: what a message sent now carries, and what the listener of a delivery continues. Where
 * {@code io.opentelemetry:opentelemetry-api} is on the class path, it is the current span of OpenTelemetry. Otherwise it
 * is passed on as it came. It belongs to a thread.
 */
public final class Traces {
    private static final Pattern TRACEPARENT =
            Pattern.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}");
    private static final ThreadLocal<TraceContext> CONTINUED = new ThreadLocal<>();
    private static final boolean HAS_OPEN_TELEMETRY = hasOpenTelemetry();

    private Traces() {}

    /** The end of a continued context. {@link #close} restores what was there before, on the same thread. */
    @FunctionalInterface
    public interface Scope extends AutoCloseable {
        @Override
        void close();
    }

    /** Returns the context that a message sent now by this thread carries: the current span, or what is continued. */
    public static Optional<TraceContext> current() {
        TraceContext span = HAS_OPEN_TELEMETRY ? Spans.current() : CONTINUED.get();
        return Optional.ofNullable(span).filter(Traces::isValid);
    }

    /**
     * Continues a context, for example that of a delivery, until the scope is closed: the messages that this thread sends
     * and the spans that it begins belong to it. Empty: they belong to no trace.
     */
    public static Scope begin(Optional<TraceContext> context) {
        TraceContext valid = context.filter(Traces::isValid).orElse(null);
        if (HAS_OPEN_TELEMETRY) {
            return Spans.begin(valid);
        }
        TraceContext before = CONTINUED.get();
        CONTINUED.set(valid);
        return () -> CONTINUED.set(before);
    }

    static boolean isValid(TraceContext context) {
        return TRACEPARENT.matcher(context.getTraceparent()).matches();
    }

    private static boolean hasOpenTelemetry() {
        try {
            Class.forName("io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator");
            return true;
        } catch (ClassNotFoundException e) {
            return false; // it is not needed
        }
    }

    /** What needs OpenTelemetry. Without it this class is never loaded. */
    private static final class Spans {
        private static final TextMapSetter<TraceContext.Builder> SETTER = (carrier, key, value) -> {
            if (key.equals("traceparent")) {
                carrier.setTraceparent(value);
            } else if (key.equals("tracestate")) {
                carrier.setTracestate(value);
            }
        };
        private static final TextMapGetter<TraceContext> GETTER = new TextMapGetter<>() {
            @Override
            public Iterable<String> keys(TraceContext carrier) {
                return List.of("traceparent", "tracestate");
            }

            @Override
            public String get(TraceContext carrier, String key) {
                return key.equals("traceparent") ? carrier.getTraceparent() : carrier.getTracestate();
            }
        };

        static TraceContext current() {
            TraceContext.Builder carrier = TraceContext.newBuilder();
            W3CTraceContextPropagator.getInstance().inject(Context.current(), carrier, SETTER);
            return carrier.build();
        }

        static Scope begin(TraceContext context) {
            // Without the span that is current here: a message without a context continues nothing.
            Context next = context == null
                    ? Context.root()
                    : W3CTraceContextPropagator.getInstance().extract(Context.root(), context, GETTER);
            return next.makeCurrent()::close;
        }
    }
}
