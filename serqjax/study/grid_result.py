"""What a grid gives back: the table of its runs, and a summary of each point."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ..results import FAILED, STUCK

if TYPE_CHECKING:
    import polars

#: Columns that a summary is made of unless others are asked for; those that the table has.
SHOWN = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s", "requests_per_s", "output_tok_per_s")
#: Points shown as text; the others are counted.
MOST_LINES = 40


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """The runs of a grid.

    - `manifest`: what was run: program hash, versions, varied values, seeds.
    - `folder`: where `table.parquet` and `manifest.json` stand, None of a grid in memory.
    - `peak_memory_bytes`: the most that this process has had; None where the system does not say.
    """

    manifest: dict[str, Any]
    folder: Path | None
    table: polars.DataFrame | None
    peak_memory_bytes: int | None

    def to_polars(self) -> polars.DataFrame:
        """One row a run: `point, seed`, the varied names, verdict, counts, latencies, reports of stages and pools."""
        return self._lazy.collect()

    @property
    def _lazy(self) -> polars.LazyFrame:
        """The table before it is read: a question reads the columns it needs."""
        import polars

        if self.table is not None:
            return self.table.lazy()
        assert self.folder is not None
        return polars.scan_parquet(self.folder / "table.parquet")

    def __len__(self) -> int:
        """Runs in the table."""
        import polars

        return int(self._lazy.select(polars.len()).collect().item())

    def summary(self, metrics: Sequence[str] | None = None) -> polars.DataFrame:
        """Each point over its seeds.

        Columns: `point`, the varied names, `metric, value, se, low, high, lower_bound, seeds, unknown`.
        `value` is the mean over seeds of a column of the table and `low`, `high` its 95 % interval (Student's t). A
        percentile that is unknown in a seed (it falls among requests that have not finished) makes `value` null:
        `unknown` counts such seeds, `lower_bound` is the mean with each of them at its own lower bound, and nothing
        bounds it above. Runs with the verdict `capacity` or `error` do not enter.

        **Raises:** `ValueError` for a name that is no column of numbers, with the nearest one.
        """
        import math

        import numpy as np
        import polars

        from ..errors import nearest
        from ..report.censoring import over_seeds
        from ..report.summary import LEFT_OUT

        schema = self._lazy.collect_schema()
        varied = list(self.manifest["vary"])
        numeric = [c for c, kind in schema.items() if kind.is_numeric() and c not in ("point", "seed", *varied)]
        chosen = [m for m in SHOWN if m in numeric] if metrics is None else list(metrics)
        for name in chosen:
            if name not in numeric:
                raise ValueError(f"{name} is no column of numbers of this grid: {nearest(name, numeric)}")
        bounds = {name: name.removesuffix("_s") + "_at_least_s" for name in chosen}
        bounds = {name: bound for name, bound in bounds.items() if bound in schema}
        table = self._lazy.select("point", *varied, "verdict", *dict.fromkeys([*chosen, *bounds.values()])).collect()
        used = ~table["verdict"].is_in([verdict.name for verdict in LEFT_OUT]).to_numpy()
        columns = {
            name: table[name].cast(polars.Float64).fill_null(math.nan).to_numpy()
            for name in (*chosen, *bounds.values())
        }
        points = table["point"].to_numpy()
        firsts = [0, *(np.flatnonzero(np.diff(points)) + 1), len(points)]
        rows = []
        for first, end in zip(firsts[:-1], firsts[1:]):  # the rows of a point lie side by side
            mine = used[first:end]
            head = (int(points[first]), *(table[name][int(first)] for name in varied))
            for name in chosen:
                values = columns[name][first:end][mine]
                at_least = columns[bounds[name]][first:end][mine] if name in bounds else np.full(len(values), math.nan)
                unknown = int((~np.isnan(at_least)).sum())
                found = over_seeds(np.where(np.isnan(values), at_least, values))
                numbers = (found.value, found.se, found.low, found.high, None)
                if unknown:
                    numbers = (None, None, found.low, None, found.value)
                rows.append((*head, name, *numbers, int(mine.sum()), unknown))
        kinds = {"point": polars.Int64, **{name: schema[name] for name in varied}, "metric": polars.String}
        kinds |= dict.fromkeys(("value", "se", "low", "high", "lower_bound"), polars.Float64)
        kinds |= dict.fromkeys(("seeds", "unknown"), polars.Int64)
        frame = polars.DataFrame(rows, schema=kinds, orient="row")
        return frame.with_columns(polars.col(polars.Float64).fill_nan(None))

    def verdicts(self) -> dict[str, int]:
        """Runs by verdict, in the verdicts' fixed order."""
        from ..report.raw import Verdict

        counts = dict(self._lazy.select("verdict").collect()["verdict"].value_counts().iter_rows())
        return {verdict.name: counts[verdict.name] for verdict in Verdict if verdict.name in counts}

    def failures(self, *, allow_stuck: bool = False) -> list[str]:
        """One sentence per run whose verdict fails it. `allow_stuck` accepts deadlock and livelock."""
        bad = [verdict for verdict in FAILED if not (allow_stuck and verdict in STUCK)]
        table = self._lazy.select("point", "seed", "verdict", "cause").collect()
        rows = table.filter(table["verdict"].is_in(bad)).iter_rows()
        return [f"point {p}, seed {s}: {v}" + (f": {cause}" if cause else "") for p, s, v, cause in rows]

    def to_document(self) -> dict[str, Any]:
        """What `serqjax grid --json` prints: `manifest`, `verdicts`, `summary` (one object a point and metric)."""
        from ..report.units import plain

        return plain({"manifest": self.manifest, "verdicts": self.verdicts(), "summary": self.summary().to_dicts()})

    def to_json(self) -> str:
        """`to_document()` as text: equal grids give equal bytes."""
        from ..report.units import dumps

        return dumps(self.to_document())

    def __str__(self) -> str:
        from ..extras import needs

        with needs("cli", "a table as text"):
            from .grid_text import text

            return text(self)

    def __repr__(self) -> str:
        return f"Grid({self.manifest['program']['name']!r}, {self.manifest['points']} points, {len(self)} runs)"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


__all__ = ["Grid", "MOST_LINES", "SHOWN"]
