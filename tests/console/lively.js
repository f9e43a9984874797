// A company at work, for the pictures of the documentation: forty agents, two hundred tasks in all states, handoffs that
// go in circles, refusals, failures, questions, and two plans. Who is there is as the broker sees it: some agents
// listen, three have listened and are gone, and the others only call.
import { until } from "./harness.js";

const AGENTS = [
  ["front-desk", "chatbot", 80], ["triage", "router", 60], ["support-1", "support", 24], ["support-2", "support", 24],
  ["support-3", "support", 24], ["support-4", "support", 24], ["billing-1", "billing", 24], ["billing-2", "billing", 24],
  ["refunds", "billing", 24], ["invoices", "billing", 24], ["expert-java", "expert", 24], ["expert-rust", "expert", 24],
  ["expert-sql", "expert", 24], ["expert-go", "expert", 24], ["expert-ios", "expert", 24], ["expert-android", "expert", 24],
  ["security-1", "security", 24], ["security-2", "security", 24], ["legal", "legal", 24], ["privacy", "legal", 24],
  ["translator-de", "translator", 24], ["translator-fr", "translator", 24], ["translator-es", "translator", 24],
  ["translator-ja", "translator", 24], ["writer-1", "writer", 24], ["writer-2", "writer", 24], ["editor", "writer", 24],
  ["researcher-1", "researcher", 24], ["researcher-2", "researcher", 24], ["researcher-3", "researcher", 24],
  ["analyst-1", "analyst", 24], ["analyst-2", "analyst", 24], ["data-loader", "pipeline", 40], ["ops-1", "operations", 24],
  ["ops-2", "operations", 24], ["qa-1", "tester", 24], ["qa-2", "tester", 24], ["scheduler", "operations", 40],
  ["archivist", "pipeline", 40], ["planner", "planner", 24],
];
const ALIVE = ["front-desk", "triage", "support-1", "support-2", "billing-1", "expert-java", "security-1", "editor", "analyst-1", "ops-1"];
// They have finished all offers, so that their last session finds none.
const GONE = ["expert-sql", "ops-2", "invoices"];

// What tasks are about, with the agents that do such work.
const WORK = [
  ["refund", "A double payment: pay 40 € back to", ["billing-1", "refunds", "support-1"]],
  ["crash-report", "The app crashes at the start on the phone of", ["expert-ios", "expert-android", "expert-java"]],
  ["contract", "Check the contract and list the open points for", ["legal", "privacy", "support-2"]],
  ["translation", "Translate the manual, 24 pages, for", ["translator-de", "translator-fr", "translator-ja"]],
  ["outage", "Requests fail with status 503 since noon at", ["ops-2", "expert-rust", "expert-go"]],
  ["invoice", "An invoice was sent twice to", ["billing-2", "invoices", "support-3"]],
  ["report", "Compare the growth of the last four quarters for", ["analyst-2", "researcher-1", "data-loader"]],
  ["security-review", "Review who may read the archive of", ["security-2", "security-1", "privacy"]],
  ["newsletter", "Write the newsletter about the new prices for", ["writer-1", "writer-2", "editor"]],
  ["migration", "Move 3 million rows to the new table of", ["expert-sql", "data-loader", "archivist"]],
];
const CUSTOMERS = [
  "Ada Lovelace", "Blue Harbour", "Carina Foods", "Delta Print", "Elm Street School", "Fjord Travel", "Green Valley", "Hana Ito",
  "Ines Costa", "Juno Games", "Kite Robotics", "Lumen Labs", "Mira Patel", "North Pier", "Olive & Co", "Polar Bikes",
  "Quartz Bank", "Rosa Klein", "Sunny Farms", "Tide Energy",
];
const REFUSALS = ["Two crashes are open already.", "The sources are not named.", "This needs a lawyer for French law.", "No access to that account."];

/** Runs the jobs, a few at a time. */
async function all(jobs, atATime = 6) {
  const left = [...jobs];
  const work = async () => {
    for (let job = left.shift(); job; job = left.shift()) await job();
  };
  await Promise.all(Array.from({ length: atATime }, work));
}

