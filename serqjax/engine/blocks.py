"""Pools whose blocks are shared by content: finding, taking, naming and giving back physical blocks.

Every such pool has a table of its blocks (content, holds, place in the free queue) and, for each hold, the list of
the blocks it has: a row that a session takes at its admission, since few of many live sessions hold. A content is a
64-bit number made of everything up to the end of the block (vLLM's hashes are made so too). A look-up compares all
blocks with what the session's chain says for their places at once.

**Source:** oracle: `oracle/blocks.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..ir.program import Recorded
from ..report.raw import Action
from .access import FAR, SLOT_BITS, load, load_at, pack, store_at, unpack_slot
from .expr import Env, Value, evaluate
from .faults import Fault
from .lane import Lane
from .scatter import add_at, min_at, set_at
from .sorting import order_of

EPS = 1e-9
_SEGMENT, _RECORDED, _OWN = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def block_size(w: Lane, pool: int) -> Value:
    block = w.plan.skeleton.pools[pool].block
    assert block is not None
    return Env(w.plan, w.job.numbers).number(block)


def exists(w: Lane, pool: int) -> Array:
    """Which rows of the table are blocks of the pool (its cap is a number of the program)."""
    total = Env(w.plan, w.job.numbers).number(w.plan.skeleton.pools[pool].cap) / block_size(w, pool)
    return jnp.arange(w.block_count.shape[1]) < jnp.floor(total)


# ---------------------------------------------------------------- contents


def _mix(x: Array) -> Array:
    x = (x ^ (x >> 30)) * jnp.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27)) * jnp.uint64(0x94D049BB133111EB)
    return x ^ (x >> 31)


def _bits(x: Array) -> Array:
    """Equal numbers have equal bits (-0 and 0 too)."""
    return lax.bitcast_convert_type(jnp.asarray(x, jnp.float64) + 0.0, jnp.uint64)


class Chain:
    """What a session's blocks contain: of each declared part its key and where it ends (units), all scalars."""

    def __init__(self, w: Lane, pool: int, slot: Array, keys: list[Value], ends: list[Value]):
        self.w, self.pool, self.slot, self.keys, self.ends = w, pool, slot, keys, ends

    @classmethod
    def of(cls, w: Lane, pool: int, slot: Array, values: list[Value]) -> Chain:
        """`values`: of the expressions of the pool's content (`expressions`)."""
        keys: list[Value] = []
        ends: list[Value] = []
        start = jnp.float64(0.0)
        left = list(values)
        for part in w.plan.skeleton.pools[pool].content:
            keys.append(jnp.float64(0.0) if isinstance(part, Recorded) else jnp.asarray(left.pop(0)))
            length = jnp.float64(jnp.inf) if part.length is None else jnp.asarray(left.pop(0))
            if isinstance(part, Recorded):
                span = Env(w.plan, w.job.numbers).number(part.span)
                length = jnp.minimum(length, _recorded(w, slot)[1] * span)
            start = start + length
            ends.append(start)
        return cls(w, pool, slot, keys, ends)

    def valid(self) -> Array:
        """Whether keys are numbers and lengths are not negative."""
        ok, start = jnp.bool_(True), jnp.float64(0.0)
        for key, end in zip(self.keys, self.ends):
            ok = ok & (key == key) & ((end - start >= -EPS) | (end == start))
            start = end
        return ok

    def contents(self) -> Array:
        """`[most blocks of a session]` int64: content of block j, never 0."""
        w = self.w
        places = jnp.arange(w.held.shape[2])
        until = (places + 1).astype(jnp.float64) * block_size(w, self.pool)
        total = _mix(places.astype(jnp.uint64) + jnp.uint64(_OWN))
        start = jnp.float64(0.0)
        for part, key, end in zip(w.plan.skeleton.pools[self.pool].content, self.keys, self.ends):
            units = jnp.minimum(end, until) - start
            if isinstance(part, Recorded):
                span = Env(w.plan, w.job.numbers).number(part.span)
                at = jnp.maximum(jnp.ceil(units / span) - 1.0, 0.0)
                first = _recorded(w, self.slot)[0]
                row = w.data.contents[w.job.which]
                name = row[jnp.clip(first + at.astype(jnp.int64), 0, row.shape[0] - 1)]
                label, inside = name.astype(jnp.uint64) * jnp.uint64(_RECORDED), units - at * span
            else:
                label, inside = _mix(_bits(key) + jnp.uint64(_SEGMENT)), units
            more = _mix(_mix(total ^ label) + _bits(inside))
            total = jnp.where(units > 0.0, more, total)
            start = end
        units = until - start
        serial = load(w.serial, jnp.maximum(self.slot, 0)).astype(jnp.uint64)
        own = _mix(_mix(total ^ _mix(serial + jnp.uint64(_OWN))) + _bits(units))
        total = jnp.where(units > 0.0, own, total)
        return lax.bitcast_convert_type(jnp.where(total == 0, jnp.uint64(1), total), jnp.int64)


