"""An engine's `Request` written out as a scope, exactly as semantics section 8 says.

Every stage with a request spec gets four attributes: `E.input`, `E.output` (evaluated once), `E.known`
(input plus tokens generated, as of the latest admission) and `E.seen` (a first token was sent).

    set E.input, E.output, E.known = input, E.seen = 0; a request generates at least one token
    enter: let E.known = max(known, computed < input ? input : computed + 1)   (input where nothing is computed)
      c = cached; observe reused, prefill; set admitted, last_reused, last_prefill
      run E Prefill max(known - c, 0) growing memory
      set first = now (once, unless there was nothing to prefill)
      run E Decode output - 1 - (known - input) growing memory, if that is above 0
    leave

Read off the reference beyond that text: an input of 0 has no first token from a prefill, so its first
decode makes it (output tokens are decoded and `first` is not set); `Known` in the cache clause is input +
output at a normal end; `Hit` is at least 0, also where nothing is cached; a memory that the request does
not take is not grown.

**Source:** `spec/semantics.md`, section 8, Request statement; `spec/ir14.md`, CRequest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import ir
from ..ir.structure import walk
from .blocks import Builder, oversize
from .expressions import Expressions, at_least_zero
from .prefix import Prefixes

_ZERO, _ONE = ir.Num(0.0), ir.Num(1.0)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a request on one stage takes, read once and written at every `Request`."""

    stage: str
    takes: tuple[ir.Take, ...]
    reuse: ir.Expr | None
    cached: ir.Expr  # what the body finds on the memory: 0 without a cache clause
    hit: ir.Let | None  # how that is found where `cached` may tell of another pool
    memory: str | None  # the pool that the runs grow: the stage's memory, if the request takes it
    reused: str  # observations
    prefill: str
    admitted: str  # attributes
    first: str
    last_reused: str
    last_prefill: str


