/**
 * A support agent that hands tickets over, or takes them.
 *
 *     node build/examples/ticket-agent.js --id bob --key bob.pem serve
 *     node build/examples/ticket-agent.js --id carol --key carol.pem serve --then bob
 *     node build/examples/ticket-agent.js --id alice --key alice.pem offer --to carol
 *
 * The key file is made if it is not there. With `--then` each ticket is handed on, with its context. `offer` ends when the ticket is the other's, or with exit code 1 when it is not.
 */
import { existsSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Agent, generateKey, type Handlers, HandoffEnded, jsonSection, loadKey, Poison, saveKey, v1 } from "../src/index.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    server: { type: "string", default: "127.0.0.1:22866" },
    ca: { type: "string", default: "baton-data/tls/ca.pem" },
    id: { type: "string", default: "" },
    key: { type: "string", default: "" },
    to: { type: "string", default: "" },
    then: { type: "string", default: "" },
    task: { type: "string", default: `ticket-${Date.now()}` },
    title: { type: "string", default: "Router drops the line every evening." },
  },
});

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    stop.abort();
  });
}

/** Takes every ticket, and hands it on if there is somebody to take it then. */
async function serve(agent: Agent, then: string): Promise<void> {
  console.log(`${agent.id}: waiting for tickets`);
  const contexts = new Map<string, readonly v1.ContextSection[]>(); // of the tickets that are handed on, by task id
  const handlers: Handlers = {
    handoffAccept: async (_, delivery) => {
      const sections = contexts.get(delivery.envelope.taskId);
      if (sections === undefined) throw new Poison("the ticket is not here");
      await agent.sendContext(delivery, sections);
    },
    handoffComplete: (_, { envelope }) => {
      contexts.delete(envelope.taskId);
      console.log(`${envelope.taskId}: handed on to ${envelope.senderId}`);
    },
  };
  for await (const offer of agent.handoffs({ signal: stop.signal, handlers })) {
    console.log(`${offer.taskId}: ${offer.senderId} asks: ${offer.request.initialContextSummary}`);
    try {
      const context = await offer.accept();
      const { epoch } = await context.complete();
      const names = context.sections.map(({ name }) => name).join(", ");
      console.log(`${offer.taskId}: taken over from ${offer.senderId} at epoch ${epoch}, with ${names}`);
      if (then !== "") {
        contexts.set(offer.taskId, context.sections);
        const request = { taskType: "support-ticket", initialContextSummary: `handed on by ${agent.id}` };
        await agent.requestHandoff(then, offer.taskId, request, { epoch });
      }
    } catch (error) {
      // The handoff has gone on without us: there is nothing left to do about it.
      if (!(error instanceof HandoffEnded)) throw error;
      console.log(`${offer.taskId}: ${error.message}`);
    }
  }
}

/** Hands one ticket over. */
async function offer(agent: Agent, to: string, task: string, title: string): Promise<void> {
  const sections = [jsonSection("task_description", { title, customer: "4711" }), jsonSection("goals", ["find the cause"])];
  const request = { taskType: "support-ticket", initialContextSummary: title, priority: v1.Priority.HIGH };
  const { handoffId } = await agent.requestHandoff(to, task, request);
  console.log(`${task}: offered to ${to}, handoff ${handoffId}`);
  await agent.serve(
    {
      handoffAccept: (_, delivery) => agent.sendContext(delivery, sections),
      handoffComplete: ({ outcome }, delivery) => {
        if (outcome !== v1.HandoffOutcome.SUCCESS) return;
        console.log(`${task}: handed over to ${delivery.envelope.senderId}`);
        stop.abort();
      },
      errorNotification: ({ errorMessage }) => {
        console.log(`${task}: not handed over: ${errorMessage}`);
        process.exitCode = 1;
        stop.abort();
      },
    },
    { signal: stop.signal },
  );
}

if (!existsSync(values.key)) await saveKey(values.key, generateKey());
const agent = await Agent.connect({
  server: values.server,
  agentId: values.id,
  key: await loadKey(values.key),
  ca: readFileSync(values.ca),
  card: { agentTypes: ["support"], description: "Takes and hands over support tickets." },
  log: (text, error) => {
    console.error(text, error ?? "");
  },
});
try {
  if (positionals[0] === "serve") await serve(agent, values.then);
  else if (positionals[0] === "offer") await offer(agent, values.to, values.task, values.title);
  else throw new Error("what to do? serve, or offer");
} finally {
  agent.close();
}
