"""The facade without an event loop, against a real broker."""

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from brokers import PATIENCE_SECONDS, RealBroker, needs_broker

import baton
from baton import (
    BatonError,
    ConfigurationError,
    HandoffFailedError,
    NoAnswerError,
    RecallReason,
    TaskRecalledError,
    generate_key,
    json_section,
    save_key,
    v1,
)
from baton.sync import Agent, is_cancelled
from baton.sync.background import Calls

pytestmark = needs_broker

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket", initial_context_summary="the router drops the line")
SECTIONS = [json_section("goals", ["find the cause"])]
SECOND = timedelta(seconds=1)


@pytest.fixture
def broker(tmp_path):
    broker = RealBroker(tmp_path)
    asyncio.run(broker.start())
    yield broker
    broker.end()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("baton.sync")]
    assert not names


def agent(broker, name, **options):
    return Agent(broker.server, name, options.pop("key", None) or generate_key(), ca_file=broker.ca, **options)


def begin(*agents):
    for one in agents:
        one.register(agent_types=["support"])
        one.connect()


def in_background(function, *arguments, **options):
    """Starts a call in a thread. Returns the function that waits for its outcome, and returns or raises it."""
    outcome = queue.Queue()

    def run():
        try:
            outcome.put((function(*arguments, **options), None))
        except BaseException as error:  # noqa: BLE001
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()

    def ended():
        result, error = outcome.get(timeout=PATIENCE_SECONDS)
        if error is not None:
            raise error
        return result

    return ended


def until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------- it works


