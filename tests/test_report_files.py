"""What a report leaves on disk: the samples file and the figure."""

from __future__ import annotations

import sys

import pytest
from test_report import QUEUED, program, request, run_of, small_batch

from serqjax.report.requests import requests_table
from serqjax.report.samples import samples_frame, write_samples


def test_samples_file(tmp_path):
    polars = pytest.importorskip("polars")
    own = program(observes=("done", "none"))
    path = tmp_path / "samples.parquet"
    write_samples(path, own, small_batch()[:2])
    frame = polars.read_parquet(path)
    assert frame.columns == ["run", "observation", "time_s", "session", "turn", "value"]
    done = frame.filter(polars.col("observation") == "done")
    assert done.rows() == [(r, "done", 5.0 + i, i, 1, 2.0 + 2 * i) for r in (0, 1) for i in (0, 1)]
    ttft = frame.filter(polars.col("observation") == "client.ttft")
    assert ttft["value"].to_list() == [1.0] * 4
    assert samples_frame(own, []).height == 0
    with pytest.raises(ValueError, match=r"the format is Parquet, let the name end in \.parquet"):
        write_samples(tmp_path / "samples.csv", own, [])
    with pytest.raises(FileNotFoundError, match="does not exist, create it first"):
        write_samples(tmp_path / "no" / "samples.parquet", own, [])


# ---------------------------------------------------------------- figures


def test_the_figure_is_a_picture_and_repeats(tmp_path):
    pytest.importorskip("matplotlib")
    from serqjax.plot.latency import latency_figure

    raws = [run_of([request(i, i + 1 + s / 9, i + 2 + s / 5 + i / 50, 5) for i in range(40)]
                   + [request(95, status=QUEUED)], seed=s) for s in range(4)]
    fig = latency_figure(program(), raws, tmp_path / "a.png")
    latency_figure(program(), raws, tmp_path / "b.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data == (tmp_path / "b.png").read_bytes()
    labels = [ax.get_xlabel() for ax in fig.axes]
    assert labels == ["TTFT (s)", "TPOT (ms)", "E2E (s)"]
    assert all(ax.get_xscale() == "log" and ax.get_title("left") for ax in fig.axes)
    legend = fig.axes[0].get_legend()
    assert legend is not None
    assert {t.get_text() for t in legend.get_texts()} == {"all requests", "5% to 95% of 4 seeds", "4 unfinished"}
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_the_figure_of_little_or_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    from serqjax.plot.latency import draw_latencies, latency_figure

    fig, axes = draw_latencies(requests_table(run_of([request(0, status=QUEUED)])))
    assert len(axes) == 1 and axes[0].texts[0].get_text() == "no finished request"
    latency_figure(program(), run_of([request(0, 1, 3, 3)]), tmp_path / "one.pdf")
    with pytest.raises(ValueError, match=r"the name must end in \.png, \.pdf, \.svg"):
        latency_figure(program(), [], tmp_path / "a.jpg")
    with pytest.raises(FileNotFoundError, match="does not exist, create it first"):
        latency_figure(program(), [], tmp_path / "no" / "a.png")
