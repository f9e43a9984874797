// The story of story.json through the official TypeScript client: see story.py.
//
// story.mjs BATON FOLDER SERVER CA ERA [URL], where ERA is "legacy" (initialize), "auto" (the newest version), or "sdk1" for version 1
// of the client, which most hosts have. With URL the client speaks to a gateway; NODE_EXTRA_CA_CERTS must name its CA.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

const SETS = "core,context,plans,offers,workspace,mail";
const STORY = JSON.parse(readFileSync(new URL("story.json", import.meta.url), "utf8"));
const WAIT_MS = 60_000;

const at = (data, path) => path.split(".").reduce((found, name) => found?.[name], data);

function filled(value, names) {
    if (typeof value === "string" && value.startsWith("$")) return names[value.slice(1)];
    if (Array.isArray(value)) return value.map((one) => filled(one, names));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, filled(one, names)]));
}

const fits = (data, expected, names) =>
    Object.entries(expected).every(([path, value]) => isDeepStrictEqual(at(data, path), filled(value, names)));

async function play(clients, names) {
    const called = new Set();
    for (const step of STORY) {
        called.add(step.tool);
        const began = Date.now();
        for (;;) {
            const call = { name: step.tool, arguments: filled(step.arguments, names) };
            const result = await clients[step.who].callTool(call);
            const expected = step.refused ?? step.expect;
            // A refusal has its words, and the same as JSON.
            const data = result.isError ? JSON.parse(result.content[1].text) : result.structuredContent;
            const isRight = Boolean(result.isError) === "refused" in step && fits(data, expected, names);
            if (isRight || !step.until || Date.now() > began + WAIT_MS) {
                assert.ok(isRight, `${JSON.stringify(step)}: ${JSON.stringify(result)}`);
                for (const [name, path] of Object.entries(step.save ?? {})) {
                    names[name] = at(data, path);
                }
                break;
            }
            await sleep(100);
        }
    }
    for (const client of Object.values(clients)) {
        const { tools } = await client.listTools();
        assert.deepEqual(tools.map((tool) => tool.name).filter((name) => !called.has(name)), []);
        const { resources } = await client.listResources();
        assert.deepEqual(resources.slice(0, 2).map((resource) => resource.uri), ["baton://me", "baton://inbox"]);
        for (const { uri } of resources) JSON.parse((await client.readResource({ uri })).contents[0].text);
        assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 5);
        for (const { name } of (await client.listPrompts()).prompts) {
            assert.ok((await client.getPrompt({ name })).messages.length > 0);
        }
    }
    return called.size;
}

const [baton, folder, server, ca, era, url] = process.argv.slice(2);
const broker = ["--server", server, "--ca", ca];
const [names, clients] = [{}, {}];
const way = url === undefined ? "stdio" : "streamableHttp";
const parts =
    era === "sdk1"
        ? ["@modelcontextprotocol/sdk/client/index.js", `@modelcontextprotocol/sdk/client/${way}.js`]
        : ["@modelcontextprotocol/client", url === undefined ? "@modelcontextprotocol/client/stdio" : "@modelcontextprotocol/client"];
const [{ Client }, { StdioClientTransport, StreamableHTTPClientTransport }] = await Promise.all(
    parts.map((part) => import(part)),
);

/** Registers the agent, and lends the gateway a key. Returns its token. */
function granted(id, key) {
    execFileSync(baton, ["agent", "register", "--id", id, "--key", key, ...broker], { stdio: "ignore" });
    const grant = ["gateway", "grant", "--data", `${folder}/gateway`, "--id", id, "--key", key, "-o", "json", ...broker];
    return JSON.parse(execFileSync(baton, grant, { encoding: "utf8" })).token;
}

for (const who of ["alice", "bob"]) {
    names[who] = `${who}-typescript-${url === undefined ? "" : "http-"}${era}`;
    const key = `${folder}/${names[who]}.pem`;
    execFileSync(baton, ["keygen", "--out", key], { stdio: "ignore" });
    const options = era === "sdk1" ? {} : { versionNegotiation: { mode: era } };
    clients[who] = new Client({ name: "story", version: "1" }, options);
    if (url === undefined) {
        const args = ["mcp", "--id", names[who], "--key", key, ...broker, "--tools", SETS];
        await clients[who].connect(new StdioClientTransport({ command: baton, args }));
    } else {
        const headers = { Authorization: `Bearer ${granted(names[who], key)}` };
        await clients[who].connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
    }
    // A client that knows the schemas of outputs checks each output.
    await clients[who].listTools();
}
const tools = await play(clients, names);
const shown = url === undefined ? "typescript" : "typescript, HTTP";
console.log(`${shown}, ${clients.alice.getNegotiatedProtocolVersion?.() ?? era}: ${tools} tools`);
await Promise.all(Object.values(clients).map((client) => client.close()));
