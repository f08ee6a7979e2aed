"""The oracle in place of the array engine: the same results without a compilation, for tests of what lies above."""

from __future__ import annotations

import pytest


@pytest.fixture
def oracle_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serqjax.run` asks the oracle, one seed after another."""
    import oracle

    def simulate(prog, seeds, *, progress, check=False, stop_on_verdict=False, trace=False, coalesce=True):
        progress.start(len(seeds))
        raws = []
        for seed in seeds:
            raws.append(oracle.simulate(prog, seed))
            progress.advance(len(raws))
        progress.close()
        return raws

    monkeypatch.setattr("serqjax.api._simulate", simulate)
