"""A program as a graph in the DOT language: boxes with words, arrows with labels, a frame around each scope.

There are two graphs: the automaton of a session, and the deployment. Names never become DOT identifiers (boxes are
numbered), and all text goes through `_escape`.
"""

from __future__ import annotations

import html
import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..check.facts import Facts
from ..check.flow import successors
from ..check.index import Index, targets
from ..ir.program import Enter, Run, Step
from .words import (
    arrival_words,
    exit_words,
    number,
    op_words,
    pool_words,
    scope_words,
    stage_words,
)

INK, SOFT = "#1f2933", "#5b6770"
#: Fills, light enough for black text in print: frames of scopes by depth, then heads of boxes.
FRAMES = ("#f3f5f7", "#e8ecf0", "#dce2e8")
STATE, GATE, POOL, STAGE, OTHER = "#d9dee4", "#cfe0ee", "#cfe0ee", "#f1dfc4", "#e9e9e9"

#: Characters of a line in a box and on an arrow; of a text that takes more lines than LONGEST the rest is cut.
BOX, ARROW, LONGEST = 46, 30, 12
SPACE = "&#160;"
#: Around a line in a box, where a viewer's font may be a little wider than Helvetica; around one on an arrow, so that
#: it touches neither the arrow nor the frame that it lies in.
IN_BOX, ON_ARROW = ("", 5 * SPACE), (SPACE, 6 * SPACE)


def automaton(index: Index, facts: Facts) -> str:
    """How a session goes. Equal programs give equal text."""
    return _graph(f"{index.program.name}: a session", _automaton(index, facts))


def deployment(index: Index, facts: Facts) -> str:
    """Pools, stages and what ties them."""
    return _graph("deployment", _deployment(index, facts))


# ---------------------------------------------------------------- the automaton


def _automaton(index: Index, facts: Facts) -> list[str]:
    program, place = index.program, index.state_places
    # the layout puts earlier ones higher
    lines = [_node("arrivals", *arrival_words(index, program), OTHER, "arrivals")]
    lines += [f"state{place[name]}" for name in _in_order(index)]
    arrows = _arrows(index)
    lines.append(_arrow("arrivals", f"state{place[program.start]}", ["start"]))
    return lines + _inside(index, facts, arrows, None, 0)


def _arrows(index: Index) -> dict[str | None, list[str]]:
    """The arrows by the innermost scope that holds both ends, whose frame then also holds the label."""
    program, place = index.program, index.state_places
    found: dict[str | None, list[str]] = {}

    def add(scope: str | None, other: str | None, arrow: str) -> None:
        around = [s.name for s in index.chain(other)]
        common = next((s.name for s in index.chain(scope) if s.name in around), None)
        found.setdefault(common, []).append(arrow)

    for i, state in enumerate(program.states):
        here = f"state{i}"
        for field, name in targets(state):
            arrow = _arrow(here, f"state{place[name]}", exit_words(state, field), dashed=field == "deadline.target")
            add(state.scope, index.states[name].scope, arrow)
        if isinstance(state.exit, Enter):
            gate = f"gate{index.scope_places[state.exit.scope]}"
            add(state.scope, state.exit.scope, _arrow(here, gate, exit_words(state, "scope")))
        if not successors(index, state):
            end = f'end{i} [shape=doublecircle label="" width=0.14 style=filled fillcolor="{INK}" class="end"]'
            add(state.scope, state.scope, f"{end}\n{_arrow(here, f'end{i}', exit_words(state, ''))}")
    for i, scope in enumerate(program.scopes):
        add(scope.name, scope.name, _arrow(f"gate{i}", f"state{place[scope.reentry]}", ["admitted"]))
    return found


def _in_order(index: Index) -> list[str]:
    """States from the start on, each before those that follow it where no loop forbids that (depth first)."""
    done: list[str] = []
    seen = {index.program.start}
    stack = [(index.program.start, iter(successors(index, index.states[index.program.start])))]
    while stack:
        name, left = stack[-1]
        following = next((n for n in left if n not in seen), None)
        if following is None:
            done.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors(index, index.states[following]))))
    return done[::-1]


