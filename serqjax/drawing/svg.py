"""The picture as SVG text, laid out by Graphviz (the wheel `graphviz-pure`: a program without system packages)."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree

from ..check import check_program
from ..check.index import Index
from ..extras import needs
from ..ir.program import Program
from .graph import automaton, deployment, printable

SVG = "http://www.w3.org/2000/svg"
#: Fonts as wide as the one that Graphviz measures with (its Helvetica), and what to take without any of them.
FONTS = "Helvetica, Arial, Liberation Sans, Arimo, sans-serif"
#: Between the two halves, points.
GAP = 18.0


def draw(program: Program) -> str:
    """See `serqjax.draw`."""
    facts, index = check_program(program), Index(program)
    halves = {
        "automaton": _laid_out(automaton(index, facts)),
        "deployment": _laid_out(deployment(index, facts)),
    }
    sizes = [[float(half.get(side, "").removesuffix("pt")) for side in ("width", "height")] for half in halves.values()]
    width, height = sum(w for w, _ in sizes) + GAP, max(h for _, h in sizes)

    whole = ElementTree.Element("svg", {
        "xmlns": SVG, "width": f"{width:g}pt", "height": f"{height:g}pt", "viewBox": f"0 0 {width:g} {height:g}",
        "font-family": FONTS,
    })
    ElementTree.SubElement(whole, "title").text = printable(program.name)
    ElementTree.SubElement(whole, "rect", {"width": "100%", "height": "100%", "fill": "white"})
    left = 0.0
    for (name, half), (half_width, _) in zip(halves.items(), sizes):
        group = ElementTree.SubElement(whole, "g", {"class": name, "transform": f"translate({left:g} 0)"})
        group.extend(half)
        left += half_width + GAP
    return ElementTree.tostring(whole, encoding="unicode") + "\n"


def _laid_out(dot: str) -> ElementTree.Element:
    """The `svg` element that Graphviz makes of a graph, its names as they stand without a namespace prefix.

    Numbered ids are dropped: both halves would have the same, and so might the page that shows the picture.
    """
    made = subprocess.run([_graphviz(), "-Kdot", "-Tsvg"], input=dot.encode(), capture_output=True)
    if made.returncode:
        raise RuntimeError(f"graphviz-pure: {made.stderr.decode(errors='replace').strip()}")
    svg = ElementTree.fromstring(made.stdout)
    for element in svg.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        element.attrib.pop("id", None)
        element.attrib.pop("font-family", None)  # said once, for the whole picture
        for title in element.findall(f"{{{SVG}}}title"):  # the numbered names of boxes and arrows
            element.remove(title)
    return svg


def _graphviz() -> str:
    """The path of the program. It need not lie on PATH (an environment that is not activated).

    **Raises:** `MissingExtra` if it is not installed.
    """
    import importlib.metadata

    with needs("draw", "a drawing"):
        files = importlib.metadata.distribution("graphviz-pure").files or []
    return next(str(f.locate()) for f in files if f.stem == "graphviz-pure" and f.suffix in ("", ".exe"))
