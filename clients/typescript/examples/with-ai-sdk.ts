/** Vercel AI SDK: the model hands questions about invoices over to an agent behind baton. */
import { generateText, type LanguageModel, stepCountIs } from "ai";
import type { Agent } from "../src/index.js";
import { handoffTool } from "../src/ai.js";

/** Answers a question. The model decides whether billing gets it. */
export async function triage(agent: Agent, receiver: string, model: LanguageModel, prompt: string): Promise<string> {
  const description = "Hands a question about an invoice over to billing.";
  const billing = handoffTool(agent, receiver, "invoice-question", { description });
  const { text } = await generateText({ model, prompt, tools: { transfer_to_billing: billing }, stopWhen: stepCountIs(3) });
  return text;
}
