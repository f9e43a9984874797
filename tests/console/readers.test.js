// Pages for every reader: with a screen reader, with the keyboard alone, on a small screen, in the dark, without JavaScript.
import assert from "node:assert/strict";
import { fitsNarrowScreens, isAccessible, isWalkable, rows, scenario } from "./harness.js";
import { populated } from "./pages.js";

async function isForAll(page, what) {
  await isAccessible(page, what);
  await isWalkable(page, what);
  await fitsNarrowScreens(page, what);
}

scenario("C8: each page passes axe in light and dark, the Tab key reaches all of it, and it fits a phone", async (scene) => {
  const pages = await populated(scene);
  const page = await scene.page();
  await page.goto(scene.origin + "/login");
  await isForAll(page, "login");
  await page.getByLabel("Token").fill("not a token");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await isForAll(page, "refused login");
  await scene.logIn(page);
  for (const [name, url] of Object.entries(pages)) {
    const answer = await page.goto(url);
    assert.equal(answer.status(), { "no-task": 404, "desk-refused": 409 }[name] ?? 200, name);
    const current = await page.locator("nav a[aria-current]").evaluateAll((links) => links.map((link) => link.pathname));
    const section = { invite: "/agents" }[name] ?? "/" + new URL(url).pathname.split("/")[1];
    const marked = (await page.locator(`nav a[href="${section}"]`).count()) > 0 && answer.ok() ? [section] : [];
    assert.deepEqual(current, marked, `${name}: the link to its list is marked`);
    await isForAll(page, name);
  }
  await page.goto(pages.redrive);
  await page.getByRole("button", { name: "Redrive" }).click();
  await page.getByRole("heading", { name: "redriven" }).waitFor();
  await isForAll(page, "redriven");
  scene.expects(/status of 40[3-9]/);
});

scenario("C8: ids as long as they may be fit a phone", async (scene) => {
  const id = (letter) => letter.repeat(128);
  const [long, other] = [await scene.agent(id("a")), await scene.agent(id("b"))];
  const handoff = await long.request(other.id, "--task", id("t"), "--task-type", id("y"));
  const plan = { subtasks: [{ id: id("u").slice(0, 60), description: id("d"), agent_id: other.id }], description: id("e") };
  const planId = id("p").slice(0, 63);
  await scene.baton("plan", "submit", scene.file("plan.json", JSON.stringify(plan)), "--plan-id", planId, ...long.identity);
  const rejected = await long.request(other.id, "--task", id("s"));
  await other.reject(rejected, id("w").repeat(8));
  const given = await long.request(other.id, "--task", id("g"));
  await other.step("accept", given);
  await long.step("context", given, "--file", scene.file("context.json", JSON.stringify({ [id("n")]: id("v") })));
  const desk = await scene.desk(other);
  const { url } = await scene.running("console", ...long.identity);
  const [{ deadLetterId }] = await scene.lines("dlq", "list");
  const page = await scene.operator();
  for (const path of [
    "/overview",
    "/handoffs",
    `/handoffs/${handoff}`,
    `/handoffs/${rejected}`,
    "/tasks",
    `/tasks/${id("t")}`,
    "/map",
    "/agents",
    `/agents/${id("a")}`,
    "/plans",
    `/plans/${planId}`,
    "/audit",
    "/policy",
    "/dead-letters",
    `/dead-letters/${deadLetterId}`,
  ]) {
    const answer = await page.goto(scene.origin + path);
    assert.equal(answer.status(), 200, path);
    await fitsNarrowScreens(page, path);
  }
  for (const path of [desk, `${desk}handoffs/${given}`, `${desk}handoffs/${handoff}`]) {
    await page.goto(path);
    await fitsNarrowScreens(page, path);
  }
  const agent = await scene.page();
  await agent.goto(url);
  await agent.getByText(`agent ${long.id}`).waitFor();
  await fitsNarrowScreens(agent, "the page of an agent");
  scene.expects(/status of 409/);
});

scenario("C9: without JavaScript one logs in, and reads every list and detail", async (scene) => {
  const pages = await populated(scene);
  const [plain, scripted] = [await scene.operator("/overview", { javaScriptEnabled: false }), await scene.operator()];
  // What counts down, and what the script writes in the zone of its reader.
  const text = async (page, url) => {
    await page.goto(url);
    return page.evaluate(() => {
      for (const time of document.querySelectorAll("time")) time.textContent = "(time)";
      // The picture of a task that goes on ends now, and a bar that is too short for it has no label.
      for (const picture of document.querySelectorAll("svg")) picture.remove();
      // Views are saved, and a command is copied, by the script alone.
      for (const part of document.querySelectorAll("#saved, #command ~ button, #command > button")) part.remove();
      // Behind a deadline is the time that is left, and beside its bar what has passed: both go on between the two looks.
      const text = document.querySelector("main").innerText;
      return text.replace(/^\(time\), .+$/gm, "(time), (left)").replace(/^.+ of (.+), \(time\) left$/gm, "(passed) of $1");
    });
  };
  for (const [name, url] of Object.entries(pages)) {
    assert.equal(await text(plain, url), await text(scripted, url), name);
  }
  // By links and forms alone.
  await plain.goto(pages.overview);
  await plain.getByRole("link", { name: "Handoffs", exact: true }).click();
  await plain.getByLabel("Task").fill("crash-7");
  await plain.getByRole("button", { name: "Filter" }).click();
  assert.equal((await rows(plain)).length, 1);
  await plain.getByRole("link", { name: "crash-7" }).click();
  await plain.getByRole("heading", { name: "Task crash-7" }).waitFor();
  await plain.getByRole("region", { name: "Owners" }).getByRole("link").first().click();
  await plain.getByText("Completed", { exact: true }).first().waitFor();
  await plain.getByRole("button", { name: "Log out" }).click();
  await plain.getByRole("heading", { name: "Log in" }).waitFor();
  scene.expects(/status of 40[49]/);
});

scenario("each link leads to a page", async (scene) => {
  const pages = await populated(scene);
  const page = await scene.operator();
  const links = new Map();
  for (const [name, url] of Object.entries(pages)) {
    await page.goto(url);
    for (const link of await page.locator("a[href]").evaluateAll((all) => all.map((a) => a.href))) links.set(link, name);
  }
  const broken = [];
  for (const [link, name] of links) {
    const status = (await page.request.get(link)).status();
    // The page of a refusal has the address of what was refused.
    if (status !== 200 && !Object.values(pages).includes(link)) broken.push(`${status} ${link} on the page ${name}`);
  }
  assert.deepEqual(broken, []);
  scene.expects(/status of 40[49]/);
});
