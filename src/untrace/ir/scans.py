"""Which loops are what `lax.scan` makes of a Python function that closes over what is around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from untrace import jax_compat
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Constant, Equation, Function, Literal, Scan, Value

# Parameters of a scan that say what it does, or how its operands are counted; any other must be at its default.
_COUNTS = frozenset({"num_consts", "num_carry", "ft_in", "ft_out", "linear"})
_SAID = frozenset({"jaxpr", "length", "reverse", "unroll"})


def is_plain_scan(equation: Equation, carried: Sequence[int] | None = None) -> bool:
    """Whether `lax.scan` of a function that closes over the constants makes this scan.

    (It turns a carry that the body only forwards into a constant, and drops an output that is an input.)
    carried: the places of what its author carries, where that is more than the scan does.
    """
    loop = callee_of(equation, Scan)
    function, consts, carries, params = loop.body, loop.consts, loop.carries, equation.params
    state, elements = function.params[consts : consts + carries], function.params[consts + carries :]
    return not (
        any(v for k, v in params.items() if k not in _COUNTS and k not in _SAID)
        or any(r is p for r, p in zip(function.results[:carries], state, strict=True))
        or any(r is p for r in function.results[carries:] for p in elements)
        or any(type(a) is Literal for a in equation.inputs[consts + carries :])
        or not closes_around(function, equation.inputs, consts, carried or range(consts, consts + carries))
    )


def closes_around(function: Function, inputs: Sequence[Atom], consts: int, carried: Sequence[int]) -> bool:
    """Whether a loop's function may close over the constants that it does not carry, and the carry begins with the types
    that it has inside. carried: places among the parameters."""
    closed = [i for i in range(consts) if i not in carried]
    return closes_simply(function, closed, inputs) and same_weak_types(
        [inputs[p] for p in carried], [function.params[p] for p in carried]
    )


def used_values(*functions: Function) -> set[Value]:
    """Values that some equation or result of these functions reads."""
    found: set[Value] = set()
    for function in functions:
        for equation in function.equations:
            found.update(a for a in equation.inputs if type(a) is Value)
        found.update(a for a in function.results if type(a) is Value)
    return found


def closes_simply(function: Function, places: Iterable[int], inputs: Sequence[Atom]) -> bool:
    """Whether a Python function may close over the parameters at `places`: distinct variables or arrays outside.

    (A closed-over number would become part of the equations that use it; one variable under two names, one constant.)
    """
    used = used_values(function)
    atoms = [inputs[i] for i in places if function.params[i] in used]
    return not any(map(_is_number, atoms)) and len(set(atoms)) == len(atoms)


def _is_number(atom: Atom) -> bool:
    """Whether JAX would make a literal of `atom`: a number, or a NumPy array without axes."""
    if type(atom) is Constant:
        return not np.ndim(atom.value) and not jax_compat.is_jax_array(atom.value)
    return type(atom) is Literal


def same_weak_types(atoms: Sequence[Atom], params: Sequence[Value]) -> bool:
    """Whether values outside have the weak types of the carry inside: otherwise JAX would convert them."""
    pairs = zip(atoms, params, strict=True)
    return all(getattr(a.aval, "weak_type", False) == getattr(p.aval, "weak_type", False) for a, p in pairs)
