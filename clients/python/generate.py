"""Makes the gRPC stubs in src/baton/_gen from the schema; run it after each change of the schema.

    python generate.py             makes them anew
    python generate.py --check     fails if the ones that are checked in are not those of the schema

Stubs demand at least the protobuf and grpcio of the grpcio-tools that made them. The tools are old, so that this client
fits beside frameworks that pin old versions: `requirements-stubs.txt`, in an environment of its own with Python 3.11 or
3.12.

google.rpc comes from googleapis-common-protos and not from our copy of the schema: two registrations of the same file
would not go together with other libraries in the same program.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "src" / "baton" / "_gen"
SCHEMA = HERE.parents[1] / "proto"
TOOLS_VERSION = "1.62.3"


def main() -> None:
    """Generates the stubs, or compares them with the ones checked in."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    found = importlib.metadata.version("grpcio-tools")
    if found != TOOLS_VERSION:
        sys.exit(f"grpcio-tools is {found} here, not {TOOLS_VERSION}: install requirements-stubs.txt")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_gen"
        count = generate(made)
        if sys.argv[1:] == ["--check"]:
            if contents(made) != contents(OUTPUT):
                sys.exit(f"{OUTPUT.relative_to(HERE)} has not the stubs of the schema: run generate.py")
        else:
            shutil.rmtree(OUTPUT, ignore_errors=True)
            shutil.copytree(made, OUTPUT)
    print(f"stubs of {count} schema files in {OUTPUT.relative_to(HERE)}")


def generate(output: Path) -> int:
    """Generates the stubs in a new folder. Returns the number of schema files."""
    files = sorted(SCHEMA.glob("baton/v1/*.proto"))
    if not files:
        sys.exit(f"no schema in {SCHEMA}")
    output.mkdir(parents=True)
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA}"]
    subprocess.run([*protoc, f"--python_out={output}", f"--pyi_out={output}", *files], check=True)
    services = [file for file in files if file.stem.endswith("_service")]
    subprocess.run([*protoc, f"--grpc_python_out={output}", *services], check=True)
    for file in output.rglob("*.py*"):
        # The stubs import a top-level package baton.v1; here they are inside the client's package.
        text = re.sub(
            r"^from baton\.v1 import", "from baton._gen.baton.v1 import", file.read_text("utf-8"), flags=re.MULTILINE
        )
        file.write_text(text, "utf-8")
    for folder in [output, output / "baton", output / "baton" / "v1"]:
        (folder / "__init__.py").write_text("", "utf-8")
    return len(files)


def contents(folder: Path) -> dict[Path, str]:
    """Returns the text of each stub by its path in the folder."""
    return {
        file.relative_to(folder): file.read_text("utf-8") for file in folder.rglob("*.py*") if file.suffix != ".pyc"
    }


if __name__ == "__main__":
    main()
