"""serQ IR 14 JSON (and version 12 where it says the same) as an automaton program.

`read` takes a file, JSON text or a decoded object, and gives a `Program`; everything that is wrong
or that serqjax cannot run yet is reported together, each with its place in the JSON. The numbers
`POOL.cap` (finite caps) and `arrival.rate` (Poisson) become parameters of those names.

Version 12 differs in the seeding of the session streams: a stochastic program of version 12 runs on the
streams of version 14.

**Source:** `spec/ir14.md`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .. import ir
from ..errors import ProgramError
from ..ir.codec import describe, parse_json
from .blocks import Builder
from .expressions import Array, Expressions
from .iteration import read_body, read_registers, register_names
from .measures import read_claims, read_gauges
from .minimise import minimise
from .request import Requests
from .source import Source
from .trace_csv import COLUMNS, Turns, read_trace

VERSIONS = (12, 14)
#: Built-in attributes and the fields that hold their slots.
BUILT_IN = {
    "slot_cached": "cached", "slot_serial": "serial", "slot_turn": "turn_no", "slot_new": "new", "slot_out": "out",
    "slot_think": "think", "slot_more": "more", "slot_forced": "forced", "slot_computed": "computed",
}  # fmt: skip
_LARGEST_COUNT = 1_000_000


def read(source: str | Path | dict[str, Any], *, directory: str | Path | None = None) -> ir.Program:
    """A serQ IR program as an automaton.

    **Arguments:**
    - `source`: a path, JSON text (starts with `{`), or the decoded object.
    - `directory`: where a relative trace is looked for after the current directory (default: the
      folder of the program file).

    **Raises:** `ProgramError` with all problems found.
    """
    if isinstance(source, dict):
        return _Reader(source, None if directory is None else Path(directory), "program").program()
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _Reader(parse_json(source), None if directory is None else Path(directory), "program").program()
    path = Path(source)
    return read_tree(parse_json(read_bytes(path), str(path)), path, directory)


def read_tree(tree: Any, path: Path, directory: str | Path | None = None) -> ir.Program:
    """As `read`, for the decoded content of the file `path`, which names the program."""
    stem = path.name.split(".")[0]
    name = path.resolve().parent.name if stem == "program" else stem
    return _Reader(tree, path.parent if directory is None else Path(directory), name or "program").program()


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; `ProgramError` if it cannot be opened."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProgramError.at(str(path), f"the file cannot be opened ({error.strerror or error})") from None


class _Reader:
    """One reading of one program: `program()` gives the result or raises."""

    def __init__(self, tree: Any, directory: Path | None, name: str) -> None:
        if not isinstance(tree, dict):
            raise ProgramError.at("$", f"a program is a JSON object, not {describe(tree)}")
        if "version" not in tree:
            raise ProgramError.at("$.version", "the IR version is missing", 'write "version": 14')
        if tree["version"] not in VERSIONS or isinstance(tree["version"], bool):
            raise ProgramError.at(
                "$.version", f"IR version {describe(tree['version'])} cannot be read", "this importer reads 14 and 12"
            )
        self.tree = tree
        self.directory = directory
        self.name = name
        self.source = Source()
        self.params: list[ir.Parameter] = []

    def field(self, key: str, default: Any = ...) -> Any:
        return self.source.get(self.tree, key, "$") if default is ... else self.source.get(self.tree, key, "$", default)

    def program(self) -> ir.Program:
        try:
            return self._program()
        except RecursionError:
            raise ProgramError.at("$", "an expression or a block is nested too deeply", "split it with Set") from None

    def _program(self) -> ir.Program:
        source = self.source
        attrs = self._attributes()
        self.attrs = attrs
        observes = unique([source.text(v, f"$.observes[{i}]") for i, v in enumerate(self._list("observes"))])
        raw_pools, raw_stages = self._list("pools"), self._list("stages")
        pools = self._names(raw_pools, "pools")
        stages = self._names(raw_stages, "stages")
        self.expressions = expressions = Expressions(source, attrs, pools, stages)
        raw_registers = source.list(self.tree.get("registers") or [], "$.registers")
        expressions.registers = register_names(expressions, raw_registers, "$.registers")
        registers = read_registers(expressions, raw_registers, "$.registers")
        hidden = self._hidden()
        self.requests = requests = Requests(expressions, observes, hidden)
        made_pools = tuple(self._pool(v, i, f"$.pools[{i}]") for i, v in enumerate(raw_pools))
        made_stages = tuple(self._stage(v, i, f"$.stages[{i}]") for i, v in enumerate(raw_stages))
        requests.read_all()
        arrival = self._arrival(attrs)
        trace = self._trace()
        if trace is not None and isinstance(arrival, ir.Listed):
            source.refuse("$.trace", "a trace together with listed sessions", "write the turns of the sessions instead")
        builder = self._builder(expressions, observes, requests)
        init = builder.straight(self.field("init"), "$.init")
        turn = builder.straight(self.field("turn"), "$.turn")
        builder.session(self.field("session"), "$.session")
        gauges, claims = read_gauges(expressions, self.tree), read_claims(expressions, observes, self.tree)
        horizon = source.number(self.field("horizon"), "$.horizon", above=0.0)
        warmup = source.number(self.field("warmup"), "$.warmup", least=0.0)
        if not any(p.path in ("$.horizon", "$.warmup") for p in source.problems) and warmup >= horizon:
            source.fail("$.warmup", f"warmup {warmup:g} is not below the horizon {horizon:g}")
        arrivals = self.tree.get("arrivals")
        if arrivals is not None:
            arrivals = source.integer(arrivals, "$.arrivals", 1, 2**53)
            if not isinstance(arrival, (ir.Poisson, ir.Renewal)):
                source.fail("$.arrivals", "a number of arrivals needs open arrivals", "use Poisson or Renewal")
        seed = source.integer(self.field("seed"), "$.seed", 0, 2**64 - 1)
        made_pools = requests.prefixes.apply(made_pools)
        source.raise_problems()
        slots = [ir.Attribute(name=n, hidden=n in hidden) for n in attrs]
        slots += [ir.Attribute(name=n, hidden=h) for n, h in requests.attributes.items()]
        return minimise(
            ir.Program(
                name=self.name, attrs=tuple(slots), params=tuple(self.params), observes=observes, pools=made_pools,
                stages=made_stages, registers=registers, scopes=tuple(builder.scopes), states=tuple(builder.states),
                start="start", init=init, turn=turn, arrival=arrival, trace=trace, horizon_s=ir.Num(horizon),
                warmup_s=ir.Num(warmup), seed=seed, arrivals=arrivals, gauges=gauges, claims=claims,
            )
        )  # fmt: skip

    # ------------------------------------------------------------ names

    def _list(self, key: str) -> list[Any]:
        return self.source.list(self.field(key), f"$.{key}")

    def _attributes(self) -> tuple[str, ...]:
        source = self.source
        names = [source.text(v, f"$.attrs[{i}]") for i, v in enumerate(self._list("attrs"))]
        for i, name in enumerate(names):
            if name in BUILT_IN.values():
                names[i] = ""  # given to the slot that the program declares for it
        taken: dict[int, str] = {}
        for key, name in BUILT_IN.items():
            slot = source.index(self.field(key), f"$.{key}", len(names), "attributes")
            if slot in taken and not source.problems:
                source.fail(f"$.{key}", f"slot {slot} is already {taken[slot]}", "give every built-in its own slot")
            taken[slot] = name
        built_in = frozenset(BUILT_IN.values())
        result: list[str] = []
        for i in range(len(names)):
            name = taken.get(i) or names[i] or str(self.tree["attrs"][i])
            n = 1
            unique_name = name
            while unique_name in result or (unique_name in built_in and taken.get(i) != unique_name):
                n += 1
                unique_name = f"{name}_{n}"
            result.append(unique_name)
        return tuple(result)

    def _hidden(self) -> frozenset[str]:
        slots = self._list("hidden")
        return frozenset(self.expressions.attr(v, f"$.hidden[{i}]") for i, v in enumerate(slots))

    def _names(self, rows: list[Any], what: str) -> Array:
        source = self.source
        names: list[str] = []
        arrays: list[str | None] = []
        members: list[int] = []
        for i, row in enumerate(rows):
            place = f"$.{what}[{i}]"
            fields = row if isinstance(row, dict) else {}
            name = source.text(source.get(fields, "name", place), f"{place}.name") if fields else "?"
            member = fields.get("index")
            if member is None:
                names.append(name)
                arrays.append(None)
                members.append(0)
            else:
                index = source.integer(member, f"{place}.index", 0, len(rows))
                names.append(f"{name}[{index}]")
                arrays.append(name)
                members.append(index)
        return Array(what, unique(names), tuple(arrays), tuple(members))

    def _parameter(self, name: str, value: float, unit: str = "") -> ir.Param:
        self.params.append(ir.Parameter(name=name, value=value, unit=unit))
        return ir.Param(name)

    # ------------------------------------------------------------ pools and stages

    def _pool(self, value: Any, i: int, place: str) -> ir.Pool:
        source, keys = self.source, self.expressions.keys
        fields = source.object(value, place)
        names = self.expressions.pools
        name = names.names[i]
        if not fields:
            return ir.Pool(name=name, cap=ir.Inf())
        cap = source.number(source.get(fields, "cap", place), f"{place}.cap", infinite=True, least=0.0)
        raw_block = source.get(fields, "block", place, None)
        block = None if raw_block is None else ir.Num(source.number(raw_block, f"{place}.block", above=0.0))
        raw_every = fields.get("queue_every")
        every = None if raw_every is None else ir.Num(source.number(raw_every, f"{place}.queue_every", above=0.0))
        queue = ir.QUEUE_FIFO
        if fields.get("queue") is not None:
            queue = ir.Order(keys=keys(fields["queue"], f"{place}.queue"), tie="queued")
        evict = ir.EVICT_LRU
        tag, payload = source.tag(source.get(fields, "evict", place), f"{place}.evict")
        if tag == "By":
            evict = ir.Order(keys=keys(payload, f"{place}.evict.By"), tie="released")
        elif tag and tag != "Lru":
            source.fail(f"{place}.evict", f"unknown eviction {describe(tag)}", 'need "Lru" or {"By": [...]}')
        via = fields.get("admit_via")
        admit_via = None
        if via is not None:
            stages = self.expressions.stages.names
            at = source.index(via, f"{place}.admit_via", len(stages), "stages")
            admit_via = stages[at] if stages else None
        return ir.Pool(
            name=name, cap=ir.Inf() if math.isinf(cap) else self._parameter(f"{name}.cap", cap, "units"), block=block,
            queue=queue, evict=evict, preempt=self._preempt(fields, place), admit_via=admit_via,
            reserve_held=source.flag(fields.get("reserve_held", False), f"{place}.reserve_held"), queue_every=every,
            spill=self._spill(fields.get("spill"), f"{place}.spill"),
            array=names.array[i], index=names.member[i] if names.array[i] is not None else None,
        )  # fmt: skip

    def _spill(self, value: Any, place: str) -> ir.Spill | None:
        source, expressions = self.source, self.expressions
        fields = {} if value is None else source.object(value, place)
        if not fields:
            return None

        def name(key: str, of: Array) -> str:
            at = source.index(source.get(fields, key, place), f"{place}.{key}", len(of.names), of.what)
            return of.names[at] if of.names else "?"

        return ir.Spill(
            to=name("to", expressions.pools),
            via=name("via", expressions.stages),
            work=expressions.read(source.get(fields, "work", place), f"{place}.work"),
            when=expressions.read(source.get(fields, "when", place), f"{place}.when"),
        )

    def _preempt(self, fields: dict[str, Any], place: str) -> ir.Preempt | None:
        source = self.source
        place = f"{place}.preempt"
        tag, payload = source.tag(source.get(fields, "preempt", place.rsplit(".", 1)[0]), place)
        if tag == "By":
            spec = source.object(payload, f"{place}.By")
            keys = self.expressions.keys(source.get(spec, "keys", f"{place}.By"), f"{place}.By.keys") if spec else ()
            tail = source.flag(spec.get("tail", False), f"{place}.By.tail")
            return ir.Preempt(order=ir.Order(keys=keys, tie="latest"), requeue="tail" if tail else "head")
        if tag == "Leases":
            source.refuse(f"{place}.Leases", "preemption of leases")
        elif tag and tag != "None":
            source.fail(place, f"unknown preemption {describe(tag)}", 'need "None" or {"By": {"keys": [...]}}')
        return None

    def _stage(self, value: Any, i: int, place: str) -> ir.Stage:
        source = self.source
        names = self.expressions.stages
        fields = source.object(value, place)
        kind = self._kind(source.get(fields, "kind", place), i, f"{place}.kind") if fields else ir.Delay()
        index = names.member[i] if names.array[i] is not None else None
        return ir.Stage(name=names.names[i], kind=kind, array=names.array[i], index=index)

    def _kind(self, value: Any, i: int, place: str) -> ir.Fifo | ir.Delay | ir.ProcessorSharing | ir.Step:
        source = self.source
        tag, payload = source.tag(value, place)
        if tag == "Fifo":
            return ir.Fifo(ir.Num(float(source.integer(payload, f"{place}.Fifo", 1, _LARGEST_COUNT))))
        if tag == "Delay":
            return ir.Delay()
        if tag == "Ps":
            capacity = self.expressions.read(payload, f"{place}.Ps")
            return ir.Delay() if capacity == ir.Ctx("N") else ir.ProcessorSharing(capacity)
        if tag == "Step":
            return self._step(payload, i, f"{place}.Step")
        if tag:
            source.fail(place, f"unknown stage kind {describe(tag)}", "need Fifo, Ps or Step")
        return ir.Delay()

    def _step(self, value: Any, i: int, place: str) -> ir.Step | ir.Delay:
        source, read = self.source, self.expressions.read
        fields = source.object(value, place)
        if not fields:
            return ir.Delay()
        if fields.get("connector") is not None:
            source.refuse(f"{place}.connector", "a KV connector")
        raw_memory = fields.get("memory")
        memory = None
        if raw_memory is not None:
            pools = self.expressions.pools.names
            at = source.index(raw_memory, f"{place}.memory", len(pools), "pools")
            memory = pools[at] if pools else None
        serve = ir.SERVE_ADMITTED
        tag, payload = source.tag(source.get(fields, "serve", place), f"{place}.serve")
        if tag == "By":
            serve = ir.Order(keys=self.expressions.keys(payload, f"{place}.serve.By"), tie="admitted")
        elif tag and tag != "ExclusivePrefill":
            need = 'need {"By": [...]} or "ExclusivePrefill"'
            source.fail(f"{place}.serve", f"unknown order {describe(tag)}", need)
        raw_body = fields.get("iteration")
        if fields.get("request") is not None:
            self.requests.declare(i, fields["request"], f"{place}.request", memory)
        return ir.Step(
            budget=read(source.get(fields, "budget", place), f"{place}.budget"),
            cost=read(source.get(fields, "cost", place), f"{place}.cost"),
            chunk=read(source.get(fields, "chunk", place), f"{place}.chunk"),
            serve=serve,
            memory=memory,
            granule=self._granule(fields.get("granule"), f"{place}.granule"),
            prefills="alone" if tag == "ExclusivePrefill" else "mixed",
            iteration=() if raw_body is None else read_body(self.expressions, raw_body, f"{place}.iteration"),
        )

    def _granule(self, value: Any, place: str) -> ir.Amount | None:
        if value is None:
            return None
        granule = self.expressions.read(value, place)
        if isinstance(granule, (ir.Num, ir.Inf)):
            return granule
        self.source.fail(place, "the granule is computed", 'need a number of tokens or "inf"')
        return None

    # ------------------------------------------------------------ arrivals

    def _arrival(self, attrs: tuple[str, ...]) -> ir.Arrival:
        source = self.source
        place = "$.arrival"
        tag, payload = source.tag(self.field("arrival"), place)
        inner = f"{place}.{tag}"
        if tag == "Poisson":
            return ir.Poisson(self._parameter("arrival.rate", source.number(payload, inner, above=0.0), "1/s"))
        if tag == "Renewal":
            gap = self.expressions.read(payload, inner)
            if isinstance(gap, ir.Num) and gap.value <= 0:
                source.fail(inner, f"gap {gap.value:g} is not allowed", "need a gap > 0")
            return ir.Renewal(gap)
        if tag in ("Closed", "Batch"):
            n = ir.Num(float(source.integer(payload, inner, 1, _LARGEST_COUNT)))
            return ir.Closed(n) if tag == "Closed" else ir.Batch(n)
        if tag == "Sessions":
            return self._listed(source.list(payload, inner), inner)
        if tag and tag != "None":
            need = "Poisson Renewal Closed Batch Sessions None"
            source.fail(place, f"unknown arrival {describe(tag)}", f"need one of {need}")
        return ir.NoArrival()

    def _listed(self, rows: list[Any], place: str) -> ir.Listed:
        source = self.source
        presets: list[dict[str, float]] = []
        turns: list[list[dict[str, float]]] = []
        for i, row in enumerate(rows):
            where = f"{place}[{i}]"
            fields = source.object(row, where)
            presets.append(self._assignments(source.get(fields, "attrs", where), f"{where}.attrs") if fields else {})
            raw_turns = source.list(fields.get("turns", []), f"{where}.turns")
            turns.append([self._assignments(t, f"{where}.turns[{k}]") for k, t in enumerate(raw_turns)])
        columns = _columns(presets)
        turn_columns = _columns([t for session in turns for t in session])
        return ir.Listed(
            at=(0.0,) * len(rows),
            attrs=columns,
            values=tuple(tuple(p.get(c) for c in columns) for p in presets) if columns else (),
            turn_attrs=turn_columns,
            turns=tuple(tuple(tuple(t.get(c) for c in turn_columns) for t in session) for session in turns)
            if any(turns)
            else (),
        )

    def _assignments(self, value: Any, place: str) -> dict[str, float]:
        source = self.source
        result: dict[str, float] = {}
        for i, pair in enumerate(source.list(value, place)):
            items = source.list(pair, f"{place}[{i}]", 2)
            if items:
                name = self.expressions.attr(items[0], f"{place}[{i}][0]")
                result[name] = source.number(items[1], f"{place}[{i}][1]")
        return result

    def _trace(self) -> ir.Trace | None:
        source = self.source
        ordered = source.flag(self.field("trace_ordered"), "$.trace_ordered")
        raw = self.tree.get("trace")
        if raw is None:
            return None
        path = Path(source.text(raw, "$.trace"))
        if not path.is_absolute() and not path.exists() and self.directory is not None:
            path = self.directory / path
        turns: Turns = ()
        try:
            turns = read_trace(path)
        except ProgramError as error:
            source.problems.extend(error.problems)
        return ir.Trace(ordered=ordered, attrs=COLUMNS, turns=turns)

    # ------------------------------------------------------------ blocks

    def _builder(self, expressions: Expressions, observes: tuple[str, ...], requests: Requests) -> Builder:
        source = self.source
        blocks = self._list("blocks")
        sides = self._list("sides")
        if len(sides) != len(blocks):
            source.fail("$.sides", f"{len(sides)} lists for {len(blocks)} blocks", "need the shape of `blocks`")
        checked: list[list[str]] = []
        for i, block in enumerate(blocks):
            row = source.list(sides[i], f"$.sides[{i}]") if i < len(sides) else []
            if isinstance(block, list) and i < len(sides) and len(row) != len(block):
                what = f"{len(row)} sides for {len(block)} statements"
                source.fail(f"$.sides[{i}]", what, "need the shape of `blocks`")
            for k, side in enumerate(row):
                if side not in ("Workload", "Server"):
                    source.fail(f"$.sides[{i}][{k}]", f"{describe(side)} is not allowed", 'need "Workload" or "Server"')
            checked.append(row)
        checked += [[]] * (len(blocks) - len(checked))
        share = source.share(self.tree.get("share"), "$.share") if self.tree["version"] == 12 else None
        builder = Builder(expressions, blocks, checked, observes, share)
        builder.requests = requests
        return builder


def unique(names: list[str]) -> tuple[str, ...]:
    """Names with a suffix where one is taken: `x`, `x_2`, ..."""
    result: list[str] = []
    for name in names:
        candidate, n = name, 1
        while candidate in result:
            n += 1
            candidate = f"{name}_{n}"
        result.append(candidate)
    return tuple(result)


def _columns(rows: list[dict[str, float]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row))
