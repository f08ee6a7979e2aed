"""Pictures of studies: what they are drawn from, and that a picture says when something is not known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import oracle
import serqjax as sq
from serqjax.plot.frame import as_svg, new_figure
from serqjax.plot.studies import draw_against, draw_heat, draw_pareto, over_seeds, pareto
from serqjax.plot.timeline import counts_over_time, draw_counts, draw_gantt, draw_use, use_over_time


@pytest.fixture(scope="module")
def run() -> sq.Run:
    """Sixty requests on a small engine, by the sequential reference."""
    prog = sq.program(
        sq.deployments.vllm(num_gpu_blocks=1500),
        sq.workloads.requests(request_rate=4.0, num_prompts=60, input_len=sq.workloads.exponential(1000),
        output_len=40),
    )
    return sq.Run(prog, oracle.simulate(prog, trace=True))


def test_the_use_of_a_pool_is_that_of_the_report(run: sq.Run) -> None:
    at, used = use_over_time(run.actions, "kv")
    rows = {row["name"]: row for row in run.report["pools"]}
    mean = float((used[:-1] * np.diff(at)).sum()) / run.report["end"]
    assert mean == pytest.approx(rows["kv"]["mean_used"], rel=1e-9)
    assert used.min() >= 0 and used[-1] == 0


def test_requests_over_time_add_up(run: sq.Run) -> None:
    at, waiting, served = counts_over_time(run.requests, points=4000)
    assert waiting.min() >= 0 and served.min() >= 0 and waiting[-1] == served[-1] == 0
    step = at[1] - at[0]
    # the area under a count is the sum of the times (Little)
    assert waiting.sum() * step == pytest.approx(np.nansum(run.requests["ttft_s"]), rel=0.02)
    spent = np.nansum(run.requests["end_s"] - run.requests["first_token_s"])
    assert served.sum() * step == pytest.approx(spent, rel=0.02)


def test_a_gantt_chart_has_a_bar_for_each_part(run: sq.Run) -> None:
    fig = new_figure(8, 8)
    a, b, c = fig.subplots(3, 1)
    draw_gantt(a, run.requests, count=20)
    assert len(a.patches) == 40, "one until the first token, one after it"
    first = min(patch.get_x() for patch in a.patches)
    assert first == pytest.approx(run.requests["sent_s"].min())
    draw_counts(b, run.requests, warmup_s=1.0)
    draw_use(c, run.actions, "kv", 1499 * 16)
    text = as_svg(fig)
    assert text.startswith("<svg") and "kv in use (%)" in text and "from the first to the last token" in text
    assert as_svg(fig) == text, "equal figures, equal bytes"


def table() -> pl.DataFrame:
    """Two seeds at three rates; at rate 3 one seed knows a lower bound alone, at rate 4 nothing."""
    return pl.DataFrame({
        "rate": [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0],
        "cap": [8] * 8,
        "e2e_p99_s": [1.0, 3.0, 4.0, 6.0, 8.0, None, None, None],
        "e2e_p99_at_least_s": [None] * 5 + [10.0, None, None],
    })


def test_a_curve_says_what_is_only_a_bound() -> None:
    at, mean, low, high, bounded = over_seeds(table(), "rate", "e2e_p99_s")
    assert at.tolist() == [1, 2, 3, 4] and bounded.tolist() == [False, False, True, True]
    assert mean[:3].tolist() == [2.0, 5.0, 9.0] and np.isnan(mean[3])
    assert low[0] == pytest.approx(1.1) and high[0] == pytest.approx(2.9)
    fig = new_figure()
    a, b = fig.subplots(1, 2)
    draw_against(a, table(), "rate", "e2e_p99_s", limit=5.0, limit_label="e2e.p99<5s")
    marks = {line.get_marker(): line.get_xdata() for line in a.lines}
    assert 3.0 in list(marks["^"]) and list(marks["x"]) == [4.0]
    draw_heat(b, table(), "rate", "cap", "e2e_p99_s")
    assert [t.get_text() for t in b.texts] == ["2", "5", "> 9", "?"]
    assert "e2e.p99&lt;5s" in as_svg(fig)


def test_the_pareto_front() -> None:
    x, y = np.array([1, 2, 2, 4, 4, 8]), np.array([9.0, 5.0, 6.0, 5.0, 2.0, np.nan])
    assert pareto(x, y).tolist() == [True, True, False, False, True, False]
    assert pareto(x, y, less_y=False).tolist() == [True, False, False, False, False, False]
    frame = pl.DataFrame({"gpus": x, "y": y, "tp": [1, 1, 2, 2, 4, 8]})
    ax = new_figure().subplots()
    draw_pareto(ax, frame, "gpus", "y", labels=["tp"])
    assert [t.get_text() for t in ax.texts] == ["tp 1", "tp 1", "tp 4"]