class Requests:
    """Request specs by stage index; `attributes` are the attribute names they added."""

    def __init__(self, expressions: Expressions, observes: tuple[str, ...], hidden: frozenset[str]) -> None:
        self.expressions = expressions
        self.observes = observes
        self.hidden = hidden
        self.prefixes = Prefixes(expressions)
        self.raw: dict[int, tuple[Any, str, str | None]] = {}
        self.specs: dict[int, Spec | None] = {}
        self.attributes: dict[str, bool] = {}  # name -> hidden

    def declare(self, stage: int, raw: Any, place: str, memory: str | None) -> None:
        """The `request` field of a step stage, read when all names are known."""
        self.raw[stage] = (raw, place, memory)

    def name(self, stage: str, what: str) -> str:
        """The attribute `E.input` and so on, apart from the program's own names."""
        name = f"{stage}.{what}"
        while name in self.expressions.attrs:
            name += "_"
        self.attributes.setdefault(name, False)
        return name

    def read_all(self) -> None:
        """Read every spec, so that one that no statement uses is checked too."""
        for stage in self.raw:
            self.spec(stage)

    def spec(self, stage: int) -> Spec | None:
        if stage not in self.specs:
            self.specs[stage] = self._read(stage) if stage in self.raw else None
        return self.specs[stage]

    def _read(self, stage: int) -> Spec | None:
        source = self.expressions.source
        raw, place, memory = self.raw[stage]
        fields = source.object(raw, place)
        if not fields:
            return None
        name = self.expressions.stages.names[stage]
        known = ir.Attr(self.name(name, "known"))
        given = {"Input": ir.Attr(self.name(name, "input")), "Output": ir.Attr(self.name(name, "output"))}
        own: ir.Expr = _ZERO if memory is None else ir.PoolState("CachedIn", memory)
        raw_reuse, raw_cache = fields.get("reuse"), fields.get("cache")
        at_admission = {**given, "Known": known, "Requeued": ir.Ctx("Requeued")}
        reuse = None
        if raw_reuse is not None:
            reuse = self.expressions.read(raw_reuse, f"{place}.reuse", {**at_admission, "Hit": own})
        hit = own if reuse is None else ir.Call("Min", (own, at_least_zero(reuse)))
        keep = None
        if raw_cache is not None:
            finished = ir.Ctx("Finished")
            whole = ir.Binary("Add", given["Input"], given["Output"])
            reached = known_after(known, given["Input"], ir.Ctx("HoldPosition"))
            at_release = {**given, "Known": ir.Cond(finished, whole, reached), "Finished": finished}
            keep = at_least_zero(self.expressions.read(raw_cache, f"{place}.cache", at_release))
        # The rejection test comes before the lets of the admission, so Known is spelled out there.
        joining = {**at_admission, "Hit": hit, "Known": known_after(known, given["Input"], ir.Attr("computed"))}
        takes: list[ir.Take] = []
        for i, item in enumerate(source.list(source.get(fields, "pools", place), f"{place}.pools")):
            where = f"{place}.pools[{i}]"
            parts = source.list(item, where, 3)
            if not parts:
                continue
            amounts = []
            for request in ({**at_admission, "Hit": hit}, joining):
                units = self.expressions.read(parts[1], f"{where}[1]", request)
                reserve = None if parts[2] is None else self.expressions.read(parts[2], f"{where}[2]", request)
                amounts.append((units, reserve))
            pool = self.expressions.pool(parts[0], f"{where}[0]")
            (units, reserve), join = amounts
            takes.append(ir.Take(pool=pool, units=units, reserve=reserve, keep=keep, oversize=oversize(*join)))
        if not takes:
            source.fail(f"{place}.pools", "a request takes nothing", "name at least one pool")
        self.prefixes.read(fields.get("prefix"), f"{place}.prefix", takes, at_admission)
        taken = memory is not None and any(take.pool == memory for take in takes)
        cached, let = (ir.Attr("cached") if taken and keep is not None else _ZERO), None
        if cached != _ZERO and reuse is None and len(takes) > 1:
            # Without a bound a request may compute nothing; then another pool can hold an entry of its own.
            cached = ir.Attr(self.name(name, "hit"))
            let = ir.Let(attr=cached.name, value=own)
        records = source.object(source.get(fields, "records", place), f"{place}.records")

        def observe(key: str) -> str:
            where = f"{place}.records.{key}"
            i = source.index(source.get(records, key, f"{place}.records"), where, len(self.observes), "observations")
            return self.observes[i] if self.observes else "?"

        def slot(key: str) -> str:
            return self.expressions.attr(source.get(records, key, f"{place}.records"), f"{place}.records.{key}")

        return Spec(
            stage=name, takes=tuple(takes), reuse=reuse if keep is not None else None,
            cached=cached, hit=let, memory=memory if taken else None,
            reused=observe("reused"), prefill=observe("prefill"), admitted=slot("admitted"), first=slot("first"),
            last_reused=slot("last_reused"), last_prefill=slot("last_prefill"),
        )

    def write(self, builder: Builder, payload: Any, place: str) -> None:
        """A `Request` statement at the current state of `builder`."""
        source = self.expressions.source
        fields = source.object(payload, place)
        if not fields:
            return
        stages = self.expressions.stages
        base, count, index = self.expressions.reference(source.get(fields, "stage", place), f"{place}.stage", stages)
        if not stages.names:
            return
        members = list(range(base, base + count)) if index is not None else [base]
        specs = [self.spec(stage) for stage in members]
        for stage, spec in zip(members, specs):
            if stage not in self.raw:
                what = f"stage {stages.names[stage]} takes no requests"
                source.fail(f"{place}.stage", what, "add its `request` field")
        input_ = self.expressions.read(source.get(fields, "input", place), f"{place}.input")
        output = self.expressions.read(source.get(fields, "output", place), f"{place}.output")
        if index is None:
            if specs[0] is not None:
                self.body(builder, specs[0], input_, output)
            return
        # A computed member: one copy of the request per member, chosen by a branch.
        member = self.name(stages.array[base] or stages.names[base], "member")
        builder.ops.append(ir.Set(member, index))
        chosen = ir.Attr(member)
        tests = [ir.Binary("Eq", chosen, ir.Num(float(i))) for i in range(count)]
        allowed: ir.Expr = tests[0]
        for test in tests[1:]:
            allowed = ir.Binary("Or", allowed, test)
        problem = f"an index of `{stages.array[base]}` is not a whole number from 0 to {count - 1}"
        builder.ops.append(ir.Require(allowed, problem))
        join = builder.new_label()
        for test, spec in zip(tests, specs):
            if spec is None:
                continue
            then, other = builder.new_label(), builder.new_label()
            builder.finish(ir.Branch(test, then, other), then)
            self.body(builder, spec, input_, output)
            builder.finish(ir.Goto(join), other)
        builder.finish(ir.Goto(join), join)

    def body(self, builder: Builder, spec: Spec, input_: ir.Expr, output: ir.Expr) -> None:
        e = spec.stage
        names = {what: self.name(e, what) for what in ("input", "output", "known", "seen")}
        for what, value in (("input", input_), ("output", output)):
            if any(isinstance(n, ir.Attr) and n.name in self.hidden for _, n in walk(value)):
                self.attributes[names[what]] = True
        known, given = ir.Attr(names["known"]), ir.Attr(names["input"])
        wanted, seen = ir.Attr(names["output"]), ir.Attr(names["seen"])
        builder.ops += [
            ir.Set(names["input"], input_),
            ir.Set(names["output"], output),
            ir.Require(ir.Binary("Ge", given, _ZERO), f"the input of a request on {e} is not a number of tokens"),
            ir.Require(ir.Binary("Ge", wanted, _ONE), f"a request on {e} generates at least one token"),
            ir.Set(names["known"], given),
            ir.Set(names["seen"], _ZERO),
        ]
        lets = () if spec.hit is None else (spec.hit,)
        if spec.memory is not None:  # otherwise no token of the request is ever counted as computed
            lets = (ir.Let(attr=names["known"], value=known_after(known, given, ir.Attr("computed"))), *lets)
        scope, then = builder.open_scope(f"{e}.request", spec.takes, lets, spec.reuse)
        fresh = ir.Binary("Sub", known, spec.cached)
        builder.ops += [
            ir.Observe(spec.reused, spec.cached),
            ir.Observe(spec.prefill, fresh),
            ir.Set(spec.admitted, ir.Ctx("Now")),
            ir.Set(spec.last_reused, spec.cached),
            ir.Set(spec.last_prefill, fresh),
        ]
        after_prefill, after_decode = builder.new_label(), builder.new_label()
        builder.finish(ir.Run(e, "Prefill", ir.Call("Max", (fresh, _ZERO)), after_prefill, spec.memory), after_prefill)
        prefilled = ir.Binary("Gt", known, _ZERO)
        builder.ops += [
            ir.Set(spec.first, ir.Cond(ir.Binary("Lt", seen, prefilled), ir.Ctx("Now"), ir.Attr(spec.first))),
            ir.Set(names["seen"], ir.Call("Max", (seen, prefilled))),
        ]
        generated = ir.Binary("Sub", known, given)
        work = ir.Binary("Sub", ir.Binary("Sub", wanted, prefilled), generated)
        # A decode of no tokens never starts (a written run of none would confirm the first token to the
        # client), yet lets the other ready sessions go first, as any run of no work.
        decode, idle = builder.new_label(), builder.new_label()
        builder.finish(ir.Branch(ir.Binary("Gt", work, _ZERO), decode, idle), idle)
        builder.finish(ir.Run(e, "Prefill", _ZERO, after_decode, spec.memory), decode)
        builder.finish(ir.Run(e, "Decode", work, after_decode, spec.memory), after_decode)
        builder.close_scope(scope, then)


def known_after(known: ir.Expr, given: ir.Expr, position: ir.Expr) -> ir.Expr:
    """Tokens known once `position` of them are computed: it never falls."""
    first = ir.Call("Max", (given, _ONE))
    reached = ir.Cond(ir.Binary("Lt", position, first), given, ir.Binary("Add", position, _ONE))
    return ir.Call("Max", (known, reached))
