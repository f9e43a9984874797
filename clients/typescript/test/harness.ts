/** The harness for `baton conformance --client`: docs/conformance-client.md has its protocol. */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import {
  Agent,
  BatonError,
  type Delivery,
  type Handlers,
  jsonSection,
  loadKey,
  makeEnvelope,
  Poison,
  RetryAfter,
  signEnvelope,
  v1,
  VerificationError,
} from "../src/index.js";

interface Command {
  command: string;
  id: number;
  server: string;
  ca: string;
  agent_id: string;
  key_id: string;
  key: string;
  credit: number;
  handler_timeout_ms?: number;
  stop_grace_ms: number;
  type: string;
  as: string;
  to: string;
  text: string;
  task_id: string;
  epoch: number;
  task_type: string;
  context: Record<string, object>;
}

type Facts = Record<string, unknown>;

const how = new Map<string, string>();
const asked = new Map<string, { command: Command; sections: v1.ContextSection[] }>();
const stop = new AbortController();
let waiting: (() => void)[] = [];
let agent: Agent | undefined;
let serving: Promise<void> | undefined;

function say(event: string, facts: Facts = {}): void {
  process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);
}

function sayHandling(type: string, { envelope, handoffId, attempt }: Delivery): void {
  const { messageId, senderId, taskId } = envelope;
  say("handling", {
    type,
    message_id: messageId,
    sender_id: senderId,
    task_id: taskId,
    handoff_id: handoffId,
    attempt,
  });
}

/** What Node says of a certificate that is not of a trusted CA. */
const UNTRUSTED = /^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_|ERR_TLS_CERT_)/;

function isUntrusted(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) {
    if ("code" in at && typeof at.code === "string" && UNTRUSTED.test(at.code)) return true;
  }
  return false;
}

/** An error in the protocol's words. */
function account(error: unknown): Facts {
  const message = String(error);
  if (isUntrusted(error)) return { kind: "untrusted", message };
  if (error instanceof VerificationError) return { kind: "unverified", reason: error.reason, message };
  if (!(error instanceof BatonError)) return { kind: "other", message };
  const { reason, metadata, code, retryDelayMs } = error;
  if (reason === "") return { kind: "unavailable", message };
  // As gRPC writes it: FAILED_PRECONDITION.
  const name = Code[code].replace(/(?!^)([A-Z])/g, "_$1").toUpperCase();
  return { kind: "refused", reason, metadata, code: name, retry_delay_ms: retryDelayMs, message };
}

/** Does what a handler of this kind was told to do; the rest of it is the caller's. */
async function does(kind: string): Promise<string | undefined> {
  const told = how.get(kind);
  if (told === "throw") throw new Error("told to throw");
  if (told === "poison") throw new Poison("told that it is poison");
  if (told === "later") throw new RetryAfter(7_000, "told to ask for it later");
  if (told === "wait") {
    await new Promise<void>((resolve) => {
      waiting.push(resolve); // whatever its signal says
    });
  }
  return told;
}

function connected(): Agent {
  if (agent === undefined) throw new Error("connect first");
  return agent;
}

function settled(delivery: Delivery): Command | undefined {
  const found = asked.get(delivery.handoffId);
  asked.delete(delivery.handoffId);
  return found?.command;
}

const handlers: Handlers = {
  info: async (_, delivery) => {
    sayHandling("Info", delivery);
    await does("Info");
  },
  handoffRequest: async (_, delivery) => {
    sayHandling("HandoffRequest", delivery);
    if ((await does("HandoffRequest")) === "reject") {
      await connected().reject(delivery, { reason: v1.RejectReason.NO_SKILL, reasonText: "told to reject" });
    } else {
      await connected().accept(delivery);
    }
  },
  taskContextTransfer: async (_, delivery) => {
    const { taskId, epoch } = await connected().complete(delivery);
    say("owned", { task_id: taskId, handoff_id: delivery.handoffId, epoch: Number(epoch) });
  },
  handoffAccept: async (_, delivery) => {
    await connected().sendContext(delivery, asked.get(delivery.handoffId)?.sections ?? []);
  },
  handoffComplete: (_, delivery) => {
    const { senderId, epoch } = delivery.envelope;
    const command = settled(delivery);
    if (command) say("done", { id: command.id, owner_id: senderId, epoch: Number(epoch) + 1 });
  },
  errorNotification: ({ errorCode, errorMessage }, delivery) => {
    const command = settled(delivery);
    const reason = v1.ErrorCode[errorCode];
    if (command) say("failed", { id: command.id, kind: "handoff_failed", reason, message: errorMessage });
  },
};

async function connect(command: Command): Promise<void> {
  agent = await Agent.connect({
    server: command.server,
    agentId: command.agent_id,
    key: await loadKey(command.key),
    keyId: command.key_id,
    ca: readFileSync(command.ca),
    credit: command.credit,
    stopTimeoutMs: command.stop_grace_ms,
    log: (text, error) => {
      process.stderr.write(`${text} ${String(error)}\n`);
    },
    ...(command.handler_timeout_ms === undefined ? {} : { handlerTimeoutMs: command.handler_timeout_ms }),
  });
  serving = agent.serve(handlers, { signal: stop.signal }).catch((error: unknown) => {
    say("ended", account(error));
  });
}

/** Asks; the handlers do the rest. */
async function handOver(command: Command): Promise<void> {
  const about = { taskId: command.task_id, epoch: BigInt(command.epoch) };
  const request = create(v1.HandoffRequestSchema, { taskType: command.task_type });
  const envelope = makeEnvelope(connected().id, command.to, about, request);
  signEnvelope(envelope, "k1", await loadKey(key));
  const sections = Object.entries(command.context).map(([name, value]) => jsonSection(name, value));
  // Known before it is sent: the answer may be quicker than the receipt.
  asked.set(envelope.messageId, { command, sections });
  try {
    await connected().sendEnvelope(envelope);
  } catch (error) {
    asked.delete(envelope.messageId);
    throw error;
  }
}

let key = "";

async function obey(command: Command): Promise<Facts | undefined> {
  switch (command.command) {
    case "connect":
      key = command.key;
      await connect(command);
      return {};
    case "handle":
      how.set(command.type, command.as);
      return {};
    case "release":
      for (const go of waiting) go();
      waiting = [];
      return {};
    case "send": {
      const receipt = await connected().send(command.to, {}, create(v1.InfoSchema, { text: command.text }));
      return { message_id: receipt.messageId };
    }
    case "hand_over":
      await handOver(command);
      return undefined;
    case "close":
      stop.abort();
      await serving;
      connected().close();
      return {};
    default:
      throw new Error(`a command that cannot be: ${command.command}`);
  }
}

say("hello", { protocol: 1, language: "typescript", library: "@baton-broker/client" });
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const command = JSON.parse(line) as Command;
  obey(command).then(
    (facts) => {
      if (facts) say("done", { id: command.id, ...facts });
    },
    (error: unknown) => {
      say("failed", { id: command.id, ...account(error) });
    },
  );
});
lines.on("close", () => {
  agent?.close();
});
