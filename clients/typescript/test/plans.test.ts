import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { BatonError, type JsonObject, jsonSection, type PlanInit, type SubtaskInputs, v1 } from "../src/index.js";
import { subtaskOf } from "../src/plans.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Plans: what subtasks get and give, a watch over a restart, cancel and retry.

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
afterEach(() => {
  agents.close();
});
after(async () => {
  await broker.remove();
});

function report(planId: string, agentType: string): PlanInit {
  const subtasks = [
    { id: "fetch", agentType, produces: ["figures"], input: { quarter: 3 } },
    { id: "growth", agentType, consumes: ["figures"], role: "analyst", description: "how much" },
    { id: "synthesis", agentType, dependencies: ["fetch", "growth"] },
  ];
  return { planId, subtasks, input: { language: "zh" } };
}

/** Connects an agent that works on subtasks by this function, which returns the result or throws. */
async function worker(type: string, work: (inputs: SubtaskInputs) => JsonObject | Promise<JsonObject>): Promise<void> {
  const bob = await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } });
  const serving = bob.serve({
    offer: async (offer) => {
      const takeover = await offer.accept();
      const { subtask } = takeover;
      const task = await takeover.complete();
      try {
        assert.ok(subtask);
        await task.finish(await work(subtask));
      } catch (error) {
        await task.update({ status: v1.TaskStatus.FAILED, details: String(error) });
      }
    },
  });
  serving.catch(() => undefined);
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("a context of no subtask has no inputs", () => {
  assert.equal(subtaskOf([jsonSection("goals", []), jsonSection("task_description", { text: "no plan" })]), undefined);
  const told = jsonSection("task_description", { plan_id: "p", subtask_id: "s", attempt: 2 });
  const inputs = subtaskOf([told, jsonSection("previous_results", { a: { response: "增长率15.3%", numeric_value: 15.3 } })]);
  assert.deepEqual([inputs?.planId, inputs?.subtaskId, inputs?.attempt, inputs?.input], ["p", "s", 2, undefined]);
  assert.equal(inputs?.previousResults.get("a")?.numericValue, 15.3);
  assert.equal(inputs.isCompensation, false);
  const undoing = subtaskOf([jsonSection("task_description", { plan_id: "p", subtask_id: "s", compensates: "s" })]);
  assert.equal(undoing?.isCompensation, true);
});

test("subtasks get the results before them as typed inputs", async () => {
  const [type, planId] = [unique("worker"), unique("q3")];
  const got = new Map<string, SubtaskInputs>();
  await worker(type, (inputs) => {
    got.set(inputs.subtaskId, inputs);
    const before = inputs.previousResults.get("fetch")?.numericValue ?? 0;
    if (inputs.subtaskId === "fetch") return { response: "增长率为15.3%", tokens: 12, success: true, tools_used: ["search"], rows: [1] };
    return inputs.subtaskId === "growth" ? { response: "twice", numeric_value: 2 * before } : { response: "done" };
  });
  const alice = await agents.named("alice");
  const problems = await alice.plans.validate(report(planId, type));
  assert.ok(problems.every(({ severity }) => severity !== v1.ProblemSeverity.ERROR));
  const plan = await alice.plans.submit(report(planId, type));
  assert.equal((await alice.plans.submit(report(planId, type))).id, planId);
  const events = (await patient(all(plan.watch()))).map(({ event }) => event.case);
  assert.deepEqual([events[0], events.at(-1)], ["submitted", "ended"]);
  assert.equal((await plan.finished()).state, v1.PlanState.COMPLETED);
  const results = await plan.results();
  assert.deepEqual([...results.keys()], ["fetch", "growth", "synthesis"]);
  assert.deepEqual([results.get("fetch")?.numericValue, results.get("growth")?.numericValue], [15.3, 30.6]);
  const growth = got.get("growth");
  assert.deepEqual([got.get("fetch")?.input, growth?.planInput], [{ quarter: 3 }, { language: "zh" }]);
  assert.deepEqual([growth?.role, growth?.description, growth?.attempt], ["analyst", "how much", 1]);
  const before = growth?.previousResults.get("fetch");
  assert.deepEqual([before?.tokens, before?.success, before?.toolsUsed], [12n, true, ["search"]]);
  assert.match(before?.resultJson ?? "", /rows/);
  assert.deepEqual([...(got.get("synthesis")?.dependencyResults.keys() ?? [])], ["fetch", "growth"]);
  assert.deepEqual([...(growth?.consumed.get("figures")?.keys() ?? [])], ["fetch"]);
  assert.ok((await all(alice.plans.list({ states: [v1.PlanState.COMPLETED] }))).some((one) => one.planId === planId));
  await assert.rejects(plan.retry(), refusal("PLAN_FINAL"));
});

