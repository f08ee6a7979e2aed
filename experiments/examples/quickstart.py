"""The public interface in one page: a program, its check, one seed, many seeds, and what they give back.

    python experiments/examples/quickstart.py
"""

import serqjax as sq


def main() -> None:
    sq.use_compilation_cache()  # a second start compiles nothing

    # A deployment with vLLM's flag names, and conversations of several turns.
    deployment = sq.deployments.vllm(max_num_seqs=64, num_gpu_blocks=4_000, max_num_batched_tokens=512)
    workload = sq.workloads.sessions(session_rate=0.1, output_len=sq.workloads.exponential(100))
    prog = sq.program(deployment, workload)

    # All problems at once, or the facts the engine works from.
    print(sq.check(prog))

    # One seed: the reference interpreter's report, and a verdict.
    one = sq.run(prog, seed=7, horizon_s=300.0, warmup_s=30.0)
    print(f"seed 7: {one.verdict}, {one.report['turns']} turns, TTFT mean {one.report['client']['ttft']['mean']:.4f} s")
    assert one.request_counts["in"] == sum(one.request_counts[s] for s in ("finished", "running", "queued", "rejected"))

    # Many seeds at once: means and quantiles with intervals.
    many = sq.run(prog, seeds=range(256), horizon_s=60.0, warmup_s=10.0)
    print(many.summary())
    print(many.requests.to_polars().head())

    # Another number needs no new compilation.
    busier = sq.run(prog, seeds=range(256), horizon_s=60.0, warmup_s=10.0, params={"session_rate": 0.2})
    print(f"at 0.2 sessions/s: TTFT p99 {busier.summary().latency['ttft_s'].pooled['p99'].text} s")
    busier.raise_for_verdict()


if __name__ == "__main__":
    main()
