/** Recalls: the notice that a task was taken from this agent. */
import type { Delivery } from "./delivery.js";
import { BROKER_ID } from "./envelopes.js";
import { TaskRecalled } from "./errors.js";
import { ErrorCode, type ErrorNotification, NextStep } from "./v1.js";

const TAKEN = new Map<ErrorCode, Recalled["reason"]>([
  [ErrorCode.TASK_RECALLED, "RECALL"],
  [ErrorCode.TASK_REASSIGNED, "REASSIGNED"],
  [ErrorCode.TASK_ABANDONED, "ABANDONED"],
  [ErrorCode.TASK_CANCELED, "CANCELED"],
]);

/**
 * A task that was taken from this agent: another agent recalled it, its loan timeout passed, an operator reassigned it, no process
 * of this agent gave a sign of work for its silence timeout, or it was cancelled with the task that it is a part of.
 */
export interface Recalled {
  readonly taskId: string;
  /** The handoff that lent the task, to this agent or before it. */
  readonly handoffId: string;
  /** The task's epoch after the recall. The broker refuses messages about the task of a lower one. */
  readonly epoch: bigint;
  /** The explanation, for people. */
  readonly text: string;
  /**
   * RECALL, by a delegator or by the loan timeout; REASSIGNED, by an operator; ABANDONED, after the silence timeout; CANCELED, which
   * ends the task.
   */
  readonly reason: "RECALL" | "REASSIGNED" | "ABANDONED" | "CANCELED";
}

/** The end of a call or a signal for the loss of its task. */
export function lossOf({ taskId, handoffId, epoch, text, reason }: Recalled): TaskRecalled {
  return new TaskRecalled(taskId, handoffId, reason, text, epoch, false);
}

/** Returns the broker's code of the notice, as in HandoffFailed. */
export function noticeOf({ reason }: Recalled): string {
  return reason === "RECALL" ? "TASK_RECALLED" : `TASK_${reason}`;
}

/** Returns the last epoch at which work on the task is over. A cancelled task may end in the epoch of its owner. */
export function lastEpochOf({ reason, epoch }: Recalled): bigint {
  return reason === "CANCELED" ? epoch : epoch - 1n;
}

/** Returns the broker's notice that a task was taken or given back, if the delivery is one. */
export function recallNotice({ payload, envelope }: Delivery): ErrorNotification | undefined {
  const isNotice = payload?.$typeName === "baton.v1.ErrorNotification" && envelope.senderId === BROKER_ID;
  return isNotice && TAKEN.has(payload.errorCode) ? payload : undefined;
}

/** Returns what the broker took from this agent, if the delivery says so. */
export function takenBy(delivery: Delivery): Recalled | undefined {
  const notice = recallNotice(delivery);
  if (notice?.nextStep !== NextStep.DROP_TASK) return undefined;
  const { taskId, epoch } = delivery.envelope;
  const reason = TAKEN.get(notice.errorCode) ?? "RECALL";
  return { taskId, handoffId: delivery.handoffId, epoch, text: notice.errorMessage, reason };
}
