"""Candidates: programs with the arguments that they are run on, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._api import Decompiled, from_jaxpr
from untrace.ir.types import Aval, Data, Jaxpr, Variable


class Unfit(Exception):
    """A candidate that is no program, or whose arguments nobody knows."""


@dataclass(frozen=True, eq=False)
class Case:
    """A program of flat arguments, and these. name: of its function."""

    closed: Jaxpr
    args: tuple[Data, ...]
    name: str = "minimal"

    @property
    def equations(self) -> Sequence[JaxprEqn]:
        return jax_compat.open_jaxpr(self.closed)[0].eqns

    @cached_property
    def text(self) -> Decompiled:
        """The program as a module, equation by equation, without a proof: whoever runs it sees what it does."""
        return from_jaxpr(self.closed, name=self.name, style="exact", prove=False, simplify=False, guard=False)

    @cached_property
    def size(self) -> tuple[int, int, int, int]:
        """Equations (of bodies too), results, arguments, and elements of these: what is smaller in this order is smaller."""
        jaxpr, consts = jax_compat.open_jaxpr(self.closed)
        equations = sum(1 for _ in jax_compat.equations_in(self.closed))
        elements = sum(int(np.prod(v.aval.shape)) for v in jaxpr.invars) + sum(int(np.size(c)) for c in consts)
        return equations, len(jaxpr.outvars), len(jaxpr.invars), elements


def is_value(aval: Aval) -> bool:
    """Whether an array of the type can be handed over: not a reference, a token or a float0."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and dtype != jax_compat.FLOAT0 and not jax_compat.is_ref_aval(aval)


def operands(equation: JaxprEqn) -> list[Variable]:
    return [v for v in equation.invars if type(v) is not jax_compat.LITERAL_TYPE]


def results(equation: JaxprEqn) -> list[Variable]:
    return [v for v in equation.outvars if not jax_compat.is_dropped(v)]


def part(case: Case, kept: Sequence[JaxprEqn], values: Mapping[Variable, Data]) -> Case:
    """The program of some of the equations, in their order. What they read of others is an argument, whose value is known or
    made up; what nobody of them reads is a result.

    Raises Unfit where an argument would be no array.
    """
    jaxpr, _ = jax_compat.open_jaxpr(case.closed)
    made = {v for e in kept for v in results(e)}
    read = dict.fromkeys(v for e in kept for v in operands(e))
    own = {v for v in jaxpr.outvars if type(v) is not jax_compat.LITERAL_TYPE}
    given = dict(zip(jaxpr.invars, case.args, strict=True))
    known = {*given, *jaxpr.constvars}
    inputs = [v for v in jaxpr.invars if v in read] + [v for v in read if v not in made and v not in known]
    outputs = [v for v in dict.fromkeys(v for e in kept for v in results(e)) if v in own or v not in read]
    outputs = [v for v in outputs if is_value(v.aval)]
    if not outputs or not all(is_value(v.aval) for v in inputs):
        raise Unfit
    args = [given[v] if v in given else values[v] if v in values else made_up(v.aval) for v in inputs]
    return Case(jax_compat.rebuilt_jaxpr(case.closed, kept, outputs, invars=inputs), tuple(args), case.name)


def with_outputs(case: Case, places: Sequence[int]) -> Case:
    """The program of some of its results, without what only the others need."""
    jaxpr, _ = jax_compat.open_jaxpr(case.closed)
    fewer = jax_compat.rebuilt_jaxpr(case.closed, jaxpr.eqns, [jaxpr.outvars[i] for i in places], kept=places)
    return without_arguments(Case(jax_compat.without_dead_code(fewer), case.args, case.name))


def without_arguments(case: Case) -> Case:
    """The program without the arguments that it does not read."""
    jaxpr, _ = jax_compat.open_jaxpr(case.closed)
    read = {v for e in jaxpr.eqns for v in operands(e)}
    read |= {v for v in jaxpr.outvars if type(v) is not jax_compat.LITERAL_TYPE}
    kept = [i for i, v in enumerate(jaxpr.invars) if v in read]
    if len(kept) == len(jaxpr.invars):
        return case
    fewer = jax_compat.rebuilt_jaxpr(case.closed, jaxpr.eqns, jaxpr.outvars, invars=[jaxpr.invars[i] for i in kept])
    return Case(fewer, tuple([case.args[i] for i in kept]), case.name)


