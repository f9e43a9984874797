"""The runner of the great relay: starts a broker and an agent in each language, and checks what each of them says.

Run by run.sh, which builds the agents and says in RELAY_<LANGUAGE> how they are started. The agents are
clients/*/examples/relay.* and examples/relay.rs. Prints hop by hop what happened; ends with exit code 1 at the first
thing that is not as it must be.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

from baton import (
    Agent,
    BatonError,
    Delivery,
    context_digest,
    generate_key,
    handoff_id_of,
    json_section,
    load_key,
    make_envelope,
    sign_envelope,
    v1,
)
from collector import Collector

BATON = os.environ["BATON_BIN"]
TASK = "lap-1"
PATIENCE_SECONDS = 300.0
"""How long anything may take. It only ends a run that hangs."""

LANGUAGES = ["python", "typescript", "go", "java", "rust"]


def fail(text: str) -> NoReturn:
    """Ends the relay."""
    raise SystemExit(f"FAILED: {text}")


def same(what: str, found: Any, expected: Any) -> None:
    """Checks one thing."""
    if found != expected:
        fail(f"{what}: {found!r}, expected {expected!r}")


class Runner:
    """One agent's process, and what it says."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self._log = log

    async def hears(self, event: str) -> dict[str, Any]:
        """Its next line, which must be this event."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_SECONDS)
        except TimeoutError:
            fail(f"{self.name} has not said {event!r} within {PATIENCE_SECONDS:.0f} s\n{self._log.read_text()[-3000:]}")
        if not line:
            fail(f"{self.name} ended before it said {event!r}\n{self._log.read_text()[-3000:]}")
        said = json.loads(line)
        same(f"what {self.name} says ({said})", said["event"], event)
        return said

    async def end(self, number: int) -> int:
        """Ends it by a signal, if it has not ended; its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_SECONDS)


class Relay:
    """The broker and the agents that run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.server = ""
        self._stack = contextlib.AsyncExitStack()

    @property
    def ca(self) -> Path:
        """The broker's CA."""
        return self.data / "tls/ca.pem"

    @contextlib.asynccontextmanager
    async def broker(self, collector: Collector) -> AsyncIterator[None]:
        """A broker whose spans go to this collector, and at the end no process that still runs."""
        async with self._stack:
            with (self.folder / "broker.log").open("wb") as log:
                command = [BATON, "dev", "--data", str(self.data), "--port", "0"]
                traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
                process = await asyncio.create_subprocess_exec(
                    *command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **traces}
                )
            self._stack.push_async_callback(stop, process)
            address = self.data / "address"
            while not address.exists() or not address.read_text():
                if process.returncode is not None:
                    fail(f"the broker ended\n{(self.folder / 'broker.log').read_text()}")
                await asyncio.sleep(0.05)
            self.server = address.read_text().strip()
            print(f"the broker is on {self.server} (TLS)", flush=True)
            yield

    async def start(self, name: str, language: str, *arguments: str) -> Runner:
        """An agent's process."""
        key = self.folder / f"{name}.pem"
        if not key.exists():
            await run(self.folder, BATON, "keygen", "--out", str(key))
        log = self.folder / f"{name}.log"
        program = os.environ[f"RELAY_{language.upper()}"].split()
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *program, self.server, str(self.ca), name, str(key), *arguments,
                stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._stack.push_async_callback(stop, process)
        return Runner(name, process, log)

    async def ready(self, name: str, language: str, *arguments: str) -> Runner:
        """The same, once it has registered and is connected."""
        runner = await self.start(name, language, *arguments)
        await runner.hears("ready")
        print(f"{name}: ready", flush=True)
        return runner

    async def show(self, *arguments: str) -> Any:
        """What `baton` says, as an operator, in JSON."""
        environment = {"BATON_SERVER": self.server, "BATON_CA": str(self.ca)}
        environment["BATON_TOKEN"] = (self.data / "operator.token").read_text().strip()
        return json.loads(await run(self.folder, BATON, *arguments, "-o", "json", environment=environment))