def _inside(
    index: Index, facts: Facts, arrows: dict[str | None, list[str]], scope: str | None, depth: int
) -> list[str]:
    """The states of a scope (None: of no scope), then its inner scopes, each in a frame with its admission."""
    lines = []
    for i, state in enumerate(index.program.states):
        if state.scope == scope:
            lines.append(_node(f"state{i}", state.name, [op_words(op) for op in state.ops], STATE, "state"))
    for i, inner in enumerate(index.program.scopes):
        if inner.parent == scope:
            preempted = any(facts.pools[p].can_preempt for p in facts.scopes[i].may_take)
            gate = _node(f"gate{i}", "admission", scope_words(inner, preempted), GATE, "scope")
            inside = [gate, *_inside(index, facts, arrows, inner.name, depth + 1)]
            lines += _cluster(f"scope{i}", inner.name, FRAMES[min(depth, len(FRAMES) - 1)], inside)
    return lines + arrows.get(scope, [])


# ---------------------------------------------------------------- the deployment


class Group(NamedTuple):
    """Parts that say the same but for their number in an array: drawn once. `members`: their places."""

    node: str
    title: str
    words: tuple[str, ...]
    members: tuple[int, ...]


def _deployment(index: Index, facts: Facts) -> list[str]:
    program = index.program
    pools = _groups("pool", program.pools, [pool_words(index, p, f) for p, f in zip(program.pools, facts.pools)])
    stages = _groups("stage", program.stages, [stage_words(index, s, f) for s, f in zip(program.stages, facts.stages)])
    lines = [_node(g.node, g.title, g.words, STAGE, "stage", len(g.members) > 1) for g in stages]
    lines += [_node(g.node, g.title, g.words, POOL, "pool", len(g.members) > 1) for g in pools]
    pool_node = {place: g.node for g in pools for place in g.members}
    stage_node = {place: g.node for g in stages for place in g.members}
    labels: dict[tuple[str, str], list[str]] = {}
    for stage, pool, label in _ties(index):
        said = labels.setdefault((stage_node[stage], pool_node[pool]), [])
        if label not in said:
            said.append(label)
    lines += [_arrow(stage, pool, said, bold=True) for (stage, pool), said in labels.items()]
    if program.params:
        rows = [f"{p.name} = {number(p.value)} {p.unit}".strip() for p in program.params]
        lines.append(_node("numbers", "parameters", rows, OTHER, "parameters"))
        # below the pools (or the stages), where there is room
        lines += [f"{g.node} -> numbers [style=invis]" for g in pools or stages]
    return lines


def _ties(index: Index) -> Iterable[tuple[int, int, str]]:
    """Stage, pool and what ties them: whose line it admits, what its work grows into, its memory."""
    program = index.program
    for i, pool in enumerate(program.pools):
        for stage in index.stage_members(pool.admit_via):
            yield stage, i, "admits its line"
    for i, stage in enumerate(program.stages):
        if isinstance(stage.kind, Step):
            for pool in index.pool_members(stage.kind.memory):
                yield i, pool, "has its memory in"
    for state in program.states:
        run = state.exit
        if isinstance(run, Run) and run.grows is not None:
            on, into = index.stage_members(run.stage), index.pool_members(run.grows)
            same = getattr(run.stage, "index", None) == getattr(run.grows, "index", ())  # member j into member j
            for stage, pool in zip(on, into) if same else itertools.product(on, into):
                yield stage, pool, f"{run.mode} grows into"


