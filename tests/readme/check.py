"""Runs the commands of README.md, the how-to pages, the clients' READMEs and the tutorials, in a fresh copy of the checkout.

    check.py                                   all of them
    check.py go how-to                         README.md, then README and tutorial of Go, then the how-to pages
    BATON_BIN=target/debug/baton check.py go   README and tutorial of Go only, with this binary; for a quick look

With --in FOLDER as its first argument the copy is made in this folder, which is removed before and after; else in a
temporary one.

A block of commands is run if an HTML comment is right above it, which a rendered page does not show:

    <!-- run -->                               in the main terminal; every command must succeed
    <!-- run terminal="bob" -->                in another terminal, which keeps its folder and its variables
    <!-- run terminal="broker" until="ready" -->   the last command does not end; go on once it has printed "ready"
    <!-- run prints="epoch 2" -->              what the block prints must contain this; may be repeated
    <!-- run until="…" within="900" -->        at most this many seconds, instead of 600
    <!-- stop terminal="broker" -->            ctrl-C in that terminal; the command must end
    <!-- file path="tutorial/a.py" -->         the block below, of any language, becomes this file of the copy

Each terminal is one bash in the copy's root; after a `cd` it stays in that folder until the document ends. The broker of
README.md keeps running for the other documents. The copy has the files that git tracks, as they are in the work tree.
`cargo` builds into CARGO_TARGET_DIR, or the checkout's `target`, and installs into a folder of its own.

Needs the ports that the documents name to be free, and the tools that the documents name. Ends with "N passed, 0 failed", or with the
block that failed and its output.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOW_TO = "how-to"
# tests/packages/check.py has the files that the one installs, tests/frameworks/check.py the models of the other; they run them.
RUN_ELSEWHERE = {"install.md", "frameworks-by-mcp.md"}
LAB = "lab"
LANGUAGES = (HOW_TO, LAB, "python", "go", "typescript", "java", "rust")
# Of `baton dev` and its gateway, and of the gateway on the page about A2A.
PORTS = (22866, 22869, 22870)
WITHIN_SECONDS = 600
COMMENT = re.compile(r"^<!-- (run|stop|file)((?: \w+=\"[^\"]*\")*) -->$", re.MULTILINE)
OPTION = re.compile(r" (\w+)=\"([^\"]*)\"")
BLOCK = re.compile(r"\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = {"run": {"terminal", "until", "prints", "within"}, "stop": {"terminal", "within"}, "file": {"path"}}


class BlockFailedError(Exception):
    """A block did not do what its comment says."""


@dataclass
class Block:
    """Commands of a document and the expected result, or a file of it."""

    place: str
    kind: str
    commands: str = ""
    path: str = ""
    terminal: str = "main"
    until: str = ""
    prints: list[str] = field(default_factory=list)
    within: float = WITHIN_SECONDS


def blocks_of(document: Path) -> list[Block]:
    """The blocks that a document wants run. Raises SystemExit for a comment that is wrong."""
    text = document.read_text("utf-8")
    found = []
    for comment in COMMENT.finditer(text):
        line = text.count("\n", 0, comment.start()) + 1
        block = Block(f"{document.relative_to(ROOT)}:{line}", comment.group(1))
        for name, value in OPTION.findall(comment.group(2)):
            if name not in OPTIONS[block.kind]:
                raise SystemExit(f"{block.place}: {name} is no option of {block.kind}")
            match name:
                case "prints":
                    block.prints.append(value)
                case "within":
                    block.within = float(value)
                case _:
                    setattr(block, name, value)
        if block.kind != "stop":
            fenced = BLOCK.match(text, comment.end())
            if fenced is None or (block.kind == "run" and fenced.group(1) != "sh"):
                raise SystemExit(f"{block.place}: no ```sh block follows")
            block.commands = fenced.group(2)
        found.append(block)
    if not found:
        raise SystemExit(f"{document.relative_to(ROOT)} has no block to run")
    return found


class Terminal:
    """One bash, as a person would have it in a window."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self._script = folder.parent / f"{name}.sh"
        self._printed = ""
        self._changed = threading.Condition()
        self._is_over = False
        self._process = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, block: Block) -> None:
        """Runs a block, to its end or until it has printed what it is to print. Raises BlockFailedError."""
        start = len(self._printed)
        end = f"end-{os.urandom(8).hex()}"
        # Sourced, so that a `cd` or a variable stays. From a file, so that no command reads the next one as its input.
        self._script.write_text(block.commands, "utf-8")
        begin = f"trap 'echo \"{end} failed\"' EXIT; set -e"
        done = f"set +e; trap - EXIT; echo \"{end} done\""
        self._write(f"{begin}; . '{self._script}' </dev/null; {done}\n")
        wanted = block.until or f"{end} "
        printed = self._wait(start, lambda text: wanted in text or f"{end} failed" in text, block.within)
        output = printed.split(end)[0]
        if f"{end} failed" in printed:
            raise BlockFailedError(f"a command failed; it printed:\n{output}")
        if wanted not in printed:
            raise BlockFailedError(f"not done within {block.within:.0f} s; it printed:\n{output}")
        for text in block.prints:
            if text not in output:
                raise BlockFailedError(f"it does not print {text!r}, but:\n{output}")

    def interrupt(self, within: float) -> None:
        """Ctrl-C: ends what runs. Raises BlockFailedError if it does not end."""
        # As a terminal does it: a command and all that it has started get the signal.
        for descendant in self._descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGINT)
        self._process.stdin.close()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise BlockFailedError(f"what runs there goes on {within:.0f} s after ctrl-C:\n{self._printed}") from None

    def end(self) -> None:
        """Ends the shell and all that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def _descendants(self) -> list[int]:
        listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        parents = {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def _write(self, text: str) -> None:
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def _read(self) -> None:
        while chunk := os.read(self._process.stdout.fileno(), 65536):
            with self._changed:
                self._printed += chunk.decode("utf-8", "replace")
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _wait(self, start: int, is_done: Callable[[str], bool], within: float) -> str:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or is_done(self._printed[start:]), within)
            return self._printed[start:]


class Terminals:
    """The terminals of a run, each made when a block first names it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._open: dict[str, Terminal] = {}

    def run(self, block: Block) -> None:
        """Runs, writes or stops as a block says. Raises BlockFailedError."""
        if block.kind == "file":
            file = self._folder / block.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.commands, "utf-8")
            return
        if block.kind == "stop":
            terminal = self._open.pop(block.terminal, None)
            if terminal is None:
                raise BlockFailedError(f"there is no terminal {block.terminal}")
            try:
                terminal.interrupt(block.within)
            finally:
                terminal.end()
            return
        if block.terminal not in self._open:
            self._open[block.terminal] = Terminal(block.terminal, self._folder, self._environment)
        self._open[block.terminal].run(block)

    def close(self, keep: str = "") -> None:
        """Ends all terminals but one."""
        for name in [name for name in self._open if name != keep]:
            self._open.pop(name).end()


