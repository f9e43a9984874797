/** A real broker for tests; BATON_BIN names the program. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { Agent, type AgentOptions, BatonError, type Delivery, generateKey, type Payload } from "../src/index.js";
import { heldPort } from "./port.js";

/** The time limit of a wait for something that must happen. It only ends a test that hangs. */
export const PATIENCE_MS = 300_000;

/** The temporary folders of this test file. They are removed at the process's end, and the remaining brokers are killed. */
const root = mkdtempSync(join(tmpdir(), "baton-ts-"));
const running = new Set<ChildProcess>();
process.on("exit", () => {
  for (const broker of running) broker.kill("SIGKILL");
  rmSync(root, { recursive: true, force: true, maxRetries: 10 });
});

/** Creates a temporary folder. */
export function temporaryFolder(): string {
  return mkdtempSync(join(root, "test-"));
}

const certificates: { folder?: string } = {};

export class Broker {
  #process: ChildProcess | undefined;
  /** The path of its configuration file, if any. */
  #toml: string | undefined;

  private constructor(
    readonly data: string,
    readonly address: string,
  ) {}

  /** Starts a development broker; with `settings` one with a configuration file whose last section is [tls]. */
  static async start(settings?: string): Promise<Broker> {
    const folder = temporaryFolder();
    if (settings === undefined) {
      const broker = new Broker(folder, await heldPort());
      await broker.restart();
      certificates.folder ??= join(broker.data, "tls");
      return broker;
    }
    if (certificates.folder === undefined) await (await Broker.start()).stop();
    const broker = new Broker(join(folder, "data"), await heldPort());
    mkdirSync(broker.data);
    await broker.#run("serve", "--config", broker.#configure(folder, settings));
    return broker;
  }

  /** Restarts the broker on its folder and port. */
  async restart(): Promise<void> {
    if (this.#toml === undefined) return this.#run("dev", "--data", this.data, "--listen", this.address);
    return this.#run("serve", "--config", this.#toml);
  }

  /** Ends the broker as by a crash. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Stops the broker in order. */
  stop(): Promise<void> {
    return this.#end("SIGTERM");
  }

  /** Kills the broker and removes its folder. */
  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.data, { recursive: true, force: true });
  }

  get operatorToken(): string {
    return readFileSync(join(this.data, "operator.token"), "utf8").trim();
  }

  /** Returns the options of a new agent with this name; its id is made unique. */
  options(name: string): AgentOptions {
    const own = join(this.data, "tls");
    const ca = readFileSync(join(existsSync(own) ? own : (certificates.folder ?? ""), "ca.pem"));
    return { server: this.address, agentId: unique(name), key: generateKey(), ca, card: {} };
  }

  async #run(...args: string[]): Promise<void> {
    const bin = process.env["BATON_BIN"];
    if (!bin) throw new Error("BATON_BIN must name the baton program that the tests start");
    const file = join(this.data, "address");
    rmSync(file, { force: true });
    const broker = spawn(bin, args, {
      stdio: ["ignore", "ignore", "inherit"],
      env: { ...process.env, BATON_LOG: "error" },
    });
    running.add(broker);
    broker.once("exit", () => running.delete(broker));
    this.#process = broker;
    for (const until = Date.now() + PATIENCE_MS; Date.now() < until;) {
      if (existsSync(file) && readFileSync(file, "utf8").trim() === this.address) return;
      await wait(5);
    }
    throw new Error("the broker does not start");
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const broker = this.#process;
    if (broker?.exitCode !== null || broker.signalCode !== null) return;
    const ended = once(broker, "exit");
    broker.kill(signal);
    await ended;
  }

  #configure(folder: string, settings: string): string {
    const path = join(folder, "baton.toml");
    const tls = certificates.folder ?? "";
    const quoted = (text: string): string => JSON.stringify(text);
    const lines = [`listen = ${quoted(this.address)}`, `data = ${quoted(this.data)}`, settings];
    if (!settings.includes("[tls]")) lines.push("[tls]");
    lines.push(`certificate = ${quoted(join(tls, "server.pem"))}`, `key = ${quoted(join(tls, "server.key"))}`, "");
    writeFileSync(path, lines.join("\n"));
    this.#toml = path;
    return path;
  }
}

let count = 0;

export function unique(name: string): string {
  return `${name}-${process.pid}-${++count}`;
}

/** The agents that are closed at the end of a test. */
export class Agents {
  readonly #agents: Agent[] = [];

  constructor(readonly broker: () => Broker) {}

  async connect(options: AgentOptions): Promise<Agent> {
    const agent = await Agent.connect(options);
    this.#agents.push(agent);
    return agent;
  }

  async named(name: string): Promise<Agent> {
    return this.connect(this.broker().options(name));
  }

  close(): void {
    for (const agent of this.#agents.splice(0)) agent.close();
  }
}

/** Matches the broker's refusal with this reason, for assert.rejects. */
export function refusal(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof BatonError && error.reason === reason;
}

/** Yields an agent's mail, and acks each delivery. */
export class Mail {
  readonly #deliveries: AsyncGenerator<Delivery, void>;

  constructor(agent: Agent) {
    this.#deliveries = agent.deliveries();
  }

  async next<T extends Payload["$typeName"]>(type: T): Promise<Delivery<Extract<Payload, { $typeName: T }>>> {
    const { value } = await patient(this.#deliveries.next());
    if (value?.payload?.$typeName !== type) throw new Error(`a ${value?.payload?.$typeName} came, not a ${type}`);
    await value.ack();
    return value as Delivery<Extract<Payload, { $typeName: T }>>;
  }

  async end(): Promise<void> {
    await this.#deliveries.return();
  }
}

/** Fails a promise that takes too long. */
export async function patient<T>(promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`not within ${PATIENCE_MS} ms`));
    }, PATIENCE_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