async def run(folder: Path, *command: str, environment: dict[str, str] | None = None) -> bytes:
    """A program's output, in a folder of the relay's own; it must succeed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=pipe, stderr=pipe, env={**os.environ, **(environment or {})}
    )
    out, errors = await process.communicate()
    if process.returncode:
        fail(f"{command}: {errors.decode()}")
    return out


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ends a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 20)
    except TimeoutError:
        process.kill()
        await process.wait()


async def taken(runner: Runner, sender: str, epoch: int, digest: str) -> dict[str, Any]:
    """One hop: it took the task from this agent, at this epoch, with this context."""
    said = await runner.hears("taken")
    same(f"from whom {runner.name} has the task", said["sender"], sender)
    same(f"the epoch at {runner.name}", said["epoch"], epoch)
    same(f"the context at {runner.name}", said["digest"], digest)
    print(f"{sender} → {runner.name}: owner {runner.name}, epoch {epoch}, context {digest[:16]}…", flush=True)
    return said


async def handed(runner: Runner, receiver: str, epoch: int) -> dict[str, Any]:
    """The other side of the same hop."""
    said = await runner.hears("handed")
    same(f"who has it from {runner.name}", (said["receiver"], said["epoch"]), (receiver, epoch))
    return said


async def lap(relay: Relay) -> tuple[list[Runner], str]:
    """The task goes around. Returns the agents, and the digest of the context."""
    typescript = await relay.ready("typescript", "typescript", "pass", "go-busy,go")
    busy = await relay.ready("go-busy", "go", "reject", "too much to do")
    go = await relay.ready("go", "go", "pass", "java")
    java = await relay.ready("java", "java", "hold", "rust")
    rust = await relay.ready("rust", "rust", "pass", "python")
    python = await relay.ready("python", "python", "start", TASK, "typescript")
    digest = (await python.hears("made"))["digest"]
    print(f"python: made {TASK}, epoch 1, context {digest[:16]}…", flush=True)

    await taken(typescript, "python", 2, digest)
    await handed(python, "typescript", 2)
    rejected = await busy.hears("rejected")
    same("what was rejected", (rejected["sender"], rejected["epoch"]), ("typescript", 2))
    print("typescript → go-busy: rejected, epoch 2; the broker asks the next candidate", flush=True)
    await taken(go, "typescript", 3, digest)
    said = await handed(typescript, "go", 3)
    same("the rejections that typescript heard of", said["rejections"], ["go-busy: too much to do"])

    await java.hears("holding")
    task = await relay.show("task", "show", TASK)
    same("the owner while java has the context", (task["ownerId"], task["epoch"]), ("go", "3"))
    same("java's end", await java.end(signal.SIGKILL), -signal.SIGKILL)
    print("go → java: accepted, and killed with the context in hand; owner go, epoch 3", flush=True)
    java = await relay.ready("java", "java", "pass", "rust")
    said = await taken(java, "go", 4, digest)
    same("that its earlier life had accepted", said["acceptedBefore"], True)
    await handed(go, "java", 4)
    await taken(rust, "java", 5, digest)
    await handed(java, "rust", 5)
    await taken(python, "rust", 6, digest)
    await handed(rust, "python", 6)
    finished = await python.hears("finished")
    same("the end", (finished["status"], finished["epoch"]), ("TASK_STATUS_COMPLETED", 6))
    same("python's exit code", await asyncio.wait_for(python.process.wait(), PATIENCE_SECONDS), 0)
    print("python: finished", flush=True)
    return [typescript, busy, go, java, rust], digest


async def shown(relay: Relay, digest: str) -> None:
    """What the broker shows of it: the way, each hop's digest."""
    task = await relay.show("task", "show", TASK)
    way = [task["hops"][0]["senderId"], *(hop["receiverId"] for hop in task["hops"])]
    same("the way", way, ["python", "typescript", "go", "java", "rust", "python"])
    same("the epochs", [hop["epoch"] for hop in task["hops"]], ["2", "3", "4", "5", "6"])
    for hop in task["hops"]:
        handoff = await relay.show("handoff", "show", hop["handoffId"])
        same("a handoff's state", handoff["state"], "HANDOFF_STATE_COMPLETED")
        same("its context", base64.b64decode(handoff["contextDigest"]).hex(), digest)
    print(f"the broker: {' → '.join(way)}", flush=True)


