"""`draw`: what the picture of a program holds, and that it is the same picture every time."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

import serqjax as sq
from serqjax import _cli, ir
from serqjax.builder import Builder, parse, write
from serqjax.check.index import Index
from serqjax.drawing.words import exit_words, op_words, other_fields
from serqjax.errors import ProgramError
from serqjax.ir.expr import Node
from serqjax.ir.structure import walk
from tests.drawing_programs import disaggregated
from tests.helpers import ROOT

SVG = "{http://www.w3.org/2000/svg}"
PROGRAMS = {
    "vllm": sq.program(sq.deployments.vllm(), sq.workloads.sessions(session_rate=0.05)),
    "disaggregated": disaggregated(),
    "smoke": sq.read(ROOT / "tests" / "data" / "smoke.ir14.json"),
}


def texts(svg: str, kind: str | None = None) -> list[str]:
    """The lines of text in the boxes of a kind (`state`, `pool`, ...), or all; indents and wrapping as drawn."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    chosen = [g for g in groups if kind is None or kind in g.get("class", "").split()]
    found = dict.fromkeys(t for g in chosen for t in g.iter(f"{SVG}text"))
    return ["".join(t.itertext()).replace("\N{NO-BREAK SPACE}", " ").strip() for t in found]


def boxes(svg: str, kind: str) -> int:
    return sum(kind in g.get("class", "").split() for g in ElementTree.fromstring(svg).iter(f"{SVG}g"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_part_is_drawn(name):
    program = PROGRAMS[name]
    svg = sq.draw(program)
    assert boxes(svg, "state") == len(program.states)
    assert set(texts(svg, "state")) >= {s.name for s in program.states}
    assert boxes(svg, "scope") == len(program.scopes)
    assert set(texts(svg, "cluster")) >= {s.name for s in program.scopes}
    for kind, parts in (("pool", program.pools), ("stage", program.stages)):
        assert set(texts(svg, kind)) >= {p.name for p in parts if p.array is None}
    assert {line.split(" = ")[0] for line in texts(svg, "parameters")} >= {p.name for p in program.params}
    ends = sum(isinstance(s.exit, ir.End) for s in program.states)
    assert boxes(svg, "end") == ends
    arrows = sum(2 if isinstance(s.exit, ir.Branch) else 1 for s in program.states)
    arrows += sum(getattr(s.exit, "deadline", None) is not None for s in program.states)
    automaton = next(g for g in ElementTree.fromstring(svg) if g.get("class") == "automaton")
    # each scope leads on to its reentry, the arrivals to the start
    assert sum("edge" in g.get("class", "") for g in automaton.iter()) == arrows + len(program.scopes) + 1


def test_vllm_says_its_exits_and_its_deployment():
    lines = texts(sq.draw(PROGRAMS["vllm"]))
    for line in ("run Prefill on vllm", "enter vllm.request", "leave vllm.request", "admitted", "if again", "else",
                 "respond to the client", "vllm.known := prompt", "require out >= 1", "observe vllm.reused: cached",
                 "cap: 431984 (kv.cap)", "block: 16", "line: -Waited, serial, then queued", "continuous batching",
                 "evict: least recently used", "admits its line", "has its memory in", "Decode grows into",
                 "preempted: gives all back and waits here again", "rate: 0.05 (session_rate)"):
        assert line in lines


def test_arrays_are_drawn_once_with_their_count():
    svg = sq.draw(disaggregated(4))
    assert boxes(svg, "stage") == 4 and boxes(svg, "pool") == 3
    assert "prefill[0..3] \N{MULTIPLICATION SIGN} 4" in texts(svg, "stage")
    assert "prefill_kv[0..3] \N{MULTIPLICATION SIGN} 4" in texts(svg, "pool")
    assert "run Prefill on prefill[engine]" in texts(svg)


def test_members_that_differ_are_drawn_apart():
    program = disaggregated(4)
    pools = tuple(
        msgspec.structs.replace(p, cap=ir.Num(1024.0)) if p.name == "prefill_kv[1]" else p for p in program.pools
    )
    found = texts(sq.draw(msgspec.structs.replace(program, pools=pools)), "pool")
    assert "prefill_kv[0, 2..3] \N{MULTIPLICATION SIGN} 3" in found
    assert "prefill_kv[1]" in found and "cap: 1024" in found


def test_any_name_can_be_drawn():
    odd = 'a<b> & "c" \\N {x|y} \x07\N{GREEK SMALL LETTER ALPHA}'
    b = Builder(odd)
    b.stage(odd, ir.Delay())
    b.state(odd, b.observe(odd, "1"), exit=ir.Run(odd, "Plain", b("2 if 1 < 2 else 3"), "last"))
    b.state("last", exit=ir.End())
    svg = sq.draw(b.program(odd, ir.Batch(ir.Num(1.0))))
    shown = odd.replace("\x07", "\N{REPLACEMENT CHARACTER}")
    assert shown in texts(svg, "state") and shown in texts(svg, "stage")
    assert "seconds: 2 if 1 < 2 else 3" in texts(svg)
    assert ElementTree.fromstring(svg).findtext(f"{SVG}title") == shown


def test_equal_programs_give_equal_bytes():
    here = sq.draw(PROGRAMS["disaggregated"])
    script = "import serqjax as sq; from tests.drawing_programs import disaggregated\n" \
             "import sys; sys.stdout.buffer.write(sq.draw(disaggregated()).encode())"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd=ROOT)
    assert other.stdout.decode() == here


def test_ids_do_not_collide_in_a_page():
    assert not re.search(r'\bid="', sq.draw(PROGRAMS["vllm"]))


def test_the_picture_in_the_documentation_is_of_this_program():
    # words alone: another version of the layout library may put them elsewhere
    kept = (ROOT / "docs" / "vllm.svg").read_text(encoding="utf-8")
    assert sorted(texts(kept)) == sorted(texts(sq.draw(sq.read("vllm"))))


def test_a_program_that_is_not_valid_is_refused():
    program = msgspec.structs.replace(PROGRAMS["vllm"], start="nowhere")
    with pytest.raises(ProgramError, match="nowhere"):
        sq.draw(program)


# ---------------------------------------------------------------- words


class Polish(msgspec.Struct, frozen=True, tag=True):
    """An op that the words do not know."""

    pool: str
    units: Node
    again: bool = False
    wait_s: float = 0.0


def test_what_has_no_words_is_said_by_its_names():
    op = Polish("kv", parse("1 + 2"), wait_s=1.5)
    assert op_words(op) == "polish pool: kv, units: 1 + 2, wait: 1.5 s"
    assert other_fields(op, ("pool",)) == ["units: 1 + 2", "wait: 1.5 s"]

    class Polishing(Polish, frozen=True, tag=True, kw_only=True):
        then: str

    state = ir.State(name="s", exit=ir.End())
    msgspec.structs.force_setattr(state, "exit", Polishing("kv", parse("7"), then="s"))
    assert exit_words(state, "then") == ["polishing pool: kv, units: 7"]


@pytest.mark.parametrize("flags", [{}, {"shared_structure": True}, {"watermark": 0.1, "max_model_len": 4096}])
def test_parse_reads_back_what_is_written(flags):
    program = sq.program(sq.deployments.vllm(**flags), sq.workloads.sessions(session_rate=0.05))
    index = Index(program)
    for _, node in walk(program):
        if isinstance(node, ir.Expr):
            assert parse(write(node), index.attrs, index.params) == node


@pytest.mark.parametrize("text", [
    "(1 < 2) < 3", "(1 if Now else 2) if Now else 3", "1 - (2 - 3)", "-(2 ** 3) ** 2", "not (Now or Waited and Age)",
    "(Now or Waited) or (Age or Last)", "~Uniform(0, ~Exp(3)) * 1e-07", "Price(link[0], 1, inf)", "Queue(rep[Now + 1])",
    "123456789012 + 0.1", "2 / (3 * 4)", "(2 ** 3) ** 4",
])
def test_written_expressions_keep_their_meaning(text):
    assert parse(write(parse(text))) == parse(text)


def test_a_negative_number_is_written_as_one():
    assert write(ir.Num(-2.5)) == "-2.5" and write(ir.Binary("Pow", ir.Num(-3.0), ir.Num(2.0))) == "(-3) ** 2"


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_picture(capsys):
    assert _cli.call(["draw", "vllm", "--set", "max_num_seqs=8"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "cap: 8 (max_num_seqs)" in texts(out)


def test_the_command_writes_the_picture(capsys, tmp_path):
    path = tmp_path / "new" / "smoke.svg"
    assert _cli.call(["draw", str(ROOT / "tests" / "data" / "smoke.ir14.json"), "--out", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err == f"serqjax: picture written to {path}\n"
    assert path.read_text(encoding="utf-8") == sq.draw(PROGRAMS["smoke"])


def test_the_command_refuses_another_ending(capsys, tmp_path):
    assert _cli.call(["draw", "vllm", "--out", str(tmp_path / "a.png")]) == 2
    assert "let the name end in .svg" in capsys.readouterr().err


def test_without_its_library_the_command_says_what_to_install(capsys, monkeypatch):
    def missing(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert _cli.call(["draw", "vllm"]) == 1
    assert capsys.readouterr() == ("", "serqjax: a drawing needs graphviz-pure: pip install 'serqjax[draw]'\n")
