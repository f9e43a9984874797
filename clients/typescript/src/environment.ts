/** The broker and the identity of an agent from the environment, or from a profile of the command line. */
import { type KeyObject, X509Certificate } from "node:crypto";
import { existsSync } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { isIP } from "node:net";
import { isAbsolute, join } from "node:path";
import { parse } from "smol-toml";
import { loadKey } from "./keys.js";

const SERVER = "127.0.0.1:22866";
/** The data folder of `baton dev` in the working directory. */
const LOCAL_DATA = "baton-data";
const OF_AGENT = ["server", "ca", "id", "key", "key_id"] as const;
/** Those of the command line alone, too: an agent proves itself by its key. */
const PROFILE_KEYS: readonly string[] = [...OF_AGENT, "output", "token_file", "cert", "cert_key"];

/** The environment variables; `process.env` is one. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** What the environment says of an agent; `AgentOptions` has the same properties. */
export interface EnvironmentOptions {
  server: string;
  agentId: string;
  key: KeyObject;
  keyId?: string;
  ca?: string;
  certificate?: { cert: string; key: string };
  token?: string;
}

interface Profile extends Partial<Record<(typeof OF_AGENT)[number], string>> {
  readonly path?: string;
}

/**
 * Returns the options that the environment, or the profile of the command line, names: the broker, its CA, the agent and its key,
 * and a client certificate or a token if they are set. A variable takes precedence over the value of the profile, and an empty
 * variable counts as absent:
 *
 * - BATON_SERVER: the broker; default 127.0.0.1:22866.
 * - BATON_CA: the CA file. The default is ./baton-data/tls/ca.pem for the broker that runs on ./baton-data, otherwise Node's CAs.
 * - BATON_AGENT_ID and BATON_AGENT_KEY: the agent and the file of its key, both or neither. BATON_AGENT_KEY_ID is the key's id;
 *   default "k1".
 * - BATON_TOKEN: a token of the agent.
 * - BATON_CERT and BATON_CERT_KEY: the files of a client certificate and of its key, both or neither.
 *
 * BATON_PROFILE names a profile of `baton profile add`; the default is the one of `baton profile use`, if any. Profiles are in
 * $XDG_CONFIG_HOME/baton/profiles or ~/.config/baton/profiles. Throws if no agent is named, or if a file that is named cannot be
 * used; the error says which variable to set.
 */
export async function optionsFromEnv(environment: Environment = process.env): Promise<EnvironmentOptions> {
  const { BATON_CA, BATON_CERT = "", BATON_CERT_KEY = "", BATON_TOKEN = "" } = environment;
  const profile = await chosenProfile(environment);
  const server = serverOf(environment, profile);
  const options: EnvironmentOptions = { server, ...(await identityOf(environment, profile)) };
  if (BATON_CA) options.ca = await readCa(BATON_CA, "BATON_CA");
  else if (profile.ca) options.ca = await readCa(profile.ca, `the ca of ${profile.path}`);
  else if (await isLocalBroker(server)) options.ca = await readCa(localCa(), "the CA of the broker that runs here");
  if ((BATON_CERT === "") !== (BATON_CERT_KEY === "")) {
    throw new Error("BATON_CERT and BATON_CERT_KEY go together: set both or neither");
  }
  if (BATON_CERT !== "") {
    options.certificate = {
      cert: await named("BATON_CERT", () => readFile(BATON_CERT, "utf8")),
      key: await named("BATON_CERT_KEY", () => readFile(BATON_CERT_KEY, "utf8")),
    };
  }
  if (BATON_TOKEN.trim() !== "") options.token = BATON_TOKEN.trim();
  return options;
}

/** Returns the profile that BATON_PROFILE or `baton profile use` has chosen; an empty one without a choice. */
async function chosenProfile(environment: Environment): Promise<Profile> {
  const folder = profileFolder(environment);
  let name = environment["BATON_PROFILE"] ?? "";
  let source = "BATON_PROFILE";
  if (name === "") {
    if (folder === undefined) return {};
    source = join(folder, "current");
    try {
      name = (await readFile(source, "utf8")).trim();
    } catch (error) {
      if (isMissing(error)) return {};
      throw error;
    }
  }
  // A name becomes part of a path, so it must not lead out of the folder.
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name)) {
    throw new Error(`${source}: ${JSON.stringify(name)} is not a name: 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit`);
  }
  if (folder === undefined) throw new Error("there is no folder for profiles: set HOME or XDG_CONFIG_HOME");
  try {
    return await readProfile(join(folder, `${name}.toml`));
  } catch (error) {
    if (!isMissing(error)) throw error;
    throw new Error(`${source}: no profile has the name ${name} in ${folder}; \`baton profile list\` lists them`, { cause: error });
  }
}

/** Returns the folder of all profiles, if there is one. */
function profileFolder({ XDG_CONFIG_HOME = "", HOME = "" }: Environment): string | undefined {
  if (isAbsolute(XDG_CONFIG_HOME)) return join(XDG_CONFIG_HOME, "baton", "profiles");
  return isAbsolute(HOME) ? join(HOME, ".config", "baton", "profiles") : undefined;
}

