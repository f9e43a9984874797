"""The story of story.json through the official Python client: every tool, its resources and prompts.

story.py BATON FOLDER SERVER CA ERA [URL], where ERA is "legacy" (initialize) or "auto" (the newest version). The client starts
`baton mcp`, or with URL it speaks to a gateway, whose folder is FOLDER/gateway.
"""

import asyncio
import contextlib
import json
import pathlib
import ssl
import subprocess
import sys
import time

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

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


def granted(baton, folder, broker, who, key):
    """Registers the agent, and lends the gateway a key. Returns its token."""
    agent = ["--id", who, "--key", key, "-o", "json", *broker]
    subprocess.run([baton, "agent", "register", *agent], check=True, stdout=subprocess.DEVNULL)
    grant = [baton, "gateway", "grant", "--data", f"{folder}/gateway", *agent]
    return json.loads(subprocess.run(grant, check=True, stdout=subprocess.PIPE).stdout)["token"]


async def main():
    baton, folder, server, ca, era, *url = sys.argv[1:]
    broker = ["--server", server, "--ca", ca]
    names, clients = {}, {}
    async with contextlib.AsyncExitStack() as stack:
        for who in ("alice", "bob"):
            names[who] = f"{who}-python-{'http-' if url else ''}{era}"
            key = f"{folder}/{names[who]}.pem"
            subprocess.run([baton, "keygen", "--out", key], check=True, stdout=subprocess.DEVNULL)
            if url:
                headers = {"Authorization": f"Bearer {granted(baton, folder, broker, names[who], key)}"}
                verify = ssl.create_default_context(cafile=ca)
                http = httpx2.AsyncClient(headers=headers, verify=verify, timeout=300)
                transport = streamable_http_client(url[0], http_client=await stack.enter_async_context(http))
            else:
                arguments = ["mcp", "--id", names[who], "--key", key, *broker, "--tools", SETS]
                transport = StdioServerParameters(command=baton, args=arguments)
            clients[who] = await stack.enter_async_context(Client(transport, mode=era))
        tools = await play(clients, names)
        print(f"python, {'HTTP, ' if url else ''}{clients['alice'].protocol_version}: {tools} tools")


asyncio.run(main())
