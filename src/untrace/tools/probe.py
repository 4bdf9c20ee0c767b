"""The probe: an identity that stays in a program with whatever JAX does to it, and says where in the text its operand stands.

In forward mode the tangent of a probed value goes through a probe as well; in reverse mode that is transposed, and so the
cotangent is seen at the place of the value. `jax.vmap` says which axis is the batch's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from untrace.ir.types import Aval, Data

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


PROBE = Primitive("untrace_probe")


def bind(value: Data, probed: Probed) -> Data:
    """`value`, with the probe on it in what is being traced."""
    return PROBE.bind(value, probed=probed)


def _abstract(aval: Aval, *, probed: Probed) -> Aval:
    return aval


def _jvp(primals: Sequence[Data], tangents: Sequence[Data], *, probed: Probed) -> tuple[Data, Data]:
    (primal,), (tangent,) = primals, tangents
    out = bind(primal, probed)
    if type(tangent) is ad.Zero or not _is_continuous(tangent):
        return out, tangent
    kind = TANGENT if probed.kind == VALUE else probed.kind
    return out, bind(tangent, dataclasses.replace(probed, kind=kind))


def _is_continuous(value: Data) -> bool:
    return str(getattr(value, "dtype", "")) != "float0"


def _transpose(cotangent: Data, operand: Data, *, probed: Probed) -> list[Data]:
    if type(cotangent) is ad.Zero:
        return [cotangent]
    kind = TANGENT if probed.kind == COTANGENT else COTANGENT
    return [bind(cotangent, dataclasses.replace(probed, kind=kind))]


def _batch(args: Sequence[Data], dims: Sequence[int], *, probed: Probed) -> tuple[Data, int]:
    (value,), (axis,) = args, dims
    return bind(value, dataclasses.replace(probed, batch=(*probed.batch, axis))), axis


def _lower(ctx: Any, value: Any, *, probed: Probed) -> list[Any]:
    return [value]


PROBE.def_impl(lambda value, *, probed: value)
PROBE.def_abstract_eval(_abstract)
ad.primitive_jvps[PROBE] = _jvp
ad.primitive_transposes[PROBE] = _transpose
batching.primitive_batchers[PROBE] = _batch
mlir.register_lowering(PROBE, _lower)
