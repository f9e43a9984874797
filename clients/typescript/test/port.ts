/** Ports for brokers that are restarted. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** Both ends of the connections that hold ports. */
const ends: Socket[] = [];

/**
 * Returns the address of a port that stays this process's own while no broker listens on it. The system gives a port in use to
 * nobody who asks for any port, neither to a listener nor to a connection. A connection from the port keeps it in use, and a
 * broker that names it can listen there (both with SO_REUSEADDR).
 */
export async function heldPort(): Promise<string> {
  const server = createServer((far) => ends.push(far.unref())).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  // With an address of its own, the socket is bound first, with SO_REUSEADDR.
  const near = connect({ host: "127.0.0.1", port, localAddress: "127.0.0.1" });
  await Promise.all([once(near, "connect"), once(server, "connection")]);
  ends.push(near.unref());
  server.close();
  return `127.0.0.1:${near.localPort}`;
}
