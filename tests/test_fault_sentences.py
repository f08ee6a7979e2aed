"""Every fault of an instance has a sentence whose blanks are filled, tables or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serqjax.engine.faults import SENTENCES, Fault
from serqjax.engine.result import verdict_of


@pytest.mark.parametrize("fault", sorted(SENTENCES, key=int), ids=lambda fault: fault.name)
def test_the_sentence_of_a_fault_is_complete(fault):
    skeleton = SimpleNamespace(stages=(), pools=())
    requires = (SimpleNamespace(problem="the problem"),)
    plan: Any = SimpleNamespace(states=(), requires=requires, scopes=(), arrays=(), skeleton=skeleton)
    program: Any = SimpleNamespace(tick_s=1e-9, horizon_s=None, params=())
    state = {"fault": np.int32(fault), "livelock": False, "fault_place": 0, "fault_serial": -1, "now": 0,
             "pc": np.zeros(3), "row_taken": np.zeros((1, 7))}  # fmt: skip
    _, cause = verdict_of(plan, program, state)
    assert "{" not in cause and len(cause) > 10
    assert fault != Fault.holds or "(7)" in cause
