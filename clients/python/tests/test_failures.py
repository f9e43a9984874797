"""Work that fails after the takeover, and results that the broker would refuse."""

import asyncio
from datetime import timedelta
from types import MappingProxyType

import pytest
from brokers import begin, needs_broker, within

from baton import (
    BatonError,
    HandoffFailedError,
    RecallReason,
    TaskRecalledError,
    json_object,
    json_section,
    json_text,
    plan_of,
    subtask,
    v1,
)
from baton.limits import ANSWER_BYTES_MAX, DEPTH_MAX, RESULT_BYTES_MAX

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]
FAILED = v1.TASK_STATUS_FAILED


def nested(levels, leaf=1, kind="object"):
    value = leaf
    for _ in range(levels):
        value = {"c": value} if kind == "object" else [value]
    return value if kind == "object" else {"c": value}


def worker_that(agent, work):
    """Registers a handler that takes a task over and then calls `work` with it."""

    @agent.on_handoff
    async def take(offer):
        await work(await (await offer.accept()).complete())


async def raises(_task):
    raise RuntimeError("the model answered 500")


@needs_broker
async def test_a_handler_that_raises_ends_the_loan_at_once(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, raises)
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert (outcome.status, outcome.details) == (FAILED, "RuntimeError: the model answered 500")
        assert outcome.epoch == 3


@needs_broker
async def test_a_handler_that_raises_ends_its_own_task(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, raises)
        await begin(alice, bob)
        await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        async with asyncio.timeout(30):
            while (task := await alice.get_task(TASK)).status != FAILED:
                await asyncio.sleep(0.02)
        assert (task.owner_id, task.details) == ("bob", "RuntimeError: the model answered 500")


@needs_broker
async def test_a_handler_that_runs_too_long_ends_its_task(broker):
    options = {"handler_timeout": timedelta(seconds=1)}
    async with broker.agent("alice") as alice, broker.agent("bob", **options) as bob:
        worker_that(bob, lambda _task: asyncio.Event().wait())
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert (outcome.status, outcome.details) == (FAILED, "TimeoutError: the handler ran longer than 1.0 s")


@needs_broker
async def test_what_the_words_of_a_failure_cannot_have_is_left_out(broker):
    async def raise_much(_task):
        raise ValueError("\ud800" + "ü" * 10_000)

    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, raise_much)
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert outcome.details.startswith("ValueError: ?üü")
        assert 16_382 <= len(outcome.details.encode()) <= 16_384


@needs_broker
async def test_a_failure_after_the_end_changes_nothing(broker):
    async def finish_and_raise(task):
        await task.finish({"x": 1})
        raise RuntimeError("too late to fail")

    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, finish_and_raise)
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert (outcome.status, outcome.result) == (v1.TASK_STATUS_COMPLETED, {"x": 1})
        await bob.close()
        assert (await alice.get_task(TASK)).epoch == 3


@needs_broker
async def test_a_shutdown_of_the_worker_is_no_failure(broker):
    begun = asyncio.Event()

    async def work(_task):
        begun.set()
        await asyncio.Event().wait()

    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, work)
        await begin(alice, bob)
        await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        await within(begun.wait())
        await bob.close(timedelta())
        task = await alice.get_task(TASK)
        assert (task.owner_id, task.status) == ("bob", v1.TASK_STATUS_CREATED)


