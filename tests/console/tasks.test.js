// The list of tasks with its search, the story of a task, and what needs somebody.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { isAccessible, rows, scenario, until } from "./harness.js";

/** Two tasks with summaries, one of which was refused and handed over. */
async function work(scene) {
  const [alice, bob, carol] = [await scene.agent("alice"), await scene.agent("bob"), await scene.agent("carol")];
  const refund = await alice.request("bob", "--task", "refund-21", "--task-type", "refund", "--summary", "Money back for Ada, who paid twice.");
  await bob.step("accept", refund);
  const report = await alice.request("bob", "--task", "report-5", "--task-type", "report", "--summary", "The growth of the last year.", "--fallback", "carol");
  await bob.reject(report, "I have no numbers.");
  await carol.step("accept", report);
  await alice.step("context", report, "--file", scene.file("report.json", "{}"));
  await carol.step("complete", report, "--yes");
  return { alice, bob, carol, refund, report };
}

scenario("a search finds a task by its words, its type, its agents, its id and its handoff", async (scene) => {
  const { refund } = await work(scene);
  const page = await scene.operator("/tasks");
  assert.deepEqual((await rows(page)).sort(), ["task-refund-21", "task-report-5"]);
  const search = page.getByRole("searchbox");
  for (const [words, expected] of [
    ["paid ADA", ["task-refund-21"]],
    ["growth", ["task-report-5"]],
    ["refund", ["task-refund-21"]],
    ["carol", ["task-report-5"]],
    ["report-5", ["task-report-5"]],
    [refund, ["task-refund-21"]],
    ["twice growth", []],
  ]) {
    await search.fill(words);
    await Promise.all([page.waitForURL((url) => url.searchParams.get("q") === words), search.press("Enter")]);
    assert.deepEqual(await rows(page), expected, words);
    // The address has the search, so it can be kept and sent.
    await page.goto(page.url());
    assert.equal(await search.inputValue(), words);
  }
  await page.getByText("No task matches").waitFor();
  for (const [query, expected] of [
    ["state=open&owner=carol", ["task-report-5"]],
    ["type=refund", ["task-refund-21"]],
    ["state=COMPLETED", []],
    ["state=open&q=money", ["task-refund-21"]],
  ]) {
    await page.goto(`${scene.origin}/tasks?${query}`);
    assert.deepEqual(await rows(page), expected, query);
  }
  const row = async (id) => page.locator(`#task-${id} td`).allInnerTexts();
  await page.goto(`${scene.origin}/tasks`);
  assert.deepEqual((await row("refund-21")).slice(1, 4), ["alice", "Created", "alice prepares the context"]);
  assert.deepEqual((await row("report-5")).slice(1, 4), ["carol", "Created", "carol works on it"]);
});

scenario("the list of tasks is used with the keyboard alone", async (scene) => {
  await work(scene);
  const page = await scene.operator("/tasks");
  const [first, second] = await rows(page);
  const at = () => page.evaluate(() => document.activeElement.closest("tr")?.id);
  for (const [key, expected] of [["j", first], ["j", second], ["j", second], ["k", first]]) {
    await page.keyboard.press(key);
    assert.equal(await at(), expected, key);
  }
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: `Task ${first.replace("task-", "")}` }).waitFor();
  await page.goBack();
  await page.keyboard.press("/");
  await page.keyboard.type("jk growth");
  assert.equal(await page.getByRole("searchbox").inputValue(), "jk growth");
});

const OWN_ALONE = fileURLToPath(new URL("../../crates/broker/src/policy/default.cedar", import.meta.url));

const findsItsOwn = async (scene) => {
  const { refund } = await work(scene);
  const { url } = await scene.running("console", "--id", "carol", "--key", `${scene.folder}/carol.pem`);
  const page = await scene.page();
  await page.goto(url);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  for (const query of ["", "q=money", "q=refund-21", `q=${refund}`]) {
    await page.goto(`${scene.origin}/tasks?${query}`);
    assert.deepEqual(await rows(page), query === "" ? ["task-report-5"] : [], query);
    assert.ok(!(await page.content()).includes("paid twice"), query);
  }
};
scenario("an agent finds its own tasks alone", findsItsOwn, "--policy", OWN_ALONE);

