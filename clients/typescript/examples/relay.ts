/**
 * The TypeScript agent of the relay test (tests/relay): a task goes from language to language.
 *
 *     node build/examples/relay.js SERVER CA.pem ID KEY.pem pass NEXT,FALLBACK...    takes the task and hands it on
 *     node build/examples/relay.js SERVER CA.pem ID KEY.pem node NODE                takes a task, and chooses a node of its run
 *     node build/examples/relay.js SERVER CA.pem ID KEY.pem audit TASK               checks its custody log
 *
 * Prints each event as a JSON line.
 */
import { readFileSync } from "node:fs";
import { Agent, contextDigest, loadKey, type Offer } from "../src/index.js";

const [server = "", ca = "", agentId = "", key = "", command = "", argument = ""] = process.argv.slice(2);

function say(event: string, facts: object = {}): void {
  console.log(JSON.stringify({ event, ...facts }));
}

async function pass(agent: Agent, candidates: string): Promise<void> {
  const [next = "", ...fallbackCandidates] = candidates.split(",");
  const stop = new AbortController();
  process.once("SIGTERM", () => {
    stop.abort();
  });
  const handOn = async (offer: Offer): Promise<void> => {
    const takeover = await offer.accept();
    const task = await takeover.complete();
    const digest = Buffer.from(contextDigest(takeover.sections)).toString("hex");
    say("taken", { sender: offer.senderId, epoch: Number(task.epoch), digest });
    const request = { taskType: "relay", initialContextSummary: `handed on by ${agent.id}`, fallbackCandidates };
    const { ownerId, epoch, rejections } = await task.handOver(next, request, takeover.sections);
    const said = rejections.map(({ agentId, text }) => `${agentId}: ${text}`);
    say("handed", { receiver: ownerId, epoch: Number(epoch), rejections: said });
  };
  say("ready");
  await agent.serve({ offer: handOn }, { signal: stop.signal });
}

/** Takes a task, lets its own node of the run choose this one, and hands the task over to the agent of the choice. */
async function node(agent: Agent, target: string): Promise<void> {
  const stop = new AbortController();
  process.once("SIGTERM", () => {
    stop.abort();
  });
  const work = async (offer: Offer): Promise<void> => {
    const takeover = await offer.accept();
    const task = await takeover.complete();
    say("taken", { sender: offer.senderId, epoch: Number(task.epoch) });
    const run = agent.routing.join(offer.request?.routing?.runId ?? "");
    const { remaining } = await run.tools(agent.id);
    const call = { callId: "1", name: `transfer_to_${target}`, argumentsJson: JSON.stringify({ reason: "it is an invoice" }) };
    const { proposal, receiverId } = await run.turn(agent.id, undefined, { calls: [call] });
    if (proposal === undefined) throw new Error("the choice needs no handoff");
    const { ownerId, epoch } = await task.handOver(receiverId, proposal, takeover.sections);
    say("handed", { receiver: ownerId, epoch: Number(epoch), remaining });
  };
  say("ready");
  await agent.serve({ offer: work }, { signal: stop.signal });
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
  const commands = { pass, node, audit };
  await commands[command as keyof typeof commands](agent, argument);
} finally {
  agent.close();
}
