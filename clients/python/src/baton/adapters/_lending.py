"""A task of an adapter: lent once for one call of the framework, followed, and ended with its outcome."""

import asyncio
import hashlib
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc

from baton import Agent, BatonError, HandoffFailedError, Outcome, Progress, RecallReason, TaskRecalledError, loans, v1
from baton.work import FINAL

_LOG = logging.getLogger("baton")
_CODE = grpc.StatusCode.FAILED_PRECONDITION

_NAMESPACE = uuid.UUID("6d0b5c0e-8f5d-5b7e-9f2b-4c1d0f6a7e21")
_ATTEMPTS_MAX = 100
_SUMMARY_BYTES_MAX = 16_384
_NAME_CHARACTERS_MAX = 40
# A cancelled request may still be on its way to the broker.
_LOOKS = 10
_LOOK_SECONDS = 0.2
_GONE_ON = {"INPUT_TAKEN", "INPUT_EXPIRED", "STALE_EPOCH", "TASK_FINAL"}
_UNKNOWN = {"TASK_UNKNOWN", "PERMISSION_DENIED"}


@dataclass(frozen=True)
class Asked:
    """A question of the agent that works on a lent task, to the agent that lent it."""

    task_id: str
    agent_id: str
    """The agent that asks."""
    question_id: str
    text: str
    """The question, for people."""
    schema: dict[str, Any] | None = None
    """The JSON Schema that an answer's data must fit; None: any data."""


Reply = str | Mapping[str, Any]
"""The answer to a question: a text for people, or data for programs."""
OnQuestion = Callable[[Asked], Awaitable[Reply] | Reply]
OnReport = Callable[[Progress], Awaitable[None] | None]


class UnansweredError(Exception):
    """The other agent has asked a question that no code of this process answers. The task was taken back."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(f"{asked.agent_id} asks: {asked.text}")
        self.asked = asked


@dataclass(frozen=True)
class Loan:
    """What a call of a framework lends: the terms, and the callbacks of the wait."""

    agent: Agent
    receiver_id: str
    task_id: str
    """The task's id: see `derived_id`. A repeat after an attempt without a result has the id with a number."""
    request: v1.HandoffRequest
    context: list[v1.ContextSection]
    timeout: timedelta | None = None
    loan_timeout: timedelta | None = None
    on_question: OnQuestion | None = None
    on_report: OnReport | None = None
    keeps: tuple[type[BaseException], ...] = field(default=())
    """The exceptions of a callback that leave the loan for a later call. Any other one takes the task back."""


@dataclass(frozen=True)
class Found:
    """A task that an earlier call has begun."""

    task: v1.Task
    handoff_id: str
    """The handoff that lends it; empty if none has."""
    is_over: bool
    """Whether that loan, or the attempt at it, has ended."""


def derived_id(kind: str, agent: Agent, *parts: Any) -> str:
    """Returns a task id that is the same for the same parts of a framework's call, and for no others."""
    seed = json.dumps([agent.agent_id, *parts], sort_keys=True, default=str)
    return f"{kind}-{uuid.uuid5(_NAMESPACE, seed)}"


def conversation_of(name: str | None) -> str:
    """Returns the id of a framework's conversation as a task can have it; empty if a task cannot."""
    is_fit = name is not None and 1 <= len(name) <= 128 and name.isprintable()  # noqa: PLR2004
    return name if name is not None and is_fit else ""


def type_of(receiver_id: str, task_type: str) -> str:
    """Returns the task type: by default the name of the receiver."""
    return task_type or receiver_id.removeprefix("type:")


def tool_name(receiver_id: str) -> str:
    """Returns `transfer_to_NAME` in the characters and the length of a tool's name. A hash marks a changed name.

    Two agents have two names, and two types have two names.
    """
    name = receiver_id.removeprefix("type:")
    plain = "transfer_to_" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if plain == f"transfer_to_{name}" and len(plain) <= _NAME_CHARACTERS_MAX:
        return plain
    mark = hashlib.sha256(receiver_id.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_CHARACTERS_MAX - len(mark) - 1]}_{mark}"


def summary_of(text: str) -> str:
    """Returns a text as the summary of a request, which is cut where it is too long for one."""
    return text.encode()[:_SUMMARY_BYTES_MAX].decode(errors="ignore")


