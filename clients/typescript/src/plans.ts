/** Plans: checking, submitting and following them; and on the other side, what a subtask gets. */
import { create, type Message, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { BatonError, isPassing } from "./errors.js";
import { type Caller, followLog, type LogOptions, type WireOptions } from "./following.js";
import { type JsonObject, jsonOf, jsonText, parseJson } from "./json.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;

/**
 * A plan that was submitted: see `Plans.submit` and `Plans.join`.
 *
 *     const plan = await alice.plans.submit({ planId: "q3", subtasks: [{ id: "fetch", agentType: "fetcher" }, …] });
 *     for await (const { number, event } of plan.watch()) console.log(number, event.case);
 *     console.log((await plan.results()).get("fetch")?.numericValue);
 *
 * All calls throw BatonError if the broker refuses: PLAN_UNKNOWN, PERMISSION_DENIED.
 */
export class Plan {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.PlanService>;
  readonly #send: (submission: v1.PlanSubmission) => Promise<v1.Receipt>;

  /** @internal */
  constructor(
    readonly id: string,
    caller: Caller,
    service: Client<typeof v1.PlanService>,
    send: (submission: v1.PlanSubmission) => Promise<v1.Receipt>,
  ) {
    this.#caller = caller;
    this.#service = service;
    this.#send = send;
  }

  /** Returns the plan as it is now, with the state of each subtask. */
  async state(): Promise<v1.PlanRun> {
    const { plan } = await this.#caller.call((options) => this.#service.getPlan({ planId: this.id }, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  /**
   * Yields the entries of the plan's log after this number, and each new one, until the plan has ended or `signal` aborts. The
   * watch continues by itself over lost connections and restarts of the broker; a later process continues with the last
   * `number`. Throws Gap if entries are missing.
   */
  async *watch(options: LogOptions = {}): AsyncGenerator<v1.PlanEntry, void> {
    let last = options.after ?? 0n;
    const open = (afterNumber: bigint, wire: WireOptions): AsyncIterable<v1.WatchPlanResponse> =>
      this.#service.watchPlan({ planId: this.id, afterNumber }, wire);
    for await (const entry of followLog<v1.PlanEntry>(this.#caller, `plan ${this.id}`, open, options)) {
      if (entry !== undefined) {
        last = entry.number;
        yield entry;
      }
      // The log goes on behind an end if the plan was retried.
      if ((entry === undefined || entry.event.case === "ended") && (await this.#isOver(last))) return;
    }
  }

  /** Waits for the end of the plan. Returns its final state; throws the reason of `signal` if it aborts first. */
  async finished({ signal }: { signal?: AbortSignal } = {}): Promise<v1.PlanRun> {
    const after = (await this.state()).logLength;
    for await (const _ of this.watch({ after, ...(signal && { signal }) }));
    signal?.throwIfAborted();
    return this.state();
  }

  /** Returns the results of the subtasks that have completed, by their ids, in the order of the plan. */
  async results(): Promise<Map<string, v1.SubtaskResult>> {
    const results = new Map<string, v1.SubtaskResult>();
    let pageToken = "";
    do {
      const request = { planId: this.id, pageToken };
      const page = await this.#caller.call((options) => this.#service.listPlanResults(request, options));
      for (const result of page.results) results.set(result.subtaskId, result);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return results;
  }

  /** Ends the plan at once. Throws PLAN_FINAL if it has ended otherwise. */
  async cancel(reasonText = ""): Promise<v1.PlanRun> {
    const { plan } = await this.#caller.call((options) => this.#service.cancelPlan({ planId: this.id, reasonText }, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  /**
   * Signs and adds subtasks to the plan while it runs; they may depend on those that it has. `defaults` stand for what they leave
   * out. The same extension again changes nothing. Throws PLAN_INVALID with each problem in `fields`, PLAN_FINAL if the plan has
   * ended, CONFLICT if another extension came first.
   */
  async extend(subtasks: SubtaskInit[], defaults?: MessageInitShape<typeof v1.SubtaskDefaultsSchema>): Promise<void> {
    const extension = { planId: this.id, subtasks: subtasksOf(subtasks, "extension"), ...(defaults && { defaults }) };
    await this.#send(create(v1.PlanSubmissionSchema, { extension }));
  }

  /** Ends one subtask at once. Throws SUBTASK_UNKNOWN; SUBTASK_STATE if it has ended otherwise; PLAN_FINAL. */
  async cancelSubtask(subtaskId: string, reasonText = ""): Promise<v1.PlanRun> {
    const request = { planId: this.id, subtaskId, reasonText };
    const { plan } = await this.#caller.call((options) => this.#service.cancelSubtask(request, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  /** Starts one subtask again that did not complete. Throws SUBTASK_UNKNOWN; SUBTASK_STATE in another state; PLAN_FINAL. */
  async retrySubtask(subtaskId: string): Promise<v1.PlanRun> {
    const { plan } = await this.#caller.call((options) => this.#service.retrySubtask({ planId: this.id, subtaskId }, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  /**
   * Gives one subtask to another agent, or to one of `type:NAME`. Throws SUBTASK_UNKNOWN; SUBTASK_STATE if it has ended;
   * RECEIVER_UNKNOWN; RECEIVER_INVALID if the agent lacks what the subtask demands; AGENT_GONE; PLAN_FINAL.
   */
  async reassignSubtask(subtaskId: string, to: string, reasonText = ""): Promise<v1.PlanRun> {
    const request = { planId: this.id, subtaskId, to, reasonText };
    const { plan } = await this.#caller.call((options) => this.#service.reassignSubtask(request, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  /** Starts again what did not complete. Throws PLAN_RUNNING; PLAN_FINAL if nothing is left. */
  async retry(): Promise<v1.PlanRun> {
    const { plan } = await this.#caller.call((options) => this.#service.retryPlan({ planId: this.id }, options));
    return plan ?? create(v1.PlanRunSchema);
  }

  async #isOver(last: bigint): Promise<boolean> {
    try {
      const { state, logLength } = await this.state();
      return state !== v1.PlanState.RUNNING && logLength <= last;
    } catch (error) {
      if (!isPassing(BatonError.of(error))) throw error;
      return false;
    }
  }
}

/** A subtask that is to be submitted, with what it gets as JSON. */
export type SubtaskInit = Omit<Exclude<MessageInitShape<typeof v1.SubtaskSchema>, Message>, "input"> & { input?: JsonObject | undefined };

/** A plan that is to be submitted, with what each subtask gets as JSON. */
export type PlanInit = Omit<Exclude<MessageInitShape<typeof v1.PlanSchema>, Message>, "input" | "subtasks"> & {
  input?: JsonObject | undefined;
  subtasks?: SubtaskInit[];
};

/** Returns the message of a plan. */
function planOf({ input, subtasks = [], ...plan }: PlanInit): MessageInitShape<typeof v1.PlanSchema> {
  return {
    ...plan,
    ...(input !== undefined && { inputJson: jsonText(input, "plan.input_json") }),
    subtasks: subtasksOf(subtasks, "plan"),
  };
}

/** Returns the messages of subtasks. */
function subtasksOf(subtasks: SubtaskInit[], path: string): Exclude<MessageInitShape<typeof v1.SubtaskSchema>, Message>[] {
  return subtasks.map(({ input, ...subtask }, at) => ({
    ...subtask,
    ...(input !== undefined && { inputJson: jsonText(input, `${path}.subtasks[${at}].input_json`) }),
  }));
}

/** The plans, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Plans {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.PlanService>;
  readonly #send: (submission: v1.PlanSubmission) => Promise<v1.Receipt>;

  /** @internal */
  constructor(caller: Caller, transport: Transport, send: (submission: v1.PlanSubmission) => Promise<v1.Receipt>) {
    this.#caller = caller;
    this.#service = createClient(v1.PlanService, transport);
    this.#send = send;
  }

  /** Returns all problems of a plan, and stores nothing. Without an error among them it can be submitted. */
  async validate(init: PlanInit): Promise<v1.PlanProblem[]> {
    const plan = planOf(init);
    return (await this.#caller.call((options) => this.#service.validatePlan({ plan }, options))).problems;
  }

  /**
   * Signs and submits a plan. The same plan again is the same plan. Throws PLAN_INVALID with each problem in `fields`, PLAN_EXISTS
   * for another plan of its id, FIELD_INVALID for an input that cannot arrive as it is: see `jsonText`.
   */
  async submit(plan: PlanInit): Promise<Plan> {
    const submission = create(v1.PlanSubmissionSchema, { plan: planOf(plan) });
    await this.#send(submission);
    return this.join(submission.plan?.planId ?? "");
  }

  /** Returns the plan with this id, without asking the broker. */
  join(planId: string): Plan {
    return new Plan(planId, this.#caller, this.#service, this.#send);
  }

  /** Yields the plans in one of these states, by default all, the newest first, without their subtasks. */
  async *list({ states = [] }: { states?: v1.PlanState[] } = {}): AsyncGenerator<v1.PlanRun, void> {
    let pageToken = "";
    do {
      const request = { states, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listPlans(request, options));
      yield* page.plans;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }
}

/** An element of the list that a subtask works on. */
export interface Element {
  /** The place in the list, from 0 on. */
  readonly index: number;
  /** The number of elements of the list. */
  readonly count: number;
  /** The value. Integers beyond 2^53 - 1 are `bigint`. */
  readonly value: unknown;
}

/** What a subtask of a plan gets, from the context of its handoff: see `Takeover.subtask`. */
export interface SubtaskInputs {
  readonly planId: string;
  readonly subtaskId: string;
  /** What is to be done. */
  readonly description: string;
  /** The role of the agent, in the words of the plan. */
  readonly role: string;
  /** The attempt, starting at 1. */
  readonly attempt: number;
  /** Whether the work undoes that of the subtask, whose result is in `dependencyResults`. */
  readonly isCompensation: boolean;
  /** The element of the list of which this work is a part; undefined: the work is the whole subtask. */
  readonly element: Element | undefined;
  /** What the plan gives to this subtask; undefined: nothing. Integers beyond 2^53 - 1 are `bigint`. */
  readonly input: JsonObject | undefined;
  /** What the plan gives to each subtask; undefined: nothing. */
  readonly planInput: JsonObject | undefined;
  /** The results of the earlier subtasks, or of all ancestors, by subtask. */
  readonly previousResults: ReadonlyMap<string, v1.SubtaskResult>;
  /** The results of the direct dependencies, by subtask. */
  readonly dependencyResults: ReadonlyMap<string, v1.SubtaskResult>;
  /** The results of the producers of the consumed topics, by topic and subtask. */
  readonly consumed: ReadonlyMap<string, ReadonlyMap<string, v1.SubtaskResult>>;
  /**
   * The subtasks whose results were too large for the context. Their results above have `success` and `numericValue` alone.
   * `Takeover.fetchSubtask` gets the rest.
   */
  readonly omitted: ReadonlySet<string>;
}

/** The members of `task_description` in the context of a subtask. */
interface Told {
  plan_id?: string;
  subtask_id?: string;
  description?: string;
  role?: string;
  attempt?: number;
  compensates?: string;
}

/** A result in the context of a subtask. */
interface Given {
  response?: string;
  tokens?: number;
  success?: boolean;
  tools_used?: string[];
  numeric_value?: number | null;
  result?: unknown;
  omitted?: boolean;
}

/** Reads the context of a handoff. Undefined: the handoff carries out no subtask. */
export function subtaskOf(sections: readonly v1.ContextSection[]): SubtaskInputs | undefined {
  const section = (name: string): unknown => {
    const content = sections.find((one) => one.name === name)?.content;
    return content?.case === "json" ? parseJson(content.value) : undefined;
  };
  const told = section("task_description") as Told | undefined;
  if (told?.plan_id === undefined || told.subtask_id === undefined) return undefined;
  type Section = Record<string, Given>;
  const [previous, direct] = [section("previous_results") as Section | undefined, section("dependency_results") as Section | undefined];
  const consumed = Object.entries((section("consumed") as Record<string, Section> | undefined) ?? {});
  const given = [previous, direct, ...consumed.map(([, results]) => results)].flatMap((results) => Object.entries(results ?? {}));
  return {
    planId: told.plan_id,
    subtaskId: told.subtask_id,
    description: told.description ?? "",
    role: told.role ?? "",
    attempt: told.attempt ?? 1,
    isCompensation: told.compensates !== undefined,
    element: section("element") as Element | undefined,
    input: section("input") as JsonObject | undefined,
    planInput: section("plan_input") as JsonObject | undefined,
    previousResults: resultsOf(previous),
    dependencyResults: resultsOf(direct),
    consumed: new Map(consumed.map(([topic, results]) => [topic, resultsOf(results)])),
    omitted: new Set(given.filter(([, { omitted }]) => omitted === true).map(([id]) => id)),
  };
}

/** Returns the inputs with whole results in the places of omitted ones. */
export function filled(inputs: SubtaskInputs, whole: ReadonlyMap<string, v1.SubtaskResult>): SubtaskInputs {
  const fill = (results: ReadonlyMap<string, v1.SubtaskResult>): Map<string, v1.SubtaskResult> =>
    new Map([...results].map(([id, result]) => [id, inputs.omitted.has(id) ? (whole.get(id) ?? result) : result]));
  return {
    ...inputs,
    previousResults: fill(inputs.previousResults),
    dependencyResults: fill(inputs.dependencyResults),
    consumed: new Map([...inputs.consumed].map(([topic, results]) => [topic, fill(results)])),
    omitted: new Set([...inputs.omitted].filter((id) => !whole.has(id))),
  };
}

function resultsOf(section: Record<string, Given> = {}): Map<string, v1.SubtaskResult> {
  return new Map(
    Object.entries(section).map(([subtaskId, { response = "", tokens = 0, success = false, tools_used: toolsUsed = [], numeric_value: numericValue, result }]) => {
      const number = typeof numericValue === "number" ? { numericValue } : {};
      const resultJson = result === undefined ? "" : jsonOf(result);
      return [subtaskId, create(v1.SubtaskResultSchema, { subtaskId, response, tokens: BigInt(tokens), success, toolsUsed, resultJson, ...number })];
    }),
  );
}
