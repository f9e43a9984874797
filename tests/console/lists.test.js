// What the lists and the details say, and that they stay short.
import assert from "node:assert/strict";
import { fitsNarrowScreens, isAccessible, rows, scenario, until } from "./harness.js";

const BYTES_MAX = 100_000;

scenario("a page stays under 100 KB with hundreds of handoffs, and the next pages have the rest", async (scene) => {
  const alice = await scene.agent("alice");
  const receivers = [];
  for (let count = 0; count < 52; count++) receivers.push((await scene.agent(`receiver-${count}`)).id);
  // A plan of 52 subtasks is 52 handoffs, and takes one command.
  const handoff_timeouts = { accept: "3600s", whole: "7200s" };
  const subtasks = receivers.map((agent_id, index) => ({ id: `step-${index}`, description: "a step", agent_id, handoff_timeouts }));
  const plan = { mode: "PARALLEL", max_concurrency: 64, subtasks };
  const file = scene.file("plan.json", JSON.stringify(plan));
  for (const id of ["north", "east", "south", "west"]) await scene.baton("plan", "submit", file, "--plan-id", id, ...alice.identity);
  const open = () => scene.lines("handoff", "list", "--open", "--limit", "1000");
  const handoffs = await until("all are open", async () => {
    const all = await open();
    return all.length === 4 * receivers.length && all;
  });
  const expected = handoffs.map((handoff) => `handoff-${handoff.handoffId}`);
  const page = await scene.operator();
  /** Opens a list and all pages that follow it. */
  const walk = async (path) => {
    const [seen, pages] = [[], []];
    for (let url = scene.origin + path; url; ) {
      const answer = await page.goto(url);
      const bytes = (await answer.body()).length;
      assert.ok(answer.status() === 200 && bytes < BYTES_MAX, `${url}: ${answer.status()}, ${bytes} bytes`);
      seen.push(...(await rows(page)));
      pages.push(url);
      const next = page.getByRole("link", { name: "Next page" });
      url = (await next.count()) && new URL(await next.getAttribute("href"), url).href;
    }
    return { seen, pages: pages.length };
  };
  assert.deepEqual(await walk("/handoffs"), { seen: expected, pages: 5 });
  assert.deepEqual((await walk("/handoffs?agent=receiver-7")).seen.length, 4);
  // Beside these, the coordinator of the plans is an agent.
  assert.ok((await walk("/agents")).seen.length > receivers.length);
  assert.equal((await walk("/plans")).seen.length, 4);
  const tasks = await walk("/tasks");
  assert.equal(new Set(tasks.seen).size, 4 * receivers.length);
  assert.deepEqual(await walk("/tasks?state=open"), tasks);
  // A search that matches nothing looks at a bounded number of tasks, and so ends.
  assert.deepEqual(await walk("/tasks?q=nothing-of-this-kind"), { seen: [], pages: 1 });
  assert.ok((await walk("/plans/north")).seen.length >= receivers.length);
  assert.ok((await walk("/audit")).seen.length > receivers.length);
  const overview = (await walk("/overview")).seen.filter((id) => id.startsWith("move-"));
  assert.ok(overview.length >= 10 && overview.length <= 50, `${overview.length} moves on the overview`);
});

scenario("C6: the owners of a task are those of its custody log", async (scene) => {
  const agents = new Map();
  for (const id of ["alice", "bob", "carol"]) agents.set(id, await scene.agent(id));
  const expected = [["1", "alice", ""]];
  const hops = [["alice", "bob"], ["bob", "carol"], ["carol", "alice"], ["alice", "carol"], ["carol", "bob"]];
  for (const [index, [from, to]] of hops.entries()) {
    const epoch = `${index + 1}`;
    const handoff = await agents.get(from).request(to, "--task", "relay", "--epoch", epoch);
    await agents.get(from).handOver(handoff, agents.get(to));
    expected.push([`${index + 2}`, to, handoff]);
  }
  await agents.get("bob").status("relay", "completed");
  // The first entry of each epoch names its owner.
  const entries = (await scene.lines("task", "watch", "relay")).map(({ entry }) => entry.entry);
  const owners = entries.filter((entry, index) => entry.epoch !== entries[index - 1]?.epoch);
  assert.deepEqual(owners.map(({ epoch, ownerId }) => [epoch, ownerId]), expected.map(([epoch, owner]) => [epoch, owner]));

  const page = await scene.operator("/tasks/relay");
  const table = (name) => page.getByRole("region", { name, exact: true }).locator("tbody tr");
  const texts = (name, ...columns) =>
    table(name).evaluateAll((all, columns) => all.map((row) => columns.map((column) => row.cells[column].innerText)), columns);
  assert.deepEqual(await texts("Owners", 0, 1, 3), expected);
  const moved = expected.slice(1).map(([, to, handoff], index) => [`handoff-${handoff}`, hops[index][0], to, "Completed"]);
  const handoffs = await texts("Handoffs", 1, 2, 3);
  const ids = await table("Handoffs").evaluateAll((all) => all.map((row) => row.id));
  assert.deepEqual(handoffs.map((row, index) => [ids[index], ...row]), moved.reverse());
});

scenario("the page of an agent has its processes, and what each works on", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const page = await scene.operator("/agents/bob");
  const processes = page.getByRole("table", { name: "Processes" }).locator("tbody tr");
  assert.equal(await processes.count(), 0);
  const first = scene.executing(bob, "sleep", "600");
  await processes.getByText("nothing").waitFor();
  assert.match(await processes.locator("th .id").getAttribute("title"), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  const handoff = await alice.request("bob", "--task", "build-1");
  await until("bob accepts", async () => (await scene.baton("handoff", "show", handoff)).state === "HANDOFF_STATE_ACCEPTED");
  await alice.step("context", handoff, "--file", scene.file("context.json", "{}"));
  await processes.getByRole("link", { name: "build-1" }).waitFor();
  scene.executing(bob, "sleep", "600");
  await processes.nth(1).waitFor();
  assert.equal(await processes.count(), 2);
  await isAccessible(page, "processes");
  await fitsNarrowScreens(page, "processes");
  first.kill("SIGKILL");
  await until("the process is gone", async () => (await processes.count()) === 1);
  await processes.getByText("nothing").waitFor();
  assert.equal(await processes.getByRole("link", { name: "build-1" }).count(), 0);
});
