"""Ready-made deployments: `vllm`, fleets of them, `replicas`, and prefill and decode apart, `disaggregated`.

`offload` gives an engine a tier of CPU memory, `behind_api` puts an API server before any of them.

Each returns an object that `serqjax.program` joins with a workload.
"""

from .api_server import BehindApi as BehindApi
from .api_server import behind_api as behind_api
from .disaggregated import Disaggregated as Disaggregated
from .disaggregated import FirstToken as FirstToken
from .disaggregated import disaggregated as disaggregated
from .disaggregated import link as link
from .fleet import Replicas as Replicas
from .fleet import replicas as replicas
from .named import BY_NAME as BY_NAME
from .offload import Offload as Offload
from .offload import offload as offload
from .owned import Owned as Owned
from .owned import owned as owned
from .vllm import VERSIONS as VERSIONS
from .vllm import Vllm as Vllm
from .vllm import vllm as vllm
