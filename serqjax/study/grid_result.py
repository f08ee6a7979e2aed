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
        import polars

        if self.table is not None:
            return self.table
        assert self.folder is not None
        return polars.read_parquet(self.folder / "table.parquet")

    def __len__(self) -> int:
        """Runs in the table."""
        import polars

        if self.table is not None:
            return self.table.height
        assert self.folder is not None
        return int(polars.scan_parquet(self.folder / "table.parquet").select(polars.len()).collect().item())

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

        import polars

        from ..builder import nearest
        from ..report.censoring import over_seeds
        from ..report.summary import LEFT_OUT

        table = self.to_polars()
        varied = list(self.manifest["vary"])
        numeric = [c for c in table.columns if table[c].dtype.is_numeric() and c not in ("point", "seed", *varied)]
        chosen = [m for m in SHOWN if m in numeric] if metrics is None else list(metrics)
        for name in chosen:
            if name not in numeric:
                raise ValueError(f"{name} is no column of numbers of this grid: {nearest(name, numeric)}")
        left_out = [verdict.name for verdict in LEFT_OUT]
        rows = []
        for part in table.partition_by("point", maintain_order=True):
            used = part.filter(~part["verdict"].is_in(left_out))
            head = (part["point"][0], *(part[name][0] for name in varied))
            for name in chosen:
                values = used[name].cast(polars.Float64)
                bound = name.removesuffix("_s") + "_at_least_s"
                unknown = int(used[bound].is_not_null().sum()) if bound in used.columns else 0
                at_least = values.fill_null(used[bound]) if unknown else values
                found = over_seeds(at_least.fill_null(math.nan).to_numpy())
                numbers = (found.value, found.se, found.low, found.high, None)
                if unknown:
                    numbers = (None, None, found.low, None, found.value)
                rows.append((*head, name, *numbers, used.height, unknown))
        schema = {"point": polars.Int64, **{name: table.schema[name] for name in varied}, "metric": polars.String}
        schema |= dict.fromkeys(("value", "se", "low", "high", "lower_bound"), polars.Float64)
        schema |= dict.fromkeys(("seeds", "unknown"), polars.Int64)
        frame = polars.DataFrame(rows, schema=schema, orient="row")
        return frame.with_columns(polars.col(polars.Float64).fill_nan(None))

    def verdicts(self) -> dict[str, int]:
        """Runs by verdict, in the verdicts' fixed order."""
        from ..report.raw import Verdict

        counts = dict(self.to_polars()["verdict"].value_counts().iter_rows())
        return {verdict.name: counts[verdict.name] for verdict in Verdict if verdict.name in counts}

    def failures(self, *, allow_stuck: bool = False) -> list[str]:
        """One sentence per run whose verdict fails it. `allow_stuck` accepts deadlock and livelock."""
        bad = [verdict for verdict in FAILED if not (allow_stuck and verdict in STUCK)]
        table = self.to_polars()
        rows = table.filter(table["verdict"].is_in(bad)).select("point", "seed", "verdict", "cause").iter_rows()
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
