/**
 * A support agent that hands tickets over or takes them.
 *
 *     node build/examples/ticket-agent.js --id bob --key bob.pem serve
 *     node build/examples/ticket-agent.js --id carol --key carol.pem serve --then bob
 *     node build/examples/ticket-agent.js --id alice --key alice.pem offer --to carol
 *
 * The agent creates the key file if it does not exist. With `--then` it hands each ticket on, with its context. `offer` ends
 * when the other agent owns the ticket, or with exit code 1 if the handoff fails.
 */
import { existsSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Agent, generateKey, HandoffFailed, jsonSection, loadKey, saveKey, v1 } from "../src/index.js";

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

/** Prints the tickets of an earlier run, then takes over each new ticket, and hands it on if `then` names an agent. */
async function serve(agent: Agent, then: string): Promise<void> {
  for await (const { taskId, epoch } of agent.ownedTasks()) console.log(`${taskId}: still here, at epoch ${epoch}`);
  console.log(`${agent.id}: waiting for tickets`);
  for await (const offer of agent.handoffs({ signal: stop.signal })) {
    console.log(`${offer.taskId}: ${offer.senderId} asks: ${offer.request?.initialContextSummary ?? "to go on"}`);
    try {
      const takeover = await offer.accept();
      const task = await takeover.complete();
      const names = takeover.sections.map(({ name }) => name).join(", ");
      console.log(`${offer.taskId}: taken over from ${offer.senderId} at epoch ${task.epoch}, with ${names}`);
      if (then !== "") {
        const request = { taskType: "support-ticket", initialContextSummary: `handed on by ${agent.id}` };
        const { ownerId } = await task.handOver(then, request, takeover.sections, { signal: stop.signal });
        console.log(`${offer.taskId}: handed on to ${ownerId}`);
      }
    } catch (error) {
      // The handoff has moved on without this agent, or the ticket stays here.
      if (!(error instanceof HandoffFailed)) throw error;
      console.log(`${offer.taskId}: ${error.message}`);
    }
  }
}

/** Hands one ticket over. */
async function offer(agent: Agent, to: string, task: string, title: string): Promise<void> {
  const sections = [jsonSection("task_description", { title, customer: "4711" }), jsonSection("goals", ["find the cause"])];
  const request = { taskType: "support-ticket", initialContextSummary: title, priority: v1.Priority.HIGH };
  console.log(`${task}: offered to ${to}`);
  try {
    const { ownerId } = await agent.handOver(to, task, request, sections, { signal: stop.signal });
    console.log(`${task}: handed over to ${ownerId}`);
  } catch (error) {
    if (!(error instanceof HandoffFailed)) throw error;
    console.log(`${task}: not handed over: ${error.message}`);
    process.exitCode = 1;
  }
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
