package dev.baton;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A TCP relay before a broker that can fall silent: its connections stay open and carry no more bytes. */
final class Relay implements AutoCloseable {
    private final String broker;
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private volatile int firstThatFlows;

    Relay(String broker) throws IOException {
        this.broker = broker;
        threads.submit(this::accept);
    }

    String server() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Silences the connections that are open; later connections work. */
    void fallSilent() {
        firstThatFlows = sockets.size();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (Socket socket : sockets) {
            socket.close();
        }
        threads.shutdownNow();
    }

    private Void accept() throws IOException {
        String[] address = broker.split(":");
        while (true) {
            Socket near = listener.accept();
            Socket far = new Socket(address[0], Integer.parseInt(address[1]));
            int number = sockets.size();
            sockets.addAll(List.of(near, far));
            threads.submit(() -> pump(near, far, number));
            threads.submit(() -> pump(far, near, number));
        }
    }

    private Void pump(Socket from, Socket to, int number) throws IOException {
        InputStream in = from.getInputStream();
        OutputStream out = to.getOutputStream();
        byte[] data = new byte[65_536];
        for (int count = in.read(data); count >= 0 && number >= firstThatFlows; count = in.read(data)) {
            out.write(data, 0, count);
        }
        if (number >= firstThatFlows) {
            to.close();
        }
        return null;
    }
}
