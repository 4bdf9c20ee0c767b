"""What is decided for one attempt at lifting a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Program
from untrace.ir.passes import ALL, Course
from untrace.ir.types import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftOptions:
    """Choices of an attempt, beside the equations that it leaves as they are."""

    outline: Callable[[Program, frozenset[JaxprEqn]], Program] | None = None
    """The pass that finds the author's calls, of a capture that knows them; None for `lift.outline.outline`."""

    pullbacks_once: bool = False
    """Whether equal calls of `jax.vjp` become one: the program is another one then, which the attempt expects."""

    adds_cotangents: bool = False
    """Whether sums of cotangents become `a + b` where no simplification reaches them: that has to be proven."""

    padding: Sequence[Origin] = ()
    """The jaxpr's equations that make zeros, in a program to which missing sums were added (`lift.adjoint.addends`)."""

    course: Course = ALL
    """Which of the passes are run."""


USUAL = LiftOptions()
