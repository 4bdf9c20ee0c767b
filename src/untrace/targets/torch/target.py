"""PyTorch as a target."""

from __future__ import annotations

from untrace import jax_compat
from untrace.ir.nodes import Atom, Equation, Primitive, Program, Value
from untrace.targets.base import Target
from untrace.targets.eager import guard as shared_guard  # noqa: F401  (registers helpers)
from untrace.targets.eager.lower import WITHOUT, lowered
from untrace.targets.torch import guard, rules, runtime  # noqa: F401  (registers rules and helpers)
from untrace.targets.torch.library import LIBRARY
from untrace.targets.torch.tensors import INSIDE, array_of, tensor_of, word_bits
from untrace.targets.torch.writer import TorchModule


def _lower(program: Program) -> None:
    lowered(program, LIBRARY)
    _with_own_types(program)


def _with_own_types(program: Program) -> None:
    """Makes of arguments the types in which the text computes, and of results their own."""
    entry = program.entry
    inside: dict[Value, Value] = {}
    first: list[Equation] = []
    for param in entry.params:
        name = _unsigned(param)
        if name:
            inside[param] = Value(param.aval, param.hint)
            first.append(_cast(param, f"torch.{INSIDE[name]}", inside[param]))
    for equation in entry.equations:
        equation.inputs = [inside.get(a, a) if type(a) is Value else a for a in equation.inputs]
    last: list[Equation] = []
    results: list[Atom] = []
    for result in entry.results:
        own = inside.get(result, result) if type(result) is Value else result
        name = _unsigned(own)
        if name:
            made = Value(own.aval, own.hint if isinstance(own, Value) else None)
            last.append(_cast(own, f"torch.{name}", made))
            own = made
        results.append(own)
    entry.equations = [*first, *entry.equations, *last]
    entry.results = results


def _unsigned(atom: Atom) -> str:
    """The type of an unsigned integer (a key's words among them) that another one stands for in a text; "" of others."""
    if jax_compat.is_key_dtype(atom.aval.dtype):
        return "uint32"
    return atom.aval.dtype.name if word_bits(atom.aval.dtype) else ""


class _Cast:
    """What makes one type of another that holds the same numbers; written by a rule as a primitive is."""

    name = "cast_words"
    multiple_results = False


def _cast(value: Atom, dtype: str, made: Value) -> Equation:
    return Equation(Primitive(_Cast()), [value], [made], {"dtype": dtype})


TARGET = Target("torch", "PyTorch", TorchModule, WITHOUT, _lower, tensor_of, array_of, "torch", True)
