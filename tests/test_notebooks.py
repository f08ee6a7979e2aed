"""The notebooks of the documentation run from the start and print what they have.

Each runs in a process of its own: the libraries of notebooks give warnings that have nothing to do with this project.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NAMES = ("capacity", "comparison", "fit", "grid", "replay")


def execute(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    command = [sys.executable, folder / "execute.py", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_there_is_one_for_every_kind_of_study() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)["cells"]
        assert all(cell["outputs"] for cell in cells[1:2] + cells[-1:] if cell["cell_type"] == "code" and "print" in
                   cell["source"]), f"{name} is committed with what it prints"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_prints_what_it_has(name: str) -> None:
    done = execute(FOLDER, "--check", name)
    assert done.returncode == 0, done.stderr[-4000:]


def test_another_output_is_found(tmp_path: Path) -> None:
    """And a cell that fails, and a name that is not there."""
    (tmp_path / "execute.py").write_bytes((FOLDER / "execute.py").read_bytes())
    for name, source in (("sum", "print(1 + 1)"), ("false", "assert 1 + 1 == 3")):
        cells = [nbformat.v4.new_code_cell(source)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    changed = execute(tmp_path, "--check", "sum")
    assert changed.returncode == 1 and "sum: code cell 1 prints\n2" in changed.stderr
    failed = execute(tmp_path, "false")
    assert failed.returncode == 1 and "false: a cell failed" in failed.stderr
    assert "known: false, sum" in execute(tmp_path, "other").stderr