def expressions(w: Lane, pool: int, attr: Callable[[str], Value]) -> list[Value]:
    """Values of the keys and lengths of a pool's content, in their order, by the attributes that `attr` gives."""
    env = Env(w.plan, w.job.numbers, attr=attr)
    found: list[Value] = []
    for part in w.plan.skeleton.pools[pool].content:
        if not isinstance(part, Recorded):
            found.append(evaluate(part.key, env))
        if part.length is not None:
            found.append(evaluate(part.length, env))
    return found


def _recorded(w: Lane, slot: Array) -> tuple[Array, Array]:
    """First place and number of the recorded contents of a session."""
    script = jnp.clip(load(w.script, jnp.maximum(slot, 0)), 0, w.data.content_start.shape[1] - 1)
    return w.data.content_start[w.job.which, script], w.data.content_count[w.job.which, script]


def _place(w: Lane, k: int, slot: Array) -> tuple[Array, Array, Array]:
    """Where the row of a session's hold stands in `held` and `chain` `[pools, holds, most blocks]` (any, if none)."""
    row = load_at(w.held_row, jnp.int32(k), jnp.maximum(slot, 0))
    return jnp.int32(k), jnp.maximum(row, 0), jnp.int32(0)


def _row(w: Lane, name: str, k: int, slot: Array) -> Array:
    table = w.s[name]
    return lax.dynamic_slice(table, _place(w, k, slot), (1, 1, table.shape[2]))[0, 0]


def _store_row(w: Lane, name: str, k: int, slot: Array, row: Array) -> None:
    table = w.s[name]
    w.s[name] = lax.dynamic_update_slice(table, row[None, None].astype(table.dtype), _place(w, k, slot))


def _take_row(w: Lane, pool: int, k: int, slot: Array, on: Array) -> None:
    """An empty row for the session's hold."""
    row = jnp.argmin(w.row_taken[k]).astype(jnp.int32)
    w.fail(on & w.row_taken[k, row], Fault.holds, -1, pool)
    _put(w, "held_row", k, slot, row, on)
    w.s["row_taken"] = store_at(w.row_taken, jnp.int32(k), row, True, on)


def _leave_row(w: Lane, k: int, slot: Array, on: Array) -> None:
    _, row, _ = _place(w, k, slot)
    w.s["row_taken"] = store_at(w.row_taken, jnp.int32(k), row, False, on)
    _put(w, "held_row", k, slot, -1, on)


def _get(w: Lane, name: str, k: int, slot: Array) -> Array:
    """What a table `[pools, slots]` says of a session."""
    return load_at(w.s[name], jnp.int32(k), jnp.maximum(slot, 0))


def _put(w: Lane, name: str, k: int, slot: Array, value: Value, on: Array) -> None:
    w.s[name] = store_at(w.s[name], jnp.int32(k), jnp.maximum(slot, 0), value, on)