def copy_of_the_checkout(folder: Path) -> None:
    """The tracked files, as they are now."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().rstrip("\0").split("\0"):
        source = ROOT / name
        if not (source.is_symlink() or source.is_file()):
            continue  # removed in the work tree
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, folder / name, follow_symlinks=False)


@contextlib.contextmanager
def empty_folder(folder: Path | None) -> Iterator[Path]:
    """This folder, or else a temporary one; it is removed at the end."""
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def environment_in(folder: Path) -> dict[str, str]:
    """What a newcomer's shell has, and where cargo builds and installs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    environment["CARGO_TARGET_DIR"] = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    environment["CARGO_INSTALL_ROOT"] = str(folder / "installed")
    environment["TMPDIR"] = str(folder / "tmp")
    environment["PATH"] = f"{folder / 'installed' / 'bin'}:{environment['PATH']}"
    environment["LC_ALL"] = "C.UTF-8"
    return environment


def documents_of(language: str) -> list[Path]:
    """The README and the tutorial of a language; for "how-to" the how-to pages with commands to run; the lab by itself."""
    if language == LAB:
        return [ROOT / "docs" / "tutorials" / "lab.md"]
    if language == HOW_TO:
        pages = [page for page in sorted((ROOT / "docs" / HOW_TO).glob("*.md")) if page.name not in RUN_ELSEWHERE]
        return [page for page in pages if COMMENT.search(page.read_text("utf-8"))]
    return [ROOT / "clients" / language / "README.md", ROOT / "docs" / "tutorials" / f"{language}.md"]


def check_ports() -> None:
    """Raises SystemExit if a port that the documents name is in use."""
    for number in PORTS:
        with socket.socket() as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                port.bind(("127.0.0.1", number))
            except OSError:
                raise SystemExit(f"port {number} is in use; stop the program that listens there") from None


def start_broker(binary: Path, terminals: Terminals, folder: Path) -> None:
    """Starts a broker in the copy, with the binary first on the PATH of all terminals."""
    (folder / "installed" / "bin").mkdir(parents=True)
    (folder / "installed" / "bin" / "baton").symlink_to(binary)
    terminals.run(Block("BATON_BIN", "run", "baton dev\n", terminal="broker", until="baton is ready"))


def main() -> int:
    """Runs the documents. Returns the exit code."""
    arguments = sys.argv[1:]
    own_folder = None
    if arguments[:1] == ["--in"]:
        own_folder, arguments = Path(arguments[1]).resolve(), arguments[2:]
    languages = arguments or list(LANGUAGES)
    if unknown := set(languages) - set(LANGUAGES):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such pages; there are {', '.join(LANGUAGES)}")
    documents = [document for language in languages for document in documents_of(language)]
    binary = os.environ.get("BATON_BIN")
    if binary is None:
        documents.insert(0, ROOT / "README.md")
    check_ports()
    passed = 0
    with empty_folder(own_folder) as folder:
        checkout = folder / "baton"
        copy_of_the_checkout(checkout)
        (folder / "tmp").mkdir()
        terminals = Terminals(checkout, environment_in(folder))
        try:
            if binary is not None:
                start_broker(Path(binary).resolve(), terminals, folder)
            for document in documents:
                for block in blocks_of(document):
                    try:
                        terminals.run(block)
                    except BlockFailedError as error:
                        print(f"{block.place}: FAILED\n{block.commands}{error}\n{passed} passed, 1 failed")
                        return 1
                    passed += 1
                    print(f"{block.place}: ok", flush=True)
                terminals.close(keep="broker")
        finally:
            terminals.close()
    print(f"{passed} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
