"""Callees that are functions of the program with something done to them: mapped, differentiated, marked, with rules.

The primitives are JAX's own, or stand for the author's calls of `jax.vmap`, `jax.grad` and their like (`capture.calls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from untrace.ir.nodes import Function, Primitive, Structured
from untrace.ir.signatures import Derivative, MapSignature
from untrace.ir.types import Aval, Parameter, PrimitiveObject


@dataclass(frozen=True, eq=False, slots=True)
class JvpRule:
    """The rule of a `jax.custom_jvp`. `function` maps (the inputs of the call that it closes over, primals without those
    that the function itself closes over, their tangents) to (primals out, tangents out whose `out_zeros` entry is False).
    `closed`: which inputs it closes over. Inputs whose `perturbed` is False must not be differentiated."""

    function: Function
    out_zeros: Sequence[bool]
    perturbed: Sequence[bool]
    closed: Sequence[int]


@dataclass(frozen=True, eq=False, slots=True)
class VjpRule:
    """The rules of a `jax.custom_vjp`. `fwd` maps the primals to (residuals that are not inputs, primals out);
    `res_forwards[i]` is the input that residual i is, or None; `bwd` maps (all residuals, cotangents) to the cotangents
    whose `ct_zeros` is False; inputs whose `perturbed` is False must not be differentiated. Before all else both take the
    inputs that they close over, `fwd_closed` and `bwd_closed`."""

    fwd: Function
    bwd: Function
    res_forwards: Sequence[int | None]
    ct_zeros: Sequence[bool]
    perturbed: Sequence[bool]
    fwd_closed: Sequence[int]
    bwd_closed: Sequence[int]


@final
class CustomRule(Structured):
    """A function with the author's rule for its derivative: `jax.custom_jvp` or `jax.custom_vjp`. All calls of one share it.

    `function` takes the equation's inputs, of which it closes over the first `consts`. `rule`: None where it is captured
    later, if ever, or cannot be traced by itself. `is_deep`: it is not captured, so deep inside other rules it is called.
    """

    __slots__ = ("function", "consts", "symbolic_zeros", "rule", "is_deep")

    def __init__(self, object: PrimitiveObject, function: Function, consts: int, symbolic_zeros: bool):
        super().__init__(object)
        self.function = function
        self.consts = consts
        self.symbolic_zeros = symbolic_zeros
        self.rule: JvpRule | VjpRule | None = None
        self.is_deep = False

    @property
    def is_jvp(self) -> bool:
        """Whether the rule is one for forward mode."""
        return self.name == "custom_jvp_call"

    @property
    def bodies(self) -> Sequence[Function]:
        rule = self.rule
        if rule is None:
            return (self.function,)
        return (self.function, rule.function) if isinstance(rule, JvpRule) else (self.function, rule.fwd, rule.bwd)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"call_jaxpr": self.function, "num_consts": self.consts, "symbolic_zeros": self.symbolic_zeros}


@final
class Map(Structured):
    """`jax.vmap(function, in_axes, out_axes)` of the author's, called. The equation's inputs are what `function` closes over
    and the leaves of its arguments, each with its axis; None for one that is the same for all elements."""

    __slots__ = ("function", "in_axes", "out_axes", "signature")

    def __init__(
        self,
        object: PrimitiveObject,
        function: Function,
        in_axes: Sequence[int | None],
        out_axes: Sequence[int],
        signature: MapSignature,
    ):
        super().__init__(object)
        self.function = function
        self.in_axes = tuple(in_axes)
        self.out_axes = tuple(out_axes)
        self.signature = signature

    @property
    def bodies(self) -> Sequence[Function]:
        return (self.function,)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"jaxpr": self.function}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`jax.checkpoint(f)`. `differentiated`: f is what differentiation left of such a call.

    `varied`: of `jax.vjp(jax.checkpoint(f), ...)` with its pullback called, the arguments that f is differentiated for;
    the inputs are f's and cotangents of its results, the outputs the cotangents of those arguments. None where f is called.
    """

    differentiated: bool = False
    varied: tuple[int, ...] | None = None


@final
class Transformed(Structured):
    """A call of a transformation of `function`, whose name is the callee's: how it is transformed says the Derivative that
    was asked for (`value_and_grad`, `jvp`, `vjp`, `linearize`, `linear_transpose`, `jacfwd`, `jacrev`, `hessian`; `called` is
    a plain call of such a function), or the Checkpoint.

    The inputs of a derivative are what `function` closes over, the leaves of its arguments, and tangents; the outputs are
    leaves of what comes back, of integers no gradients. What `vjp`, `linearize` and `linear_transpose` give to be called is
    the last output, a token, and each call of it an equation of its own (Pullback).
    """

    __slots__ = ("function", "how")

    def __init__(self, object: PrimitiveObject, function: Function, how: Derivative | Checkpoint):
        super().__init__(object)
        self.function = function
        self.how = how

    @property
    def held(self) -> Sequence[Aval]:
        """The types of what a pullback holds from the forward to the backward part."""
        body = self.how.body if type(self.how) is Derivative else None
        return [] if body is None else [v.aval for v in body.residuals]

    @property
    def bodies(self) -> Sequence[Function]:
        return (self.function,)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        if type(self.how) is not Checkpoint:
            return {"jaxpr": self.function}
        if self.how.varied is not None:
            return {"jaxpr": self.function, "varied": self.how.varied}
        return {"jaxpr": self.function, "differentiated": self.how.differentiated}


@final
class Pullback(Primitive):
    """A call of what `jax.vjp`, `linearize` or `linear_transpose` gave: the second part of a Transformed of the same
    `derivative`. Its inputs are the token and cotangents (of `pushforward`: tangents), its outputs those of the other end."""

    __slots__ = ("derivative",)

    def __init__(self, object: PrimitiveObject, derivative: Derivative):
        super().__init__(object)
        self.derivative = derivative


def derivative_in(callee: object) -> Derivative | None:
    """The derivative that a call is of; None of any other callee."""
    if type(callee) is Transformed and type(callee.how) is Derivative:
        return callee.how
    return None


def varied_in(callee: object) -> tuple[int, ...] | None:
    """The arguments that the function of a checkpoint is differentiated for; None of any other callee."""
    if type(callee) is Transformed and type(callee.how) is Checkpoint:
        return callee.how.varied
    return None
