package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import com.google.gson.JsonArray;
import com.google.gson.JsonParser;
import dev.baton.v1.AgentCard;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** A real broker as a process; BATON_BIN names the program. It can be killed and restarted on the same port. */
final class RealBroker implements AutoCloseable {
    /** The time limit of a wait for something that must happen, below that of a test. It only ends a test that hangs. */
    static final long PATIENCE_SECONDS = 120;
    private static final String BATON = System.getenv("BATON_BIN");

    private final Path folder;
    private final Path data;
    private final List<String> command = new ArrayList<>();
    private final HeldPort port = new HeldPort();
    final String server = port.address();
    private Process process;

    RealBroker(Path folder) throws IOException {
        this.folder = folder;
        this.data = folder.resolve("data");
        command.addAll(List.of(BATON, "dev", "--data", data.toString(), "--listen", server));
    }

    /** Restarts the same broker as `baton serve`, where only operators register agents, with more configuration. */
    void serve(String more) throws Exception {
        stop();
        Path config = folder.resolve("broker.toml");
        Path tls = data.resolve("tls");
        Files.writeString(
                config,
                """
                listen = "%s"
                data = "%s"
                [tls]
                certificate = "%s"
                key = "%s"
                %s
                """
                        .formatted(server, data, tls.resolve("server.pem"), tls.resolve("server.key"), more));
        command.clear();
        command.addAll(List.of(BATON, "serve", "--config", config.toString()));
        start();
    }

    RealBroker start() throws Exception {
        Path address = data.resolve("address");
        Files.deleteIfExists(address);
        process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve("broker.log").toFile()))
                .start();
        until("the broker is ready", () -> {
            if (!process.isAlive()) {
                fail(Files.readString(folder.resolve("broker.log")));
            }
            return Files.exists(address) && !Files.readString(address).isBlank();
        });
        return this;
    }

    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws InterruptedException, IOException {
        stop();
        port.close();
    }

    void stop() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
            kill();
        }
    }

    Path ca() {
        return data.resolve("tls").resolve("ca.pem");
    }

    String operatorToken() throws IOException {
        return Files.readString(data.resolve("operator.token")).strip();
    }

    /** Returns a builder for an agent of this broker, with a new key. */
    AgentBuilder agent(String id) {
        return Agent.builder().server(server).caFile(ca()).id(id).key(Keys.generate());
    }

    /** Returns a registered and connected agent of this broker, with a new key. */
    static Agent begin(AgentBuilder from, String... types) throws Exception {
        Agent agent = from.build();
        try {
            agent.register(AgentCard.newBuilder().addAllAgentTypes(List.of(types)).build());
            agent.connect();
            return agent;
        } catch (BatonException e) {
            agent.close();
            throw e;
        }
    }

    JsonArray deadLetters() throws Exception {
        return JsonParser.parseString(cli("dlq", "list", "-o", "json")).getAsJsonArray();
    }

    String invite(String agentId) throws Exception {
        return JsonParser.parseString(cli("agent", "invite", "--for", agentId, "-o", "json"))
                .getAsJsonObject()
                .get("invitation")
                .getAsString();
    }

    private String cli(String... arguments) throws Exception {
        List<String> whole = new ArrayList<>(List.of(BATON));
        whole.addAll(List.of(arguments));
        whole.addAll(List.of("--server", server, "--ca", ca().toString(), "--token", operatorToken()));
        return run(new ProcessBuilder(whole).redirectError(ProcessBuilder.Redirect.INHERIT));
    }

    /** Runs a command, which must succeed, and returns what it prints. */
    static String run(ProcessBuilder command) throws Exception {
        Process running = command.start();
        limit(running);
        String text = new String(running.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, running.waitFor(), () -> command.command() + ": " + text);
        return text;
    }

    /**
     * Kills a process that runs for longer than the patience, so that its output ends. One that has ended is left alone: a kill
     * closes its output, which may not be read yet.
     */
    static void limit(Process running) {
        running.onExit()
                .orTimeout(PATIENCE_SECONDS, TimeUnit.SECONDS)
                .exceptionally(late -> running.destroyForcibly());
    }

    /** Waits for a latch. */
    static void await(CountDownLatch latch) throws InterruptedException {
        assertTrue(latch.await(PATIENCE_SECONDS, TimeUnit.SECONDS), "not in time");
    }

    /** Waits for the next element of a queue. */
    static <A> A next(BlockingQueue<A> queue) throws InterruptedException {
        A next = queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(next, "nothing came");
        return next;
    }

    static void until(String what, Callable<Boolean> holds) throws Exception {
        long deadlineNanos = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!holds.call()) {
            if (System.nanoTime() > deadlineNanos) {
                fail("not in time: " + what);
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }
}
