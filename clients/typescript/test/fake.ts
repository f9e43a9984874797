/** A broker in this process, for what a real one does not show: the frames of a session, and answers at will. */
import { once } from "node:events";
import { createServer, type Http2Server } from "node:http2";
import type { AddressInfo } from "node:net";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { type AgentOptions, generateKey, v1 } from "../src/index.js";
import { StatusSchema } from "../src/gen/google/rpc/status_pb.js";
import { Queue } from "../src/queue.js";
import { unique } from "./broker.js";

type Answer = MessageInitShape<typeof v1.ConnectResponseSchema>["response"];

export class FakeBroker {
  /** The frames of all sessions, in order. */
  readonly frames = new Queue<v1.ConnectRequest>();
  #server: Http2Server | undefined;
  readonly #sessions = new Set<Queue<v1.ConnectResponse>>();

  /** `refuses` are the kinds of frames that it answers with UNIMPLEMENTED. `more` adds calls. */
  static async start(refuses: readonly string[] = [], more: (router: ConnectRouter) => unknown = () => undefined): Promise<FakeBroker> {
    const broker = new FakeBroker();
    const routes = (router: ConnectRouter): void => {
      router.service(v1.BrokerService, { connect: (requests) => broker.#connect(requests, refuses) });
      more(router);
    };
    const server = createServer(connectNodeAdapter({ routes }));
    broker.#server = server;
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return broker;
  }

  /** The options of an agent that needs no proof of its identity. */
  options(name: string): AgentOptions {
    const { port } = this.#server?.address() as AddressInfo;
    return { server: `http://127.0.0.1:${port}`, agentId: unique(name), key: generateKey(), token: "token" };
  }

  /** Ends all sessions, as a broker that stops. */
  endSessions(): void {
    for (const session of this.#sessions) session.close();
  }

  stop(): void {
    this.endSessions();
    this.#server?.close();
  }

  async *#connect(requests: AsyncIterable<v1.ConnectRequest>, refuses: readonly string[]): AsyncGenerator<v1.ConnectResponse> {
    const answers = new Queue<v1.ConnectResponse>();
    this.#sessions.add(answers);
    const answer = (requestId: bigint, response: Answer): void => {
      answers.push(create(v1.ConnectResponseSchema, { requestId, ...(response && { response }) }));
    };
    answer(0n, { case: "welcome", value: { heartbeatInterval: durationFromMs(60_000), ackWait: durationFromMs(30_000) } });
    const read = async (): Promise<void> => {
      for await (const frame of requests) {
        this.frames.push(frame);
        if (frame.requestId === 0n) continue;
        const isRefused = refuses.includes(frame.request.case ?? "");
        const error = create(StatusSchema, { code: Code.Unimplemented, message: "refused" });
        answer(frame.requestId, isRefused ? { case: "error", value: error } : { case: "credited", value: {} });
      }
    };
    void read().catch(() => undefined).finally(() => {
      answers.close();
    });
    yield* answers;
    this.#sessions.delete(answers);
  }
}
