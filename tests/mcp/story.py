"""The story of story.json through the official Python client: every tool of `baton mcp`, its resources and prompts.

story.py BATON FOLDER SERVER CA ERA, where ERA is "legacy" (initialize) or "auto" (the newest version).
"""

import asyncio
import json
import pathlib
import subprocess
import sys
import time

from mcp import Client, StdioServerParameters

SETS = "core,context,plans,offers,workspace,mail"
STORY = json.loads((pathlib.Path(__file__).parent / "story.json").read_text())
WAIT_SECONDS = 60


def at(data, path):
    for name in path.split("."):
        data = data[int(name)] if isinstance(data, list) else data[name]
    return data


def filled(value, names):
    if isinstance(value, str) and value.startswith("$"):
        return names[value[1:]]
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, dict):
        return {name: filled(one, names) for name, one in value.items()}
    return value


def fits(data, expected, names):
    try:
        return all(at(data, path) == filled(value, names) for path, value in expected.items())
    except (KeyError, IndexError, TypeError):
        return False


async def play(clients, names):
    called = set()
    for step in STORY:
        called.add(step["tool"])
        began = time.monotonic()
        while True:
            result = await clients[step["who"]].call_tool(step["tool"], filled(step["arguments"], names))
            shown = result.model_dump(by_alias=True)
            is_refused = bool(shown.get("isError"))
            # A refusal has its words, and the same as JSON.
            data = json.loads(shown["content"][1]["text"]) if is_refused else shown["structuredContent"]
            is_right = is_refused == ("refused" in step) and fits(data, step.get("refused", step.get("expect")), names)
            if is_right or not step.get("until") or time.monotonic() > began + WAIT_SECONDS:
                break
            await asyncio.sleep(0.1)
        assert is_right, f"{step}: {shown}"
        names |= {name: at(data, path) for name, path in step.get("save", {}).items()}
    for client in clients.values():
        tools = (await client.list_tools()).tools
        missing = {tool.name for tool in tools} - called
        assert not missing, f"no step calls {missing}"
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        for uri in uris:
            json.loads((await client.read_resource(uri)).contents[0].text)
        assert uris[:2] == ["baton://me", "baton://inbox"], uris
        assert len((await client.list_resource_templates()).resource_templates) == 5
        for prompt in (await client.list_prompts()).prompts:
            assert (await client.get_prompt(prompt.name)).messages
    return len(called)


async def main():
    baton, folder, server, ca, era = sys.argv[1:]
    names, transports = {}, {}
    for who in ("alice", "bob"):
        names[who] = f"{who}-python-{era}"
        key = f"{folder}/{names[who]}.pem"
        subprocess.run([baton, "keygen", "--out", key], check=True, stdout=subprocess.DEVNULL)
        arguments = ["mcp", "--id", names[who], "--key", key, "--server", server, "--ca", ca, "--tools", SETS]
        transports[who] = StdioServerParameters(command=baton, args=arguments)
    async with (
        Client(transports["alice"], mode=era) as alice,
        Client(transports["bob"], mode=era) as bob,
    ):
        tools = await play({"alice": alice, "bob": bob}, names)
        print(f"python, {alice.protocol_version}: {tools} tools")


asyncio.run(main())
