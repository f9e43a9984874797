// What the tests share: real brokers, the command line for what agents do, and browsers whose every answer and message is
// checked.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

const { BATON_BIN, CHROMIUM, CONSOLE_TOOLS } = process.env;
if (!BATON_BIN || !CHROMIUM || !CONSOLE_TOOLS) throw new Error("tests/console/run.sh starts the tests");
const modules = join(CONSOLE_TOOLS, "node_modules");
const { chromium } = await import(pathToFileURL(join(modules, "playwright-core", "index.mjs")));
const AXE = readFileSync(join(modules, "axe-core", "axe.min.js"), "utf8");

/** The time limit of a wait for something that must happen. It only ends a test that hangs. */
const PATIENCE_MS = 120_000;

const HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
};

/** Both ends of the connections that hold ports. */
const ends = [];

/**
 * The address of a port that stays this process's own while no broker listens on it. The system gives a port in use to nobody who
 * asks for any port. A connection from the port keeps it in use, and a broker that names it can listen there (both with
 * SO_REUSEADDR).
 */
async function heldPort() {
  const server = createServer((far) => ends.push(far.unref())).listen(0, "127.0.0.1");
  await once(server, "listening");
  // With an address of its own, the socket is bound first, with SO_REUSEADDR.
  const near = connect({ host: "127.0.0.1", port: server.address().port, localAddress: "127.0.0.1" });
  await Promise.all([once(near, "connect"), once(server, "connection")]);
  ends.push(near.unref());
  server.close();
  return `127.0.0.1:${near.localPort}`;
}

let browser;
async function theBrowser() {
  browser ??= await chromium.launch({
    executablePath: CHROMIUM,
    // A container has no user namespaces for the sandbox; hinting differs by machine.
    args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],
  });
  return browser;
}
after(() => browser?.close());

/** Polls until `condition` gives a value that is true, and returns it. For what is outside the browser. */
export async function until(what, condition) {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end; await wait(20)) {
    const value = await condition();
    if (value) return value;
  }
  throw new Error(`not within ${PATIENCE_MS} ms: ${what}`);
}

/** Runs a test with a broker of its own, with these flags. All that the test starts ends with it. */
export function scenario(name, body, ...flags) {
  test(name, async () => {
    const scene = await Scene.begin(flags);
    try {
      await body(scene);
      await scene.check();
    } finally {
      await scene.end();
    }
  });
}

class Scene {
  #processes = new Set();
  #contexts = [];
  #watches = [];
  #origins = new Set();
  #broker;
  #env;

  #flags;

  static async begin(flags) {
    const scene = new Scene();
    scene.#flags = flags;
    scene.folder = mkdtempSync(join(tmpdir(), "console-"));
    scene.data = join(scene.folder, "data");
    try {
      scene.address = await heldPort();
      await scene.restart();
    } catch (error) {
      await scene.end();
      throw error;
    }
    return scene;
  }

  /** Starts the broker, also after it was killed, on its folder and port. */
  async restart() {
    const file = join(this.data, "address");
    rmSync(file, { force: true });
    this.#broker = this.#run(["dev", "--data", this.data, "--listen", this.address, ...this.#flags], { BATON_LOG: "error" });
    await until("the broker's address", () => {
      assert.equal(this.#broker.exitCode, null, "the broker has ended");
      return existsSync(file) && readFileSync(file, "utf8").trim();
    });
    this.origin = `https://${this.address}`;
    this.#origins.add(this.origin);
    this.token = readFileSync(join(this.data, "operator.token"), "utf8").trim();
    this.#env = { BATON_SERVER: this.address, BATON_CA: join(this.data, "tls", "ca.pem"), BATON_TOKEN: this.token };
  }

  /** Ends the broker as by a crash. */
  async kill() {
    const ended = once(this.#broker, "exit");
    this.#broker.kill("SIGKILL");
    await ended;
  }

  #run(args, env) {
    const child = spawn(BATON_BIN, args, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, ...env } });
    this.#processes.add(child);
    child.once("exit", () => this.#processes.delete(child));
    child.stdout.resume();
    return child;
  }

