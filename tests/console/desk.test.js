// The page of `baton console` on which a person decides as an agent.
import assert from "node:assert/strict";
import { scenario } from "./harness.js";

scenario("a person accepts, rejects, takes over, answers and finishes in the browser", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const taken = await alice.request("bob", "--task", "taken", "--summary", "A double payment.");
  const refused = await alice.request("bob", "--task", "refused");
  const state = async (handoff) => (await scene.baton("handoff", "show", handoff)).state;
  const page = await scene.page();
  await page.goto(await scene.desk(bob));
  const offer = (task) => page.getByRole("region", { name: `Offer of task ${task}` });

  await offer("taken").getByText("A double payment.").waitFor();
  await offer("taken").getByRole("button", { name: "Accept" }).click();
  await offer("taken").waitFor({ state: "detached" });
  assert.equal(await state(taken), "HANDOFF_STATE_ACCEPTED");

  await offer("refused").getByLabel("Reason").fill("No time today.");
  await offer("refused").getByRole("button", { name: "Reject" }).click();
  await offer("refused").waitFor({ state: "detached" });
  assert.equal(await state(refused), "HANDOFF_STATE_REJECTED");
  assert.equal((await scene.lines("dlq", "list")).length, 1);

  await alice.step("context", taken, "--file", scene.file("context.json", JSON.stringify({ amount: "40 €" })));
  await page.getByRole("link", { name: "Reload" }).click();
  await page.getByRole("link", { name: "Task taken from alice" }).click();
  await page.getByText("40 €").waitFor();
  await page.getByRole("button", { name: "Take the task over" }).click();
  await page.getByRole("heading", { name: "Tasks that you own" }).waitFor();
  assert.equal(await state(taken), "HANDOFF_STATE_COMPLETED");

  await bob.status("taken", "waiting-for-input", "--question", "Which account?", "--answer-by", "alice");
  const other = await scene.page();
  await other.goto(await scene.desk(alice));
  await other.getByText("bob asks about task taken: Which account?").waitFor();
  await other.getByLabel("Answer").fill("The second one.");
  await other.getByRole("button", { name: "Answer" }).click();
  await other.getByRole("heading", { name: "Questions to answer" }).waitFor({ state: "detached" });

  await page.getByLabel("Result").fill("Paid back.");
  await page.getByRole("button", { name: "Completed" }).click();
  await page.getByText("Nothing waits for bob").waitFor();
  const { status, details } = await scene.baton("task", "show", "taken");
  assert.deepEqual([status, details], ["TASK_STATUS_COMPLETED", "Paid back."]);
});

scenario("the page of an agent has a secret address, and a decision that comes too late says so", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const handoff = await alice.request("bob");
  const desk = await scene.desk(bob);
  const page = await scene.page();
  for (const path of ["/", "/console.css", `/${"0".repeat(64)}/`]) {
    assert.equal((await page.goto(new URL(path, desk).href)).status(), 404, path);
  }
  await page.goto(desk);
  await alice.step("cancel", handoff);
  await page.getByRole("button", { name: "Accept" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByRole("link", { name: "Inbox" }).click();
  await page.getByRole("heading", { name: "Inbox of bob" }).waitFor();
  scene.expects(/status of 40[49]/);
});
