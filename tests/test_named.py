"""Ready-made deployments by the names and settings of the command line. The oracle stands in for the engine."""

from __future__ import annotations

import json

import pytest

import serqjax as sq
from serqjax import _cli, deployments, ir
from tests.standin import oracle_engine

pytestmark = pytest.mark.usefixtures("oracle_engine")
_ = oracle_engine


def value(program: ir.Program, name: str) -> float:
    return next(p.value for p in program.params if p.name == name)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = _cli.call(list(words))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


@pytest.mark.parametrize("name", deployments.BY_NAME)
def test_every_name_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "run", name, "--workload", "requests", "--set", "num_prompts=6", "--json")
    assert code == 0 and json.loads(out)["requests"]["finished"] == 6


def test_settings_of_a_fleet() -> None:
    program = sq.read("replicas", settings={"n": 3, "router": "least_kv", "max_num_seqs": 8, "base_s": 0.5})
    assert sum(stage.array == "vllm" for stage in program.stages) == 3
    assert value(program, "max_num_seqs") == 8 and value(program, "base_s") == 0.5


def test_settings_of_both_sides_and_of_one() -> None:
    program = sq.read("disaggregated", settings={
        "num_gpu_blocks": 101, "decode.max_num_seqs": "7", "prefill.n": 2, "link.bytes_per_s": 1e9, "lease_s": 9,
        "first_token": "decode", "prefill.base_s": 0.25,
    })  # fmt: skip
    assert value(program, "prefill.kv.cap") == value(program, "decode.kv.cap") == 1600
    assert value(program, "decode.max_num_seqs") == 7 and value(program, "prefill.max_num_seqs") == 256
    assert value(program, "link.bytes_per_s") == 1e9 and value(program, "lease_s") == 9
    # a parameter that is no argument: the cost of one side
    assert value(program, "prefill.base_s") == 0.25 and value(program, "decode.base_s") == 13.9e-3
    assert sum(stage.array == "prefill" for stage in program.stages) == 2
    assert any(state.name == "decode.last" for state in program.states)


@pytest.mark.parametrize(("words", "message"), [
    (("disaggregated", "--set", "prefill.max_num_seq=2"), "did you mean `prefill.max_num_seqs`?"),
    (("disaggregated", "--set", "link.bytes_per_s=0"), "bytes_per_s: 0 is not allowed; give a finite number above 0"),
    (("replicas", "--set", "n=0"), "n: 0 is not allowed; give a whole number of at least 1"),
    (("replicas", "--set", "router=sticky"), "router: 'sticky' is not known"),
    (("replica",), "did you mean `replicas`?"),
])  # fmt: skip
def test_what_is_wrong_is_named(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capsys, "check", *words)
    assert code in (1, 2) and message in err


def test_speculative_decoding_is_refused_by_name() -> None:
    """What decides how many drafts are accepted; a fixed number of tokens a step is modelled (test_speculative.py)."""
    with pytest.raises(sq.ProgramError, match="spec_method: how drafts are made and accepted is not modelled"):
        deployments.vllm(num_speculative_tokens=4, tokens_per_step=2, spec_method="ngram")
