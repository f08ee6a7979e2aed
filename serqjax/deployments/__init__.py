"""Ready-made deployments: `vllm`. Each returns an object that `serqjax.program` joins with a workload."""

from .vllm import VERSIONS as VERSIONS
from .vllm import Vllm as Vllm
from .vllm import vllm as vllm

#: Deployments by the name that the command line knows.
BY_NAME = {"vllm": vllm}
