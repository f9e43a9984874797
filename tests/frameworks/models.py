"""Models that follow a script, behind the HTTP interfaces of OpenAI, Anthropic and Gemini, on a port of this machine.

A framework is given http://127.0.0.1:PORT/ROLE as the address of its provider, and speaks to it as to the real one. The
role, "desk" or "billing", chooses the script: from the calls that the model made so far and their results it gives the next
call, or the text that ends the run. A call keeps to the schema that the framework sends with the tool.
"""

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema

QUESTION = "What does the customer owe?"
FLIGHT = "Book a flight."
ANSWER = "Customer 4711 owes 42.50."
# For a call of a tool. CrewAI gives a call 30 s.
TOOL_WAIT_SECONDS = 3
# For the other side.
WAIT_SECONDS = 120
CORE_TOOLS = {
    "find_agents", "delegate", "hand_over", "wait", "take_back", "inbox", "take_task", "decline_task", "report", "ask",
    "answer", "get_task",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A call that the model made before, and what its tool gave."""

    tool: str
    text: str
    # Where the interface has a place for it.
    is_error: bool | None = None

    def find(self, name: str) -> str:
        """The first value of a name, in JSON at any depth, also in JSON that stands in a text of JSON."""
        found = re.search(rf'"{name}": ?"([^"]*)"', self.text.replace("\\", ""))
        if found is None:
            raise AssertionError(f"no {name} in {self.text}")
        return found.group(1)


@dataclass(frozen=True)
class Call:
    tool: str
    arguments: dict[str, Any]


def is_open(schema: Any) -> bool:
    """Whether an object with any names fits. Frameworks may close such an object for a model with strict schemas."""
    if isinstance(schema, bool):
        return schema
    if "anyOf" in schema:
        return any(is_open(one) for one in schema["anyOf"])
    return "object" in str(schema.get("type", "object")).lower() and is_open(schema.get("additionalProperties", True))


def takes_text(schema: dict[str, Any]) -> bool:
    """Whether a text fits."""
    return any(takes_text(one) for one in schema.get("anyOf", [])) or "string" in str(schema.get("type", "")).lower()


def fitted(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a model gives them that keeps to the schema of the tool: an object that is closed as a text of JSON.
    Raises ValidationError if they do not fit."""
    given = dict.fromkeys(schema.get("required", [])) | arguments
    for name, value in arguments.items():
        of_it = schema["properties"].get(name, {})
        if isinstance(value, dict) and not is_open(of_it) and takes_text(of_it):
            given[name] = json.dumps(value)
    jsonschema.validate(given, schema)
    return given


@dataclass
class Desk:
    """Asks an agent that does not exist, then billing for what it declines, then for what it does."""

    # Waits until billing looks into its inbox.
    until_billing_looks: Callable[[], object]
    # A command that takes each task declines none.
    billing_declines: bool = True

    def next(self, results: list[Result]) -> Call | str:
        if not results:
            return Call("delegate", {"to": "type:nobody", "summary": QUESTION})
        refusal, *others = results
        assert refusal.find("reason") == "RECEIVER_UNKNOWN", refusal
        assert refusal.is_error is not False, refusal
        flight = Call("delegate", {"to": "type:billing", "summary": FLIGHT, "wait_seconds": 0})
        context = {"customer": {"number": 4711}}
        question = Call("delegate", {"to": "type:billing", "summary": QUESTION, "context": context, "wait_seconds": 0})
        if not others:
            self.until_billing_looks()
            return flight if self.billing_declines else question
        last = results[-1]
        lent = max(index for index, result in enumerate(results) if result.tool == "delegate")
        if last.find("state") == "REJECTED":
            assert "no candidate took the handoff" in last.text and "NO_SKILL" in last.text, last
            return question
        if last.find("state") == "RETURNED":
            return f"Billing says: {last.find('response')}"
        return Call("wait", {"id": results[lent].find("handoff_id"), "wait_seconds": TOOL_WAIT_SECONDS})


def billing(results: list[Result]) -> Call | str:
    """Looks into the inbox, declines what it cannot do, takes the question, and reports its result."""
    last = results[-1] if results else Result("", "")
    if last.tool == "report":
        assert last.find("status") == "COMPLETED", last
        return "The task is done."
    if last.tool == "take_task":
        assert "4711" in last.text, last
        result = {"response": ANSWER}
        return Call("report", {"task_id": last.find("task_id"), "status": "COMPLETED", "result": result})
    if last.tool == "inbox" and "handoff_id" in last.text:
        if FLIGHT in last.text:
            return Call("decline_task", {"handoff_id": last.find("handoff_id"), "reason": "NO_SKILL"})
        return Call("take_task", {"handoff_id": last.find("handoff_id")})
    # The same call as before has another result now.
    return Call("inbox", {"wait_seconds": TOOL_WAIT_SECONDS})


def short(tool: str) -> str:
    """The name of a tool as the broker has it: a framework may put the name of its server before it."""
    names = [name for name in CORE_TOOLS if tool == name or (tool.endswith(f"_{name}") and tool not in CORE_TOOLS)]
    assert names, f"{tool} is no tool of baton"
    return max(names, key=len)


def as_text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


class Interface:
    """What differs between providers."""

    def offered(self, body: dict[str, Any]) -> dict[str, dict[str, Any]]:
        raise NotImplementedError

    def results(self, body: dict[str, Any]) -> Iterator[tuple[str, str, bool | None]]:
        raise NotImplementedError

    def reply(self, number: int, name: str | None, arguments: dict[str, Any], text: str) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, reply: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | str]]:
        raise NotImplementedError


