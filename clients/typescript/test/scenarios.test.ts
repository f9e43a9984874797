import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { createRegistry, equals, fromJson, type JsonObject, type JsonValue, toJson } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import {
  type Agent,
  type AgentOptions,
  BatonError,
  contextDigest,
  type Delivery,
  makeEnvelope,
  type Payload,
  signEnvelope,
  v1,
} from "../src/index.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// The scenarios that the tests of every language run; clients/scenarios/README.md defines their format.

const FOLDER = new URL("../../../scenarios/", import.meta.url);
const REGISTRY = createRegistry(
  v1.HandoffRequestSchema, v1.HandoffAcceptSchema, v1.HandoffRejectSchema, v1.HandoffCancelSchema, v1.TaskContextTransferSchema,
  v1.HandoffCompleteSchema, v1.TaskStatusUpdateSchema, v1.ErrorNotificationSchema, v1.HeartbeatSchema, v1.TaskRequestSchema,
  v1.TaskOfferSchema, v1.TaskDeclineSchema, v1.NegotiationClosedSchema, v1.TaskAcceptSchema,
  v1.DelegationSchema, v1.InfoSchema, v1.TaskRecallSchema, v1.TaskInputSchema,
);

interface Scenario {
  agents: Record<string, { types?: string[]; connected?: boolean }>;
  names?: string[];
  steps: unknown[];
}

interface Fields {
  to?: string;
  task?: string;
  epoch?: number;
  correlation?: string;
}

interface Send extends Fields {
  type: string;
  payload?: JsonObject;
  id?: string;
  sender?: string;
  message_id?: string;
  clock_offset_ms?: number;
  expires_in_ms?: number;
  signed_by?: string;
  changed?: Fields;
}

interface Receive extends Fields {
  type: string;
  from?: string;
  message?: string;
  attempt?: number;
  payload?: JsonObject;
  id?: string;
  then?: Then;
}

type Then = "ack" | "nothing" | { nack?: keyof typeof v1.NackCause; retry_after_ms?: number; extend_ms?: number };

type Expect = Record<string, JsonValue>;

interface Step {
  as: string;
  send?: Send;
  repeat?: string;
  receive?: Receive;
  acknowledge?: { delivery: string; then: Then };
  connect?: { credit: number };
  disconnect?: object;
  task?: string;
  handoff?: string;
  expect?: Expect;
}

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
after(async () => {
  agents.close();
  await broker.remove();
});

describe("scenarios", () => {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith(".json"));
  assert.ok(files.length > 0);
  for (const file of files) {
    test(file.replace(".json", ""), async () => {
      const scenario = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8")) as Scenario;
      await new Player().play(scenario);
    });
  }
});

class Player {
  readonly names = new Map<string, string>();
  readonly options = new Map<string, AgentOptions>();
  readonly connected = new Map<string, { agent: Agent; mail: AsyncGenerator<Delivery, void> }>();
  readonly envelopes = new Map<string, v1.Envelope>();
  readonly receipts = new Map<string, v1.Receipt>();
  readonly deliveries = new Map<string, Delivery>();

  async play(scenario: Scenario): Promise<void> {
    for (const name of scenario.names ?? []) this.names.set(name, unique(name));
    for (const name of Object.keys(scenario.agents)) {
      const options = broker.options(name);
      this.options.set(name, options);
      this.names.set(name, options.agentId);
    }
    for (const [name, { types = [], connected = true }] of Object.entries(scenario.agents)) {
      const options = get(this.options, name);
      options.card = { agentTypes: types.map((type) => this.bound(type)) };
      await this.connect(name, 16);
      if (!connected) get(this.connected, name).agent.close();
    }
    for (const [number, step] of scenario.steps.entries()) {
      try {
        await patient(this.do(JSON.parse(this.bound(JSON.stringify(step))) as Step));
      } catch (error) {
        throw new Error(`step ${number + 1}: ${String(error)}\n  ${JSON.stringify(step)}`, { cause: error });
      }
    }
  }

  async connect(name: string, credit: number): Promise<void> {
    const agent = await agents.connect({ ...get(this.options, name), credit });
    await agent.setCredit(credit);
    this.connected.set(name, { agent, mail: agent.deliveries() });
  }

