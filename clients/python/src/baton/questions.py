"""Questions about a task: ask one agent and wait for its answer, or answer a question."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from baton import handoffs, v1
from baton.conversation import Conversation
from baton.delivery import Delivery
from baton.envelopes import make_envelope
from baton.errors import BatonError, NoAnswerError
from baton.handoffs import Handoffs
from baton.limits import json_object
from baton.messages import Messages


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    agent_id: str
    """The agent that answered."""
    text: str
    """The answer for people; may be empty."""
    data: dict[str, Any]
    """The answer for programs. It fits the question's schema, if the question has one."""


class Question:
    """A question to this agent about another agent's task: `answer` answers it once."""

    def __init__(self, agent: Messages, delivery: Delivery) -> None:
        prompt = delivery.payload.prompt
        self.question_id = delivery.envelope.message_id
        """The message_id of the status update that asks."""
        self.task_id = delivery.envelope.task_id
        self.epoch = delivery.envelope.epoch
        """The task's epoch at its owner."""
        self.owner_id = delivery.envelope.sender_id
        """The task's owner, which asks."""
        self.text: str = prompt.question
        """The question, for people."""
        self.details: str = delivery.payload.details
        """The details of the status update, for people."""
        self.schema: dict[str, Any] | None = json.loads(prompt.answer_schema_json or "null")
        """The JSON Schema that the answer's data must fit; None: any data."""
        has_deadline = prompt.HasField("answer_before")
        self.answer_before = prompt.answer_before.ToDatetime(tzinfo=UTC) if has_deadline else None
        """The time at which the question expires, UTC; None: never."""
        self._agent = agent

    async def answer(self, text: str = "", data: Mapping[str, Any] | None = None) -> v1.Receipt:
        """Answers the question. The first answer counts.

        Raises BatonError: INPUT_TAKEN, INPUT_EXPIRED, STALE_EPOCH or TASK_FINAL if the question is no longer open,
        FIELD_INVALID if the data does not fit the schema.
        """
        return await self._agent.answer(self.task_id, self.epoch, self.question_id, text, data)


def is_question(payload: Any) -> bool:
    """Whether a payload is a status update with a question."""
    return isinstance(payload, v1.TaskStatusUpdate) and payload.HasField("prompt")


def prompt_of(text: str, answer_by: str, within: timedelta | None, schema: Mapping[str, Any] | None) -> v1.TaskPrompt:
    """Returns a prompt that expires after `within`."""
    prompt = v1.TaskPrompt(question=text, answer_by=answer_by)
    if within is not None:
        prompt.answer_before.FromDatetime(datetime.now(UTC) + within)
    if schema is not None:
        prompt.answer_schema_json = json.dumps(schema)
    return prompt


def answer_of(answered: v1.AnsweredPrompt) -> Answer:
    """Converts an answered question from its protobuf form."""
    answer = answered.answer
    return Answer(answered.question.asked_agent_id, answer.text, json_object(answer.data_json))


async def answer_to(agent: Handoffs, mail: Conversation, task_id: str, question_id: str) -> Answer:
    """Waits for the answer to a question. Raises NoAnswerError."""
    was_closed = False
    while True:
        delivery = await mail.next_within(handoffs.LOOK_SECONDS)
        if delivery is not None:
            await delivery.ack_for_sure()
            payload = delivery.payload
            if isinstance(payload, v1.ErrorNotification):
                raise NoAnswerError(question_id, "EXPIRED", payload.error_message)
            return Answer(delivery.envelope.sender_id, payload.text, json_object(payload.data_json))
        if was_closed:
            # A broker that does not keep answers: the answer, or the notice of the expiry, would have arrived by now.
            raise NoAnswerError(question_id, "WITHDRAWN", "the question is no longer open")
        try:
            task = await agent.get_task(task_id)
        except BatonError as error:
            if not error.is_passing:
                raise
        else:
            last = task.last_answer
            if last.question.message_id == question_id:
                agent._dispatcher.known(last.answer_id)  # noqa: SLF001
                return answer_of(last)
            was_closed = task.open_prompt.message_id != question_id


class Questions(Handoffs):
    """The calls about questions. `Agent` has them."""

    async def ask(
        self,
        task_id: str,
        epoch: int,
        question: str,
        answer_by: str,
        *,
        within: timedelta | None = None,
        schema: Mapping[str, Any] | None = None,
        details: str = "",
    ) -> Answer:
        """Asks a question about a task that this agent owns, and waits for the answer: WAITING_FOR_INPUT with a prompt.

        `answer_by` is an agent's id, or `type:NAME` for one able agent of the type. `schema` is a JSON Schema that the
        answer's data must fit. The question expires after `within`; without it the call waits until the answer, or
        until the question is withdrawn by the next status update or a move of the task. A cancelled call leaves the
        question open, and the handler of v1.TaskInput gets the answer. Raises NoAnswerError without an answer;
        BatonError, for example RECEIVER_UNKNOWN if no able agent can be asked, or FIELD_INVALID.
        """
        update = v1.TaskStatusUpdate(
            status=v1.TASK_STATUS_WAITING_FOR_INPUT,
            details=details,
            prompt=prompt_of(question, answer_by, within, schema),
        )
        envelope = make_envelope(update, sender_id=self.agent_id, receiver_id="", task_id=task_id, epoch=epoch)
        with self._dispatcher.answers(envelope.message_id) as mail:
            await self._sign_and_send(envelope)
            return await answer_to(self, mail, task_id, envelope.message_id)

    async def resume_ask(self, task_id: str) -> Answer:
        """Goes on waiting for the answer to the task's open question, which an earlier process may have asked.

        Without an open question it returns the answer to the latest question that was answered. Raises NoAnswerError,
        WITHDRAWN if the task has neither; otherwise as `ask`.
        """
        task = await self.get_task(task_id)
        question_id = task.open_prompt.message_id
        if question_id:
            with self._dispatcher.answers(question_id) as mail:
                return await answer_to(self, mail, task_id, question_id)
        if not task.HasField("last_answer"):
            raise NoAnswerError("", "WITHDRAWN", f"task {task_id} has no open question, and none was answered")
        return answer_of(task.last_answer)
