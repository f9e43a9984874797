"""The tools of a node against the types of the official Python packages of OpenAI, Anthropic and MCP.

    python tests/interop/tool_shapes.py      with the packages of tool_shapes.txt, and target/debug/baton or BATON_BIN

Each tool that a broker gives in a shape is parsed by the package of that shape, which also has to know every field of
it. The node has names that are cut, and 32 outputs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anthropic.types import ToolParam
from mcp.types import Tool
from openai.types.responses import FunctionTool, FunctionToolParam
from pydantic import TypeAdapter

BATON = os.environ.get("BATON_BIN", "target/debug/baton")
NAMES = [f"{'a-very-long-name-of-an-agent-' * 2}{number}" for number in range(15)]
NAMES += [f"team.{number}" for number in range(8)] + [f"team_{number}" for number in range(8)]


def graph() -> dict:
    hub = {"nodeId": "hub", "description": "Chooses.", "handoffs": 2, "outputNodes": [*NAMES, "end"]}
    leaves = [
        {"nodeId": name, "description": f"Does the work of {name}.\u0007\nIn several lines.", "outputNodes": ["end"]}
        for name in NAMES
    ]
    return {"graphId": "shapes", "entryNodeIds": ["hub"], "nodes": [hub, *leaves]}


def check_schema(schema: dict) -> None:
    assert schema["type"] == "object" and schema["additionalProperties"] is False, schema
    assert schema["required"] == list(schema["properties"]) == ["reason"], schema


def known(tool: dict, fields: set[str]) -> None:
    assert set(tool) <= fields, f"the package does not know {set(tool) - fields}"


def check_openai(tool: dict) -> str:
    TypeAdapter(FunctionToolParam).validate_python(tool)
    known(tool, set(FunctionToolParam.__annotations__))
    parsed = FunctionTool.model_validate(tool)
    assert parsed.strict is True and parsed.description
    check_schema(parsed.parameters)
    return parsed.name


def check_anthropic(tool: dict) -> str:
    TypeAdapter(ToolParam).validate_python(tool)
    known(tool, set(ToolParam.__annotations__))
    check_schema(tool["input_schema"])
    return tool["name"]


def check_mcp(tool: dict) -> str:
    parsed = Tool.model_validate(tool)
    known(tool, {field.alias or name for name, field in Tool.model_fields.items()})
    check_schema(tool["inputSchema"])
    assert parsed.description
    return parsed.name


def main() -> None:
    for name in ("SERVER", "CA", "TOKEN", "CERT", "CERT_KEY", "DATA", "LISTEN", "CONFIG"):
        os.environ.pop(f"BATON_{name}", None)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        file = Path(folder, "graph.json")
        file.write_text(json.dumps(graph()))
        log = Path(folder, "log").open("w")
        broker = subprocess.Popen([BATON, "dev", "--data", str(data), "--port", "0"], stdout=log, stderr=log)
        address = data / "address"

        def baton(*command: str) -> object:
            ca, token = data / "tls/ca.pem", (data / "operator.token").read_text().strip()
            flags = ["--server", address.read_text().strip(), "--ca", str(ca), "--token", token, "-o", "json"]
            done = subprocess.run([BATON, *flags, *command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        try:
            deadline = time.monotonic() + 120
            while not (address.exists() and address.read_text().strip()):
                assert broker.poll() is None and time.monotonic() < deadline, Path(folder, "log").read_text()
                time.sleep(0.1)
            baton("graph", "register", str(file))
            run = baton("run", "start", "shapes")["runId"]
            found = {}
            for shape, check in (("openai", check_openai), ("anthropic", check_anthropic), ("mcp", check_mcp)):
                tools = baton("run", "tools", run, "hub", "--shape", shape)
                found[shape] = [check(tool) for tool in tools]
                print(f"ok   {len(tools)} tools in the shape of {shape}")
            names = found["openai"]
            assert len(names) == len(set(names)) == 32, names
            assert all(len(name) <= 40 for name in names), names
            assert found["anthropic"] == found["mcp"] == names
            print("3 passed, 0 failed")
        finally:
            broker.terminate()
            broker.wait()
            log.close()


if __name__ == "__main__":
    sys.exit(main())
