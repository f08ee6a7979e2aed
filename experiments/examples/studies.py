"""Studies in one page: a deployment at many points, as one table.

    python experiments/examples/studies.py
"""

import tempfile
from pathlib import Path

import serqjax as sq


def main() -> None:
    sq.use_compilation_cache()  # a second start compiles nothing
    engine = sq.deployments.vllm(num_gpu_blocks=4_000, max_num_batched_tokens=512)
    load = sq.workloads.requests(request_rate=1.0, num_prompts=40, input_len=512, output_len=64)
    prog = sq.program(engine, load)

    with tempfile.TemporaryDirectory() as folder:
        # Every combination under the same 64 seeds. Stopped at any time, the same call goes on where it was.
        grid = sq.grid(
            prog,
            vary={"request_rate": [1, 2, 4], "max_num_seqs": [64, 256]},
            seeds=range(64),
            out=Path(folder) / "g1",
            resume=True,
        )
        print(grid)
        table = grid.to_polars()
        assert table.height == 6 * 64 and table["verdict"].unique().to_list() == ["drained"]

        # A row is the single run with its numbers and its seed.
        row = table.row(100, named=True)
        single = sq.run(
            prog, seed=row["seed"], params={name: row[name] for name in ("request_rate", "max_num_seqs")}
        )
        assert single.report["end"] == row["end_s"] and single.request_counts["finished"] == row["requests_finished"]

        # Means over seeds with 95 % intervals, as data.
        print(grid.summary(["ttft_p99_s", "e2e_mean_s"]))

    # The largest rate that meets a target, with an interval. (Runs of 40 requests, 10 % and 64 seeds keep it short.)
    cap = sq.capacity(prog, over="request_rate", between=(2, 20), slo=["ttft.p99 < 150ms"], precision=0.1,
                      confidence=0.95, max_seeds=64)  # fmt: skip
    print(cap)
    assert cap.verdict == "found" and cap.interval[0] < cap.value < cap.interval[1]

    # Which of two routers is better, and how sure is that: both under the same seeds. (Two small engines, conversations
    # of three turns; a tenth of the mean is precise enough here.)
    small = sq.deployments.vllm(num_gpu_blocks=500, max_num_seqs=8, max_num_batched_tokens=512)
    talks = sq.workloads.sessions(session_rate=1.0, turns=3, first_prompt=500, new_prompt=100, think_s=1.0,
                                  output_len=20, num_sessions=15)
    spread, sticky = (
        sq.program(sq.deployments.replicas(small, 2, router=router), talks, name=router)
        for router in ("round_robin", "prefix_affinity")
    )
    found = sq.compare(spread, sticky, metric="ttft.mean", precision=0.1, max_seeds=64)
    print(found)
    assert found.verdict == "b_lower" and found.interval[1] < 0


if __name__ == "__main__":
    main()
