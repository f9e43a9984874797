"""Plans: what subtasks get and give, a watch over a restart, cancel and retry."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, json_section, plan_of, subtask, v1
from baton.plans import subtask_of

REPORT = [
    subtask("fetch", agent_type="worker", produces=["figures"], data={"quarter": 3}, timeout=timedelta(minutes=3)),
    subtask("growth", agent_type="worker", consumes=["figures"], role="analyst", description="how much"),
    subtask("synthesis", agent_type="worker", dependencies=["fetch", "growth"]),
]


@contextlib.asynccontextmanager
async def worker(broker, work):
    """An agent that works on subtasks by this function, which returns the result or raises."""
    async with broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            takeover = await offer.accept()
            inputs = takeover.subtask
            task = await takeover.complete()
            try:
                await task.finish(await work(inputs))
            except ArithmeticError as error:
                await task.report(str(error), status=v1.TASK_STATUS_FAILED)

        await bob.register(agent_types=["worker"])
        await bob.connect()
        yield


def test_a_context_of_no_subtask_has_no_inputs():
    assert subtask_of([json_section("goals", ["none"]), json_section("task_description", {"text": "no plan"})]) is None
    told = json_section("task_description", {"plan_id": "p", "subtask_id": "s", "attempt": 2})
    results = json_section(
        "previous_results", {"a": {"response": "增长率15.3%", "success": True, "numeric_value": 15.3}}
    )
    inputs = subtask_of([told, results])
    assert (inputs.plan_id, inputs.subtask_id, inputs.attempt, inputs.input) == ("p", "s", 2, None)
    assert inputs.previous_results["a"].numeric_value == 15.3
    assert not inputs.is_compensation
    undoing = subtask_of([json_section("task_description", {"plan_id": "p", "subtask_id": "s", "compensates": "s"})])
    assert undoing.is_compensation
    assert not inputs.previous_results["a"].result_json


@needs_broker
async def test_subtasks_get_the_results_before_them_as_typed_inputs(broker):
    got = {}

    async def work(inputs):
        got[inputs.subtask_id] = inputs
        if inputs.subtask_id == "fetch":
            return {"response": "增长率为15.3%", "tokens": 12, "success": True, "tools_used": ["search"], "rows": [1]}
        if inputs.subtask_id == "growth":
            return {"response": "twice", "numeric_value": 2 * inputs.previous_results["fetch"].numeric_value}
        return {"response": " and ".join(sorted(inputs.dependency_results))}

    async with broker.agent("alice") as alice, worker(broker, work):
        await begin(alice)
        report = plan_of("q3", REPORT, description="季度报告", data={"language": "zh"}, max_concurrency=2)
        assert [one for one in await alice.validate_plan(report) if one.severity == v1.PROBLEM_SEVERITY_ERROR] == []
        plan = await alice.submit_plan(report)
        assert (await alice.submit_plan(report)).plan_id == plan.plan_id
        events = [entry.WhichOneof("event") async for entry in plan.watch()]
        assert (events[0], events[-1]) == ("submitted", "ended")
        assert (await plan.finished()).state == v1.PLAN_STATE_COMPLETED
        results = await plan.results()
        assert list(results) == ["fetch", "growth", "synthesis"]
        assert (results["fetch"].numeric_value, results["growth"].numeric_value) == (15.3, 30.6)
        assert (results["fetch"].tokens, list(results["fetch"].tools_used)) == (12, ["search"])
        assert results["synthesis"].response == "fetch and growth"
        assert (got["fetch"].input, got["growth"].plan_input) == ({"quarter": 3}, {"language": "zh"})
        assert (got["growth"].role, got["growth"].description, got["growth"].attempt) == ("analyst", "how much", 1)
        assert got["growth"].previous_results["fetch"].success
        assert "rows" in got["growth"].previous_results["fetch"].result_json
        assert list(got["growth"].consumed) == ["figures"]
        assert [one.plan_id async for one in alice.plans(states=[v1.PLAN_STATE_COMPLETED])] == ["q3"]
        with pytest.raises(BatonError, match="PLAN_FINAL"):
            await plan.retry()


@needs_broker
async def test_a_condition_leaves_a_branch_out_and_a_topic_has_a_schema(broker):
    async def work(inputs):
        return {"response": "the score is 0.7" if inputs.subtask_id == "check" else inputs.subtask_id}

    def less(negate):
        return v1.Condition(subtask_id="check", pointer="/numeric_value", less=0.5, negate=negate)

    async with broker.agent("alice") as alice, worker(broker, work):
        await begin(alice)
        branches = plan_of(
            "branches",
            [
                subtask("check", produces=["scores"]),
                subtask("mend", dependencies=["check"], when=less(False)),
                subtask("publish", dependencies=["check"], when=less(True)),
            ],
            defaults=v1.SubtaskDefaults(agent_type="worker"),
            topic_schemas={"scores": {"type": "object", "required": ["response"]}},
        )
        plan = await alice.submit_plan(branches)
        assert (await plan.finished()).state == v1.PLAN_STATE_COMPLETED
        assert list(await plan.results()) == ["check", "publish"]


@needs_broker
async def test_a_whole_result_is_fetched_that_the_context_had_no_room_for(broker):
    long, got = "x" * (230 << 10), asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            takeover = await offer.accept()
            task = await takeover.complete()
            got.put_nowait((takeover.subtask, await takeover.fetch_subtask()))
            await task.finish({"response": long, "numeric_value": 7.5})

        await bob.register(agent_types=["worker"])
        await bob.connect()
        await begin(alice)
        subtasks = [subtask(one, agent_type="worker") for one in ("a", "b", "c", "d", "e")]
        subtasks[-1].consumes.append("figures")
        subtasks[0].produces.append("figures")
        plan = await alice.submit_plan(plan_of("long", subtasks, mode=v1.PLAN_MODE_SEQUENTIAL))
        assert (await plan.finished()).state == v1.PLAN_STATE_COMPLETED
        pairs = [await got.get() for _ in subtasks]
        assert pairs[0][1] == pairs[0][0]
        sent, whole = pairs[-1]
        short = [sent.previous_results["d"], sent.consumed["figures"]["a"]]
        assert {"a", "d"} <= sent.omitted
        assert [(one.response, one.success, one.numeric_value) for one in short] == [("", True, 7.5)] * 2
        assert all(one.numeric_value == 7.5 for one in sent.previous_results.values())
        assert {len(one.response) for one in whole.previous_results.values()} == {len(long)}
        assert (len(whole.consumed["figures"]["a"].response), whole.omitted) == (len(long), frozenset())


@needs_broker
async def test_wrong_plans_are_refused_with_all_problems(broker):
    async with broker.agent("alice") as alice:
        await begin(alice)
        wrong = plan_of("q3", [subtask("a", agent_type="t", dependencies=["b"]), subtask("b", dependencies=["a"])])
        codes = {problem.code for problem in await alice.validate_plan(wrong)}
        assert {"CYCLE", "NO_AGENT"} <= codes
        with pytest.raises(BatonError) as refused:
            await alice.submit_plan(wrong)
        assert (refused.value.reason, len(refused.value.field_violations) >= 2) == ("PLAN_INVALID", True)
        with pytest.raises(BatonError, match=r"PLAN_UNKNOWN|PERMISSION_DENIED"):
            await alice.join_plan("none").state()


@needs_broker
async def test_a_plan_is_followed_over_a_restart_cancelled_and_retried(broker):
    goes_on, attempts = asyncio.Event(), []

    async def work(inputs):
        attempts.append(inputs.subtask_id)
        if inputs.subtask_id == "growth":
            await goes_on.wait()
            if attempts.count("growth") == 1:
                raise ArithmeticError("no figures")
        return {"response": inputs.subtask_id}

    async with broker.agent("alice") as alice, worker(broker, work):
        await begin(alice)
        plan = await alice.submit_plan(plan_of("q3", REPORT))
        entries = plan.watch()
        seen = []
        while not (
            seen and seen[-1].subtask.subtask_id == "growth" and seen[-1].subtask.state == v1.SUBTASK_STATE_RUNNING
        ):
            seen.append(await within(anext(entries)))
        with pytest.raises(BatonError, match="PLAN_RUNNING"):
            await plan.retry()
        broker.kill()
        await broker.start()
        goes_on.set()
        async with asyncio.timeout(300):
            seen += [entry async for entry in entries]
        assert [entry.number for entry in seen] == list(range(1, len(seen) + 1))
        assert seen[-1].ended.state == v1.PLAN_STATE_FAILED
        assert (await plan.retry()).round == 2
        later = [entry async for entry in plan.watch(seen[-1].number)]
        assert (later[0].HasField("retried"), later[-1].ended.state) == (True, v1.PLAN_STATE_COMPLETED)
        whole = [entry.WhichOneof("event") async for entry in plan.watch()]
        assert (whole.count("ended"), len(whole)) == (2, len(seen) + len(later))
        other = await alice.submit_plan(plan_of("q4", [subtask("a", agent_type="support")]))
        assert (await other.cancel("enough")).state == v1.PLAN_STATE_CANCELLED
        assert (await within(other.finished())).reason == "enough"


@needs_broker
async def test_a_plan_grows_and_its_subtasks_change(broker):
    extended, elements = asyncio.Event(), []

    async def work(inputs):
        if inputs.element is not None:
            elements.append(inputs.element)
            return {"place": inputs.element.index}
        await extended.wait()
        return {"response": "found", "all": ["x", {"y": 1}]}

    async with broker.agent("alice") as alice, worker(broker, work), broker.agent("idle") as idle:
        await begin(alice)
        await idle.register(agent_types=["idle"])
        wait = subtask("wait", agent_type="idle", optional=True)
        plan = await alice.submit_plan(plan_of("growth", [subtask("find", agent_type="worker"), wait]))
        for_each = v1.ForEach(subtask_id="find", pointer="/result/all")
        look = subtask("look", dependencies=["find"], for_each=for_each)
        for _ in range(2):
            await plan.extend([look], defaults=v1.SubtaskDefaults(agent_type="worker"))
        with pytest.raises(BatonError, match="PLAN_INVALID"):
            await plan.extend([subtask("find", agent_type="worker")])
        with pytest.raises(BatonError, match="SUBTASK_UNKNOWN"):
            await plan.cancel_subtask("missing")
        with pytest.raises(BatonError, match="SUBTASK_STATE"):
            await plan.retry_subtask("wait")
        with pytest.raises(BatonError, match="RECEIVER_INVALID"):
            await plan.reassign_subtask("wait", "bob", "no answer")
        assert (await plan.reassign_subtask("wait", "type:idle")).subtasks[1].assigned_to == "type:idle"
        assert (await plan.cancel_subtask("wait", "enough")).subtasks[1].state == v1.SUBTASK_STATE_CANCELLED
        assert (await plan.retry_subtask("wait")).round == 2
        await plan.cancel_subtask("wait", "enough")
        extended.set()
        assert (await within(plan.finished())).state == v1.PLAN_STATE_COMPLETED
        assert sorted((one.index, one.count, str(one.value)) for one in elements) == [(0, 2, "x"), (1, 2, "{'y': 1}")]
        assert (await plan.results())["look"].result_json == '{"results":[{"place":0},{"place":1}]}'
