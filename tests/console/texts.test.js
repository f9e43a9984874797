// Texts that agents write are shown as they are, and do nothing.
import assert from "node:assert/strict";
import { scenario, until } from "./harness.js";

// Markup, ends of what surrounds it, escapes of HTML, of templates and of terminals, and marks that turn the text around.
const TEXT =
  "</dd></td></table></main><img src=x onerror=alert(1)><script>alert(2)</script><a href=javascript:alert(3)>x</a>" +
  "\"'&lt;&amp;&#x3c; {{ 7 * 7 }} ${7} \u001b[31mred\u0007 \u202egnp.exe\u2066 \u00a0\u{1f600} end";
// As long as a text may be.
const LONG = TEXT + "x".repeat(4096 - Buffer.byteLength(TEXT));

/** Asserts that the page shows the text, made of no element, and that no other words are turned around with it. */
async function shows(page, text, what) {
  const seen = await until(`${what} shows the text`, async () => {
    const seen = await found(page, text);
    return seen.times > 0 && seen;
  });
  assert.deepEqual([seen.elements, seen.turned], [0, []], what);
}

/** How often the page has the text, which words follow it in the same block, and which elements it may have made. */
function found(page, text) {
  return page.evaluate((text) => {
    const isBlock = (element) => getComputedStyle(element).display !== "inline";
    const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    const seen = { times: 0, turned: [], elements: document.querySelectorAll("main img, main script, main [href^=javascript]").length };
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      if (!node.data.includes(text)) continue;
      seen.times++;
      const block = ((element) => {
        while (!isBlock(element)) element = element.parentElement;
        return element;
      })(node.parentElement);
      const rest = document.createRange();
      rest.setStart(node, node.data.indexOf(text) + text.length);
      rest.setEnd(block, block.childNodes.length);
      if (rest.toString().trim() !== "" && node.parentElement.localName !== "bdi") seen.turned.push(rest.toString());
    }
    return seen;
  }, text);
}

scenario("C10: what agents write is text on every page", async (scene) => {
  const [alice, bob] = [await scene.agent("alice", "--description", LONG), await scene.agent("bob")];
  const rejected = await alice.request("bob", "--summary", LONG);
  const desk = await scene.desk(bob);
  const page = await scene.operator();
  await page.goto(desk);
  await shows(page, LONG, "the desk with an offer");
  await bob.reject(rejected, LONG);
  await page.goto(`${scene.origin}/handoffs/${rejected}`);
  await shows(page, LONG, "a rejected handoff");
  const [{ deadLetterId }] = await scene.lines("dlq", "list");
  await page.goto(`${scene.origin}/dead-letters/${deadLetterId}`);
  await shows(page, LONG, "a parked letter");
  await scene.baton("dlq", "discard", deadLetterId, "--reason", `Discarded: ${TEXT}`);
  await page.goto(`${scene.origin}/dead-letters/${deadLetterId}`);
  await shows(page, `Discarded: ${TEXT}`, "a discarded letter");

  const failed = await alice.request("bob", "--task", "failed");
  await bob.step("accept", failed);
  await alice.step("context", failed, "--file", scene.file("context.json", JSON.stringify({ text: TEXT })));
  await page.goto(`${desk}handoffs/${failed}`);
  await shows(page, TEXT, "the desk with a context");
  await bob.step("complete", failed, "--failed", "--details", LONG);
  await page.goto(`${scene.origin}/handoffs/${failed}`);
  await shows(page, LONG, "a failed handoff");

  const asked = await alice.request("bob", "--task", "asked");
  await alice.handOver(asked, bob);
  await bob.status("asked", "waiting-for-input", "--details", LONG, "--question", LONG, "--answer-by", "alice");
  await page.goto(await scene.desk(alice));
  await shows(page, LONG, "the desk with a question");
  await page.goto(`${scene.origin}/tasks/asked`);
  await page.getByRole("heading", { name: "Task asked" }).waitFor();
});

