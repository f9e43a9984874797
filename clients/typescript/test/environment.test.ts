/** Options from the environment, and from the profiles that the command line writes. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { Agent, type AgentOptions, type Environment, loadKey, optionsFromEnv } from "../src/index.js";
import { Broker, temporaryFolder, unique } from "./broker.js";

let broker: Broker;
before(async () => {
  broker = await Broker.start();
  for (const name of Object.keys(process.env)) if (name.startsWith("BATON_") && name !== "BATON_BIN") Reflect.deleteProperty(process.env, name);
});
after(() => broker.remove());

const home = process.cwd();
afterEach(() => {
  process.chdir(home);
});

/** An environment with an empty folder for profiles; the test works in an empty folder. */
class Place {
  readonly base = temporaryFolder();
  readonly environment: Record<string, string>;

  constructor() {
    this.environment = { XDG_CONFIG_HOME: this.base };
    process.chdir(temporaryFolder());
  }

  with(more: Record<string, string>): Environment {
    return { ...this.environment, ...more };
  }

  /** Runs a command of the command line. */
  cli(...args: string[]): void {
    execFileSync(process.env["BATON_BIN"] ?? "", args, { env: { ...process.env, ...this.environment }, stdio: "pipe" });
  }

  key(name: string): string {
    const path = join(this.base, `${name}.pem`);
    this.cli("keygen", "--out", path);
    return path;
  }

  profile(name: string, ...args: string[]): void {
    this.cli("profile", "add", name, "--server", broker.address, "--ca", ca(), ...args);
  }

  write(name: string, text: string, mode = 0o600): void {
    const path = join(this.base, "baton", "profiles", name);
    writeFileSync(path, text);
    chmodSync(path, mode);
  }
}

function ca(): string {
  return join(broker.data, "tls", "ca.pem");
}

async function connects(options: AgentOptions): Promise<void> {
  const agent = await Agent.connect({ ...options, card: {} });
  try {
    assert.equal((await agent.getAgent(agent.id)).card?.agentId, options.agentId);
  } finally {
    agent.close();
  }
}

test("an agent connects by the profile in use", async () => {
  const place = new Place();
  const path = place.key("bob");
  const [bob, carol] = [unique("bob"), unique("carol")];
  place.profile("bob", "--id", bob, "--key", path, "--key-id", "k7", "--format", "json", "--use");
  place.profile("carol", "--id", carol, "--key", place.key("carol"));
  const options = await optionsFromEnv(place.with({ BATON_SERVER: "" }));
  assert.deepEqual([options.server, options.agentId, options.keyId], [broker.address, bob, "k7"]);
  assert.ok(options.key.equals(await loadKey(path)));
  await connects(options);
  const other = await optionsFromEnv(place.with({ BATON_PROFILE: "carol" }));
  assert.deepEqual([other.agentId, other.keyId], [carol, undefined]);
  const agent = await Agent.fromEnv({ card: {} }, place.with({ BATON_PROFILE: "carol" }));
  assert.equal(agent.id, carol);
  agent.close();
});

test("the environment takes precedence over the profile", async () => {
  const place = new Place();
  const [bobs, carols] = [place.key("bob"), place.key("carol")];
  place.cli("profile", "add", "bob", "--server", "broker.example:1", "--id", "bob", "--key", bobs, "--key-id", "k7", "--use");
  rmSync(bobs); // it is not read
  const agentId = unique("carol");
  const environment = place.with({
    BATON_SERVER: `https://${broker.address}/`, BATON_CA: ca(), BATON_AGENT_ID: agentId, BATON_AGENT_KEY: carols,
  });
  const options = await optionsFromEnv(environment);
  // The name of the profile's key does not belong to this one.
  assert.deepEqual([options.server, options.agentId, options.keyId, options.token], [broker.address, agentId, undefined, undefined]);
  assert.ok(options.key.equals(await loadKey(carols)));
  await connects(options);
  const more = await optionsFromEnv({ ...environment, BATON_AGENT_KEY_ID: "k2", BATON_TOKEN: " a token\n" });
  assert.deepEqual([more.keyId, more.token], ["k2", "a token"]);
  await assert.rejects(optionsFromEnv({ ...environment, BATON_CA: "/none/ca.pem" }), /^Error: BATON_CA: .*\/none\/ca\.pem.*baton dev/);
});