scenario("the page of a task tells its story from the request to the answer", async (scene) => {
  const { alice, carol } = await work(scene);
  await carol.status("report-5", "waiting-for-input", "--question", "In euros?", "--answer-by", "alice");
  const page = await scene.operator("/tasks/report-5");
  const story = () => page.getByRole("list", { name: "Story" }).getByRole("listitem").allInnerTexts();
  const says = (all, ...words) => all.findIndex((text) => words.every((word) => text.includes(word)));
  await until("the question", async () => says(await story(), "carol asks alice", "In euros?") > 0);
  await page.getByText("alice answers a question").waitFor();
  await scene.baton("task", "input", "report-5", ...alice.identity, "--text", "Yes, and in yen.");
  await carol.status("report-5", "completed", "--details", "All numbers are in.");
  await until("the end", async () => says(await story(), "carol ends the task: completed") > 0);
  const all = await story();
  const order = [
    says(all, "alice asks bob to take over", "The growth of the last year."),
    says(all, "bob refuses; carol is asked next", "I have no numbers."),
    says(all, "carol accepts"),
    says(all, "carol takes the task over, epoch 2"),
    says(all, "carol asks alice", "In euros?"),
    says(all, "alice answers", "Yes, and in yen."),
    says(all, "carol ends the task: completed", "All numbers are in."),
  ];
  assert.ok(order.every((place, index) => place >= 0 && place > (order[index - 1] ?? -1)), `${order}: ${all.join(" | ")}`);
});

scenario("the overview says what needs somebody, worst first, until it is done", async (scene) => {
  const { alice, bob, carol } = await work(scene);
  const page = await scene.operator();
  await page.getByText("Nothing: no deadline is near").waitFor();
  await carol.status("report-5", "waiting-for-input", "--question", "In euros?", "--answer-by", "alice");
  await bob.reject(await alice.request("bob", "--task", "late-1", "--summary", "Nobody wants this."), "no");
  const near = ["--accept-timeout", "2m", "--summary", "Decide at once."];
  const flags = ["--to", "bob", "--task", "near-1", "--whole-timeout", "3m", "--context-timeout", "1m", "--complete-timeout", "1m", ...near];
  const { handoffId } = await scene.baton("handoff", "request", ...alice.identity, ...flags);
  const needs = page.getByRole("list", { name: "Needs somebody" });
  const kinds = () => needs.locator(".chip").allInnerTexts();
  await until("all three", async () => (await kinds()).join() === "Due,Parked,Question");
  assert.match(await needs.innerText(), /Decide at once\.[^]*1 dead letter: no candidate[^]*The growth of the last year\./);
  await needs.getByRole("link", { name: "Decide at once." }).click();
  assert.equal(new URL(page.url()).pathname, `/handoffs/${handoffId}`);
  await page.goBack();
  await alice.step("cancel", handoffId);
  const [{ deadLetterId }] = await scene.lines("dlq", "list");
  await scene.baton("dlq", "discard", deadLetterId, "--reason", "old");
  await scene.baton("task", "input", "report-5", ...alice.identity, "--text", "Yes.");
  await page.getByText("Nothing: no deadline is near").waitFor();
  // What has ended is counted, and drawn.
  assert.ok((await page.locator("svg.chart rect").count()) > 0);
});

scenario("on a phone the first screen of a list says what, whose turn and until when", async (scene) => {
  const { refund } = await work(scene);
  const page = await scene.operator("/tasks", { viewport: { width: 390, height: 844 } });
  for (const [path, row] of [["/tasks", "#task-refund-21"], ["/handoffs", `#handoff-${refund}`]]) {
    await page.goto(scene.origin + path);
    for (const text of ["Money back for Ada", "alice prepares the context", " min"]) {
      const box = await page.locator(row).getByText(text).first().boundingBox();
      assert.ok(box.x >= 0 && box.x + box.width <= 390, `${path}: ${text}`);
    }
    const label = await page.locator(`${row} td[data-l="Whose turn"]`).evaluate((cell) => getComputedStyle(cell, "::before").content);
    assert.equal(label, '"Whose turn"');
  }
});

