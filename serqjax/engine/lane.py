"""What a phase works on: the job and data of an instance, and `Lane`, the mutable view of its state while it is traced.

Which arrays the state has stands in `state.py`.

**Source:** `design.md`, section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .access import FAR, AbstractTable, load, pack, stack_like, store, store_across, store_row, whole
from .faults import Fault
from .plan import Plan
from .state import LATEST, MOST_READY, RUNNING, session_axes


class Job(eqx.Module):
    """What varies between instances of one plan; all arrays, batched by `vmap` except `data`.

    - `numbers` `[numbers]` float64; `integers` `[integers]` int64: the program's numbers and cost integers.
    - `horizon`, `warmup` ticks (`FAR`: none); `limit`: number of arrivals (`FAR`: no limit).
    - `which`: index of the session data this instance reads. `seed`: uint64, of all its streams.
    """

    numbers: Array
    integers: Array
    horizon: Array
    warmup: Array
    limit: Array
    which: Array
    seed: Array
    stop: Array  # end at a livelock or deadlock


class GridData(eqx.Module):
    """One table of each program: `coordinates` of each axis `[programs, points]`, infinite past the last; `values`.

    `values` `[programs, points of the first axis, ...]`, NaN where there is none; `missing` `[programs]`.
    """

    coordinates: tuple[Array, ...]
    values: Array
    missing: Array


class Data(eqx.Module):
    """Sessions as data, shared by all instances: `[programs, ...]`, read at `Job.which`.

    `at` `[programs, sessions]` ticks (`FAR` past the last); `values` `[programs, sessions, attrs]` and `turns`
    `[programs, rows, attrs]` float64 with NaN for "keep"; `turn_start`, `turn_count` `[programs, scripts]`; `contents`
    `[programs, names]` int32: recorded contents, each with all before it, numbered; `content_start`,
    `content_count`. `grids`: the tables that costs read.
    """

    at: Array
    values: Array
    turns: Array
    turn_start: Array
    turn_count: Array
    contents: Array
    content_start: Array
    content_count: Array
    grids: tuple[GridData, ...] = ()


class Tape(eqx.Module):
    """Which trace sessions the next sessions of an instance replay: `base` is the serial of the first.

    `script` `[ahead]` int32; one dummy row in a program without a trace.
    """

    base: Array
    script: Array


class Lane:
    """A mutable view of one instance's state while a phase is traced; `lane.x` is the array named x."""

    __slots__ = ("s", "plan", "job", "data", "tape", "go", "lanes")

    def __init__(self, state: dict[str, Any], plan: Plan, job: Job, data: Data, tape: Tape, go: Any, lanes: Any):
        for name, value in (
            ("s", dict(state)), ("plan", plan), ("job", job), ("data", data), ("tape", tape), ("go", go),
            ("lanes", lanes),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Array:
        try:
            return self.s[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.s[name]
        if isinstance(old, AbstractTable):
            old.write(value)
            return
        value = jnp.asarray(value)
        assert value.shape == old.shape, (name, value.shape, old.shape)
        self.s[name] = value.astype(old.dtype)

    def has(self, name: str) -> bool:
        return name in self.s

    def fence(self, *values: Any) -> Any:
        """The values, computed once and stored.

        XLA on CPU has no fusion with several outputs: every array that a turn carries would recompute the whole
        chain behind it. The operands of a conditional are stored, whatever its branches do; `go` is true at
        run time and unknown to the compiler. Native code and kernels have no `go` and need no fence.
        """
        if self.go is None:
            return tuple(jnp.asarray(v) for v in values)
        leaves = tuple(jnp.asarray(v) for v in values)
        return lax.cond(self.go, lambda *a: a, lambda *a: tuple(jnp.zeros_like(x) for x in a), *leaves)

    def only(self, mask: Array, phase: Callable[[Lane], Any], otherwise: Any = ()) -> Any:
        """Run `phase` on this lane if the batch needs it (it masks itself per instance).

        **Returns:** what `phase` returns, or `otherwise`, which has the same structure; () for None.
        """
        tables = {name: x for name, x in self.s.items() if isinstance(x, AbstractTable)}
        carried = {name: x for name, x in self.s.items() if name not in tables}

        def run(state: dict[str, Array]) -> tuple[dict[str, Array], Any]:
            inner = Lane(state | tables, self.plan, self.job, self.data, self.tape, self.go, self.lanes)
            found = phase(inner)
            return {name: inner.s[name] for name in carried}, () if found is None else found

        state, found = lax.cond(self.lanes.any(mask), run, lambda s: (s, otherwise), carried)
        self.s.update(state)
        return found

    def perhaps(self, mask: Array, part: Callable[[Lane], None]) -> None:
        """Run a small part of a phase, which masks itself; passed over without `mask` where that takes less time."""
        self.lanes.perhaps(lambda: self.only(mask, part), lambda: part(self))

    def residents(self, phase: Callable[[Lane], Any]) -> Any:
        """Run `phase` on the rows alone in which sessions on step stages sit; what it returns.

        Inside, no phase may be made conditional (`only`): that would copy the rows.
        """
        if not self.has("seats"):
            return phase(self)
        axes = session_axes(self.plan)
        n = self.seats.shape[0]
        rows = {name: lax.slice_in_dim(self.s[name], 0, n, axis=axes[name]) for name in axes if self.has(name)}
        inner = Lane(self.s | rows, self.plan, self.job, self.data, self.tape, self.go, self.lanes)
        found = phase(inner)
        for name, value in inner.s.items():
            if name not in rows:
                self.s[name] = value
            elif value is not rows[name]:
                self.s[name] = lax.dynamic_update_slice_in_dim(self.s[name], value, 0, axes[name])
        return found

    def pick(self, mask: Array, **values: Any) -> None:
        """Set scalars or whole vectors (a list: of scalars) where `mask`."""
        for name, value in values.items():
            if isinstance(value, list):
                value = stack_like(self.s[name], value)
            setattr(self, name, jnp.where(mask, value, whole(self.s[name])))

    def put(self, name: str, slot: Array, value: Any, mask: Array) -> None:
        """Set row `slot` of a table where `mask`."""
        self.s[name] = store(self.s[name], slot, jnp.asarray(value).astype(self.s[name].dtype), mask)

    def put_row(self, name: str, slot: Array, values: list[Any], mask: Array) -> None:
        """Set row `slot` of a table of several columns where `mask`."""
        self.s[name] = store_row(self.s[name], slot, values, mask)

    def append(self, name: str, values: list[Any], mask: Array) -> None:
        """One more column of an output buffer where `mask`.

        It is written in any case, behind the last one that counts, where there is always room for it (`step.pause`).
        """
        self.s[name] = store_across(self.s[name], self.s[f"{name}_n"], values)
        self.bump(f"{name}_n", mask)

    def add(self, name: str, index: int, value: Any, mask: Array) -> None:
        """Add to a static element of a vector where `mask`."""
        old = self.s[name]
        if isinstance(old, AbstractTable):
            old.store((index,), old.load(index) + jnp.asarray(value).astype(old.dtype), mask)
            return
        self.s[name] = old.at[index].add(jnp.where(mask, value, 0).astype(old.dtype))

    def add_at(self, name: str, index: Array, value: Any, mask: Array) -> None:
        """Add to a dynamic element of a short vector where `mask` (one-hot: pools and stages are few)."""
        old = self.s[name]
        if isinstance(old, AbstractTable):
            here = mask & (index >= 0) & (index < old.shape[0])
            old.store((index,), old.load(index) + jnp.asarray(value).astype(old.dtype), here)
            return
        hot = (jnp.arange(old.shape[0]) == index) & mask
        self.s[name] = old + jnp.where(hot, value, 0).astype(old.dtype)

    @property
    def running(self) -> Array:
        return (self.verdict == RUNNING) & ~self.stall & (self.fault == 0)

    @property
    def between(self) -> Array:
        """No action but a growth is half done."""
        calm = self.running & (self.unwind < 0) & (self.sweep >= len(self.plan.skeleton.pools))
        if self.has("join"):
            calm &= (self.join < 0) & (self.ask < 0)
        if self.has("fork"):
            calm &= self.fork < 0
        return calm

    @property
    def growing_now(self) -> Array:
        return self.grow >= 0 if self.has("grow") else jnp.bool_(False)

    @property
    def idle(self) -> Array:
        """No action is half done."""
        return self.between & ~self.growing_now if self.has("grow") else self.between

    def bump(self, name: str, mask: Array) -> None:
        """Count one more where `mask`."""
        self.s[name] = self.s[name] + mask.astype(self.s[name].dtype)

    def make_ready(self, slot: Array, mask: Array) -> None:
        """Append a session to the ready list; too often at one instant is an error of the program."""
        if self.has("deadline"):
            self.disarm(slot, mask)
        self.put("ready", slot, pack(self.ready_seq, slot), mask)
        self.bump("ready_seq", mask)
        self.bump("readies", mask)
        self.pick(mask, latest_ready=slot)
        again = load(self.ready_at, slot) == self.now
        times = jnp.where(again, load(self.ready_n, slot) + 1, 1)
        self.put("ready_at", slot, self.now, mask)
        self.put("ready_n", slot, times, mask)
        self.fail(mask & (times > MOST_READY), Fault.unsettled, slot)

    def arm(self, slot: Array, ticks: Array, target: Array, mask: Array) -> None:
        """A session has blocked: it goes on at the state `target` after `ticks`; never after `LATEST` or more."""
        mask = mask & (ticks < LATEST)
        self.put("deadline", slot, self.now + ticks, mask)
        self.put("deadline_key", slot, pack(self.event_seq, slot), mask)
        self.put("deadline_to", slot, target, mask)
        self.bump("event_seq", mask)

    def disarm(self, slot: Array, mask: Array) -> None:
        """The session is not blocked any more where its deadline was: none stands."""
        self.put("deadline", slot, FAR, mask)
        self.put("deadline_key", slot, FAR, mask)

    def fail(self, mask: Array, fault: int, slot: Array | int = -1, place: Array | int = -1) -> None:
        """Record the first fault of the instance."""
        first = mask & (self.fault == 0)
        serial = jnp.where(jnp.asarray(slot) >= 0, self.serial[jnp.maximum(jnp.asarray(slot), 0)], -1)
        self.pick(first, fault=fault, fault_serial=serial, fault_place=place)

    def act(self, mask: Array, kind: int, serial: Any, place: Any, amount: Any, offset: Any = None) -> None:
        """Append one row to the action trace, if the instance keeps one."""
        if not self.has("actions"):
            return
        self.put_row("actions", self.actions_n, [self.now, kind, serial, place, amount], mask)
        self.bump("actions_n", mask)
