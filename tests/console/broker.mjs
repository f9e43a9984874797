// A broker of a test's own with some data, and a browser.

import { execFile, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import assert from "node:assert/strict";

import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

const BATON = process.env.BATON_BIN;

// How long anything may take, in milliseconds. It only ends a test that hangs.
export const PATIENCE = 20_000;

export const PAGES = ["/overview", "/handoffs", "/agents", "/agents/alice", "/plans", "/dead-letters", "/audit"];

export const TEXT = "<img src=x onerror=alert(1)> \u202eevil &amp; \"quoted\"";

export async function until(what, attempt) {
  const deadline = Date.now() + PATIENCE;
  while (!(await attempt())) {
    assert.ok(Date.now() < deadline, `never: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

export class Broker {
  static async start() {
    const broker = new Broker();
    broker.folder = mkdtempSync(join(tmpdir(), "console-"));
    broker.data = join(broker.folder, "data");
    writeFileSync(join(broker.folder, "context.json"), JSON.stringify({ goals: ["refund"] }));
    await broker.run("0");
    return broker;
  }

  // Starts on the folder of before, and on the port of before if there was one.
  async run(port) {
    this.said = "";
    rmSync(join(this.data, "address"), { force: true });
    this.process = spawn(BATON, ["dev", "--data", this.data, "--port", port], { stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [this.process.stdout, this.process.stderr]) {
      stream.on("data", (text) => (this.said += text));
    }
    await until("the broker is ready", () => this.said.includes("Ctrl-C stops the broker"));
    this.address = readFileSync(join(this.data, "address"), "utf8").trim();
    this.url = `https://${this.address}`;
  }

  get token() {
    return readFileSync(join(this.data, "operator.token"), "utf8").trim();
  }

  // The address for a login that the broker has printed at its start.
  get loginUrl() {
    return this.said.match(/https:\/\/\S+\/login#code=[0-9a-f]{64}/)[0];
  }

  async baton(...args) {
    const { stdout } = await promisify(execFile)(BATON, [...args, "-o", "json"], { cwd: this.folder, env: this.env });
    return stdout.trim() ? JSON.parse(stdout) : undefined;
  }

  get env() {
    const { data, address, token } = this;
    const own = { BATON_SERVER: address, BATON_CA: join(data, "tls/ca.pem"), BATON_TOKEN: token };
    return { ...process.env, ...own, XDG_CONFIG_HOME: this.folder };
  }

  async agents(...names) {
    for (const name of names) {
      if (existsSync(join(this.folder, `${name}.pem`))) continue;
      await this.baton("keygen", "--out", `${name}.pem`);
      await this.baton("agent", "register", ...this.as(name), "--type", "worker");
    }
  }

  as(name) {
    return ["--id", name, "--key", `${name}.pem`];
  }

  // A handoff in each kind of state: a task with five owners, an open offer, three dead letters, and a plan.
  async story() {
    await this.agents("alice", "bob", "carol");
    const hops = [["alice", "bob"], ["bob", "carol"], ["carol", "alice"], ["alice", "carol"]];
    for (const [epoch, [from, to]] of hops.entries()) {
      const request = ["--to", to, "--task", "invoice-7", "--epoch", `${epoch + 1}`, "--summary", "a double payment"];
      await this.baton("handoff", "request", ...this.as(from), ...request);
      await this.baton("handoff", "accept", "invoice-7", ...this.as(to));
      await this.baton("handoff", "context", "invoice-7", ...this.as(from), "--file", "context.json");
      await this.baton("handoff", "complete", "invoice-7", ...this.as(to), "--yes");
    }
    for (const task of ["move-1", "move-2", "move-3"]) {
      await this.baton("handoff", "request", ...this.as("alice"), "--to", "bob", "--task", task);
      await this.baton("handoff", "reject", task, ...this.as("bob"), "--text", TEXT);
    }
    await this.baton("handoff", "request", ...this.as("alice"), "--to", "carol", "--task", "ticket-1");
    const subtask = (id, ...dependencies) => ({ id, description: `${TEXT} ${id}`, role: "work", agent_type: "worker", dependencies });
    const subtasks = [subtask("fetch"), subtask("growth", "fetch"), subtask("margin", "fetch"), subtask("report", "growth", "margin")];
    writeFileSync(join(this.folder, "plan.json"), JSON.stringify({ description: `the third quarter ${TEXT}`, subtasks }));
    await this.baton("plan", "submit", "plan.json", "--plan-id", "quarter-3", ...this.as("alice"));
    const handoffs = (await this.baton("handoff", "list")) ?? [];
    const of = (task) => handoffs.find((handoff) => handoff.taskId === task).handoffId;
    const letter = (await this.baton("dlq", "list"))[0].deadLetterId;
    return [`/handoffs/${of("move-1")}`, "/tasks/invoice-7", `/dead-letters/${letter}`, "/plans/quarter-3"];
  }

  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((done) => this.process.once("exit", done));
    this.process.kill("SIGKILL");
    await ended;
  }

  async end() {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }
}

// A browser whose pages record what must never happen.
export class Browser {
  static async open() {
    const browser = new Browser();
    const executablePath = process.env.CHROMIUM ?? (await chromium.executablePath());
    const args = ["--no-sandbox", "--disable-gpu"];
    browser.program = await playwright.launch({ executablePath, args, headless: true });
    browser.faults = [];
    return browser;
  }

  async context(options = {}) {
    const context = await this.program.newContext({ ignoreHTTPSErrors: true, ...options });
    context.setDefaultTimeout(PATIENCE);
    context.on("page", (page) => {
      page.on("pageerror", (error) => this.faults.push(`${page.url()}: ${error}`));
      page.on("dialog", (dialog) => this.faults.push(`${page.url()} asks ${dialog.message()}`));
      page.on("console", (line) => {
        // A violation of the policy is an error line too. Lost connections are lines of tests that lose them.
        const isExpected = /ERR_CONNECTION|ERR_HTTP2|ERR_INCOMPLETE|status of 40[0139]|ERR_EMPTY/.test(line.text());
        if (line.type() === "error" && !isExpected) this.faults.push(`${page.url()}: ${line.text()}`);
      });
      page.on("response", (response) => {
        const headers = response.headers();
        const policy = headers["content-security-policy"] ?? "";
        if (!policy.startsWith("default-src 'none'") || headers["x-content-type-options"] !== "nosniff") {
          this.faults.push(`${response.url()} lacks its headers`);
        }
      });
    });
    return context;
  }

  // A page after the login of an operator.
  async loggedIn(broker, options = {}) {
    const page = await (await this.context(options)).newPage();
    await page.goto(`${broker.url}/login`);
    await page.getByLabel("Token").fill(broker.token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL(`${broker.url}/overview`);
    return page;
  }

  async end() {
    await this.program.close();
    assert.deepEqual(this.faults, []);
  }
}
