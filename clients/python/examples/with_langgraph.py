"""LangGraph: a node hands the graph's state over to an agent behind baton."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, MessagesState, StateGraph

from baton import Agent
from baton.adapters.langgraph import handoff_node


class State(MessagesState, total=False):
    """The messages, and the result of the handoff."""

    handoff: dict[str, Any]


def triage(agent: Agent, model: BaseChatModel) -> Any:
    """Returns the graph: the model decides whether billing gets the conversation."""

    async def decide(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def chosen(state: State) -> str:
        return "billing" if state["messages"][-1].content == "billing" else END

    graph = StateGraph(State)
    graph.add_node("triage", decide)
    graph.add_node("billing", handoff_node(agent, "type:billing", "invoice-question"))
    graph.add_edge(START, "triage")
    graph.add_conditional_edges("triage", chosen, ["billing", END])
    graph.add_edge("billing", END)
    return graph.compile()