class Found:
    """The look-up of a session's `contents` `[most blocks]`. `first` `[most blocks]`: the block of each that got it
    first, packed behind when it got it (`FAR`: the pool has none); `run`: blocks of the longest run from the start."""

    def __init__(self, w: Lane, pool: int, contents: Array):
        self.contents = contents
        k = w.plan.by_content.index(pool)
        most = contents.shape[0]
        place, content = unpack_slot(w.block_named[k]), w.block_content[k]
        rows = jnp.arange(content.shape[0])
        same = (content != 0) & (place < most) & (contents[jnp.clip(place, 0, most - 1)] == content)
        key = pack(w.block_named[k] >> SLOT_BITS, rows)
        at = jnp.where(same, place, most)
        self.first = min_at(w.lanes, jnp.full((1, most), FAR, jnp.int64), 0, at, key)[0]
        missing = self.first >= FAR
        self.run = jnp.where(jnp.any(missing), jnp.argmax(missing), most)
        self.held = w.block_count[k][self.blocks()] > 0
        # a run as long as the table may be longer
        w.fail((self.run >= most) & (most < content.shape[0]), Fault.blocks, -1, pool)

    def blocks(self) -> Array:
        return unpack_slot(self.first)

    def held_among(self, hits: Value) -> Array:
        """How many of the first `hits` blocks somebody holds."""
        return jnp.sum(self.held & (jnp.arange(self.first.shape[0]) < hits))


#: Look-ups by the pool and the values that the chain was made of (which are kept, so that their identity says it).
Made = dict[tuple[int, ...], tuple[list[Value], Found]]


class Lookups:
    """Look-ups for one session by the attributes that `attr` gives; each is made once, also if `made` before."""

    def __init__(self, w: Lane, slot: Array, attr: Callable[[str], Value], made: Made | None = None):
        self.w, self.slot, self.attr = w, slot, attr
        self.made: Made = {} if made is None else made

    def __call__(self, pool: int) -> Found:
        values = expressions(self.w, pool, self.attr)
        key = (pool, *map(id, values))
        if key not in self.made:
            contents = Chain.of(self.w, pool, self.slot, values).contents()
            self.made[key] = values, Found(self.w, pool, contents)
        return self.made[key][1]

    def units(self, pool: int) -> Value:
        """Units of the longest run that the session finds."""
        return self(pool).run * block_size(self.w, pool)


# ---------------------------------------------------------------- taking


def share(w: Lane, pool: int, slot: Array, found: Found, hits: Value, caches: Array, on: Array) -> None:
    """The session's list begins with the first `hits` blocks found; those that nobody held leave the free queue.

    `caches`: whether blocks of the hold get contents.
    """
    k = w.plan.by_content.index(pool)
    _take_row(w, pool, k, slot, on)
    _put(w, "held_chain", k, slot, caches, on)
    _store_row(w, "chain", k, slot, jnp.where(on, found.contents, _row(w, "chain", k, slot)))
    mine = on & (jnp.arange(found.first.shape[0]) < hits)
    at = jnp.where(mine, found.blocks(), w.block_count.shape[1])
    revived = jnp.sum(mine & ~found.held)
    w.s["block_count"] = add_at(w.lanes, w.block_count, k, at, 1)
    w.s["block_free"] = set_at(w.lanes, w.block_free, k, at, FAR)
    _store_row(w, "held", k, slot, jnp.where(mine, found.blocks(), _row(w, "held", k, slot)))
    for name in ("held_n", "held_found", "held_named"):
        _put(w, name, k, slot, hits, on)
    units = revived * block_size(w, pool)
    w.add("used", pool, units, on)
    w.add("cached", pool, -units, on)