  bound(text: string): string {
    return text.replace(/\$\{([^}]*)\}/g, (_, name: string) => get(this.names, name));
  }

  async do(step: Step): Promise<void> {
    const { agent, mail } = get(this.connected, step.as);
    const { expect = {} } = step;
    if (step.send) {
      await this.send(agent, this.envelope(step.as, step.send), step.send.id, expect);
    } else if (step.repeat) {
      await this.send(agent, get(this.envelopes, step.repeat), undefined, expect);
    } else if (step.receive) {
      const { value } = await mail.next();
      assert.ok(value);
      await this.receive(value, step.receive);
    } else if (step.acknowledge) {
      const { delivery, then } = step.acknowledge;
      await expected(async () => {
        await acknowledge(get(this.deliveries, delivery), then);
        return {};
      }, expect);
    } else if (step.connect) {
      await this.connect(step.as, step.connect.credit);
    } else if (step.disconnect) {
      agent.close();
    } else if (step.task) {
      const id = step.task;
      await expected(async () => {
        const { ownerId, epoch, status, openHandoffId } = await agent.getTask(id);
        return { owner: ownerId, epoch: Number(epoch), status: v1.TaskStatus[status], open_handoff: openHandoffId };
      }, expect);
    } else if (step.handoff) {
      partOf("handoff", expect, shown(await agent.getHandoff(step.handoff)));
    } else {
      throw new Error("a step without a deed");
    }
  }

  envelope(as: string, send: Send): v1.Envelope {
    const schema = REGISTRY.getMessage(`baton.v1.${send.type}`);
    assert.ok(schema, send.type);
    const payload = fromJson(schema, send.payload ?? {}) as Payload;
    if (payload.$typeName === "baton.v1.TaskContextTransfer" && payload.contextDigest.length === 0) {
      payload.contextDigest = contextDigest(payload.sections);
    }
    const about = { taskId: send.task ?? "", epoch: BigInt(send.epoch ?? 0), correlationId: send.correlation ?? "" };
    const envelope = makeEnvelope(send.sender ?? get(this.names, as), send.to ?? "", about, payload);
    envelope.messageId = send.message_id ?? envelope.messageId;
    envelope.timestamp = timestampFromMs(Date.now() + (send.clock_offset_ms ?? 0));
    if (send.expires_in_ms !== undefined) envelope.expiresAt = timestampFromMs(Date.now() + send.expires_in_ms);
    if (send.signed_by !== "") signEnvelope(envelope, "k1", get(this.options, send.signed_by ?? as).key);
    const { changed = {} } = send;
    if (changed.to !== undefined) envelope.receiverId = changed.to;
    if (changed.task !== undefined) envelope.taskId = changed.task;
    if (changed.epoch !== undefined) envelope.epoch = BigInt(changed.epoch);
    if (changed.correlation !== undefined) envelope.correlationId = changed.correlation;
    if (send.id !== undefined) {
      this.names.set(send.id, envelope.messageId);
      this.envelopes.set(send.id, envelope);
      if (payload.$typeName === "baton.v1.TaskContextTransfer") {
        this.names.set(`${send.id}.digest`, Buffer.from(payload.contextDigest).toString("base64"));
      }
    }
    return envelope;
  }

  async send(agent: Agent, envelope: v1.Envelope, id: string | undefined, expect: Expect): Promise<void> {
    await expected(async () => {
      const receipt = await agent.sendEnvelope(envelope);
      if (id !== undefined) this.receipts.set(id, receipt);
      const first = expect["same_receipt_as"];
      const isSame = typeof first === "string" && equals(v1.ReceiptSchema, receipt, get(this.receipts, first));
      return {
        state: v1.HandoffState[receipt.handoffState],
        status: v1.TaskStatus[receipt.taskStatus],
        epoch: Number(receipt.epoch),
        owner: receipt.ownerId,
        handoff: receipt.handoffId,
        ...(isSame && { same_receipt_as: first }),
      };
    }, expect);
  }

  async receive(delivery: Delivery, receive: Receive): Promise<void> {
    const { envelope, payload, attempt } = delivery;
    assert.ok(payload);
    if (payload.$typeName === "baton.v1.TaskContextTransfer") {
      assert.deepEqual(contextDigest(payload.sections), payload.contextDigest);
    }
    const schema = REGISTRY.getMessage(payload.$typeName);
    assert.ok(schema);
    const { id, then = "ack", ...expect } = receive;
    partOf("delivery", expect, {
      type: payload.$typeName.replace("baton.v1.", ""),
      from: envelope.senderId,
      to: envelope.receiverId,
      task: envelope.taskId,
      epoch: Number(envelope.epoch),
      correlation: envelope.correlationId,
      message: envelope.messageId,
      attempt,
      payload: toJson(schema, payload),
    });
    if (id !== undefined) this.deliveries.set(id, delivery);
    await acknowledge(delivery, then);
  }
}

function get<T>(map: Map<string, T>, name: string): T {
  const value = map.get(name);
  if (value === undefined) throw new Error(`${name} is not bound`);
  return value;
}

function shown(handoff: v1.Handoff): JsonObject {
  return {
    state: v1.HandoffState[handoff.state],
    sender_view: v1.SenderView[handoff.senderView],
    receiver_view: v1.ReceiverView[handoff.receiverView],
    candidate: handoff.candidateId,
    error: v1.ErrorCode[handoff.errorCode],
  };
}

async function acknowledge(delivery: Delivery, then: Then): Promise<void> {
  if (then === "ack") await delivery.ack();
  else if (then !== "nothing") {
    if (then.nack) await delivery.nack(v1.NackCause[then.nack], { retryAfterMs: then.retry_after_ms });
    if (then.extend_ms) await delivery.extend(then.extend_ms);
  }
}

/** Compares an answer or a refusal with the expected one. */
async function expected(deed: () => Promise<Record<string, unknown>>, expect: Expect): Promise<void> {
  let found: Record<string, unknown>;
  try {
    found = await deed();
  } catch (error) {
    if (!(error instanceof BatonError) || expect["error"] === undefined) throw error;
    const code = Code[error.code].replace(/(?<=[a-z])[A-Z]/g, "_$&").toUpperCase();
    const fields = error.fields.map(({ field }) => field);
    found = { error: error.reason, code, fields, metadata: error.metadata };
  }
  partOf("answer", expect, found);
}

/** Checks that every expected field is present and equal. */
function partOf(what: string, expect: object, found: object): void {
  for (const [name, value] of Object.entries(expect) as [string, unknown][]) {
    const there = (found as Record<string, unknown>)[name];
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      partOf(`${what}.${name}`, value, there ?? {});
    } else {
      assert.deepEqual(there, value, `${what}.${name} is ${JSON.stringify(there)}, expected ${JSON.stringify(value)}`);
    }
  }
}

