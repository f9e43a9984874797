/**
 * A program that lends a task by a tool of the AI SDK, for the test that kills it: lender.js SERVER AGENT_ID FOLDER TYPE. It prints
 * what the tool answers.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { handoffTool } from "../src/ai.js";
import { Agent, loadKey } from "../src/index.js";

const [server = "", agentId = "", folder = "", type = ""] = process.argv.slice(2);
const key = await loadKey(join(folder, "lender.pem"));
const agent = await Agent.connect({ server, agentId, key, ca: readFileSync(join(folder, "ca.pem")), card: {} });
const input = { summary: "What does 4711 owe?", details: "customer 4711" };
const outputs = handoffTool(agent, type).execute?.(input, { toolCallId: "call_7", messages: [] }) as AsyncIterable<unknown>;
let last: unknown;
for await (const one of outputs) last = one;
console.log(JSON.stringify(last));
agent.close();
