package dev.baton;

import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Agents from the environment, and from the profiles that the command line writes. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class EnvironmentTest {
    @TempDir
    Path folder;

    private RealBroker broker;
    private Path work;
    private Map<String, String> variables;

    /** A program that connects by its environment, and prints its id. */
    static final class Program {
        public static void main(String[] arguments) throws Exception {
            try (Agent agent = begin(AgentBuilder.fromEnv())) {
                System.out.println(agent.id());
            }
        }
    }

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        work = Files.createDirectory(folder.resolve("work"));
        variables = new HashMap<>(Map.of("XDG_CONFIG_HOME", folder.toString()));
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    private AgentBuilder builder() throws IOException {
        return new Environment(variables, work).builder();
    }

    private AgentBuilder builderWith(Map<String, String> more) throws IOException {
        Map<String, String> all = new HashMap<>(variables);
        all.putAll(more);
        return new Environment(all, work).builder();
    }

    /** Runs a command with the variables as its whole environment of baton, and returns what it prints. */
    private String run(String... command) throws Exception {
        ProcessBuilder builder = new ProcessBuilder(command).directory(work.toFile()).redirectErrorStream(true);
        builder.environment().keySet().removeIf(name -> name.startsWith("BATON_"));
        // Java would print that it has read it.
        builder.environment().remove("JDK_JAVA_OPTIONS");
        builder.environment().putAll(variables);
        return RealBroker.run(builder).strip();
    }

    private void cli(String... arguments) throws Exception {
        String[] command = new String[arguments.length + 1];
        command[0] = System.getenv("BATON_BIN");
        System.arraycopy(arguments, 0, command, 1, arguments.length);
        run(command);
    }

    private String program() throws Exception {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        return run(java, "-cp", System.getProperty("java.class.path"), Program.class.getName());
    }

    private Path key(String name) throws Exception {
        Path file = folder.resolve(name + ".pem");
        cli("keygen", "--out", file.toString());
        return file;
    }

    private void profile(String name, Path key, String... more) throws Exception {
        String ca = broker.ca().toString();
        List<String> command = new ArrayList<>(List.of(
                "profile", "add", name, "--server", broker.server, "--ca", ca, "--id", name, "--key", key.toString()));
        command.addAll(List.of(more));
        cli(command.toArray(String[]::new));
    }

    private void write(String name, String text, String mode) throws IOException {
        Path file = folder.resolve("baton").resolve("profiles").resolve(name);
        Files.writeString(file, text);
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(mode));
    }

    private static void assertSameKey(Path file, AgentBuilder builder) throws IOException {
        assertArrayEquals(Keys.publicBytes(Keys.load(file)), Keys.publicBytes(builder.key));
    }

    @Test
    void anAgentConnectsByTheProfileInUse() throws Exception {
        Path bobs = key("bob");
        profile("bob", bobs, "--key-id", "k7", "--format", "json", "--use");
        profile("carol", key("carol"));
        variables.put("BATON_SERVER", "");
        AgentBuilder bob = builder();
        assertEquals(List.of(broker.server, "bob", "k7"), List.of(bob.server, bob.id, bob.keyId));
        assertEquals(broker.ca(), bob.caFile);
        assertSameKey(bobs, bob);
        begin(bob).close();
        variables.remove("BATON_SERVER");
        assertEquals("bob", program());
        variables.put("BATON_PROFILE", "carol");
        AgentBuilder carol = builder();
        assertEquals(List.of("carol", "k1"), List.of(carol.id, carol.keyId));
        assertEquals("carol", program());
    }

    @Test
    void theEnvironmentTakesPrecedenceOverTheProfile() throws Exception {
        Path bobs = key("bob");
        Path carols = key("carol");
        cli("profile", "add", "bob", "--server", "broker.example:1", "--id", "bob", "--key", bobs.toString(), "--key-id",
                "k7", "--use");
        Files.delete(bobs); // it is not read
        variables.putAll(Map.of(
                "BATON_SERVER", "https://" + broker.server + "/",
                "BATON_CA", broker.ca().toString(),
                "BATON_AGENT_ID", "carol",
                "BATON_AGENT_KEY", carols.toString()));
        AgentBuilder carol = builder();
        // The name of the profile's key does not belong to this one.
        assertEquals(List.of(broker.server, "carol", "k1", ""), List.of(carol.server, carol.id, carol.keyId, carol.token));
        assertSameKey(carols, carol);
        begin(carol).close();
        AgentBuilder more = builderWith(Map.of("BATON_AGENT_KEY_ID", "k2", "BATON_TOKEN", " a token\n"));
        assertEquals(List.of("k2", "a token"), List.of(more.keyId, more.token));
        var missing = assertThrows(IOException.class, () -> builderWith(Map.of("BATON_CA", "/none/ca.pem")));
        assertTrue(missing.getMessage().matches("BATON_CA: .*/none/ca.pem; `baton dev` .*"), missing.getMessage());
    }

    @Test
    void theBrokerOfTheFolderIsTrustedByItsOwnCa() throws Exception {
        variables.putAll(Map.of("BATON_AGENT_ID", "bob", "BATON_AGENT_KEY", key("bob").toString()));
        AgentBuilder away = builder();
        assertEquals("127.0.0.1:22866", away.server);
        assertNull(away.caFile);
        Files.createSymbolicLink(work.resolve("baton-data"), folder.resolve("data"));
        String port = broker.server.substring(broker.server.indexOf(':') + 1);
        variables.put("BATON_SERVER", "localhost:" + port);
        assertEquals("bob", program());
        List<String> others =
                List.of("127.0.0.1:1", "127.0.0.2:" + port, "broker.example:" + port, "http://127.0.0.1:" + port);
        for (String other : others) {
            AgentBuilder builder = builderWith(Map.of("BATON_SERVER", other));
            assertEquals(other, builder.server);
            assertNull(builder.caFile, other);
        }
    }

    @Test
    void aClientCertificateOfTheEnvironmentIsUsed() throws Exception {
        Path tls = broker.ca().getParent();
        variables.putAll(Map.of(
                "BATON_AGENT_ID", "bob",
                "BATON_AGENT_KEY", key("bob").toString(),
                "BATON_CERT", tls.resolve("server.pem").toString(),
                "BATON_CERT_KEY", tls.resolve("server.key").toString()));
        AgentBuilder builder = builder();
        assertEquals(tls.resolve("server.pem"), builder.certificateFile);
        assertEquals(tls.resolve("server.key"), builder.certificateKeyFile);
        var half = assertThrows(IllegalStateException.class, () -> builderWith(Map.of("BATON_CERT_KEY", "")));
        assertEquals("BATON_CERT and BATON_CERT_KEY go together: set both or neither", half.getMessage());
        var missing = assertThrows(IOException.class, () -> builderWith(Map.of("BATON_CERT", "/none.pem")));
        assertEquals("BATON_CERT: there is no file /none.pem", missing.getMessage());
    }

    @Test
    void aGivenTokenProvesTheIdentity() throws Exception {
        AgentBuilder bobs = broker.agent("bob");
        try (Agent first = begin(bobs)) {
            // It has another key: without the token the broker would refuse it.
            AgentBuilder other = broker.agent("bob").token(first.proveIdentity());
            try (Agent second = other.connect()) {
                assertEquals("bob", second.getAgent("bob").getCard().getAgentId());
            }
            try (Agent third = broker.agent("bob").token("wrong").build()) {
                var refused = assertThrows(BatonException.class, third::connect);
                assertEquals("TOKEN_INVALID", refused.reason());
                refused = assertThrows(BatonException.class, () -> third.getAgent("bob"));
                assertEquals("TOKEN_INVALID", refused.reason());
            }
        }
    }

    @Test
    void aFaultOfTheEnvironmentNamesItsRemedy() throws Exception {
        String key = key("bob").toString();
        String ca = broker.ca().toString();
        cli("profile", "add", "nobody", "--server", "127.0.0.1:1");
        write("open.toml", "server = \"127.0.0.1:1\"\n", "rw-r--r--");
        write("misspelt.toml", "sever = \"127.0.0.1:1\"\n", "rw-------");
        write("number.toml", "server = 1\n", "rw-------");
        write("broken.toml", "server = \n", "rw-------");
        write("gone.toml", "id = \"bob\"\nkey = \"/none/bob.pem\"\n", "rw-------");
        Map<Map<String, String>, String> faults = Map.ofEntries(
                Map.entry(Map.of(), "no agent is named: set BATON_AGENT_ID and BATON_AGENT_KEY, .*baton profile add.*"),
                Map.entry(Map.of("BATON_PROFILE", "nobody"), "the profile .*nobody\\.toml names no agent: set BATON_AGENT_ID.*"),
                Map.entry(Map.of("BATON_PROFILE", "prod"), "BATON_PROFILE: no profile has the name prod .*baton profile list.*"),
                Map.entry(Map.of("BATON_PROFILE", "../prod"), "BATON_PROFILE: \"../prod\" is not a name.*"),
                Map.entry(Map.of("BATON_PROFILE", "open"), ".*other users.*open\\.toml; run chmod 600 .*"),
                Map.entry(Map.of("BATON_PROFILE", "misspelt"), ".*misspelt\\.toml: .*the key sever"),
                Map.entry(Map.of("BATON_PROFILE", "number"), ".*number\\.toml: server must be a text"),
                Map.entry(Map.of("BATON_PROFILE", "broken"), ".*broken\\.toml: .*line 1.*"),
                Map.entry(Map.of("BATON_PROFILE", "gone"), "the key of .*gone\\.toml: .*/none/bob\\.pem; `baton keygen.*"),
                Map.entry(Map.of("BATON_AGENT_ID", "bob"), ".*BATON_AGENT_KEY is not.*"),
                Map.entry(Map.of("BATON_AGENT_KEY", key), ".*BATON_AGENT_ID is not.*"),
                Map.entry(Map.of("BATON_AGENT_ID", "bob", "BATON_AGENT_KEY", ca), "BATON_AGENT_KEY: .*ca\\.pem is not .*"),
                Map.entry(Map.of("BATON_SERVER", "broker.example"), "BATON_SERVER: \"broker.example\" is not HOST:PORT.*"),
                Map.entry(Map.of("BATON_SERVER", "broker.example:70000"), "BATON_SERVER: .*"),
                Map.entry(
                        Map.of("BATON_AGENT_ID", "bob", "BATON_AGENT_KEY", key, "BATON_CA", key),
                        "BATON_CA: .*bob\\.pem has no certificate"));
        faults.forEach((more, expected) -> {
            var fault = assertThrows(Exception.class, () -> builderWith(more), more.toString());
            assertTrue(fault instanceof IOException || fault instanceof IllegalStateException, fault.toString());
            assertTrue(fault.getMessage().matches(expected), more + ": " + fault.getMessage());
        });
    }
}
