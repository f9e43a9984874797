/**
 * The TypeScript agent of the great relay (tests/relay): a task goes from language to language.
 *
 *     node build/examples/relay.js SERVER CA.pem ID KEY.pem pass NEXT,FALLBACK...    takes the task and hands it on
 *     node build/examples/relay.js SERVER CA.pem ID KEY.pem audit TASK               checks its custody log
 *
 * Prints what happens as JSON lines.
 */
import { readFileSync } from "node:fs";
import { Agent, contextDigest, type Handlers, loadKey, Poison, type v1 } from "../src/index.js";

const [server = "", ca = "", agentId = "", key = "", command = "", argument = ""] = process.argv.slice(2);

function say(event: string, facts: object = {}): void {
  console.log(JSON.stringify({ event, ...facts }));
}

async function pass(agent: Agent, candidates: string): Promise<void> {
  const [next = "", ...fallbackCandidates] = candidates.split(",");
  const contexts = new Map<string, readonly v1.ContextSection[]>(); // of what is handed on, by task id
  const rejections: string[] = [];
  const handlers: Handlers = {
    handoffReject: ({ reasonText }, { envelope }) => {
      rejections.push(`${envelope.senderId}: ${reasonText}`);
    },
    handoffAccept: async (_, delivery) => {
      const sections = contexts.get(delivery.envelope.taskId);
      if (sections === undefined) throw new Poison("the task is not here");
      await agent.sendContext(delivery, sections);
    },
    handoffComplete: (_, { envelope }) => {
      say("handed", { receiver: envelope.senderId, epoch: Number(envelope.epoch) + 1, rejections });
    },
  };
  const stop = new AbortController();
  process.once("SIGTERM", () => {
    stop.abort();
  });
  say("ready");
  for await (const offer of agent.handoffs({ signal: stop.signal, handlers })) {
    const context = await offer.accept();
    const { epoch } = await context.complete();
    const digest = Buffer.from(contextDigest(context.sections)).toString("hex");
    say("taken", { sender: offer.senderId, epoch: Number(epoch), digest });
    contexts.set(offer.taskId, context.sections);
    const request = { taskType: "relay", initialContextSummary: `handed on by ${agent.id}`, fallbackCandidates };
    await agent.requestHandoff(next, offer.taskId, request, { epoch });
  }
}

async function audit(agent: Agent, taskId: string): Promise<void> {
  const entries = await agent.auditTask(taskId);
  const last = entries.at(-1);
  say("audited", { entries: entries.length, owner: last?.ownerId, epoch: Number(last?.epoch) });
}

const agent = await Agent.connect({
  server,
  agentId,
  key: await loadKey(key),
  ca: readFileSync(ca),
  card: { agentTypes: ["relay"] },
  log: (text, error) => {
    console.error(text, error ?? "");
  },
});
try {
  await (command === "pass" ? pass : audit)(agent, argument);
} finally {
  agent.close();
}
