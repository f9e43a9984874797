// What a reader does: each act says first what it will do, and what the command line has for it.
import assert from "node:assert/strict";
import { fitsNarrowScreens, isAccessible, isWalkable, scenario, until } from "./harness.js";

const lastAct = async (scene) => (await scene.lines("audit")).at(-1).entry;
/** Waits until the command to copy is this one: the script may begin after the test has filled the form in. */
const shows = (page, wanted) =>
  until(`the command is ${wanted}`, async () => {
    const command = await page.locator("#command").textContent();
    return wanted instanceof RegExp ? wanted.test(command) : command === wanted;
  });

/** A task that bob owns, at epoch 2, and carol who can take it. */
async function owned(scene, task = "refund-1") {
  const [alice, bob, carol] = [await scene.agent("alice"), await scene.agent("bob"), await scene.agent("carol")];
  await alice.handOver(await alice.request("bob", "--task", task, "--summary", "Pay 40 € back."), bob);
  return { alice, bob, carol };
}

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "" : ", without JavaScript";
  scenario(`an operator reassigns a task${how}`, async (scene) => {
    await owned(scene);
    const page = await scene.operator("/tasks/refund-1", { javaScriptEnabled });
    await page.getByRole("link", { name: "Reassign…" }).click();
    await page.getByRole("heading", { name: "Reassign task refund-1 of bob?" }).waitFor();
    await page.getByText("At once, baton.coordinator owns the task, at epoch 3.").waitFor();
    await shows(page, "baton task reassign refund-1 --epoch 2 --to AGENT");
    if (javaScriptEnabled) {
      await isAccessible(page, "reassign");
      await isWalkable(page, "reassign");
      await fitsNarrowScreens(page, "reassign");
    }
    await page.getByLabel("New owner").fill("carol");
    await page.getByLabel("Reason").fill("bob's laptop is gone");
    if (javaScriptEnabled) {
      await shows(page, "baton task reassign refund-1 --epoch 2 --to carol --reason 'bob'\\''s laptop is gone'");
    }
    assert.equal((await scene.baton("task", "show", "refund-1")).ownerId, "bob", "the page changes nothing");
    await page.getByRole("button", { name: "Reassign" }).click();
    await page.waitForURL(/\/tasks\/refund-1$/);
    const task = await scene.baton("task", "show", "refund-1");
    assert.deepEqual([task.ownerId, task.epoch], ["baton.coordinator", "3"]);
    const act = await lastAct(scene);
    assert.equal(act.action, "AUDIT_ACTION_TASK_REASSIGNED");
    assert.equal(act.actor, "operator operator.token");
    assert.match(act.details, /to carol.*bob's laptop is gone/);
  });
}

scenario("a refused act keeps its form, and says what to do", async (scene) => {
  const { alice, bob } = await owned(scene);
  const page = await scene.operator("/tasks/refund-1/reassign");
  const send = () => page.getByRole("button", { name: "Reassign" }).click();
  await page.getByLabel("New owner").fill("nobody-here");
  await page.getByLabel("Reason").fill("<img src=x onerror=alert(1)>");
  await send();
  await page.getByRole("alert").getByText("Choose another agent").waitFor();
  assert.equal(await page.getByLabel("New owner").inputValue(), "nobody-here");
  assert.equal(await page.getByLabel("Reason").inputValue(), "<img src=x onerror=alert(1)>");
  await shows(page, /--reason '<img src=x onerror=alert\(1\)>'$/);
  await isAccessible(page, "a refused act");
  // The task moves on while the page is open.
  await scene.baton("task", "reassign", "refund-1", "--to", "carol");
  await page.getByLabel("New owner").fill("alice");
  await send();
  const alert = page.getByRole("alert");
  await alert.getByText("STALE_EPOCH").waitFor();
  await alert.getByText("The task has moved on").waitFor();
  await page.getByRole("heading", { name: "Reassign task refund-1 of baton.coordinator?" }).waitFor();
  await shows(page, /--epoch 3 --to alice/);
  await send();
  await page.waitForURL(/\/tasks\/refund-1$/);
  assert.equal((await scene.baton("task", "show", "refund-1")).epoch, "4");
  // A task that has ended offers no act, and its form says so.
  await alice.handOver(await alice.request("bob", "--task", "ended"), bob);
  await bob.status("ended", "canceled");
  await page.goto(`${scene.origin}/tasks/ended`);
  assert.equal(await page.getByRole("link", { name: "Reassign…" }).count(), 0);
  await page.goto(`${scene.origin}/tasks/ended/reassign`);
  await page.getByLabel("New owner").fill("carol");
  await send();
  await page.getByRole("alert").getByText("TASK_FINAL").waitFor();
  scene.expects(/status of 40[049]/);
});

