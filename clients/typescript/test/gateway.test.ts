import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { createRegistry } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { v1 } from "../src/index.js";
import { TaskContextTransferSchema } from "../src/gen/baton/v1/context_pb.js";
import { HandoffService } from "../src/gen/baton/v1/handoff_service_pb.js";
import { TaskService } from "../src/gen/baton/v1/task_service_pb.js";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { Broker, temporaryFolder, unique } from "./broker.js";

// The calls of baton.v1 at a gateway, by the official client of the Connect protocol and the stubs of the schema.

let broker: Broker;
let gateway: ChildProcess;
let baseUrl: string;
const folder = temporaryFolder();
const tokens = new Map<string, string>();

function command(...args: string[]): [string, string[]] {
  const connection = ["--server", broker.address, "--ca", join(broker.data, "tls", "ca.pem"), "-o", "json"];
  return [process.env["BATON_BIN"] ?? "baton", [...args, ...connection]];
}

async function run(...args: string[]): Promise<string> {
  const [program, all] = command(...args);
  return (await promisify(execFile)(program, all, { cwd: folder })).stdout;
}

before(async () => {
  broker = await Broker.start();
  for (const agent of ["alice", "bob"]) {
    await promisify(execFile)(command()[0], ["keygen", "--out", `${agent}.pem`], { cwd: folder });
    const identity = ["--id", agent, "--key", `${agent}.pem`];
    await run("agent", "register", ...identity);
    const granted = JSON.parse(await run("gateway", "grant", ...identity, "--days", "1", "--data", "gateway")) as { token: string };
    tokens.set(agent, granted.token);
  }
  const [program, args] = command("gateway", "--data", "gateway", "--listen", "127.0.0.1:0");
  gateway = spawn(program, args, { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
  assert(gateway.stdout);
  const [line] = (await once(createInterface(gateway.stdout), "line")) as [string];
  baseUrl = new URL((JSON.parse(line) as { mcp: string }).mcp).origin;
});
after(async () => {
  gateway.kill("SIGKILL");
  await broker.remove();
});

function transport(agent: string, useBinaryFormat: boolean): Transport {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${tokens.get(agent)}`);
    return next(request);
  };
  // JSON has the payload of an envelope by its type.
  const jsonOptions = { registry: createRegistry(TaskContextTransferSchema) };
  return createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat, jsonOptions, interceptors: [authorize] });
}

async function act(agent: string, name: string, body: object): Promise<{ handoff_id: string; task_id: string }> {
  const headers = { "authorization": `Bearer ${tokens.get(agent)}`, "content-type": "application/json" };
  const answer = await fetch(`${baseUrl}/api/v1/acts/${name}`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(answer.status, 200, name);
  return (await answer.json()) as { handoff_id: string; task_id: string };
}

for (const isBinary of [false, true]) {
  test(`a client of Connect calls, watches and is refused, ${isBinary ? "encoded" : "by JSON"}`, async () => {
    const lent = await act("alice", "delegate", { to: "bob", summary: unique("work"), wait_seconds: 0 });
    const handoffId = lent.handoff_id;
    const taskId = lent.task_id;
    const tasks = createClient(TaskService, transport("alice", isBinary));
    const handoffs = createClient(HandoffService, transport("bob", isBinary));
    const { task } = await tasks.getTask({ taskId });
    assert.deepEqual([task?.ownerId, task?.epoch, task?.openHandoffId], ["alice", 1n, handoffId]);

    const steps = (async (): Promise<v1.HandoffState[]> => {
      const states = [];
      for await (const { handoff } of handoffs.watchHandoff({ handoffId })) states.push(handoff?.state ?? v1.HandoffState.UNSPECIFIED);
      return states;
    })();
    await act("bob", "take_task", { handoff_id: handoffId });
    assert.equal((await steps).at(-1), v1.HandoffState.COMPLETED, "the stream ends with the handoff");
    // The envelope of the context, as its sender signed it, by either form.
    const { context } = await handoffs.getHandoff({ handoffId, includeContext: true });
    assert.deepEqual([context?.senderId, context?.payload?.typeUrl], ["alice", "type.googleapis.com/baton.v1.TaskContextTransfer"]);

    await assert.rejects(tasks.getTask({ taskId: "none" }), (error) => {
      assert(error instanceof ConnectError);
      const [info] = error.findDetails(ErrorInfoSchema);
      assert.deepEqual([error.code, info?.reason, info?.domain], [Code.NotFound, "TASK_UNKNOWN", "baton"]);
      return true;
    });
    const late = tasks.watchTask({ taskId }, { timeoutMs: 500 })[Symbol.asyncIterator]();
    await assert.rejects(
      async () => {
        while (!(await late.next()).done);
      },
      (error) => error instanceof ConnectError && error.code === Code.DeadlineExceeded,
    );
    const stranger = createClient(TaskService, transport("mallory", isBinary));
    await assert.rejects(stranger.listTasks({}), (error) => error instanceof ConnectError && error.code === Code.Unauthenticated);
  });
}
