// The page of `baton console` on which a person decides as an agent.
import assert from "node:assert/strict";
import { fitsNarrowScreens, isAccessible, scenario } from "./harness.js";

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
  // The open page follows without a reload.
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

scenario("a person hands a task over, sends the context, cancels, lends and takes back", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  await scene.agent("carol");
  await alice.handOver(await alice.request("bob", "--task", "crash-7", "--summary", "It crashes."), bob, { trace: { line: 41, note: "# Not a title" } });
  const page = await scene.page();
  await page.goto(await scene.desk(bob));
  const mine = page.getByRole("region", { name: "Task crash-7" });
  await mine.getByText("Hand it over").click();
  assert.deepEqual(await page.locator("datalist#agents option").evaluateAll((all) => all.map((one) => one.value)), ["alice", "carol"]);
  const form = mine.locator("form[action$=hand-over]");
  await form.getByLabel("To").fill("carol");
  await form.getByLabel("How").selectOption("DELEGATE");
  await isAccessible(page, "desk, hand over");
  await form.getByRole("button", { name: "Hand over" }).click();
  const request = page.getByRole("region", { name: "Request to carol about task crash-7" });
  await request.waitFor();
  assert.equal(await mine.getByText("Hand it over").count(), 0, "only acts that can work");
  await request.getByRole("button", { name: "Cancel the handoff" }).click();
  await request.waitFor({ state: "detached" });

  await mine.getByText("Hand it over").click();
  await form.getByLabel("To").fill("carol");
  await form.getByLabel("How").selectOption("DELEGATE");
  await form.getByRole("button", { name: "Hand over" }).click();
  await request.waitFor();
  const carolsPage = await scene.page();
  const carol = { identity: ["--id", "carol", "--key", `${scene.folder}/carol.pem`] };
  await carolsPage.goto(await scene.desk(carol));
  await carolsPage.getByText("lent: it goes back when you finish").waitFor();
  await carolsPage.getByRole("button", { name: "Accept" }).click();
  // bob's page shows it within a moment, by itself.
  const send = page.getByRole("region", { name: "Context for carol" });
  await send.getByLabel("Notes for carol").fill("Look at line 41.\n<b>first</b>");
  await send.getByRole("button", { name: "Send the context" }).click();
  await carolsPage.getByRole("link", { name: "Task crash-7 from bob" }).click();
  await carolsPage.getByText("Look at line 41.").waitFor();
  assert.equal(await carolsPage.locator("main b", { hasText: "first" }).count(), 0, "a text stays a text");
  await carolsPage.getByText("# Not a title").waitFor();
  await isAccessible(carolsPage, "desk, context");
  await fitsNarrowScreens(carolsPage, "desk, context");
  await carolsPage.getByRole("button", { name: "Take the task over" }).click();
  await carolsPage.getByText("lent by bob").waitFor();

  await carolsPage.getByText("Ask a question").click();
  const ask = carolsPage.locator("form[action$=ask]");
  await ask.getByLabel("To").fill("bob");
  await ask.getByLabel("Question").fill("Which version?");
  await ask.getByRole("button", { name: "Ask" }).click();
  await carolsPage.getByText("You have asked bob: Which version?").waitFor();
  await page.getByText("carol asks about task crash-7: Which version?").waitFor();

  const lent = page.getByRole("region", { name: "Lent task crash-7" });
  await lent.getByRole("button", { name: "Take it back" }).click();
  await mine.waitFor();
  assert.equal((await scene.baton("task", "show", "crash-7")).ownerId, "bob");
  await isAccessible(page, "desk");
  await fitsNarrowScreens(page, "desk");
});
