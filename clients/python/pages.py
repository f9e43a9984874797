"""Writes the Python programs of pages as files, for the checks of their types.

pages.py FOLDER PAGE...
"""

import re
import sys
from pathlib import Path

_PROGRAM = re.compile(r'^<!-- file path="[^"]*?([^"/]+\.py)" -->\n```python\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def main(folder: str, *pages: str) -> None:
    """Writes the programs. Fails for a page without one: its marks have another form."""
    into = Path(folder)
    into.mkdir()
    for page in pages:
        programs = _PROGRAM.findall(Path(page).read_text())
        if not programs:
            raise SystemExit(f"{page} has no program")
        for name, text in programs:
            with (into / name).open("x") as file:
                file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