def _groups(kind: str, parts: Sequence[Any], words: Sequence[list[str]]) -> list[Group]:
    found: dict[Any, list[int]] = {}
    said: dict[Any, tuple[str, ...]] = {}
    for place, (part, lines) in enumerate(zip(parts, words)):
        key: Any = place
        if part.array is not None:
            lines = [re.sub(rf"\[{part.index}\]", "[i]", line) for line in lines]
            key = (part.array, *lines)
        found.setdefault(key, []).append(place)
        said[key] = tuple(lines)
    groups = []
    for key, members in found.items():
        title = parts[members[0]].name
        if len(members) > 1:
            indices = [parts[m].index if parts[m].index is not None else m for m in members]
            title = f"{parts[members[0]].array}[{_runs(indices)}] \N{MULTIPLICATION SIGN} {len(members)}"
        groups.append(Group(f"{kind}{members[0]}", title, said[key], tuple(members)))
    return groups


def _runs(indices: list[int]) -> str:
    """`0..3, 7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(f"{a}..{b}" if b > a else f"{a}" for a, b in runs)


# ---------------------------------------------------------------- DOT


def _graph(title: str, inside: list[str]) -> str:
    lines = [
        "digraph {",
        f'graph [label=<<b>{_escape(title)}</b>> labelloc=t labeljust=l fontname="Helvetica" fontsize=11'
        f' fontcolor="{INK}" nodesep=0.35 ranksep=0.3 pad=0.15 bgcolor=white newrank=true]',
        'node [shape=plain fontname="Helvetica" fontsize=10]',
        f'edge [fontname="Helvetica" fontsize=9 color="{SOFT}" fontcolor="{INK}" arrowsize=0.7]',
        *inside,
        "}",
    ]
    return "\n".join(lines) + "\n"


def _cluster(name: str, title: str, fill: str, inside: list[str]) -> list[str]:
    """A frame with a title around what is `inside`."""
    return [
        f"subgraph cluster_{name} {{",
        f'graph [label=<<b>{_escape(title)}</b>> labeljust=l style="filled,rounded" fillcolor="{fill}"'
        f' color="{SOFT}" fontsize=10 margin=22]',
        *inside,
        "}",
    ]


def _node(name: str, title: str, lines: Sequence[str], head: str, kind: str, several: bool = False) -> str:
    """A box with a coloured head and lines below it. `several`: a thicker border."""
    rows = f'<tr><td bgcolor="{head}" align="left"><b>{_escape(title)}{3 * SPACE}</b></td></tr>'
    if lines:
        rows += f'<tr><td align="left" balign="left">{_text(lines, BOX, IN_BOX)}</td></tr>'
    border = 2 if several else 1
    table = f'<table border="{border}" cellborder="0" cellspacing="0" cellpadding="4" bgcolor="white" color="{SOFT}">'
    return f'{name} [class="{kind}" label=<{table}{rows}</table>>]'


def _arrow(tail: str, head: str, label: Sequence[str], *, dashed: bool = False, bold: bool = False) -> str:
    style = ' style=dashed' if dashed else ' penwidth=1.6' if bold else ""
    words = f" label=<{_text(label, ARROW, ON_ARROW)}>" if any(label) else ""
    return f"{tail} -> {head} [{(words + style).strip()}]"


def _text(lines: Iterable[str], width: int, around: tuple[str, str]) -> str:
    """Lines broken at `width`, the rest of each indented, every one set to the left."""
    broken: list[str] = []
    for line in lines:
        indent = "  " + " " * (len(line) - len(line.lstrip()))
        made = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        broken += made if len(made) <= LONGEST else [*made[:LONGEST], indent + "\N{HORIZONTAL ELLIPSIS}"]
    before, behind = around
    return "".join(f'{before}{_escape(line)}{behind}<br align="left"/>' for line in broken)


def printable(text: str) -> str:
    """`text` with a sign in place of each character that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def _escape(text: str) -> str:
    """Text for an HTML-like label: no tag, no escape of DOT (a `\\N` stands for a box's name); first spaces stay."""
    safe = html.escape(printable(text), quote=False).replace("\\", 2 * "\\")
    return re.sub("^ +", lambda spaces: SPACE * len(spaces[0]), safe)
