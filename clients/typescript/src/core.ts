/**
 * The part of an agent that its features use. `Agent` imports the features, so the features do not import `Agent`. A call that has
 * the types of a feature is in the interface of the module that makes the call: `TaskOwner` or `Negotiator`.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Contexts } from "./contexts.js";
import type { Delivery } from "./delivery.js";
import type { About, Payload } from "./envelopes.js";
import type { CallOptions } from "./following.js";
import type { JsonObject } from "./json.js";
import type { Mail } from "./mail.js";
import type { Plans } from "./plans.js";
import type { StatusUpdate } from "./updates.js";
import type { Tasks } from "./watching.js";
import type { ContextSection, Handoff, HandoffAcceptSchema, HandoffRejectSchema, Receipt, Task } from "./v1.js";

/** The identity, the mail and the single steps of an agent. `Agent` documents them. */
export interface AgentCore {
  readonly id: string;
  readonly mail: Mail;
  readonly contexts: Contexts;
  readonly plans: Plans;
  readonly tasks: Tasks;
  readonly log: (text: string, error?: unknown) => void;

  send(receiverId: string, about: About, payload: Payload, options?: CallOptions): Promise<Receipt>;
  reply(to: Delivery, payload: Payload): Promise<Receipt>;
  getTask(taskId: string): Promise<Task>;
  getHandoff(handoffId: string): Promise<Handoff>;

  accept(request: Delivery, accept?: MessageInitShape<typeof HandoffAcceptSchema>): Promise<Receipt>;
  reject(request: Delivery, reject: MessageInitShape<typeof HandoffRejectSchema>): Promise<Receipt>;
  complete(transfer: Delivery): Promise<Receipt>;
  failTakeover(transfer: Delivery, details: string): Promise<Receipt>;
  keepTurn(delivery: Delivery, details?: string): Promise<Receipt>;
  cancel(handoffId: string, text?: string, options?: CallOptions): Promise<Receipt>;

  checkpoint(taskId: string, epoch: bigint, sections: readonly ContextSection[], options?: CallOptions): Promise<Receipt>;
  updateStatus(taskId: string, epoch: bigint, update: StatusUpdate): Promise<Receipt>;
  recallSignal(taskId: string, epoch: bigint): AbortSignal;
  answer(question: { taskId: string; epoch: bigint; questionId: string }, text: string, data?: JsonObject): Promise<Receipt>;
}
