"""Agents for programs without an event loop: the calls block, and the handlers are plain functions.

    from baton import json_section, v1
    from baton.sync import Agent

    with Agent.from_env() as alice:
        alice.register()
        alice.connect()
        request = v1.HandoffRequest(task_type="support-ticket")
        outcome = alice.delegate("type:support", "ticket-7", request, [json_section("goals", ["find the cause"])])
        print(outcome.status, outcome.result)

The errors, the keys and the messages are those of `baton`. See `baton.sync.agent.Agent`.
"""

from baton.sync.agent import Agent
from baton.sync.background import is_cancelled
from baton.sync.tasks import Delivery, Offer, OwnedTask, Question, Takeover

__all__ = ["Agent", "Delivery", "Offer", "OwnedTask", "Question", "Takeover", "is_cancelled"]
