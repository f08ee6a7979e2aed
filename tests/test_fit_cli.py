"""The command `fit` and the option `--params`: what they read and what they refuse."""

from __future__ import annotations

import json

import pytest

from serqjax._cli import call

ROW = {"queued_ts": 5.0, "first_token_ts": 5.2, "last_token_ts": 6.2, "input_toks": 100, "output_toks": 11}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--free", "speed_s"], 2, "speed_s is no parameter of the program"),
        (["--free", "base_s", "--bounds", "base_s=3"], 2, "write NAME=LOW:HIGH"),
        (["--free", "base_s", "--bounds", "per_decode_s=1:2"], 2, "per_decode_s is not among --free base_s"),
        (["--free", "base_s", "--loss", "speed"], 2, "'speed' is not known"),
        (["--free", "base_s", "--holdout", "2"], 2, "holdout=2.0"),
        (["--free", "base_s", "--set", "max_num_seqs=0"], 1, "max_num_seqs"),
    ],
)
def test_wrong_calls_say_what_to_write(tmp_path, capsys, words, code, says):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    assert call(["fit", "vllm", "--data", str(path), *words]) == code
    assert says in capsys.readouterr().err


def test_bad_data_is_refused(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(ROW | {"output_toks": 0}) + "\n")
    assert call(["fit", "vllm", "--data", str(path), "--free", "base_s"]) == 1
    assert "row 1: 0 output tokens" in capsys.readouterr().err


def test_summaries_need_the_requests_of_the_run(tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"mean_ttft_ms": 200.0, "request_throughput": 1.0}))
    assert call(["fit", "vllm", "--data", str(path), "--free", "base_s"]) == 2
    assert "give the requests of the run with --trace" in capsys.readouterr().err
    assert call(["fit", "vllm", "--data", str(path), "--free", "base_s", "--plot", "fit.txt"]) == 2
    assert "--plot fit.txt: let the name end in" in capsys.readouterr().err


def test_params_of_a_fit_go_into_a_program(tmp_path, capsys):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"best": {"base_s": 0.0215, "per_decode_s": 0.00033}}))
    assert call(["ir", "vllm", "--params", str(path), "--set", "per_decode_s=0.00044"]) == 0
    values = {p["name"]: p["value"] for p in json.loads(capsys.readouterr().out)["params"]}
    assert values["base_s"] == 0.0215 and values["per_decode_s"] == 0.00044  # --set says more
    path.write_text("[]")
    assert call(["ir", "vllm", "--params", str(path)]) == 1
    assert "holds no parameters" in capsys.readouterr().err
