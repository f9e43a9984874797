package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.Info;
import dev.baton.v1.TraceContext;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.context.Scope;
import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** One trace over all agents, with OpenTelemetry and without it. */
class TracesTest {
    private static final String PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    private static final TraceContext CONTEXT = TraceContext.newBuilder()
            .setTraceparent(PARENT)
            .setTracestate("rojo=1")
            .build();

    /** The context of a message that is made now. Public, for a loader of its own. */
    public static final class Carried implements Callable<List<String>> {
        @Override
        public List<String> call() {
            List<String> seen = new ArrayList<>();
            seen.add(sent());
            Traces.Scope outer = Traces.begin(Optional.of(CONTEXT));
            seen.add(sent());
            Traces.Scope inner = Traces.begin(Optional.empty());
            seen.add(sent());
            inner.close();
            seen.add(sent());
            outer.close();
            seen.add(sent());
            return seen;
        }
    }

    private static String sent() {
        TraceContext context = Envelopes.make(
                        Info.getDefaultInstance(), "a", "b", Envelopes.About.NOTHING, Instant.EPOCH)
                .getTraceContext();
        return context.getTraceparent() + " " + context.getTracestate();
    }

    @Test
    void aMessageCarriesTheContextThatIsContinued() {
        assertEquals(List.of(" ", PARENT + " rojo=1", " ", PARENT + " rojo=1", " "), new Carried().call());
    }

    @Test
    void openTelemetryIsNotNeeded() throws Exception {
        List<URL> urls = new ArrayList<>();
        String path = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        for (String entry : path.split(File.pathSeparator)) {
            if (!entry.contains("opentelemetry")) {
                urls.add(Path.of(entry).toUri().toURL());
            }
        }
        try (URLClassLoader loader =
                new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader())) {
            assertThrows(ClassNotFoundException.class, () -> loader.loadClass("io.opentelemetry.api.trace.Span"));
            Callable<?> carried = (Callable<?>)
                    loader.loadClass(Carried.class.getName()).getConstructor().newInstance();
            assertEquals(new Carried().call(), carried.call());
        }
    }

    @Test
    void aContextThatIsNotValidCountsAsNone() {
        String zero = "00-" + "0".repeat(32) + "-" + "1".repeat(16) + "-01";
        for (String parent :
                List.of("", "00-aa-bb-01", PARENT + "-x", PARENT.toUpperCase(), PARENT.replace("00-", "ff-"), zero)) {
            assertFalse(Traces.isValid(CONTEXT.toBuilder().setTraceparent(parent).build()), parent);
        }
    }

    @Test
    void aMessageCarriesTheCurrentSpanOfOpenTelemetry() {
        SpanContext span =
                SpanContext.create("5".repeat(32), "7".repeat(16), TraceFlags.getSampled(), TraceState.getDefault());
        Traces.Scope trace = Traces.begin(Optional.of(CONTEXT));
        SpanContext remote = Span.current().getSpanContext();
        assertEquals(PARENT, "00-" + remote.getTraceId() + "-" + remote.getSpanId() + "-01");
        Scope made = Span.wrap(span).makeCurrent();
        assertEquals("00-" + "5".repeat(32) + "-" + "7".repeat(16) + "-01 ", sent());
        made.close();
        assertEquals(PARENT + " rojo=1", sent());
        trace.close();
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
    void aListenerContinuesTheContextOfItsDelivery(@TempDir Path folder) throws Exception {
        BlockingQueue<String> continued = new LinkedBlockingQueue<>();
        BlockingQueue<String> answered = new LinkedBlockingQueue<>();
        AtomicReference<Agent> bobs = new AtomicReference<>();
        MessageListener<Info> answer = delivery -> {
            continued.add(parentOf(delivery.traceContext()) + " " + parentOf(Traces.current()));
            bobs.get().send("alice", Envelopes.About.NOTHING, Info.getDefaultInstance());
        };
        MessageListener<Info> read = delivery ->
                answered.add(delivery.envelope().getTraceContext().getTraceparent());
        try (RealBroker broker = new RealBroker(folder).start();
                Agent alice = RealBroker.begin(broker.agent("alice").on(Info.class, read));
                Agent bob = RealBroker.begin(broker.agent("bob").on(Info.class, answer))) {
            bobs.set(bob);
            Traces.Scope trace = Traces.begin(Optional.of(CONTEXT));
            alice.send(bob.id(), Envelopes.About.NOTHING, Info.getDefaultInstance());
            trace.close();
            assertEquals(PARENT + " " + PARENT, next(continued));
            assertEquals(PARENT, next(answered));
            alice.send(bob.id(), Envelopes.About.NOTHING, Info.getDefaultInstance());
            assertEquals("none none", next(continued));
            assertEquals("", next(answered));
        }
    }

    private static String parentOf(Optional<TraceContext> context) {
        return context.map(TraceContext::getTraceparent).orElse("none");
    }

    private static String next(BlockingQueue<String> queue) throws InterruptedException {
        return queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }
}
