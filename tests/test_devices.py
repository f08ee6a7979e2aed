"""A batch over several devices of XLA: every instance bit for bit as on one device, and as alone in native code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from helpers import ROOT

#: In a process of its own: the number of devices is chosen before JAX starts.
SCRIPT = """
import json, sys
sys.path.insert(0, "tests")
import serqjax as sq
from compare_runs import exact_difference
from serqjax.engine import simulate
from serqjax.engine import host
from serqjax.engine.step import Config

host.Config = lambda check, form: Config(check=check, form="one_by_one")
used = set()
build = host.Batch.build

def noted(plan, config):
    run = host.loop(plan, config)

    def call(*given):
        result = run(*given)
        used.update(str(d) for x in result[0][0].rows.values() for d in x.devices())
        return result

    return call

def spied(*given, **named):
    batch = build(*given, **named)
    batch.make_loop = noted
    return batch

host.Batch.build = spied
deployment = sq.deployments.vllm(max_num_seqs=4, max_num_batched_tokens=64, block_size=16, num_gpu_blocks=24,
                                 enable_prefix_caching=True, cost=sq.costs.affine(base_s=0.02, per_decode_s=1e-3))
lengths = {"input_len": sq.workloads.uniform(10, 80), "output_len": sq.workloads.uniform(1, 30)}
program = sq.program(deployment, sq.workloads.requests(request_rate=2.0, num_prompts=None, horizon_s=15.0, **lengths))
together = simulate(program, range(256))
devices, found = sorted(used), []
host.devices = lambda: host.jax.local_devices()[:1]
used.clear()
one = simulate(program, range(256))
host.Config, host.Batch.build = Config, build
for seed in range(256):
    found.append(exact_difference(together[seed], one[seed]))
for seed in (0, 16, 31, 100, 255):
    found.append(exact_difference(together[seed], simulate(program, [seed])[0]))
print(json.dumps({"devices": devices, "one": sorted(used), "differences": [x for x in found if x],
                  "compared": len(found), "finished": sum(int(r.turns) for r in one)}))
"""


def test_a_batch_of_256_over_two_devices() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert len(said["devices"]) == 2 and len(said["one"]) == 1
    assert said["differences"] == [] and said["compared"] == 261
    assert said["finished"] > 256
