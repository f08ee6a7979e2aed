"""The sequential reference interpreter: the executable definition of the automaton form.

Plain Python, one action at a time, made to be read next to `spec/semantics.md`. It shares `serqjax.ir`
(what a program is, the integers of its costs) and the raw result with the array engine, and nothing else.
"""

from .machine import simulate as simulate
from .support import Unsupported as Unsupported
