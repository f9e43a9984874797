/** Parts: inside a handler, a request for a new task names the handler's task as its parent. */
import { AsyncLocalStorage } from "node:async_hooks";
import { clone, create, isMessage, type MessageInitShape } from "@bufbuild/protobuf";
import type { Holding } from "./holdings.js";
import { type HandoffRequest, HandoffRequestSchema } from "./v1.js";

/** The work that runs, with its task once this agent owns it. */
interface Work {
  readonly holding: Holding | undefined;
}

const working = new AsyncLocalStorage<Work>();

/** Runs a function, and its promises, as work on a task. */
export function inWork<T>(work: Work, body: () => T): T {
  return working.run(work, body);
}

/** Returns the task that a new task is a part of: that of the running handler, if this agent owns it. */
export function parentOf(taskId: string): string | undefined {
  const holding = working.getStore()?.holding;
  return holding?.isOwned === true && holding.taskId !== taskId ? holding.taskId : undefined;
}

/**
 * Returns the request for a task, with a parent if the request creates the task inside a handler: the handler's task, if this agent
 * owns it. `isAdded` says so. A request that names a parent keeps it, also one with `parentTaskId: ""`, which means none.
 */
export function asPart(
  init: MessageInitShape<typeof HandoffRequestSchema>,
  taskId: string,
  epoch: bigint,
): { request: HandoffRequest; isAdded: boolean } {
  const request = isMessage(init, HandoffRequestSchema) ? clone(HandoffRequestSchema, init) : create(HandoffRequestSchema, init);
  const parent = parentOf(taskId);
  // A message that was made before has an empty text where nothing was said.
  const isSaid = isMessage(init, HandoffRequestSchema) ? request.parentTaskId !== "" : init.parentTaskId !== undefined;
  if (isSaid || epoch !== 1n || parent === undefined) return { request, isAdded: false };
  request.parentTaskId = parent;
  return { request, isAdded: true };
}