scenario("a plan is cancelled and retried, and its log has both", async (scene) => {
  const alice = await scene.agent("alice");
  await scene.agent("bob");
  const subtasks = [{ id: "one", description: "One.", agent_id: "bob" }, { id: "two", description: "Two.", agent_id: "bob", dependencies: ["one"] }];
  await scene.baton("plan", "submit", scene.file("plan.json", JSON.stringify({ description: "Two steps.", subtasks })), "--plan-id", "report", ...alice.identity);
  const state = async () => (await scene.baton("plan", "show", "report")).state;
  await until("the first step is offered", async () => (await scene.lines("handoff", "list", "--open", "--to", "bob")).length === 1);
  const page = await scene.operator("/plans/report");
  await page.getByRole("link", { name: "Cancel the plan…" }).click();
  await page.getByText("1 subtask being handed over: their handoffs are cancelled.").waitFor();
  await page.getByText("1 subtask not begun: they do not begin.").waitFor();
  await page.getByText("Entry in the audit log: Plan cancelled, on report, with the reason.").waitFor();
  await page.getByLabel("Reason").fill("not needed");
  await shows(page, "baton plan cancel report --reason 'not needed'");
  await isAccessible(page, "cancel a plan");
  await page.getByRole("button", { name: "Cancel the plan" }).click();
  await page.waitForURL(/\/plans\/report$/);
  assert.equal(await state(), "PLAN_STATE_CANCELLED");
  const cancelled = await lastAct(scene);
  assert.deepEqual([cancelled.action, cancelled.subject, cancelled.details], ["AUDIT_ACTION_PLAN_CANCELLED", "report", "not needed"]);
  await page.getByText("not needed").first().waitFor();

  await page.getByRole("link", { name: "Retry the plan…" }).click();
  await page.getByText("2 subtasks that did not complete, or whose work was undone, begin again.").waitFor();
  await page.getByRole("button", { name: "Retry the plan" }).click();
  await page.waitForURL(/\/plans\/report$/);
  assert.equal(await state(), "PLAN_STATE_RUNNING");
  const retried = await lastAct(scene);
  assert.deepEqual([retried.action, retried.subject], ["AUDIT_ACTION_PLAN_RETRIED", "report"]);
  // Again it is refused.
  await page.goto(`${scene.origin}/plans/report/retry`);
  await page.getByRole("button", { name: "Retry the plan" }).click();
  await page.getByRole("alert").getByText("PLAN_RUNNING").waitFor();
  assert.equal(await state(), "PLAN_STATE_RUNNING");
  scene.expects(/status of 409/);
});

