"""What the array engine cannot run is valid all the same, and refused by name and place."""

from __future__ import annotations

import pytest
from test_check import ONE, attr, change, deep, engine_program, queue_program

from serqjax.check import check_program, describe, unsupported
from serqjax.ir import expr as e
from serqjax.ir import program as p

UNSUPPORTED: list[tuple[p.Program, str, str]] = [
    (change(queue_program(), ("states[0].ops[0]", p.Choose("size", attr("size"), (ONE,)))),
     "$.states[0].ops[0].count", "a computed count of a choice whose keys index no array"),
    (change(queue_program(), ("states[0].ops[0]", p.Choose("size", attr("size"), (e.Sample("Exp", (ONE,)),)))),
     "$.states[0].ops[0].count", "a computed count of a choice whose keys draw"),
    (change(queue_program(), ("states[0].ops[0]", p.Choose("size", e.Num(5000.0), (ONE,)))),
     "$.states[0].ops[0].count", "a choice among 5000 (at most 4096)"),
    (change(queue_program(), ("states[0].ops[0]", p.Choose("size", e.Num(600.0), (e.Sample("Exp", (ONE,)),)))),
     "$.states[0].ops[0].count", "a choice that draws 600 times (at most 512)"),
    (change(queue_program(), ("states[0].ops[0].value", e.Sample("Erlang", (e.Param("rate"), ONE)))),
     "$.states[0].ops[0].value", "number of stages is computed"),
    (change(engine_program(), ("pools[1].evict.keys[0]", e.Sample("Exp", (ONE,)))), "$.pools[1].evict.keys[0]",
     "draws in eviction keys"),
    (deep(5), "$.scopes[4]", "5 scopes inside each other"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "path", "text"), UNSUPPORTED, ids=[u[2] for u in UNSUPPORTED])
def test_unsupported(program: p.Program, path: str, text: str) -> None:
    check_program(program)  # valid all the same
    found = unsupported(program)
    assert [x.path for x in found] == [path]
    assert text in found[0].problem and "does not run" in found[0].problem and "oracle" in found[0].hint
    assert describe(program)["unsupported"][0]["path"] == path


def test_nested_scopes_are_supported_to_four() -> None:
    assert check_program(deep(4)).max_depth == 4
    assert unsupported(deep(4)) == []
