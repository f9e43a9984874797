// What an agent does with the official TypeScript client of A2A, as story.py: story.mjs URL TOKEN.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { TaskState } from "@a2a-js/sdk";
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";

const [url, token] = process.argv.slice(2);
const authorized = (input, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${token}`);
  return fetch(input, { ...init, headers });
};
const part = (content) => ({ content, metadata: undefined, filename: "", mediaType: "" });
const message = (text, numbers) => ({
  messageId: randomUUID(),
  contextId: "",
  taskId: "",
  role: 1,
  parts: [part({ $case: "text", value: text }), ...(numbers ? [part({ $case: "data", value: { numbers } })] : [])],
  metadata: undefined,
  extensions: [],
  referenceTaskIds: [],
});
const request = (sent, returnImmediately = false) => ({
  tenant: "",
  message: sent,
  configuration: { acceptedOutputModes: [], taskPushNotificationConfig: undefined, historyLength: undefined, returnImmediately },
  metadata: undefined,
});
const about = (id) => ({ tenant: "", id, historyLength: undefined, metadata: undefined });
const sumOf = (artifact) => artifact.parts[0].content.value.sum;

for (const [binding, factory] of [
  ["JSONRPC", JsonRpcTransportFactory],
  ["HTTP+JSON", RestTransportFactory],
]) {
  const transports = [new factory({ fetchImpl: authorized })];
  const clients = new ClientFactory({ transports, preferredTransports: [binding] });
  const client = await clients.createFromUrl(`${url}/.well-known/agent-card.json`, "");

  const events = [];
  for await (const event of client.sendMessageStream(request(message("add", [40, 2])))) events.push(event.payload);
  assert.equal(events[0].$case, "task");
  assert.deepEqual(events.slice(-2).map((event) => event.$case), ["artifactUpdate", "statusUpdate"]);
  assert.equal(sumOf(events.at(-2).value.artifact), 42);
  assert.equal(events.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
  const got = await client.getTask(about(events[0].value.id));
  assert.equal(sumOf(got.artifacts[0]), 42);

  const sent = message("add", [1, 2]);
  const first = await client.sendMessage(request(sent));
  const again = await client.sendMessage(request(sent));
  assert.equal(first.id, again.id);
  assert.equal(sumOf(again.artifacts[0]), 3);

  const waiting = await client.sendMessage(request(message("wait"), true));
  const cancelled = await client.cancelTask(about(waiting.id));
  assert.equal(cancelled.status.state, TaskState.TASK_STATE_CANCELED);
  await assert.rejects(client.cancelTask(about(waiting.id)));
  const listed = await client.listTasks({
    tenant: "", contextId: "", status: TaskState.TASK_STATE_CANCELED, pageToken: "",
  });
  assert.ok(listed.tasks.some((task) => task.id === waiting.id));
  console.log(`@a2a-js/sdk, ${binding}: works`);
}
