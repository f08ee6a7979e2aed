"""Writes `tests/data/tape_vectors.json`: what pyserq draws, for the tests of the random tape.

    python oracle/make_tape_vectors.py

Words, uniforms and integers come from `pyserq.Rng`; the streams of arrivals, sessions, turns and machines, and the
distributions, from the samples of small programs that observe what they draw.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

pyserq: Any = importlib.import_module("pyserq")  # its types are not visible from Python

TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "tape_vectors.json"
BUILT_IN = ["cached", "serial", "turn_no", "new", "out", "think", "more", "forced", "computed"]
SEEDS = [0, 1, 2, 63, 20260101, 2**32, 2**63, 2**64 - 1]
#: name, distribution, arguments
DRAWS = [
    ("exp", "Exp", [2.5]),
    ("uniform", "Uniform", [0.3, 7.1]),
    ("erlang3", "Erlang", [3, 2.0]),
    ("h2", "H2", [1.5, 4.0]),
    ("h2_low", "H2", [1.5, 0.5]),
    ("bernoulli", "Bernoulli", [0.3]),
    ("exp_again", "Exp", [1.0]),
]


def generator(seed: int) -> dict[str, Any]:
    """First words, uniforms, and integers in [0, n) of one seed."""
    words, uniforms = pyserq.Rng(seed), pyserq.Rng(seed)
    out = {
        "seed": str(seed),
        "u32": [words.next_u32() for _ in range(40)],
        "uniform": [uniforms.random_f64() for _ in range(40)],
        "below": {},
    }
    for n in (1, 5, 1000, 3_000_000_000, 2**32 - 1):
        rng = pyserq.Rng(seed)
        out["below"][str(n)] = [rng.range_u32(0, n - 1) for _ in range(60)]
    return out


def sample(dist: str, args: list[float]) -> dict[str, Any]:
    return {"Sample": [dist, [{"Num": float(a)} for a in args]]}


def program(**fields: Any) -> Any:
    attrs = BUILT_IN + fields.pop("attrs")
    types = ["Size"] * len(attrs)
    types[0] = types[8] = "Value"
    ir = {
        "version": pyserq.IR_VERSION, "attrs": attrs, "attr_types": types, "pools": [], "stages": [], "trace": None,
        "trace_ordered": False, "init": 0, "turn": 1, "session": 2, "horizon": 1000.0, "warmup": 0.0, "hidden": [],
        **{f"slot_{s}": i for i, s in enumerate(["cached", "serial", "turn", "new", "out", "think", "more", "forced",
                                                 "computed"])},
        **fields,
    }  # fmt: skip
    return pyserq.Program.from_json(json.dumps(ir))


def distributions(seed: int) -> dict[str, Any]:
    """30 sessions that draw in `init`, in two turns and in statements of their own; renewal gaps Erlang(2, 0.7)."""
    names = [name for name, _, _ in DRAWS]
    slots = {name: len(BUILT_IN) + i for i, name in enumerate(names)}
    sets = [{"Set": [slots[name], sample(dist, args)]} for name, dist, args in DRAWS]
    observe = [{"Observe": [i, {"Attr": slots[name]}]} for i, name in enumerate(names)]
    own = [{"Observe": [len(names) + i, sample(dist, args)]} for i, (_, dist, args) in enumerate(DRAWS)]
    session = [*observe, "Turn", *observe, *own, "Turn", *observe, *own, "End"]
    report = pyserq.run(
        program(
            attrs=names, observes=names + [f"own_{name}" for name in names], blocks=[sets, sets, session],
            sides=[["Workload"] * len(sets), ["Workload"] * len(sets), ["Workload"] * len(session)],
            arrival={"Renewal": sample("Erlang", [2, 0.7])}, arrivals=30, seed=seed,
        )
    )  # fmt: skip
    return {
        "seed": seed,
        "time_s": list(report.observe(names[0]).times)[::3],
        # per distribution: init, turn 1, turn 2 of session 0, of session 1, ...
        "workload": {name: list(report.observe(name).samples) for name in names},
        # two draws of each distribution in turn, in one continuing stream
        "own": {name: list(report.observe(f"own_{name}").samples) for name in names},
    }


def machine(seed: int) -> dict[str, Any]:
    """One job at a time, of work 1, on a processor-sharing stage whose capacity is drawn: Uniform(1, 2)."""
    session = [
        {"Run": {"stage": {"base": 0, "count": 1, "index": None}, "mode": "Plain", "growing": None,
                 "work": {"Cost": [{"Stage": {"base": 0, "count": 1}}, {"Num": 1.0}]}}},
        {"Observe": [0, {"Ctx": "Now"}]},
        "End",
    ]  # fmt: skip
    report = pyserq.run(
        program(
            attrs=[], observes=["now"], blocks=[[], [], session], sides=[[], [], ["Server", "Workload", "Workload"]],
            arrival={"Closed": 1}, stages=[{"name": "disk", "kind": {"Ps": sample("Uniform", [1, 2])}}],
            horizon=20.0, seed=seed,
        )
    )  # fmt: skip
    return {"seed": seed, "time_s": list(report.observe("now").times)}


def main() -> None:
    vectors = {
        "producer": f"pyserq {pyserq.__version__}, IR {pyserq.IR_VERSION}, oracle/make_tape_vectors.py",
        "draws": DRAWS,
        "generator": [generator(seed) for seed in SEEDS],
        "distributions": [distributions(seed) for seed in (7, 2**40 + 5)],
        "machine": [machine(3)],
    }
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(vectors) + "\n")


if __name__ == "__main__":
    main()
