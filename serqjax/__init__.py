"""serqjax: thousands of instances of an LLM-serving program at once, as arrays under one jitted step.

    import serqjax as sq

    prog = sq.program(sq.deployments.vllm(), sq.workloads.sessions(session_rate=0.1))
    print(sq.run(prog, seeds=range(64)).summary())

Importing it sets no JAX flag and does not import JAX. `docs/architecture.md` shows the rooms behind this surface.
"""

__version__ = "0.1.0"

from . import costs as costs
from . import deployments as deployments
from . import ir as ir
from . import synthetic as synthetic
from . import traces as traces
from . import workloads as workloads
from .api import check as check
from .api import draw as draw
from .api import program as program
from .api import run as run
from .api import run_many as run_many
from .api import run_reference as run_reference
from .api import to_json as to_json
from .cache import use_compilation_cache as use_compilation_cache
from .errors import ProgramError as ProgramError
from .fit import fit as fit
from .overrides import with_params as with_params
from .progress import AbstractProgress as AbstractProgress
from .progress import BarProgress as BarProgress
from .progress import NoProgress as NoProgress
from .results import Interrupted as Interrupted
from .results import Run as Run
from .results import Runs as Runs
from .results import VerdictError as VerdictError
from .sources import read as read
from .study.ask import capacity as capacity
from .study.ask import compare as compare
from .study.ask import measure as measure
from .study.grid import grid as grid
from .study.grid_result import Grid as Grid
from .study.merge import merge as merge
