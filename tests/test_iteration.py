"""Granules, prefills that go alone, iteration bodies and registers: by hand, their checks, their run-time errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from compare_runs import first_difference, run_engine
from msgspec.structs import replace
from test_check import change, engine_program
from test_oracle import actions, engine, op

import oracle
from serqjax import ir
from serqjax.builder import Builder
from serqjax.check import as_text, check_program, find_problems, unsupported
from serqjax.ir import expr as e
from serqjax.ir import program as p
from serqjax.report.raw import Action, RawRun, Verdict

ZERO, ONE, TWO = ir.Num(0.0), ir.Num(1.0), ir.Num(2.0)
DECODING = ir.Ctx("Decoding")


def planned(program: ir.Program, registers: Sequence[ir.Register] = (), **fields: Any) -> ir.Program:
    """The program with other fields of its step stage `E`."""
    stages = tuple(replace(s, kind=replace(s.kind, **fields)) if s.name == "E" else s for s in program.stages)
    return replace(program, stages=stages, registers=tuple(registers))


def register(name: str = "r", init: float = 0.0) -> ir.Register:
    return ir.Register(name=name, stage="E", init=ir.Num(init))


def given(raw: RawRun) -> list[tuple[float, dict[int, float]]]:
    """Start of each iteration, and the tokens that it gives by session."""
    found: list[tuple[float, dict[int, float]]] = []
    for time, kind, session, amount in actions(raw, Action.iteration, Action.give):
        if kind == "iteration":
            found.append((time, {}))
        else:
            found[-1][1][session] = amount
    return found


# ---------------------------------------------------------------- granules


def test_a_refused_prefill_ends_admissions_and_not_serving() -> None:
    program = planned(engine([[(33, 2, 0)], [(10, 2, 0)], [(4, 2, 0)]], blocks=100, budget=20), granule=ir.Num(8.0))
    raw = oracle.simulate(program, trace=True)
    assert given(raw) == [
        (0.0, {0: 16}),  # 20 tokens are two granules and a rest; session 1 gets none of the rest, so 2 stays outside
        (1.0, {0: 17}),  # the end of a prefill need not be a granule
        (2.0, {0: 1, 1: 10, 2: 4}),
        (3.0, {1: 1, 2: 1}),
    ]


def test_an_infinite_granule_is_all_or_nothing() -> None:
    program = planned(engine([[(30, 2, 0)], [(10, 2, 0)]], blocks=100, budget=20), granule=ir.Inf())
    raw = oracle.simulate(program, trace=True)
    assert given(raw) == [] and raw.verdict is Verdict.deadlock and raw.stages[0].idle_with_work
    fits = planned(engine([[(20, 2, 0)], [(10, 2, 0)]], blocks=100, budget=20), granule=ir.Inf())
    assert given(oracle.simulate(fits, trace=True)) == [(0.0, {0: 20}), (1.0, {0: 1, 1: 10}), (2.0, {1: 1})]


# ---------------------------------------------------------------- prefills that go alone


def test_a_prefill_alone_takes_the_whole_budget_from_the_decodes() -> None:
    units = ir.Call("Min", (ir.Attr("known"), ir.StageState("BudgetLeft", "E")))
    program = engine([[(10, 5, 0)], [(40, 3, 0)]], blocks=100, budget=17, units=units, at=(0.0, 1.0))
    raw = oracle.simulate(planned(program, prefills="alone"), trace=True)
    assert given(raw) == [
        (0.0, {0: 10}),
        (1.0, {1: 17}),  # session 0 was to decode when the newcomer came
        (2.0, {1: 17}),
        (3.0, {1: 6}),
        (4.0, {0: 1, 1: 1}),
        (5.0, {0: 1, 1: 1}),
        (6.0, {0: 1}),
        (7.0, {0: 1}),
    ]
    # it reads the whole budget, not the 16 tokens that the decode has left: two blocks
    assert [amount for *_, amount in actions(raw, Action.admit)] == [16, 32]


# ---------------------------------------------------------------- iteration bodies


def test_an_admit_reads_what_the_iteration_has_done() -> None:
    sessions = [[(5, 3, 0)], [(5, 3, 0)], [(5, 3, 0)]]
    gate = op("Lt", ir.Ctx("Admitted"), ONE)
    program = planned(engine(sessions, blocks=100), iteration=(ir.Serve(), ir.Admit(gate=gate)))
    raw = oracle.simulate(program, trace=True)
    assert given(raw)[:3] == [(0.0, {0: 5}), (1.0, {0: 1, 1: 5}), (2.0, {0: 1, 1: 1, 2: 5})]
    few = op("Lt", ir.Ctx("Npre"), ir.Num(6.0))
    program = planned(engine(sessions, blocks=100), iteration=(ir.Serve(), ir.Admit(gate=few)))
    assert given(oracle.simulate(program, trace=True))[0] == (0.0, {0: 5, 1: 5})


def test_only_passes_over_for_one_command() -> None:
    """Decodes first, then prefills by what remains; a newcomer that `only` excludes is served by a later command."""
    prefilling = ir.Unary("Not", DECODING)
    shortest = ir.Order(keys=(ir.Ctx("Remaining"),), tie="admitted")
    body = (
        ir.Serve(only=DECODING),
        ir.Admit(only=DECODING),
        ir.Serve(only=prefilling, by=shortest),
    )
    program = engine([[(30, 3, 0)], [(20, 3, 0)], [(8, 3, 0)]], blocks=100, budget=24)
    raw = oracle.simulate(planned(program, iteration=body), trace=True)
    assert given(raw)[:4] == [(0.0, {2: 8, 1: 16}), (1.0, {2: 1, 1: 4, 0: 19}), (2.0, {1: 1, 2: 1, 0: 11}),
                              (3.0, {0: 1, 1: 1})]  # fmt: skip
    assert [session for _, _, session, _ in actions(raw, Action.give)][:2] == [2, 1]


def test_tests_choose_between_commands() -> None:
    crowded = op("Ge", ir.Ctx("Ndec"), ONE)
    body = (ir.If(test=crowded, then=(ir.Serve(only=DECODING),), orelse=(ir.Serve(), ir.Admit())),)
    program = engine([[(5, 3, 0)], [(5, 3, 0)]], blocks=100, at=(0.0, 1.0))
    raw = oracle.simulate(planned(program, iteration=body), trace=True)
    assert given(raw) == [(0.0, {0: 5}), (1.0, {0: 1}), (2.0, {0: 1}), (3.0, {1: 5}), (4.0, {1: 1}), (5.0, {1: 1})]


# ---------------------------------------------------------------- registers


def test_an_iteration_that_does_nothing_leaves_the_registers() -> None:
    """Without the roll-back the second arrival would open the gate."""
    body = (
        ir.Assign(register="r", value=op("Add", ir.Reg("r"), ONE)),
        ir.Admit(gate=op("Ge", ir.Reg("r"), TWO)),
        ir.Serve(),
    )
    program = engine([[(5, 2, 0)]] * 4, blocks=100, at=(0.0, 1.0, 2.0, 3.0))
    shut = oracle.simulate(planned(program, [register()], iteration=body), trace=True)
    assert given(shut) == [] and shut.verdict is Verdict.deadlock and shut.stages[0].idle_with_work
    # from 1 on the first attempt opens it, and every iteration counts
    opened = oracle.simulate(planned(program, [register(init=1.0)], iteration=body), trace=True)
    assert given(opened)[0] == (0.0, {0: 5}) and opened.verdict is Verdict.drained


def test_an_iteration_that_admits_keeps_its_registers() -> None:
    body = (
        ir.Admit(only=ZERO),
        ir.Assign(register="r", value=op("Add", ir.Reg("r"), ONE)),
        ir.If(test=op("Ge", ir.Reg("r"), TWO), then=(ir.Serve(),)),
    )
    program = engine([[(5, 2, 0)]] * 2, blocks=100, at=(0.0, 1.0))
    raw = oracle.simulate(planned(program, [register()], iteration=body), trace=True)
    assert given(raw) == [(1.0, {0: 5, 1: 5}), (2.0, {0: 1, 1: 1})]


def test_registers_are_read_by_the_stage_and_by_what_it_admits() -> None:
    """The cost and the units of the hold read the number of iterations so far, as it is when they are evaluated."""
    body = (ir.Serve(), ir.Admit(), ir.Assign(register="r", value=op("Add", ir.Reg("r"), ONE)))
    units = op("Add", ir.Attr("known"), op("Mul", ir.Num(16.0), ir.Reg("r")))
    cost = op("Add", ONE, ir.Reg("r"))
    program = engine([[(16, 2, 0)], [(16, 2, 0)]], blocks=100, at=(0.0, 1.0), units=units, cost=cost)
    raw = oracle.simulate(planned(program, [register()], iteration=body), trace=True)
    assert given(raw) == [(0.0, {0: 16}), (2.0, {0: 1, 1: 16}), (5.0, {1: 1})]
    assert [amount for *_, amount in actions(raw, Action.admit)] == [16, 32]


# ---------------------------------------------------------------- run-time errors


def test_run_time_errors_end_their_own_instance() -> None:
    """A test, a gate and a value that go wrong at the third iteration: one program, four sets of numbers."""
    late = op("Ge", ir.Reg("r"), TWO)

    def wrong(name: str) -> ir.Expr:
        """1, and from the third iteration on a parameter."""
        return ir.Cond(late, ir.Param(name), ONE)

    count = op("Add", ir.Reg("r"), op("Div", ONE, wrong("divisor")))
    body = (
        ir.If(test=wrong("test"), then=(ir.Serve(),)),
        ir.Admit(gate=wrong("gate")),
        ir.Assign(register="r", value=count),
    )
    program = planned(engine([[(5, 6, 0)]], blocks=100), [register()], iteration=body)
    values = {"fine": {}, "test": {"test": 2.0}, "gate": {"gate": 0.5}, "divisor": {"divisor": 0.0}}
    programs = [
        replace(program, params=tuple(ir.Parameter(name=n, value=changed.get(n, 1.0))
                                      for n in ("test", "gate", "divisor")))
        for changed in values.values()
    ]  # fmt: skip
    neither = "stage `E`: a test or gate of the iteration is neither 0 nor 1, at t = 2 s"
    infinite = "stage `E`: the value of a register is not a finite number, at t = 2 s"
    causes = {"test": neither, "gate": neither, "divisor": infinite}
    runs = run_engine(programs)
    for name, made, run in zip(values, programs, runs, strict=True):
        assert not find_problems(made) and not unsupported(made)
        expected = oracle.simulate(made, trace=True)
        found = first_difference(run, expected)
        assert found is None, f"{name}: engine (a) and oracle (b):\n{found}"
        if name == "fine":
            assert run.verdict is Verdict.drained and len(given(run)) == 6
        else:
            assert run.verdict is Verdict.error and run.cause == expected.cause == causes[name]
            assert len(given(run)) == 2 and run.end_tick == expected.end_tick == 2 * 10**9


# ---------------------------------------------------------------- checks

E = "$.stages[0].kind"
JUST = p.Register(name="just", stage="E")


def scheduled() -> p.Program:
    """The engine program with a body and a register."""
    body = (
        p.Serve(only=e.Ctx("Decoding"), by=p.Order(keys=(e.Ctx("Remaining"),), tie="admitted")),
        p.If(test=op("Eq", e.Reg("just"), ZERO), then=(p.Admit(gate=op("Le", e.Ctx("Ntok"), ONE)),)),
        p.Assign(register="just", value=op("Gt", e.Ctx("Admitted"), ZERO)),
    )
    return replace(change(engine_program(), ("stages[0].kind.iteration", body)), registers=(JUST,))


#: name, changes, place, words of the problem, words of the hint
RULES: list[tuple[str, list[tuple[str, Any]], str, str, str]] = [
    ("gate reads the clock", [("stages[0].kind.iteration[1].then[0].gate", e.Ctx("Now"))],
     f"{E}.iteration[1].then[0].gate", "stage `E`: a gate reads `Now`, which does not exist in", "a cost"),
    ("only reads the plan", [("stages[0].kind.iteration[0].only", e.Ctx("Ntok"))], f"{E}.iteration[0].only",
     "an `only` reads `Ntok`", "a test, gate or value of an iteration"),
    ("only reads work", [("stages[0].kind.iteration[0].only", e.StageState("Work", "E"))], f"{E}.iteration[0].only",
     "an `only` reads `Work`, which is not known in", "`Queue`, `Busy`"),
    ("test reads an attribute", [("stages[0].kind.iteration[1].test", e.Attr("input"))], f"{E}.iteration[1].test",
     "a test of the iteration reads the attribute `input`, but a test, gate or value", "context variable"),
    ("test reads the budget", [("stages[0].kind.iteration[1].test", e.StageState("BudgetLeft", "E"))],
     f"{E}.iteration[1].test", "reads `BudgetLeft`, which is not known in a test", "a hold's header"),
    ("value draws", [("stages[0].kind.iteration[2].value", e.Sample("Exp", (ONE,)))], f"{E}.iteration[2].value",
     "the value of the register `just` draws `Exp`", "`Set`"),
    ("order of a command", [("stages[0].kind.iteration[0].by.tie", "queued")], f"{E}.iteration[0].by.tie",
     "the serve order ends in `queued`", "`admitted`"),
    ("test is 2", [("stages[0].kind.iteration[1].test", TWO)], f"{E}.iteration[1].test",
     "stage `E`: a test of the iteration is 2", "0 or 1"),
    ("nothing on one way", [("stages[0].kind.iteration", (p.If(test=e.Reg("just"), then=(p.Serve(),)),))],
     f"{E}.iteration", "a way through the iteration neither serves nor admits anybody", "`Serve` or an `Admit`"),
    ("alone with a body", [("stages[0].kind.prefills", "alone")], f"{E}.prefills",
     "has an iteration of its own, and prefills that go alone", "one of the two"),
    ("goes on with a body", [("stages[0].kind.after_own_preemption", "go_on")], f"{E}.after_own_preemption",
     "has an iteration of its own, whose commands end when a grower preempts itself", "another `Serve`"),
    ("unknown register", [("stages[0].kind.iteration[2].register", "jst")], f"{E}.iteration[2].register",
     "assigns the register `jst`, which is not declared", "did you mean `just`?"),
    ("unknown register read", [("stages[0].kind.cost", e.Reg("jst"))], f"{E}.cost",
     "the cost reads the register `jst`, which is not declared", "did you mean `just`?"),
    ("register in a statement", [("states[5].exit.work", e.Reg("just"))], "$.states[5].exit.work",
     "state `think`: the work reads the register `just`, which the stage `E` sets", "read by that stage"),
    ("register in a keep", [("scopes[0].takes[1].keep", e.Reg("just"))], "$.scopes[0].takes[1].keep",
     "the keep reads the register `just`", "headers"),
    ("register in a victim key", [("pools[1].preempt.order.keys[0]", e.Reg("just"))],
     "$.pools[1].preempt.order.keys[0]", "a victim key reads the register `just`", "read by that stage"),
    ("register of a delay", [("registers[0].stage", "tool")], "$.registers[0].stage",
     "register `just`: the stage `tool` has no iteration that could assign it", "`iteration`"),
    ("register of nobody", [("registers[0].stage", "F")], "$.registers[0].stage", "there is no stage `F`", "`E`"),
    ("two registers", [("registers[1]", JUST)], "$.registers[1].name", "`just` is declared twice", "rename"),
    ("endless register", [("registers[0].init", e.Num(float("inf")))], "$.registers[0].init",
     "register `just`: the first value is inf", "finite"),
    ("half a granule", [("stages[0].kind.granule", e.Num(0.5))], f"{E}.granule", "the granule is 0.5 tokens", "whole"),
    ("granule above the chunk", [("stages[0].kind.granule", e.Num(300.0))], f"{E}.granule",
     "the granule of 300 tokens is above the chunk of 256", "never get a token"),
    ("granule and alone", [("stages[0].kind.iteration", ()), ("registers", ()), ("stages[0].kind.prefills", "alone"),
                           ("stages[0].kind.granule", e.Num(8.0))],
     f"{E}.granule", "a prefill that the granule refuses would keep every decode waiting", "leave it out"),
    ("budget of a fraction", [("stages[0].kind.budget", e.Call("Max", (ONE, e.Reg("just")))),
                              ("stages[0].kind.iteration[2].value", op("Div", e.Ctx("Nres"), TWO))],
     f"{E}.budget", "the budget may not be a whole number", "`Floor`"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_a_rule_has_its_place_and_its_hint(rule: tuple[str, list[tuple[str, Any]], str, str, str]) -> None:
    _, changes, path, problem, hint = rule
    found = find_problems(change(scheduled(), *changes))
    (one,) = (x for x in found if x.path == path)
    assert problem in one.problem and hint in one.hint, str(one)


def test_what_reads_a_register_by_right() -> None:
    reads = e.Reg("just")
    for path in ("stages[0].kind.budget", "stages[0].kind.chunk", "scopes[0].takes[1].units", "scopes[0].reuse",
                 "pools[0].queue.keys[0]", "stages[0].kind.iteration[0].only"):  # fmt: skip
        assert find_problems(change(scheduled(), (path, reads))) == []
    facts = check_program(scheduled())
    assert facts.stages[0].serve_keyed and {"Admitted", "Ntok"} <= facts.contexts


def test_what_check_says_of_a_plan() -> None:
    lines = as_text(change(scheduled(), ("stages[0].kind.granule", e.Num(8.0))))
    assert "an unfinished prefill gets multiples of 8 tokens" in lines
    assert "fills an iteration with Serve, If, Assign, keeps just" in lines
    assert "a gate: moment plan, reads Ntok" in lines and "iterations pass one by one" in lines
    alone = as_text(change(engine_program(), ("stages[0].kind.prefills", "alone")))
    assert "a prefill is alone in its iteration" in alone and "but not while a request prefills" in alone


# ---------------------------------------------------------------- written with the builder


def test_the_builder_knows_registers() -> None:
    b = Builder("gpu")
    assert b.register("just", "gpu") == ir.Reg("just") == b("just")
    assert b("just + Nres") == op("Add", ir.Reg("just"), ir.Ctx("Nres"))
    step = ir.Step(budget=b(8), cost=b(1), iteration=(ir.Serve(), ir.Assign(register="just", value=b("Preempted"))))
    gpu = b.stage("gpu", step)
    b.state("prefill", exit=ir.Run(gpu, "Prefill", b(20), "end"))
    b.state("end", exit=ir.End())
    program = b.program("prefill", ir.Batch(ONE))
    assert find_problems(program) == [] and program.registers == (ir.Register(name="just", stage="gpu"),)
    assert [tokens for _, tokens in given(oracle.simulate(program, trace=True))] == [{0: 8}, {0: 8}, {0: 4}]