scenario("an id is cut for the eye and whole in a copy, a fold stays open, and the files stay small", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const long = "A reason of many words. ".repeat(40).trim();
  const refused = await alice.request("bob", "--task", "long-1");
  await bob.reject(refused, long);
  const page = await scene.operator("/dead-letters");
  const id = page.locator("a.id", { hasText: refused });
  const { width, whole, copied, title } = await id.evaluate((element) => {
    getSelection().selectAllChildren(element);
    return { width: element.clientWidth, whole: element.scrollWidth, copied: `${getSelection()}`, title: element.title };
  });
  assert.ok(width < whole, `${width} of ${whole}`);
  assert.deepEqual([copied, title], [refused, refused]);

  await page.goto(`${scene.origin}/handoffs/${refused}`);
  const fold = page.locator("details.more", { hasText: long }).first();
  const height = () => fold.evaluate((element) => element.clientHeight);
  const before = await height();
  await fold.locator("summary").click();
  assert.ok((await height()) > before, "the fold opens");
  const refreshed = page.waitForResponse((answer) => answer.request().headers()["baton-refresh"] === "1");
  await alice.request("bob", "--task", "long-2");
  await refreshed;
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  assert.equal(await fold.evaluate((element) => element.open), true);

  let bytes = 0;
  for (const file of ["console.css", "console.js", "idiomorph.js", "icon.svg"]) {
    bytes += (await (await page.request.get(`${scene.origin}/${file}`)).body()).length;
  }
  assert.ok(bytes <= 60 * 1024, `${bytes} bytes`);
});

scenario("a view of the tasks is saved in the browser, and a search by conversation finds its tasks alone", async (scene) => {
  const alice = await scene.agent("alice");
  await scene.agent("bob");
  for (const chat of ["chat-1", "chat-2"]) await alice.request("bob", "--task", `of-${chat}`, "--conversation", chat);
  const page = await scene.operator("/tasks");
  await page.getByLabel("Conversation").fill("chat-2");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.waitForURL(/conversation=chat-2/);
  assert.deepEqual(await rows(page), ["task-of-chat-2"]);
  const name = "<img src=x onerror=alert(1)>";
  await page.getByLabel("Name of this view").fill(name);
  await page.getByRole("button", { name: "Save" }).click();
  const view = page.getByRole("list", { name: "Saved views" }).getByRole("link", { name });
  await view.waitFor();
  await isAccessible(page, "saved views");
  await page.goto(`${scene.origin}/tasks`);
  await alice.request("bob", "--task", "third");
  await page.locator("#task-third").waitFor();
  await view.click();
  await page.waitForURL(/conversation=chat-2/);
  assert.equal(await view.getAttribute("aria-current"), "true");
  assert.deepEqual(await rows(page), ["task-of-chat-2"]);
  await page.getByRole("button", { name: `Remove ${name}` }).click();
  await view.waitFor({ state: "detached" });
  // What another program has left in the store of the browser does no harm.
  for (const text of ["{", "[1, null]", JSON.stringify([{ name: "x", query: 5 }])]) {
    await page.evaluate((text) => localStorage.setItem("baton-views", text), text);
    await page.reload();
    assert.equal(await page.getByRole("list", { name: "Saved views" }).getByRole("link").count(), 0);
  }
  assert.equal((await page.goto(`${scene.origin}/tasks?conversation=${"x".repeat(5000)}`)).status(), 400);
  scene.expects(/status of 400/);
});

scenario("the overview follows the latest moves", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const page = await scene.operator("/overview");
  const handoff = await alice.request("bob", "--task", "moving", "--summary", "A double payment.");
  const moves = page.getByRole("table", { name: "Latest moves" }).locator("tbody");
  await moves.getByRole("row").filter({ hasText: "alice asks bob" }).waitFor();
  await bob.receive();
  await bob.step("accept", handoff);
  await moves.getByRole("row").filter({ hasText: "bob accepts A double payment." }).waitFor();
  assert.match(await moves.getByRole("row").first().innerText(), /bob accepts/, "latest first");
});
