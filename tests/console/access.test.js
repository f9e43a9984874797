// Who gets in, and what the browser lets through.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import { scenario } from "./harness.js";

const ID = "01890000-0000-7000-8000-000000000000";
const PAGES = [
  "/overview",
  "/handoffs",
  "/handoffs?state=all&agent=alice",
  `/handoffs/${ID}`,
  "/tasks",
  "/tasks?q=crash&state=open&owner=alice",
  `/tasks/${ID}`,
  `/tasks/${ID}?verify=1`,
  "/map",
  "/agents",
  "/agents/alice",
  "/plans",
  "/plans/report",
  "/workspaces/x",
  "/negotiations",
  `/negotiations/${ID}`,
  "/threads",
  `/threads/${ID}`,
  "/runs",
  `/runs/${ID}`,
  "/registry",
  "/audit",
  "/policy",
  "/dead-letters",
  "/dead-letters/1",
  "/dead-letters/redrive?agent=alice",
  "/dead-letters/1/redrive",
  "/dead-letters/1/discard",
  "/tasks/t/reassign",
  "/plans/report/cancel",
  "/plans/report/retry",
  "/plans/report/subtasks/fetch/cancel",
  "/plans/report/subtasks/fetch/retry",
  "/plans/report/subtasks/fetch/reassign",
  `/runs/${ID}/cancel`,
  `/negotiations/${ID}/cancel`,
  "/agents/alice/deregister",
  "/agents/alice/keys/k1/revoke",
  "/invite",
];

scenario("C1: each page sends a browser without a session to the login, and on after it", async (scene) => {
  const page = await scene.page();
  for (const path of PAGES) {
    await page.goto(scene.origin + path);
    const at = new URL(page.url());
    assert.equal(at.pathname, "/login", path);
    assert.equal(at.searchParams.get("next") ?? PAGES[0], path);
  }
  await page.goto(scene.origin + PAGES[2]);
  await scene.logIn(page);
  assert.equal(page.url(), scene.origin + PAGES[2]);
});

scenario("C1: a wrong token is refused, and a logout ends the session", async (scene) => {
  const page = await scene.page();
  await page.goto(scene.origin + "/handoffs");
  await page.getByLabel("Token").fill("not a token");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await scene.logIn(page);
  assert.equal(new URL(page.url()).pathname, "/handoffs");
  const [cookie] = await page.context().cookies();
  assert.deepEqual(
    [cookie.name, cookie.secure, cookie.httpOnly, cookie.sameSite, cookie.path],
    ["__Host-baton", true, true, "Strict", "/"],
  );
  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL((url) => url.pathname === "/login");
  assert.deepEqual(await page.context().cookies(), []);
  // Neither the button for the page before nor a copy of the cookie brings the session back.
  await page.goBack();
  await page.waitForURL((url) => url.pathname === "/login");
  await page.context().addCookies([cookie]);
  await page.goto(scene.origin + "/handoffs");
  assert.equal(new URL(page.url()).pathname, "/login");
  scene.expects(/status of 40[13]/);
});

scenario("C1: the address of `baton console` is good for one login", async (scene) => {
  const { url } = await scene.baton("console");
  const page = await scene.page();
  await page.goto(url);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(page.url(), scene.origin + "/overview");
  const other = await scene.page();
  await other.goto(url);
  await other.getByRole("alert").waitFor();
  assert.ok(!other.url().includes("code"), other.url());
  scene.expects(/status of 403/);
});

scenario("C1: an address for a login replaces no open session without a question", async (scene) => {
  const page = await scene.operator();
  const session = async () => (await page.context().cookies()).map((cookie) => cookie.value);
  const before = await session();
  const { url } = await scene.baton("console");
  await page.goto("about:blank");
  const asked = page.waitForEvent("dialog");
  await page.goto(url);
  await asked; // the suite says no
  scene.expects(/dialog: You are logged in as/);
  await page.goto(scene.origin + "/overview");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.deepEqual(await session(), before);
});

scenario("C2: the checks of this suite see a violation of the policy", async (scene) => {
  const page = await scene.operator();
  await page.evaluate(() => {
    document.body.insertAdjacentHTML("beforeend", "<p style='color: red'></p><img src='https://127.0.0.2/x.png'>");
  });
  await assert.rejects(scene.check(), /Content Security Policy/);
  scene.expects(/Content Security Policy/);
});

scenario("C3: a form on a page of another site is refused", async (scene) => {
  const page = await scene.operator();
  const foreign = createServer((request, response) => {
    response.setHeader("content-type", "text/html");
    response.end(`<form method="post" action="${scene.origin}${request.url}"><button>Go</button></form>`);
  });
  foreign.listen(0, "127.0.0.1");
  await once(foreign, "listening");
  try {
    const own = `127.0.0.1:${foreign.address().port}`;
    const acts = await scene.lines("audit");
    // The other site is another port of the same host, for which browsers do send the cookie, or another host.
    for (const host of [own, own.replace("127.0.0.1", "localhost")]) {
      const acts = PAGES.filter((path) => /\/(redrive|discard|reassign|cancel|retry|deregister|revoke|invite)$/.test(path));
      for (const path of ["/logout", "/login", "/dead-letters/redrive", ...acts]) {
        const other = await page.context().newPage();
        await other.goto(`http://${host}${path}`);
        const [answer] = await Promise.all([
          other.waitForResponse((response) => response.url() === scene.origin + path),
          other.getByRole("button").click(),
        ]);
        assert.equal(answer.status(), 403, `${host}${path}`);
        await other.close();
      }
    }
    assert.deepEqual(await scene.lines("audit"), acts);
    await page.reload();
    assert.equal(new URL(page.url()).pathname, "/overview", "the session is still open");
  } finally {
    foreign.close();
    foreign.closeAllConnections();
  }
  scene.expects(/status of 403/);
});

scenario("requests at the same time leave the session open", async (scene) => {
  const page = await scene.operator();
  const statuses = await page.evaluate(async () => {
    // What a reader opens, and what the script of another open page asks for.
    const ask = (_, index) => fetch("/overview", index % 2 ? { headers: { "baton-refresh": "1" } } : {});
    const answers = await Promise.all(Array.from({ length: 200 }, ask));
    return answers.map((answer) => `${answer.status}${answer.redirected ? " after a redirect" : ""}`);
  });
  assert.deepEqual([...new Set(statuses)], ["200"]);
});
