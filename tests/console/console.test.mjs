// The web console in a browser. A name begins with the number of the requirement that it shows.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

import { Broker, Browser, PAGES, TEXT, until } from "./broker.mjs";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

let broker, browser, details;

before(async () => {
  broker = await Broker.start();
  browser = await Browser.open();
  details = await broker.story();
});

after(async () => {
  await broker.end();
  await browser.end();
});

const all = () => [...PAGES, ...details];

test("C1: without a session each page leads to the login, and from there back", async () => {
  const page = await (await browser.context()).newPage();
  for (const path of all()) {
    await page.goto(broker.url + path);
    assert.equal(new URL(page.url()).pathname, "/login", path);
  }
  await page.goto(`${broker.url}/handoffs?state=all`);
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Token").fill(broker.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL(`${broker.url}/handoffs?state=all`);
});

test("C1: an address with a code logs in once", async () => {
  const made = await broker.baton("console");
  const page = await (await browser.context()).newPage();
  await page.goto(made.url);
  await page.waitForURL(`${broker.url}/overview`);
  const other = await (await browser.context()).newPage();
  await other.goto(made.url);
  await other.getByRole("alert").waitFor();
  assert.ok(!other.url().includes("code"), "the code stays in the address");
});

test("C3: a form on a page of another origin changes nothing", async () => {
  const page = await browser.loggedIn(broker);
  const target = `${broker.url}${details[2]}/discard`;
  const server = createServer((_, answer) => {
    answer.setHeader("content-type", "text/html").setHeader("content-security-policy", "default-src 'none'");
    answer.setHeader("x-content-type-options", "nosniff");
    answer.end(`<form method="post" action="${target}"><button>Win</button></form>`);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  // Another name is another site.
  await page.goto(`http://localhost:${server.address().port}/`);
  await Promise.all([page.waitForURL(target), page.getByRole("button", { name: "Win" }).click()]);
  assert.match(await page.textContent("body"), /does not come from a page of this console/);
  server.close();
  assert.equal((await broker.baton("dlq", "show", details[2].split("/")[2])).state, "DEAD_LETTER_STATE_PARKED");
});

test("C4: an open list shows a new handoff and its states, and keeps focus, text and place", async () => {
  const page = await browser.loggedIn(broker, { viewport: { width: 800, height: 300 } });
  await page.goto(`${broker.url}/handoffs?state=all`);
  const filter = page.getByLabel("Agent");
  await filter.fill("half a na");
  await filter.focus();
  await page.evaluate(() => {
    window.mark = true;
    window.scrollTo(0, 40);
  });
  await broker.baton("handoff", "request", ...broker.as("alice"), "--to", "bob", "--task", "live-1");
  const row = page.getByRole("row").filter({ hasText: "live-1" });
  await row.filter({ hasText: "bob receives the request" }).waitFor();
  await broker.baton("handoff", "accept", "live-1", ...broker.as("bob"));
  await row.filter({ hasText: "ACCEPTED" }).waitFor();
  await broker.baton("handoff", "context", "live-1", ...broker.as("alice"), "--file", "context.json");
  await row.filter({ hasText: "CONTEXT_SENT" }).waitFor();
  await broker.baton("handoff", "complete", "live-1", ...broker.as("bob"), "--yes");
  await row.filter({ hasText: "COMPLETED" }).waitFor();
  const kept = await page.evaluate(() => [window.mark, document.activeElement.name, window.scrollY]);
  assert.deepEqual(kept, [true, "agent", 40]);
  assert.equal(await filter.inputValue(), "half a na");
});

test("C5: an open page says that the broker is gone, and goes on after a new login", async (t) => {
  const own = await Broker.start();
  t.after(() => own.end());
  const page = await browser.loggedIn(own);
  await page.goto(`${own.url}/handoffs`);
  const port = own.address.split(":")[1];
  await own.kill();
  await page.getByRole("status").filter({ hasText: "The connection to the broker is lost" }).waitFor();
  await own.run(port);
  // Sessions are in memory, so the restart has ended this one.
  await page.waitForURL(`${own.url}/login?next=%2Fhandoffs`);
  await page.getByLabel("Token").fill(own.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL(`${own.url}/handoffs`);
  await page.context().close();
});

test("C6: the owners of a task are those of its custody log", async () => {
  const page = await browser.loggedIn(broker);
  await page.goto(`${broker.url}/tasks/invoice-7`);
  const rows = page.getByRole("region", { name: "Owners", exact: true }).locator("tbody tr");
  const shown = await rows.evaluateAll((rows) => rows.map((row) => [...row.cells].slice(0, 2).map((cell) => cell.innerText)));
  const task = await broker.baton("task", "show", "invoice-7");
  const owners = ["alice", ...task.hops.map((hop) => hop.receiverId)];
  assert.deepEqual(shown, owners.map((owner, place) => [`${place + 1}`, owner]));
  assert.equal(shown.length, 5);
});

test("C7: a redrive by filter sends what matches, and the rest stays", async (t) => {
  const own = await Broker.start();
  t.after(() => own.end());
  await own.story();
  for (const task of ["other-1", "other-2"]) {
    await own.baton("handoff", "request", ...own.as("alice"), "--to", "carol", "--task", task);
    await own.baton("handoff", "reject", task, ...own.as("carol"));
  }
  const page = await browser.loggedIn(own);
  await page.goto(`${own.url}/dead-letters`);
  assert.equal(await page.locator("tbody tr").count(), 5);
  await page.getByLabel("Mailbox").fill("bob");
  await page.getByRole("button", { name: "Redrive the matching" }).click();
  await page.getByRole("heading", { name: "Redrive 3 dead letters?" }).waitFor();
  assert.equal((await own.baton("dlq", "list")).length, 5);
  await page.getByRole("button", { name: "Redrive" }).click();
  await page.getByRole("heading", { name: "3 redriven, 0 refused" }).waitFor();
  const left = await own.baton("dlq", "list");
  assert.deepEqual(left.map((dead) => dead.agentId), ["carol", "carol"]);
  await page.context().close();
});

test("C8: axe finds nothing on any page, light and dark, and the tab key reaches everything", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await browser.loggedIn(broker, { colorScheme });
    for (const path of ["/login", ...all(), "/dead-letters/redrive?agent=bob", "/handoffs/x"]) {
      await page.goto(broker.url + path);
      await page.waitForLoadState();
      // By the inspector, because the page's own policy permits no foreign script.
      await page.evaluate(await readText(AXE));
      const found = await page.evaluate(() => axe.run());
      assert.deepEqual(found.violations.map((each) => [each.id, each.nodes.map((node) => node.html)]), [], path);
    }
    await page.goto(`${broker.url}/dead-letters`);
    const wanted = await page.locator("a, button, input:not([type=hidden]), select, [tabindex='0']").count();
    const reached = await page.evaluate(() => (window.reached = new Set(), 0));
    assert.equal(reached, 0);
    for (let presses = 0; presses < wanted; presses += 1) {
      await page.keyboard.press("Tab");
      await page.evaluate(() => window.reached.add(document.activeElement));
    }
    assert.equal(await page.evaluate(() => (window.reached.delete(document.body), window.reached.size)), wanted);
    await page.context().close();
  }
});

test("C8: at 400 pixels no page is wider than the window", async () => {
  const page = await browser.loggedIn(broker, { viewport: { width: 400, height: 800 } });
  for (const path of all()) {
    await page.goto(broker.url + path);
    const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(width <= 400, `${path} is ${width} wide`);
  }
});

test("C9: without JavaScript all pages can be read, and the login works", async () => {
  const page = await browser.loggedIn(broker, { javaScriptEnabled: false });
  for (const path of all()) {
    const answer = await page.goto(broker.url + path);
    assert.equal(answer.status(), 200, path);
    assert.ok(await page.getByRole("heading", { level: 1 }).isVisible(), path);
    assert.ok((await answer.body()).length < 100_000, `${path} is too long`);
  }
});

test("C10: what an agent writes is text", async () => {
  const page = await browser.loggedIn(broker);
  for (const path of [details[0], details[2], details[3]]) {
    await page.goto(broker.url + path);
    const texts = await page.locator("main").innerText();
    assert.ok(texts.includes("<img src=x onerror=alert(1)>"), texts);
    assert.equal(await page.locator("main img").count(), 0);
  }
});

test("a person decides in the browser as an agent", async () => {
  await broker.baton("handoff", "request", ...broker.as("alice"), "--to", "bob", "--task", "desk-1", "--summary", TEXT);
  const args = ["console", "-o", "jsonl", ...broker.as("bob")];
  const desk = spawn(process.env.BATON_BIN, args, { cwd: broker.folder, env: { ...broker.env, BATON_TOKEN: "" } });
  let said = "";
  desk.stdout.on("data", (text) => (said += text));
  await until("the desk is open", () => said.endsWith("\n"));
  const page = await (await browser.context()).newPage();
  await page.goto(JSON.parse(said).deskUrl);
  await page.getByText("<img src=x onerror=alert(1)>").waitFor();
  await page.evaluate(await readText(AXE));
  const found = await page.evaluate(() => axe.run());
  assert.deepEqual(found.violations.map((each) => [each.id, each.nodes.map((node) => node.html)]), []);
  const offer = page.getByRole("region", { name: "Offer of task desk-1" });
  await offer.getByRole("button", { name: "Accept" }).click();
  await offer.waitFor({ state: "detached" });
  const [handoff] = await broker.baton("handoff", "list", "--task", "desk-1");
  assert.equal(handoff.state, "HANDOFF_STATE_ACCEPTED");
  const ended = new Promise((done) => desk.once("exit", done));
  desk.kill("SIGINT");
  assert.equal(await ended, 0);
});

test("C12: the pictures of the documentation", { skip: !process.env.SCREENSHOTS }, async () => {
  const folder = process.env.SCREENSHOTS;
  mkdirSync(folder, { recursive: true });
  const names = { "/overview": "overview", "/handoffs?state=all": "handoffs", [details[0]]: "handoff" };
  names["/dead-letters"] = "dead-letters";
  Object.assign(names, { "/agents": "agents", "/agents/alice": "agent", "/plans": "plans", "/plans/quarter-3": "plan" });
  Object.assign(names, { "/audit": "audit", "/tasks/invoice-7?verify=1": "task" });
  for (const colorScheme of ["light", "dark"]) {
    // Without JavaScript, so that no refresh brings back what is replaced below.
    const options = { colorScheme, javaScriptEnabled: false, viewport: { width: 960, height: 480 } };
    const page = await browser.loggedIn(broker, options);
    for (const [path, name] of Object.entries(names)) {
      await page.goto(broker.url + path);
      // Ids and times differ at each run; the pictures must not.
      await page.evaluate(() => {
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const node = walker.currentNode;
          node.data = node.data.replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, "0198c0de-0000-7000-8000-000000000001");
        }
        for (const time of document.querySelectorAll("time")) {
          time.textContent = time.textContent.includes("T") ? "2026-11-22T09:41:00Z" : "59s";
        }
      });
      await page.screenshot({ path: `${folder}/${name}-${colorScheme}.png` });
    }
    await page.context().close();
  }
});

async function readText(path) {
  const { readFile } = await import("node:fs/promises");
  return readFile(path, "utf8");
}