scenario("C10: what agents write about themselves and their plans is text", async (scene) => {
  const skills = [{ name: "tax", description: TEXT, tags: ["a"] }];
  const alice = await scene.agentWithCard({ agentId: "alice", description: LONG, skills, metadata: { note: TEXT } });
  const bob = await scene.agent("bob");
  const page = await scene.operator("/agents/alice");
  await shows(page, LONG, "the description of an agent");
  for (const name of ["Skills", "Metadata"]) {
    assert.equal(await page.getByRole("region", { name }).getByRole("cell", { name: "<img" }).count(), 1, name);
  }
  const plan = { description: LONG, subtasks: [{ id: "only", description: "a step", role: "work", agent_id: "bob" }] };
  await scene.baton("plan", "submit", scene.file("plan.json", JSON.stringify(plan)), "--plan-id", "plan", ...alice.identity);
  await page.goto(`${scene.origin}/plans/plan`);
  await shows(page, LONG, "the description of a plan");
  const handoffs = () => scene.lines("handoff", "list", "--open");
  const [{ handoffId, taskId }] = await until("an offer", async () => (await handoffs()).length > 0 && handoffs());
  await bob.step("accept", handoffId);
  await until("the context", async () => (await handoffs())[0].state === "HANDOFF_STATE_CONTEXT_SENT");
  await bob.step("complete", handoffId, "--yes");
  await bob.status(taskId, "completed", "--result-json", JSON.stringify({ response: LONG }));
  await until("the end of the plan", async () => (await scene.baton("plan", "show", "plan")).state === "PLAN_STATE_COMPLETED");
  await page.reload();
  const result = page.getByRole("region", { name: "Result of only" });
  assert.equal(await result.locator("pre").textContent(), LONG);
});

scenario("C10: what a reader puts into an address is text", async (scene) => {
  const page = await scene.operator();
  const query = encodeURIComponent(TEXT);
  for (const path of [
    `/handoffs?state=${query}`,
    `/handoffs?agent=${query}`,
    `/handoffs?type=${encodeURIComponent(TEXT.slice(0, 120))}`,
    `/handoffs?page=${query}`,
    `/handoffs/${query}`,
    `/tasks?q=${encodeURIComponent(TEXT.slice(0, 120))}`,
    `/tasks?q=${query}${query}`,
    `/tasks?state=${query}`,
    `/tasks?owner=${query}`,
    `/tasks?type=${encodeURIComponent(TEXT.slice(0, 120))}`,
    `/tasks?page=${query}`,
    `/tasks/${query}`,
    `/map?span=${query}`,
    `/agents?after=${query}`,
    `/agents/${query}`,
    `/plans?state=${query}`,
    `/plans/${query}`,
    `/audit?page=${query}`,
    `/dead-letters?reason=${query}`,
    `/dead-letters/${query}`,
    `/dead-letters/redrive?sender=${query}`,
  ]) {
    const answer = await page.goto(scene.origin + path);
    assert.ok([200, 400].includes(answer.status()), `${path}: ${answer.status()}`);
    assert.equal(await page.locator("main img, main script, main [href^=javascript]").count(), 0, path);
  }
  await page.goto(`${scene.origin}/login?next=${query}`);
  assert.equal(await page.locator("input[name=next]").inputValue(), TEXT);
  await scene.logIn(page);
  assert.equal(page.url(), `${scene.origin}/overview`);
  scene.expects(/status of 400/);
});

scenario("C10: a context of a megabyte is shown whole", async (scene) => {
  const [alice, bob] = [await scene.agent("alice"), await scene.agent("bob")];
  const handoff = await alice.request("bob");
  await bob.step("accept", handoff);
  const text = "<b>0123456789".repeat(80_000);
  await alice.step("context", handoff, "--file", scene.file("context.json", JSON.stringify({ text })));
  const page = await scene.page();
  await page.goto(`${await scene.desk(bob)}handoffs/${handoff}`);
  await shows(page, text, "the desk with a long context");
  assert.equal(await page.locator("section b").count(), 0);
});
