// A small team with work in each state, and the pages that show it.
import { until } from "./harness.js";

/** Makes the team and its work. Returns the pages, each as a name and an address. */
export async function populated(scene) {
  const front = await scene.agent("front-desk", "--type", "chatbot", "--description", "Answers customers first.");
  const support = await scene.agent("support", "--type", "support", "--capacity", "8");
  const expert = await scene.agent("expert-java", "--type", "expert", "--skill", "java", "--capacity", "2");
  const other = await scene.agent("expert-rust", "--type", "expert", "--skill", "rust", "--capacity", "2");
  const editor = await scene.agent("editor", "--type", "writer");
  const request = (from, to, task, type, ...more) => from.request(to, "--task", task, "--task-type", type, ...more);

  for (const task of ["newsletter-1", "newsletter-2"]) {
    await editor.reject(await request(front, "editor", task, "newsletter"), "The sources are not named.");
  }
  await front.handOver(await request(front, "support", "crash-7", "crash-report"), support);
  const crash = await request(support, "expert-java", "crash-7", "crash-report", "--epoch", "2", "--fallback", "expert-rust");
  await expert.receive();
  await expert.step("reject", crash, "--reason", "overloaded", "--text", "Two crashes are open already.");
  await other.receive();
  await other.step("accept", crash);
  await front.handOver(await request(front, "support", "refund-21", "refund"), support);
  await support.status("refund-21", "waiting-for-input", "--question", "Is 40 € right?", "--answer-by", "front-desk");
  const contract = await request(front, "support", "contract-5", "contract");
  await support.receive();
  await support.step("accept", contract);
  const sections = { customer: { name: "Ada", since: 2019 }, wish: "The contract in Braille." };
  await front.step("context", contract, "--file", scene.file("contract.json", JSON.stringify(sections)));
  await request(front, "support", "invoice-12", "invoice", "--priority", "high", "--summary", "An invoice was sent twice.");
  await support.receive();
  await support.receive();
  await request(front, "expert-java", "outage-2", "outage", "--priority", "critical");
  await planned(scene, front, editor);
  const letter = (await scene.lines("dlq", "list"))[0].deadLetterId;
  const [desk, questions] = [await scene.desk(support), await scene.desk(front)];

  const at = (path) => scene.origin + path;
  return {
    overview: at("/overview"),
    handoffs: at("/handoffs"),
    "all-handoffs": at("/handoffs?state=all&agent=support"),
    "no-handoffs": at("/handoffs?type=none"),
    handoff: at(`/handoffs/${crash}`),
    tasks: at("/tasks"),
    "no-tasks": at("/tasks?q=nothing"),
    task: at("/tasks/crash-7"),
    "task-verified": at("/tasks/refund-21?verify=1"),
    map: at("/map"),
    agents: at("/agents"),
    agent: at("/agents/expert-rust"),
    plans: at("/plans"),
    plan: at("/plans/report"),
    workspace: at("/workspaces/plan%3Areport"),
    negotiations: at("/negotiations"),
    threads: at("/threads"),
    runs: at("/runs"),
    audit: at("/audit"),
    policy: at("/policy?principal=agent%3Asupport&action=readTask&resource=task%3At&participants=&type="),
    "dead-letters": at("/dead-letters"),
    "dead-letter": at(`/dead-letters/${letter}`),
    redrive: at("/dead-letters/redrive?state=PARKED&reason=&agent=editor&sender=&task="),
    "redrive-one": at(`/dead-letters/${letter}/redrive`),
    reassign: at("/tasks/crash-7/reassign"),
    "cancel-plan": at("/plans/report/cancel"),
    "reassign-subtask": at("/plans/report/subtasks/growth/reassign"),
    deregister: at("/agents/support/deregister"),
    invite: at("/invite"),
    "no-task": at("/tasks/nothing"),
    desk,
    "desk-context": `${desk}handoffs/${contract}`,
    "desk-questions": questions,
    "desk-refused": `${desk}handoffs/${crash}`,
  };
}

/** Submits a plan, whose first subtask has a result and whose next two wait for their agent. */
async function planned(scene, submitter, agent) {
  const handoff_timeouts = { accept: "3600s", context: "3600s", complete: "3600s", whole: "7200s" };
  const subtask = (id, ...dependencies) => {
    return { id, description: `The step ${id}.`, agent_id: agent.id, dependencies, handoff_timeouts };
  };
  const subtasks = [
    subtask("fetch"),
    subtask("growth", "fetch"),
    subtask("margin", "fetch"),
    subtask("report", "growth", "margin"),
  ];
  const file = scene.file("plan.json", JSON.stringify({ description: "A report about last year.", subtasks }));
  await scene.baton("plan", "submit", file, "--plan-id", "report", ...submitter.identity);
  const open = () => scene.lines("handoff", "list", "--open", "--to", agent.id);
  const [offer] = await until("the first subtask is offered", async () => {
    const offers = await open();
    return offers.length === 1 && offers;
  });
  await agent.step("accept", offer.handoffId);
  await until("the context of the subtask", async () => (await open())[0].state === "HANDOFF_STATE_CONTEXT_SENT");
  await agent.step("complete", offer.handoffId, "--yes");
  await agent.status(offer.taskId, "completed", "--result-json", JSON.stringify({ response: "Growth was 15.3 %.", tokens: 120 }));
  await until("the next subtasks are offered", async () => (await open()).length === 2);
}
