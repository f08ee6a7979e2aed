"""Tables of costs that are read outside their points: the user is told how often."""

from __future__ import annotations

import pytest
from small_engine import serve

import oracle
import serqjax as sq
from serqjax.builder import Builder
from serqjax.costs import Cost
from serqjax.errors import RangeWarning
from serqjax.ir.grids import Axis, Grid
from serqjax.ranges import outside, watch_tables

ROWS = tuple((float(tokens), 0.001 * tokens) for tokens in (1, 8, 16))


def program_of(prompts, reads):
    """Requests one after the other through a small engine whose step cost is a table."""
    b = Builder()
    grid = b.table(Grid(name="dense", axes=(Axis(name="tokens"),), rows=ROWS))
    return serve(b, f"0.001 + {grid}({reads})", range(len(prompts)), [(n, 4) for n in prompts])


def test_iterations_outside_are_counted_in_both_engines():
    program = program_of([10, 60, 12, 50], "Ntok + 0 * LeastDecode")
    with pytest.warns(RangeWarning, match=r"table `dense`: `tokens` from 1 to 16 in gpu: left in 2 of 16 iterations"):
        run = sq.run(program)
    watched = watch_tables(program)
    assert watch_tables(watched) == watched  # once is enough
    raw = oracle.simulate(watched)
    (sentence,) = outside(watched, raw)
    assert outside(run.program, run.raw) == [sentence] and "the first at 1.000 s" in sentence


def test_nothing_is_said_inside(recwarn):
    sq.run(program_of([10, 12], "Ntok + 0 * LeastDecode"))
    assert not recwarn.list


def test_many_iterations_at_once_are_watched_where_that_is_asked_for(recwarn):
    """A table over what stands still coalesces; to watch it would take that away."""
    program = program_of([60, 20], "Ntok")
    assert all(s.licence.windows for s in sq.check(program).facts.stages if s.licence is not None)
    assert not sq.run(program).program.claims and not recwarn.list
    with pytest.warns(RangeWarning, match="left in 2 of 8 iterations"):
        sq.run(program, coalesce=False)


def test_the_command_line_says_it(tmp_path, capsys):
    from serqjax._cli import call

    path = tmp_path / "table.json"
    path.write_text(sq.to_json(program_of([10, 60], "Ntok + 0 * LeastDecode")))
    assert call(["run", str(path)]) == 0
    assert "serqjax: table `dense`: `tokens` from 1 to 16 in gpu: left in 1 of 8" in capsys.readouterr().err


def test_several_reads_of_a_table_are_one_claim():
    grid = Grid(name="t", axes=(Axis(name="x"), Axis(name="bucket", between="next")), rows=((1.0, 2.0, 0.1),))
    cost = Cost("t(Ntok, 1) + t(Ndec, 1)", (), (grid,))
    deployment = sq.deployments.vllm(cost=cost)
    claims = watch_tables(sq.program(deployment, sq.workloads.sessions())).claims
    assert [claim.name for claim in claims] == ["table `t`: `x` from 1 to 1 in vllm"]  # buckets have no range
