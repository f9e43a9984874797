"""Runs the programs of docs/how-to/frameworks-by-mcp.md, each framework with a broker of its own and scripted models.

check.py BATON PYTHON CREW MODULES [NAME...]: the program, the environment of the frameworks in Python, that of CrewAI, the
folder of those of npm; then the headings of the page to run, all by default.

For each framework the page's commands run as they stand: billing looks into its inbox; desk asks an agent that does not exist
and is refused, asks billing for what billing declines, then lends a task to billing, and says the result. The models of
models.py stand in for those of the providers. Ends with a line a framework, or with what failed.
"""

import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import models

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "frameworks-by-mcp.md"
WITHIN_SECONDS = 240
BROKER_WITHIN_SECONDS = 60


def blocks_of(page: Path) -> list:
    """The marked blocks of a page, as tests/readme/check.py reads them."""
    spec = importlib.util.spec_from_file_location("readme_check", ROOT / "tests" / "readme" / "check.py")
    readme = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = readme
    spec.loader.exec_module(readme)
    return readme.blocks_of(page)


def sections(page: Path) -> dict[str, list]:
    """The blocks below each heading; "" has those before the first."""
    headings = [(page.read_text().count("\n", 0, found.start()) + 1, found.group(1))
                for found in re.finditer(r"^## (.*)$", page.read_text(), re.MULTILINE)]  # fmt: skip
    parts: dict[str, list] = {}
    for block in blocks_of(page):
        line = int(block.place.rsplit(":", 1)[1])
        parts.setdefault(next((name for at, name in reversed(headings) if at < line), ""), []).append(block)
    return parts


def check_versions(page: Path) -> None:
    """The versions that the page installs are those that are tested."""
    folder = Path(__file__).parent
    tested = {line for file in folder.glob("requirements*.txt") for line in file.read_text().split()}
    packages = json.loads((folder / "package.json").read_text())["dependencies"]
    tested |= {f"{name}@{version}" for name, version in packages.items()}
    named = re.findall(r"[\w@/-]+(?:==|@)\d[\w.]*", page.read_text())
    unknown = set(named) - tested
    assert named and not unknown, f"{page.name} names {unknown}, which the tests do not install"


