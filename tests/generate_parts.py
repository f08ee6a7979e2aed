"""Parts of generated programs: costs of an iteration, and sessions as data."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from ir14_builder import Json, add, call, ctx, mul, num

GRAIN = 1 / 512


def grains(rng: Random, low: float, high: float) -> float:
    """A multiple of 2^-9 s in [low, high]."""
    return rng.randint(round(low / GRAIN), round(high / GRAIN)) * GRAIN


def cost_dyadic(rng: Random, attention: bool = True) -> Json:
    terms = [num(grains(rng, 0.25, 1.0)), mul(num(rng.randint(0, 8) / 64), ctx("Ndec")),
             mul(num(rng.randint(0, 2) / 512), ctx("Kvb")), mul(num(rng.randint(0, 4) / 128), ctx("Npre"))]
    if attention:
        terms.append(mul(num(rng.randint(0, 2) / 256), ctx("Attn")))
    return add(*terms)


def cost_real(rng: Random, *_: Any) -> Json:
    return add(num(rng.uniform(0.02, 0.3)), mul(num(rng.uniform(0, 0.02)), ctx("Ndec")),
               mul(num(rng.uniform(0, 2e-4)), ctx("Kvb")), mul(num(rng.uniform(0, 2e-4)), ctx("Kvp")),
               mul(num(rng.uniform(0, 4e-3)), ctx("Npre")), mul(num(rng.uniform(0, 1e-5)), ctx("Attn")))


def cost_unit(rng: Random, *_: Any) -> Json:
    return num(1.0)


def cost_piecewise(rng: Random, *_: Any) -> Json:
    return add(num(grains(rng, 0.25, 0.5)), call("Max", mul(num(rng.randint(1, 4) / 64), ctx("Ntok")),
                                                 add(num(0.125), mul(num(1 / 64), ctx("Nres")))))


def cost_product(rng: Random, *_: Any) -> Json:
    return add(num(grains(rng, 0.25, 0.5)), mul(num(1 / 512), mul(ctx("Ndec"), ctx("Nres"))))


# ---------------------------------------------------------------- arrivals


def explicit(rng: Random, count: int, attrs: list[tuple[int, Callable[[], float]]],
             turns: list[tuple[int, Callable[[], float]]], most_turns: int) -> Json:
    rows = []
    for _ in range(count):
        row: Json = {"attrs": [[slot, float(value())] for slot, value in attrs]}
        if turns:
            row["turns"] = [[[slot, float(value())] for slot, value in turns]
                            for _ in range(rng.randint(1, most_turns))]
        rows.append(row)
    return {"Sessions": rows}


def trace_file(rng: Random, sessions: int, turns: int) -> str:
    """A trace CSV named by its content, in the temporary folder of this machine.

    It takes its name only when it is whole: other workers write and read the same file at the same time.
    """
    lines = ["# session,turn,new,out,think,forced"]
    for s in range(sessions):
        for t in range(turns):
            lines.append(f"{s},{t},{rng.randint(4, 70)},{rng.randint(1, 20)},{rng.randint(0, 6)},{rng.randint(0, 3)}")
    text = "\n".join(lines) + "\n"
    folder = Path(tempfile.gettempdir()) / f"serqjax-generated-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as part:
        part.write(text)
    os.replace(part.name, path)
    return str(path)