def test_a_task_is_handed_over_and_the_handler_may_reject(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        taken, views = queue.Queue(), []

        def decide(offer):
            if "router" not in offer.request.initial_context_summary:
                offer.reject(v1.REJECT_REASON_NO_SKILL, "routers only")
                return
            takeover = offer.accept()
            taken.put((offer.sender_id, takeover.json("goals"), takeover.complete()))

        bob.handle(decide)
        begin(alice, bob)
        handed = alice.hand_over("bob", TASK, REQUEST, (section for section in SECTIONS), on_view=views.append)
        assert (handed.owner_id, handed.epoch) == ("bob", 2)
        assert (views[0], views[-1]) == (v1.SENDER_VIEW_IDLE, v1.SENDER_VIEW_HANDOFF_COMPLETED)
        sender_id, goals, task = taken.get(timeout=PATIENCE_SECONDS)
        assert (sender_id, goals, task.epoch) == ("alice", ["find the cause"], 2)
        task.report("at work", progress=0.5)
        task.checkpoint([json_section("notes", ["a loose cable"])])
        task.finish({"cause": "a loose cable"})
        assert alice.get_task(TASK).status == v1.TASK_STATUS_COMPLETED
        with pytest.raises(HandoffFailedError) as failed:
            alice.hand_over("bob", "ticket-2", v1.HandoffRequest(task_type="printer"), SECTIONS)
        assert [str(one) for one in failed.value.rejections] == ["bob: routers only"]


def test_a_task_is_lent_to_a_function_and_the_progress_comes_to_the_thread_of_the_call(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        told = []

        def work(task):
            task.report("half of it", progress=0.5)
            return {"goals": task.json("goals")}

        def tell(progress):
            told.append((progress.details, progress.status, threading.current_thread()))
            # A callback may call, too.
            assert alice.get_task(TASK).task_id == TASK

        begin(alice)
        bob.register()
        serving = in_background(bob.serve, task=work)
        outcome = alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=60 * SECOND, on_progress=tell)
        assert (outcome.status, outcome.result) == (v1.TASK_STATUS_COMPLETED, {"goals": ["find the cause"]})
        here = threading.current_thread()
        assert told == [("half of it", v1.TASK_STATUS_IN_PROGRESS, here), ("", v1.TASK_STATUS_COMPLETED, here)]
        bob.stop()
        serving()


def test_offer_decides_before_task_works_and_an_exception_fails_the_task(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:

        def decide(offer):
            if offer.task_id == "rejected":
                offer.reject(v1.REJECT_REASON_NO_SKILL)

        def work(task):
            if task.task_id == "ended":
                task.finish({"by": "itself"})
            if task.task_id == "failed":
                raise ValueError("no such router")
            return {"by": "its result"}

        bob.handle(decide, work)
        begin(alice, bob)
        with pytest.raises(HandoffFailedError, match="NO_CANDIDATE"):
            alice.delegate("bob", "rejected", REQUEST, SECTIONS)
        assert alice.delegate("bob", "ended", REQUEST, SECTIONS).result == {"by": "itself"}
        assert alice.delegate("bob", "worked", REQUEST, SECTIONS).result == {"by": "its result"}
        failed = alice.delegate("bob", "failed", REQUEST, SECTIONS)
        assert (failed.status, failed.details) == (v1.TASK_STATUS_FAILED, "ValueError: no such router")


def test_a_time_limit_cancels_a_handoff_that_no_agent_takes(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        bob.register()
        begin(alice)
        task = alice.create_task("ticket-2", "support-ticket")
        for hand_over in (
            lambda: alice.hand_over("bob", TASK, REQUEST, SECTIONS, timeout=SECOND),
            lambda: task.hand_over("bob", REQUEST, SECTIONS, timeout=SECOND),
        ):
            with pytest.raises(HandoffFailedError, match="HANDOFF_CANCELLED"):
                hand_over()
        assert [alice.get_task(one).owner_id for one in (TASK, "ticket-2")] == ["alice", "alice"]


def test_a_part_of_a_handlers_task_knows_its_parent(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob, agent(broker, "carol") as carol:
        carol.handle(task=lambda task: {"by": "carol", "at": task.epoch})
        bob.handle(task=lambda task: bob.delegate("carol", f"{task.task_id}-part", REQUEST, SECTIONS).result)
        begin(alice, bob, carol)
        assert alice.delegate("bob", TASK, REQUEST, SECTIONS).result == {"by": "carol", "at": 2}
        assert alice.get_task(f"{TASK}-part").parent_task_id == TASK


def test_a_question_is_asked_and_answered(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        asked = queue.Queue()

        def reply(question):
            asked.put(question)
            if question.text == "Which router?":
                question.answer(f"about {question.task_id}", {"router": 3})

        bob.handle(task=lambda _: {}, question=reply)
        begin(alice, bob)
        epoch = alice.delegate("bob", TASK, REQUEST, SECTIONS).epoch
        answer = alice.ask(TASK, epoch, "Which router?", "bob", within=60 * SECOND)
        assert (answer.agent_id, answer.text, answer.data) == ("bob", f"about {TASK}", {"router": 3})
        assert alice.resume_ask(TASK).text == answer.text
        with pytest.raises(NoAnswerError, match="EXPIRED"):
            alice.ask(TASK, epoch, "Which cable?", "bob", within=2 * SECOND)
        late = [asked.get(timeout=PATIENCE_SECONDS) for _ in range(2)][1]
        assert (late.text, late.owner_id) == ("Which cable?", "alice")
        with pytest.raises(BatonError, match="INPUT_EXPIRED"):
            bob.answer(TASK, epoch, late.question_id, "the red one")


def test_mail_is_received_and_acked(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        begin(alice, bob)
        assert bob.receive(within=timedelta(milliseconds=50)) is None
        for text in ("one", "two", "three"):
            alice.send(v1.Info(text=text), receiver_id="bob")
        first = bob.receive()
        assert (first.payload.text, first.envelope.sender_id, first.attempt) == ("one", "alice", 1)
        assert first.extend(60 * SECOND) > first.ack_deadline - SECOND
        first.ack()
        mail = bob.deliveries()
        second, third = next(mail), next(mail)
        second.ack()
        third.nack(v1.NACK_CAUSE_FAILURE, "again", retry_after=timedelta(0))
        again = next(mail)
        assert (again.payload.text, again.attempt) == ("three", 2)
        again.ack()
        mail.close()
        assert bob.receive(within=timedelta(milliseconds=50)) is None


def test_messages_go_to_the_handler_of_their_class_and_the_context_to_its_function(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        read = queue.Queue()
        alice.handle(context=lambda wanted: [json_section("goals", [wanted.task_id])])
        bob.handle(
            task=lambda task: read.put(task.json("goals")), messages={v1.Info: lambda one: read.put(one.payload.text)}
        )
        begin(alice, bob)
        alice.send(v1.Info(text="hello"), receiver_id="bob")
        assert read.get(timeout=PATIENCE_SECONDS) == "hello"
        alice.wait(alice.wrapped.request_handoff("bob", TASK, REQUEST))
        assert read.get(timeout=PATIENCE_SECONDS) == [TASK]


def test_lists_and_watches_are_iterators(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        bob.handle(task=lambda _: {})
        begin(alice, bob)
        for number in range(3):
            alice.delegate("bob", f"ticket-{number}", REQUEST, SECTIONS)
        assert [task.task_id for task in alice.list_tasks(owner_id="alice")] == ["ticket-2", "ticket-1", "ticket-0"]
        assert len(list(alice.list_handoffs(agent_id="bob"))) == 3
        alice.update_status("ticket-0", 3, v1.TASK_STATUS_COMPLETED)
        log = list(alice.watch_task("ticket-0"))
        assert log[-1].entry.task_status == v1.TASK_STATUS_COMPLETED
        handoff_id = next(alice.list_handoffs()).handoff_id
        assert [one.state for one in alice.watch_handoff(handoff_id)] == [v1.HANDOFF_STATE_COMPLETED]
        assert next(alice.watch_handoffs(task_id="ticket-1")).WhichOneof("event") in ("handoff", "caught_up")
        watch = alice.watch_agents()
        seen = {next(watch).agent.card.agent_id for _ in range(3)}
        assert seen == {"alice", "bob", "baton.coordinator"}
        watch.close()
        assert alice.get_agent("bob").card.agent_types == ["support"]
        assert [task.task_id for task in alice.owned_tasks()] == ["ticket-2", "ticket-1"]


def test_the_environment_names_the_agent(broker, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("BATON_AGENT_ID", "BATON_AGENT_KEY", "BATON_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="BATON_AGENT_ID"):
        Agent.from_env()
    save_key(tmp_path / "bob.pem", generate_key())
    monkeypatch.setenv("BATON_SERVER", broker.server)
    monkeypatch.setenv("BATON_CA", str(broker.ca))
    monkeypatch.setenv("BATON_AGENT_ID", "bob")
    monkeypatch.setenv("BATON_AGENT_KEY", str(tmp_path / "bob.pem"))
    with Agent.from_env(capacity=3) as bob:
        bob.register()
        assert bob.connect().broker_id == "baton"
        assert bob.get_agent("bob").card.capacity == 3
        assert bob.wait(bob.wrapped.peek()) == []


# ------------------------------------------------------------------------------------------------------- refusals


def test_errors_are_those_of_the_client(broker):
    with agent(broker, "alice") as alice:
        with pytest.raises(RuntimeError, match="connect first"):
            alice.send(v1.Info(text="x"), receiver_id="bob")
        begin(alice)
        with pytest.raises(BatonError) as refused:
            alice.hand_over("nobody", TASK, REQUEST, SECTIONS)
        assert refused.value.reason == "RECEIVER_UNKNOWN"
        with pytest.raises(BatonError, match="TASK_UNKNOWN"):
            alice.get_task("none")
        with pytest.raises(RuntimeError, match="serve needs a handler"):
            alice.serve()
        with pytest.raises(RuntimeError, match="handlers come before connect"):
            alice.handle(task=lambda _: {})
        with agent(broker, "alice") as other, pytest.raises(BatonError) as refused:
            other.connect()
        assert refused.value.reason == "CHALLENGE_FAILED"
    with pytest.raises(FileNotFoundError):
        Agent(broker.server, "alice", generate_key(), ca_file="absent.pem")
    with pytest.raises(baton.UntrustedError), Agent(broker.server, "alice", generate_key()) as alice:
        alice.connect()


def test_a_call_in_the_thread_of_the_loop_is_refused_instead_of_waiting_for_itself(broker):
    with agent(broker, "alice") as alice:
        begin(alice)

        async def call():
            return alice.get_agent("alice")

        with pytest.raises(RuntimeError, match="would block"):
            alice.wait(call())


# ----------------------------------------------------------------------------------------------- cut off in the middle


def test_a_lost_broker_is_an_error_and_a_call_goes_on_when_it_is_back(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        may_finish, owned = threading.Event(), threading.Event()

        def work(_):
            owned.set()
            may_finish.wait(PATIENCE_SECONDS)
            return {"after": "the restart"}

        bob.handle(task=work)
        begin(alice, bob)
        lent = in_background(alice.delegate, "bob", TASK, REQUEST, SECTIONS)
        assert owned.wait(PATIENCE_SECONDS)
        broker.kill()
        with pytest.raises(BatonError) as lost:
            alice.get_task(TASK)
        assert lost.value.is_passing
        asyncio.run(broker.start())
        may_finish.set()
        assert lent().result == {"after": "the restart"}


def test_close_ends_the_calls_of_other_threads(broker):
    alice, bob = agent(broker, "alice"), agent(broker, "bob")
    owned, left = threading.Event(), queue.Queue()

    def work(task):
        owned.set()
        until(is_cancelled)
        with pytest.raises(asyncio.CancelledError):
            task.report("still here")
        left.put("cancelled")

    bob.handle(task=work)
    begin(alice, bob)
    calls = [in_background(alice.delegate, "bob", TASK, REQUEST, SECTIONS)]
    assert owned.wait(PATIENCE_SECONDS)
    calls += [in_background(list, alice.watch_task(TASK)), in_background(list, alice.watch_agents())]
    calls += [in_background(alice.receive)]
    time.sleep(0.5)
    alice.close()
    for ended in calls:
        with pytest.raises(BatonError) as closed:
            ended()
        assert closed.value.code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    alice.close()
    for call in (alice.connect, lambda: alice.get_task(TASK), lambda: next(alice.list_tasks())):
        with pytest.raises(BatonError, match="the agent was closed"):
            call()
    bob.close(grace=timedelta(seconds=0.2))
    assert left.get(timeout=PATIENCE_SECONDS) == "cancelled"


def test_a_recall_cancels_the_handler_and_its_present_call(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        told = queue.Queue()

        def work(task):
            try:
                task.ask("Which router?", "alice")
            except asyncio.CancelledError:
                told.put(("cancelled", is_cancelled()))
                raise

        bob.handle(task=work, recalled=lambda recalled: told.put((recalled.task_id, recalled.epoch)))
        begin(alice, bob)
        with pytest.raises(TaskRecalledError) as back:
            alice.delegate("bob", TASK, REQUEST, SECTIONS, loan_timeout=SECOND)
        assert (back.value.reason, back.value.epoch) == (RecallReason.LOAN_TIMEOUT, 3)
        both = {told.get(timeout=PATIENCE_SECONDS) for _ in range(2)}
        assert both == {("cancelled", True), (TASK, 3)}


def test_a_handler_cannot_close_its_agent_but_stop_it(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        begin(alice)
        bob.register()

        def work(_):
            with pytest.raises(RuntimeError, match="stop"):
                bob.close()
            bob.stop()
            return {"stopped": True}

        serving = in_background(bob.serve, task=work)
        assert alice.delegate("bob", TASK, REQUEST, SECTIONS).result == {"stopped": True}
        serving()


def test_an_exception_of_a_callback_ends_the_call_or_is_logged(broker):
    with agent(broker, "alice") as alice, agent(broker, "bob") as bob:
        bob.handle(task=lambda _: {})
        begin(alice, bob)

        def fail(_):
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            alice.hand_over("bob", TASK, REQUEST, SECTIONS, on_view=fail)
        assert alice.delegate("bob", "ticket-2", REQUEST, SECTIONS, on_progress=fail).result == {}


# A shell without job control starts what it puts into the background with SIGINT ignored, and the tests may be there.
SCRIPT = """
import signal, sys, time
from datetime import timedelta
from baton import json_section, load_key, v1
from baton.sync import Agent

signal.signal(signal.SIGINT, signal.default_int_handler)
server, ca, name, key, what = sys.argv[1:]
agent = Agent(server, name, load_key(key), ca_file=ca)
with agent:
    agent.register()
    if what == "delegate":
        agent.connect()
        print("ready", flush=True)
        agent.delegate("bob", "ticket-1", v1.HandoffRequest(task_type="x"), [json_section("goals", [])])
    elif what == "watch":
        agent.connect()
        for _ in agent.watch_agents():
            print("ready", flush=True)
    else:
        def work(task):
            print("ready", flush=True)
            time.sleep(1)
            return {"done": "after the signal"}

        agent.serve(task=work)
"""


def script(broker, tmp_path, name, what):
    key = tmp_path / f"{name}.pem"
    save_key(key, generate_key())
    environment = os.environ | {"PYTHONPATH": str(Path(baton.__file__).parents[1]), "GRPC_VERBOSITY": "NONE"}
    command = [sys.executable, "-c", SCRIPT, broker.server, str(broker.ca), name, str(key), what]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupt(process):
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGINT, stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt"), stderr
    assert "During handling" not in stderr, stderr
    assert "Exception ignored" not in stderr, stderr


@pytest.mark.parametrize("is_given", [True, False])
def test_an_interrupt_while_a_call_is_given_to_the_loop_ends_it(monkeypatch, is_given):
    calls = Calls()
    loop = calls._shared.loop
    give, seen = loop.call_soon_threadsafe, []

    def interrupted(function, *arguments, **named):
        if seen or function.__name__ != "start":
            return give(function, *arguments, **named)
        seen.append(function)
        if is_given:
            give(function, *arguments, **named)
        raise KeyboardInterrupt

    async def stream():
        await asyncio.sleep(3600)
        yield None

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            next(calls.iterate(stream()))
        assert raised.value.__context__ is None
        assert not calls._open
    finally:
        calls.over()


def test_ctrl_c_takes_a_lent_task_back(broker, tmp_path):
    with agent(broker, "bob") as bob:
        owned, told = threading.Event(), queue.Queue()

        def work(_):
            owned.set()
            until(is_cancelled)

        bob.handle(task=work, recalled=told.put)
        begin(bob)
        process = script(broker, tmp_path, "alice", "delegate")
        assert owned.wait(PATIENCE_SECONDS)
        interrupt(process)
        recalled = told.get(timeout=PATIENCE_SECONDS)
        assert (recalled.task_id, recalled.epoch, recalled.reason) == (TASK, 3, RecallReason.RECALL)


def test_ctrl_c_lets_handlers_end_their_work(broker, tmp_path):
    with agent(broker, "alice") as alice:
        begin(alice)
        process = script(broker, tmp_path, "bob", "serve")
        until(lambda: [one for one in alice.find_agents() if one.agent_id == "bob"])
        assert {"alice", "bob"} <= {one.card.agent_id for one in alice.list_agents()}
        lent = in_background(alice.delegate, "bob", TASK, REQUEST, SECTIONS)
        assert process.stdout.readline() == "ready\n"
        interrupt(process)
        assert lent().result == {"done": "after the signal"}


def test_ctrl_c_ends_a_watch(broker, tmp_path):
    process = script(broker, tmp_path, "alice", "watch")
    assert process.stdout.readline() == "ready\n"
    interrupt(process)
