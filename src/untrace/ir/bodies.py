"""The functions that loops, branches, jitted and marked calls have, and the pytrees that these are known to take."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from jax.extend.core import JaxprEqn

from untrace.ir.nodes import Cond, Equation, Function, Program, Scan, While, functions_called, walk_functions

# What `jax.checkpoint` leaves, on the lines of JAX.
CHECKPOINTS = ("checkpoint", "remat2", "remat")
# Calls of a function that is their parameter `jaxpr`.
CALLS = frozenset({"jit", "pjit", *CHECKPOINTS})
# These and other calls of one function, on all their operands, that are nothing more.
PLAIN_CALLS = CALLS | {"closed_call", "core_call", "call", "composite"}
# Those of a function that has a rule for derivatives.
RULED_CALLS = frozenset({"custom_jvp_call", "custom_vjp_call"})


def bodies_in(program: Program) -> Iterator[tuple[Function, Equation]]:
    """The bodies in a program, each with the equation that has it."""
    for function in walk_functions(program.entry):
        for equation in function.equations:
            if type(equation.callee) in (Scan, While, Cond) or equation.callee.name in CALLS:
                for body in functions_called(equation):
                    yield body, equation


def forget_trees(program: Program, refused: Container[JaxprEqn] | None = None) -> None:
    """Takes the trees away from equations that were wrong with them; from all where none are named."""
    for body, equation in bodies_in(program):
        if refused is None or equation.origin in refused:
            body.facts = replace(body.facts, trees=None)


def has_trees(program: Program) -> bool:
    """Whether any body is known to take pytrees."""
    return any(body.facts.trees is not None for body, _ in bodies_in(program))