/** Makes the company. Returns the pages of which there are pictures, each as a name and an address. */
export async function lively(scene) {
  const agents = new Map();
  for (const [id, type, capacity] of AGENTS) {
    agents.set(id, await scene.agent(id, "--type", type, "--capacity", `${capacity}`, "--description", `Does the work of a ${type}.`));
  }
  const agent = (id) => agents.get(id);
  const there = async (id) => (await scene.baton("agent", "show", id)).presence === "PRESENCE_ALIVE";
  const tasks = Array.from({ length: 200 }, (_, index) => {
    const [type, about, workers] = WORK[index % WORK.length];
    const customer = CUSTOMERS[Math.floor(index / WORK.length) % CUSTOMERS.length];
    return { index, id: `${type}-${index + 1}`, type, summary: `${about} ${customer}.`, workers };
  });
  // One after the other where the order is seen: in the lists of letters and questions, and at the top of all others.
  const isOrdered = ({ index }) => index >= 140 || [7, 8].includes(stage(index));
  await all(tasks.filter((task) => !isOrdered(task)).map((task) => () => play(scene, agent, task)));
  await all(tasks.filter(isOrdered).map((task) => () => play(scene, agent, task)), 1);
  const cards = new Map(AGENTS.map(([id, type, capacity]) => [id, ["--type", type, "--capacity", `${capacity}`]]));
  for (const id of GONE) {
    const process = scene.serving(agent(id), ...cards.get(id));
    await until(`${id} has a session`, () => there(id));
    process.kill("SIGKILL");
  }
  const { picture, loop } = await journey(scene, agent);
  await plans(scene, agent);
  await all(ALIVE.map((id) => async () => void scene.listening(agent(id))), 1);
  await all(ALIVE.map((id) => () => until(`${id} listens`, () => there(id))), 1);
  const isGone = async (id) => (await scene.baton("agent", "show", id)).presence === "PRESENCE_GONE";
  await all(GONE.map((id) => () => until(`${id} is gone`, () => isGone(id))), 1);
  await until("those who listen have their mail", async () => {
    const open = await scene.lines("handoff", "list", "--open", "--limit", "1000");
    return !open.some(({ state, candidateId }) => state === "HANDOFF_STATE_REQUESTED" && ALIVE.includes(candidateId));
  });
  const desk = await scene.desk(agent("expert-android"));
  const at = (path) => scene.origin + path;
  return {
    overview: at("/overview"),
    tasks: at("/tasks"),
    task: at(`/tasks/${picture}`),
    handoffs: at("/handoffs"),
    handoff: at(`/handoffs/${loop}`),
    map: at("/map"),
    agents: at("/agents"),
    agent: at("/agents/expert-rust"),
    plan: at("/plans/annual-report"),
    "dead-letters": at("/dead-letters"),
    audit: at("/audit"),
    reassign: at(`/tasks/${picture}/reassign`),
    desk,
  };
}

/** How far a task goes. */
const stage = (index) => Math.floor(index / 3) % 10;

/** Plays one task as far as its number says. */
async function play(scene, agent, { index, id, type, summary, workers }) {
  const front = agent(index % 3 === 0 ? "front-desk" : "triage");
  const [first, second] = [agent(workers[index % 3]), agent(workers[(index + 1) % 3])];
  const priority = ["medium", "medium", "high", "low", "critical"][index % 5];
  const request = (from, to, ...more) => from.request(to.id, "--task", id, "--task-type", type, "--summary", summary, "--priority", priority, ...more);
  const taken = async (from, to, ...more) => {
    const handoff = await request(from, to, ...more);
    await to.step("accept", handoff);
    await from.step("context", handoff, "--file", scene.file(`${id}-${to.id}.json`, JSON.stringify({ customer: summary })));
    await to.step("complete", handoff, "--yes");
  };
  switch (stage(index)) {
    case 0:
      return void (await request(front, first));
    case 1:
      return first.step("accept", await request(front, first));
    case 2:
      await taken(front, first);
      return first.status(id, "in-progress", "--progress", `0.${1 + (index % 9)}`);
    case 3:
    case 4:
    case 5:
      await taken(front, first);
      return first.status(id, "completed", "--details", "Done, and the customer was told.", "--result-json", JSON.stringify({ response: "Solved." }));
    case 6:
      await taken(front, first);
      return first.status(id, "failed", "--details", "The account is closed, so nothing can be changed.");
    case 7:
      return first.reject(await request(front, first), REFUSALS[index % REFUSALS.length]);
    case 8:
      await taken(front, first);
      return first.status(id, "waiting-for-input", "--question", `May we answer ${summary.split(" ").at(-1)} today?`, "--answer-by", front.id);
    default:
      await taken(front, first);
      await taken(first, second, "--epoch", "2");
      return void (await request(second, first, "--epoch", "3", "--fallback", front.id));
  }
}

