/** A TCP relay before a broker, that can do to its connections what networks do. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class Relay {
  readonly #server: Server;
  #connections: Socket[] = [];
  /** How many of the next connections are silent from the first. */
  #silent = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  /** Starts one before a broker. Whenever that has sent `resetAfter` more pieces, the client's connection is reset. */
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
        // The piece itself is on its way already: the client finds it and then the reset.
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

  /** Passes nothing on any more on the connections that there are, which stay open, and on so many of the next ones. */
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
