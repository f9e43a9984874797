/** A TCP relay before a broker that can silence and reset its connections. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class Relay {
  readonly #server: Server;
  #connections: Socket[] = [];
  /** The number of next connections that are silent from the start. */
  #silent = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  /**
   * Starts a relay before a broker. Each time the broker has sent `resetAfter` more pieces, the relay resets the client's
   * connection.
   */
  static async start(broker: string, resetAfter = Infinity): Promise<Relay> {
    const [host = "", port = ""] = broker.split(":");
    let pieces = 0;
    const server = createServer({ noDelay: true }, (client) => {
      const onward = connect({ host, port: Number(port), noDelay: true });
      relay.#connections.push(client, onward);
      client.on("error", () => onward.destroy());
      onward.on("error", () => client.destroy());
      if (relay.#silent > 0) {
        relay.#silent--;
        return;
      }
      client.pipe(onward);
      onward.pipe(client);
      onward.on("data", () => {
        // The piece itself is already in flight: the client reads it and then the reset.
        if (++pieces % resetAfter === 0) client.resetAndDestroy();
      });
    });
    const relay = new Relay(server);
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return relay;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Silences the present connections, which stay open, and this number of next ones. */
  fallSilent(further: number): void {
    this.#silent = further;
    for (const connection of this.#connections) {
      connection.unpipe();
      connection.pause();
    }
  }

  close(): void {
    this.#server.close();
    for (const connection of this.#connections.splice(0)) connection.destroy();
  }
}
