"""Plans: building, checking, submitting and following them; and on the other side, what a subtask gets."""

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from baton import v1
from baton.connection import Connection
from baton.delivery import duration
from baton.following import follow_log, follow_to_end
from baton.limits import json_text

_PAGE_SIZE = 200


def subtask(
    subtask_id: str,
    *,
    agent_type: str = "",
    agent_id: str = "",
    required_skills: Iterable[str] = (),
    description: str = "",
    role: str = "",
    dependencies: Iterable[str] = (),
    produces: Iterable[str] = (),
    consumes: Iterable[str] = (),
    data: Mapping[str, Any] | None = None,
    task_type: str = "",
    timeout: timedelta | None = None,
    attempts_max: int = 0,
    optional: bool = False,
    fallback_candidates: Iterable[str] = (),
    compensate: v1.Compensation | None = None,
    when: v1.Condition | None = None,
    for_each: v1.ForEach | None = None,
) -> v1.Subtask:
    """Returns a subtask for an agent, for the agents of a type, or for those with skills: see `v1.Subtask`.

    `data` is what the subtask gets as its input. `timeout` is the time from the takeover, by default 360 s.
    `compensate` undoes the subtask if the plan fails after the subtask has completed. `when` is what must hold for the
    subtask to run: see `v1.Condition`. `for_each` is the list of which each element is a part of the subtask.
    """
    made = v1.Subtask(
        id=subtask_id,
        agent_type=agent_type,
        agent_id=agent_id,
        required_skills=required_skills,
        description=description,
        role=role,
        dependencies=dependencies,
        produces=produces,
        consumes=consumes,
        task_type=task_type,
        timeout=duration(timeout),
        attempts_max=attempts_max,
        optional=optional,
        fallback_candidates=fallback_candidates,
        compensate=compensate,
        when=when,
        for_each=for_each,
    )
    if data is not None:
        made.input_json = json_text(data, "input_json")
    return made


def plan_of(
    plan_id: str,
    subtasks: Iterable[v1.Subtask],
    *,
    description: str = "",
    mode: v1.PlanMode = v1.PLAN_MODE_UNSPECIFIED,
    max_concurrency: int = 0,
    dependency_timeout: timedelta | None = None,
    whole_timeout: timedelta | None = None,
    data_flow_check: v1.DataFlowCheck = v1.DATA_FLOW_CHECK_UNSPECIFIED,
    priority: v1.Priority = v1.PRIORITY_UNSPECIFIED,
    data: Mapping[str, Any] | None = None,
    defaults: v1.SubtaskDefaults | None = None,
    topic_schemas: Mapping[str, Mapping[str, Any]] | None = None,
) -> v1.Plan:
    """Returns a plan; unnamed fields have the operator's defaults: see `v1.Plan`.

    `data` is what each subtask gets as its plan_input. `defaults` stand for what subtasks leave out, and
    `topic_schemas` are the JSON Schemas of topics.
    """
    made = v1.Plan(
        plan_id=plan_id,
        subtasks=subtasks,
        description=description,
        mode=mode,
        max_concurrency=max_concurrency,
        dependency_timeout=duration(dependency_timeout),
        whole_timeout=duration(whole_timeout),
        data_flow_check=data_flow_check,
        priority=priority,
        defaults=defaults,
    )
    if data is not None:
        made.input_json = json_text(data, "plan.input_json")
    for topic, schema in (topic_schemas or {}).items():
        made.topic_schemas.add(topic=topic, schema_json=json_text(schema, "plan.topic_schemas"))
    return made


