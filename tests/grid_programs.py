"""A small queue for grids: it compiles in a moment, and Erlang's formulas know what it does."""

from __future__ import annotations

import pytest

from serqjax import ir
from serqjax.builder import Builder


def queue(horizon_s: float = 60.0, warmup_s: float = 10.0) -> ir.Program:
    """M/M/c with the parameters `servers`, `rate` and `mean_s`; `sojourn_s` is observed."""
    b = Builder("mmc")
    servers, rate = b.param("servers", 1), b.param("rate", 0.5, "1/s")
    b.param("mean_s", 1.0, "s")
    b.attr("service")
    b.attr("t0")
    b.stage("svc", ir.Fifo(servers))
    b.state("start", b.set("t0", "Now"), exit=ir.Run("svc", "Plain", b("service"), "done"))
    b.state("done", b.observe("sojourn_s", "Now - t0"), exit=ir.End())
    init = (b.set("service", "~Exp(mean_s)"),)
    return b.program("start", ir.Poisson(rate), init=init, horizon_s=horizon_s, warmup_s=warmup_s)


def ask_the_oracle(programs, seeds, *, stop_on_verdict, coalesce, progress, keep):
    """In the place of `serqjax.study.grid._simulate_many`."""
    import oracle

    progress.start(len(seeds))
    kept = []
    for at, (program, seed) in enumerate(zip(programs, seeds)):
        kept.append(keep(at, oracle.simulate(program, seed)))
        progress.advance(len(kept))
    progress.close()
    return kept


@pytest.fixture
def oracle_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids ask the oracle, one run after another."""
    monkeypatch.setattr("serqjax.study.grid._simulate_many", ask_the_oracle)
