/** Recalls: the notice that a task was taken from this agent. */
import type { Delivery } from "./delivery.js";
import { BROKER_ID } from "./envelopes.js";
import { TaskRecalled } from "./errors.js";
import { ErrorCode, type ErrorNotification, NextStep } from "./v1.js";

const TAKEN: readonly ErrorCode[] = [ErrorCode.TASK_RECALLED, ErrorCode.TASK_REASSIGNED];

/** A task that was taken from this agent: another agent recalled it, its loan timeout passed, or an operator reassigned it. */
export interface Recalled {
  readonly taskId: string;
  /** The handoff that lent the task, to this agent or before it. */
  readonly handoffId: string;
  /** The task's epoch after the recall. The broker refuses messages about the task of a lower one. */
  readonly epoch: bigint;
  /** The explanation, for people. */
  readonly text: string;
  /** Whether an operator reassigned the task. */
  readonly isReassigned: boolean;
}

/** The end of a call or a signal for the loss of its task. */
export function lossOf({ taskId, handoffId, epoch, text, isReassigned }: Recalled): TaskRecalled {
  return new TaskRecalled(taskId, handoffId, isReassigned ? "REASSIGNED" : "RECALL", text, epoch, false);
}

/** Returns the broker's notice of a recall or a reassignment, if the delivery is one. */
export function recallNotice({ payload, envelope }: Delivery): ErrorNotification | undefined {
  const isNotice = payload?.$typeName === "baton.v1.ErrorNotification" && envelope.senderId === BROKER_ID;
  return isNotice && TAKEN.includes(payload.errorCode) ? payload : undefined;
}

/** Returns what the broker took from this agent, if the delivery says so. */
export function takenBy(delivery: Delivery): Recalled | undefined {
  const notice = recallNotice(delivery);
  if (notice?.nextStep !== NextStep.DROP_TASK) return undefined;
  const { taskId, epoch } = delivery.envelope;
  const isReassigned = notice.errorCode === ErrorCode.TASK_REASSIGNED;
  return { taskId, handoffId: delivery.handoffId, epoch, text: notice.errorMessage, isReassigned };
}
