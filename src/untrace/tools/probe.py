"""The probe: an identity that stays in a program with whatever JAX does to it, and says where in the text its operand stands.

In forward mode the tangent of a probed value goes through a probe as well; in reverse mode that is transposed, and so the
cotangent is seen at the place of the value. `jax.vmap` says which axis is the batch's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from untrace import jax_compat
from untrace.ir.types import Data

VALUE, TANGENT, COTANGENT = "value", "tangent", "cotangent"


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """A name that a statement of the text gives a value, or an expression that a function gives back.

    `line`: of the text, from 1. `function`: its path (`model.step`). `name`: of the value. `statement`: the source on one
    line. `assigns`: whether the value has that name in the function.
    """

    line: int
    function: str
    name: str
    statement: str
    assigns: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    """A function of the text that was running, and the line that it was at."""

    function: str
    line: int


@dataclass(frozen=True, eq=False, slots=True)
class Probed:
    """One passing of a site while the text is traced. `leaf`: the way to the array in the value. `frames`: the functions
    that were running, the outermost first; the last is the site's own. `batch`: the axes that `jax.vmap` has put in, in
    the order of the calls. `serial`: counts the passings."""

    site: Site
    leaf: str
    frames: tuple[Frame, ...]
    serial: int
    kind: str = VALUE
    batch: tuple[int, ...] = ()


def _of_tangent(probed: Probed) -> Probed:
    return dataclasses.replace(probed, kind=TANGENT if probed.kind == VALUE else probed.kind)


def _of_cotangent(probed: Probed) -> Probed:
    return dataclasses.replace(probed, kind=TANGENT if probed.kind == COTANGENT else COTANGENT)


def _of_batch(probed: Probed, axis: int) -> Probed:
    return dataclasses.replace(probed, batch=(*probed.batch, axis))


PROBE = jax_compat.identity_primitive("untrace_probe", _of_tangent, _of_cotangent, _of_batch)


def bind(value: Data, probed: Probed) -> Data:
    """`value`, with the probe on it in what is being traced."""
    return PROBE.bind(value, probed=probed)
