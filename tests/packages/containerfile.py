"""deploy/Containerfile copies every file that the build of the program reads, and both images run it in the same way.

    containerfile.py target/debug/baton.d

The argument is what Cargo has written beside a program of this checkout: the files of the checkout that it was built from, with
templates, the schema and configuration files. Besides them Cargo reads the manifest of each member, and wants the main file of each
test, bench and example to be there: so a build begins in a folder with only the copied files, and ends at the first call of the
compiler.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "deploy" / "Containerfile"
READY = ROOT / "deploy" / "Containerfile.ready"
# Answers Cargo's questions, and compiles nothing.
COMPILER = """#!/bin/sh
for argument; do
    case "$argument" in -vV|--print*) exec "$@" ;; esac
done
echo "Cargo calls the compiler" >&2
exit 1
"""
# What Cargo reads before it knows any source.
ALWAYS = ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "deploy/build")


def stages(path: Path) -> list[list[str]]:
    """The instructions of each stage, without comments; those over several lines are joined."""
    text = re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    begins = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    return [lines[begin:end] for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True)]


def copied(instructions: list[str]) -> set[str]:
    """The tracked files that a stage copies, each to the same place. Raises SystemExit for an instruction that does not."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    found = set()
    for instruction in instructions:
        if not instruction.startswith("COPY "):
            continue
        *sources, target = instruction.split()[1:]
        for source in sources:
            if target not in ("./", source):
                raise SystemExit(f"{instruction}: {source} has another place in the image")
            files = {name for name in tracked.split("\0") if name == source or name.startswith(f"{source}/")}
            if not files:
                raise SystemExit(f"{instruction}: git has no {source}")
            found |= files
    return found


def read_by_the_build(dependencies: Path) -> set[str]:
    """The files of the checkout that the program was built from; a link counts as what it leads to."""
    names = dependencies.read_text("utf-8").replace("\\ ", "\0").split()[1:]
    found = set(ALWAYS)
    for name in names:
        path = Path(name.replace("\0", " ")).resolve()
        if path.is_relative_to(ROOT) and not path.is_relative_to(dependencies.resolve().parents[1]):
            files = path.rglob("*") if path.is_dir() else [path]
            found |= {str(file.relative_to(ROOT)) for file in files if file.is_file()}
    if len(found) < 100:  # noqa: PLR2004
        raise SystemExit(f"{dependencies} names {len(found)} files of this checkout: it is of another one")
    return found


def main() -> int:
    """Compares. Returns the exit code."""
    build, image = stages(IMAGE)
    (ready,) = stages(READY)
    files = copied(build)
    if missing := sorted(read_by_the_build(Path(sys.argv[1])) - files):
        print("the build reads files that deploy/Containerfile does not copy:", *missing, sep="\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, Path(folder) / name, follow_symlinks=False)
        wrapper = Path(folder) / "compiler"
        wrapper.write_text(COMPILER, "utf-8")
        wrapper.chmod(0o755)
        begun = subprocess.run(
            ["cargo", "build", "--offline", "--locked", "--bin", "baton"], cwd=folder, capture_output=True, check=False, text=True,
            env={**os.environ, "RUSTC_WRAPPER": str(wrapper), "CARGO_TARGET_DIR": str(Path(folder) / "target")},
        )  # fmt: skip
    if "Cargo calls the compiler" not in begun.stderr:
        print("Cargo cannot build the files that deploy/Containerfile copies:", begun.stderr, sep="\n")
        return 1
    program = "COPY --from=build /build/target/dist/baton /usr/local/bin/baton"
    if [line.replace(program, "COPY baton /usr/local/bin/baton") for line in image] != ready:
        print("deploy/Containerfile.ready is another image than that of deploy/Containerfile")
        return 1
    print(f"deploy/Containerfile copies all that the build reads: {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