  /** Runs a command of the command line, and returns the JSON documents that it prints. */
  async lines(...args) {
    const env = { ...process.env, ...this.#env };
    const { stdout } = await promisify(execFile)(BATON_BIN, [...args, "--output", "jsonl"], { env, maxBuffer: 1 << 26 });
    return stdout.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line));
  }

  /** Runs a command that prints one document at most. */
  async baton(...args) {
    return (await this.lines(...args))[0];
  }

  /** Starts a command that goes on until the test ends, and returns the first line that it prints, as JSON. */
  async running(...args) {
    const child = this.#run(args, this.#env);
    for await (const line of createInterface({ input: child.stdout })) return JSON.parse(line);
    throw new Error(`baton ${args.join(" ")} has ended`);
  }

  /** Lets an agent listen for its mail, and take it, until the test ends. Returns the process. */
  listening(agent) {
    return this.#run(["mail", "receive", ...agent.identity, "--ack"], this.#env);
  }

  /** Lets an agent take and finish what it is offered, in a session, until the test ends. Returns the process. */
  serving(agent, ...more) {
    return this.#run(["agent", "serve", ...agent.identity, ...more], this.#env);
  }

  /** Lets an agent start this command for each task, until the test ends. Returns the process. */
  executing(agent, ...command) {
    return this.#run(["agent", "exec", ...agent.identity, "--", ...command], this.#env);
  }

  /** Registers an agent. `more` are flags of `baton agent register`. */
  async agent(id, ...more) {
    const key = join(this.folder, `${id}.pem`);
    await this.baton("keygen", "--out", key);
    await this.baton("agent", "register", "--id", id, "--key", key, ...more);
    return new Agent(this, id, key);
  }

  /** Registers an agent by its whole card, to which this adds the key. */
  async agentWithCard(card) {
    const id = card.agentId;
    const key = join(this.folder, `${id}.pem`);
    const { publicKey } = await this.baton("keygen", "--out", key);
    const whole = { ...card, keys: [{ keyId: "k1", publicKey }] };
    await this.baton("agent", "register", "--card", this.file(`${id}.json`, JSON.stringify(whole)));
    return new Agent(this, id, key);
  }

  /** Starts the page on which a person decides as this agent, and returns its address. */
  async desk(agent) {
    const { deskUrl } = await this.running("console", ...agent.identity);
    this.#origins.add(new URL(deskUrl).origin);
    return deskUrl;
  }

  /** Writes a file into the folder of the test. */
  file(name, text) {
    const path = join(this.folder, name);
    writeFileSync(path, text);
    return path;
  }

  /** Opens an empty page in a browser of its own, whose messages and answers are checked. */
  async page(options = {}) {
    const context = await (await theBrowser()).newContext({
      ignoreHTTPSErrors: true,
      timezoneId: "UTC",
      locale: "en-GB",
      viewport: { width: 1000, height: 640 },
      reducedMotion: "reduce",
      ...options,
    });
    this.#contexts.push(context);
    context.setDefaultTimeout(PATIENCE_MS);
    this.#watches.push(new Watch(context, (url) => this.#origins.has(new URL(url).origin)));
    return context.newPage();
  }

  /** Opens a page at `path` as the operator, by the form of the login. */
  async operator(path = "/overview", options = {}) {
    const page = await this.page(options);
    await page.goto(this.origin + path);
    await this.logIn(page);
    assert.equal(new URL(page.url()).pathname, path.split("?")[0]);
    return page;
  }

  async logIn(page) {
    await page.getByLabel("Token").fill(this.token);
    await Promise.all([page.waitForURL((url) => url.pathname !== "/login"), page.getByRole("button", { name: "Log in" }).click()]);
  }

  /** The messages of the browsers that this test expects, besides none. */
  expects(...patterns) {
    for (const watch of this.#watches) watch.expected.push(...patterns);
  }

  /** C2: every answer had the headers, and no browser complained. */
  async check() {
    for (const watch of this.#watches) await watch.check();
  }

  async end() {
    for (const context of this.#contexts) await context.close();
    const ended = [...this.#processes].map((child) => once(child, "exit"));
    for (const child of this.#processes) child.kill("SIGKILL");
    await Promise.all(ended);
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
  }
}

class Agent {
  #scene;

  constructor(scene, id, key) {
    this.#scene = scene;
    this.id = id;
    this.identity = ["--id", id, "--key", key];
  }

  /** Requests a handoff that no deadline ends during the test, and returns its id. */
  async request(to, ...more) {
    const timeouts = ["accept", "context", "complete"].flatMap((step) => [`--${step}-timeout`, "1h"]);
    const flags = ["--to", to, ...timeouts, "--whole-timeout", "6h", ...more];
    const answer = await this.#scene.baton("handoff", "request", ...this.identity, ...flags);
    return answer.handoffId;
  }

  /** Receives a message, so that it is this agent's turn. */
  async receive() {
    await this.#scene.baton("mail", "receive", ...this.identity, "--max", "1", "--ack");
  }

  /** Runs `baton handoff STEP HANDOFF` as this agent. */
  step(step, handoff, ...more) {
    return this.#scene.baton("handoff", step, handoff, ...this.identity, ...more);
  }

  /** Reports the status of a task. */
  status(task, status, ...more) {
    return this.#scene.baton("task", "status", ...this.identity, task, status, ...more);
  }

  /** Rejects a handoff, which parks it if there is no other candidate. */
  reject(handoff, text) {
    return this.step("reject", handoff, "--text", text);
  }

  /** Sends a context to the receiver, which takes the task over. */
  async handOver(handoff, receiver, context = {}) {
    await receiver.receive();
    await receiver.step("accept", handoff);
    await this.step("context", handoff, "--file", this.#scene.file(`${handoff}.json`, JSON.stringify(context)));
    await receiver.step("complete", handoff, "--yes");
  }
}

/** Collects what a browser complains about, and the headers of all that it got from the broker. */
class Watch {
  expected = [];
  #complaints = [];
  #answers = [];

  constructor(context, isOurs) {
    context.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) this.#complaints.push(`${message.type()}: ${message.text()}`);
    });
    context.on("weberror", (error) => this.#complaints.push(`uncaught: ${error.error().message}`));
    context.on("dialog", (dialog) => {
      this.#complaints.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    context.on("response", (response) => {
      if (isOurs(response.url())) this.#answers.push(headersOf(response));
    });
  }

  get complaints() {
    return this.#complaints.filter((text) => !this.expected.some((pattern) => pattern.test(text)));
  }

  async check() {
    assert.deepEqual(this.complaints, [], "the browser complained");
    const answers = await Promise.all(this.#answers);
    for (const { what, headers } of answers) {
      if (headers === undefined) continue;
      for (const [name, value] of Object.entries(HEADERS)) assert.equal(headers[name], value, `${name} of ${what}`);
    }
  }
}

async function headersOf(response) {
  const what = `${response.request().method()} ${response.url()}: ${response.status()}`;
  try {
    return { what, headers: await response.allHeaders() };
  } catch {
    // The page was closed before its headers were asked for.
    return { what, headers: undefined };
  }
}

/** C8: axe finds nothing to object to, in light and in dark. */
export async function isAccessible(page, what) {
  const before = page.viewportSize();
  // Wide enough for every table: axe cannot tell the contrast of what is scrolled away.
  await page.setViewportSize({ width: 2400, height: 1000 });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.evaluate(AXE);
    const { violations, incomplete } = await page.evaluate(() => globalThis.axe.run());
    const found = (rules) => rules.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html}`));
    assert.deepEqual(found(violations), [], `${what}, ${colorScheme}`);
    // axe cannot tell the background of a text in a picture. Anything else that it leaves undecided would be unchecked.
    const undecided = found(incomplete).filter((rule) => !rule.startsWith("color-contrast: <text"));
    assert.deepEqual(undecided, [], `${what}, ${colorScheme}, undecided`);
    assert.deepEqual(await page.evaluate(unreadable), [], `${what}, ${colorScheme}, texts of pictures`);
  }
  await page.setViewportSize(before);
}

/** Runs in a page. Finds the texts of pictures with too little contrast to what is behind them, as axe does for others. */
function unreadable() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const page = getComputedStyle(document.body).backgroundColor;
  const isWithin = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1;
  return [...document.querySelectorAll("svg text:not(:empty)")].flatMap((text) => {
    const box = text.parentElement.localName === "g" ? text.parentElement.querySelector("rect") : null;
    const fill = box && getComputedStyle(box).fill;
    const behind = fill && fill !== "none" ? [fill] : [page];
    // A text that is longer than its box goes on over the page.
    if (box && !isWithin(text.getBoundingClientRect(), box.getBoundingClientRect())) behind.push(page);
    const colour = getComputedStyle(text).fill;
    return behind.every((other) => contrast(colour, other) >= 4.5) ? [] : [`${text.outerHTML}: ${colour} on ${behind.join(" and ")}`];
  });
}

/** C8: the Tab key goes through all that can be used, in the order of the page, and shows where it is. */
export async function isWalkable(page, what) {
  const all = await page.evaluate(() => {
    document.activeElement?.blur();
    const use = 'a[href], button, input:not([type="hidden"]), select, textarea, summary, [tabindex]';
    globalThis.usable = [...document.querySelectorAll(use)].filter((element) => element.checkVisibility());
    return globalThis.usable.map((element) => element.outerHTML.slice(0, 80));
  });
  const walked = [];
  for (let step = 0; step < all.length; step++) {
    await page.keyboard.press("Tab");
    const { index, isShown } = await page.evaluate(() => {
      const style = getComputedStyle(document.activeElement);
      return { index: globalThis.usable.indexOf(document.activeElement), isShown: style.outlineStyle !== "none" };
    });
    assert.ok(isShown, `${what}: no outline around ${all[index]}`);
    walked.push(all[index]);
  }
  assert.deepEqual(walked, all, what);
}

/** C8: a narrow page scrolls in one direction. */
export async function fitsNarrowScreens(page, what) {
  const before = page.viewportSize();
  await page.setViewportSize({ width: 400, height: 800 });
  const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
  assert.ok(width <= 400, `${what} is ${width} pixels wide`);
  await page.setViewportSize(before);
}

/** The ids of the rows of a list. */
export function rows(page) {
  return page.locator("tbody tr").evaluateAll((all) => all.map((row) => row.id));
}