test("a condition leaves a branch out, and defaults name the agents", async () => {
  const type = unique("desk");
  await worker(type, ({ subtaskId }) => ({ response: subtaskId === "check" ? "the score is 0.7" : subtaskId }));
  const alice = await agents.named("alice");
  const when = { subtaskId: "check", pointer: "/numeric_value", comparison: { case: "less" as const, value: 0.5 } };
  const plan = await alice.plans.submit({
    planId: unique("branches"),
    defaults: { agentType: type },
    subtasks: [
      { id: "check" },
      { id: "mend", dependencies: ["check"], when },
      { id: "publish", dependencies: ["check"], when: { ...when, negate: true } },
    ],
  });
  assert.equal((await plan.finished()).state, v1.PlanState.COMPLETED);
  assert.deepEqual([...(await plan.results()).keys()], ["check", "publish"]);
});

test("a whole result is fetched that the context had no room for", async () => {
  const [type, planId, long] = [unique("worker"), unique("long"), "x".repeat(230 << 10)];
  const got: { sent: SubtaskInputs; whole: SubtaskInputs }[] = [];
  const bob = await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } });
  const serving = bob.serve({
    offer: async (offer) => {
      const takeover = await offer.accept();
      const task = await takeover.complete();
      const [sent, whole] = [takeover.subtask, await takeover.fetchSubtask()];
      if (sent && whole) got.push({ sent, whole });
      await task.finish({ response: long });
    },
  });
  serving.catch(() => undefined);
  const alice = await agents.named("alice");
  const subtasks = ["a", "b", "c", "d", "e"].map((id) => ({
    id,
    agentType: type,
    ...(id === "a" && { produces: ["figures"] }),
    ...(id === "e" && { consumes: ["figures"] }),
  }));
  const plan = await alice.plans.submit({ planId, subtasks, mode: v1.PlanMode.SEQUENTIAL });
  assert.equal((await plan.finished()).state, v1.PlanState.COMPLETED);
  const last = got.at(-1);
  assert.ok(last);
  assert.ok(last.sent.omitted.has("a") && last.sent.omitted.has("d") && last.whole.omitted.size === 0);
  const short = [last.sent.previousResults.get("d"), last.sent.consumed.get("figures")?.get("a")];
  assert.deepEqual(short.map((one) => one?.response), ["", ""]);
  const lengths = [...last.whole.previousResults.values()].map(({ response }) => response.length);
  assert.deepEqual(lengths, [long.length, long.length, long.length, long.length]);
  assert.equal(last.whole.consumed.get("figures")?.get("a")?.response.length, long.length);
});

test("wrong plans are refused with all problems", async () => {
  const alice = await agents.named("alice");
  const subtasks = [{ id: "a", agentType: "t", dependencies: ["b"] }, { id: "b", dependencies: ["a"] }];
  const wrong = { planId: unique("q3"), subtasks };
  const codes = (await alice.plans.validate(wrong)).map(({ code }) => code);
  assert.ok(codes.includes("CYCLE") && codes.includes("NO_AGENT"));
  await assert.rejects(alice.plans.submit(wrong), (error) => {
    return refusal("PLAN_INVALID")(error) && error instanceof BatonError && error.fields.length >= 2;
  });
});