async def one_trace(relay: Relay, collector: Collector) -> None:
    """The lap is one trace: each hop's span is below an earlier hop, whatever language carried the context on."""
    task = await relay.show("task", "show", TASK)
    hops = [hop["handoffId"] for hop in task["hops"]]
    spans = {
        span.attributes["baton.handoff.id"]: span
        for span in await collector.handoffs(TASK, len(hops), PATIENCE_SECONDS)
    }
    same("the handoffs with a span", sorted(spans), sorted(hops))
    same("the traces of the lap", len({span.trace_id for span in spans.values()}), 1)
    same("the parent of the first hop", spans[hops[0]].parent_id, "")
    for place, hop in enumerate(hops[1:], 1):
        # The killed agent goes on from the context transfer, which its sender made in the hop before.
        if spans[hop].parent_id not in {spans[former].span_id for former in hops[:place]}:
            fail(f"hop {place + 1} is not below an earlier one: {spans[hop]}")
    trace = spans[hops[0]].trace_id
    known = {span.span_id for span in collector.spans if span.trace_id == trace}
    orphans = [span for span in collector.spans if span.trace_id == trace and span.parent_id not in {"", *known}]
    same("the spans without their parent", orphans, [])
    print(f"the collector: {len(known)} spans of the lap are one trace with one root", flush=True)


async def audits(relay: Relay, entries: int) -> None:
    """Each language checks the custody log by itself."""
    for language in LANGUAGES:
        auditor = await relay.start(language, language, "audit", TASK)
        said = await auditor.hears("audited")
        same(f"the log by {language}", (said["entries"], said["owner"], said["epoch"]), (entries, "python", 6))
        same(f"{language}'s exit code", await asyncio.wait_for(auditor.process.wait(), PATIENCE_SECONDS), 0)
        print(f"{language}: the custody log holds, {entries} entries, owner python at epoch 6", flush=True)


async def routed(relay: Relay) -> None:
    """A run over a task: the model of a Python agent chooses a Go agent, which rejects, and then a TypeScript agent.

    The model of the latter chooses the Go agent, which now takes the task and ends the run.
    """
    biller = await relay.ready("biller", "go", "node", "1")
    helper = await relay.ready("helper", "typescript", "node", "biller")
    planner = await relay.ready("planner", "python", "route", "biller,helper")
    async with Agent(relay.server, "desk", generate_key(), ca_file=relay.ca) as desk:
        await desk.register()
        await desk.connect()
        request = v1.HandoffRequest(task_type="relay", initial_context_summary="an invoice was paid twice")
        await desk.hand_over("planner", "ticket-1", request, [json_section("goals", ["one payment back"])])
    run_id = (await planner.hears("started"))["run"]
    rejected = await biller.hears("rejected")
    same("what biller rejected", (rejected["sender"], rejected["epoch"]), ("planner", 2))
    failed = await planner.hears("failed")
    same("the failed choice", (failed["target"], failed["remaining"]), ("biller", 3))
    same("the rejection that planner heard of", failed["rejections"], ["biller: too much to do"])
    same("what helper took", (await helper.hears("taken"))["sender"], "planner")
    await handed(planner, "helper", 3)
    same("what biller took", (await biller.hears("taken"))["sender"], "helper")
    await handed(helper, "biller", 4)
    same("the run", (await biller.hears("finished"))["run"], "RUN_STATE_COMPLETED")
    same("planner's exit code", await asyncio.wait_for(planner.process.wait(), PATIENCE_SECONDS), 0)

    # A failed choice stays counted.
    run = await relay.show("run", "show", run_id)
    same("the state of the run", (run["state"], run["turns"]), ("RUN_STATE_COMPLETED", 4))
    counts = {node["nodeId"]: (node.get("choices", 0), node.get("remaining", 0)) for node in run["nodes"]}
    same("the choices", counts, {"biller": (0, 0), "helper": (1, 0), "planner": (2, 1)})
    task = await relay.show("task", "show", "ticket-1")
    same("the way", [hop["receiverId"] for hop in task["hops"]], ["planner", "helper", "biller"])
    same("the owner", (task["ownerId"], task["epoch"]), ("biller", "4"))
    print("a run over a task: planner → biller, rejected; planner → helper → biller, which ended it", flush=True)
    for runner in (biller, helper):
        print(f"{runner.name}: ended with {await runner.end(signal.SIGTERM)}", flush=True)


