/** Has the tests of the adapter run with the newest version of the AI SDK: node --import ./build/test/newest.js --test build/test/ai.test.js. */
import { register } from "node:module";

const hook = `export function resolve(name, context, next) {
  return next(name === "ai" || name.startsWith("ai/") ? name.replace(/^ai/, "ai-newest") : name, context);
}`;
register(`data:text/javascript,${encodeURIComponent(hook)}`, import.meta.url);