async function readProfile(path: string): Promise<Profile> {
  const text = await readFile(path, "utf8");
  const mode = (await stat(path)).mode & 0o777;
  // The file decides where this program connects. Windows has no such modes.
  if (process.platform !== "win32" && (mode & 0o077) !== 0) {
    const shown = mode.toString(8).padStart(4, "0");
    throw new Error(`other users can read or change ${path} (mode ${shown}); run chmod 600 ${path}`);
  }
  const values = await named(path, () => parse(text));
  for (const [key, value] of Object.entries(values)) {
    // A misspelt key would leave a default in force, for example another broker.
    if (!PROFILE_KEYS.includes(key)) {
      throw new Error(`${path}: this version of the client does not know the key ${key}`);
    }
    if (typeof value !== "string") throw new Error(`${path}: ${key} must be a text`);
  }
  return { ...values, path };
}

function serverOf({ BATON_SERVER }: Environment, profile: Profile): string {
  const text = BATON_SERVER || profile.server;
  if (!text) return SERVER;
  const address = text.replace(/^https:\/\//, "").replace(/\/+$/, "");
  const parts = /^(?:http:\/\/)?(?:\[[\dA-Fa-f:.]+\]|[^\s:/@[\]]+):(\d{1,5})$/.exec(address);
  const port = Number(parts?.[1] ?? 0);
  if (port < 1 || port > 65535) {
    const source = BATON_SERVER ? "BATON_SERVER" : `the server of ${profile.path}`;
    throw new Error(`${source}: ${JSON.stringify(text)} is not HOST:PORT, for example ${SERVER}`);
  }
  return address;
}

/**
 * Returns the agent and its key. They are taken together from the environment or from the profile, for a key is of one agent.
 */
async function identityOf(
  { BATON_AGENT_ID, BATON_AGENT_KEY, BATON_AGENT_KEY_ID }: Environment,
  profile: Profile,
): Promise<{ agentId: string; key: KeyObject; keyId?: string }> {
  if (BATON_AGENT_KEY && !BATON_AGENT_ID) {
    throw new Error("BATON_AGENT_KEY is set and BATON_AGENT_ID is not: set the id of the agent that has the key");
  }
  if (BATON_AGENT_ID && !BATON_AGENT_KEY) {
    throw new Error("BATON_AGENT_ID is set and BATON_AGENT_KEY is not: set the file of the agent's private key");
  }
  const agentId = BATON_AGENT_ID || profile.id;
  const path = BATON_AGENT_KEY || profile.key;
  if (!agentId || !path) {
    const problem = profile.path === undefined ? "no agent is named" : `the profile ${profile.path} names no agent`;
    const remedy = "or choose a profile with an agent, `baton profile add NAME --id AGENT --key FILE --use`";
    throw new Error(`${problem}: set BATON_AGENT_ID and BATON_AGENT_KEY, ${remedy}`);
  }
  const source = BATON_AGENT_KEY ? "BATON_AGENT_KEY" : `the key of ${profile.path}`;
  const key = await named(source, () => loadKey(path), `\`baton keygen --out ${path}\` creates a key`, path);
  // The name in the profile belongs to the profile's key.
  const keyId = BATON_AGENT_KEY_ID || (BATON_AGENT_KEY ? undefined : profile.key_id);
  return { agentId, key, ...(keyId ? { keyId } : {}) };
}

function localCa(): string {
  return join(LOCAL_DATA, "tls", "ca.pem");
}

async function readCa(path: string, source: string): Promise<string> {
  const text = await named(source, () => readFile(path, "utf8"), "`baton dev` creates a CA in its data folder, tls/ca.pem");
  // Node would take a file without a certificate, and then trust no broker.
  if (!text.includes("-----BEGIN CERTIFICATE-----")) throw new Error(`${source}: ${path} has no certificate`);
  await named(source, () => new X509Certificate(text), undefined, path);
  return text;
}

/**
 * Whether HOST:PORT is the address of the broker that runs on the local data folder. No name except localhost is resolved, because
 * it may name another machine.
 */
async function isLocalBroker(server: string): Promise<boolean> {
  if (!existsSync(localCa())) return false;
  const text = await readFile(join(LOCAL_DATA, "address"), "utf8").catch(() => "");
  const own = hostAndPort(text.trim());
  const asked = hostAndPort(server);
  if (own === undefined || asked?.port !== own.port) return false;
  const isUnspecified = own.host === "0.0.0.0" || own.host === "::";
  if (asked.host === "localhost") return isUnspecified || isLoopback(own.host);
  return isIP(asked.host) !== 0 && (asked.host === own.host || (isUnspecified && isLoopback(asked.host)));
}

function hostAndPort(text: string): { host: string; port: number } | undefined {
  const [, host, port] = /^(.+):(\d+)$/.exec(text) ?? [];
  return host === undefined ? undefined : { host: host.replace(/^\[(.*)\]$/, "$1"), port: Number(port) };
}

function isLoopback(host: string): boolean {
  return host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}

/** Runs `read`. Its error begins with what named the file, and ends with how to make the file if it is missing. */
async function named<T>(source: string, read: () => T | Promise<T>, remedy?: string, path?: string): Promise<T> {
  try {
    return await read();
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    const ofFile = path === undefined || text.includes(path) ? text : `${path}: ${text}`;
    const hint = remedy !== undefined && isMissing(error) ? `; ${remedy}` : "";
    throw new Error(`${source}: ${ofFile}${hint}`, { cause: error });
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "ENOENT";
}