class Plan:
    """A plan that was submitted, made by `Agent.submit_plan` or `Agent.join_plan`.

        plan = await alice.submit_plan(plan_of("q3", [subtask("fetch", agent_type="fetcher"), …]))
        async for entry in plan.watch():
            print(entry.number, entry.WhichOneof("event"))
        print((await plan.results())["fetch"].numeric_value)

    All calls raise BatonError if the broker refuses: PLAN_UNKNOWN, PERMISSION_DENIED.
    """

    def __init__(self, connection: Connection, plan_id: str, send: Callable[..., Awaitable[v1.Receipt]]) -> None:
        self.plan_id = plan_id
        self._connection = connection
        self._send = send

    async def state(self) -> v1.PlanRun:
        """Returns the present state of the plan and of each subtask."""
        request = v1.GetPlanRequest(plan_id=self.plan_id)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.GetPlan, request)).plan
        return plan

    async def watch(self, after: int = 0) -> AsyncGenerator[v1.PlanEntry, None]:
        """Yields the entries of the plan's log after this number, and each new one, until the plan has ended.

        The watch continues by itself over lost connections and restarts of the broker. A later process continues with
        the last `entry.number`. Raises GapError if entries are missing.
        """
        request = v1.WatchPlanRequest(plan_id=self.plan_id, after_number=after)
        stream = follow_log(self._connection, self._connection.plans.WatchPlan, request, f"plan {self.plan_id}")
        entries = follow_to_end(stream, after, self.state, v1.PLAN_STATE_RUNNING)
        async with contextlib.aclosing(entries):
            async for entry in entries:
                yield entry

    async def finished(self) -> v1.PlanRun:
        """Waits for the end of the plan: `state` is PLAN_STATE_COMPLETED, FAILED or CANCELLED."""
        after = (await self.state()).log_length
        async with contextlib.aclosing(self.watch(after)) as entries:
            async for _ in entries:
                pass
        return await self.state()

    async def results(self) -> dict[str, v1.SubtaskResult]:
        """Returns the results of the subtasks that have completed, by their ids, in the order of the plan."""
        request = v1.ListPlanResultsRequest(plan_id=self.plan_id)
        results: dict[str, v1.SubtaskResult] = {}
        while True:
            page = await self._connection.call(self._connection.plans.ListPlanResults, request)
            results |= {result.subtask_id: result for result in page.results}
            if not page.next_page_token:
                return results
            request.page_token = page.next_page_token

    async def cancel(self, reason: str = "") -> v1.PlanRun:
        """Ends the plan at once. Raises BatonError, PLAN_FINAL if it has ended otherwise."""
        request = v1.CancelPlanRequest(plan_id=self.plan_id, reason_text=reason)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.CancelPlan, request)).plan
        return plan

    async def extend(self, subtasks: Iterable[v1.Subtask], *, defaults: v1.SubtaskDefaults | None = None) -> None:
        """Signs and adds subtasks to the plan while it runs. The same extension again changes nothing.

        They may depend on the subtasks that the plan has. `defaults` stand for what the new subtasks leave out. Raises
        BatonError: PLAN_INVALID with each problem in `field_violations`, PLAN_FINAL if the plan has ended, CONFLICT if
        another extension came first.
        """
        extension = v1.PlanExtension(plan_id=self.plan_id, subtasks=subtasks, defaults=defaults)
        await self._send(v1.PlanSubmission(extension=extension))

    async def cancel_subtask(self, subtask_id: str, reason: str = "") -> v1.PlanRun:
        """Ends one subtask at once. Raises BatonError: SUBTASK_UNKNOWN; SUBTASK_STATE if it has ended otherwise."""
        request = v1.CancelSubtaskRequest(plan_id=self.plan_id, subtask_id=subtask_id, reason_text=reason)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.CancelSubtask, request)).plan
        return plan

    async def retry_subtask(self, subtask_id: str) -> v1.PlanRun:
        """Starts one subtask again that did not complete. Raises BatonError: SUBTASK_STATE in another state."""
        request = v1.RetrySubtaskRequest(plan_id=self.plan_id, subtask_id=subtask_id)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.RetrySubtask, request)).plan
        return plan

    async def reassign_subtask(self, subtask_id: str, to: str, reason: str = "") -> v1.PlanRun:
        """Gives one subtask to another agent, or to one of `type:NAME`.

        Raises BatonError: SUBTASK_STATE if it has ended; RECEIVER_UNKNOWN; RECEIVER_INVALID if the agent lacks what the
        subtask demands; AGENT_GONE.
        """
        request = v1.ReassignSubtaskRequest(plan_id=self.plan_id, subtask_id=subtask_id, to=to, reason_text=reason)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.ReassignSubtask, request)).plan
        return plan

    async def retry(self) -> v1.PlanRun:
        """Starts again what did not complete. Raises BatonError: PLAN_RUNNING; PLAN_FINAL if nothing is left."""
        request = v1.RetryPlanRequest(plan_id=self.plan_id)
        plan: v1.PlanRun = (await self._connection.call(self._connection.plans.RetryPlan, request)).plan
        return plan


class Plans:
    """The calls about plans. `Agent` has them."""

    _connection: Connection
    send: Callable[..., Awaitable[v1.Receipt]]

    async def validate_plan(self, plan: v1.Plan) -> list[v1.PlanProblem]:
        """Returns all problems of a plan, and stores nothing. Without an error among them it can be submitted."""
        request = v1.ValidatePlanRequest(plan=plan)
        return list((await self._connection.call(self._connection.plans.ValidatePlan, request)).problems)

    async def submit_plan(self, plan: v1.Plan) -> Plan:
        """Signs and submits a plan. The same plan again is the same plan.

        Raises BatonError: PLAN_INVALID with each problem in `field_violations`, PLAN_EXISTS for another plan of its id.
        """
        await self.send(v1.PlanSubmission(plan=plan))
        return self.join_plan(plan.plan_id)

    def join_plan(self, plan_id: str) -> Plan:
        """Returns the plan with this id, without asking the broker."""
        return Plan(self._connection, plan_id, self.send)

    async def plans(self, *, states: Sequence[v1.PlanState] = ()) -> AsyncGenerator[v1.PlanRun, None]:
        """Yields the plans in one of these states, by default all, the newest first, without their subtasks."""
        request = v1.ListPlansRequest(page_size=_PAGE_SIZE, states=states)
        while True:
            page = await self._connection.call(self._connection.plans.ListPlans, request)
            for plan in page.plans:
                yield plan
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


