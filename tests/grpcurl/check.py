"""Runs the commands of docs/grpcurl.md as they stand there, and compares what they print with what stands there.

    check.py            runs and compares; exit code 1 and a diff at the first difference
    check.py --write    writes what the commands print into the document

Needs `baton`, `grpcurl`, `openssl` and bash on the PATH, and nothing of Python beyond its library.

Every block ```sh is given to one bash in an empty folder, in order; the block ```text or ```json after it is what it
must print, stdout and stderr. The broker that the document starts listens on a free port (BATON_LISTEN, BATON_SERVER).
What is another in each run is compared by these rules:

- a UUID, the name of the broker's key, or a value of 40 and more base64, base64url or hex characters (a key, a hash, a
  signature, a token) stands for another one, and always for the same other one: where the document repeats a value, the
  run must repeat it;
- a time, like 2026-11-21T13:37:00.123Z, stands for any other;
- a line with … alone stands for any number of lines.
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import held_port  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "grpcurl.md"
PATIENCE_SECONDS = 300
FENCED = re.compile(r"^```(sh|text|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGING = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)"
    r"|(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<key>broker-[0-9a-f]{16})"
    r"|(?P<bytes>[A-Za-z0-9+/_-]{40,}={0,2})"
)


class Shell:
    """One bash for all blocks."""

    def __init__(self, folder: Path) -> None:
        address = f"127.0.0.1:{held_port()}"
        environment = {**os.environ, "BATON_LISTEN": address, "BATON_SERVER": address, "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, text=True, bufsize=1, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, commands: str) -> str:
        """What a block prints."""
        end = f"--- end {os.urandom(8).hex()}"
        self._process.stdin.write(f"{commands}\necho '{end}'\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.rstrip("\n").endswith(end):
                printed.append(line.rstrip("\n").removesuffix(end))
                return "".join(printed)
            printed.append(line)
        raise SystemExit(f"the shell ended:\n{''.join(printed)}")

    def end(self) -> None:
        """Ends it, and with it what it started."""
        os.killpg(self._process.pid, 15)
        self._process.wait(PATIENCE_SECONDS)


class Comparison:
    """Which values of the document stand for which of the run."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def differs(self, expected: str, found: str) -> str:
        """A diff; empty where the two agree."""
        lines, seen = expected.splitlines(), found.splitlines()
        if self._agree(lines, seen):
            return ""
        return "\n".join(difflib.unified_diff(lines, seen, "docs/grpcurl.md", "the run", lineterm=""))

    def _agree(self, lines: list[str], seen: list[str]) -> bool:
        if not lines:
            return not seen
        if lines[0].strip() == "…":
            # The shortest way on; the known values are taken back where it leads nowhere.
            for skipped in range(len(seen) + 1):
                known = dict(self._known)
                if self._agree(lines[1:], seen[skipped:]):
                    return True
                self._known = known
            return False
        return bool(seen) and self._same(lines[0], seen[0]) and self._agree(lines[1:], seen[1:])

    def _same(self, line: str, seen: str) -> bool:
        if CHANGING.sub("\0", line) != CHANGING.sub("\0", seen):
            return False
        for ours, theirs in zip(CHANGING.finditer(line), CHANGING.finditer(seen), strict=True):
            if ours.lastgroup != theirs.lastgroup:
                return False
            if ours.lastgroup == "time":
                continue
            if self._known.setdefault(ours.group(), theirs.group()) != theirs.group():
                return False
        return len(set(self._known.values())) == len(self._known)


def main() -> int:
    """Runs the document. Returns the exit code."""
    is_written = sys.argv[1:] == ["--write"]
    text = DOCUMENT.read_text("utf-8")
    blocks = list(FENCED.finditer(text))
    comparison, pieces, position, commands = Comparison(), [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        try:
            for number, block in enumerate(blocks):
                if block.group(1) != "sh":
                    continue
                found = shell.run(block.group(2))
                commands += 1
                after = blocks[number + 1] if number + 1 < len(blocks) else None
                if after is None or after.group(1) == "sh":
                    if found.strip():
                        print(f"{block.group(2)}prints, and the document does not say so:\n{found}")
                        return 1
                    continue
                if is_written and "…" not in after.group(2):
                    pieces += [text[position : after.start(2)], found]
                    position = after.end(2)
                elif difference := comparison.differs(after.group(2), found):
                    print(f"{block.group(2)}\n{difference}")
                    if not is_written:
                        return 1
        finally:
            shell.end()
    if is_written:
        DOCUMENT.write_text("".join(pieces) + text[position:], "utf-8")
    if not commands:
        print("the document has no commands")
        return 1
    print(f"docs/grpcurl.md: {commands} blocks of commands, each prints what stands there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
