"""Threads: personas that change at boundaries, leases, and calls whose answers are lost."""

import asyncio

import pytest
from brokers import begin, needs_broker, within

import baton.threads
from baton import BatonError, v1
from baton.envelopes import new_message_id

pytestmark = needs_broker

ACTS = ["agent_handoff"]


async def with_specs(broker):
    """Registers the model and the personas, as an operator."""
    async with broker.agent("operator", operator_token=broker.operator_token()) as operator:
        model = await operator.put_model_spec(v1.ModelSpec(model_id="large", provider="p", model_name="m"))
        for spec_id, plugins in [("concierge", ["notes", *ACTS]), ("writer", ["spelling", *ACTS]), ("mute", [])]:
            prompt = f"You are {spec_id}."
            spec = v1.AgentSpec(spec_id=spec_id, model_id="large", system_prompt=prompt, plugin_ids=plugins)
            assert (await operator.put_agent_spec(spec)).revision == 1
        assert (await operator.put_agent_spec(spec)).revision == model.revision == 1
        spec.description = "says nothing"
        assert (await operator.put_agent_spec(spec)).revision == 2
        assert (await operator.get_agent_spec("mute", 1)).description == ""
        assert {one.spec_id async for one in operator.agent_specs()} == {"concierge", "writer", "mute"}
        assert [one.model_id async for one in operator.model_specs()] == ["large"]
        with pytest.raises(BatonError, match="SPEC_UNKNOWN"):
            await operator.get_agent_spec("mute", 3)


async def test_the_persona_changes_at_the_boundary(broker):
    await with_specs(broker)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        with pytest.raises(BatonError, match="PERMISSION_DENIED"):
            await alice.put_agent_spec(v1.AgentSpec(spec_id="mine", model_id="large"))
        with pytest.raises(BatonError, match="HANDOFF_RESOLVE_FAILED"):
            await alice.create_thread("unknown")
        thread = await alice.create_thread("concierge", thread_id="support", participant_ids=["bob"])
        steps = []
        async with thread.run() as run:
            async for step in run:
                steps.append(step)
                if step.number == 1:
                    assert "no spec" in (await bob.join_thread("support").request("unknown")).warning
                    await bob.join_thread("support").request("writer")
                    assert (await thread.state()).in_force_spec_id == "concierge"
                elif step.number == 2:
                    await thread.clear()
                elif step.number == 3:
                    await thread.activate("mute")
                else:
                    break
            with pytest.raises(BatonError, match="HANDOFF_PLUGIN_MISSING"):
                await thread.clear()
            assert run.step == steps[-1]
        assert [(step.number, step.spec.spec_id, step.switched) for step in steps] == [
            (1, "concierge", steps[0].switched),
            (2, "writer", True),
            (3, "concierge", True),
            (4, "mute", True),
        ]
        assert (steps[1].deactivate_plugin_ids, steps[1].activate_plugin_ids) == (("notes",), ("spelling",))
        assert (steps[1].request.spec_id, steps[1].request.outcome) == ("writer", v1.THREAD_REQUEST_OUTCOME_PROMOTED)
        assert (steps[1].spec.system_prompt, steps[1].model.model_name) == ("You are writer.", "m")
        assert (steps[3].spec.revision, steps[0].request) == (2, None)
        state = await thread.state()
        assert (state.run_id, state.step, state.active_agent) == ("", 0, "mute")
        assert [one.thread_id async for one in bob.threads()] == ["support"]
        entries = thread.watch()
        kinds = [(await within(anext(entries))).WhichOneof("event") for _ in range(state.log_length)]
        assert (kinds[0], kinds[-1], kinds.count("boundary")) == ("created", "run_ended", 4)
        await entries.aclose()
        history = bob.workspace("thread:support")
        await history.append("messages", {"role": "user", "text": "hello"})
        assert [entry.value["text"] async for entry in history.entries("messages")] == ["hello"]


async def test_the_result_of_a_delegation_is_in_its_thread(broker):
    await with_specs(broker)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def work(offer):
            task = await (await offer.accept()).complete()
            await task.finish({"answer": 42})

        await begin(alice, bob)
        thread = await alice.create_thread("concierge")
        request = v1.HandoffRequest(task_type="support")
        outcome = await within(alice.delegate("bob", "ticket", request, [], thread_id=thread.thread_id))
        history = alice.workspace(f"thread:{thread.thread_id}")
        [entry] = [entry async for entry in history.entries("messages")]
        data = entry.value["content"][1]["data"]
        assert (data["task_id"], data["outcome"], data["result"]) == ("ticket", "COMPLETED", {"answer": 42})
        task = await alice.get_task("ticket")
        with pytest.raises(BatonError, match="PERMISSION_DENIED"):
            await alice.delegate("bob", task.task_id, request, [], epoch=outcome.epoch, thread_id="another")


async def test_one_runner_at_a_time_has_the_thread_and_keeps_its_lease(broker, monkeypatch):
    monkeypatch.setattr(baton.threads, "_KEEP_SECONDS", 0.05)
    await with_specs(broker)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        thread = await alice.create_thread("concierge", participant_ids=["bob"])
        async with thread.run() as run:
            with pytest.raises(BatonError, match="RUN_OPEN"):
                await bob.join_thread(thread.thread_id).run().__aenter__()
            for _ in range(2):
                before = (await thread.state()).lease_deadline
                async with asyncio.timeout(300):
                    while (await thread.state()).lease_deadline == before:
                        await asyncio.sleep(0.01)
                await run.next_step()
            assert (run.step.number, (await thread.state()).step) == (3, 3)
        async with bob.join_thread(thread.thread_id).run() as other:
            assert other.step.number == 1
            with pytest.raises(BatonError, match=r"RUN_FINAL|RUN_OPEN"):
                await run.next_step()


async def test_a_boundary_whose_answer_is_lost_is_applied_once(broker):
    await with_specs(broker)
    async with broker.agent("alice") as alice:
        await begin(alice)
        thread = await alice.create_thread("concierge")
        entries = thread.watch()
        assert (await within(anext(entries))).HasField("created")
        run_id = new_message_id()
        async with thread.run(run_id) as run:
            await thread.request("writer")
            broker.kill()
            stepping = asyncio.create_task(run.next_step())
            await broker.start()
            assert ((await within(stepping)).spec.spec_id, run.run_id) == ("writer", run_id)
        kinds = []
        while not kinds or kinds[-1] != "run_ended":
            kinds.append((await within(anext(entries))).WhichOneof("event"))
        assert kinds == ["run_began", "boundary", "requested", "request_ended", "boundary", "run_ended"]
        await entries.aclose()
