"""A program of a framework that lends a task, for tests that kill it: see test_lending.py.

lender.py FRAMEWORK SERVER CA.pem KEY.pem DATABASE
"""

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any, TypedDict

from baton import Agent, load_key

ASKED = {"summary": "What does 4711 owe?", "details": "customer 4711"}
LIMIT = timedelta(minutes=5)


async def openai_agents(alice, _database):
    import agents
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from baton.adapters.openai_agents import handoff_tool

    class Scripted(agents.Model):
        async def get_response(self, system_instructions, input, *_arguments, **_named):  # noqa: A002, ARG002
            results = [one["output"] for one in input if one.get("type") == "function_call_output"]
            if results:
                text = ResponseOutputText(text=results[0], type="output_text", annotations=[])
                item = ResponseOutputMessage(
                    id="m1", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                item = ResponseFunctionToolCall(
                    arguments=json.dumps(ASKED), call_id="call_7", name="transfer_to_billing", type="function_call"
                )
            return agents.ModelResponse(output=[item], usage=agents.Usage(), response_id=None)

        def stream_response(self, *_arguments, **_named):
            raise NotImplementedError

    agents.set_tracing_disabled(disabled=True)
    tools = [handoff_tool(alice, "type:billing", timeout=LIMIT)]
    triage = agents.Agent(name="triage", model=Scripted(), tools=tools)
    return json.loads((await agents.Runner.run(triage, [{"role": "user", "content": "What do I owe?"}])).final_output)


async def pydantic_ai(alice, _database):
    import pydantic_ai as framework
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from baton.adapters.pydantic_ai import handoff_tool

    def decide(_messages, info):
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, ASKED, "call_7")])

    billing = handoff_tool(alice, "type:billing", timeout=LIMIT)
    triage = framework.Agent(FunctionModel(decide), output_type=[billing])
    return (await triage.run("What do I owe?", run_id="run-7")).output


class State(TypedDict, total=False):
    customer: str
    handoff: dict[str, Any]


async def langgraph(alice, database, wait="call"):
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph import END, START, StateGraph

    from baton.adapters.langgraph import handoff_node

    graph = StateGraph(State)
    graph.add_node("billing", handoff_node(alice, "type:billing", wait=wait))
    graph.add_edge(START, "billing")
    graph.add_edge("billing", END)
    config = {"configurable": {"thread_id": "thread-7"}}
    async with AsyncSqliteSaver.from_conn_string(database) as saver:
        compiled = graph.compile(checkpointer=saver)
        begun = await compiled.aget_state(config)
        if wait == "interrupt" and begun.next:
            return await resumed(alice, compiled)
        if begun.values.get("handoff"):
            return begun.values["handoff"]
        state = await compiled.ainvoke(None if begun.next else {"customer": "4711"}, config)
        return state.get("handoff", {"status": "INTERRUPTED"})


async def langgraph_interrupt(alice, database):
    return await langgraph(alice, database, "interrupt")


async def resumed(alice, compiled):
    from baton.adapters.langgraph import resume_when_done

    done = asyncio.get_running_loop().create_future()
    every = timedelta(seconds=0.2)
    follow = asyncio.create_task(resume_when_done(alice, compiled, every=every, on_state=done.set_result))
    state = await done
    follow.cancel()
    return state["handoff"]


async def main():
    framework, server, ca, key, database = sys.argv[1:]
    async with Agent(server, "alice", load_key(key), ca_file=ca) as alice:
        await alice.connect()
        print(json.dumps(await globals()[framework](alice, database)), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
