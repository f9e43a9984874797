"""Makes deltas-v1.json and filters-v1.json; the same bytes at every run.

    python3 vectors/generate_sections.py            writes both files beside this one
    python3 vectors/generate_sections.py --check    fails if they are not what it would write

It follows RFC 7396, RFC 8785, RFC 6901 and docs/specification.md by itself, and imports nothing of baton.
"""

import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
NUMBER_MAX = 2**53 - 1


class Refused(Exception):
    """The content or the filter is refused."""


def parse(text):
    def members(pairs):
        found = {}
        for name, value in pairs:
            if name in found:
                raise Refused("a name occurs twice")
            found[name] = value
        return found

    def number(value):
        if not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise Refused("a number is beyond 2^53 - 1")
        return value

    def constant(_):
        raise Refused("not JSON")

    try:
        value = json.loads(
            text,
            object_pairs_hook=members,
            parse_int=lambda digits: number(int(digits)),
            parse_float=lambda digits: number(float(digits)),
            parse_constant=constant,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error
    return value


def number_text(value):
    if isinstance(value, int):
        return str(value)
    if value == int(value):
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    exponent = int(exponent)
    if -7 < exponent < 0:
        sign = "-" if mantissa.startswith("-") else ""
        return sign + "0." + "0" * (-exponent - 1) + mantissa.lstrip("-").replace(".", "")
    return f"{mantissa}e{exponent}"


def canonical(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(canonical(name) + ":" + canonical(value[name]) for name in names) + "}"


def merge(target, patch):
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge(target.get(name), value)
    return target


def delta(name, base, patch):
    case = {"name": name, "base": base, "patch": patch}
    try:
        result = merge(parse(base), parse(patch))
        if not isinstance(result, (dict, list)):
            raise Refused("the result is neither an object nor a list")
        case["result"] = canonical(result)
        case["result_sha256"] = hashlib.sha256(case["result"].encode()).hexdigest()
    except Refused as refused:
        case["result"] = None
        case["why"] = str(refused)
    return case


DELTAS = [
    delta("replaces a member", '{"a":"b"}', '{"a":"c"}'),
    delta("adds a member", '{"a":"b"}', '{"b":"c"}'),
    delta("removes a member", '{"a":"b"}', '{"a":null}'),
    delta("removes one of two members", '{"a":"b","b":"c"}', '{"a":null}'),
    delta("replaces a list by a value", '{"a":["b"]}', '{"a":"c"}'),
    delta("replaces a value by a list", '{"a":"c"}', '{"a":["b"]}'),
    delta("removes a nested member", '{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}'),
    delta("replaces a list whole", '{"a":[{"b":"c"}]}', '{"a":[1]}'),
    delta("a list as the base and the patch", '["a","b"]', '["c","d"]'),
    delta("an object base and a list patch", '{"a":"b"}', '["c"]'),
    delta("a list base and an object patch", '[1,2]', '{"a":"b","c":null}'),
    delta("keeps a null of the base", '{"e":null}', '{"a":1}'),
    delta("nested nulls of the patch go", '{}', '{"a":{"bb":{"ccc":null}}}'),
    delta("an empty patch makes the base canonical", '{ "b" : 1 ,\n "a" : [ true , false , null ] }', '{}'),
    delta("names sort by UTF-16", '{"\U0001f600":1,"\ufffd":2,"\u00e9":3,"z":4,"A":5}', '{}'),
    delta("escapes are the shortest", '{"a":"\\u0041\\u000a\\u001f\\u2028\\/\\u00e9\\""}', '{}'),
    delta(
        "numbers as RFC 8785 writes them",
        '{"a":1.0,"b":-0.0,"c":1e3,"d":0.1,"e":1e-7,"f":0.000001,"g":1.50,"h":-12.5e-1}',
        '{}',
    ),
    delta("the largest integer", '{"a":9007199254740991,"b":-9007199254740991}', '{"c":1}'),
    delta("a double of seventeen digits", '{"a":0.30000000000000004,"b":123456.78901234567}', '{}'),
    delta("an integer of the base beyond the bound", '{"a":9007199254740992}', '{}'),
    delta("an integer of the patch beyond the bound", '{}', '{"a":-9007199254740993}'),
    delta("a large double", '{"a":1e300}', '{}'),
    delta("a number that overflows", '{}', '{"a":1e400}'),
    delta("a name twice in the base", '{"a":1,"a":2}', '{}'),
    delta("a name twice in the patch", '{}', '{"a":{"b":1,"b":1}}'),
    delta("a name twice by an escape", '{}', '{"a":1,"\\u0061":2}'),
    delta("NaN is no JSON", '{}', '{"a":NaN}'),
    delta("a patch that is cut off", '{}', '{"a":'),
    delta("a patch that is a string", '{"a":1}', '"text"'),
    delta("a patch that is null", '{"a":1}', 'null'),
    delta("a lone surrogate", '{}', '{"a":"\\ud800"}'),
]


def check_filter(chosen):
    history, last = chosen.get("history"), chosen.get("last", 0)
    pointers = chosen.get("json_pointers", [])
    if (history is None) == (not pointers):
        raise Refused("either history or json_pointers")
    if history == "LAST" and last == 0:
        raise Refused("LAST needs a number")
    if last and history not in ("LAST", "WITHOUT_TOOL_CALLS"):
        raise Refused("last is for LAST and WITHOUT_TOOL_CALLS")
    if len(pointers) > 64 or len(set(pointers)) < len(pointers):
        raise Refused("too many pointers, or one twice")
    for pointer in pointers:
        escapes = pointer.split("~")[1:]
        if (pointer and not pointer.startswith("/")) or any(after[:1] not in ("0", "1") for after in escapes):
            raise Refused("no JSON Pointer")


def value_at(value, pointer):
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and (part == "0" or (part.isdigit() and part[0] != "0")) and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(pointer)
    return value


def filtered(section, chosen, summary):
    check_filter(chosen)
    value = parse(section)
    found = {}
    if "json_pointers" in chosen:
        for pointer in chosen["json_pointers"]:
            try:
                found[pointer] = value_at(value, pointer)
            except KeyError:
                pass
        return canonical(found)
    check_history(value)
    last = chosen.get("last", 0)
    if chosen["history"] == "SUMMARY":
        return canonical({"summary": summary, "entries": len(value)})
    if chosen["history"] == "WITHOUT_TOOL_CALLS":
        value = [entry for entry in value if entry["role"] != "tool"]
        value = [entry for entry in value if entry["content"] or not entry.get("tool_calls")]
        value = [{name: entry[name] for name in entry if name != "tool_calls"} for entry in value]
    return canonical(latest(value, last) if last else value)


def latest(entries, last):
    """The last entries, and more where the first one would be the result of a call before it."""
    start = max(len(entries) - last, 0)
    for at in reversed(range(len(entries))):
        if at < start:
            break
        calls = [
            index
            for index in range(at)
            for call in entries[index].get("tool_calls", [])
            if call["id"] == entries[at].get("tool_call_id")
        ]
        start = min([start, *calls[-1:]])
    return entries[start:]


def check_history(value):
    """Checks the shape baton.history, version 1."""
    require(isinstance(value, list))
    for entry in value:
        members(entry, {"role", "content"}, {"name", "tool_calls", "tool_call_id", "agent_id", "time"})
        require(entry["role"] in ("system", "user", "assistant", "tool"))
        require(("tool_call_id" in entry) == (entry["role"] == "tool"))
        require("tool_calls" not in entry or entry["role"] == "assistant")
        texts(entry, "name", "agent_id", "time", "tool_call_id")
        for call in listed(entry.get("tool_calls", [])):
            members(call, {"id", "name", "arguments"}, set())
            texts(call, "id", "name", "arguments")
        for one in [] if isinstance(entry["content"], str) else listed(entry["content"]):
            check_part(one)


def check_part(one):
    require(isinstance(one, dict))
    kind = one.get("type")
    if kind == "text":
        members(one, {"type", "text"}, set())
        texts(one, "text")
    elif kind in ("image", "file"):
        members(one, {"type"}, {"url", "data", "media_type", "name"})
        texts(one, "url", "data", "media_type", "name")
        require(("url" in one) != ("data" in one))
    else:
        require(kind == "data")
        members(one, {"type", "data"}, set())


def members(value, needed, others):
    require(isinstance(value, dict) and needed <= set(value) <= needed | others)


def texts(value, *names):
    require(all(isinstance(value[name], str) for name in names if name in value))


def listed(value):
    require(isinstance(value, list))
    return value


def require(fits):
    if not fits:
        raise Refused("no history")


def part(name, section, chosen, summary=""):
    section = section if isinstance(section, str) else json.dumps(section)
    case = {"name": name, "section": section, "filter": chosen, "summary": summary}
    try:
        case["result"] = filtered(section, chosen, summary)
    except Refused:
        case["result"] = None
    return case


CALL = {"id": "c1", "name": "find_order", "arguments": '{"id": 7}'}
HISTORY = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "agent_id": "a"},
    {"role": "tool", "content": "42", "tool_call_id": "c1"},
    {"role": "assistant", "content": "it is 42", "tool_calls": []},
    {"role": "user", "content": "thanks", "time": "2026-11-22T10:00:00Z"},
]
# Calls that stand in parallel, an id that is used twice, and a result without a call.
CALLS = [
    {"role": "system", "content": "be brief"},
    {"role": "tool", "content": "lost", "tool_call_id": "c0"},
    {"role": "assistant", "content": "I look", "tool_calls": [CALL, CALL | {"id": "c2"}]},
    {"role": "tool", "content": "9", "tool_call_id": "c1"},
    {"role": "tool", "content": [{"type": "text", "text": "10"}], "tool_call_id": "c2"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "11", "tool_call_id": "c1"},
]
PARTS = [
    {"type": "text", "text": "see"},
    {"type": "image", "url": "https://example.com/a.png"},
    {"type": "image", "data": "aGk=", "media_type": "image/png"},
    {"type": "file", "data": "aGk=", "media_type": "application/pdf", "name": "a.pdf"},
    {"type": "data", "data": {"role": "tool", "tool_calls": [None]}},
]
# The same conversation as five interfaces have it: no history until it is converted.
OTHERS = {
    "OpenAI Chat Completions": [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "9"},
    ],
    "OpenAI Responses": [
        {"type": "function_call", "call_id": "c1", "name": "find_order", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "9"},
    ],
    "Anthropic Messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "find_order", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "9"}]},
    ],
    "Gemini": [
        {"role": "model", "parts": [{"functionCall": {"name": "find_order", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "find_order", "response": {"text": "9"}}}]},
    ],
    "LangChain": [
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "find_order", "args": {}, "id": "c1"}]}},
        {"type": "tool", "data": {"content": "9", "tool_call_id": "c1"}},
    ],
}
NO_HISTORIES = {
    "an unknown role": [{"role": "agent", "content": "a"}],
    "no role": [{"content": "a"}],
    "no content": [{"role": "user"}],
    "a content that is null": [{"role": "user", "content": None}],
    "a member that is not of the shape": [{"role": "user", "content": "a", "function_call": {}}],
    "a name that is no text": [{"role": "user", "content": "a", "name": 1}],
    "calls of a user": [{"role": "user", "content": "a", "tool_calls": []}],
    "calls that are no list": [{"role": "assistant", "content": "a", "tool_calls": {}}],
    "a call without arguments": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "name": "f"}]}],
    "arguments that are no text": [
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "name": "f", "arguments": {}}]}
    ],
    "a call with another member": [{"role": "assistant", "content": "a", "tool_calls": [CALL | {"type": "function"}]}],
    "a result without the id of its call": [{"role": "tool", "content": "a"}],
    "an id of a call at a user": [{"role": "user", "content": "a", "tool_call_id": "c"}],
    "a part that is a text": [{"role": "user", "content": ["a"]}],
    "a part of another type": [{"role": "user", "content": [{"type": "tool_result", "text": "a"}]}],
    "a text part without a text": [{"role": "user", "content": [{"type": "text"}]}],
    "a text part with another member": [{"role": "user", "content": [{"type": "text", "text": "a", "data": 1}]}],
    "an image with both": [{"role": "user", "content": [{"type": "image", "url": "a", "data": "aGk="}]}],
    "a file with neither": [{"role": "user", "content": [{"type": "file", "name": "a"}]}],
    "a data part without data": [{"role": "user", "content": [{"type": "data"}]}],
}
OBJECT = {"a": {"b/c": [10, {"d": None}], "m~n": True}, "": "empty", "x": 1.0}

