"""A program with other numbers: parameters by name, horizon, warm-up, arrivals.

Only numbers change, so the compiled function of the program stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from . import ir
from .ir.structure import number


def with_params(program: ir.Program, params: Mapping[str, float]) -> ir.Program:
    """`program` with other values of its named parameters.

    **Raises:** `ValueError` for a name that the program does not have (with the nearest one it has) and for a
    value that is not finite.
    """
    return program.with_params(params)


def with_span(
    program: ir.Program,
    *,
    horizon_s: float | None = None,
    warmup_s: float | None = None,
    arrivals: int | None = None,
) -> ir.Program:
    """`program` with another horizon, warm-up (seconds) or number of arrivals; None keeps the program's own.

    **Raises:** `ValueError` unless 0 <= warm-up < horizon, and unless `arrivals` is at least 1 and the program's
    sessions arrive one by one (Poisson or renewal).
    """
    changes: dict[str, object] = {}
    if horizon_s is not None:
        if not 0 < horizon_s < math.inf:
            raise ValueError(f"horizon_s={horizon_s:g}: a finite number of seconds above 0 is needed")
        changes["horizon_s"] = ir.Num(float(horizon_s))
    if warmup_s is not None:
        if not 0 <= warmup_s < math.inf:
            raise ValueError(f"warmup_s={warmup_s:g}: a finite number of seconds of at least 0 is needed")
        changes["warmup_s"] = ir.Num(float(warmup_s))
    if arrivals is not None:
        if arrivals < 1:
            raise ValueError(f"arrivals={arrivals}: at least 1 is needed")
        if not isinstance(program.arrival, (ir.Poisson, ir.Renewal)):
            kind = type(program.arrival).__name__
            raise ValueError(f"arrivals={arrivals}: only Poisson and Renewal arrivals can be counted, this is {kind}")
        changes["arrivals"] = int(arrivals)
    program = msgspec.structs.replace(program, **changes) if changes else program
    horizon, warmup = number(program, program.horizon_s), number(program, program.warmup_s) or 0.0
    if changes and horizon is not None and warmup >= horizon:
        raise ValueError(
            f"the horizon ({horizon:g} s) is not above the warm-up ({warmup:g} s): "
            "give a longer horizon or a shorter warm-up"
        )
    return program
