"""From a jaxpr to the text of an LLVM function.

Equations are taken in their order. Scalars become registers; arrays become memory that is written over as soon as
nobody else reads it, so that an update of a table costs one store. Conditionals are branches, loops are loops.

Three rules keep it right:
- a root is written over only when no live value reads it (`Root.holders`);
- what a branch gives back is brought to one place at its end; what a loop carries, to where it was at its beginning;
- a formula that is used more than once, or inside a loop, is computed once.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import RULES, called, element
from .emitter import Block, Emitter, constant
from .values import (
    FEW,
    ROW,
    Array,
    Buffer,
    Cells,
    Formula,
    Place,
    Root,
    Scalar,
    Value,
    changed,
    drop,
    held,
    hold,
    in_registers,
    roots_of,
)

#: Equations of a loop of known length up to which its rounds are written one after the other.
WRITTEN_OUT = 500


def is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")


@dataclasses.dataclass(frozen=True, eq=False)
class Uses:
    """Which equations are needed, how often each variable is read, and by which equation last."""

    needed: list[bool]
    counts: Counter[Any]
    last: dict[Any, int]

    @classmethod
    def of(cls, jaxpr: Any, wanted: Sequence[bool]) -> Uses:
        counts: Counter[Any] = Counter(
            v for v, on in zip(jaxpr.outvars, wanted) if on and not is_literal(v)
        )
        last = dict.fromkeys(counts, len(jaxpr.eqns))
        needed = [False] * len(jaxpr.eqns)
        for i in reversed(range(len(jaxpr.eqns))):
            eqn = jaxpr.eqns[i]
            if not any(v in counts for v in eqn.outvars):
                continue
            needed[i] = True
            for v in eqn.invars:
                if not is_literal(v):
                    counts[v] += 1
                    last.setdefault(v, i)
        return cls(needed, counts, last)


class Lowering:
    """A jaxpr on its way to machine code; `em` writes it."""

    def __init__(self) -> None:
        self.em = Emitter()
        self.scopes: list[dict[Any, Value]] = []
        self.uses: dict[tuple[int, tuple[bool, ...]], Uses] = {}
        self.constants: dict[int, Buffer] = {}
        self.kept: list[Any] = []  # what `uses` and `constants` know by its address stays alive

    # ------------------------------------------------------------ values

    def in_memory(self, value: Array) -> Buffer:
        """The array in memory: where it is, over what it reads if nobody else does, or in new memory."""
        if isinstance(value, Buffer):
            return value
        if isinstance(value, Formula):
            for root in sorted(value.aligned - value.others, key=lambda root: root.pointer):  # always the same text
                if root.holders == 0 and not root.fixed and root.dtype == value.dtype and root.elements == value.size:
                    target = Buffer(value.shape, value.dtype, root)
                    self.em.write(target, value)
                    return target
        target = self.em.fresh(value.shape, value.dtype)
        self.em.write(target, value)
        return target

    def small(self, value: Array) -> Cells:
        return value if isinstance(value, Cells) else Cells(value.shape, value.dtype, list(self.em.elements(value)))

    def steady(self, value: Value) -> Value:
        """A value that can be read many times."""
        if not isinstance(value, Formula) or value.cheap:
            return value
        return self.small(value) if value.size <= FEW else self.in_memory(value)

    def apart(self, value: Array, target: Array) -> Array:
        """`value`, safe from stores to `target`."""
        if not (value.roots & target.roots):
            return value
        return self.small(value) if value.size <= FEW else self.copied(value)

    def writable(self, value: Array) -> Buffer:
        """Memory with the elements of `value`, of which nobody else reads anything."""
        if isinstance(value, Formula):
            return self.in_memory(value) if not self.shared(value) else self.copied(value)
        if isinstance(value, Buffer):
            if value.whole and not self.shared(value):
                return value
            if value.whole and not value.root.fixed:
                self.release(value.root)
                if value.root.holders == 0:
                    return value
        return self.copied(value)

    def shared(self, value: Array) -> bool:
        return any(root.fixed or root.holders > 0 for root in value.roots)

    def copied(self, value: Array) -> Buffer:
        target = self.em.fresh(value.shape, value.dtype)
        self.em.write(target, value)
        return target

    def release(self, root: Root) -> None:
        """Compute what small values of this scope read of a root, so that it can be written over."""
        scope = self.scopes[-1]
        readers = [(v, x) for v, x in scope.items() if root in roots_of(x)]
        if len(readers) != root.holders or any(
            isinstance(x, Array) and 2 * x.size > root.elements for _, x in readers
        ):
            return
        for v, x in readers:
            assert isinstance(x, Array)
            drop(x)
            scope[v] = self.small(x) if x.size <= FEW else self.copied(x)
            hold(scope[v])

    # ------------------------------------------------------------ jaxprs

    def uses_of(self, jaxpr: Any, wanted: tuple[bool, ...]) -> Uses:
        key = (id(jaxpr), wanted)
        if key not in self.uses:
            self.uses[key] = Uses.of(jaxpr, wanted)
            self.kept.append(jaxpr)
        return self.uses[key]

    def constant(self, value: Any) -> Value:
        """A constant of a closed jaxpr."""
        if id(value) not in self.constants:
            host = np.asarray(value)
            if host.ndim == 0:
                return constant(host.item(), host.dtype)
            if host.size <= FEW:
                return Cells(host.shape, host.dtype, [constant(x, host.dtype) for x in host.reshape(-1).tolist()])
            self.constants[id(value)] = self.em.literal(host)
            self.kept.append(value)
        return self.constants[id(value)]

    def closed(self, jaxpr: Any, args: Sequence[Value], wanted: Sequence[bool]) -> list[Any]:
        return self.run(jaxpr.jaxpr, [self.constant(c) for c in jaxpr.consts], args, wanted)

    def run(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value], wanted: Sequence[bool]) -> list[Any]:
        """Write all needed equations; the results that are wanted (None for others)."""
        uses = self.uses_of(jaxpr, tuple(wanted))
        scope: dict[Any, Value] = {}
        self.scopes.append(scope)
        self.bind(scope, uses, [*jaxpr.constvars, *jaxpr.invars], [*consts, *args])
        for i, eqn in enumerate(jaxpr.eqns):
            if not uses.needed[i]:
                continue
            operands = [self.read(scope, v) for v in eqn.invars]
            for v in {v for v in eqn.invars if not is_literal(v)}:
                if uses.last[v] == i:
                    drop(scope.pop(v))
            found = self.equation(eqn, operands, [v in uses.counts for v in eqn.outvars])
            self.bind(scope, uses, eqn.outvars, found)
        results = [self.read(scope, v) if on else None for v, on in zip(jaxpr.outvars, wanted)]
        for value in scope.values():
            drop(value)
        self.scopes.pop()
        return results

    def bind(self, scope: dict[Any, Value], uses: Uses, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Give variables their values, where these are read: small ones in registers, formulas that are read more than
        once in memory."""

        def kept(i: int, value: Any) -> Any:
            if not isinstance(value, Array) or variables[i] not in uses.counts:
                return value
            if value.size <= (ROW if in_registers(value) else FEW):
                return self.small(value)
            return self.steady(value) if uses.counts[variables[i]] > 1 else value

        for variable, value in zip(variables, changed(values, kept)):
            if variable in uses.counts:
                scope[variable] = value
                hold(value)

    def read(self, scope: dict[Any, Value], atom: Any) -> Value:
        if is_literal(atom):
            dtype, shape = np.dtype(atom.aval.dtype), tuple(atom.aval.shape)
            value = constant(np.asarray(atom.val).item(), dtype)
            return value if not shape else Formula(shape, dtype, lambda place: value, cheap=True)
        return scope[atom]

    def equation(self, eqn: Any, args: list[Value], wanted: list[bool]) -> list[Value]:
        name, params = called(eqn), eqn.params
        if name in RULES:
            return [RULES[name](self, eqn, args)]
        if name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"):
            inner = params.get("jaxpr") or params.get("call_jaxpr") or params["call"]
            return self.closed(inner, args, wanted)
        if name == "cond":
            return self.cond(eqn, args, wanted)
        if name == "while":
            return self.while_(eqn, args, wanted)
        if name == "scan":
            return self.scan(eqn, args, wanted)
        raise NotImplementedError(name)

    def all_steady(self, values: Sequence[Value]) -> list[Value]:
        """Values that can each be read many times."""
        return changed(values, lambda _, value: self.steady(value))

    def scalars(self, value: Value) -> list[Scalar]:
        """All elements of a small value."""
        return list(self.em.elements(value)) if isinstance(value, Array) else [value]

    # ------------------------------------------------------------ conditionals

    def cond(self, eqn: Any, args: list[Value], wanted: list[bool]) -> list[Value]:
        which, *operands = args
        branches, em = eqn.params["branches"], self.em
        kind = np.dtype(eqn.invars[0].aval.dtype)
        assert not isinstance(which, Array)
        if not isinstance(which, str):
            return self.closed(branches[min(max(int(which), 0), len(branches) - 1)], operands, wanted)
        operands = self.all_steady(operands)
        starts = [em.new_block() for _ in branches]
        with em.scope():
            for i, start in enumerate(starts[:-1]):
                following = starts[-1] if i == len(starts) - 2 else em.new_block()
                if kind.kind == "b":
                    em.branch(which, following, start)
                else:
                    em.branch(em.compare("le", which, i, kind), start, following)
                em.block = following
        found: list[list[Value]] = []
        ends: list[Block] = []
        for start, branch in zip(starts, branches):
            em.block = start
            with em.scope():
                found.append(self.closed(branch, operands, wanted))
            ends.append(em.block)
        return self.joined(eqn.outvars, found, ends, wanted)

    def joined(self, variables: Any, found: list[list[Value]], ends: list[Block], wanted: list[bool]) -> list[Value]:
        """What the branches give back, each result in one place."""
        em = self.em
        results: list[Any] = [None] * len(variables)
        places: dict[int, Buffer] = {}
        few: list[int] = []
        taken: set[Root] = set()
        for k, variable in enumerate(variables):
            if not wanted[k]:
                continue
            shape, dtype = tuple(variable.aval.shape), np.dtype(variable.aval.dtype)
            values = [branch[k] for branch in found]
            first = values[0]
            if math.prod(shape) <= FEW:
                few.append(k)
            elif same_place(values) and isinstance(first, Buffer) and first.root not in taken:
                results[k] = first
                taken.add(first.root)
            else:
                places[k] = self.meeting_place(k, found, shape, dtype, taken)
                taken.add(places[k].root)
        cells: dict[int, list[list[Scalar]]] = {k: [] for k in few}
        lasts: list[Block] = []
        for branch, end in zip(found, ends):
            em.block = end
            with em.scope():
                for k in few:  # before anything is written over
                    cells[k].append(self.scalars(branch[k]))
                self.bring({k: (target, branch[k]) for k, target in places.items()})
            lasts.append(em.block)
        join = em.new_block()
        for last in lasts:
            em.block = last
            em.jump(join)
        em.block = join
        for k in few:
            aval = variables[k].aval
            shape, dtype = tuple(aval.shape), np.dtype(aval.dtype)
            merged = [
                column[0] if same_scalars(column) else em.phi(join, dtype, list(zip(column, lasts)))
                for column in zip(*cells[k])
            ]
            results[k] = Cells(shape, dtype, merged) if shape else merged[0]
        for k, target in places.items():
            results[k] = target
        return results

    def bring(self, moves: dict[int, tuple[Buffer, Value]]) -> None:
        """Write values to their targets as if at once."""
        targets = {k: target.root for k, (target, _) in moves.items()}
        pending = []
        for k, (target, value) in moves.items():
            assert isinstance(value, Array)
            if isinstance(value, Buffer) and value.root is target.root:
                continue
            crossing = any(root in value.roots for j, root in targets.items() if j != k)
            if crossing or (isinstance(value, Formula) and target.root in value.others):
                value = self.copied(value)
            pending.append((target, value))
        for target, value in pending:
            self.em.write(target, value)

    def meeting_place(
        self, k: int, found: list[list[Value]], shape: tuple[int, ...], dtype: np.dtype, taken: set[Root]
    ) -> Buffer:
        """Memory for a result that the branches leave in different places: that of one of them where nothing else is
        in it, or new memory."""
        for value in [branch[k] for branch in found]:
            if not isinstance(value, Buffer) or not value.whole or value.root in taken:
                continue
            root = value.root
            others = [v for branch in found for j, v in enumerate(branch) if j != k and v is not None]
            if not root.fixed and root.holders == 0 and not any(root in roots_of(v) for v in others):
                return Buffer(shape, dtype, root)
        return self.em.fresh(shape, dtype)

    # ------------------------------------------------------------ loops

    def homes(self, variables: Any, values: Sequence[Value]) -> list[Value]:
        """What a loop carries when it begins: small values in registers, arrays in memory of its own."""

        def home(i: int, value: Value) -> Value:
            return self.home(value, tuple(variables[i].aval.shape)) if isinstance(value, Array) else value

        return changed(values, home)

    def home(self, value: Array, shape: tuple[int, ...]) -> Array:
        if value.size <= FEW:
            return self.small(value)
        if not isinstance(value, Buffer):
            return self.in_memory(value)
        free = value.whole and not self.shared(value)
        return Buffer(shape, value.dtype, value.root) if free else self.copied(value)

    def carried(self, values: Sequence[Value], dtypes: Sequence[np.dtype]) -> tuple[list[Value], list[list[str]]]:
        """The same inside the loop, and the names of its registers."""
        inside: list[Value] = []
        names: list[list[str]] = []
        for value, dtype in zip(values, dtypes):
            if isinstance(value, Buffer):
                inside.append(value)
                names.append([])
            elif isinstance(value, Cells):
                names.append([self.em.name() for _ in value.elements])
                inside.append(Cells(value.shape, dtype, list(names[-1])))
            else:
                names.append([self.em.name()])
                inside.append(names[-1][0])
        return inside, names

    def again(self, inside: Sequence[Value], found: Sequence[Value]) -> list[list[Scalar]]:
        """At the end of a round: the registers' new values; arrays are back where they were."""
        cells = [[] if isinstance(old, Buffer) else self.scalars(new) for old, new in zip(inside, found)]
        self.bring({k: (old, found[k]) for k, old in enumerate(inside) if isinstance(old, Buffer)})
        return cells

    def registers(
        self, header: Block, before: Block, back: Block, dtypes: Sequence[np.dtype], starts: Sequence[Value],
        names: Sequence[Sequence[str]], ends: Sequence[Sequence[Scalar]],
    ) -> None:  # fmt: skip
        for dtype, start, row, last in zip(dtypes, starts, names, ends):
            if not isinstance(start, Buffer):
                for name, a, b in zip(row, self.scalars(start), last):
                    self.em.phi(header, dtype, [(a, before), (b, back)], name)

    def while_(self, eqn: Any, args: list[Value], wanted: list[bool]) -> list[Value]:
        em, params = self.em, eqn.params
        n, m = params["cond_nconsts"], params["body_nconsts"]
        with held(args[n + m :]):
            values = self.all_steady(args[: n + m])
        tests, consts = values[:n], values[n:]
        dtypes = [np.dtype(v.aval.dtype) for v in eqn.outvars]
        with held(values):
            starts = self.homes(eqn.outvars, args[n + m :])
            inside, names = self.carried(starts, dtypes)
            before, header = em.block, em.new_block()
            em.jump(header)
            em.block = header
            with held(starts):
                test = self.closed(params["cond_jaxpr"], [*tests, *inside], [True])[0]
            assert not isinstance(test, Array)
            body, after = em.new_block(), em.new_block()
            em.branch(test, body, after)
            em.block = body
            with em.scope():
                found = self.closed(params["body_jaxpr"], [*consts, *inside], [True] * len(inside))
                ends = self.again(inside, found)
            em.jump(header)
        self.registers(header, before, em.block, dtypes, starts, names, ends)
        em.block = after
        return inside

    def scan(self, eqn: Any, args: list[Value], wanted: list[bool]) -> list[Value]:
        em, params = self.em, eqn.params
        n, m, length = params["num_consts"], params["num_carry"], params["length"]
        if length == 0:
            raise NotImplementedError("scan of no length")
        if length * len(params["jaxpr"].eqns) <= WRITTEN_OUT:
            return self.written_out(eqn, args, wanted)
        with held(args[n : n + m]):
            values = self.all_steady([*args[:n], *args[n + m :]])
        consts, xs = values[:n], values[n:]
        dtypes = [np.dtype(v.aval.dtype) for v in eqn.outvars[:m]]
        ys = [em.fresh(v.aval.shape, np.dtype(v.aval.dtype)) for v in eqn.outvars[m:]]
        with held(values):
            starts = self.homes(eqn.outvars[:m], args[n : n + m])
            inside, names = self.carried(starts, dtypes)
            before = em.block
            with em.loop(length) as i:
                header = em.block
                place = em.minus(length - 1, i) if params["reverse"] else i
                rows = [self.row(x, place) for x in xs]
                found = self.closed(params["jaxpr"], [*consts, *inside, *rows], [True] * m + wanted[m:])
                self.keep_rows(ys, place, found[m:])
                ends = self.again(inside, found[:m])
                back = em.block
        self.registers(header, before, back, dtypes, starts, names, ends)
        last: list[Value] = []
        for old, row in zip(inside, ends):
            if isinstance(old, Buffer):
                last.append(old)
            else:
                last.append(dataclasses.replace(old, elements=row) if isinstance(old, Cells) else row[0])
        return [*last, *ys]

    def written_out(self, eqn: Any, args: list[Value], wanted: list[bool]) -> list[Value]:
        """A short scan as the rounds one after the other."""
        em, params = self.em, eqn.params
        n, m, length = params["num_consts"], params["num_carry"], params["length"]
        carry = args[n : n + m]
        with held(carry):
            values = self.all_steady([*args[:n], *args[n + m :]])
        consts, xs = values[:n], values[n:]
        ys = [em.fresh(v.aval.shape, np.dtype(v.aval.dtype)) for v in eqn.outvars[m:]]
        with held(values):
            for i in reversed(range(length)) if params["reverse"] else range(length):
                rows = [self.row(x, i) for x in xs]
                found = self.closed(params["jaxpr"], [*consts, *carry, *rows], [True] * m + wanted[m:])
                self.keep_rows(ys, i, found[m:])
                carry = found[:m]
        return [*carry, *ys]

    def row(self, x: Value, i: Scalar) -> Value:
        """Element i along the first axis."""
        assert isinstance(x, Array)
        shape = x.shape[1:]
        if not shape:
            return self.em.element(x, (i,))
        found = Formula(shape, x.dtype, lambda place: element(self, x, (i, *place)), others=x.roots, cheap=True)
        return self.small(found) if found.size <= FEW else found

    def keep_rows(self, ys: Sequence[Buffer], i: Scalar, values: Sequence[Value | None]) -> None:
        """Store elements i along the first axis; None where nobody wants it."""
        em = self.em
        for y, value in zip(ys, values):
            if value is None:
                continue

            def one(place: Place, y: Buffer = y, value: Value = value) -> None:
                em.store(y.root, em.flat(y.shape, (i, *place)), element(self, value, place))

            em.everywhere(y.shape[1:], one)


def same_place(values: Sequence[Value]) -> bool:
    """Whether all branches leave a result in the same memory."""
    first = values[0]
    return isinstance(first, Buffer) and all(
        isinstance(v, Buffer) and v.root is first.root and v.offset == first.offset for v in values
    )


def same_scalars(values: Sequence[Scalar]) -> bool:
    first = values[0]
    return all(type(v) is type(first) and v == first for v in values) and not isinstance(first, float)