def end_group(process: subprocess.Popen) -> None:
    """Ends a command and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Framework:
    """A folder with a broker, where the commands of a section run."""

    def __init__(self, folder: Path, program: Path, environments: dict[str, Path], files: list) -> None:
        self._folder = folder
        for name in ("home", "tmp", "bin"):
            (folder / name).mkdir()
        (folder / "bin" / "baton").symlink_to(program)
        for name, environment in environments.items():
            (folder / name).symlink_to(environment)
        for block in files:
            (folder / block.path).write_text(block.commands)
        foreign = ("BATON_", "XDG_", "OTEL_", "OPENAI_", "ANTHROPIC_", "GOOGLE_", "CLAUDE", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._environment = kept | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            # None of these speaks to another server than the model's.
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "OTEL_SDK_DISABLED": "true",
            "MASTRA_TELEMETRY_DISABLED": "true",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "GOOGLE_API_KEY": "none",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_API_KEY": "none",
        }

    def _run(self, *command: str) -> str:
        return subprocess.run(
            command, cwd=self._folder, env=self._environment, check=True, capture_output=True, text=True,
            timeout=WITHIN_SECONDS,
        ).stdout  # fmt: skip

    def _start(self, block, address: str) -> subprocess.Popen:
        of_models = {
            "GOOGLE_GEMINI_BASE_URL": address,
            "OPENAI_BASE_URL": f"{address}/v1",
            "ANTHROPIC_BASE_URL": address,
        }
        # An exec, so that a signal reaches the program.
        command = ["bash", "-c", f"exec {block.commands}"]
        with (self._folder / f"{block.terminal}.log").open("w") as log:
            return subprocess.Popen(
                command, cwd=self._folder, env=self._environment | of_models, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def run(self, before: list, blocks: list) -> None:
        """Runs a section. Raises AssertionError."""
        broker_log = self._folder / "broker.log"
        with broker_log.open("w") as log:
            broker = subprocess.Popen(
                ["baton", "dev", "--port", "0"], cwd=self._folder, env=self._environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            address = self._folder / "baton-data" / "address"
            end = time.monotonic() + BROKER_WITHIN_SECONDS
            while not (address.exists() and address.read_text()):
                assert broker.poll() is None and time.monotonic() < end, broker_log.read_text()
                time.sleep(0.05)
            server = ["--server", address.read_text().strip(), "--ca", "baton-data/tls/ca.pem"]
            # A host gives `baton mcp` HOME and few other variables: so the broker is in a profile.
            self._run("baton", "profile", "add", "test", "--use", *server)
            for block in before:
                self._run("bash", "-c", block.commands)
            self._play([block for block in blocks if block.kind == "run"])
            token = (self._folder / "baton-data" / "operator.token").read_text().strip()
            tasks = json.loads(self._run("baton", "--token", token, "-o", "json", "task", "list"))
            tasks = tasks["tasks"] if isinstance(tasks, dict) else tasks
            # What billing has declined is closed, too, when its end has been read.
            declined = [] if any(block.until for block in blocks) else ["TASK_STATUS_CANCELED"]
            assert sorted(task["status"] for task in tasks) == [*declined, "TASK_STATUS_COMPLETED"], tasks
            assert {task["ownerId"] for task in tasks} == {"desk"}, tasks
        finally:
            broker.terminate()
            try:
                broker.wait(30)
            finally:
                end_group(broker)

    def _play(self, runs: list) -> None:
        with models.Models() as server:
            processes: list[subprocess.Popen] = []
            try:
                end = time.monotonic() + WITHIN_SECONDS
                for block in runs:
                    processes.append(self._start(block, f"{server.address}/{block.terminal}"))
                    if block.until:
                        while block.until not in self._printed(block):
                            assert processes[-1].poll() is None and time.monotonic() < end, self._printed(block)
                            time.sleep(0.05)
                        server.begin()
                # Desk ends first.
                for block, process in reversed(list(zip(runs, processes, strict=True))):
                    if block.until:
                        process.terminate()
                    while process.poll() is None and time.monotonic() < end and not server.failures:
                        time.sleep(0.05)
                    self._check_end(block, process.poll(), server.failures)
            finally:
                for process in processes:
                    end_group(process)
        self._check_secrets(server.transcript)

    def _check_end(self, block, code: int | None, failures: list[str]) -> None:
        printed = self._printed(block)
        about = "\n".join([f"{block.place} ended with {code}:", printed[-6000:], *failures])
        assert code == 0 and not failures, about
        for text in block.prints:
            assert text in printed, f"{block.place} does not print {text!r}, but:\n{printed[-6000:]}"

    def _printed(self, block) -> str:
        return (self._folder / f"{block.terminal}.log").read_text()

    def _check_secrets(self, transcript: list[str]) -> None:
        texts = [(self._folder / f"{name}.pem").read_text() for name in ("desk", "billing")]
        texts.append((self._folder / "baton-data" / "operator.token").read_text())
        secrets = [line for text in texts for line in text.split() if len(line) > 20]
        assert len(secrets) >= 3, "no secret to look for"
        for secret in secrets:
            assert not any(secret in text for text in transcript), "a key or a token stands in the transcript"


def main() -> None:
    program, python, crew, modules = (Path(argument).resolve() for argument in sys.argv[1:5])
    check_versions(PAGE)
    parts = sections(PAGE)
    before = parts.pop("")
    files = [block for blocks in parts.values() for block in blocks if block.kind == "file"]
    names = sys.argv[5:] or list(parts)
    environments = {"frameworks": python, "crew": crew, "node_modules": modules}
    for name in names:
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            Framework(Path(folder), program, environments, files).run(before, parts[name])
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        print(f"{name}: as the page says; {time.monotonic() - began:.1f} s, {cpu:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
