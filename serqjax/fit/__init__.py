"""Costs from what was measured: tables of layers, per-step tables, and fits to the request times of a real run."""

from .data import RunData as RunData
from .data import read as read
from .layers import layer_cost as layer_cost
from .result import Combination as Combination
from .result import Fit as Fit
from .result import read_params as read_params
from .simulation import fit as fit
