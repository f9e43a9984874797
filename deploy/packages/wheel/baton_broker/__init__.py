"""The program of the handoff broker baton. The module says where it is, so that tests can start a broker."""

from importlib.metadata import files
from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """Returns the path of the program `baton`. Raises FileNotFoundError if it was removed."""
    recorded = [Path(str(file.locate())) for file in files("baton-broker") or () if file.name == "baton"]
    # `pip install --target` moves the program after it has recorded its place.
    for candidate in (*recorded, Path(__file__).parent.parent / "bin" / "baton"):
        if candidate.is_file():
            return candidate.resolve()
    raise FileNotFoundError("the wheel baton-broker is installed without its program baton")
