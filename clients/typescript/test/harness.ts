/** The program for `baton conformance --client`; docs/conformance-client.md defines its protocol. */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import {
  Agent,
  BatonError,
  type Bid,
  type HandedOver,
  type Handlers,
  HandoffFailed,
  type JsonObject,
  jsonSection,
  loadKey,
  type Negotiation,
  offerOf,
  Poison,
  RetryAfter,
  TaskRecalled,
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
  result?: JsonObject;
  resume?: boolean;
  to: string;
  text?: string;
  bytes?: number;
  handoff_id: string;
  task_id: string;
  epoch: number;
  task_type: string;
  context?: Record<string, object>;
  timeout_ms?: number;
  loan_timeout_ms?: number;
  call: number;
  offer_id: string;
  cost: number;
}

type Facts = Record<string, unknown>;

const how = new Map<string, string>();
/** The result for handlers that finish their task. */
let result: JsonObject = {};
const stop = new AbortController();
const calls = new Map<number, AbortController>();
let waiting: (() => void)[] = [];
let agent: Agent | undefined;
let serving: Promise<void> | undefined;
let negotiation: Negotiation | undefined;
const bids = new Map<string, Bid>();

function say(event: string, facts: Facts = {}): void {
  process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);
}

/** Node's error codes for a certificate that no trusted CA has signed. */
const UNTRUSTED = /^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_|ERR_TLS_CERT_)/;

function isUntrusted(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) {
    if ("code" in at && typeof at.code === "string" && UNTRUSTED.test(at.code)) return true;
  }
  return false;
}

/** Converts an error to the protocol's JSON form. */
function account(error: unknown): Facts {
  const message = String(error);
  if (error instanceof Cancelled) return { kind: "cancelled", message };
  if (isUntrusted(error)) return { kind: "untrusted", message };
  if (error instanceof HandoffFailed) return { kind: "handoff_failed", reason: error.reason, message };
  if (error instanceof TaskRecalled) return { kind: "recalled", reason: error.reason, epoch: Number(error.epoch), message };
  if (error instanceof VerificationError) return { kind: "unverified", reason: error.reason, message };
  if (!(error instanceof BatonError)) return { kind: "other", message };
  const { reason, metadata, code, retryDelayMs } = error;
  if (reason === "") return { kind: "unavailable", message };
  // The code as gRPC writes it: FAILED_PRECONDITION.
  const name = Code[code].replace(/(?!^)([A-Z])/g, "_$1").toUpperCase();
  return { kind: "refused", reason, metadata, code: name, retry_delay_ms: retryDelayMs, message };
}

/** Reports that a handler of this kind was called, and follows its instruction; the caller handles the rest. */
async function does(kind: string, facts: Facts): Promise<string | undefined> {
  say("handling", { type: kind, ...facts });
  const told = how.get(kind);
  if (told === "throw") throw new Error("told to throw");
  if (told === "poison") throw new Poison("told that it is poison");
  if (told === "later") throw new RetryAfter(7_000, "told to ask for it later");
  if (told === "wait") {
    await new Promise<void>((resolve) => {
      waiting.push(resolve); // independent of its signal
    });
  }
  return told;
}

function connected(): Agent {
  if (agent === undefined) throw new Error("connect first");
  return agent;
}

function sectionsOf({ context = {} }: Command): v1.ContextSection[] {
  return Object.entries(context).map(([name, value]) => jsonSection(name, value));
}

/** Includes a context provider if the command has a context. */
function handlersOf(connecting: Command): Handlers {
  return {
    info: async (_, { envelope }) => {
      await does("Info", { message_id: envelope.messageId, sender_id: envelope.senderId });
    },
    offer: async (offer) => {
      const { senderId, taskId, handoffId, isResumed } = offer;
      if (isResumed) {
        const { epoch } = await (await offer.accept()).complete();
        say("resumed", { task_id: taskId, epoch: Number(epoch) });
      }
      const told = await does("HandoffRequest", { sender_id: senderId, task_id: taskId, handoff_id: handoffId });
      if (told === "reject") {
        await offer.reject({ reason: v1.RejectReason.NO_SKILL, reasonText: "told to reject" });
        return;
      }
      const task = await (await offer.accept()).complete();
      if (!isResumed) say("owned", { task_id: taskId, handoff_id: handoffId, epoch: Number(task.epoch) });
      if (told === "finish") await task.finish(result);
      if (told === "fail") throw new Error("told to fail");
      if (told === "work") {
        await new Promise((resolve) => {
          offer.signal.addEventListener("abort", resolve);
        });
        say("stopped", { task_id: taskId });
      }
    },
    recalled: ({ taskId, handoffId, epoch }) => {
      say("recalled", { task_id: taskId, handoff_id: handoffId, epoch: Number(epoch) });
    },
    bid: async ({ negotiationId, counter }) => {
      const told = await does(counter ? "TaskOffer" : "TaskRequest", { negotiation_id: negotiationId });
      if (told === "decline") {
        return create(v1.TaskDeclineSchema, { reason: v1.RejectReason.OVERLOADED, reasonText: "told to decline" });
      }
      if (told === "withdraw") return create(v1.TaskOfferSchema, { withdrawn: true });
      return offerOf({ confidence: 0.9, cost: counter ? counter.cost : 5 });
    },
    taskAccept: async (_, { envelope }) => {
      await does("TaskAccept", { message_id: envelope.messageId, sender_id: envelope.senderId });
    },
    negotiationClosed: async ({ winnerId }, { envelope }) => {
      await does("NegotiationClosed", { message_id: envelope.messageId, winner_id: winnerId });
    },
    ...(connecting.context && { context: () => sectionsOf(connecting) }),
  };
}

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
  serving = agent.serve(handlersOf(command), { signal: stop.signal, resume: command.resume === true }).catch((error: unknown) => {
    say("ended", account(error));
  });
}

