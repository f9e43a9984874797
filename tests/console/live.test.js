// Pages that stay open while the broker goes on.
import assert from "node:assert/strict";
import { isAccessible, rows, scenario } from "./harness.js";

scenario("C4: a handoff appears in an open list and moves on, and the reader keeps the place", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  await scene.agent("carol");
  for (let count = 0; count < 20; count++) await alice.request("carol");
  const page = await scene.operator("/handoffs", { viewport: { width: 700, height: 640 } });
  await page.evaluate(() => (globalThis.isTheSame = true));
  const typed = page.getByLabel("Type");
  await typed.fill("half a wo");
  // A link in the middle of the list, in the middle of the window.
  const link = page.locator("tbody tr").nth(12).getByRole("link").first();
  const focused = await link.getAttribute("href");
  await link.evaluate((element) => {
    element.focus();
    element.scrollIntoView({ block: "center" });
    globalThis.focused = element;
    // The table is wider than a narrow window, and is looked at in its middle.
    globalThis.table = element.closest(".wide");
    globalThis.table.scrollLeft = 40;
    globalThis.leftBefore = globalThis.table.scrollLeft;
    globalThis.topBefore = element.getBoundingClientRect().top;
  });

  const handoff = await alice.request("bob", "--task-type", "report");
  const row = page.locator(`#handoff-${handoff}`);
  await row.waitFor();
  const shows = (text) => row.getByText(text, { exact: true }).waitFor();
  await shows("Requested");
  await bob.receive();
  await shows("Deciding");
  await row.getByText("bob decides").waitFor();
  await bob.step("accept", handoff);
  await shows("Accepted");
  await row.getByText("alice prepares the context").waitFor();
  await alice.step("context", handoff, "--file", scene.file("context.json", "{}"));
  await shows("Context sent");
  await bob.step("complete", handoff, "--yes");
  // The list shows open handoffs.
  await row.waitFor({ state: "detached" });
  assert.equal((await rows(page)).length, 20);

  const kept = await page.evaluate(() => ({
    isTheSame: globalThis.isTheSame,
    isFocused: document.activeElement === globalThis.focused,
    href: document.activeElement.getAttribute("href"),
    left: [globalThis.leftBefore, globalThis.table.scrollLeft],
    moved: Math.round(globalThis.focused.getBoundingClientRect().top - globalThis.topBefore),
  }));
  assert.deepEqual(kept, { isTheSame: true, isFocused: true, href: focused, left: [40, 40], moved: 0 });
  assert.equal(await typed.inputValue(), "half a wo");
});

scenario("C4: the page of a handoff follows it to its end", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const handoff = await alice.request("bob");
  const page = await scene.operator(`/handoffs/${handoff}`);
  await page.evaluate(() => (globalThis.isTheSame = true));
  await alice.handOver(handoff, bob);
  await page.locator("dd").getByText("Completed", { exact: true }).waitFor();
  const steps = page.getByRole("list", { name: "Steps" });
  assert.deepEqual(
    [...new Set(await steps.locator(".chip").allInnerTexts())],
    ["Requested", "Deciding", "Accepted", "Context sent", "Completed"],
  );
  assert.ok(await page.evaluate(() => globalThis.isTheSame), "the page was not loaded again");
});

scenario("C5: an open page says that the broker is gone, and goes on when it is back", async (scene) => {
  const [alice] = [await scene.agent("alice"), await scene.agent("bob")];
  const first = await alice.request("bob");
  const page = await scene.operator("/handoffs?state=all");
  await page.locator(`#handoff-${first}`).waitFor();
  scene.expects(/Failed to load resource/);
  await scene.kill();
  await page.getByRole("status").getByText("The connection to the broker is lost.").waitFor();
  // What was there stays readable.
  await page.locator(`#handoff-${first}`).waitFor();
  await isAccessible(page, "a page without its broker");
  await scene.restart();
  // A restart ends all sessions. The page goes to the login by itself, and from there back.
  await page.waitForURL((url) => url.pathname === "/login");
  const second = await alice.request("bob");
  await scene.logIn(page);
  assert.equal(page.url(), `${scene.origin}/handoffs?state=all`);
  assert.deepEqual(await rows(page), [`handoff-${second}`, `handoff-${first}`]);
  assert.equal(await page.getByRole("status").innerText(), "");
  const third = await alice.request("bob");
  await page.locator(`#handoff-${third}`).waitFor();
});

scenario("C4: a page that was just opened is not replaced by an older one", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  await bob.reject(await alice.request("bob"), "no time");
  const [{ deadLetterId }] = await scene.lines("dlq", "list");
  const path = `/dead-letters/${deadLetterId}`;
  const refreshed = (page) =>
    page.waitForResponse((answer) => answer.url().endsWith(path) && answer.request().headers()["baton-refresh"] === "1");
  const page = await scene.page();
  await page.goto(scene.origin + path);
  // The first refresh of the page, and the decision right after it.
  await Promise.all([refreshed(page), scene.logIn(page)]);
  const answer = refreshed(page);
  await page.getByRole("link", { name: "Discard…" }).click();
  await page.getByRole("button", { name: "Discard" }).click();
  await page.getByText("Discarded", { exact: true }).waitFor();
  assert.match(await (await answer).text(), /Discarded/);
});
