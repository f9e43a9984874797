// What an operator does about dead letters.
import assert from "node:assert/strict";
import { rows, scenario } from "./harness.js";

/** Makes dead letters of requests that these agents reject, oldest first. */
async function rejected(scene, by) {
  const alice = await scene.agent("alice");
  const agents = new Map();
  for (const id of new Set(by)) agents.set(id, await scene.agent(id));
  for (const id of by) await agents.get(id).reject(await alice.request(id), "no time");
  return agents;
}

const parked = async (scene) => (await scene.lines("dlq", "list")).map((dead) => dead.agentId);

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "" : " without JavaScript (C9)";
  scenario(`C7: three of five letters are redriven by a filter, and the other two stay${how}`, async (scene) => {
    await rejected(scene, ["bob", "carol", "bob", "carol", "bob"]);
    const page = await scene.operator("/dead-letters", { javaScriptEnabled });
    assert.equal((await rows(page)).length, 5);
    await page.getByLabel("Mailbox").fill("bob");
    await page.getByRole("button", { name: "Filter" }).click();
    await page.waitForURL(/agent=bob/);
    assert.equal((await rows(page)).length, 3);
    await page.getByRole("button", { name: "Redrive the matching" }).click();
    await page.getByRole("heading", { name: "Redrive 3 dead letters?" }).waitFor();
    assert.equal((await rows(page)).length, 3);
    assert.equal((await parked(scene)).length, 5, "the review changes nothing");
    await page.getByRole("button", { name: "Redrive", exact: true }).click();
    await page.getByRole("heading", { name: "3 redriven, 0 refused" }).waitFor();
    assert.deepEqual(await parked(scene), ["carol", "carol"]);
    await page.getByRole("link", { name: "Parked dead letters" }).click();
    await page.getByRole("heading", { name: "Dead letters", exact: true }).waitFor();
    assert.deepEqual(await page.locator("tbody td:nth-child(2)").allInnerTexts(), ["carol", "carol"]);
  });
}

scenario("C7: a letter goes to another agent, and one is discarded for a reason", async (scene) => {
  const agents = await rejected(scene, ["bob", "carol"]);
  const page = await scene.operator("/dead-letters");
  const open = async (mailbox) => {
    await page.getByRole("row").filter({ hasText: mailbox }).getByRole("link").first().click();
    await page.getByRole("heading", { name: /^Dead letter \d+$/ }).waitFor();
    assert.ok(await page.getByRole("region", { name: "Attempts" }).getByText("no time").count() <= 1);
  };
  await open("bob");
  await page.getByRole("link", { name: "Redrive…" }).click();
  await page.getByLabel("Deliver to").fill("carol");
  await page.getByRole("button", { name: "Redrive" }).click();
  await page.getByText("Redriven", { exact: true }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Redrive…" }).count(), 0);
  await page.locator("dt:text('Redriven as') + dd a").click();
  await page.getByRole("heading", { name: /^Handoff / }).waitFor();
  const handoff = new URL(page.url()).pathname.split("/").at(-1);
  await agents.get("carol").step("accept", handoff);
  await page.getByRole("link", { name: "Dead letters" }).click();
  await open("carol");
  await page.getByRole("link", { name: "Discard…" }).click();
  await page.getByLabel("Reason").fill("sent twice");
  await page.getByRole("button", { name: "Discard" }).click();
  await page.getByText("Discarded", { exact: true }).waitFor();
  assert.deepEqual(await parked(scene), []);
  assert.match(JSON.stringify(await scene.lines("audit")), /sent twice/);
});
