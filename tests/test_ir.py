"""The program as data: JSON in and out, messages of what cannot be read."""

from __future__ import annotations

import functools
import json
import types
import typing

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serqjax import ir
from serqjax.errors import LONGEST_MESSAGE, Problem, ProgramError
from serqjax.ir import codec

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=6)


def small() -> ir.Program:
    """A program that uses a little of everything."""
    return ir.Program(
        attrs=(ir.Attribute(name="x", hidden=True, bound=ir.Num(7.0)),),
        params=(ir.Parameter(name="kv.cap", value=0.1, unit="units"),),
        observes=("seen",),
        pools=(
            ir.Pool(name="kv", cap=ir.Param("kv.cap"), block=ir.Num(16.0)),
            ir.Pool(name="p[0]", cap=ir.Inf(), array="p", index=0),
        ),
        stages=(ir.Stage(name="E", kind=ir.Step(budget=ir.Num(512.0), cost=ir.Ctx("Ndec"), memory="kv")),),
        scopes=(
            ir.Scope(
                name="h", takes=(ir.Take(pool=ir.Member("p", ir.Attr("x")), units=ir.Num(3.0)),), reentry="b",
                lets=(ir.Let(attr="x", value=ir.Num(-0.0)),), reuse=ir.Num(5e-324),
            ),
        ),
        states=(
            ir.State(name="a", ops=(ir.Turn(), ir.Set("x", ir.Sample("Exp", (ir.Num(1e-300),)))), exit=ir.Enter("h")),
            ir.State(name="b", scope="h", exit=ir.Leave("c")),
            ir.State(name="c", exit=ir.End()),
        ),
        start="a",
        arrival=ir.Listed(at=(0.0, 1.5), attrs=("x",), values=((None,), (2.0,))),
        horizon_s=ir.Num(1 / 3),
        seed=2**64 - 1,
    )  # fmt: skip


# ---------------------------------------------------------------- round trip


