"""Comparing runs: two raw runs action by action and number by number, and one with the reference.

`first_difference` names the first action that differs, so that a failure says where two producers
part and not only that their averages do.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from serqjax.ir.program import Program
from serqjax.ir.structure import skeleton
from serqjax.report.compare import differences, sample_differences
from serqjax.report.raw import Action, PoolTotals, RawRun

#: Units of pools without a block are float64 sums, taken in whatever order a producer likes.
UNITS_RELATIVE = 1e-9
#: Sample values are float64 expressions; two math libraries may differ in the last bits of exp, ln or
#: pow, and one compiler may contract a product and a sum.
VALUE_RELATIVE = 1e-12
#: Actions shown before the one that differs.
CONTEXT = 6
#: Fields of `RawRun` that are not compared: the array engine counts no heap pops; free-form notes.
SKIPPED = ("events", "extra", "cause", "trace")

_chdir = threading.Lock()


def action_text(row: np.ndarray) -> str:
    """One trace row in words."""
    tick, kind, serial, place, amount = (row[i] for i in range(5))
    try:
        name = Action(int(kind)).name
    except ValueError:
        name = f"kind {int(kind)}"
    return f"tick {int(tick)} {name} session {int(serial)} place {int(place)} amount {float(amount):g}"


def real_rows(trace: np.ndarray) -> np.ndarray:
    """The trace without padding rows (kind 0), consecutive evictions of one owner in one pool and tick taken together.

    Dead entries have no owner, so a trace cannot tell two of them apart.
    """
    rows: list[np.ndarray] = []
    for row in np.asarray(trace)[np.asarray(trace)[:, 1] != 0]:
        if rows and row[1] == Action.evict and (rows[-1][:4] == row[:4]).all():
            rows[-1] = np.append(rows[-1][:4], rows[-1][4] + row[4])
        else:
            rows.append(row)
    return np.asarray(rows).reshape(-1, 5)


def trace_difference(a: np.ndarray, b: np.ndarray) -> str | None:
    """The first differing action of two traces, with the actions before it; None if they are equal."""
    a, b = real_rows(a), real_rows(b)
    shared = min(len(a), len(b))
    left, right = a[:shared].astype(float), b[:shared].astype(float)
    same = left[:, :4] == right[:, :4]
    amounts = np.abs(left[:, 4] - right[:, 4]) <= UNITS_RELATIVE * np.maximum(1.0, np.abs(right[:, 4]))
    wrong = np.flatnonzero(~(same.all(axis=1) & amounts))
    if not len(wrong) and len(a) == len(b):
        return None
    at = int(wrong[0]) if len(wrong) else shared
    lines = [f"action {at} differs ({len(a)} and {len(b)} actions)"]
    lines += [f"   both: {action_text(row)}" for row in a[max(0, at - CONTEXT) : at]]
    for label, rows in (("a", a), ("b", b)):
        shown = [action_text(row) for row in rows[at : at + 3]] or ["(no more actions)"]
        lines += [f"   {label}:    {text}" for text in shown]
    return "\n".join(lines)


def first_difference(a: RawRun, b: RawRun) -> str | None:
    """Where two raw runs of one program part: first action, then totals, samples, requests.

    Integers are compared with `==`; units of pools without a block within 1e-9 relative and sample values
    within 1e-12 relative (see the constants above). None if the runs are equal.
    """
    if a.trace is not None and b.trace is not None:
        found = trace_difference(a.trace, b.trace)
        if found:
            return found
    for field in dataclasses.fields(RawRun):
        if field.name in SKIPPED:
            continue
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name in ("stages", "pools"):
            found = _rows_difference(field.name, x, y)
        elif isinstance(x, np.ndarray):
            found = _array_difference(field.name, x, y)
        else:
            found = None if x == y else f"{field.name}: {x!r} and {y!r}"
            if found and field.name == "verdict":
                found += f" (causes {a.cause!r} and {b.cause!r})"
        if found:
            return found
    return None


def _rows_difference(name: str, a: list[Any], b: list[Any]) -> str | None:
    if len(a) != len(b):
        return f"{name}: {len(a)} and {len(b)} rows"
    for i, (x, y) in enumerate(zip(a, b)):
        for field in dataclasses.fields(x):
            u, v = getattr(x, field.name), getattr(y, field.name)
            same = u == v
            if not same and isinstance(x, PoolTotals) and (isinstance(u, float) or isinstance(v, float)):
                same = u is not None and v is not None and math.isclose(u, v, rel_tol=UNITS_RELATIVE, abs_tol=1e-9)
            if not same:
                if isinstance(u, dict) and isinstance(v, dict):
                    key = next(k for k in sorted({*u, *v}) if u.get(k) != v.get(k))
                    return f"{name}[{i}].{field.name}[{key}]: {u.get(key)} and {v.get(key)}"
                return f"{name}[{i}].{field.name}: {u!r} and {v!r}"
    return None


def _array_difference(name: str, a: np.ndarray, b: np.ndarray) -> str | None:
    if len(a) != len(b):
        return f"{name}: {len(a)} and {len(b)} rows"
    same = a == b
    if name in ("samples_value", "gauge_value"):
        same = same | np.isclose(a, b, rtol=VALUE_RELATIVE, atol=1e-15, equal_nan=True)
    wrong = np.flatnonzero(~same)
    if len(wrong):
        i = int(wrong[0])
        return f"{name}[{i}]: {a[i]!r} and {b[i]!r} ({len(wrong)} of {len(a)} differ)"
    return None


# ---------------------------------------------------------------- with the reference


@dataclasses.dataclass(frozen=True)
class ReferenceRun:
    """What pyserq says about a program: report, samples, or the text of its run-time error."""

    report: dict[str, Any]
    samples: dict[str, Any]
    error: str | None = None


def run_pyserq(program: Mapping[str, Any] | str, folder: Path | None = None) -> ReferenceRun:
    """Run pyserq on an IR 14 program (dict or JSON text); `folder` is where a relative trace lies.

    **Raises:** `ValueError` if pyserq refuses the program (a run-time error is returned, not raised).
    """
    import pyserq

    text = program if isinstance(program, str) else json.dumps(program)
    with _chdir:  # a relative trace is read against the current directory
        here = os.getcwd()
        try:
            if folder is not None:
                os.chdir(folder)
            compiled = pyserq.Program.from_json(text)
            try:
                report = pyserq.run(compiled)
            except Exception as error:
                return ReferenceRun({}, {}, str(error))
        finally:
            os.chdir(here)
    samples = {
        group: {
            row.name: {
                "n": row.count,
                "time": row.times,
                "session": row.sessions,
                "turn": row.turns,
                "value": row.samples,
            }
            for row in getattr(report, group).values()
        }
        for group in ("observes", "client")
    }
    samples["gauges"] = {
        row.name: {"n": len(row.times), "time": row.times, "value": row.values} for row in report.gauges.values()
    }
    return ReferenceRun(json.loads(report.json()), samples)


def accepted_by_pyserq(make: Callable[[Random], Any], label: str, count: int) -> list[Any]:
    """`count` generated programs that pyserq accepts; which they are depends on `make` and `label` alone."""
    import pyserq

    found, k = [], 0
    while len(found) < count:
        candidate = make(Random(f"{label}/{k}"))
        k += 1
        try:
            pyserq.Program.from_json(json.dumps(candidate))
        except Exception:
            if k > 3 * count + 10:
                raise
            continue
        found.append(candidate)
    return found


def compare_with_pyserq(
    ir14: Mapping[str, Any] | str,
    raw: RawRun,
    program: Program,
    *,
    folder: Path | None = None,
    reference: ReferenceRun | None = None,
    exceptions: Mapping[str, str] | None = None,
) -> str | None:
    """The first difference of a run from pyserq's run of the same program; None if they agree.

    Samples in order (time, session, turn, value) within |d| <= 1e-6 |v| + 1e-6, then the report.
    A run-time error of the one must be a verdict `error` of the other.
    """
    from serqjax.report.reference import reference_report

    told = run_pyserq(ir14, folder) if reference is None else reference
    if told.error is not None:
        # what never drains is an error there; here the run says why
        accepted = {"error", "livelock", "deadlock"} if "failed to drain" in told.error else {"error"}
        if "does not settle" in told.error:  # sessions that preempt each other without time passing
            accepted |= {"livelock"}
        return None if raw.verdict.name in accepted else f"pyserq ends with `{told.error}`, this run {raw.verdict.name}"
    if raw.verdict.name == "error":
        return f"this run ends with `{raw.cause}`, pyserq does not"
    found = sample_differences(program, raw, told.samples, exceptions=exceptions)
    found += differences(reference_report(program, raw), told.report, exceptions=exceptions)
    return "\n".join(found) or None


# ---------------------------------------------------------------- running


def as_program(source: Mapping[str, Any] | str | Program, folder: Path | None = None) -> Program:
    """An IR 14 dict or text imported to the automaton form; a `Program` as it is."""
    if isinstance(source, Program):
        return source
    from serqjax.importers import ir14

    return ir14.read(json.loads(source) if isinstance(source, str) else dict(source), directory=folder)


def run_oracle(program: Program, seed: int | None = None) -> RawRun:
    """The sequential reading of a program, with its action trace and the ownership check."""
    import oracle

    return oracle.simulate(program, seed, trace=True, check=True)


def run_engine(programs: list[Program], seeds: list[int] | None = None) -> list[RawRun]:
    """Programs as one batch of the array engine, with the ownership check and the action trace."""
    from serqjax.engine import simulate_many

    chosen = [p.seed for p in programs] if seeds is None else seeds
    runs = [run for run in simulate_many(programs, chosen, trace=True, check=True) if run is not None]
    assert len(runs) == len(programs)
    return runs


def run_together(sources: Sequence[Mapping[str, Any] | Program]) -> list[tuple[Program, RawRun]]:
    """Run pyserq (on IR 14), oracle and array engine, assert that they agree; the oracle's runs.

    Programs of one structure run as one batch of the engine.
    """
    made = []
    groups: dict[Any, list[int]] = {}
    for i, source in enumerate(sources):
        program = as_program(source)
        raw = run_oracle(program)
        if not isinstance(source, Program):
            found = compare_with_pyserq(source, raw, program)
            assert found is None, f"program {i}: oracle and pyserq differ:\n{found}"
        made.append((program, raw))
        groups.setdefault(skeleton(program)[0], []).append(i)
    for members in groups.values():
        runs = run_engine([made[i][0] for i in members])
        for i, run in zip(members, runs, strict=True):
            found = first_difference(run, made[i][1])
            assert found is None, f"program {i}: engine (a) and oracle (b) differ:\n{found}"
    return made


def run_everywhere(source: Mapping[str, Any] | Program) -> tuple[Program, RawRun]:
    """`run_together` of one program."""
    return run_together([source])[0]


def exact_difference(a: Any, b: Any, place: str = "run") -> str | None:
    """The first place where two results are not equal, whatever they are made of; NaN equals NaN."""
    if dataclasses.is_dataclass(a):
        pairs = [(f"{place}.{f.name}", getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
    elif isinstance(a, np.ndarray):
        if a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes():
            return None
        at = np.flatnonzero(a != b)[:1] if a.shape == b.shape else []
        return f"{place}: {a.shape} and {b.shape}, first at {at}: {a[at]} and {b[at]}"
    elif isinstance(a, list | tuple) and len(a) == len(b):
        pairs = [(f"{place}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b))]
    elif isinstance(a, dict) and set(a) == set(b):
        pairs = [(f"{place}[{k}]", a[k], b[k]) for k in a]
    else:
        return None if a == b or (a != a and b != b) else f"{place}: {a!r} and {b!r}"
    for where, x, y in pairs:
        if where != "run.extra" and (found := exact_difference(x, y, where)):
            return found
    return None
