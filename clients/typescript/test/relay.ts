/** A TCP relay before a broker, that can do to its connections what networks do. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class Relay {
  readonly #server: Server;
  #connections: Socket[] = [];

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

  close(): void {
    this.#server.close();
    for (const connection of this.#connections.splice(0)) connection.destroy();
  }
}
