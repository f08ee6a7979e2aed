"""How fast may the Azure conversation trace be replayed with a 99th percentile of TTFT below 1 s, by size of the KV
cache?

The recorded times are divided by the rate scale: 1 is the hour as it was, 2 the same requests in half an hour. Every
scale is one replay of all 19,366 requests, ended early where the target is missed for good; the intervals are by a
block bootstrap of arrival windows of one minute.

    python experiments/capacity_azure.py --trace AzureLLMInferenceTrace_conv.csv --out azure.html

The trace: https://github.com/Azure/AzurePublicDataset (CC-BY 4.0; Patel et al., *Splitwise*, ISCA 2024).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import serqjax as sq

#: KV blocks of 16 tokens of one engine: 0.05, 0.14 and 0.43 million tokens.
KV_BLOCKS = (3_000, 9_000, 27_000)
SLO = "ttft.p99<1s"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", default="../shared/data/azure_llm_2023_conv.csv", help="the trace as a CSV file")
    parser.add_argument("--out", type=Path, help="write the page to this HTML file")
    parser.add_argument("--json", type=Path, help="write the answers, what was tried and how long it took to this file")
    parser.add_argument("--between", type=float, nargs=2, default=(0.25, 1.5), metavar=("LEAST", "LARGEST"))
    parser.add_argument("--window", type=float, default=60.0, help="seconds of an arrival window (default: 60)")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    sq.use_compilation_cache()
    try:
        rows = sq.traces.read(options.trace)
        work = sq.workloads.from_trace(rows)
        programs = [
            sq.program(sq.deployments.vllm(num_gpu_blocks=blocks), work, name=f"vllm, {blocks:,} KV blocks")
            for blocks in KV_BLOCKS
        ]
        found = sq.capacity(programs, over="rate_scale", between=tuple(options.between), slo=SLO,
                            window_s=options.window, progress=sq.BarProgress("replays"))
    except (sq.ProgramError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    rate = len(rows.rows) / (rows.rows[-1].at_s - rows.rows[0].at_s)
    print(f"{len(rows.rows):,} requests, {rate:.3g} requests/s as recorded; {SLO}\n")
    for blocks, answer in zip(KV_BLOCKS, found):
        low, high = answer.interval
        print(f"{blocks:6,} blocks: rate scale {answer.value:.3f} [{low:.3f}, {high:.3f}]  "
              f"{answer.value * rate:.2f} requests/s  {answer.verdict}")
        for note in (answer.cause, *answer.notes):
            if note:
                print(f"{'':15} {note}")
    if options.out is not None:
        from serqjax.study.page import capacity_page

        page = capacity_page(found, title="Azure conversation trace: largest rate scale")
        options.out.write_text(page, encoding="utf-8")
        print(f"\npage written to {options.out}")
    spent = {"wall_s": round(time.monotonic() - begun, 1), "processor_s": round(time.process_time(), 1),
             "cores": len(os.sched_getaffinity(0))}
    if options.json is not None:
        document = {"answers": [answer.to_document() for answer in found], **spent, "load_average": os.getloadavg()[0]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{spent['wall_s']:.0f} s, {spent['processor_s']:.0f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
