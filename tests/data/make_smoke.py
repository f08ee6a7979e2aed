"""Makes smoke.ir14.json from smoke.serq and smoke_workload.serq with pyserq (0.1.6 made the file that lies here).

    python tests/data/make_smoke.py
"""

import json
from pathlib import Path

import pyserq

HERE = Path(__file__).resolve().parent

program = pyserq.compile(
    str(HERE / "smoke.serq"), workload=str(HERE / "smoke_workload.serq"), horizon=60.0, warmup=5.0, seed=11
)
(HERE / "smoke.ir14.json").write_text(json.dumps(json.loads(program.to_json()), indent=1) + "\n")