FILTERS = [
    part("all entries", HISTORY, {"history": "FULL"}),
    part("the last two", HISTORY, {"history": "LAST", "last": 2}),
    part("more than there are", HISTORY, {"history": "LAST", "last": 99}),
    part("the last one", HISTORY, {"history": "LAST", "last": 1}),
    part("the last none", HISTORY, {"history": "LAST"}),
    part("without tool calls", HISTORY, {"history": "WITHOUT_TOOL_CALLS"}),
    part("without tool calls, the last two", HISTORY, {"history": "WITHOUT_TOOL_CALLS", "last": 2}),
    part("a role that is no text", [{"role": 1, "content": ""}], {"history": "WITHOUT_TOOL_CALLS"}),
    part("the last one is a result: its call comes along", CALLS, {"history": "LAST", "last": 1}),
    part("the last three begin with the second result of two calls", CALLS, {"history": "LAST", "last": 3}),
    part("the last five begin with the calls", CALLS, {"history": "LAST", "last": 5}),
    part("a result without a call takes nothing along", CALLS, {"history": "LAST", "last": 6}),
    part("an entry that calls and speaks stays without its calls", CALLS, {"history": "WITHOUT_TOOL_CALLS"}),
    part("all parts", [{"role": "user", "content": PARTS}], {"history": "WITHOUT_TOOL_CALLS"}),
    part("no parts and no calls", [{"role": "assistant", "content": []}], {"history": "WITHOUT_TOOL_CALLS"}),
    *[part(f"without tool calls: {name}", one, {"history": "WITHOUT_TOOL_CALLS"}) for name, one in OTHERS.items()],
    *[part(f"the last one: {name}", one, {"history": "LAST", "last": 1}) for name, one in OTHERS.items()],
    *[part(f"no history: {name}", one, {"history": "FULL"}) for name, one in NO_HISTORIES.items()],
    part("no history has a summary", [{"role": "agent", "content": ""}], {"history": "SUMMARY"}),
    part("pointers need no history", [{"role": "agent"}], {"json_pointers": ["/0/role"]}),
    part("the summary", HISTORY, {"history": "SUMMARY"}, "They ask for a number; it is 42."),
    part("the summary of an empty history", [], {"history": "SUMMARY"}),
    part("an empty history", [], {"history": "LAST", "last": 5}),
    part("an object is no history", {"a": 1}, {"history": "FULL"}),
    part("a list of texts is no history", ["a"], {"history": "LAST", "last": 1}),
    part("last with all", HISTORY, {"history": "FULL", "last": 1}),
    part("last with the summary", HISTORY, {"history": "SUMMARY", "last": 1}),
    part("one member", OBJECT, {"json_pointers": ["/x"]}),
    part("nested members", OBJECT, {"json_pointers": ["/a/b~1c/1", "/a/m~0n"]}),
    part("an index", OBJECT, {"json_pointers": ["/a/b~1c/0"]}),
    part("an index with a leading zero", OBJECT, {"json_pointers": ["/a/b~1c/00"]}),
    part("the end of a list", OBJECT, {"json_pointers": ["/a/b~1c/-"]}),
    part("the whole section", OBJECT, {"json_pointers": [""]}),
    part("an empty name", OBJECT, {"json_pointers": ["/"]}),
    part("a pointer without a value is left out", OBJECT, {"json_pointers": ["/nothing", "/x"]}),
    part("a pointer without a slash", OBJECT, {"json_pointers": ["x"]}),
    part("a pointer with a bad escape", OBJECT, {"json_pointers": ["/a~2"]}),
    part("a pointer twice", OBJECT, {"json_pointers": ["/x", "/x"]}),
    part("pointers and history", HISTORY, {"history": "FULL", "json_pointers": ["/0"]}),
    part("no filter", HISTORY, {}),
    part("a name twice", '{"a":1,"a":2}', {"json_pointers": ["/a"]}),
    part("an integer beyond the bound", '{"a":9007199254740992}', {"json_pointers": ["/a"]}),
    part("65 pointers", OBJECT, {"json_pointers": [f"/{number}" for number in range(65)]}),
]

FILES = {
    "deltas-v1.json": {
        "about": "A JSON Merge Patch (RFC 7396) on a base, with the result in canonical JSON (RFC 8785). null: refused.",
        "cases": DELTAS,
    },
    "filters-v1.json": {
        "about": "Filters of sections. Section and result are JSON texts; the result is canonical. null: refused.",
        "cases": FILTERS,
    },
}


def main():
    for name, content in FILES.items():
        text = json.dumps(content, indent=2) + "\n"
        if sys.argv[1:] == ["--check"]:
            if (HERE / name).read_text() != text:
                sys.exit(f"{name} is not what generate_sections.py writes")
        else:
            (HERE / name).write_text(text)


if __name__ == "__main__":
    main()
