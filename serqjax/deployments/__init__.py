"""Ready-made deployments: `vllm`, and fleets of them, `replicas`.

Each returns an object that `serqjax.program` joins with a workload.
"""

from .fleet import Replicas as Replicas
from .fleet import replicas as replicas
from .owned import Owned as Owned
from .owned import owned as owned
from .vllm import VERSIONS as VERSIONS
from .vllm import Vllm as Vllm
from .vllm import vllm as vllm

#: Deployments by the name that the command line knows.
BY_NAME = {"vllm": vllm}
