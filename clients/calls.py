#!/usr/bin/env python3
"""Makes docs/clients.md, which says for each call of the schema how each client makes it.

    clients/calls.py            writes the page
    clients/calls.py --check    fails if the page, clients/calls.toml, the schema and the clients' sources disagree

Needs Python 3.11 or later and nothing else.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = "clients/calls.toml"
PAGE = "docs/clients.md"
SOURCES = {
    "rust": ("clients/rust/src", ".rs"),
    "python": ("clients/python/src/baton", ".py"),
    "typescript": ("clients/typescript/src", ".ts"),
    "go": ("clients/go", ".go"),
    "java": ("clients/java/src/main/java", ".java"),
}
# Folders of generated code, and of programs beside the library.
NOT_THE_LIBRARY = {"_gen", "gen", "batonv1", "internal", "examples", "otelbaton"}
# The first call in a cell: `agent.blobs().put(...)` is ("agent.blobs()", "put").
CALL = re.compile(r"((?:\w+(?:\(\))?(?:\.|::))+)(\w+)\(")
KEYS_OF_A_CALL = {"command", "message"}

INTRODUCTION = """\
# The clients, call by call

How each client makes each call of the [schema](../proto/baton/v1). A cell has the call of the client, without its arguments. It may
wrap the call of the schema: it opens a stream anew, fetches page after page, repeats what is safe to repeat, or makes several
calls. "stub" means that the client has no call of its own, and the letter says [why](#why-there-is-no-call). The
[generated stub](#the-generated-stubs) can make it. In Rust an `Agent` has the calls of its `link`, and `agent.client().await?` is the
`client`.

`clients/calls.py` makes this page from [clients/calls.toml](../clients/calls.toml). CI checks that each call of the schema has a cell
for each client, and that the client's sources define what the cell names.
"""

STUBS = """\
## The generated stubs

Each client has the stubs of all services. In Rust, TypeScript and Go they use the connection of the agent:

| client | a stub | its identity |
|---|---|---|
| Rust | `client.registries()`, one method for each service; `agent.client().await?` is the connection of an agent | the agent's token, which the stub sends |
| TypeScript | `createClient(v1.RegistryService, agent.transport)` | `{ headers: agent.headers }` as the options of a call |
| Go | `v1.NewRegistryServiceClient(agent.Conn())` | `agent.Authorize(ctx)` as the context of a call |
| Python | `v1.RegistryServiceStub(channel)`, on a channel of your own | the metadata `authorization`: `Bearer ` and the token that `await agent.prove_identity()` returns |
| Java | `RegistryServiceGrpc.newBlockingStub(channel)`, on a channel of your own | the metadata `authorization`: `Bearer ` and the token that `agent.proveIdentity()` returns |

A stub neither renews a token nor repeats a call. A refusal is the gRPC status with the details that [errors.md](errors.md) describes.

## JSON in each client

Results, answers and inputs are texts of JSON in the schema, and arrive as they were sent: 64-bit integers, 42 and 42.0, null, 128
levels. The fields have names that end in `_json`. The clients write and read them:

| client | a result is | an integer of 64 bits | to write and read a `_json` field |
|---|---|---|---|
| Rust | `serde_json::Value` | `i64` or `u64` | `serde_json` |
| Python | `dict` | `int` | `json_text`, `json_object` |
| TypeScript | `JsonObject` | `number`, and `bigint` beyond 2^53 - 1; 42.0 becomes 42 | `jsonText`, `parseJson` |
| Go | `map[string]any`, or `ResultInto(&v)` | `json.Number`, or `int64` in `v` | `JSONText`, `JSONObject` |
| Java | `Map<String, Object>` | `Long`, and `BigInteger` beyond it | `Json.text`, `Json.object` |

## Histories in each client

A conversation has one shape, `baton.history` version 1. The clients convert it from and to five shapes of models
([which](how-to/agent-frameworks.md#one-shape-of-histories)):

| client | a conversion | the section of a history | the latest entries | without calls of tools | without open calls |
|---|---|---|---|---|---|
| Rust | `shapes::from_openai_chat` | `history_section` | `history::latest` | `history::without_tool_calls` | `history::settled` |
| Python | `shapes.from_openai_chat` | `history_section` | `history.latest` | `history.without_tool_calls` | `history.settled` |
| TypeScript | `fromOpenAIChat` | `historySection` | `latestOf` | `withoutToolCalls` | `settled` |
| Go | `FromOpenAIChat` | `HistorySection` | `HistoryLatest` | `HistoryWithoutToolCalls` | `HistorySettled` |
| Java | `Shapes.fromOpenAiChat` | `History.section` | `History.latest` | `History.withoutToolCalls` | `History.settled` |
"""

MESSAGES = "The clients make {names} by a message on their session, or by `BrokerService.Send`. The effect is the same."


def schema(root):
    """The services and their calls, in the order of the files."""
    services = {}
    for path in sorted((root / "proto/baton/v1").glob("*_service.proto")):
        text = path.read_text()
        for name, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", text, re.M | re.S):
            services[name] = re.findall(r"^  rpc (\w+)\(", body, re.M)
    return services


def files_of(root, client):
    folder, end = SOURCES[client]
    found = {}
    for path in sorted((root / folder).rglob(f"*{end}")):
        inner = path.relative_to(root / folder)
        if not NOT_THE_LIBRARY.intersection(inner.parts) and not path.name.endswith("_test.go"):
            found[path.relative_to(root).as_posix()] = path.read_text()
    return found


def braced(text, header):
    """The bodies of the blocks at the left margin whose first line the pattern matches."""
    for match in re.finditer(header, text, re.M):
        end = re.search(r"^\}", text[match.end() :], re.M)
        yield text[match.end() : match.end() + end.start() if end else len(text)]


def rust_members(files):
    members = {}
    for text in files.values():
        for match in re.finditer(r"^impl(?:<[^>]*>)? (\w+)(?:<[^>]*>)? \{$", text, re.M):
            body = next(braced(text[match.start() :], r"\A.*$"))
            found = re.findall(r"^    pub (?:async |const |unsafe )*fn (\w+)", body, re.M)
            members.setdefault(match[1], set()).update(found)
    return members


def python_members(files):
    own, parents = {}, {}
    for text in files.values():
        for node in ast.parse(text).body:
            if not isinstance(node, ast.ClassDef):
                continue
            defined = (each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
            own.setdefault(node.name, set()).update(name for name in defined if not name.startswith("_"))
            parents.setdefault(node.name, []).extend(base.id for base in node.bases if isinstance(base, ast.Name))

    def all_of(name):
        return own.get(name, set()).union(*(all_of(parent) for parent in parents.get(name, [])))

    return {name: all_of(name) for name in own}


def typescript_members(files):
    members = {}
    for text in files.values():
        for match in re.finditer(r"^export (?:abstract )?class (\w+)", text, re.M):
            body = next(braced(text[match.start() :], r"\A.*$"))
            methods = re.findall(r"^  (?:static )?(?:async )?(?:\*|get )?(\w+)(?:<.*?>)?\(", body, re.M)
            fields = re.findall(r"^  readonly (\w+)(?:: \w|\s*=)", body, re.M)
            members.setdefault(match[1], set()).update(methods, fields)
    return members


def go_members(files):
    members = {"package": set()}
    for text in files.values():
        members["package"].update(re.findall(r"^func ([A-Z]\w*)[\[(]", text, re.M))
        for owner, name in re.findall(r"^func \(\w+ \*?(\w+)\) ([A-Z]\w*)\(", text, re.M):
            members.setdefault(owner, set()).add(name)
    return members


def java_members(files):
    members = {}
    for path, text in files.items():
        name = Path(path).stem
        if re.search(rf"^public (?:final |abstract |sealed )*(?:class|record|interface) {name}\b", text, re.M):
            found = re.findall(r"^    public (?:static |final |synchronized |<[^(]*?> )*[\w.<>?, \[\]]+ (\w+)\(", text, re.M)
            members.setdefault(name, set()).update(found)
    return members


MEMBERS = {
    "rust": rust_members,
    "python": python_members,
    "typescript": typescript_members,
    "go": go_members,
    "java": java_members,
}


def stub_name(client, call):
    """The name that the client's stub gives to a call."""
    if client == "rust":
        return re.sub(r"(?<!^)(?=[A-Z])", "_", call).lower()
    return call if client in ("python", "go") else call[0].lower() + call[1:]


def names_used(client, files):
    """The names that sources call, or pass on as functions. A call of the client's own with the name of a stub's counts."""
    names = set()
    for text in files.values():
        if client == "python":
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "v1":
                    names.add(node.attr)
                elif isinstance(node, ast.Constant):
                    names.add(node.value)
            continue
        code = re.sub(r"^\s*(//|\*|/\*).*", "", text, flags=re.M)
        # In Go, messages have getters with names of calls, GetTask(), without arguments.
        names.update(re.findall(r"(?<!v1)\.(\w+)(?:,|\((?!\)))" if client == "go" else r"\.(\w+)\(", code))
    return names


def stub_of(client, service):
    """The file and the text in it by which a client gives out the stub of a service."""
    file = re.sub(r"(?<!^)(?=[A-Z])", "_", service).lower()
    return {
        "rust": ("clients/rust/src/connection.rs", f"(&self) -> {service}Client<Authorized>"),
        "python": ("clients/python/src/baton/v1.py", f"import {service}Stub as {service}Stub"),
        "typescript": ("clients/typescript/src/v1.ts", f'export * from "./gen/baton/v1/{file}_pb.js";'),
        "go": (f"clients/go/batonv1/{file}_grpc.pb.go", f"func New{service}Client("),
        # Java's stubs are made at the build, of all files of the schema.
        "java": (f"proto/baton/v1/{file}.proto", f"service {service} {{"),
    }[client]


class Matrix:
    def __init__(self, root):
        self.root = root
        self.services = schema(root)
        self.data = tomllib.loads((root / DATA).read_text())
        self.clients = self.data["clients"]
        self.reasons = self.data["reasons"]

    def row(self, service, call):
        return self.data.get(service, {}).get(call, {})

    def problems(self):
        found = []
        known = {f"{service}.{call}" for service, calls in self.services.items() for call in calls}
        for service, calls in self.data.items():
            if service in ("clients", "reasons", "receivers"):
                continue
            found += [f"{service}.{call}: no such call in the schema" for call in calls if f"{service}.{call}" not in known]
        wanted = set()
        for client in self.clients:
            if client not in SOURCES:
                found.append(f"{client}: no such client")
                continue
            sources = files_of(self.root, client)
            members, names = MEMBERS[client](sources), names_used(client, sources)
            for service, calls in self.services.items():
                file, text = stub_of(client, service)
                path = self.root / file
                if not path.exists() or text not in path.read_text():
                    found.append(f"{service}, {client}: {file} does not give out its stub")
                for call in calls:
                    row = self.row(service, call)
                    where = f"{service}.{call}, {client}"
                    found += [f"{where}: {problem}" for problem in self.of_cell(client, call, row, members, names)]
                    cell = row.get(client)
                    if isinstance(cell, dict):
                        wanted.update(cell.get(key) for key in ("stub", "note"))
        for service, calls in self.services.items():
            for call in calls:
                unknown = set(self.row(service, call)) - KEYS_OF_A_CALL - set(self.clients)
                found += [f"{service}.{call}: unknown key {key}" for key in sorted(unknown)]
        found += [f"reason {reason}: no cell has it" for reason in self.reasons if reason not in wanted]
        return found

    def of_cell(self, client, call, row, members, names):
        cell = row.get(client)
        if not cell:
            return ["no cell"]
        if isinstance(cell, str):
            cell = {"call": cell}
        if set(cell) not in ({"call"}, {"call", "note"}, {"stub"}):
            return [f"a cell has a call, a call and a note, or a stub; this one has {', '.join(cell)}"]
        reason = cell.get("stub", cell.get("note"))
        if reason is not None and reason not in self.reasons:
            return [f"no reason {reason}"]
        is_used = stub_name(client, call) in names
        if "stub" in cell:
            if is_used and not self.reasons[reason].get("inside"):
                return ["the client makes this call: the cell should name how"]
            return []
        problems = []
        if not is_used and not row.get("message"):
            problems.append("no source of the client makes this call")
        match = CALL.search(cell["call"])
        if not match:
            return [*problems, f"{cell['call']} is no call of something"]
        receiver, name = re.sub(r"(\.|::)$", "", match[1]), match[2]
        owner = self.data["receivers"][client].get(receiver)
        if owner is None:
            return [*problems, f"{receiver} is not among the receivers of {client}"]
        if name not in members.get(owner, ()):
            problems.append(f"{owner} has no public {name}")
        first, _, property_ = receiver.partition(".")
        if property_ and property_.removesuffix("()") not in members.get(self.data["receivers"][client][first], ()):
            problems.append(f"{first} has no public {property_}")
        return problems

    def page(self):
        letters = {reason: chr(ord("a") + number) for number, reason in enumerate(self.reasons)}
        parts = [INTRODUCTION]
        for service, calls in self.services.items():
            parts.append(f"## {service}\n")
            rows = [f"| call | {' | '.join(self.clients.values())} |", "|---" * (len(self.clients) + 1) + "|"]
            for call in calls:
                cells = [self.cell(service, call, client, letters) for client in self.clients]
                rows.append(f"| `{call}` | {' | '.join(cells)} |")
            parts.append("\n".join(rows) + "\n")
            messages = [f"`{call}`" for call in calls if self.row(service, call).get("message")]
            if messages:
                parts.append(MESSAGES.format(names=" and ".join(messages)) + "\n")
        parts.append("## Why there is no call\n")
        lines = [f"- **{letters[reason]}**: {entry['text']}" for reason, entry in self.reasons.items()]
        parts.append("\n".join(lines) + "\n")
        commands = [
            f"| `{service}.{call}` | `{self.row(service, call)['command']}` |"
            for service, calls in self.services.items()
            for call in calls
            if "command" in self.row(service, call)
        ]
        parts.append("## Commands for these calls\n")
        parts.append("\n".join(["| call | command |", "|---|---|", *commands]) + "\n")
        parts.append(STUBS)
        return "\n".join(parts)

    def cell(self, service, call, client, letters):
        cell = self.row(service, call).get(client, "")
        if isinstance(cell, str):
            return f"`{cell}`"
        if "stub" in cell:
            return f"stub ({letters.get(cell['stub'], '?')})"
        return f"`{cell['call']}` ({letters.get(cell['note'], '?')})"


def main(arguments, root=ROOT):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    matrix = Matrix(root)
    problems = matrix.problems()
    page = root / PAGE
    if arguments and not problems and (not page.exists() or page.read_text() != matrix.page()):
        problems = [f"{PAGE} is not what clients/calls.py makes"]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    if not arguments:
        page.write_text(matrix.page())
    cells = sum(len(calls) for calls in matrix.services.values()) * len(matrix.clients)
    print(f"{cells} cells are in order")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
