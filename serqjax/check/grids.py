"""Tables of a program: their rows, and who reads them.

**Source:** `serqjax.ir.grids`.
"""

from __future__ import annotations

import math

from ..ir.expr import Table
from ..ir.grids import Grid, dense
from .index import Index, Problems, known


def check_grids(index: Index, problems: Problems) -> None:
    """Report tables that cannot be read everywhere, and nodes that read no table."""
    tables = {grid.name: grid for grid in index.program.tables}
    for i, grid in enumerate(index.program.tables):
        _check_grid(problems, f"$.tables[{i}]", grid)
    for position in index.positions:
        for path, node in position.nodes:
            if not isinstance(node, Table):
                continue
            where = f"{position.owner}: {position.what}"
            if node.table not in tables:
                text = f"{where} reads the table `{node.table}`, which is not declared"
                problems.add(path, text, known(node.table, tables))
            elif len(node.args) != len(tables[node.table].axes):
                axes = len(tables[node.table].axes)
                text = f"{where}: the table `{node.table}` has {axes} axes, not {len(node.args)}"
                problems.add(path, text, "give one argument per axis")
            elif position.moment != "step":
                text = f"{where} reads the table `{node.table}`, but a table is read in the cost of a step stage alone"
                problems.add(path, text, "write it in the cost")


def _check_grid(problems: Problems, path: str, grid: Grid) -> None:
    where = f"table `{grid.name}`"
    if not grid.axes:
        problems.add(f"{path}.axes", f"{where} has no axes", "give at least one axis")
        return
    for i, row in enumerate(grid.rows):
        if not all(map(math.isfinite, row)):
            problems.add(f"{path}.rows[{i}]", f"{where}: a number of the row is not finite", "leave the row out")
            return
    if grid.missing is not None and not math.isfinite(grid.missing):
        problems.add(f"{path}.missing", f"{where}: `missing` is {grid.missing}", "give a finite number")
    try:
        full = dense(grid)
    except ValueError as error:
        problems.add(f"{path}.rows", f"{where}: {error}", "give each point of the grid once, with all its coordinates")
        return
    steps = [axis for axis in grid.axes if axis.between != "linear"]
    holes = bool((full.values != full.values).any())  # NaN
    if grid.missing is None and (steps or holes):
        text = f"{where} has no value between or beyond its coordinates on `{steps[0].name if steps else ''}`"
        problems.add(f"{path}.missing", text, "say the value there: `missing`")
    if grid.missing is not None and not steps:
        problems.add(f"{path}.missing", f"{where} has a value everywhere", "leave `missing` out")
