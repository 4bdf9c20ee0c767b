"""Programs for the tests of single passes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
from jax import lax

from untrace.capture import function
from untrace.capture.function import Captured
from untrace.driver.forms import with_calls_found
from untrace.ir.nodes import Equation, Function, Primitive, Program, Value
from untrace.module.interface.entry import entry_of


def program_of(captured: Captured, name: str, signature: Any, own: Collection[str] = ()) -> Program:
    """The Program of what was traced, without library primitives but those in `own`."""
    function.expand(captured, own)
    return function.program_of(captured, captured.expanded, name, signature)


def program_with_calls(fn: Callable[..., Any], args: tuple[Any, ...], derivatives: str = "called") -> Program:
    """The Program of a function with the calls of `jax.vmap`, `jax.grad` and their like that are found in it."""
    captured = function.trace(fn, args, {}, note_calls=True, derivatives=derivatives)
    function.expand(captured)
    jaxpr = with_calls_found(captured, folds=True)
    return function.program_of(captured, jaxpr, "f", entry_of(fn, captured, args, {}, (), ()))


def double_a_result(body: Function) -> None:
    """Breaks a body so that it stays well formed: one of its results is twice what it was."""
    place = next(i for i, r in enumerate(body.results) if type(r) is Value and r not in body.params)
    right = body.results[place]
    wrong = Value(right.aval)
    kind = jax.ShapeDtypeStruct(right.aval.shape, right.aval.dtype)
    added = jax.make_jaxpr(lambda a, b: a + b)(kind, kind).eqns[0]
    body.equations = [*body.equations, Equation(Primitive(lax.add_p), [right, right], [wrong], {}, added)]
    body.results = [*body.results[:place], wrong, *body.results[place + 1 :]]
