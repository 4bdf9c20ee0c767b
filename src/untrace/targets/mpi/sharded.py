"""What is written: the body of the one `jax.shard_map` that a program is, and how its arrays lie on the mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace.ir.bodies import PLAIN_CALLS
from untrace.ir.nodes import (
    Atom,
    Constant,
    Equation,
    Function,
    Literal,
    Primitive,
    Program,
    Value,
    functions_called,
    walk_functions,
)
from untrace.ir.types import Parameter

# Over which axes of the mesh, by their numbers, each dimension of an array is cut; those that are not named are whole.
Spec = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """The mesh, and how the arrays that the program takes and gives lie on it, in the order of its leaves."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    def size(self, axes: Iterable[int]) -> int:
        """How many ranks are along these axes."""
        return math.prod([self.shape[a] for a in axes])

    @property
    def words(self) -> str:
        """`x=2, y=2`."""
        return ", ".join([f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True)])

    def axes(self, names: str | Iterable[str]) -> tuple[int, ...]:
        """The numbers of axes."""
        return tuple([self.names.index(n) for n in ([names] if isinstance(names, str) else names)])


def refuse(why: str) -> NoReturn:
    raise UnsupportedPrimitiveError(f"this program cannot be written for mpi4py: {why}")


def take_apart(program: Program) -> Sharding:
    """Makes the body of its one `shard_map` the program, on the types of one device's parts.

    Raises UnsupportedPrimitiveError for a program that is something else, or has anything beside it.
    """
    entry = program.entry
    mapped, inputs, results = _mapped(entry)
    params = mapped.params
    mesh = params["mesh"]
    names = tuple(mesh.axis_names)
    if set(params["newly_manual_axes"]) != set(names):
        refuse(
            "its shard_map leaves axes of the mesh to the compiler (axis_names), and ranks have nobody who places data"
        )
    sharding = Sharding(names, tuple(mesh.shape.values()), (), ())
    (body,) = functions_called(mapped)
    in_specs = [_spec(sharding, s) for s in params["in_specs"]]
    out_specs = [_spec(sharding, s) for s in params["out_specs"]]
    specs: dict[Value, Spec] = {}
    new: dict[Value, Atom] = {}  # a parameter of the body -> what it is in the new entry
    given: dict[Value, Value] = {}
    for atom, param, spec in zip(inputs, body.params, in_specs, strict=True):
        if type(atom) is not Value:
            if any(spec):
                refuse("its shard_map cuts an array that the function closes over into parts; make it an argument")
            new[param] = atom
            continue
        if specs.setdefault(atom, spec) != spec:
            refuse("it passes an argument to its shard_map twice, with different in_specs; make it two arguments")
        new[param] = given.setdefault(atom, param)
        param.hint = atom.hint or param.hint
    for param in entry.params:
        given.setdefault(param, param)
    outputs = {o: i for i, o in enumerate(mapped.outputs) if o is not None}
    found: list[Atom] = []
    out: list[Spec] = []
    for result in results:
        place = outputs.get(result) if type(result) is Value else None
        if place is not None:
            found.append(body.results[place])
            out.append(out_specs[place])
        else:
            found.append(given[result] if type(result) is Value else result)
            out.append(specs.get(result, ()) if type(result) is Value else ())
    entry = Function(entry.name, [given[p] for p in entry.params], body.equations, found, body.jaxpr)
    entry.facts = body.facts
    _without_mesh(entry, new)
    program.entry = entry
    return Sharding(sharding.names, sharding.shape, tuple([specs.get(p, ()) for p in given]), tuple(out))


def _mapped(function: Function) -> tuple[Equation, Sequence[Atom], Sequence[Atom]]:
    """(the one `shard_map`, what it takes, what the program gives), inside the jitted functions that do nothing else."""
    known: dict[Value, Atom] = {p: p for p in function.params}
    around: list[Function] = []
    results: Sequence[Atom] = function.results
    while True:
        around.append(function)
        mapped = [e for e in function.equations if e.callee.name == "shard_map"]
        if len(mapped) > 1:
            refuse("it has more than one shard_map; make one of them, or write each by itself")
        others = [e for e in function.equations if e.callee.name != "shard_map"]
        one = mapped[0] if mapped else others[0] if len(others) == 1 else None
        is_call = one is not None and type(one.callee) is Primitive and one.callee.name in PLAIN_CALLS
        if one is None or others and not is_call:
            is_there = any(e.callee.name == "shard_map" for f in walk_functions(around[0]) for e in f.equations)
            if not is_there:
                refuse("it has no jax.shard_map and no jax.pmap, which say what each rank does")
            where = [f"`{e.callee.name}`{_line(e)}" for e in others[:3]]
            refuse(
                f"beside its shard_map it computes {', '.join(where)}{', ...' * (len(others) > 3)}. "
                "Do that inside of the mapped function, or outside of the one that is written"
            )
        inputs = [_read(known, a) for a in one.inputs]
        if mapped:
            return one, inputs, results
        (inner,) = functions_called(one)
        known = dict(zip(inner.params, inputs, strict=True))
        inside = {o: r for o, r in zip(one.outputs, inner.results, strict=True) if o is not None}
        results = [_read(inside, r) for r in results]
        results = [_read(known, r) for r in results]
        function = inner


def _line(equation: Equation) -> str:
    line = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
    return f" from {line}" if line else ""


def _read(known: Mapping[Value, Atom], atom: Atom) -> Atom:
    return known.get(atom, atom) if type(atom) is Value else atom


def _spec(sharding: Sharding, spec: Parameter) -> Spec:
    """A PartitionSpec by numbers. Raises UnsupportedPrimitiveError where it says something else than how to cut."""
    found: list[tuple[int, ...]] = []
    plain = not jax_compat.is_auto_axes(spec) and not any(getattr(spec, w, None) for w in ("unreduced", "reduced"))
    for part in jax_compat.partitions(spec) if plain else ():
        axes = () if part is None else (part,) if isinstance(part, str) else part
        plain = plain and isinstance(axes, tuple) and all(name in sharding.names for name in axes)
        found.append(sharding.axes(axes) if plain else ())
    if not plain:
        refuse(f"its shard_map has the spec {spec}, which says something else than how an array is cut into parts")
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _without_mesh(entry: Function, new: Mapping[Value, Atom]) -> None:
    """Takes out of all functions what only says how values lie on the mesh: of types, and as equations (`pvary`).

    new: what parameters of the body are in the entry.
    """
    for function in [f for f in walk_functions(entry) if f is not entry] + [entry]:
        known = dict(new) if function is entry else {}
        equations: list[Equation] = []
        for equation in function.equations:
            inputs = [_plain(_read(known, a)) for a in equation.inputs]
            if equation.callee.name == "pvary":
                known.update({o: a for o, a in zip(equation.outputs, inputs, strict=True) if o is not None})
                continue
            for output in equation.outputs:
                if output is not None:
                    output.aval = jax_compat.type_without_mesh(output.aval)
            equations.append(Equation(equation.callee, inputs, equation.outputs, equation.params, equation.origin))
        function.equations = equations
        function.results = [_plain(_read(known, r)) for r in function.results]
        for param in function.params:
            param.aval = jax_compat.type_without_mesh(param.aval)


def _plain(atom: Atom) -> Atom:
    if type(atom) is Literal:
        return Literal(atom.value, jax_compat.type_without_mesh(atom.aval))
    if type(atom) is Constant:
        atom.aval = jax_compat.type_without_mesh(atom.aval)
    return atom
