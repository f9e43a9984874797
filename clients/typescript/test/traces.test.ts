import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Context, context, type ContextManager, ROOT_CONTEXT, trace } from "@opentelemetry/api";
import { type Agent, currentTrace, type Handlers, inTrace, makeEnvelope, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { validTrace } from "../src/traces.js";
import { Agents, Broker, patient } from "./broker.js";

// One trace over all agents, with OpenTelemetry and without it.

const PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const CONTEXT = create(v1.TraceContextSchema, { traceparent: PARENT, tracestate: "rojo=1" });

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
afterEach(() => {
  agents.close();
  context.disable();
});
after(async () => {
  await broker.remove();
});

/** The context of a message that is made now. */
function sent(): v1.TraceContext | undefined {
  return makeEnvelope("a", "b", {}, create(v1.InfoSchema)).traceContext;
}

/** The part of OpenTelemetry's SDK that knows the active span. */
function knowActiveSpans(): void {
  const active = new AsyncLocalStorage<Context>();
  const manager: ContextManager = {
    active: () => active.getStore() ?? ROOT_CONTEXT,
    with: (now, body, self, ...rest) => active.run(now, () => body.apply(self, rest)),
    bind: (_, target) => target,
    enable: () => manager,
    disable: () => manager,
  };
  assert.ok(context.setGlobalContextManager(manager));
}

function itIsCarried(): void {
  assert.equal(sent(), undefined);
  inTrace(CONTEXT, () => {
    assert.deepEqual(sent(), CONTEXT);
    inTrace(undefined, () => {
      assert.equal(sent(), undefined);
    });
    assert.deepEqual(sent(), CONTEXT);
  });
  assert.equal(currentTrace(), undefined);
}

test("a message carries the context that is continued", () => {
  itIsCarried();
  knowActiveSpans();
  itIsCarried();
});

test("a context that is not valid counts as none", () => {
  const zero = `00-${"0".repeat(32)}-${"1".repeat(16)}-01`;
  for (const traceparent of ["", "00-aa-bb-01", `${PARENT}-x`, PARENT.toUpperCase(), PARENT.replace("00-", "ff-"), zero]) {
    assert.equal(validTrace(create(v1.TraceContextSchema, { traceparent })), undefined, traceparent);
  }
  assert.equal(validTrace(CONTEXT), CONTEXT);
});

test("a message carries the active span of OpenTelemetry", () => {
  knowActiveSpans();
  const span = { traceId: "5".repeat(32), spanId: "7".repeat(16), traceFlags: 1 };
  inTrace(CONTEXT, () => {
    const remote = trace.getSpanContext(context.active());
    assert.deepEqual([remote?.traceId, remote?.spanId, remote?.isRemote], [PARENT.slice(3, 35), PARENT.slice(36, 52), true]);
    context.with(trace.setSpanContext(context.active(), span), () => {
      assert.equal(sent()?.traceparent, `00-${span.traceId}-${span.spanId}-01`);
    });
    assert.deepEqual(sent(), CONTEXT);
  });
});

test("OpenTelemetry is not needed", () => {
  const folder = mkdtempSync(join(tmpdir(), "baton-"));
  try {
    cpSync("build/src", join(folder, "src"), { recursive: true });
    const { dependencies } = JSON.parse(readFileSync("package.json", "utf8")) as { dependencies: Record<string, string> };
    for (const name of Object.keys(dependencies)) {
      cpSync(join("node_modules", name), join(folder, "node_modules", name), { recursive: true });
    }
    symlinkSync(join(process.cwd(), "package.json"), join(folder, "package.json"));
    const program = `
      import { currentTrace, inTrace } from "./src/index.js";
      import("@opentelemetry/api").then(() => process.exit(3), () => undefined);
      if (inTrace({ traceparent: "${PARENT}" }, currentTrace).traceparent !== "${PARENT}") process.exit(4);`;
    execFileSync(process.execPath, ["--input-type=module", "-e", program], { cwd: folder, stdio: "inherit" });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

function serve(agent: Agent, handlers: Handlers): void {
  agent.serve(handlers).catch(() => undefined);
}

test("a handler continues the context of its delivery", async () => {
  const [continued, answered] = [new Queue<(string | undefined)[]>(), new Queue<string>()];
  // What is active where an agent connects is not its messages' affair.
  const [alice, bob] = await inTrace(CONTEXT, async () => {
    const both = [await agents.named("alice"), await agents.named("bob")] as const;
    serve(both[0], {
      info: (_, delivery) => {
        answered.push(delivery.envelope.traceContext?.traceparent ?? "none");
      },
    });
    serve(both[1], {
      info: async (_, delivery) => {
        continued.push([delivery.traceContext?.traceparent, currentTrace()?.traceparent]);
        await both[1].send(both[0].id, {}, create(v1.InfoSchema, { text: "yes" }));
      },
    });
    await both[0].send(both[1].id, {}, create(v1.InfoSchema, { text: "ready?" }));
    return both;
  });
  assert.deepEqual(await patient(continued.next()), [PARENT, PARENT]);
  assert.equal(await patient(answered.next()), PARENT);
  await alice.send(bob.id, {}, create(v1.InfoSchema, { text: "and now?" }));
  assert.deepEqual(await patient(continued.next()), [undefined, undefined]);
  assert.equal(await patient(answered.next()), "none");
});
