"""The points of a grid, and the program of each.

A point is one value for every varied name; the points are all combinations, the last name fastest. What a name may be
is what `--set` may name: a parameter of the program (IR 14: `POOL.cap`, `arrival.rate`), or an argument of a
ready-made deployment or workload, from which everything follows that follows from it.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from .. import ir, sources, traces
from ..builder import Origin, origin
from ..errors import nearest
from ..overrides import with_params

#: A value of a varied name.
Value = float | int | bool | str | None
#: Points of one grid.
MOST_POINTS = 10_000_000


class AbstractVariants(abc.ABC):
    """A program with other values by name. Subclasses can be sent to another process."""

    @property
    @abc.abstractmethod
    def base(self) -> ir.Program:
        """The program as it is."""

    @abc.abstractmethod
    def program(self, changes: Mapping[str, Value]) -> ir.Program:
        """The program with other values.

        **Raises:** `ValueError` for an unknown name, with the nearest known one; `ProgramError` for a value.
        """


@final
@dataclasses.dataclass(frozen=True)
class OfProgram(AbstractVariants):
    """Of a program object; `made` is what `serqjax.program` made it of, if it did."""

    made_of: ir.Program
    made: Origin | None

    @classmethod
    def of(cls, program: ir.Program) -> OfProgram:
        return cls(program, origin(program))

    @property
    def base(self) -> ir.Program:
        return self.made_of

    def program(self, changes: Mapping[str, Value]) -> ir.Program:
        names = [] if self.made is None else self.made.names()
        known = {*names, *(p.name for p in self.made_of.params)}
        for name in changes:
            if name not in known:
                raise ValueError(
                    f"vary: {name} is no parameter of {self.made_of.name}"
                    f"{' and no argument of what it was made of' if self.made else ''}: "
                    f"{nearest(name, known) or 'it has none'}"
                )
        arguments = {name: value for name, value in changes.items() if name in names}
        program = self.made.compose(arguments) if self.made is not None and arguments else self.made_of
        return with_params(program, numbers({k: v for k, v in changes.items() if k not in arguments}))


@final
@dataclasses.dataclass(frozen=True)
class OfSource(AbstractVariants):
    """Of what the command line names: the arguments of `serqjax.read`. `read` is the program as it is."""

    source: str
    workload: str | None
    settings: Mapping[str, sources.Setting]
    trace: traces.TraceFile | None
    read: ir.Program

    @classmethod
    def of(
        cls, source: str | os.PathLike[str], *, workload: str | None = None,
        settings: Mapping[str, sources.Setting] | None = None, trace: traces.TraceFile | None = None,
    ) -> OfSource:  # fmt: skip
        name, settings = os.fspath(source), dict(settings or {})
        return cls(name, workload, settings, trace,
                   sources.read(name, workload=workload, settings=settings, trace=trace))

    @property
    def base(self) -> ir.Program:
        return self.read

    def program(self, changes: Mapping[str, Value]) -> ir.Program:
        path = Path(self.source)
        if path.exists() and path.suffix != ".serq":  # a file's settings are its parameters: it is read once
            return with_params(self.read, numbers(changes))
        return sources.read(
            self.source, workload=self.workload, settings={**self.settings, **changes}, trace=self.trace
        )


def numbers(changes: Mapping[str, Value]) -> dict[str, float]:
    """**Raises:** `ValueError` for a value of a parameter that is not a number."""
    found = {}
    for name, value in changes.items():
        if not isinstance(value, (int, float)):
            raise ValueError(f"vary: {name}={value!r}: a parameter is a finite number")
        found[name] = float(value)
    return found


@final
@dataclasses.dataclass(frozen=True)
class Points:
    """All combinations of the values of `vary`, the last name fastest; `points[i]` makes the i-th."""

    vary: dict[str, tuple[Value, ...]]

    @classmethod
    def of(cls, vary: Mapping[str, Iterable[Value]]) -> Points:
        """**Raises:** `ValueError` for a name without values, a value named twice, or kinds that do not mix."""
        made: dict[str, tuple[Value, ...]] = {}
        for name, values in vary.items():
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise ValueError(f"vary: {name}={values!r}: give a list of values, for example [{values!r}]")
            listed = tuple(_plain(name, value) for value in itertools.islice(values, MOST_POINTS + 1))
            if not listed:
                raise ValueError(f"vary: {name} has no values: give at least one")
            if len(set(listed)) < len(listed):
                twice = next(v for v in listed if listed.count(v) > 1)
                raise ValueError(f"vary: {name}={twice!r} is named twice")
            column(listed)
            made[name] = listed
        if math.prod(map(len, made.values())) > MOST_POINTS:
            raise ValueError(f"vary: more than {MOST_POINTS:,} points; give fewer values")
        return cls(made)

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.vary.values())

    def __getitem__(self, index: int) -> dict[str, Value]:
        if not 0 <= index < len(self):
            raise IndexError(f"point {index} of {len(self)}")
        point: dict[str, Value] = {}
        for name in reversed(self.vary):
            index, place = divmod(index, len(self.vary[name]))
            point[name] = self.vary[name][place]
        return {name: point[name] for name in self.vary}

    def cover(self) -> list[int]:
        """Points in which every value of every name occurs: as many as the longest list of values."""
        longest = max(map(len, self.vary.values()), default=1)
        found = []
        for k in range(longest):
            index = 0
            for values in self.vary.values():
                index = index * len(values) + min(k, len(values) - 1)
            found.append(index)
        return found


def _plain(name: str, value: Any) -> Value:
    """A value as Python has it (numpy's numbers become its own); the whole ones among floats stay floats."""
    if hasattr(value, "item"):
        value = value.item()
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"vary: {name}={value!r}: a number, a word, true, false or nothing is needed")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"vary: {name}={value!r}: this is not a number")
    return value


def column(values: Iterable[Value]) -> type:
    """What a column of these values holds: whole numbers, numbers, truth values, or words for everything else."""
    kinds = {type(value) for value in values}
    if kinds <= {int}:
        return int
    if kinds <= {int, float}:
        return float
    return bool if kinds == {bool} else str


def as_text(point: Mapping[str, Value]) -> str:
    """`request_rate=2, max_num_seqs=64`."""
    return ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                     for name, value in point.items()) or "the program as it is"


def parse_vary(words: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """`NAME=16,32,64` and `NAME=A:B:N` (N points from A to B, linear, both ends included) of the command line.

    **Raises:** `ValueError` that quotes the word.
    """
    out: dict[str, tuple[Value, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise ValueError(f"--vary {word}: write NAME=16,32,64 or NAME=A:B:N (N points, both ends included)")
        if name in out:
            raise ValueError(f"--vary {name}: given twice")
        out[name] = _span(word, text) if ":" in text else tuple(_word(word, part) for part in text.split(","))
    return out


def _word(word: str, text: str) -> Value:
    if not text:
        raise ValueError(f"--vary {word}: a value is empty: write NAME=16,32,64")
    return sources.as_value(text)


def _span(word: str, text: str) -> tuple[Value, ...]:
    from fractions import Fraction

    try:
        first, last, count = text.split(":")
        low, high, n = Fraction(first), Fraction(last), int(count)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--vary {word}: write NAME=A:B:N with numbers A and B and a whole number N") from None
    if n < 2 or low == high:
        raise ValueError(f"--vary {word}: A and B differ, and N is at least 2 (both ends are points)")
    # exact until here: 0.1:0.5:3 has the point 0.3 that --set would give
    return tuple(float(low + (high - low) * k / (n - 1)) for k in range(min(n, MOST_POINTS + 1)))
