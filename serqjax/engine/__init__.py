"""The array engine: thousands of instances of a program as fixed-shape arrays under one jitted step."""

from .host import simulate as simulate
from .host import simulate_many as simulate_many
from .state import Capacities as Capacities
