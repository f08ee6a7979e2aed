"""The same command with the reference interpreter: a serQ program run by pyserq, one seed after another.

pyserq reports what it reports: there are no requests by status and no verdicts beyond how the run ended, so these
fields are null here, and over seeds every number of its report is a mean with an interval.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any, final

from .errors import ProgramError
from .extras import MissingExtra, needs
from .ir.codec import parse_json
from .progress import AbstractProgress
from .report.censoring import over_seeds
from .report.units import dumps, plain

REQUESTS_UNKNOWN = {"in": None, "finished": None, "running": None, "queued": None, "rejected": None}


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PyserqRuns:
    """Reports of pyserq, one per seed. `many`: whether the document is that of many seeds."""

    name: str
    seeds: tuple[int, ...]
    results: tuple[Any, ...]
    drains: bool
    many: bool
    unfinished_seeds: tuple[int, ...] = ()

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(result.json()) for result in self.results]

    def to_document(self) -> dict[str, Any]:
        """`report, verdict, requests` of one seed; `summary, runs, requests` of many."""
        verdict = "drained" if self.drains else "horizon"
        cause = "as far as pyserq says"
        if not self.many:
            return plain(
                {"report": self.reports[0], "verdict": verdict, "cause": cause, "requests": REQUESTS_UNKNOWN}
            )
        runs = [
            {"seed": seed, "verdict": verdict, "cause": cause, "requests": REQUESTS_UNKNOWN, "report": report}
            for seed, report in zip(self.seeds, self.reports)
        ]
        summary = {"seeds": len(self.seeds), "used": len(self.seeds), "means": self.means()}
        whole = plain({"summary": summary, "runs": runs, "requests": REQUESTS_UNKNOWN})
        return whole | ({"unfinished_seeds": list(self.unfinished_seeds)} if self.unfinished_seeds else {})

    def to_json(self) -> str:
        """`to_document()` as text: equal runs give equal bytes."""
        return dumps(self.to_document())

    def means(self) -> dict[str, Any]:
        """`{field: estimate over seeds}` of every number of the report, fields as paths (`pools[0].mean_used`)."""
        flat = [dict(_numbers(report, "")) for report in self.reports]
        out = {}
        for field in flat[0]:
            values = [math.nan if row.get(field) is None else row[field] for row in flat]
            out[field] = over_seeds(values).to_dict()
        return out

    @property
    def samples(self) -> Any:
        """Columns `run, observation, time_s, session, turn, value`; the client's as `client.NAME`."""
        with needs("tables", "a table of samples"):
            import polars

        schema = {"run": polars.Int64, "observation": polars.String, "time_s": polars.Float64,
                  "session": polars.Int64, "turn": polars.Int64, "value": polars.Float64}
        frames = [polars.DataFrame(schema=schema)]
        for run, result in enumerate(self.results):
            rows = dict(result.observes.items()) | {f"client.{k}": v for k, v in result.client.items()}
            for name, observe in rows.items():
                data = {"run": [run] * len(observe.times), "observation": [name] * len(observe.times),
                        "time_s": observe.times, "session": observe.sessions, "turn": observe.turns,
                        "value": observe.samples}
                frames.append(polars.DataFrame(data, schema=schema))
        return polars.concat(frames)

    def write_samples(self, path: str | os.PathLike[str]) -> None:
        """Write `samples` to a Parquet file."""
        self.samples.write_parquet(os.fspath(path))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        raise ValueError("--plot draws requests, which pyserq does not report: leave out --engine pyserq")

    def failures(self, *, allow_stuck: bool = False) -> list[str]:
        """Nothing: pyserq gives no verdicts."""
        return []

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.seeds)} seeds in pyserq (the reference interpreter), means over seeds"]
        wanted = ("observes.", "client.")
        for field, row in plain(self.means()).items():
            if field.startswith(wanted) and field.endswith((".mean", ".p99")):
                lines.append(f"  {field:<32} {row['text']}")
        return "\n".join(lines)


def _numbers(value: Any, place: str) -> Any:
    """Numbers of a report with their places; absent ones (null) are None."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _numbers(item, f"{place}[{i}]")
    elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        if place.rpartition(".")[2] not in ("seed", "index", "over_cap"):
            yield place, value


def run_pyserq(
    source: str | os.PathLike[str],
    *,
    workload: str | os.PathLike[str] | None,
    settings: dict[str, Any],
    seeds: list[int] | None,
    many: bool,
    span: dict[str, Any],
    progress: AbstractProgress,
) -> PyserqRuns:
    """See `serqjax.run_reference`."""
    try:
        import pyserq
    except ModuleNotFoundError:
        raise MissingExtra("the reference interpreter is not installed: pip install pyserq") from None
    name = os.fspath(source)
    tree = _tree(pyserq, name, workload, settings, span)
    tree |= {key: value for key, value in span.items() if value is not None}
    chosen = [tree["seed"]] if seeds is None else seeds
    results: list[Any] = []
    progress.start(len(chosen))
    try:
        for seed in chosen:
            results.append(_run(pyserq, name, tree | {"seed": seed}))
            progress.advance(len(results))
    except KeyboardInterrupt:
        if not results:
            raise
    finally:
        progress.close()
    done = len(results)
    return PyserqRuns(
        Path(name).name, tuple(chosen[:done]), tuple(results), tree.get("arrivals") is not None, many,
        tuple(chosen[done:]),
    )


def _run(pyserq: Any, name: str, tree: dict[str, Any]) -> Any:
    try:
        return pyserq.run(pyserq.Program.from_json(json.dumps(tree)))
    except (ValueError, RuntimeError) as error:
        raise ProgramError.at(name, f"pyserq: {error}") from None


def _tree(pyserq: Any, name: str, workload: Any, settings: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    """The IR 14 JSON tree of a program file, with the settings applied."""
    path = Path(name)
    if not path.is_file():
        raise ProgramError.at(name, "is no file", "pyserq runs a serQ IR 14 JSON or a .serq file")
    if path.suffix in (".serq", ".sq"):
        own = {} if span["horizon"] is None else {"horizon": span["horizon"]}
        try:
            sets = {key: str(value) for key, value in settings.items()}
            text = pyserq.compile(name, workload=workload, sets=sets, **own).to_json()
        except (ValueError, RuntimeError) as error:
            raise ProgramError.at(name, str(error)) from None
        return json.loads(text)
    tree = parse_json(path.read_bytes(), name)
    if not isinstance(tree, dict) or "version" not in tree:
        raise ProgramError.at(name, "is no serQ IR 14 program", "pyserq cannot run the automaton form")
    trace = tree.get("trace")
    if isinstance(trace, str) and not Path(trace).is_file():
        tree["trace"] = str(path.parent / trace)  # beside the program, as the importer reads it
    for key, value in settings.items():
        _set(tree, key, float(value))
    return tree


def _set(tree: dict[str, Any], key: str, value: float) -> None:
    """`POOL.cap` or `arrival.rate` in an IR 14 tree, as the importer names its parameters."""
    arrival = tree.get("arrival")
    if key == "arrival.rate" and isinstance(arrival, dict) and "Poisson" in arrival:
        arrival["Poisson"] = value
        return
    known = ["arrival.rate"] if isinstance(arrival, dict) and "Poisson" in arrival else []
    for pool in tree.get("pools", []):
        index = pool.get("index")
        label = pool["name"] if index is None else f"{pool['name']}[{index}]"
        if key == f"{label}.cap":
            pool["cap"] = value
            return
        known.append(f"{label}.cap")
    from .errors import nearest

    raise ValueError(f"{key} is no parameter of this program: {nearest(key, known)}")