class Gemini(Interface):
    def offered(self, body):
        declared = [one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]
        return {one["name"]: one["parameters_json_schema"] for one in declared}

    def results(self, body):
        for part in (part for content in body["contents"] for part in content["parts"]):
            if response := part.get("functionResponse"):
                is_error = response["response"].get("isError")
                yield response["name"], as_text(response["response"]), is_error

    def reply(self, number, name, arguments, text):
        part = {"functionCall": {"name": name, "args": arguments}} if name else {"text": text}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1, "totalTokenCount": 2}}


class OpenAiChat(Interface):
    def offered(self, body):
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools", [])}

    def results(self, body):
        names = {
            call["id"]: call["function"]["name"]
            for message in body["messages"]
            for call in message.get("tool_calls") or []
        }
        for message in body["messages"]:
            if message["role"] == "tool":
                yield names[message["tool_call_id"]], as_text(message["content"]), None

    def reply(self, number, name, arguments, text):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": None if name else text} | ({"tool_calls": [call]} if name else {})
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": f"chat_{number}", "object": "chat.completion", "created": 1, "model": "scripted"}
        return about | {"choices": [choice], "usage": usage}

    def events(self, reply):
        message = reply["choices"][0]["message"]
        calls = [call | {"index": index} for index, call in enumerate(message.get("tool_calls", []))]
        delta = {"role": "assistant", "content": message["content"]} | ({"tool_calls": calls} if calls else {})
        chunk = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        yield "", chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        end = {"index": 0, "delta": {}, "finish_reason": reply["choices"][0]["finish_reason"]}
        yield "", chunk | {"choices": [end], "usage": reply["usage"]}
        yield "", "[DONE]"


class OpenAiResponses(Interface):
    def __init__(self):
        # What the provider keeps: the items of each earlier response with all before it, and each item.
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._items: dict[str, dict[str, Any]] = {}

    def _input(self, body):
        given = body["input"] if isinstance(body["input"], list) else []
        before = self._kept.get(body.get("previous_response_id") or "", [])
        return before + [self._items[one["id"]] if one.get("type") == "item_reference" else one for one in given]

    def offered(self, body):
        return {tool["name"]: tool["parameters"] for tool in body.get("tools", [])}

    def results(self, body):
        items = self._input(body)
        names = {one["call_id"]: one["name"] for one in items if one.get("type") == "function_call"}
        for one in items:
            if one.get("type") == "function_call_output":
                yield names[one["call_id"]], as_text(one["output"]), None

    def keep(self, body, reply):
        self._items |= {one["id"]: one for one in reply["output"]}
        self._kept[reply["id"]] = self._input(body) + reply["output"]

    def reply(self, number, name, arguments, text):
        if name:
            about = {"type": "function_call", "call_id": f"call_{number}", "name": name}
            item = about | {"id": f"fc_{number}", "status": "completed", "arguments": json.dumps(arguments)}
        else:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        about = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "scripted", "status": "completed"}
        return about | {"output": [item], "usage": usage, "tools": [], "tool_choice": "auto", "parallel_tool_calls": False}

    def events(self, reply):
        numbers = itertools.count()

        def event(kind, **fields):
            return kind, {"type": kind, "sequence_number": next(numbers)} | fields

        item = reply["output"][0]
        yield event("response.created", response=reply | {"status": "in_progress", "output": []})
        yield event("response.output_item.added", output_index=0, item=item | {"arguments": "", "content": []})
        at = {"item_id": item["id"], "output_index": 0}
        if item["type"] == "function_call":
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"])
        else:
            yield event("response.output_text.delta", **at, content_index=0, delta=item["content"][0]["text"], logprobs=[])
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=reply)


