"""A program as one picture: the automaton of a session and the deployment that serves it.

`words` says the parts in short lines, `graph` puts them into boxes and arrows, `svg` has them laid out.
"""

from .svg import draw as draw