@needs_broker
async def test_a_failed_handler_leaves_a_task_that_is_handed_on(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        taken = asyncio.Event()

        async def hand_on(task):
            async with asyncio.timeout(0.5):
                await task.hand_over("carol", REQUEST, SECTIONS)

        @bob.context_provider
        async def context_of(_wanted):
            return SECTIONS

        async def keep(_task):
            taken.set()

        worker_that(bob, hand_on)
        worker_that(carol, keep)
        await begin(alice, bob)
        await carol.register()
        await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        async with asyncio.timeout(30):
            while not (await alice.get_task(TASK)).open_handoff_id:
                await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        await carol.connect()
        await within(taken.wait())
        await bob.close()
        task = await alice.get_task(TASK)
        assert (task.owner_id, task.status) == ("carol", v1.TASK_STATUS_CREATED)


@needs_broker
async def test_a_result_that_cannot_be_sent_ends_the_task(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker_that(bob, lambda task: task.finish(nested(140)))
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert outcome.status == FAILED
        assert "envelope.payload.result_json is nested too deep: the limit is 128 objects and lists" in outcome.details


@needs_broker
@pytest.mark.parametrize(
    ("kind", "leaf", "most"), [("object", 1, 128), ("object", {}, 127), ("list", 1, 127), ("list", [], 126)]
)
async def test_the_deepest_result_passes_and_a_deeper_one_is_not_sent(broker, kind, leaf, most):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        results = asyncio.Queue()
        worker_that(bob, lambda task: task.finish(results.get_nowait()))
        await begin(alice, bob)
        results.put_nowait(nested(most, leaf, kind))
        results.put_nowait(nested(most + 1, leaf, kind))
        first = await within(alice.delegate("bob", TASK, REQUEST, []))
        assert (first.status, first.result) == (v1.TASK_STATUS_COMPLETED, nested(most, leaf, kind))
        assert (await alice.get_task(TASK)).result_json == json_text(nested(most, leaf, kind))
        second = await within(alice.delegate("bob", "ticket-2", REQUEST, []))
        assert f"the limit is {DEPTH_MAX} objects and lists" in second.details


@needs_broker
async def test_the_largest_result_passes(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        text = 'ü"\n' * 20_000
        value = {"text": text, "more": "x" * (RESULT_BYTES_MAX - len(json_text({"text": text, "more": ""}).encode()))}
        worker_that(bob, lambda task: task.finish(value))
        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, []))
        assert (outcome.status, outcome.result) == (v1.TASK_STATUS_COMPLETED, value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": {"b": [1, float("nan")]}}, "must have finite numbers only, not nan at /a/b/1"),
        ({"a": float("-inf")}, "must have finite numbers only, not -inf at /a"),
        ({"a": 10**400}, "must have finite numbers only, not an integer beyond 1.8e308 at /a"),
        ({"a/b": "x\ud800"}, "has an unpaired surrogate at /a~1b"),
        ({"a": {"\udc00": 1}}, "has an unpaired surrogate in the name '\\udc00' at /a"),
        ({"a": {1: 2}}, "must have strings as names, not 1, at /a"),
        ({"a": [{"b"}]}, "must be JSON, which has no set at /a/0"),
        (nested(129), "is nested too deep: the limit is 128 objects and lists in each other, at /c/c/c"),
        (nested(100_000), "the limit is 128 objects and lists in each other"),
        ({"x": "y" * ANSWER_BYTES_MAX}, f"has {ANSWER_BYTES_MAX + 8} bytes as JSON; the limit is {ANSWER_BYTES_MAX}"),
        ([1], "must be a JSON object, not a list"),
    ],
)
def test_what_the_broker_would_refuse_is_refused_here(value, problem):
    with pytest.raises(BatonError) as refused:
        json_text(value, "data_json", ANSWER_BYTES_MAX)
    [violation] = refused.value.field_violations
    assert (refused.value.reason, violation.field) == ("FIELD_INVALID", "envelope.payload.data_json")
    assert problem in violation.description


@pytest.mark.parametrize("make", [lambda data: subtask("a", data=data), lambda data: plan_of("p", [], data=data)])
def test_an_input_of_a_plan_is_refused_before_it_is_sent(make):
    with pytest.raises(BatonError, match=r"input_json must have finite numbers only, not nan at /rows/0"):
        make({"rows": [float("nan")]})
    assert b'{"id":1234567890123456789}' in make({"id": 1234567890123456789}).SerializeToString()


def test_json_is_the_same_after_its_text():
    text = (
        '{"a":[42,42.0,-0.0,true,null,1e+300],"ü\\t":{"":"\\u0001"},"i":1234567890123456789,"u":18446744073709551615}'
    )
    assert json_text(json_object(text)) == text
    assert json_text(MappingProxyType({"a": MappingProxyType({"b": (1, 2)})})) == '{"a":{"b":[1,2]}}'
    assert json_object("") == {}


@needs_broker
async def test_a_task_follows_its_loans(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:

        async def lend(task):
            assert task.epoch == 2
            outcome = await task.delegate("carol", REQUEST, [])
            assert (task.epoch, outcome.epoch) == (4, 4)
            await task.report("half", progress=0.5)
            with pytest.raises(TaskRecalledError) as back:
                await task.delegate("carol", REQUEST, [], loan_timeout=timedelta(seconds=1))
            assert (back.value.reason, task.epoch) == (RecallReason.LOAN_TIMEOUT, 6)
            with pytest.raises(HandoffFailedError):
                await task.delegate("carol", v1.HandoffRequest(task_type="travel"), [])
            assert task.epoch == 6
            await task.finish({"sum": outcome.result})

        runs = []

        @carol.on_handoff
        async def take(offer):
            if offer.request.task_type == "travel":
                await offer.reject(v1.REJECT_REASON_OTHER, "no")
                return
            task = await (await offer.accept()).complete()
            runs.append(task.epoch)
            if len(runs) == 1:
                await task.finish({"x": 1})
            else:
                await asyncio.Event().wait()

        worker_that(bob, lend)
        await begin(alice, bob, carol)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, []))
        assert (outcome.status, outcome.result, outcome.details) == (4, {"sum": {"x": 1}}, "")
        assert outcome.epoch == 7


@needs_broker
async def test_a_failure_after_a_loan_has_the_new_epoch(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:

        async def lend_and_raise(task):
            await bob.delegate("carol", task.task_id, REQUEST, [], epoch=task.epoch)
            raise RuntimeError("after the loan")

        worker_that(bob, lend_and_raise)
        worker_that(carol, lambda task: task.finish())
        await begin(alice, bob, carol)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, []))
        assert (outcome.status, outcome.details, outcome.epoch) == (FAILED, "RuntimeError: after the loan", 5)
