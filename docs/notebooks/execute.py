"""Run the notebooks of this folder from the start, each in a kernel of its own.

    python docs/notebooks/execute.py [NAME]...            # written back with what they gave
    python docs/notebooks/execute.py --check [NAME]...    # what they print is what they have: exit code 1 if not

Outputs are kept in the files, so that they can be read where nothing is installed. Results do not depend on the
machine; pictures and tables are drawn by libraries whose versions differ, so only printed lines are compared, and not
those of cells with the tag `estimate`: a fit's last digits are those of the linear algebra library.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent
#: The tag of cells whose printed numbers are estimates.
ESTIMATE = "estimate"


def printed(notebook: Any) -> list[str]:
    """What each code cell has printed; nothing for estimates."""
    return [
        "".join(out["text"] for out in cell["outputs"] if out["output_type"] == "stream" and out["name"] == "stdout")
        if ESTIMATE not in cell["metadata"].get("tags", ()) else ""
        for cell in notebook["cells"] if cell["cell_type"] == "code"
    ]  # fmt: skip


def plain(notebook: Any) -> None:
    """Leave out what changes from run to run: when a cell ran, and addresses of objects."""
    for cell in notebook["cells"]:
        cell["metadata"] = {"tags": cell["metadata"]["tags"]} if "tags" in cell["metadata"] else {}
        for out in cell.get("outputs", []):
            if "image/png" in out.get("data", {}):
                out["data"] = {"image/png": out["data"]["image/png"]}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as `grid` (default: all)")
    parser.add_argument("--check", action="store_true", help="compare what is printed, and write nothing")
    options = parser.parse_args(words)
    names = options.names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    different = 0
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        if not path.exists():
            known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.ipynb")))
            parser.error(f"{name}: there is no such notebook here; known: {known}")
        notebook = nbformat.read(path, as_version=4)
        before = printed(notebook)
        try:
            NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        except CellExecutionError as error:
            print(f"{name}: a cell failed\n{error}", file=sys.stderr)
            return 1
        if not options.check:
            plain(notebook)
            nbformat.write(notebook, path)
            print(f"{name}: written")
            continue
        for k, (old, new) in enumerate(zip(before, printed(notebook)), 1):
            if old != new:
                different += 1
                print(f"{name}: code cell {k} prints\n{new}\nand has\n{old}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