async def refused(what: str, sending: Any, reason: str) -> None:
    """The broker must refuse this."""
    try:
        await sending
    except BatonError as error:
        same(what, error.reason, reason)
        print(f"refused with {reason}: {what}", flush=True)
        return
    fail(f"{what}: not refused")


async def tampering(relay: Relay) -> None:
    """A context that is not what its sender says, or not what its sender signed, goes nowhere."""
    name, key = "tamperer", generate_key()
    async with Agent(relay.server, name, key, ca_file=relay.ca) as tamperer:
        await tamperer.register()
        accepted: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        @tamperer.on(v1.HandoffAccept)
        async def remember(delivery: Delivery) -> None:
            accepted.set_result(delivery)

        await tamperer.connect()
        await tamperer.request_handoff("go", "lap-2", v1.HandoffRequest(task_type="relay"))
        accept = (await asyncio.wait_for(accepted, PATIENCE_SECONDS)).envelope

        def signed(goal: str, digest: bytes = b"") -> v1.Envelope:
            sections = [json_section("goals", [goal])]
            context = v1.TaskContextTransfer(sections=sections, context_digest=digest or context_digest(sections))
            about = {"task_id": "lap-2", "epoch": 1, "correlation_id": handoff_id_of(accept)}
            envelope = make_envelope(context, sender_id=name, receiver_id="go", **about)
            sign_envelope(envelope, "k1", key)
            return envelope

        envelope = signed("win", bytes(32))
        await refused("a context with another digest", tamperer.send_envelope(envelope), "CONTEXT_DIGEST_MISMATCH")
        envelope = signed("win")
        envelope.payload.CopyFrom(signed("lose").payload)
        await refused("a context that was swapped", tamperer.send_envelope(envelope), "SIGNATURE_INVALID")


async def fenced(relay: Relay) -> None:
    """A former owner has no say; that it tried is on record."""
    async with Agent(relay.server, "go", load_key(relay.folder / "go.pem"), ca_file=relay.ca) as old:
        await old.connect()
        late = old.update_status(TASK, 3, v1.TASK_STATUS_IN_PROGRESS, "still mine")
        await refused("a former owner at its old epoch", late, "STALE_EPOCH")


async def main(folder: Path) -> None:
    """All of it."""
    relay = Relay(folder)
    async with Collector() as collector, relay.broker(collector):
        runners, digest = await lap(relay)
        await shown(relay, digest)
        await one_trace(relay, collector)
        await tampering(relay)
        for runner in runners:
            print(f"{runner.name}: ended with {await runner.end(signal.SIGTERM)}", flush=True)
        await routed(relay)
        await fenced(relay)
        audit = await relay.show("task", "audit", TASK)
        same("refusals on record", audit["refusals"], 1)
        await audits(relay, audit["entries"])
    print("the relay is through", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