def strategy_of(kind: typing.Any) -> st.SearchStrategy:
    """Random values of an annotated type of the IR."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is ir.Expr or kind == ir.Expr:
        return expressions()
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(strategy_of(args[0]), max_size=2).map(tuple)
    if origin in (typing.Union, types.UnionType):
        if set(NODES) <= set(args):  # an optional expression: nothing is drawn to be thrown away
            return st.one_of(expressions(), *[strategy_of(a) for a in args if a not in NODES])
        return st.one_of(*[strategy_of(a) for a in args])
    if kind is float:
        return FLOATS
    if kind is int:
        return st.integers(0, 2**63)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return NAMES
    if kind is type(None):
        return st.none()
    return structs(kind)


NODES = typing.get_args(ir.Expr)
LEAVES = st.one_of(
    FLOATS.map(ir.Num), st.just(ir.Inf()), NAMES.map(ir.Param), NAMES.map(ir.Attr), st.just(ir.Ctx("Now"))
)


@functools.cache
def expressions() -> st.SearchStrategy:
    def larger(inner: st.SearchStrategy) -> st.SearchStrategy:
        return st.one_of(
            st.builds(ir.Binary, st.sampled_from(["Add", "Pow", "And"]), inner, inner),
            st.builds(ir.Unary, st.just("Neg"), inner),
            st.builds(ir.Cond, inner, inner, inner),
            st.builds(lambda a: ir.Call("Floor", (a,)), inner),
            st.builds(lambda a, b: ir.Sample("Uniform", (a, b)), inner, inner),
            st.builds(lambda n, a: ir.PoolState("Used", ir.Member(n, a)), NAMES, inner),
            st.builds(lambda n, a, b: ir.Price(n, a, b), NAMES, inner, inner),
            st.builds(lambda n: ir.StageState("Queue", n), NAMES),
            st.builds(ir.Reg, NAMES),
        )

    return st.recursive(LEAVES, larger, max_leaves=3)


#: Nodes that a number may be.
PLAIN = {ir.Num: FLOATS.map(ir.Num), ir.Param: st.builds(ir.Param, NAMES), ir.Inf: st.just(ir.Inf())}


@functools.cache
def structs(kind: type) -> st.SearchStrategy:
    if issubclass(kind, NODES):
        return PLAIN[kind] if kind in PLAIN else expressions().filter(lambda e: isinstance(e, kind))
    hints = typing.get_type_hints(kind)
    deep = ("then", "orelse") if kind is ir.If else ()  # commands inside commands
    fields = {f: strategy_of(hints[f]) for f in kind.__struct_fields__ if f not in deep}
    if kind is ir.Member:
        return st.builds(ir.Member, NAMES, LEAVES)
    if kind is ir.If:
        fields["then"] = fields["orelse"] = st.lists(structs(ir.Serve), max_size=1).map(tuple)
    return st.builds(lambda **given: kind(**given), **fields)


FIELDS = {ir.Pool: "pools", ir.Stage: "stages", ir.Register: "registers", ir.Scope: "scopes", ir.State: "states",
          ir.Attribute: "attrs", ir.Parameter: "params", ir.Trace: "trace", ir.Listed: "arrival",
          ir.Renewal: "arrival"}  # fmt: skip
PARTS = list(FIELDS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_parts_come_back_exactly(part: type, data: st.DataObject) -> None:
    value = data.draw(structs(part))
    field = FIELDS[part]
    program = msgspec.structs.replace(small(), **{field: value if field in ("trace", "arrival") else (value,)})
    again = ir.from_json(ir.to_json(program))
    assert again == program and hash(again) == hash(program)
    assert repr(again) == repr(program)  # also -0.0, which equals 0.0


def test_round_trip_of_numbers_bit_for_bit() -> None:
    for value in (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789.123456789):
        program = msgspec.structs.replace(small(), horizon_s=ir.Num(value))
        again = ir.from_json(ir.to_json(program)).horizon_s
        assert isinstance(again, ir.Num) and again.value.hex() == value.hex()


def test_json_is_made_to_be_read() -> None:
    text = ir.to_json(small())
    lines = text.splitlines()
    assert lines[1] == ' "format": 1,'
    assert len(lines) > 15 and max(map(len, lines)) <= codec.LINE_WIDTH
    assert '  {"name": "c", "exit": {"type": "End"}}' in lines  # a part on a line
    assert ir.from_json(text.encode()) == small()


def test_every_part_of_a_program_is_exported() -> None:
    for module in (ir.program, ir.expr):
        for name, value in vars(module).items():
            struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if struct and value.__module__ == module.__name__ and name not in ("Part", "Tagged", "Node"):
                assert getattr(ir, name) is value


# ---------------------------------------------------------------- messages


def broken(change: typing.Callable[[dict], object]) -> str:
    tree = json.loads(ir.to_json(small()))
    change(tree)
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        (lambda d: d.pop("format"), "$.format", "missing"),
        (lambda d: d.update(format=2), "$.format", "format version 2 cannot be read; this version reads 1"),
        (lambda d: d.update(format=None, pools=3), "$.format", "null cannot be read"),
        (lambda d: d["pools"][0].update(cap=None), "$.pools[0].cap", "got `null`"),
        (lambda d: d["pools"][0].update(cap=-5), "$.pools[0].cap", "Expected `array`"),
        (lambda d: d["pools"][0].update(cap=["Foo", 1]), "$.pools[0].cap[0]", "Invalid value 'Foo'"),
        (lambda d: d["pools"][0].update(cap=["Num", "x"]), "$.pools[0].cap[1]", "Expected `float`, got `str`"),
        (lambda d: d["pools"][0].update(cap=["Num", 1.0, 2.0]), "$.pools[0].cap", "length"),
        (lambda d: d["pools"][0].update(size=3), "$.pools[0]", "unknown field `size`; remove the field"),
        (lambda d: d["pools"][0].update(uncached="last"), "$.pools[0].uncached", "Invalid enum value 'last'"),
        (lambda d: d["pools"][0].update(block=["Num", float("nan")]), "$.pools[0].block[1]", "nan is not allowed"),
        (lambda d: d.update(tick_s=float("inf")), "$.tick_s", "inf is not allowed, need a finite number"),
        (lambda d: d["states"][0]["exit"].update(type="Exit"), "$.states[0].exit.type", "Invalid value 'Exit'"),
        (lambda d: d["states"][0]["ops"][1].update(type="Zet"), "$.states[0].ops[1].type", "Invalid value 'Zet'"),
        (lambda d: d["stages"][0]["kind"].update(budget=["Ctx", "Nowhere"]), "$.stages[0].kind.budget[1]", "Nowhere"),
        (lambda d: d.pop("start"), "$", "missing required field `start`; add the field"),
        (lambda d: d.update(seed=1.5), "$.seed", "Expected `int`"),
        (lambda d: d.update(states={}), "$.states", "Expected `array`, got `object`"),
    ],
)  # fmt: skip
def test_a_wrong_program_is_named_with_its_place(change, path: str, text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        ir.from_json(broken(change))
    (problem,) = caught.value.problems
    assert problem.path == path and text in str(problem), str(problem)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        (b"\xff\xfe{", "not UTF-8 text"),
        ("[1, 2]", "a program is a JSON object, not a list"),
        ("null", "a program is a JSON object, not null"),
        ("program", "not JSON"),
        ('{"format": 1,}', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_program(text: str | bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        ir.from_json(text)


def test_every_truncation_is_one_message() -> None:
    text = ir.to_json(small())
    for cut in range(0, len(text) - 3, 7):
        with pytest.raises(ProgramError) as caught:
            ir.from_json(text[:cut])
        assert len(caught.value.problems) == 1


def test_an_infinite_number_is_not_written() -> None:
    with pytest.raises(ProgramError, match=r'inf is not allowed, need a finite number; infinity is written \["Inf"\]'):
        ir.to_json(msgspec.structs.replace(small(), horizon_s=ir.Num(float("inf"))))


def test_messages_are_bounded() -> None:
    many = ProgramError([Problem(f"$.pools[{i}]", "x" * 5000, "y") for i in range(100)])
    text = str(many)
    assert len(text) <= LONGEST_MESSAGE
    assert text.splitlines()[-1].startswith("... and ") and text.splitlines()[-1].endswith(" more problems")
    one = ProgramError.at("$.pools[2].cap", "-5.0 is not allowed", 'need a number >= 0 or "inf"')
    assert str(one) == '$.pools[2].cap: -5.0 is not allowed; need a number >= 0 or "inf"'