test("the broker of the folder is trusted by its own CA", async () => {
  const place = new Place();
  const identity = { BATON_AGENT_ID: unique("bob"), BATON_AGENT_KEY: place.key("bob") };
  const away = await optionsFromEnv(place.with(identity));
  assert.deepEqual([away.server, away.ca], ["127.0.0.1:22866", undefined]);
  symlinkSync(broker.data, "baton-data");
  const port = broker.address.split(":")[1] ?? "";
  await connects(await optionsFromEnv(place.with({ ...identity, BATON_SERVER: `localhost:${port}` })));
  for (const server of ["127.0.0.1:1", `127.0.0.2:${port}`, `broker.example:${port}`, `http://127.0.0.1:${port}`]) {
    const other = await optionsFromEnv(place.with({ ...identity, BATON_SERVER: server }));
    assert.deepEqual([other.server, other.ca], [server, undefined]);
  }
});

test("a client certificate of the environment is used", async () => {
  const place = new Place();
  const tls = join(broker.data, "tls");
  const environment = place.with({
    BATON_AGENT_ID: "bob", BATON_AGENT_KEY: place.key("bob"),
    BATON_CERT: join(tls, "server.pem"), BATON_CERT_KEY: join(tls, "server.key"),
  });
  const { certificate } = await optionsFromEnv(environment);
  assert.match(certificate?.cert ?? "", /BEGIN CERTIFICATE/);
  assert.match(certificate?.key ?? "", /PRIVATE KEY/);
  await assert.rejects(optionsFromEnv({ ...environment, BATON_CERT_KEY: "" }), /BATON_CERT_KEY go together/);
  await assert.rejects(optionsFromEnv({ ...environment, BATON_CERT: "/none.pem" }), /^Error: BATON_CERT: .*none\.pem/);
});

test("a fault of the environment names its remedy", async () => {
  const place = new Place();
  const path = place.key("bob");
  place.cli("profile", "add", "nobody", "--server", "127.0.0.1:1");
  place.write("open.toml", 'server = "127.0.0.1:1"\n', 0o644);
  place.write("misspelt.toml", 'sever = "127.0.0.1:1"\n');
  place.write("number.toml", "server = 1\n");
  place.write("broken.toml", "server = \n");
  place.write("gone.toml", 'id = "bob"\nkey = "/none/bob.pem"\n');
  const agent = { BATON_AGENT_ID: "bob", BATON_AGENT_KEY: path };
  const faults: readonly [Record<string, string>, RegExp][] = [
    [{}, /no agent is named: set BATON_AGENT_ID and BATON_AGENT_KEY, .*baton profile add/],
    [{ BATON_PROFILE: "nobody" }, /nobody\.toml names no agent: set BATON_AGENT_ID/],
    [{ BATON_PROFILE: "prod" }, /BATON_PROFILE: no profile has the name prod .*baton profile list/],
    [{ BATON_PROFILE: "../prod" }, /BATON_PROFILE: "\.\.\/prod" is not a name/],
    [{ BATON_PROFILE: "open" }, /mode 0644.*chmod 600/],
    [{ BATON_PROFILE: "misspelt" }, /misspelt\.toml: .*the key sever/],
    [{ BATON_PROFILE: "number" }, /number\.toml: server must be a text/],
    [{ BATON_PROFILE: "broken" }, /broken\.toml: /],
    [{ BATON_PROFILE: "gone" }, /the key of .*gone\.toml: .*\/none\/bob\.pem.*baton keygen/],
    [{ BATON_AGENT_ID: "bob" }, /BATON_AGENT_KEY is not/],
    [{ BATON_AGENT_KEY: path }, /BATON_AGENT_ID is not/],
    [{ ...agent, BATON_AGENT_KEY: ca() }, /BATON_AGENT_KEY: .*ca\.pem/],
    [{ ...agent, BATON_SERVER: "broker.example" }, /BATON_SERVER: "broker\.example" is not HOST:PORT/],
    [{ ...agent, BATON_SERVER: "broker.example:70000" }, /BATON_SERVER: /],
    [{ ...agent, BATON_CA: path }, /BATON_CA: .*bob\.pem has no certificate/],
  ];
  for (const [variables, expected] of faults) {
    await assert.rejects(optionsFromEnv(place.with(variables)), expected, JSON.stringify(variables));
  }
});