def take(w: Lane, pool: int, slot: Array, units: Value, on: Array) -> Array:
    """Append `units` of the blocks that are the next to be given out to the session's list; units evicted."""
    k = w.plan.by_content.index(pool)
    size = block_size(w, pool)
    wanted = jnp.where(on, jnp.round(units / size), 0).astype(jnp.int32)
    start, most = _get(w, "held_n", k, slot), w.held.shape[2]
    w.fail(on & (start + wanted > most), Fault.blocks, -1, pool)
    wanted = jnp.where(start + wanted > most, 0, wanted)
    there = exists(w, pool)
    _, row, _ = _place(w, k, slot)
    # the next block is the first of the least: of the groups by their least one, then within the group
    total = there.shape[0]
    inside = 1 << (total.bit_length() // 2)  # the tables have a power of two of rows
    groups = jnp.min(jnp.where(there, w.block_free[k], FAR).reshape(-1, inside), axis=1)

    def more(carry: tuple[Array, ...]) -> Array:
        return carry[0] < wanted

    def one(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        n, groups, free, content, count, held, evicted = carry
        at, yes = jnp.int32(k), jnp.bool_(True)
        group = jnp.argmin(groups).astype(jnp.int32)
        begin = group * inside
        members = lax.dynamic_slice(free, (at, begin), (1, inside))[0]
        members = jnp.where(lax.dynamic_slice(there, (begin,), (inside,)), members, FAR)
        first = jnp.argmin(members).astype(jnp.int32)
        groups = groups.at[group].set(jnp.min(jnp.where(jnp.arange(inside) == first, FAR, members)))
        block = begin + first
        evicted = evicted + (load_at(content, at, block) != 0)
        place = (at, row, start + n)
        held = lax.dynamic_update_slice(held, block.reshape(1, 1, 1), place)
        return (
            n + 1, groups, store_at(free, at, block, FAR, yes), store_at(content, at, block, 0, yes),
            store_at(count, at, block, 1, yes), held, evicted,
        )  # fmt: skip

    first = (jnp.int32(0), groups, w.block_free, w.block_content, w.block_count, w.held, jnp.int64(0))
    n, _, w.s["block_free"], w.s["block_content"], w.s["block_count"], w.s["held"], evicted = lax.while_loop(
        more, one, first
    )
    _put(w, "held_n", k, slot, start + n, on)
    out = evicted * size
    w.add("used", pool, n * size, on)
    w.add("cached", pool, -out, on)
    w.add("evicted_units", pool, out, on)
    w.add("evicted_entries", pool, evicted, on)
    return jnp.where(on, out, 0.0)


# ---------------------------------------------------------------- naming


def name_given(w: Lane) -> None:
    """The tokens given last are certain to be computed: the whole blocks that they fill can be found from now on."""
    slot = jnp.maximum(w.naming, 0)
    column = load(w.column, slot)
    pools = len(w.plan.skeleton.pools)
    for k, pool in enumerate(w.plan.by_content):
        if w.plan.skeleton.pools[pool].found != "scheduled":
            continue
        here = (w.naming >= 0) & (column >= 0) & (column % pools == pool) & _get(w, "held_chain", k, slot)
        position = load_at(w.pos, jnp.maximum(column, 0), slot) + load(w.given, slot)
        until = jnp.floor(position / block_size(w, pool)).astype(jnp.int32)
        until = jnp.minimum(until, _get(w, "held_n", k, slot))
        fills = here & (until > _get(w, "held_named", k, slot))
        w.only(fills, lambda w, p=pool, until=until, fills=fills: _name_until(w, p, slot, until, fills))
    w.naming = jnp.full_like(w.naming, -1)


def _name_until(w: Lane, pool: int, slot: Array, until: Array, on: Array) -> None:
    k = w.plan.by_content.index(pool)
    places = jnp.arange(w.held.shape[2])
    which = on & (places >= _get(w, "held_named", k, slot)) & (places < until)
    name(w, pool, slot, which)
    _put(w, "held_named", k, slot, until, on)


def name(w: Lane, pool: int, slot: Array, which: Array) -> None:
    """The blocks `which` `[most blocks]` of a session's list get their contents."""
    k = w.plan.by_content.index(pool)
    places = jnp.arange(which.shape[0])
    at = jnp.where(which, _row(w, "held", k, slot), w.block_count.shape[1])
    w.s["block_content"] = set_at(w.lanes, w.block_content, k, at, _row(w, "chain", k, slot))
    w.s["block_named"] = set_at(w.lanes, w.block_named, k, at, pack(w.block_seq + places, places))
    w.block_seq = w.block_seq + which.shape[0]


# ---------------------------------------------------------------- giving back


def give_back(w: Lane, pool: int, slot: Array, keep: Value, on: Array) -> Array:
    """A hold ends: `keep` units stay cached, and all blocks that it found or that others hold; units kept."""
    k = w.plan.by_content.index(pool)
    spec, size = w.plan.skeleton.pools[pool], block_size(w, pool)
    places = jnp.arange(w.held.shape[2])
    n, named = _get(w, "held_n", k, slot), _get(w, "held_named", k, slot)
    chained = _get(w, "held_chain", k, slot)
    wanted = jnp.minimum(jnp.floor((keep + EPS) / size), n).astype(jnp.int32)
    last = jnp.where(chained, jnp.maximum(named, wanted), named)
    fresh = on & (places >= named) & (places < last)
    if spec.found == "released":
        fresh = fresh & (Found(w, pool, _row(w, "chain", k, slot)).first >= FAR)
    name(w, pool, slot, fresh)
    kept = jnp.minimum(jnp.maximum(wanted, _get(w, "held_found", k, slot)), last)
    rows = w.block_count.shape[1]
    mine = on & (places < n)
    block = _row(w, "held", k, slot)
    at = jnp.where(mine, block, rows)
    w.s["block_count"] = add_at(w.lanes, w.block_count, k, at, -1)
    gone = mine & (w.block_count[k][block] == 0)
    forgets = gone & (places >= kept)
    w.s["block_content"] = set_at(w.lanes, w.block_content, k, jnp.where(forgets, block, rows), 0)
    full = gone & (w.block_content[k][block] != 0)
    # the last block of a release is the first to be given out again
    place = w.block_seq + (n - 1 - places)
    empty = place if spec.uncached == "in_order" else jnp.full_like(place, -1)
    w.s["block_free"] = set_at(
        w.lanes, w.block_free, k, jnp.where(gone, block, rows), jnp.where(full, place, empty)
    )
    w.block_seq = w.block_seq + places.shape[0]
    w.add("used", pool, -size * jnp.sum(gone), on)
    w.add("cached", pool, size * jnp.sum(full), on)
    for field in ("held_n", "held_found", "held_named"):
        _put(w, field, k, slot, 0, on)
    _leave_row(w, k, slot, on)
    return jnp.where(on, kept * size, 0.0)


# ---------------------------------------------------------------- checks


def owned(w: Lane, pool: int) -> Array:
    """Whether units in use and cached are what the tables say, and every block is held as often as it is listed."""
    k = w.plan.by_content.index(pool)
    size = block_size(w, pool)
    there = exists(w, pool)
    held = there & (w.block_count[k] > 0)
    cached = there & ~held & (w.block_content[k] != 0)
    ok = w.used[pool] == size * jnp.sum(held)
    ok = ok & (w.cached[pool] == size * jnp.sum(cached))
    ok = ok & (jnp.sum(w.block_count[k]) == jnp.sum(w.held_n[k]))
    return ok & jnp.all((w.block_free[k] < FAR) | held | ~there)


def fingerprint(w: Lane, mix: Callable[[Array], Array], live: Array) -> Array:
    """The blocks as far as they decide what happens, as one number: contents in the order of the free queue, and
    what the sessions hold."""
    total = jnp.uint64(0)
    for k, pool in enumerate(w.plan.by_content):
        free = exists(w, pool) & (w.block_free[k] < FAR)
        order = order_of(jnp.where(free, w.block_free[k], FAR))
        content = jnp.where(free, w.block_content[k], 0)[order].astype(jnp.uint64)
        places = jnp.arange(order.shape[0]).astype(jnp.uint64) * jnp.uint64(0xD1B54A32D192ED03)
        total = total + jnp.sum(jnp.where(content != 0, mix(content + places + jnp.uint64(3000 + k)), jnp.uint64(0)))
        # of each row the session that holds it
        sessions = jnp.arange(live.shape[0])
        rows = jnp.where(live & (w.held_row[k] >= 0), w.held_row[k], w.held.shape[1])
        owner = set_at(w.lanes, jnp.full((1, w.held.shape[1]), -1, jnp.int64), 0, rows, sessions)[0]
        count = jnp.where(owner >= 0, w.held_n[k][jnp.maximum(owner, 0)], 0)
        inside = jnp.arange(w.held.shape[2]) < count[:, None]
        block = w.held[k]
        label = (owner.astype(jnp.uint64) * jnp.uint64(0x9E3779B97F4A7C15))[:, None]
        held = w.block_content[k][block].astype(jnp.uint64) + label + w.block_count[k][block].astype(jnp.uint64)
        held = held + jnp.arange(w.held.shape[2]).astype(jnp.uint64) * jnp.uint64(7919)
        total = total + jnp.sum(jnp.where(inside, mix(held + jnp.uint64(4000 + k)), jnp.uint64(0)))
    return total


def act_evicted(w: Lane, pool: int, units: Value, on: Array) -> None:
    """Action row of blocks that lost their contents: nobody owns them."""
    w.act(on & (units > 0), Action.evict, -1, pool, units)