class Anthropic(Interface):
    def offered(self, body):
        return {tool["name"]: tool["input_schema"] for tool in body.get("tools", [])}

    def results(self, body):
        blocks = [
            block
            for message in body["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        names = {block["id"]: block["name"] for block in blocks if block["type"] == "tool_use"}
        for block in blocks:
            if block["type"] == "tool_result":
                yield names[block["tool_use_id"]], as_text(block["content"]), bool(block.get("is_error"))

    def reply(self, number, name, arguments, text):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        about = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted"}
        about |= {"stop_reason": "tool_use" if name else "end_turn", "stop_sequence": None}
        content = use if name else {"type": "text", "text": text}
        return about | {"content": [content], "usage": {"input_tokens": 1, "output_tokens": 1}}

    def events(self, reply):
        block = reply["content"][0]
        if block["type"] == "text":
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events = [
            ("message_start", {"message": reply | {"content": [], "stop_reason": None}}),
            ("content_block_start", {"index": 0, "content_block": empty}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": {"stop_reason": reply["stop_reason"]}, "usage": reply["usage"]}),
            ("message_stop", {}),
        ]
        for kind, fields in events:
            yield kind, {"type": kind} | fields


@dataclass
class Models:
    """The server. `with Models() as models`, then `models.address`."""

    # The requests of the frameworks, as they came.
    transcript: list[str] = field(default_factory=list)
    # What a script did not expect.
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> "Models":
        self._desk = Desk(self._until_billing_looks)
        self._desk_waits, self._billing_has_looked = threading.Event(), threading.Event()
        self._numbers = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def begin(self) -> None:
        """Lets desk begin, where billing is a command that takes each task."""
        self._desk.billing_declines = False
        self._billing_has_looked.set()

    def _next(self, role: str, results: list[Result]) -> Call | str:
        if role == "desk":
            return self._desk.next(results)
        if results:
            self._billing_has_looked.set()
        else:
            self._desk_waits.wait(WAIT_SECONDS)
        return billing(results)

    def _until_billing_looks(self) -> None:
        self._desk_waits.set()
        self._billing_has_looked.wait(WAIT_SECONDS)

    def _answer(self, interface: Interface, role: str, body: dict[str, Any]) -> dict[str, Any]:
        offered = interface.offered(body)
        if not offered:
            # A worker, or a framework that asks for a title of the conversation.
            return interface.reply(next(self._numbers), None, {}, ANSWER if "4711" in json.dumps(body) else "A title")
        names = {name for name in offered if any(name == tool or name.endswith(f"_{tool}") for tool in CORE_TOOLS)}
        by_short = {short(name): name for name in names}
        missing = CORE_TOOLS - set(by_short)
        assert not missing, f"{sorted(missing)} did not reach the model, which has {sorted(offered)}"
        results = [Result(short(name), text, is_error) for name, text, is_error in interface.results(body)]
        step = self._next(role, results)
        if isinstance(step, str):
            return interface.reply(next(self._numbers), None, {}, step)
        name = by_short[step.tool]
        return interface.reply(next(self._numbers), name, fitted(step.arguments, offered[name]), "")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        models = self
        interfaces = {
            r":(stream)?generateContent": Gemini(),
            r"/chat/completions$": OpenAiChat(),
            r"/responses$": OpenAiResponses(),
            r"/v1/messages(\?.*)?$": Anthropic(),
        }

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _send(self, code: int, kind: str, content: bytes) -> None:
                self.send_response(code)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self._send(404, "application/json", b"{}")

            def do_HEAD(self) -> None:
                self._send(200, "application/json", b"")

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                interface = next((one for path, one in interfaces.items() if re.search(path, self.path)), None)
                if interface is None:
                    self._send(404, "application/json", b"{}")
                    return
                models.transcript.append(text)
                try:
                    body = json.loads(text)
                    reply = models._answer(interface, self.path.split("/")[1], body)
                    if isinstance(interface, OpenAiResponses):
                        interface.keep(body, reply)
                except Exception as error:  # noqa: BLE001 - the check shows it
                    models.failures.append(f"{self.path}: {type(error).__name__}: {error}")
                    self._send(400, "application/json", json.dumps({"error": {"message": str(error)}}).encode())
                    return
                if not body.get("stream"):
                    self._send(200, "application/json", json.dumps(reply).encode())
                    return
                lines = []
                for kind, event in interface.events(reply):
                    name = f"event: {kind}\n" if kind else ""
                    lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
                self._send(200, "text/event-stream", "".join(lines).encode())

        return Handler