scenario("one subtask is reassigned, cancelled and retried", async (scene) => {
  const alice = await scene.agent("alice");
  const [, carol] = [await scene.agent("bob"), await scene.agent("carol")];
  const subtasks = [
    { id: "one", description: "The first step.", agent_id: "bob" },
    { id: "two", description: "Two.", agent_id: "bob", dependencies: ["one"] },
    { id: "three", description: "Three.", agent_id: "bob" },
  ];
  await scene.baton("plan", "submit", scene.file("plan.json", JSON.stringify({ description: "Steps.", subtasks })), "--plan-id", "report", ...alice.identity);
  const offered = (to) => until(`an offer to ${to}`, async () => (await scene.lines("handoff", "list", "--open", "--to", to)).length > 0);
  await offered("bob");
  const one = async () => (await scene.baton("plan", "show", "report")).subtasks.find((subtask) => subtask.id === "one");
  const page = await scene.operator("/plans/report");
  const row = page.locator("#subtask-one");
  await row.getByRole("link", { name: "Reassign subtask one…" }).click();
  await page.getByRole("heading", { name: "Reassign subtask one of plan report?" }).waitFor();
  await page.getByText("The first step.").waitFor();
  await page.getByText("Its open handoff is cancelled.").waitFor();
  await page.getByText("Entry in the audit log: Subtask reassigned, on report/one, with the new agent and the reason.").waitFor();
  await isAccessible(page, "reassign a subtask");
  await isWalkable(page, "reassign a subtask");
  await fitsNarrowScreens(page, "reassign a subtask");
  // A refused act keeps its form.
  await page.getByLabel("New agent").fill("nobody-here");
  await page.getByLabel("Reason").fill("no answer");
  await page.getByRole("button", { name: "Reassign the subtask" }).click();
  await page.getByRole("alert").getByText("RECEIVER_UNKNOWN").waitFor();
  await page.getByLabel("New agent").fill("carol");
  await shows(page, "baton plan subtask reassign report one --to carol --reason 'no answer'");
  await page.getByRole("button", { name: "Reassign the subtask" }).click();
  await page.waitForURL(/\/plans\/report$/);
  await offered("carol");
  const reassigned = await lastAct(scene);
  assert.deepEqual([reassigned.action, reassigned.subject, reassigned.details], ["AUDIT_ACTION_SUBTASK_REASSIGNED", "report/one", "to carol: no answer"]);

  await row.getByRole("link", { name: "Cancel subtask one…" }).click();
  await page.getByText("With it, 1 subtask after it: skipped.").waitFor();
  await page.getByLabel("Reason").fill("not now");
  await shows(page, "baton plan subtask cancel report one --reason 'not now'");
  await page.getByRole("button", { name: "Cancel the subtask" }).click();
  await page.waitForURL(/\/plans\/report$/);
  assert.equal((await one()).state, "SUBTASK_STATE_CANCELLED");
  assert.equal((await lastAct(scene)).action, "AUDIT_ACTION_SUBTASK_CANCELLED");
  assert.equal(await page.locator("#subtask-two").getByRole("link", { name: "Retry" }).count(), 0, "it is skipped because of another");

  await row.getByRole("link", { name: "Retry subtask one…" }).click();
  await page.getByText("Skipped because of it, and now waiting for it again: 1 subtask.").waitFor();
  await shows(page, "baton plan subtask retry report one");
  await page.getByRole("button", { name: "Retry the subtask" }).click();
  await page.waitForURL(/\/plans\/report$/);
  assert.equal((await one()).state, "SUBTASK_STATE_HANDING_OFF");
  assert.equal((await lastAct(scene)).action, "AUDIT_ACTION_SUBTASK_RETRIED");
  // Again it is refused.
  await page.goto(`${scene.origin}/plans/report/subtasks/one/retry`);
  await page.getByRole("button", { name: "Retry the subtask" }).click();
  const alert = page.getByRole("alert");
  await alert.getByText("SUBTASK_STATE").waitFor();
  await alert.getByText("The subtask has moved on.").waitFor();
  await page.goto(`${scene.origin}/plans/report/subtasks/nothing/cancel`);
  await page.getByText("must be a subtask of the plan").waitFor();
  // The reader without the right sees which one it needs, in place of the acts.
  const { url } = await scene.running("console", ...carol.identity);
  const other = await scene.page();
  await other.goto(url);
  await other.waitForURL(/overview/);
  await other.goto(`${scene.origin}/plans/report`);
  await other.locator("#subtask-one").getByText("needs cancelPlan").waitFor();
  assert.equal(await other.getByRole("link", { name: /subtask one…/ }).count(), 0);
  const acts = (await scene.lines("audit")).length;
  await other.goto(`${scene.origin}/plans/report/subtasks/one/cancel`);
  await other.getByText("PERMISSION_DENIED").waitFor();
  assert.equal((await scene.lines("audit")).length, acts);
  // The submitter's own act has no entry, and its page says so.
  const own = await scene.page();
  await own.goto((await scene.running("console", ...alice.identity)).url);
  await own.waitForURL(/overview/);
  await own.goto(`${scene.origin}/plans/report/subtasks/three/cancel`);
  await own.getByText("Entry in the audit log: none: the plan is the submitter's own, and its log has the act.").waitFor();
  await own.getByRole("button", { name: "Cancel the subtask" }).click();
  await own.waitForURL(/\/plans\/report$/);
  assert.equal((await scene.lines("audit")).length, acts);
  scene.expects(/status of 40[0-9]/);
});