class Cancelled extends Error {}

/** The signal that the command `cancel` aborts. */
function callSignal({ id }: Command): AbortSignal {
  const call = new AbortController();
  calls.set(id, call);
  return call.signal;
}

function handedOver({ ownerId, epoch }: HandedOver): Facts {
  return { owner_id: ownerId, epoch: Number(epoch) };
}

/** Reports each offer, and then the end. */
async function sayOffers(asked: Negotiation): Promise<void> {
  for await (const bid of asked) {
    bids.set(bid.offerId, bid);
    const { cost, round } = bid.offer;
    say("offered", { negotiation_id: asked.id, agent_id: bid.agentId, offer_id: bid.offerId, cost, round });
  }
  const { state } = await asked.closed();
  say("closed", { negotiation_id: asked.id, state: v1.NegotiationState[state] });
}

function bidOf({ offer_id }: Command): Bid {
  const bid = bids.get(offer_id);
  if (bid === undefined) throw new Error(`no offer ${offer_id} was heard`);
  return bid;
}

async function obey(command: Command): Promise<Facts> {
  switch (command.command) {
    case "connect":
      await connect(command);
      return {};
    case "handle":
      how.set(command.type, command.as);
      result = command.result ?? { text: "x".repeat(command.bytes ?? 0) };
      return {};
    case "release":
      for (const go of waiting) go();
      waiting = [];
      return {};
    case "send": {
      const { to, text = "", bytes } = command;
      const info = create(v1.InfoSchema, { text: bytes === undefined ? text : "x".repeat(bytes) });
      return { message_id: (await connected().send(to, {}, info)).messageId };
    }
    case "hand_over": {
      const { to, task_id, task_type, timeout_ms: timeoutMs } = command;
      const options = { epoch: BigInt(command.epoch), ...(timeoutMs === undefined ? {} : { timeoutMs }) };
      return handedOver(await connected().handOver(to, task_id, { taskType: task_type }, sectionsOf(command), options));
    }
    case "resume":
      return handedOver(await connected().resumeHandOver(command.handoff_id, sectionsOf(command)));
    case "delegate": {
      const { to, task_id, task_type } = command;
      const { timeout_ms: timeoutMs, loan_timeout_ms: loanTimeoutMs } = command;
      const options = {
        epoch: BigInt(command.epoch),
        signal: callSignal(command),
        ...(timeoutMs === undefined ? {} : { timeoutMs }),
        ...(loanTimeoutMs === undefined ? {} : { loanTimeoutMs }),
      };
      const lent = await connected().delegate(to, task_id, { taskType: task_type }, sectionsOf(command), options);
      return { epoch: Number(lent.epoch), status: v1.TaskStatus[lent.status], result: lent.result };
    }
    case "recall": {
      const { epoch } = await connected().recall(command.handoff_id, command.text);
      return { epoch: Number(epoch) };
    }
    case "cancel":
      calls.get(command.call)?.abort(new Cancelled("told to cancel"));
      return {};
    case "owned_tasks": {
      const tasks: Facts[] = [];
      for await (const { taskId, epoch, handoffId } of connected().ownedTasks()) {
        tasks.push({ task_id: taskId, epoch: Number(epoch), handoff_id: handoffId });
      }
      return { tasks };
    }
    case "negotiate": {
      const asked = await connected().negotiate(command.to, { description: command.text ?? "" });
      negotiation = asked;
      sayOffers(asked).catch((error: unknown) => {
        process.stderr.write(`${String(error)}\n`);
      });
      return { negotiation_id: asked.id };
    }
    case "counter":
      await bidOf(command).counter({ cost: command.cost });
      return {};
    case "award":
      await negotiation?.award(bidOf(command), command.text);
      return {};
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
      say("done", { id: command.id, ...facts });
    },
    (error: unknown) => {
      say("failed", { id: command.id, ...account(error) });
    },
  );
});
lines.on("close", () => {
  agent?.close();
});