@dataclass(frozen=True)
class Element:
    """An element of the list that a subtask works on."""

    index: int
    """The place in the list, from 0 on."""
    count: int
    """The number of elements of the list."""
    value: Any
    """The value, as JSON."""


@dataclass(frozen=True)
class SubtaskInputs:
    """What a subtask of a plan gets, from the context of its handoff: see `Takeover.subtask`."""

    plan_id: str
    subtask_id: str
    description: str = ""
    """The work, for the agent to read."""
    role: str = ""
    """The role of the agent, in the words of the plan."""
    attempt: int = 1
    """The attempt, starting at 1."""
    is_compensation: bool = False
    """Whether the work undoes that of the subtask, whose result is in `dependency_results`."""
    element: Element | None = None
    """The element of the list of which this work is a part; None: the work is the whole subtask."""
    input: Any = None
    """What the plan gives to this subtask; None: nothing."""
    plan_input: Any = None
    """What the plan gives to each subtask; None: nothing."""
    previous_results: dict[str, v1.SubtaskResult] = field(default_factory=dict)
    """The results of the earlier subtasks, or of all ancestors, by subtask."""
    dependency_results: dict[str, v1.SubtaskResult] = field(default_factory=dict)
    """The results of the direct dependencies, by subtask."""
    consumed: dict[str, dict[str, v1.SubtaskResult]] = field(default_factory=dict)
    """The results of the producers of the consumed topics, by topic and subtask."""
    omitted: frozenset[str] = frozenset()
    """The subtasks whose results were too large for the context.

    Their results above have `success` and `numeric_value` alone. `Takeover.fetch_subtask` gets the rest.
    """

    def filled(self, whole: Mapping[str, v1.SubtaskResult]) -> "SubtaskInputs":
        """Returns these inputs with whole results in the places of omitted ones."""

        def fill(results: dict[str, v1.SubtaskResult]) -> dict[str, v1.SubtaskResult]:
            return {one: whole.get(one, result) if one in self.omitted else result for one, result in results.items()}

        return replace(
            self,
            previous_results=fill(self.previous_results),
            dependency_results=fill(self.dependency_results),
            consumed={topic: fill(results) for topic, results in self.consumed.items()},
            omitted=self.omitted - whole.keys(),
        )


def subtask_of(sections: Iterable[v1.ContextSection]) -> SubtaskInputs | None:
    """Reads the context of a handoff. None: the handoff carries out no subtask."""
    found = {one.name: json.loads(one.json) for one in sections if one.WhichOneof("content") == "json"}
    told = found.get("task_description")
    if not isinstance(told, dict) or not {"plan_id", "subtask_id"} <= told.keys():
        return None
    previous, direct = found.get("previous_results") or {}, found.get("dependency_results") or {}
    consumed = found.get("consumed") or {}
    all_results = [previous, direct, *consumed.values()]
    return SubtaskInputs(
        plan_id=told["plan_id"],
        subtask_id=told["subtask_id"],
        description=told.get("description", ""),
        role=told.get("role", ""),
        attempt=told.get("attempt", 1),
        is_compensation="compensates" in told,
        element=Element(**found["element"]) if "element" in found else None,
        input=found.get("input"),
        plan_input=found.get("plan_input"),
        previous_results=_results(previous),
        dependency_results=_results(direct),
        consumed={topic: _results(results) for topic, results in consumed.items()},
        omitted=frozenset(one for results in all_results for one, result in results.items() if result.get("omitted")),
    )


def _results(section: Mapping[str, Any]) -> dict[str, v1.SubtaskResult]:
    return {
        subtask_id: v1.SubtaskResult(
            subtask_id=subtask_id,
            response=result.get("response", ""),
            tokens=result.get("tokens", 0),
            success=result.get("success", False),
            tools_used=result.get("tools_used", ()),
            numeric_value=result.get("numeric_value"),
            result_json=json.dumps(result["result"], ensure_ascii=False) if "result" in result else "",
        )
        for subtask_id, result in section.items()
    }
