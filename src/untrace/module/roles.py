"""What functions of a program and their parameters are called by the part they play, in idiomatic style.

The author's own names come first (JAX keeps those of a function's parameters); then `x_dot` for a tangent, the name of
the saved value for a residual. Only hints are set: they change nothing that a function computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from untrace import jax_compat
from untrace.ir.nodes import Equation, Function, Value
from untrace.lift.naming.parameters import definition_of, leaf_names, parse_path, positional
from untrace.module.nested import argument_words, hint_of, is_backward


def name_primal(function: Function, consts: int) -> None:
    """The author's names for the parameters of a function with derivative rules."""
    own = [leaf for _, leaf in argument_words(function, consts)]
    if not any(own) and function.jaxpr is not None:  # JAX keeps them with the rule, and has them from the definition
        definition = definition_of(function.jaxpr)
        paths = function.facts.rule_paths
        names = [name for names in positional(definition) for name in names]
        if any(paths):
            names = [name or "" for name in leaf_names([parse_path(p) for p in paths], definition)]
        if len(names) == len(own):
            own = names
    for param, name in zip(function.params[consts:], own, strict=True):
        _call(param, name)


def name_jvp_rule(primal: Function, jvp: Function | None, consts: int) -> None:
    """Primals are called as in the function, tangents `..._dot` after them."""
    name_primal(primal, consts)
    if jvp is None:
        return
    own = primal.params[consts:]
    for place, param in enumerate(jvp.params[len(jvp.params) - 2 * len(own) :]):
        name = hint_of(own[place % len(own)]) if own else ""
        _call(param, name + "_dot" if name and place >= len(own) else name)


def name_vjp_rule(
    primal: Function, fwd: Function | None, bwd: Function | None, consts: int, forwards: Sequence[int | None]
) -> None:
    """`forwards`: for each residual the operand that it is, or None for one that `fwd` computes."""
    name_primal(primal, consts)
    if fwd is None or bwd is None:
        return
    own = primal.params[consts:]
    for param, value in zip(fwd.params, own, strict=False):
        _call(param, hint_of(value))
    computed = iter(fwd.results[: len(fwd.results) - len(primal.results)])
    for param, forward in zip(bwd.params, forwards, strict=False):
        source = next(computed, None) if forward is None else None
        if forward is not None and 0 <= forward - consts < len(fwd.params):
            source = fwd.params[forward - consts]
        _call(param, hint_of(source) or "saved")
    for place, param in enumerate(bwd.params[len(forwards) :]):
        result = primal.results[place] if place < len(primal.results) else None
        _call(param, f"d_{hint_of(result) or 'out'}")


def _call(value: Value, name: str) -> None:
    if name and not name.startswith("_"):
        value.hint = name


def call_name(equation: Equation, name: str) -> str:
    """The name of a called function: `silu_bwd` where it is the backward pass of `silu`, `silu_fwd` where it gives what
    that needs besides its result."""
    if equation.origin is None or name.endswith(("_bwd", "_fwd")):
        return name
    given = [hint_of(a) for a in equation.inputs]
    if is_backward(equation) or any(hint.startswith("d_") for hint in given):
        return name + "_bwd"
    _, stack = jax_compat.equation_source(equation.origin)
    scopes = jax_compat.scope_names(stack)
    saves = ("jvp()" in scopes or "rematted_computation" in scopes) and len(equation.outputs) > 1
    return name + "_fwd" if saves else name