/** One task with a whole story: a refusal, a loop, a question with its answer. */
async function journey(scene, agent) {
  const [front, support, java, rust] = ["front-desk", "support-2", "expert-java", "expert-rust"].map(agent);
  const task = "crash-7";
  const request = (from, to, epoch, ...more) =>
    from.request(to.id, "--task", task, "--task-type", "crash-report", "--epoch", `${epoch}`, "--priority", "critical", ...more);
  const summary = "The shop crashes at the payment, since the update of this morning. 300 customers wait.";
  await front.handOver(await request(front, support, 1, "--summary", summary), support);
  const crash = await request(support, java, 2, "--fallback", "expert-rust", "--summary", "The trace points at the currency code.");
  await java.step("reject", crash, "--reason", "overloaded", "--text", "Two crashes are open already. Rust wrote that part.");
  await rust.step("accept", crash);
  await support.step("context", crash, "--file", scene.file("crash.json", JSON.stringify({ trace: "currency.rs:41", since: "09:12" })));
  await rust.step("complete", crash, "--yes");
  await rust.status(task, "waiting-for-input", "--question", "May I switch the payment to the old version for an hour?", "--answer-by", "support-2");
  await scene.baton("task", "input", task, ...support.identity, "--text", "Yes, until 14:00. The shops are told.");
  await request(rust, support, 3, "--summary", "The fix is in; please check the payment with a test card.");
  return { picture: task, loop: crash };
}

/** A plan that runs, and one that has failed. */
async function plans(scene, agent) {
  const handoff_timeouts = { accept: "3600s", context: "3600s", complete: "3600s", whole: "7200s" };
  const step = (id, agent_id, ...dependencies) => ({ id, description: `The step ${id}.`, agent_id, dependencies, handoff_timeouts });
  const submit = (id, description, subtasks) =>
    scene.baton("plan", "submit", scene.file(`${id}.json`, JSON.stringify({ description, subtasks })), "--plan-id", id, ...agent("planner").identity);
  const offerTo = (id, plan) =>
    until(`an offer of ${plan} to ${id}`, async () => {
      const open = await scene.lines("handoff", "list", "--open", "--to", id, "--limit", "1000");
      return open.find((handoff) => handoff.taskType === plan || handoff.submitter === "planner" || handoff.senderId.includes("coordinator"));
    });
  await submit("annual-report", "A report about the last year, in two languages.", [
    step("load", "data-loader"), step("growth", "researcher-1", "load"), step("margin", "analyst-2", "load"),
    step("draft", "writer-2", "growth", "margin"), step("legal", "privacy", "draft"), step("german", "translator-de", "draft"),
    step("print", "archivist", "legal", "german"),
  ]);
  for (const [id, response] of [["data-loader", "3,2 million rows are loaded."], ["researcher-1", "Growth was 15.3 %."]]) {
    const offer = await offerTo(id, "annual-report");
    await agent(id).step("accept", offer.handoffId);
    await until("the context", async () => (await scene.baton("handoff", "show", offer.handoffId)).state === "HANDOFF_STATE_CONTEXT_SENT");
    await agent(id).step("complete", offer.handoffId, "--yes");
    await agent(id).status(offer.taskId, "completed", "--result-json", JSON.stringify({ response, tokens: 1200 }));
  }
  await offerTo("analyst-2", "annual-report");
  await submit("price-change", "New prices on all pages.", [step("check", "legal"), step("publish", "writer-1", "check")]);
  const check = await offerTo("legal", "price-change");
  await agent("legal").reject(check.handoffId, "The notice period is four weeks.");
}
