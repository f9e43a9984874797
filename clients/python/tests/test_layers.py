"""The modules of the client import each other in one direction."""

import ast
import gc
from graphlib import TopologicalSorter
from pathlib import Path

import baton

SOURCE = Path(baton.__file__).parent


def modules():
    """The file of each module, by the module's full name."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(file, names):
    """The modules that a file imports anywhere: also inside a function, or only for types."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in names else node.module)
    return found & names


def test_no_modules_import_each_other_in_a_circle():
    files = modules()
    # In Python 3.11, ast.parse raises SystemError if a collection in it runs a finalizer that prints a traceback.
    gc.collect()
    gc.disable()
    try:
        graph = {name: imports_of(file, files.keys()) for name, file in files.items()}
    finally:
        gc.enable()
    assert {"baton.dispatch", "baton.blobs"} <= graph["baton.agent"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of a circle
