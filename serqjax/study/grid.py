"""Grids: a program at many points, each under the same seeds, as one table with one row a run.

The runs stand in the order of the points, then of the seeds, and are cut into chunks of equal size. A chunk is run as
one batch (points of equal structure share a compiled loop), each run is reduced to a row as soon as it ends, and the
chunk's rows are saved. So memory is that of a batch, and a killed grid goes on with the first chunk that is not there.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, final

from .. import ir
from ..errors import Problem, ProgramError
from ..extras import needs
from ..overrides import with_span
from ..progress import AbstractProgress, NoProgress
from .checkpoint import Folder
from .grid_points import AbstractVariants, OfProgram, Points, Value, as_text, column

if TYPE_CHECKING:
    import polars

    from .grid_result import Grid

#: Columns of every run.
ROW_NAMES = ("point", "seed", "verdict", "cause", "end_s", "measured_from_s", "turns_measured", "mean_live")
#: Runs of a chunk. Fixed: the chunks of a grid do not depend on the machine, so that shards fit together.
CHUNK = 256


@final
@dataclasses.dataclass(frozen=True)
class Spec:
    """A grid: what is run, and how it is cut. Can be sent to another process."""

    variants: AbstractVariants
    points: Points
    seeds: tuple[int, ...]
    span: Mapping[str, Any]
    stop_on_verdict: bool
    coalesce: bool
    chunk_runs: int

    @property
    def runs(self) -> int:
        return len(self.points) * len(self.seeds)

    @property
    def chunks(self) -> int:
        return -(-self.runs // self.chunk_runs)

    def program(self, point: int) -> ir.Program:
        """The program of a point. **Raises:** `ProgramError` or `ValueError` that names the point."""
        values = self.points[point]
        place = f"point {point} ({as_text(values)})"
        try:
            return with_span(self.variants.program(values), **self.span)
        except ProgramError as error:
            raise ProgramError(Problem(f"{place}: {p.path}", p.problem, p.hint) for p in error.problems) from None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

    def checked(self, point: int) -> ir.Program:
        """The program of a point, if it is valid. **Raises:** as `program`."""
        from ..check import find_problems, unsupported

        program = self.program(point)
        problems = find_problems(program) or unsupported(program)
        if problems:
            place = f"point {point} ({as_text(self.points[point])})"
            raise ProgramError(Problem(f"{place}: {p.path}", p.problem, p.hint) for p in problems)
        return program

    @functools.cached_property
    def covered(self) -> frozenset[int]:
        """The points that are checked before anything runs: each value is in one of them."""
        return frozenset(self.points.cover())

    def places(self, chunk: int) -> list[tuple[int, int]]:
        """Points and places of the seeds of a chunk's runs, in the order of the table."""
        first = chunk * self.chunk_runs
        return [divmod(i, len(self.seeds)) for i in range(first, min(first + self.chunk_runs, self.runs))]

    def run_chunk(self, chunk: int, progress: AbstractProgress) -> polars.DataFrame:
        """Run a chunk. **Raises:** `KeyboardInterrupt` if it was interrupted."""
        from .grid_row import frame, row

        places = self.places(chunk)
        programs = {
            point: self.program(point) if point in self.covered else self.checked(point)
            for point in dict.fromkeys(point for point, _ in places)
        }
        # seed by seed over the points: a unit of the engine gets long and short runs alike
        order = sorted(range(len(places)), key=lambda i: (places[i][1], places[i][0]))
        given = [programs[places[i][0]] for i in order]
        kept = _simulate_many(
            given,
            [self.seeds[places[i][1]] for i in order],
            stop_on_verdict=self.stop_on_verdict,
            coalesce=self.coalesce,
            progress=progress,
            keep=lambda at, raw: row(given[at], raw),
        )
        if any(one is None for one in kept):
            raise KeyboardInterrupt("interrupted")
        rows: list[dict[str, Any]] = [{}] * len(places)
        for at, one in zip(order, kept):
            rows[at] = one
        values = [self.points[point] for point, _ in places]
        return frame(
            [point for point, _ in places],
            [self.seeds[k] for _, k in places],
            {name: [v[name] for v in values] for name in self.points.vary},
            {name: column(listed) for name, listed in self.points.vary.items()},
            rows,
        )

    def manifest(self, shard: tuple[int, int] | None) -> dict[str, Any]:
        """What describes this grid; the numbers of the program stand in its hash."""
        from .manifest import make, seeds_text

        return make(
            "grid",
            self.variants.base,
            vary={name: list(values) for name, values in self.points.vary.items()},
            seeds=seeds_text(self.seeds),
            span=dict(self.span),
            options={"stop_on_verdict": self.stop_on_verdict, "coalesce": self.coalesce},
            points=len(self.points),
            runs=self.runs,
            chunk_runs=self.chunk_runs,
            chunks=self.chunks,
            shard=None if shard is None else list(shard),
        )