test("a plan is followed over a restart, cancelled and retried", async () => {
  const [type, planId] = [unique("worker"), unique("q3")];
  let goOn = (): void => undefined;
  const goesOn = new Promise<void>((resolve) => (goOn = resolve));
  let tries = 0;
  await worker(type, async ({ subtaskId }) => {
    if (subtaskId === "growth") {
      await goesOn;
      if (++tries === 1) throw new Error("no figures");
    }
    return { response: subtaskId };
  });
  const alice = await agents.named("alice");
  const plan = await alice.plans.submit(report(planId, type));
  const entries = plan.watch();
  const seen: v1.PlanEntry[] = [];
  for (let isRunning = false; !isRunning;) {
    const { value } = await patient(entries.next());
    assert.ok(value);
    seen.push(value);
    const { event } = value;
    isRunning = event.case === "subtask" && event.value.subtaskId === "growth" && event.value.state === v1.SubtaskState.RUNNING;
  }
  await assert.rejects(plan.retry(), refusal("PLAN_RUNNING"));
  await broker.kill();
  await broker.restart();
  goOn();
  seen.push(...(await patient(all(entries))));
  assert.deepEqual(seen.map(({ number }) => number), seen.map((_, at) => BigInt(at + 1)));
  assert.equal((await plan.state()).state, v1.PlanState.FAILED);
  assert.equal((await plan.retry()).round, 2);
  const later = await patient(all(plan.watch({ after: BigInt(seen.length) })));
  assert.deepEqual([later[0]?.event.case, later.at(-1)?.event.case], ["retried", "ended"]);
  assert.equal((await all(plan.watch())).length, seen.length + later.length);
  const idle = unique("idle"); // an agent of it takes no mail
  await agents.connect({ ...broker.options("carol"), card: { agentTypes: [idle] } });
  const other = await alice.plans.submit({ planId: unique("q4"), subtasks: [{ id: "a", agentType: idle }] });
  assert.equal((await other.cancel("enough")).state, v1.PlanState.CANCELLED);
  assert.equal((await patient(other.finished())).reason, "enough");
});

test("a plan grows, and its subtasks change", async () => {
  const [type, idle] = [unique("scout"), unique("idle")];
  let goOn = (): void => undefined;
  const extended = new Promise<void>((resolve) => (goOn = resolve));
  const elements: unknown[] = [];
  await worker(type, async ({ element }) => {
    if (element !== undefined) {
      elements[element.index] = element.value;
      return { place: element.index };
    }
    await extended;
    return { response: "found", all: ["x", { y: 1 }] };
  });
  await agents.connect({ ...broker.options("idle"), card: { agentTypes: [idle] } });
  const alice = await agents.named("alice");
  const subtasks = [{ id: "find", agentType: type }, { id: "wait", agentType: idle, optional: true }];
  const plan = await alice.plans.submit({ planId: unique("growth"), subtasks });
  const look = { id: "look", dependencies: ["find"], forEach: { subtaskId: "find", pointer: "/result/all" } };
  for (let time = 0; time < 2; time++) await plan.extend([look], { agentType: type });
  await assert.rejects(plan.extend([{ id: "find", agentType: type }]), refusal("PLAN_INVALID"));
  await assert.rejects(plan.cancelSubtask("missing"), refusal("SUBTASK_UNKNOWN"));
  await assert.rejects(plan.retrySubtask("wait"), refusal("SUBTASK_STATE"));
  await assert.rejects(plan.reassignSubtask("wait", alice.id), refusal("RECEIVER_INVALID"));
  assert.equal((await plan.reassignSubtask("wait", `type:${idle}`, "no answer")).subtasks[1]?.assignedTo, `type:${idle}`);
  assert.equal((await plan.cancelSubtask("wait", "enough")).subtasks[1]?.state, v1.SubtaskState.CANCELLED);
  assert.equal((await plan.retrySubtask("wait")).round, 2);
  await plan.cancelSubtask("wait", "enough");
  goOn();
  assert.equal((await patient(plan.finished())).state, v1.PlanState.COMPLETED);
  assert.deepEqual(elements, ["x", { y: 1 }]);
  assert.equal((await plan.results()).get("look")?.resultJson, '{"results":[{"place":0},{"place":1}]}');
});