def made_up(aval: Aval) -> Data:
    """A value of a type of which none is known: ones, zeros of integers, a key of 0."""
    if jax_compat.is_key_dtype(aval.dtype):
        keys = jax.random.split(
            jax.random.key(0, impl=jax_compat.key_impl_name(aval)), max(int(np.prod(aval.shape)), 1)
        )
        return keys.reshape(aval.shape)
    is_inexact = jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
    return (np.ones if is_inexact else np.zeros)(aval.shape, aval.dtype)


# What is done with an equation when a program is traced again: the results that it has instead.
Change = Callable[[JaxprEqn, Sequence[Data]], "Sequence[Data] | None"]


def traced_again(
    case: Case, change: Change, args: Sequence[Data] | None = None, consts: Sequence[Data] | None = None
) -> Case:
    """The program with other equations in the place of those for which `change` gives results, in bodies too.

    Raises Unfit where the types no longer fit.
    """
    jaxpr, own = jax_compat.open_jaxpr(case.closed)
    args = case.args if args is None else args
    consts = own if consts is None else consts
    try:
        closed = jax.make_jaxpr(lambda *xs: _run(jaxpr, consts, xs, change))(*args)
    except Unfit:
        raise
    except Exception as error:  # a candidate need not be a program
        raise Unfit from error
    return without_arguments(Case(jax_compat.without_dead_code(closed), tuple(args), case.name))


def _run(jaxpr: Jaxpr, consts: Sequence[Data], args: Sequence[Data], change: Change) -> list[Data]:
    env: dict[Variable, Data] = {
        **dict(zip(jaxpr.constvars, consts, strict=True)),
        **dict(zip(jaxpr.invars, args, strict=True)),
    }

    def read(atom: Variable) -> Data:
        return atom.val if type(atom) is jax_compat.LITERAL_TYPE else env[atom]

    for equation in jaxpr.eqns:
        inputs = [read(a) for a in equation.invars]
        found = change(equation, inputs)
        if found is None:
            found = jax_compat.bind_equation(
                jax_compat.with_inner_jaxprs(equation, lambda inner: _body(inner, change)), inputs
            )
        env.update(zip(equation.outvars, found, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _body(closed: Jaxpr, change: Change) -> Jaxpr:
    """A body with its equations changed; its very self where none is."""
    jaxpr, consts = jax_compat.open_jaxpr(closed)
    if jax_compat.is_open(closed) or not any(True for _ in jaxpr.eqns):
        return closed
    touched: list[bool] = []

    def noted(equation: JaxprEqn, inputs: Sequence[Data]) -> Sequence[Data] | None:
        found = change(equation, inputs)
        touched.append(found is not None)
        return found

    new = jax.make_jaxpr(lambda *xs: _run(jaxpr, consts, xs, noted))(
        *[jax_compat.plain_aval(v.aval) for v in jaxpr.invars]
    )
    if not any(touched):
        return closed
    if [v.aval for v in jax_compat.open_jaxpr(new)[0].outvars] != [v.aval for v in jaxpr.outvars]:
        raise Unfit
    return new


def run_body(body: Jaxpr, inputs: Sequence[Data], change: Change = lambda *_: None) -> list[Data]:
    """What a body gives, its equations in the place of the call."""
    jaxpr, consts = jax_compat.open_jaxpr(body)
    return _run(jaxpr, consts, inputs, change)


_LOOPS = frozenset({"scan", "while", "cond"})


def body_of(equation: JaxprEqn) -> Jaxpr | None:
    """The body of a call: a jaxpr that takes what it takes and gives what it gives."""
    if equation.primitive.name in _LOOPS:
        return None
    for body in jax_compat.jaxprs_in(equation):
        jaxpr, _ = jax_compat.open_jaxpr(body)
        if _types(jaxpr.invars) == _types(equation.invars) and _types(jaxpr.outvars) == _types(equation.outvars):
            return body
    return None


def _types(atoms: Sequence[Variable]) -> list[object]:
    return [(getattr(a.aval, "shape", None), getattr(a.aval, "dtype", None)) for a in atoms]
