"""Counting checks, running programs, and reading an agent's mail in order."""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from baton import Agent, BatonError, Delivery, handoff_id_of

PATIENCE_SECONDS = 300.0
"""How long anything may take before it counts as failed."""


class CheckFailed(Exception):
    """A check failed; the scenario ends, and the next one begins."""


class Checks:
    """Prints and counts."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def same(self, what: str, found: Any, expected: Any) -> None:
        """Checks that something is as expected."""
        if found != expected:
            raise CheckFailed(f"{what}: {found!r}, expected {expected!r}")
        self.passed += 1
        print(f"  ok  {what}: {found!r}" if len(repr(found)) < 80 else f"  ok  {what}", flush=True)

    def true(self, what: str, found: bool) -> None:
        """Checks that something holds."""
        self.same(what, found, True)

    async def refused(self, what: str, sending: Awaitable[Any], code: str, reason: str) -> BatonError:
        """Checks that something is refused with exactly this gRPC code and reason."""
        try:
            answer = await sending
        except BatonError as error:
            self.same(what, (error.code.name, error.reason), (code, reason))
            return error
        raise CheckFailed(f"{what}: was not refused: {answer}")

    async def scenario(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs one scenario; whatever goes wrong in it counts as one failure."""
        print(f"\n{name}", flush=True)
        try:
            await run()
        except Exception as error:
            self.failed += 1
            print(f"  FAILED  {type(error).__name__}: {error}", flush=True)


def shown(command: list[str]) -> str:
    """A command line for the log, without the token in it and not too long."""
    words = ["authorization: Bearer …" if word.startswith("authorization:") else word for word in command]
    return " ".join(shlex.join(words).split())[:160]


async def run(command: list[str], stdin: str = "", *, fails: bool = False) -> str:
    """Runs a program to its end. Returns its stdout; if it is to fail, its stderr."""
    print(f"  $   {shown(command)}", flush=True)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(stdin.encode()), PATIENCE_SECONDS)
    except TimeoutError:
        process.kill()
        raise CheckFailed(f"{command[:3]} did not end") from None
    if (process.returncode != 0) != fails:
        raise CheckFailed(f"{command[:3]} ended with {process.returncode}: {stderr.decode() or stdout.decode()}")
    return (stderr if fails else stdout).decode()


@contextlib.asynccontextmanager
async def running(command: list[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program in the background, ended at the end; its output goes to a file."""
    print(f"  $   {shown(command)} &", flush=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield process
    except Exception:
        print(f"      --- the end of {log.name}:\n{log.read_text('utf-8', 'replace')[-2000:]}", flush=True)
        raise
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def until(what: str, holds: Callable[[], Awaitable[bool]], process: asyncio.subprocess.Process) -> None:
    """Waits for something that a program in the background is to bring about."""
    for _ in range(int(PATIENCE_SECONDS / 0.1)):
        if await holds():
            return
        if process.returncode is not None:
            raise CheckFailed(f"the program ended with {process.returncode}, waiting for: {what}")
        await asyncio.sleep(0.1)
    raise CheckFailed(f"not within {PATIENCE_SECONDS} s: {what}")


class Mail:
    """An agent's mail. Mail that no caller waits for is acked and kept."""

    def __init__(self, agent: Agent) -> None:
        self._deliveries = agent.deliveries()
        self.others: list[Delivery] = []

    async def next(self, payload_class: type, *, handoff_id: str = "", task_id: str = "") -> Delivery:
        """The next message of this kind (of this handoff, about this task), not yet acked."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for delivery in self._deliveries:
                if (
                    isinstance(delivery.payload, payload_class)
                    and handoff_id in ("", handoff_id_of(delivery.envelope))
                    and task_id in ("", delivery.envelope.task_id)
                ):
                    return delivery
                self.others.append(delivery)
                await delivery.ack()
        raise CheckFailed("the session has ended")