def _simulate_many(programs: list[ir.Program], seeds: list[int], **options: Any) -> list[Any]:
    """What is kept of the array engine's runs, None where an interrupt came first. (Imports JAX.)"""
    from ..engine import simulate_many

    return simulate_many(programs, seeds, **options)


def grid(
    prog: ir.Program,
    *,
    vary: Mapping[str, Iterable[Value]],
    seeds: Iterable[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
    stop_on_verdict: bool = True,
    coalesce: bool = True,
    chunk: int = CHUNK,
    shard: tuple[int, int] | None = None,
    over: Literal["ray"] | None = None,
    progress: AbstractProgress | None = None,
) -> Grid:
    """Run a program at every combination of the values of `vary`, each under the same seeds.

    The seed addresses every random draw, so equal seeds give all points the same arrivals and lengths (common random
    numbers), as far as the varied names leave them the same. A row is bit for bit the single run with its numbers and
    seed. Points of equal structure share one compiled loop, whatever their numbers.

    **Arguments:**
    - `vary`: values by name. A name is a parameter of the program (`kv.cap`, `arrival.rate`, `request_rate`), or, of a
      program that `serqjax.program` returned, an argument of its deployment or workload (`max_model_len`, `router`).
    - `seeds`: the same for all points (default: the program's own).
    - `out`: a folder for the table, a manifest, and the chunks that make it safe to stop at any time; None: in memory.
    - `resume`: go on with what `out` holds of the same grid. Without it a folder with a grid is refused.
    - `horizon_s`, `warmup_s`, `arrivals`, `stop_on_verdict`, `coalesce`: as in `run`; here an instance ends at a
      livelock or deadlock unless `stop_on_verdict=False`.
    - `chunk`: runs between two checkpoints (default 256); memory grows with it, and with nothing else.
    - `shard`: `(i, n)`, 1 <= i <= n: every n-th chunk alone, the i-th first; `serqjax.merge` joins n folders.
    - `over`: `"ray"`: chunks as tasks of a Ray cluster (`RAY_ADDRESS`, else started here). A chunk whose worker is lost
      is run again.
    - `progress`: told the finished runs.

    **Returns:** a `Grid`: `.to_polars()` has one row a run (`docs/studies.md` lists the columns), `.summary()` one a
    point and metric, with intervals.

    **Raises:** `ValueError` for an argument; `ProgramError` for a point whose program is not valid, named; both before
    anything runs if a value alone is wrong. `KeyboardInterrupt`: the finished chunks are in `out`.
    """
    return run_grid(
        OfProgram.of(prog),
        vary=vary,
        seeds=seeds,
        out=out,
        resume=resume,
        span={"horizon_s": horizon_s, "warmup_s": warmup_s, "arrivals": arrivals},
        stop_on_verdict=stop_on_verdict,
        coalesce=coalesce,
        chunk=chunk,
        shard=shard,
        over=over,
        progress=progress,
    )


def run_grid(
    variants: AbstractVariants,
    *,
    vary: Mapping[str, Iterable[Value]],
    seeds: Iterable[int] | None,
    out: str | os.PathLike[str] | None,
    resume: bool,
    span: Mapping[str, float | int | None],
    stop_on_verdict: bool,
    coalesce: bool,
    chunk: int,
    shard: tuple[int, int] | None,
    over: str | None,
    progress: AbstractProgress | None,
) -> Grid:
    """`grid` of whatever has variants: a program object, or what the command line names."""
    from ..api import seed_list

    with needs("tables", "a grid"):
        import polars  # noqa: F401
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk={chunk!r}: a whole number of runs of at least 1 is needed")
    if over not in (None, "ray"):
        raise ValueError(f'over={over!r}: a grid runs here (None) or over "ray"')
    spec = Spec(
        variants=variants,
        points=Points.of(vary),
        seeds=tuple(seed_list([variants.base.seed] if seeds is None else seeds)),
        span=dict(span),
        stop_on_verdict=stop_on_verdict,
        coalesce=coalesce,
        chunk_runs=chunk,
    )
    _refuse_taken_names(spec)
    mine = chunks_of_shard(spec.chunks, shard)
    if not mine:
        raise ValueError(f"shard {shard}: the grid has {spec.chunks} chunks of {chunk} runs, this shard has none; "
                         "take fewer shards or a smaller chunk")  # fmt: skip
    for point in spec.points.cover():
        spec.checked(point)
    return _run(spec, mine, shard, None if out is None else Folder(out), resume, over, progress or NoProgress())


def chunks_of_shard(chunks: int, shard: tuple[int, int] | None) -> list[int]:
    """The chunks of a shard `(i, n)`: i-1, i-1+n, ... **Raises:** `ValueError` unless 1 <= i <= n."""
    if shard is None:
        return list(range(chunks))
    i, n = shard
    if not 1 <= i <= n:
        raise ValueError(f"shard {i}/{n}: write i/n with 1 <= i <= n, for example 1/4 to 4/4")
    return list(range(i - 1, chunks, n))


def _refuse_taken_names(spec: Spec) -> None:
    """A varied name is a column of the table, beside those of a run."""
    own = ("observes.", "gauges.", "claims.", "stages.", "pools.")
    taken = [name for name in spec.points.vary if name in ROW_NAMES or name.startswith(own)]
    if taken:
        raise ValueError(f"vary: {taken[0]} is the name of another column of the table; rename the parameter")


def _run(
    spec: Spec,
    mine: list[int],
    shard: tuple[int, int] | None,
    folder: Folder | None,
    resume: bool,
    over: str | None,
    progress: AbstractProgress,
) -> Grid:
    import polars

    from .grid_result import Grid

    manifest = spec.manifest(shard)
    if folder is not None:
        manifest = _claim(folder, manifest, shard, resume)
    done = set() if folder is None else set(folder.done(mine))
    todo = [k for k in mine if k not in done]
    before = sum(len(spec.places(k)) for k in done)
    progress.start(before + sum(len(spec.places(k)) for k in todo))
    frames: dict[int, polars.DataFrame] = {}
    try:
        for k, made in _chunks(spec, todo, over, progress, before):
            if folder is None:
                frames[k] = made
            else:
                folder.save(k, made)
    except KeyboardInterrupt:
        where = f"in {folder.path}: go on with resume" if folder is not None else "lost: give `out` to keep them"
        there = len(folder.done(mine)) if folder is not None else len(frames)
        raise KeyboardInterrupt(f"interrupted: {there} of {len(mine)} chunks are {where}") from None
    finally:
        progress.close()
    table = None
    if folder is None:
        table = polars.concat([frames[k] for k in mine], how="diagonal")
    elif todo or not folder.table.exists():
        folder.write_table(mine)
    return Grid(manifest, None if folder is None else folder.path, table, peak_memory_bytes())


def _chunks(
    spec: Spec, todo: list[int], over: str | None, progress: AbstractProgress, before: int
) -> Iterator[tuple[int, polars.DataFrame]]:
    """The chunks and their rows as they are finished: here in their order, over Ray in any."""
    if over == "ray":
        from .grid_ray import chunks

        yield from chunks(spec, todo, progress, before)
        return
    for k in todo:
        yield k, spec.run_chunk(k, Within(progress, before))
        before += len(spec.places(k))


def _claim(folder: Folder, manifest: dict[str, Any], shard: tuple[int, int] | None, resume: bool) -> dict[str, Any]:
    """Make the folder this grid's. **Returns:** the manifest that stands in it.

    **Raises:** `ValueError` if it holds another grid, or this one without `resume`.
    """
    from . import manifest as manifests

    there = manifests.read(folder.path)
    if there is not None:
        found = manifests.differences(manifest, there)
        if there.get("shard") != manifest["shard"]:
            found.append(f"the shard ({manifest['shard']}, not {there.get('shard')})")
        if found:
            raise ValueError(f"{folder.path} holds another grid, which differs in {'; '.join(found)}: "
                             "give another folder, or remove this one")  # fmt: skip
        if not resume:
            raise ValueError(f"{folder.path} holds this grid already: resume it, or give another folder")
    elif (folder.path / "chunks").exists() or folder.table.exists():
        raise ValueError(f"{folder.path} holds results without a manifest: give another folder")
    folder.prepare()
    if there is None:
        manifests.write(folder.path, manifest)
        return manifest
    return there


@final
class Within(AbstractProgress):
    """The progress of a part of something longer, which has `before` finished when the part begins."""

    def __init__(self, whole: AbstractProgress, before: int):
        self.whole, self.before = whole, before

    def start(self, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        self.whole.advance(self.before + done)

    def close(self) -> None:
        pass


def peak_memory_bytes() -> int | None:
    """The most memory that this process has had, None where the system does not say."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


__all__ = ["CHUNK", "Spec", "chunks_of_shard", "grid", "run_grid"]