scenario("a key is revoked, an agent is invited, and one leaves", async (scene) => {
  await owned(scene);
  const page = await scene.operator("/agents/alice");
  await page.getByRole("link", { name: "Revoke…" }).click();
  await page.getByText("alice has no other key").waitFor();
  await page.getByLabel("Reason").fill("laptop lost");
  await shows(page, /^baton agent key revoke alice \S+ --reason 'laptop lost'$/);
  await page.getByRole("button", { name: "Revoke the key" }).click();
  await page.waitForURL(/\/agents\/alice$/);
  assert.equal((await lastAct(scene)).action, "AUDIT_ACTION_KEY_REVOKED");
  assert.equal(await page.getByRole("link", { name: "Revoke…" }).count(), 0, "a revoked key has no act");

  await page.goto(`${scene.origin}/agents`);
  await page.getByRole("link", { name: "Invite an agent…" }).click();
  await page.getByLabel("Agent", { exact: true }).fill("dora");
  await page.getByLabel("Types").fill("expert, writer");
  await page.getByLabel("Valid for hours").fill("2");
  await page.getByRole("button", { name: "Invite" }).click();
  await page.getByRole("heading", { name: "The invitation is made" }).waitFor();
  await isAccessible(page, "an invitation");
  const invitation = (await page.locator("pre").first().textContent()).trim();
  assert.match(invitation, /^invitation-[0-9a-f]{64}$/);
  assert.equal((await lastAct(scene)).action, "AUDIT_ACTION_INVITATION_CREATED");
  assert.doesNotMatch(JSON.stringify(await scene.lines("audit")), new RegExp(invitation));

  // bob owns a task: without the mark it stays.
  await page.goto(`${scene.origin}/agents/bob`);
  await page.getByRole("link", { name: "Deregister…" }).click();
  await page.getByText("It owns 1 open tasks").waitFor();
  await page.getByRole("button", { name: "Deregister" }).click();
  await page.getByRole("alert").getByText("AGENT_BUSY").waitFor();
  await page.getByLabel("Also with open tasks and offers").check();
  await shows(page, /--force$/);
  await page.getByRole("button", { name: "Deregister" }).click();
  await page.waitForURL(/\/agents\/bob$/);
  await page.getByText("Deregistered", { exact: true }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Deregister…" }).count(), 0);
  assert.equal((await lastAct(scene)).action, "AUDIT_ACTION_AGENT_DEREGISTERED");
  scene.expects(/status of 409/);
});

scenario("a dead letter is redriven and discarded after a look at what happens", async (scene) => {
  const { alice, bob } = await owned(scene);
  for (const task of ["one", "two"]) await bob.reject(await alice.request("bob", "--task", task), "no time");
  const [, letter] = await scene.lines("dlq", "list");
  const page = await scene.operator(`/dead-letters/${letter.deadLetterId}`);
  await page.getByRole("link", { name: "Discard…" }).click();
  await page.getByText("The message is not delivered").waitFor();
  await shows(page, `baton dlq discard ${letter.deadLetterId}`);
  await page.getByRole("link", { name: "Back, and change nothing" }).click();
  await page.getByRole("link", { name: "Redrive…" }).click();
  await page.getByLabel("Deliver to").fill("no such agent!");
  await page.getByRole("button", { name: "Redrive" }).click();
  await page.getByRole("alert").getByText("FIELD_INVALID").waitFor();
  assert.equal((await scene.lines("dlq", "list")).length, 2);
  scene.expects(/status of 400/);
});

scenario("a reader without the right sees which right, and gets no further", async (scene) => {
  const { bob } = await owned(scene);
  const { url } = await scene.running("console", ...bob.identity);
  const page = await scene.page();
  await page.goto(url);
  await page.waitForURL(/overview/);
  await page.goto(`${scene.origin}/tasks/refund-1`);
  await page.getByText("you lack the right reassignTask").waitFor();
  assert.equal(await page.getByRole("link", { name: "Reassign…" }).count(), 0);
  const acts = await scene.lines("audit");
  const statuses = await page.evaluate(async () => {
    const post = (path, body) => fetch(path, { method: "POST", body: new URLSearchParams(body) });
    const asked = [
      ["/tasks/refund-1/reassign", { to: "carol", epoch: "2" }],
      ["/agents/alice/deregister", { force: "yes" }],
      ["/invite", {}],
    ];
    const answers = [];
    for (const [path, body] of asked) {
      const answer = await post(path, body);
      answers.push([answer.status, (await answer.text()).includes("PERMISSION_DENIED")]);
    }
    return answers;
  });
  assert.deepEqual(statuses, [[403, true], [403, true], [403, true]]);
  assert.deepEqual(await scene.lines("audit"), acts);
  scene.expects(/status of 403/);
});
