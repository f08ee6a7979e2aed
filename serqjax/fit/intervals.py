"""How sure a fit is: an interval for each parameter, and the sums that the data tell where they tell no more.

Intervals come from data sets simulated near the best, whose true parameters are known: a parametric bootstrap. The
candidates of the last cloud serve as truths, so it costs no further runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .optimisers import Space
from .result import Combination
from .surface import Bottom, simulated_errors

#: A parameter takes part in a direction that the data do not tell where its share of it is above this.
PART = 0.3


def identify(space: Space, bottom: Bottom, blocks: np.ndarray, level: float, seed: int) -> dict[str, Any]:
    """Intervals of `level`, groups of parameters that the data do not tell apart, and what they tell instead.

    **Arguments:** `blocks` `[rows]`: residuals that keep their noise together.
    """
    best, gram = bottom.best, bottom.known.gram
    # directions of one group differ in their shares alone: it is named once
    weak = list(dict.fromkeys(tuple(int(i) for i in np.flatnonzero(np.abs(v) > PART)) for v in bottom.known.weak))
    errors = simulated_errors(bottom.cloud, bottom.noise, bottom.known.basis, blocks, bottom.pull, seed)
    values = np.exp(best)
    tail = (1.0 - level) / 2.0
    # where estimates are too large by `errors`, the truth is lower by as much
    low, high = (np.exp(best - np.quantile(errors, q, axis=0)) for q in (1.0 - tail, tail))
    low, high = np.minimum(low, values), np.maximum(high, values)
    combinations = []
    for parts in weak:
        # slopes per unit of each parameter against those of the strongest part, without their noise
        shape = gram / np.outer(values, values)
        main = max(parts, key=lambda p: gram[p, p])
        factors = [float(shape[p, main] / shape[parts[0], main]) for p in parts]
        total = float(sum(f * values[p] for f, p in zip(factors, parts)))
        spread = sum(f * values[p] * errors[:, p] for f, p in zip(factors, parts))
        ends = total - np.quantile(spread, [1.0 - tail, tail])
        names = tuple(space.names[p] for p in parts)
        combinations.append(Combination(names, tuple(factors), total, float(ends[0]), float(ends[1])))
        for p, factor in zip(parts, factors):  # all that the sum and the bounds allow
            low[p] = np.exp(space.low[p])
            high[p] = max(high[p], min(np.exp(space.high[p]), ends[1] / factor if factor > 0.0 else np.inf))
    return {
        "low": dict(zip(space.names, map(float, low))),
        "high": dict(zip(space.names, map(float, high))),
        "confounded": tuple(tuple(space.names[p] for p in parts) for parts in weak),
        "combinations": tuple(combinations),
    }