async def lend(loan: Loan) -> tuple[str, Outcome]:
    """Lends the task, or finds the loan of an earlier call with the same id; waits, and ends the task.

    The task ends with the delegate's status, or as CANCELED without one. An earlier loan that ended with a final status
    of its delegate is the outcome again. After one that an earlier call has seen fail, the task is lent anew. A
    cancelled call takes the task back. Returns the task's id too.
    """
    task_id, found = await latest(loan)
    try:
        outcome = await _followed(loan, task_id, found)
    except HandoffFailedError as error:
        await end(loan.agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    except TaskRecalledError as error:
        if error.is_owner:
            await end(loan.agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    except loan.keeps:
        raise
    except asyncio.CancelledError:
        await give_up(loan.agent, task_id, "the call was cancelled")
        raise
    except BatonError as error:
        # After a passing error the outcome is unknown, and a repeat of the call finds the loan.
        if not error.is_passing and error.reason != "HANDOFF_OPEN":
            await end(loan.agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    except Exception as error:
        await give_up(loan.agent, task_id, str(error)[:1024])
        raise
    await end_with(loan.agent, outcome)
    return task_id, outcome


async def hand_on(loan: Loan) -> tuple[str, str]:
    """Hands the task over for good, or finds the handoff of an earlier call with the same id.

    Returns the ids of the task and of its owner. A task that no agent takes ends as CANCELED; a repeat of the call then
    hands over a new one. A cancelled call leaves the handoff open for a repeat, which goes on with it.
    """
    agent = loan.agent
    for task_id in _attempts(loan):
        found = await find(agent, task_id)
        if found is not None and found.task.owner_id != agent.agent_id:
            return task_id, found.task.owner_id
        if found is None or found.task.status not in FINAL:
            break
    else:
        raise BatonError(_CODE, f"task {loan.task_id} was handed over {_ATTEMPTS_MAX} times, and nobody took it")
    try:
        if found is not None and found.handoff_id and not found.is_over:
            handed = await agent.resume_hand_over(found.handoff_id, loan.context)
        else:
            epoch = 1 if found is None else found.task.epoch
            handed = await agent.hand_over(
                loan.receiver_id, task_id, loan.request, loan.context, epoch=epoch, timeout=loan.timeout
            )
    except HandoffFailedError as error:
        await end(agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    return task_id, handed.owner_id


async def latest(loan: Loan) -> tuple[str, Found | None]:
    """Returns the id of the attempt that a call is about, and the attempt, if an earlier call has begun it."""
    for task_id in _attempts(loan):
        found = await find(loan.agent, task_id)
        # The end of the task says that a call has had the outcome.
        if found is None or found.task.status not in FINAL or await _has_result(loan.agent, found):
            return task_id, found
    raise BatonError(_CODE, f"task {loan.task_id} was lent {_ATTEMPTS_MAX} times without a result")


def _attempts(loan: Loan) -> Iterator[str]:
    """Yields the ids of the tasks of a call, in the order of its attempts."""
    yield loan.task_id
    for attempt in range(2, _ATTEMPTS_MAX + 1):
        yield f"{loan.task_id}-{attempt}"


async def find(agent: Agent, task_id: str) -> Found | None:
    """Returns a task of this agent with its loan; None if there is none."""
    try:
        task = await agent.get_task(task_id)
    except BatonError as error:
        if error.reason not in _UNKNOWN:
            raise
        return None
    if task.open_handoff_id and task.owner_id == agent.agent_id:
        return Found(task, task.open_handoff_id, is_over=False)
    lent = [hop.handoff_id for hop in task.hops if hop.sender_id == agent.agent_id]
    is_lent = any(loan.handoff_id in lent for loan in task.loans)
    return Found(task, lent[-1] if lent else "", is_over=not is_lent)


async def _has_result(agent: Agent, found: Found) -> bool:
    if not found.handoff_id:
        return False
    try:
        await agent.wait_for_loan(found.handoff_id)
    except (HandoffFailedError, TaskRecalledError):
        return False
    return True


async def _followed(loan: Loan, task_id: str, found: Found | None) -> Outcome:
    """Waits for the outcome, and passes reports and questions to the callbacks, in this context."""
    news: asyncio.Queue[Progress | None] = asyncio.Queue()
    if found is None or not found.handoff_id:
        running = asyncio.create_task(_begun(loan, task_id, 1 if found is None else found.task.epoch, news))
    else:
        running = asyncio.create_task(_found_again(loan, task_id, found, news))
    running.add_done_callback(lambda _: news.put_nowait(None))
    try:
        while (one := await news.get()) is not None:
            await _heard(loan, one)
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    return running.result()


def _begun(loan: Loan, task_id: str, epoch: int, news: asyncio.Queue[Progress | None]) -> Coroutine[Any, Any, Outcome]:
    return loan.agent.delegate(
        loan.receiver_id,
        task_id,
        loan.request,
        loan.context,
        epoch=epoch,
        timeout=loan.timeout,
        loan_timeout=loan.loan_timeout,
        on_progress=news.put_nowait,
        take_back_on_cancel=not loan.keeps,
    )


async def _found_again(loan: Loan, task_id: str, found: Found, news: asyncio.Queue[Progress | None]) -> Outcome:
    agent, handoff_id = loan.agent, found.handoff_id
    limit = None if loan.timeout is None or found.is_over else loan.timeout.total_seconds()
    try:
        async with asyncio.timeout(limit) as clock:
            return await agent.wait_for_loan(handoff_id, loan.context, on_progress=news.put_nowait)
    except TimeoutError:
        if not clock.expired():
            raise
    text = "the time limit of the call passed"
    receipt = await loans.take_back(agent, await _request_of(agent, handoff_id), text)
    if receipt is None:
        return await agent.wait_for_loan(handoff_id, loan.context)
    agent.work.back(task_id, receipt.epoch)
    raise TaskRecalledError(task_id, handoff_id, RecallReason.DEADLINE, text, epoch=receipt.epoch)


async def _heard(loan: Loan, progress: Progress) -> None:
    """Passes a report on, and answers a question to this agent that is still open."""
    if loan.on_report is not None:
        await _done(loan.on_report(progress))
    if progress.question_id and progress.asked_agent_id == loan.agent.agent_id:
        await answered(loan, progress)


async def answered(loan: Loan, progress: Progress) -> None:
    """Answers a question by the callback. The callback gets each question, also one that is closed already.

    So a callback that is asked again in another process meets the questions in the same order.
    """
    agent = loan.agent
    if loan.on_question is None and agent._dispatcher.prompt_handler is not None:  # noqa: SLF001
        return
    task = await agent.get_task(progress.task_id)
    is_open = task.open_prompt.message_id == progress.question_id
    schema = json.loads(task.open_prompt.prompt.answer_schema_json or "null") if is_open else None
    asked = Asked(progress.task_id, progress.agent_id, progress.question_id, progress.question, schema)
    # The question arrives as mail too, for which there is no handler.
    agent._dispatcher.known(asked.question_id)  # noqa: SLF001
    for mail in agent.take_back(lambda delivery: delivery.envelope.message_id == asked.question_id):
        await mail.ack_for_sure()
    if loan.on_question is None:
        if is_open:
            raise UnansweredError(asked)
        return
    if not is_open and not loan.keeps:
        return
    reply = await _done(loan.on_question(asked))
    if not is_open:
        return
    text, data = (reply, None) if isinstance(reply, str) else ("", reply)
    try:
        await agent.answer(asked.task_id, progress.epoch, asked.question_id, text, data)
    except BatonError as error:
        if error.reason not in _GONE_ON:
            raise


async def _done(given: Any) -> Any:
    return await given if isinstance(given, Awaitable) else given


async def give_up(agent: Agent, task_id: str, why: str) -> None:
    """Takes a task back that a cancelled call has lent, or was about to lend, and ends it as CANCELED."""
    with suppress(BatonError):
        for _ in range(_LOOKS):
            found = await find(agent, task_id)
            if found is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            if found.handoff_id and not found.is_over:
                receipt = await loans.take_back(agent, await _request_of(agent, found.handoff_id), why)
                if receipt is not None:
                    agent.work.back(task_id, receipt.epoch)
            break
        else:
            return
    await end(agent, task_id, v1.TASK_STATUS_CANCELED, why)


async def _request_of(agent: Agent, handoff_id: str) -> v1.Envelope:
    handoff = await agent.get_handoff(handoff_id)
    return v1.Envelope(message_id=handoff_id, task_id=handoff.task_id, epoch=handoff.epoch)


async def end_with(agent: Agent, outcome: Outcome) -> None:
    """Ends a task that came back with its delegate's status."""
    status = outcome.status if outcome.status in FINAL else v1.TASK_STATUS_CANCELED
    await end(agent, outcome.task_id, status, outcome.details)


async def end(agent: Agent, task_id: str, status: v1.TaskStatus, details: str) -> None:
    """Ends a task if this agent owns it. The task keeps the result that its delegate has reported."""
    try:
        task = await agent.get_task(task_id)
        if task.owner_id == agent.agent_id and task.status not in FINAL:
            await agent.update_status(task_id, task.epoch, status, details)
    except BatonError as error:
        if error.reason not in _UNKNOWN:
            _LOG.warning("task %s was not ended: %s", task_id, error)


def shown(outcome: Outcome) -> dict[str, Any]:
    """Returns status, result and details as JSON."""
    status = v1.TaskStatus.Name(outcome.status).removeprefix("TASK_STATUS_")
    return {"status": status, "result": outcome.result, "details": outcome.details}


FAILURES = (HandoffFailedError, TaskRecalledError, UnansweredError, BatonError)
"""What a call that lends a task raises, and a model can be told."""


def failure(error: Exception) -> dict[str, Any]:
    """Returns what a model is told of one of FAILURES: `error`, `message` and, of a handoff, `rejections`."""
    match error:
        case HandoffFailedError():
            rejections = [str(one) for one in error.rejections]
            return {"error": error.reason, "message": error.message, "rejections": rejections}
        case TaskRecalledError():
            return {"error": "TASK_RECALLED", "reason": error.reason, "message": error.message}
        case UnansweredError():
            text = "The other agent needs an answer first. Nothing goes on: call again, with the answer in the details."
            return {"error": "INPUT_NEEDED", "message": text, "question": error.asked.text}
        case BatonError():
            return {"error": error.reason or error.code.name, "message": error.message}
    raise error
