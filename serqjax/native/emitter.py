"""The text of an LLVM function: blocks, loops, memory, typed instructions.

**Source:** the LLVM Language Reference.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .values import Array, Buffer, Cells, Formula, Place, Root, Scalar, flat_place

#: dtype: type of a register, type in memory, bytes.
TYPES = {
    "bool": ("i1", "i8", 1),
    "int8": ("i8", "i8", 1),
    "uint8": ("i8", "i8", 1),
    "int32": ("i32", "i32", 4),
    "uint32": ("i32", "i32", 4),
    "int64": ("i64", "i64", 8),
    "uint64": ("i64", "i64", 8),
    "float32": ("float", "float", 4),
    "float64": ("double", "double", 8),
}
#: Memory is divided in lines of the cache.
LINE = 64
#: Elements that are computed together along the last axis of a loop.
WIDTH = 8
#: Elements up to which such a loop is written out.
WRITTEN_OUT = 64


class Wide(str):
    """The name of a register with `WIDTH` elements."""


class Steps(str):
    """A place in a loop that takes `WIDTH` elements at once: the first of them."""


class NotWide(Exception):
    """This element cannot be computed together with its neighbours."""


def register_type(dtype: np.dtype) -> str:
    return TYPES[dtype.name][0]


def suffix(dtype: np.dtype, wide: bool) -> str:
    """How the names of intrinsics call a type."""
    kind = {"double": "f64", "float": "f32"}.get(register_type(dtype), register_type(dtype))
    return f"v{WIDTH}{kind}" if wide else kind


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f"


def wrapped(value: int, dtype: np.dtype) -> int:
    """An integer as its dtype holds it."""
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def constant(value: Any, dtype: np.dtype) -> Scalar:
    """A number of the host as a constant of a dtype."""
    if dtype.kind == "b":
        return bool(value)
    return float(value) if is_float(dtype) else int(value)


def operand(value: Scalar, dtype: np.dtype) -> str:
    """A scalar as LLVM reads it."""
    if isinstance(value, str):
        return value
    if dtype.kind == "b":
        return "true" if value else "false"
    if is_float(dtype):
        number = float(np.float32(value)) if dtype.itemsize == 4 else float(value)
        return "0x" + struct.pack(">d", number).hex().upper()
    value = int(value)
    bits = dtype.itemsize * 8
    return str(value - (1 << bits) if value >> (bits - 1) and value > 0 else value)


@dataclasses.dataclass(eq=False)
class Block:
    name: str
    phis: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)


class Emitter:
    """A function in the making; `block` is where the next instruction goes."""

    def __init__(self) -> None:
        self.count = 0
        self.entry = Block("entry")
        self.blocks = [self.entry]
        self.block = self.entry
        self.heads: list[str] = []  # pointers, at the head of the entry
        self.bytes = 0
        self.aliases = 0
        self.globals: list[str] = []
        self.declared: dict[str, str] = {}
        self.known: list[dict[str, str]] = [{}]

    # ------------------------------------------------------------ instructions

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def op(self, text: str) -> str:
        """The register with the result of an instruction that reads no memory; one that is known here is not written
        again."""
        for scope in reversed(self.known):
            if text in scope:
                return scope[text]
        name = self.known[-1][text] = self.always(text)
        return name

    def always(self, text: str) -> str:
        """The register with the result of an instruction."""
        name = self.name()
        self.block.lines.append(f"{name} = {text}")
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is written inside is not known afterwards: it need not be on the way."""
        self.known.append({})
        try:
            yield
        finally:
            self.known.pop()

    def do(self, text: str) -> None:
        self.block.lines.append(text)

    def new_block(self) -> Block:
        self.count += 1
        block = Block(f"b{self.count}")
        self.blocks.append(block)
        return block

    def jump(self, block: Block) -> None:
        self.do(f"br label %{block.name}")

    def branch(self, test: Scalar, yes: Block, no: Block) -> None:
        self.do(f"br i1 {operand(test, np.dtype(bool))}, label %{yes.name}, label %{no.name}")

    def phi(self, block: Block, dtype: np.dtype, sources: Sequence[tuple[Scalar, Block]], name: str = "") -> str:
        name = name or self.name()
        pairs = ", ".join(f"[ {operand(v, dtype)}, %{b.name} ]" for v, b in sources)
        block.phis.append(f"{name} = phi {register_type(dtype)} {pairs}")
        return name

    # ------------------------------------------------------------ typed instructions

    def kind(self, dtype: np.dtype, wide: bool) -> str:
        return f"<{WIDTH} x {register_type(dtype)}>" if wide else register_type(dtype)

    def read(self, value: Scalar, dtype: np.dtype, wide: bool) -> str:
        """A scalar as an operand; the same in all elements of a wide register."""
        if isinstance(value, Steps):
            raise NotWide
        text = operand(value, dtype)
        if not wide or isinstance(value, Wide):
            return text
        kind = register_type(dtype)
        if not isinstance(value, str):
            return f"splat ({kind} {text})"
        full = self.kind(dtype, True)
        one = self.op(f"insertelement {full} poison, {kind} {text}, i64 0")
        return self.op(f"shufflevector {full} {one}, {full} poison, <{WIDTH} x i32> zeroinitializer")

    def result(self, text: str, wide: bool) -> Scalar:
        name = self.op(text)
        return Wide(name) if wide else name

    def binary(self, name: str, dtype: np.dtype, a: Scalar, b: Scalar) -> Scalar:
        wide = isinstance(a, Wide) or isinstance(b, Wide)
        x, y = self.read(a, dtype, wide), self.read(b, dtype, wide)
        return self.result(f"{name} {self.kind(dtype, wide)} {x}, {y}", wide)

    def unary(self, name: str, dtype: np.dtype, a: Scalar) -> Scalar:
        wide = isinstance(a, Wide)
        return self.result(f"{name} {self.kind(dtype, wide)} {self.read(a, dtype, wide)}", wide)

    def cast(self, name: str, old: np.dtype, new: np.dtype, a: Scalar) -> Scalar:
        wide = isinstance(a, Wide)
        return self.result(f"{name} {self.kind(old, wide)} {self.read(a, old, wide)} to {self.kind(new, wide)}", wide)

    def intrinsic(
        self, name: str, out: np.dtype, kinds: Sequence[np.dtype], args: Sequence[Scalar], *named: np.dtype
    ) -> Scalar:
        """`name`: without the types, which are those of `named` (the result's if there are none)."""
        wide = any(isinstance(a, Wide) for a in args)
        full = ".".join([name, *[suffix(d, wide) for d in (named or (out,))]])
        texts = [f"{self.kind(k, wide)} {self.read(a, k, wide)}" for k, a in zip(kinds, args)]
        result = self.kind(out, wide)
        self.declared[full] = f"declare {result} @{full}({', '.join(self.kind(k, wide) for k in kinds)})"
        return self.result(f"call {result} @{full}({', '.join(texts)})", wide)

    def c_function(self, name: str, args: Sequence[Scalar]) -> Scalar:
        """A function of the C library, of doubles."""
        if any(isinstance(a, Wide) for a in args):
            raise NotWide
        double = np.dtype("float64")
        self.declared[name] = f"declare double @{name}({', '.join(['double'] * len(args))})"
        return self.op(f"call double @{name}({', '.join(f'double {self.read(a, double, False)}' for a in args)})")

    def numbers(self, place: Scalar) -> Scalar:
        """A place as a number to compute with."""
        if not isinstance(place, Steps):
            return place
        kind = self.kind(np.dtype("int64"), True)
        first = self.read(str(place), np.dtype("int64"), True)
        steps = ", ".join(f"i64 {i}" for i in range(WIDTH))
        return Wide(self.op(f"add {kind} {first}, <{steps}>"))

    # ------------------------------------------------------------ places

    def plus(self, a: Scalar, b: Scalar) -> Scalar:
        """The sum of two places."""
        if isinstance(a, Wide) or isinstance(b, Wide) or (isinstance(a, Steps) and isinstance(b, Steps)):
            raise NotWide
        if isinstance(a, str) or isinstance(b, str):
            if a == 0:
                return b
            if b == 0:
                return a
            name = self.op(f"add nsw i64 {a}, {b}")
            return Steps(name) if isinstance(a, Steps) or isinstance(b, Steps) else name
        return int(a) + int(b)

    def minus(self, a: int, b: Scalar) -> Scalar:
        if isinstance(b, Wide | Steps):
            raise NotWide
        return self.op(f"sub nsw i64 {a}, {b}") if isinstance(b, str) else a - int(b)

    def times(self, a: Scalar, factor: int) -> Scalar:
        if factor == 1 or a == 0:
            return a
        if isinstance(a, Wide | Steps):
            raise NotWide
        return self.op(f"mul nsw i64 {a}, {factor}") if isinstance(a, str) else int(a) * factor

    def flat(self, shape: Sequence[int], place: Place) -> Scalar:
        """Number of the element at a place."""
        number: Scalar = 0
        for extent, i in zip(shape, place):
            number = self.plus(self.times(number, extent), i)
        return number

    # ------------------------------------------------------------ memory

    def alias(self) -> str:
        self.aliases += 1
        return f"!{10 + 2 * self.aliases}"

    def root(self, elements: int, dtype: np.dtype) -> Root:
        """Memory of this function's own."""
        name = self.name()
        self.heads.append(f"{name} = getelementptr inbounds i8, ptr %space, i64 {self.bytes}")
        self.bytes += -(-elements * TYPES[dtype.name][2] // LINE) * LINE
        return Root(name, self.alias(), elements, dtype)

    def fresh(self, shape: Sequence[int], dtype: np.dtype) -> Buffer:
        return Buffer(tuple(shape), dtype, self.root(math.prod(shape), dtype))

    def literal(self, values: np.ndarray) -> Buffer:
        """A constant array."""
        self.count += 1
        name, kind = f"@c{self.count}", TYPES[values.dtype.name][1]
        stored = values.astype(np.int8) if values.dtype.kind == "b" else values
        body = ", ".join(f"{kind} {operand(x, stored.dtype)}" for x in stored.reshape(-1).tolist())
        self.globals.append(f"{name} = private unnamed_addr constant [{values.size} x {kind}] [{body}], align {LINE}")
        return Buffer(values.shape, values.dtype, Root(name, self.alias(), values.size, values.dtype, fixed=True))

    def pointer(self, root: Root, number: Scalar) -> str:
        if isinstance(number, Wide):
            raise NotWide
        if number == 0:
            return root.pointer
        return self.op(f"getelementptr inbounds {TYPES[root.dtype.name][1]}, ptr {root.pointer}, i64 {number}")

    def load(self, root: Root, number: Scalar) -> Scalar:
        """The element at a number; from there on, at steps."""
        wide = isinstance(number, Steps)
        _, stored, size = TYPES[root.dtype.name]
        kind = f"<{WIDTH} x {stored}>" if wide else stored
        value = self.always(f"load {kind}, ptr {self.pointer(root, number)}, align {size}, !tbaa {root.alias}")
        if root.dtype.kind == "b":
            value = self.op(f"trunc {kind} {value} to {self.kind(root.dtype, wide)}")
        return Wide(value) if wide else value

    def store(self, root: Root, number: Scalar, value: Scalar) -> None:
        wide = isinstance(number, Steps)
        if isinstance(value, Wide) and not wide:
            raise NotWide
        _, stored, size = TYPES[root.dtype.name]
        kind = f"<{WIDTH} x {stored}>" if wide else stored
        text = self.read(value, root.dtype, wide)
        if root.dtype.kind == "b":
            text = self.op(f"zext {self.kind(root.dtype, wide)} {text} to {kind}")
        self.do(f"store {kind} {text}, ptr {self.pointer(root, number)}, align {size}, !tbaa {root.alias}")

    # ------------------------------------------------------------ loops

    @contextmanager
    def loop(self, count: int, step: int = 1) -> Iterator[str]:
        """Rounds of what is written inside, for `count` (1 or more) elements; the number of the round's first."""
        before, body, after = self.block, self.new_block(), self.new_block()
        self.jump(body)
        self.block = body
        i, following = self.name(), self.name()
        with self.scope():
            yield i
        self.do(f"{following} = add nuw nsw i64 {i}, {step}")
        test = self.op(f"icmp ult i64 {following}, {count}")
        self.branch(test, body, after)
        body.phis.append(f"{i} = phi i64 [ 0, %{before.name} ], [ {following}, %{self.block.name} ]")
        self.block = after

    def attempt(self, do: Callable[[], Any]) -> bool:
        """Write `do`; if it cannot be wide, nothing."""
        block, blocks, lines = self.block, len(self.blocks), len(self.block.lines)
        known = self.known
        try:
            with self.scope():
                do()
                written = self.known[-1]
        except NotWide:
            self.known = known
            del self.blocks[blocks:], block.lines[lines:]
            self.block = block
            return False
        self.known[-1].update(written)
        return True

    def everywhere(self, shape: Sequence[int], do: Callable[[Place], None], place: tuple[Scalar, ...] = ()) -> None:
        """Write `do` for all places of a shape: a loop for each axis longer than one, the last one wide if it can."""

        def narrow() -> None:
            with self.loop(shape[0]) as i:
                self.everywhere(shape[1:], do, (*place, i))

        def wide() -> None:
            if shape[0] <= WRITTEN_OUT:
                for i in range(0, shape[0], WIDTH):
                    do((*place, Steps(i)))
                return
            with self.loop(shape[0], WIDTH) as i:
                do((*place, Steps(i)))

        if not shape:
            do(place)
        elif shape[0] == 1:
            self.everywhere(shape[1:], do, (*place, 0))
        elif shape[0] > 1:
            tries = len(shape) == 1 and shape[0] % WIDTH == 0
            if not (tries and self.attempt(wide)):
                narrow()

    def fold(
        self, shape: Sequence[int], state: Sequence[tuple[Scalar, np.dtype]],
        do: Callable[[Place, list[Scalar]], list[Scalar]], place: tuple[Scalar, ...] = (),
    ) -> list[Scalar]:  # fmt: skip
        """Carry scalars through all places of a shape, the last axis fastest."""
        if not shape:
            return do(place, [value for value, _ in state])
        if 0 in shape:
            return [value for value, _ in state]
        if shape[0] == 1:
            return self.fold(shape[1:], state, do, (*place, 0))
        return self.carry(shape[0], 1, state, lambda i, inner: self.fold(shape[1:], inner, do, (*place, i)))

    def carry(
        self, count: int, step: int, state: Sequence[tuple[Scalar, np.dtype]],
        do: Callable[[str, list[tuple[Scalar, np.dtype]]], list[Scalar]],
    ) -> list[Scalar]:  # fmt: skip
        """A loop that carries scalars, wide where they begin wide."""
        before = self.block
        names = [Wide(self.name()) if isinstance(v, Wide) else self.name() for v, _ in state]
        with self.loop(count, step) as i:
            body = self.block
            found = do(i, [(name, kind) for name, (_, kind) in zip(names, state)])
            end = self.block
            if any(isinstance(v, Wide) and not isinstance(n, Wide) for v, n in zip(found, names)):
                raise NotWide
        for name, (first, dtype), last in zip(names, state, found):
            kind = self.kind(dtype, isinstance(name, Wide))
            pairs = f"[ {operand(first, dtype)}, %{before.name} ], [ {operand(last, dtype)}, %{end.name} ]"
            body.phis.append(f"{name} = phi {kind} {pairs}")
        return found

    def reduce(
        self, shape: Sequence[int], dtype: np.dtype, start: Scalar,
        step: Callable[[Scalar, Scalar], Scalar], element: Callable[[Place], Scalar],
    ) -> Scalar:  # fmt: skip
        """All elements combined, in an order that depends on the shape alone."""
        found: list[Scalar] = []

        def wide() -> None:
            first = Wide(self.op(f"freeze {self.kind(dtype, True)} {self.read(start, dtype, True)}"))
            found.append(self.together(dtype, step, self.wide_fold(shape, dtype, first, step, element)))

        if shape and shape[-1] % WIDTH == 0 and shape[-1] > 0 and self.attempt(wide):
            return found[-1]
        return self.fold(shape, [(start, dtype)], lambda place, state: [step(state[0], element(place))])[0]

    def wide_fold(
        self, shape: Sequence[int], dtype: np.dtype, state: Scalar, step: Callable[[Scalar, Scalar], Scalar],
        element: Callable[[Place], Scalar], place: tuple[Scalar, ...] = (),
    ) -> Scalar:  # fmt: skip
        if len(shape) > 1:
            return self.carry(
                shape[0], 1, [(state, dtype)],
                lambda i, inner: [self.wide_fold(shape[1:], dtype, inner[0][0], step, element, (*place, i))],
            )[0]  # fmt: skip

        if shape[0] <= WRITTEN_OUT:
            for i in range(0, shape[0], WIDTH):
                state = step(state, element((*place, Steps(i))))
            return state

        return self.carry(
            shape[0], WIDTH, [(state, dtype)],
            lambda i, inner: [step(inner[0][0], element((*place, Steps(i))))],
        )[0]  # fmt: skip

    def together(self, dtype: np.dtype, step: Callable[[Scalar, Scalar], Scalar], value: Scalar) -> Scalar:
        """The elements of a wide register combined."""
        kind, half = self.kind(dtype, True), WIDTH // 2
        while half:
            order = ", ".join(f"i32 {i + half if i < half else 0}" for i in range(WIDTH))
            other = Wide(self.op(f"shufflevector {kind} {value}, {kind} poison, <{WIDTH} x i32> <{order}>"))
            value = step(value, other)
            half //= 2
        return self.op(f"extractelement {kind} {value}, i64 0")

    # ------------------------------------------------------------ elements

    def element(self, value: Array, place: Place) -> Scalar:
        """One element of an array."""
        if isinstance(value, Formula):
            return value.element(place)
        if isinstance(value, Buffer):
            return self.load(value.root, self.plus(self.flat(value.shape, place), value.offset))
        assert isinstance(value, Cells)
        number = self.flat(value.shape, place)
        if isinstance(number, Steps):
            raise NotWide
        if not isinstance(number, str):
            return value.elements[int(number)]
        found = value.elements[-1]
        for i in reversed(range(len(value.elements) - 1)):
            found = self.select(self.compare("eq", number, i, np.dtype("int64")), value.elements[i], found, value.dtype)
        return found

    def elements(self, value: Array) -> list[Scalar]:
        """All elements of a small array."""
        if isinstance(value, Cells):
            return value.elements
        return [self.element(value, flat_place(value.shape, i)) for i in range(value.size)]

    def write(self, target: Buffer, value: Array) -> None:
        """Store all elements of an array of the target's shape."""
        if target.size == 0:
            return
        if isinstance(value, Cells):
            for i, x in enumerate(value.elements):
                self.store(target.root, target.offset + i, x)
            return
        if isinstance(value, Buffer):
            value = dataclasses.replace(value, shape=(value.size,))
            target = dataclasses.replace(target, shape=(target.size,))

        def one(place: Place) -> None:
            number = self.plus(self.flat(target.shape, place), target.offset)
            self.store(target.root, number, self.element(value, place))

        self.everywhere(target.shape, one)

    # ------------------------------------------------------------ operations on scalars

    def select(self, test: Scalar, yes: Scalar, no: Scalar, dtype: np.dtype) -> Scalar:
        if not isinstance(test, str):
            return yes if test else no
        if yes == no and type(yes) is type(no) and not isinstance(yes, float):
            return yes
        wide = any(isinstance(x, Wide) for x in (test, yes, no))
        kind, which = self.kind(dtype, wide), self.kind(np.dtype(bool), isinstance(test, Wide))
        x, y = self.read(yes, dtype, wide), self.read(no, dtype, wide)
        return self.result(f"select {which} {test}, {kind} {x}, {kind} {y}", wide)

    COMPARE = {
        "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    }  # fmt: skip

    def compare(self, how: str, a: Scalar, b: Scalar, dtype: np.dtype) -> Scalar:
        if not (isinstance(a, str) or isinstance(b, str)):
            return bool(self.COMPARE[how](a, b))
        if is_float(dtype):
            test = "fcmp " + ("une" if how == "ne" else f"o{how}")
        elif how in ("eq", "ne"):
            test = f"icmp {how}"
        else:
            test = "icmp " + ("s" if dtype.kind == "i" else "u") + how
        return self.binary(test, dtype, a, b)

    def unordered(self, a: Scalar, dtype: np.dtype) -> Scalar:
        """Whether a float is not a number."""
        return self.binary("fcmp uno", dtype, a, a)

    def text(self, arguments: int) -> str:
        """The module: `lanes(table, count, space)` runs the function for each of `count` rows of pointers, `arguments`
        in each."""
        body = []
        for block in self.blocks:
            body.append(f"{block.name}:")
            body += [f"  {line}" for line in block.phis]
            if block is self.entry:
                body += [f"  {line}" for line in self.heads]
            body += [f"  {line}" for line in block.lines]
        metadata = ['!0 = !{!"memory"}']
        for k in range(1, self.aliases + 1):
            n = 10 + 2 * k
            metadata.append(f"!{n} = !{{!{n + 1}, !{n + 1}, i64 0}}")
            metadata.append(f'!{n + 1} = !{{!"m{k}", !0, i64 0}}')
        head = "define internal void @one(ptr noalias readonly %arguments, ptr noalias %space) noinline nounwind {"
        every = EVERY_LANE.format(arguments=arguments)
        return "\n".join([*self.globals, *self.declared.values(), head, *body, "}", every, *metadata, ""])


EVERY_LANE = """
define void @lanes(ptr %table, i64 %count, ptr %space) nounwind {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %round, label %end
round:
  %lane = phi i64 [ 0, %entry ], [ %next, %round ]
  %first = mul nsw i64 %lane, {arguments}
  %row = getelementptr inbounds ptr, ptr %table, i64 %first
  call void @one(ptr %row, ptr %space)
  %next = add nsw i64 %lane, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %round, label %end
end:
  ret void
}}"""
