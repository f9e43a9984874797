package dev.baton;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Base64;
import java.util.List;

/** Creates self-signed certificates with the JDK's keytool. */
final class Certificates {
    private Certificates() {}

    /** Writes a certificate with this subject alternative name, and its key, both PEM. */
    static void make(String alternativeName, Path certificate, Path key) throws Exception {
        Path store = certificate.resolveSibling(certificate.getFileName() + ".p12");
        Path keytool = Path.of(System.getProperty("java.home"), "bin", "keytool");
        List<String> command = List.of(
                keytool.toString(), "-genkeypair", "-keystore", store.toString(), "-storepass", "secret", "-alias",
                "one", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=test", "-ext",
                "san=" + alternativeName);
        RealBroker.run(new ProcessBuilder(command));
        KeyStore loaded = KeyStore.getInstance(store.toFile(), "secret".toCharArray());
        Files.writeString(certificate, pem("CERTIFICATE", loaded.getCertificate("one").getEncoded()));
        Files.writeString(key, pem("PRIVATE KEY", loaded.getKey("one", "secret".toCharArray()).getEncoded()));
    }

    private static String pem(String kind, byte[] bytes) {
        byte[] newline = "\n".getBytes(StandardCharsets.US_ASCII);
        String text = Base64.getMimeEncoder(64, newline).encodeToString(bytes);
        return "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n";
    }
}
