package dev.baton;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;

/**
 * A port that stays this test's own while no broker listens on it. The system gives a port in use to nobody who asks for any port,
 * neither to a listener nor to a connection. A connection from the port keeps it in use, and a broker that names it can listen
 * there (both with SO_REUSEADDR).
 */
final class HeldPort implements AutoCloseable {
    private final Socket near = new Socket();
    private final Socket far;

    HeldPort() throws IOException {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        try (ServerSocket listener = new ServerSocket(0, 1, loopback)) {
            near.setReuseAddress(true);
            near.bind(new InetSocketAddress(loopback, 0));
            near.connect(listener.getLocalSocketAddress());
            far = listener.accept();
        }
    }

    String address() {
        return "127.0.0.1:" + near.getLocalPort();
    }

    @Override
    public void close() throws IOException {
        near.close();
        far.close();
    }
}
