package dev.baton;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.tomlj.Toml;
import org.tomlj.TomlParseResult;

/** The broker and the agent that environment variables, or a profile of the command line, name. */
final class Environment {
    private static final String SERVER = "127.0.0.1:22866";
    /** The token, the certificate and the output format are the command line's alone: an agent proves itself by its key. */
    private static final Set<String> PROFILE_KEYS =
            Set.of("server", "ca", "id", "key", "key_id", "output", "token_file", "cert", "cert_key");
    // A name becomes part of a path, so it must not lead out of the folder.
    private static final Pattern PROFILE_NAME = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}");
    private static final Pattern ADDRESS =
            Pattern.compile("(?:http://)?(?:\\[[0-9A-Fa-f:.]+]|[^\\s:/@\\[\\]]+):(\\d{1,5})");
    private static final Pattern HOST_AND_PORT = Pattern.compile("(.+):(\\d{1,5})");
    private static final Pattern NUMERIC_HOST = Pattern.compile("\\d{1,3}(\\.\\d{1,3}){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*");
    private static final Set<PosixFilePermission> OF_OTHERS = Set.of(
            PosixFilePermission.GROUP_READ,
            PosixFilePermission.GROUP_WRITE,
            PosixFilePermission.GROUP_EXECUTE,
            PosixFilePermission.OTHERS_READ,
            PosixFilePermission.OTHERS_WRITE,
            PosixFilePermission.OTHERS_EXECUTE);

    private final Map<String, String> variables;
    private final Path folder;
    private final String profilePath;
    private final Map<String, String> profile;

    /** Reads the profile. Relative paths are of the folder, as is the data folder of a local broker. */
    Environment(Map<String, String> variables, Path folder) throws IOException {
        this.variables = variables;
        this.folder = folder;
        Path file = chosenProfile();
        this.profilePath = file == null ? "" : file.toString();
        this.profile = file == null ? Map.of() : read(file);
    }

    AgentBuilder builder() throws IOException {
        String server = server();
        AgentBuilder builder = Agent.builder().server(server);
        identify(builder);
        trust(builder, server);
        String certificate = variable("BATON_CERT");
        String key = variable("BATON_CERT_KEY");
        if (certificate.isEmpty() != key.isEmpty()) {
            throw new IllegalStateException("BATON_CERT and BATON_CERT_KEY go together: set both or neither");
        }
        if (!certificate.isEmpty()) {
            Path certificateFile = folder.resolve(certificate);
            Path keyFile = folder.resolve(key);
            text("BATON_CERT", certificateFile, "");
            text("BATON_CERT_KEY", keyFile, "");
            builder.clientCertificate(certificateFile, keyFile);
        }
        String token = variable("BATON_TOKEN").strip();
        return token.isEmpty() ? builder : builder.token(token);
    }

    /** Returns the file that BATON_PROFILE or `baton profile use` has chosen; null without a choice. */
    private Path chosenProfile() throws IOException {
        Optional<Path> profiles = profiles();
        String name = variable("BATON_PROFILE");
        String source = "BATON_PROFILE";
        if (name.isEmpty()) {
            Path current = profiles.map(path -> path.resolve("current")).orElse(null);
            if (current == null || !Files.exists(current)) {
                return null;
            }
            source = current.toString();
            name = Files.readString(current).strip();
        }
        if (!PROFILE_NAME.matcher(name).matches()) {
            throw new IllegalStateException(source + ": \"" + name
                    + "\" is not a name: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit");
        }
        Path known = profiles.orElseThrow(() ->
                new IllegalStateException("there is no folder for profiles: set HOME or XDG_CONFIG_HOME"));
        Path file = known.resolve(name + ".toml");
        if (!Files.exists(file)) {
            throw new IllegalStateException(source + ": no profile has the name " + name + " in " + known
                    + "; `baton profile list` lists them");
        }
        return file;
    }

    /** Returns the folder of all profiles. */
    private Optional<Path> profiles() {
        Path config = Path.of(variable("XDG_CONFIG_HOME"));
        if (!config.isAbsolute()) {
            Path home = Path.of(variable("HOME"));
            if (!home.isAbsolute()) {
                return Optional.empty();
            }
            config = home.resolve(".config");
        }
        return Optional.of(config.resolve("baton").resolve("profiles"));
    }

    private static Map<String, String> read(Path file) throws IOException {
        // The file decides where this program connects. Windows has no such modes.
        if (file.getFileSystem().supportedFileAttributeViews().contains("posix")
                && Files.getPosixFilePermissions(file).stream().anyMatch(OF_OTHERS::contains)) {
            throw new IOException("other users can read or change " + file + "; run chmod 600 " + file);
        }
        TomlParseResult parsed = Toml.parse(file);
        if (parsed.hasErrors()) {
            throw new IOException(file + ": " + parsed.errors().get(0));
        }
        Map<String, String> values = new HashMap<>();
        for (Map.Entry<String, Object> entry : parsed.toMap().entrySet()) {
            // A misspelt key would leave a default in force, for example another broker.
            if (!PROFILE_KEYS.contains(entry.getKey())) {
                throw new IOException(file + ": this version of the client does not know the key " + entry.getKey());
            }
            if (!(entry.getValue() instanceof String value)) {
                throw new IOException(file + ": " + entry.getKey() + " must be a text");
            }
            values.put(entry.getKey(), value);
        }
        return values;
    }

    private String server() {
        String text = variable("BATON_SERVER");
        String source = "BATON_SERVER";
        if (text.isEmpty()) {
            text = saved("server");
            source = "the server of " + profilePath;
        }
        if (text.isEmpty()) {
            return SERVER;
        }
        String address = text.replaceFirst("^https://", "").replaceFirst("/+$", "");
        Matcher matcher = ADDRESS.matcher(address);
        int port = matcher.matches() ? Integer.parseInt(matcher.group(1)) : 0;
        if (port < 1 || port > 65535) {
            throw new IllegalStateException(
                    source + ": \"" + text + "\" is not HOST:PORT, for example " + SERVER);
        }
        return address;
    }

    /** Sets the agent and its key: both of the environment or both of the profile, for a key is of one agent. */
    private void identify(AgentBuilder builder) throws IOException {
        String id = variable("BATON_AGENT_ID");
        String key = variable("BATON_AGENT_KEY");
        String keyId = variable("BATON_AGENT_KEY_ID");
        String source = "BATON_AGENT_KEY";
        if (id.isEmpty() && !key.isEmpty()) {
            throw new IllegalStateException(
                    "BATON_AGENT_KEY is set and BATON_AGENT_ID is not: set the id of the agent that has the key");
        }
        if (!id.isEmpty() && key.isEmpty()) {
            throw new IllegalStateException(
                    "BATON_AGENT_ID is set and BATON_AGENT_KEY is not: set the file of the agent's private key");
        }
        if (id.isEmpty()) {
            id = saved("id");
            key = saved("key");
            keyId = keyId.isEmpty() ? saved("key_id") : keyId;
            source = "the key of " + profilePath;
        }
        if (id.isEmpty() || key.isEmpty()) {
            String problem =
                    profilePath.isEmpty() ? "no agent is named" : "the profile " + profilePath + " names no agent";
            throw new IllegalStateException(problem + ": set BATON_AGENT_ID and BATON_AGENT_KEY, or choose a profile with"
                    + " an agent, `baton profile add NAME --id AGENT --key FILE --use`");
        }
        Path file = folder.resolve(key);
        text(source, file, "; `baton keygen --out " + file + "` creates a key");
        try {
            builder.id(id).key(Keys.load(file));
        } catch (IOException e) {
            throw new IOException(source + ": " + e.getMessage(), e);
        }
        if (!keyId.isEmpty()) {
            builder.keyId(keyId);
        }
    }

    /** Sets the CA, unless the JDK's CAs are to be trusted. */
    private void trust(AgentBuilder builder, String server) throws IOException {
        Path data = folder.resolve("baton-data");
        Path local = data.resolve("tls").resolve("ca.pem");
        Path file;
        String source;
        if (!variable("BATON_CA").isEmpty()) {
            file = folder.resolve(variable("BATON_CA"));
            source = "BATON_CA";
        } else if (!saved("ca").isEmpty()) {
            file = folder.resolve(saved("ca"));
            source = "the ca of " + profilePath;
        } else if (Files.exists(local) && isAddressOf(data, server)) {
            file = local;
            source = "the CA of the broker that runs here";
        } else {
            return;
        }
        String pem = text(source, file, "; `baton dev` creates a CA in its data folder, tls/ca.pem");
        if (!pem.contains("-----BEGIN CERTIFICATE-----")) {
            throw new IOException(source + ": " + file + " has no certificate");
        }
        builder.caFile(file);
    }

    /**
     * Whether HOST:PORT is the address of the broker that runs on this data folder. No name except localhost is resolved,
     * because it may name another machine.
     */
    private static boolean isAddressOf(Path data, String server) throws IOException {
        Path file = data.resolve("address");
        Matcher own = HOST_AND_PORT.matcher(Files.exists(file) ? Files.readString(file).strip() : "");
        Matcher asked = HOST_AND_PORT.matcher(server);
        if (!own.matches() || !asked.matches() || Integer.parseInt(own.group(2)) != Integer.parseInt(asked.group(2))) {
            return false;
        }
        InetAddress ownAddress = numeric(own.group(1));
        if (ownAddress == null) {
            return false;
        }
        if (asked.group(1).equals("localhost")) {
            return ownAddress.isLoopbackAddress() || ownAddress.isAnyLocalAddress();
        }
        InetAddress address = numeric(asked.group(1));
        return address != null
                && (address.equals(ownAddress) || ownAddress.isAnyLocalAddress() && address.isLoopbackAddress());
    }

    /** Returns the address that a number names, with or without brackets; null for a name. */
    private static InetAddress numeric(String host) {
        String bare = host.replaceAll("^\\[|]$", "");
        try {
            return NUMERIC_HOST.matcher(bare).matches() ? InetAddress.getByName(bare) : null;
        } catch (UnknownHostException e) {
            return null;
        }
    }

    /** Reads a file. An error begins with what named the file; that of a missing file ends with the remedy. */
    private static String text(String source, Path file, String remedy) throws IOException {
        try {
            return Files.readString(file);
        } catch (NoSuchFileException e) {
            throw new IOException(source + ": there is no file " + file + remedy, e);
        } catch (IOException e) {
            throw new IOException(source + ": " + file + " cannot be read: " + e, e);
        }
    }

    /** Returns a variable; empty if it is not set. */
    private String variable(String name) {
        return variables.getOrDefault(name, "");
    }

    /** Returns a value of the profile; empty without one. */
    private String saved(String key) {
        return profile.getOrDefault(key, "");
    }
}
