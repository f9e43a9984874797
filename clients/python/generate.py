"""Makes the gRPC stubs in src/baton/_gen from the schema; run it after a checkout and after each change of the schema.

    python generate.py [FOLDER OF THE SCHEMA]      the default is proto/ of this repository

The stubs are not committed. google.rpc comes from googleapis-common-protos and not from our copy of the schema: two
registrations of the same file would not go together with other libraries in the same program.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "src" / "baton" / "_gen"


def main() -> None:
    """Generates anew, from nothing."""
    schema = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "proto"
    files = sorted(schema.glob("baton/v1/*.proto"))
    if not files:
        sys.exit(f"no schema in {schema}")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{schema}"]
    subprocess.run([*protoc, f"--python_out={OUTPUT}", f"--pyi_out={OUTPUT}", *files], check=True)
    services = [file for file in files if file.stem.endswith("_service")]
    subprocess.run([*protoc, f"--grpc_python_out={OUTPUT}", *services], check=True)
    for file in OUTPUT.rglob("*.py*"):
        # The stubs expect to be a top-level package baton.v1; they live inside of ours.
        text = re.sub(
            r"^from baton\.v1 import", "from baton._gen.baton.v1 import", file.read_text("utf-8"), flags=re.MULTILINE
        )
        file.write_text(text, "utf-8")
    for folder in [OUTPUT, OUTPUT / "baton", OUTPUT / "baton" / "v1"]:
        (folder / "__init__.py").write_text("", "utf-8")
    print(f"stubs of {len(files)} schema files in {OUTPUT.relative_to(HERE)}")


if __name__ == "__main__":
    main()
