/** Which states of tasks and handoffs are final. */
import { HandoffState, TaskStatus } from "./v1.js";

/** Whether a task is over. */
export function isFinalStatus(status: TaskStatus): boolean {
  return status === TaskStatus.COMPLETED || status === TaskStatus.FAILED || status === TaskStatus.CANCELED;
}

/** Whether a handoff has ended. */
export function isFinalState(state: HandoffState): boolean {
  const { COMPLETED, REJECTED, FAILED, CANCELLED } = HandoffState;
  return [COMPLETED, REJECTED, FAILED, CANCELLED].includes(state);
}
