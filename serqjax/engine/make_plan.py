"""A program as what a loop is compiled from, its plan, and what the loop reads: numbers and integers of its costs."""

from __future__ import annotations

from ..ir.fixed import IntAffine, IntForm, resolve, stage_form
from ..ir.program import Program, Step
from ..ir.structure import skeleton
from .plan import Plan
from .plan_parts import CostShape


def make_plan(program: Program) -> tuple[Plan, tuple[float, ...], tuple[int, ...]]:
    """The plan of a program, its numbers and the integers of its costs, in the order in which the plan reads them."""
    shape, numbers = skeleton(program)
    params = {p.name: p.value for p in program.params}
    forms: list[CostShape | None] = []
    integers: list[int] = []
    for stage in program.stages:
        form = stage_form(program, stage.kind) if isinstance(stage.kind, Step) else None
        forms.append(None if form is None else _shape(resolve(form, params, program.tick_s), integers))
    return Plan(shape, tuple(forms)), numbers, tuple(integers)


def _shape(form: IntForm, integers: list[int]) -> CostShape:
    """The tree of a cost with each integer replaced by its place in `integers`."""
    if isinstance(form, IntAffine):
        integers.append(form.constant)
        constant = len(integers) - 1
        terms = []
        for name, coefficient in form.terms:
            integers.append(coefficient)
            terms.append((name, len(integers) - 1))
        return IntAffine(constant, tuple(terms))
    return type(form)(tuple(_shape(part, integers) for part in form.parts))
