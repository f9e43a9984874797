"""A real broker as a process for tests. BATON_BIN names the program."""

import asyncio
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

import pytest

from baton import Agent, generate_key

BATON = os.environ.get("BATON_BIN")
# The time limit of a wait for something that must happen. It only ends a test that hangs.
PATIENCE_SECONDS = 300.0
needs_broker = pytest.mark.skipif(not BATON, reason="BATON_BIN names no broker")


async def within(awaitable, seconds=PATIENCE_SECONDS):
    """Waits for something that must happen."""
    return await asyncio.wait_for(awaitable, seconds)


async def begin(*agents):
    """Registers the agents as support agents, and connects them."""
    for agent in agents:
        await agent.register(agent_types=["support"])
        await agent.connect()


class HeldPort:
    """A port that stays this test's own while no broker listens on it.

    The system gives a port in use to nobody who asks for any port, neither to a listener nor to a connection. A
    connection from the port keeps it in use, and a broker that names it can listen there (both with SO_REUSEADDR).
    """

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.socket()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            near.bind(("127.0.0.1", 0))
            near.connect(listener.getsockname())
            far, _ = listener.accept()
        self._ends = (near, far)
        self.address = f"127.0.0.1:{near.getsockname()[1]}"

    def release(self) -> None:
        for end in self._ends:
            end.close()


class RealBroker:
    """A broker with its data folder; it can be killed and restarted on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.ca = self.data / "tls" / "ca.pem"
        self._port = HeldPort()
        self.server = self._port.address
        self._config: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        address = self.data / "address"
        address.unlink(missing_ok=True)
        command = [str(BATON), "dev", "--data", str(self.data), "--listen", self.server]
        if self._config is not None:
            command = [str(BATON), "serve", "--config", str(self._config)]
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (address.exists() and address.read_text().strip()):
                assert self._process.poll() is None, (self.folder / "broker.log").read_text()[-2000:]
                await asyncio.sleep(0.02)

    async def serve(self, more: str = "") -> None:
        """Restarts the same broker as `baton serve`: only operators register agents."""
        self.stop()
        tls = self.data / "tls"
        lines = [f'listen = "{self.server}"', f'data = "{self.data}"', "[tls]"]
        lines += [f'certificate = "{tls / "server.pem"}"', f'key = "{tls / "server.key"}"', more]
        self._config = self.folder / "broker.toml"
        self._config.write_text("\n".join(lines))
        await self.start()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def end(self) -> None:
        """Stops it for good."""
        self.stop()
        self._port.release()

    def agent(self, agent_id: str, **options) -> Agent:
        options = {"ca_file": self.ca} | options
        return Agent(self.server, agent_id, options.pop("key", None) or generate_key(), **options)

    def operator_token(self) -> str:
        return (self.data / "operator.token").read_text().strip()

    def cli(self, *arguments: str, stdin: str = "") -> str:
        options = ["--server", self.server, "--ca", str(self.ca)]
        command = [str(BATON), *arguments, *options]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        )
        return done.stdout

    def agent_through(self, relay: "Relay", agent_id: str) -> Agent:
        return Agent(relay.server, agent_id, generate_key(), ca_file=self.ca)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None


class Relay:
    """A TCP relay before a broker that can fall silent: its connections stay open and carry no more bytes."""

    def __init__(self, broker: str) -> None:
        self.server = ""
        self._broker = broker.split(":")
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.server = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self) -> None:
        """Silences the connections that are open; later connections work."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(*self._broker)
        flows = self._flows
        for one, other in ((reader, onward_writer), (onward_reader, writer)):
            task = asyncio.create_task(self._pump(one, other, flows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        while data := await reader.read(65536):
            await flows.wait()
            writer.write(data)
        writer.close()
