"""One program of those of all ranks: mpi4jax gives each rank equations of its own, and one text has to serve them all.

Each rank describes what it has traced, all compare, and each makes the same program of its own: a number that differs by rank
is written as one of the rank, a message that some ranks have none of as one to or from nobody, and what mpi4jax leaves out on
some ranks, since what the user's function is given there is what it passed, is there again.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive as JaxPrimitive

from untrace import jax_compat
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
from untrace.ir.types import Aval, Origin, Parameter
from untrace.targets.mpi.company import Together
from untrace.targets.mpi.sharded import refuse

NOBODY = -2  # MPI.PROC_NULL here, whatever number it is there: what a rank sends to it, or receives, is nothing

POINT_TO_POINT = frozenset({"send_mpi", "recv_mpi", "sendrecv_mpi"})
# On some ranks these have no result: the user's function is given there what it passed.
_GIVE_BACK = frozenset({"bcast_mpi", "reduce_mpi", "gather_mpi"})
_PARTNERS = ("dest", "source", "sendtag", "recvtag", "tag")
_OPERATIONS = ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")

# mpi4jax's primitives, as primitives of ours that are the same on all ranks, with words for what they give.
WORDS = {
    "allreduce_mpi": "allreduced",
    "reduce_mpi": "reduced",
    "scan_mpi": "prefix",
    "bcast_mpi": "broadcasted",
    "gather_mpi": "gathered",
    "scatter_mpi": "scattered",
    "allgather_mpi": "allgathered",
    "alltoall_mpi": "exchanged",
    "barrier_mpi": "barrier",
    "send_mpi": "sent",
    "recv_mpi": "received",
    "sendrecv_mpi": "swapped",
}
_OWN = {name: Primitive(JaxPrimitive(word)) for name, word in WORDS.items()}
for _name in ("send_mpi", "barrier_mpi"):
    _OWN[_name].object.multiple_results = True
MESSAGES = frozenset(WORDS.values())
# A number that is another one on each rank, and one of several values.
NUMBER, CHOICE = (Primitive(JaxPrimitive(name)) for name in ("of_rank", "chosen"))

Settings = Mapping[str, str | int]

# What an equation reads, by where it is from: ("param", number), ("step", number, result), ("literal", value, type),
# ("constant", digest, type).
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """An equation as all ranks may know it. `what`: all that has to be the same on all of them; `same`: its parameters, of one
    of mpi4jax's. `outputs`: names of the results that are there."""

    name: str
    what: str
    same: Settings
    inputs: tuple[Key, ...]
    outputs: tuple[str | None, ...]
    partners: Mapping[str, int]
    bodies: tuple[_Body, ...]
    line: str


@dataclass(frozen=True, slots=True)
class _Body:
    """A function as all ranks may know it."""

    params: tuple[str, ...]
    steps: tuple[_Step, ...]
    results: tuple[Key, ...]


def has_messages(program: Program) -> bool:
    """Whether a program has primitives of mpi4jax."""
    return any(e.callee.name in _OWN for f in walk_functions(program.entry) for e in f.equations)


def make_one(program: Program, company: Together) -> None:
    """Makes the programs of all ranks one, each rank its own, in place.

    Raises UnsupportedPrimitiveError where they differ in more than one text can say.
    """

    def own() -> _Body:
        for function in list(walk_functions(program.entry)):
            _without_copies(function)
        return _described(program.entry, company.rank)

    every = company.gather(company.agreed(own))
    company.agreed(lambda: _Unified(company.rank).function(program.entry, every))


# ---------------------------------------------------------------- what a rank says of its program


def _without_copies(function: Function) -> None:
    """Takes the transposed sums out, which are what they are given (and so have no result of their own)."""
    known: dict[Value, Atom] = {}

    def read(atom: Atom) -> Atom:
        return known.get(atom, atom) if type(atom) is Value else atom

    kept: list[Equation] = []
    for equation in function.equations:
        equation.inputs = [read(a) for a in equation.inputs]
        if equation.callee.name == "allreduce_mpi" and equation.params["transpose"]:
            known.update({o: equation.inputs[0] for o in equation.outputs if o is not None})
        else:
            kept.append(equation)
    function.equations = kept
    function.results = [read(r) for r in function.results]


def _described(function: Function, rank: int) -> _Body:
    keys: dict[Value, Key] = {p: ("param", i) for i, p in enumerate(function.params)}
    steps = []
    for number, equation in enumerate(function.equations):
        steps.append(_step(equation, keys, rank))
        keys.update({o: ("step", number, i) for i, o in enumerate(equation.outputs) if o is not None})
    results = tuple([_key(r, keys) for r in function.results])
    return _Body(tuple([_type(p.aval) for p in function.params]), tuple(steps), results)


def _step(equation: Equation, keys: Mapping[Value, Key], rank: int) -> _Step:
    name = equation.callee.name
    same, partners = _parameters(equation) if name in _OWN else ({}, {})
    what = f"{name} {sorted(same.items())}" if name in _OWN else f"{name} {_others(equation)}"
    outputs = tuple([None if o is None else o.hint or "" for o in equation.outputs])
    if name in _GIVE_BACK and (rank == same["root"]) == (name == "bcast_mpi"):
        outputs = (None,)
    bodies = tuple([_described(f, rank) for f in functions_called(equation)])
    inputs = tuple([_key(a, keys) for a in equation.inputs])
    line = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
    return _Step(name, what, same, inputs, outputs, partners, bodies, line)


def _key(atom: Atom, keys: Mapping[Value, Key]) -> Key:
    if type(atom) is Value:
        return keys[atom]
    if type(atom) is Constant:
        array = jax_compat.as_numpy(atom.value)
        return "constant", hashlib.sha256(np.asarray(array).tobytes()).hexdigest(), _type(atom.aval)
    value = np.asarray(atom.value)
    return "literal", (value.dtype, value.tobytes()), _type(atom.aval)


def _type(aval: Aval) -> str:
    return f"{aval.dtype}{list(aval.shape)}{'*' * bool(getattr(aval, 'weak_type', False))}"


def _parameters(equation: Equation) -> tuple[Settings, dict[str, int]]:
    """(what is the same on all ranks, what need not be) of an equation of mpi4jax's. Raises UnsupportedPrimitiveError."""
    params, where = equation.params, _where(equation)
    comm = params["comm"].wrapped
    from mpi4py import MPI

    if MPI.Comm.Compare(comm, MPI.COMM_WORLD) not in (MPI.IDENT, MPI.CONGRUENT):
        refuse(f"`{equation.callee.name}`{where} is over a communicator that is not all ranks in their order")
    if params.get("status") is not None:
        refuse(f"`{equation.callee.name}`{where} asks for a status, which the text has not")
    if params.get("source") == MPI.ANY_SOURCE:
        refuse(f"`{equation.callee.name}`{where} receives from any rank: which one is heard first, chance decides")
    op = params.get("op")
    known = [name for name in _OPERATIONS if op is not None and op.wrapped == getattr(MPI, name)]
    if op is not None and not known:
        refuse(f"`{equation.callee.name}`{where} has an operation of its own")
    same: dict[str, str | int] = {"op": known[0]} if known else {}
    same |= {"root": int(params["root"])} if "root" in params else {}
    partners = {k: int(params[k]) for k in _PARTNERS if k in params}
    partners |= {k: NOBODY for k in ("dest", "source") if partners.get(k) == MPI.PROC_NULL}
    return same, partners


def _where(equation: Equation) -> str:
    line = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
    return f" from {line}" if line else ""


def _others(equation: Equation) -> str:
    """The parameters of an equation of JAX's, without its functions and without addresses, and the types of its results."""
    params = [(k, "" if isinstance(v, Function) else str(v)) for k, v in sorted(equation.params.items())]
    types = [_type(o.aval) for o in equation.outputs if o is not None]
    return re.sub(r"0x[0-9a-f]+", "", f"{params} {types}")


# ---------------------------------------------------------------- what all ranks make of that


class _Unified:
    """Makes the functions of one rank what all ranks have. `rank`: which one."""

    def __init__(self, rank: int):
        self.rank = rank
        self._done: set[Function] = set()

    def function(self, function: Function, every: Sequence[_Body]) -> None:
        """Raises UnsupportedPrimitiveError. every: that function on all ranks."""
        if function in self._done:
            return
        self._done.add(function)
        if any(body.params != every[0].params for body in every):
            refuse(f"`{function.name}` takes other types on other ranks, and one text is written for all of them")
        _Unifier(self, function, every).run()


class _Unifier:
    def __init__(self, parent: _Unified, function: Function, every: Sequence[_Body]):
        self.parent, self.rank, self.own = parent, parent.rank, function
        self.merged = _merged(every)
        self.renamed = [{own: at for at, step in enumerate(self.merged) if (own := step.get(r)) is not None}
                        for r in range(len(every))]  # fmt: skip
        self.every = every
        # What stands where a rank has no result: what it passed.
        self.given: list[dict[Key, Key]] = [{} for _ in every]
        self.atoms: dict[Key, Atom] = {("param", i): p for i, p in enumerate(function.params)}
        self.equations: list[Equation] = []
        self.read: dict[tuple[tuple[int, Key], ...], Key] = {}  # what differs by rank and was written
        self.origin = next((e.origin for e in function.equations), None)  # of what stands near

    def run(self) -> None:
        for at, step in enumerate(self.merged):
            found = {rank: self.every[rank].steps[own] for rank, own in step.items()}
            first = next(iter(found.values()))
            mine = self.own.equations[step[self.rank]] if self.rank in step else None
            if mine is not None:
                self.origin = mine.origin
            inputs = []
            for place in range(len(first.inputs)):
                inputs.append(self._read({r: self._shared(r, s.inputs[place]) for r, s in found.items()}))
            self._add(at, found, mine, inputs)
        results = [
            self._read({r: self._shared(r, body.results[i]) for r, body in enumerate(self.every)})
            for i in range(len(self.own.results))
        ]
        self.own.equations, self.own.results = self.equations, [self._atom(key) for key in results]

    def _add(self, at: int, found: Mapping[int, _Step], mine: Equation | None, inputs: Sequence[Key]) -> None:
        first = next(iter(found.values()))
        atoms = [self._atom(key) for key in inputs]
        outputs: list[Value | None] = list(mine.outputs) if mine is not None else [None] * len(first.outputs)
        for place in range(len(outputs)):
            hints = [s.outputs[place] for s in found.values() if s.outputs[place] is not None]
            if not hints:
                outputs[place] = None
                continue
            passing = {r for r in range(len(self.every)) if self._passes(first.name, found.get(r), place)}
            if self.rank in passing:
                outputs[place] = Value(atoms[-1].aval)
            elif outputs[place] is None and mine is not None:
                outputs[place] = Value(mine.origin.outvars[place].aval)
            value = outputs[place]
            assert value is not None
            value.hint = value.hint or next(filter(None, hints), None)
            self.atoms["step", at, place] = value
            for rank in passing:
                self.given[rank]["step", at, place] = inputs[-1]
        if first.name in _OWN:
            callee: Any = _OWN[first.name]
            params: Mapping[str, Parameter] = {**first.same, **self._partners(found, first)}
        else:
            assert mine is not None
            callee, params = mine.callee, mine.params
            bodies = [[s.bodies[i] for s in found.values()] for i in range(len(first.bodies))]
            for function, every in zip(functions_called(mine), bodies, strict=True):
                self.parent.function(function, every)
        origin = mine.origin if mine is not None else jax_compat.copy_of_equation(_barrier())
        self.equations.append(Equation(callee, atoms, outputs, params, origin))

    def _partners(self, found: Mapping[int, _Step], first: _Step) -> dict[str, tuple[int, ...]]:
        """With whom each rank exchanges a message, and under which tags."""
        partners: dict[str, tuple[int, ...]] = {}
        for key, default in first.partners.items():
            nothing = NOBODY if key in ("dest", "source") else default
            partners[key] = tuple([found[r].partners[key] if r in found else nothing for r in range(len(self.every))])
        return partners

    def _passes(self, name: str, step: _Step | None, place: int) -> bool:
        """Whether a rank has no result there: its user's function is given what it passed."""
        return step is None or name in _GIVE_BACK and step.outputs[place] is None

    def _shared(self, rank: int, key: Key) -> Key:
        """What a rank reads, by the numbers that all ranks have for steps."""
        return ("step", self.renamed[rank][key[1]], key[2]) if key[0] == "step" else key

    def _read(self, keys: Mapping[int, Key]) -> Key:
        """What all ranks read where each of them, or some, read these."""
        several = list(dict.fromkeys(keys.values()))
        if len(several) == 1:
            return several[0]
        for key in several:
            if key[0] == "step" and all(self._is(rank, key, other) for rank, other in keys.items()):
                return key
        if any(key[0] == "constant" for key in several):
            refuse(f"`{self.own.name}` closes over an array that is another one on other ranks. Make it an argument.")
        known = tuple(sorted(keys.items()))
        if known not in self.read:
            self.read[known] = self._written(keys, several)
        return self.read[known]

    def _written(self, keys: Mapping[int, Key], several: Sequence[Key]) -> Key:
        """What differs by rank, as one number or one choice."""
        every = range(len(self.every))
        if all(key[0] == "literal" and key[2] == several[0][2] for key in several):
            values = tuple([self._number(keys.get(rank, several[0])) for rank in every])
            return self._made(NUMBER, [], {"values": values}, self._atom(several[0]).aval)
        which = tuple([several.index(keys.get(rank, several[0])) for rank in every])
        atoms = [self._atom(key) for key in several]
        return self._made(CHOICE, atoms, {"which": which}, atoms[which[self.rank]].aval)

    def _is(self, rank: int, key: Key, other: Key) -> bool:
        """Whether a rank has the same under two keys."""
        seen = key
        while seen != other and seen in self.given[rank]:
            seen = self.given[rank][seen]
        return seen == other

    def _made(self, callee: Primitive, atoms: Sequence[Atom], params: Mapping[str, Any], aval: Aval) -> Key:
        key = (callee.name, len(self.equations))
        output = self.atoms[key] = Value(aval)
        origin = jax_compat.copy_of_equation(self.origin, effects=False)
        self.equations.append(Equation(callee, list(atoms), [output], params, origin))
        return key

    def _atom(self, key: Key) -> Atom:
        found = self.atoms.get(key)
        if found is not None:
            return found
        if key[0] == "literal":
            value = self._number(key)
            weak = key[2].endswith("*")
            return Literal(value, jax.core.ShapedArray((), value.dtype, weak_type=weak))
        assert key[0] == "constant"
        return next(a for a in self._constants() if _key(a, {}) == key)

    def _number(self, key: Key) -> Any:
        kind, content = key[1]
        return np.frombuffer(content, kind).reshape(())[()]

    def _constants(self) -> Iterator[Constant]:
        for equation in self.own.equations:
            yield from (a for a in equation.inputs if type(a) is Constant)
        yield from (r for r in self.own.results if type(r) is Constant)


@functools.cache
def _barrier() -> Origin:
    """An equation of mpi4jax's, which has the effect that a message has."""
    from mpi4py import MPI

    barrier = importlib.import_module("mpi4jax").barrier
    return jax.make_jaxpr(lambda: barrier(comm=MPI.COMM_WORLD))().eqns[0]


def _merged(every: Sequence[_Body]) -> list[dict[int, int]]:
    """The steps of all ranks in one order that is each rank's own: of each, which one of which ranks it is.

    Raises UnsupportedPrimitiveError where a rank has other steps that are no messages.
    """
    gaps = [_gaps(body) for body in every]
    count = min(len(g) for g in gaps)
    for number in range(count):
        ends = [g[number][1] for g in gaps]
        whats = [body.steps[end].what for body, end in zip(every, ends, strict=True) if end is not None]
        if len(set(whats)) > 1 or 0 < len(whats) < len(every):
            _refuse_difference(every, gaps, number)
    found: list[dict[int, int]] = []
    for number in range(count):
        messages: list[tuple[str, dict[int, int]]] = []
        for rank, (body, own) in enumerate(zip(every, gaps, strict=True)):
            messages = _with_messages(messages, rank, [(body.steps[i].what, i) for i in own[number][0]])
        found += [step for _, step in messages]
        ends = {rank: own[number][1] for rank, own in enumerate(gaps)}
        if None not in ends.values():
            found.append({rank: end for rank, end in ends.items() if end is not None})
    return found


def _gaps(body: _Body) -> list[tuple[list[int], int | None]]:
    """The messages before each step that is none, and that one; last those at the end."""
    found: list[tuple[list[int], int | None]] = []
    waiting: list[int] = []
    for number, step in enumerate(body.steps):
        if step.name in POINT_TO_POINT:
            waiting.append(number)
        else:
            found.append((waiting, number))
            waiting = []
    return [*found, (waiting, None)]


def _with_messages(
    known: list[tuple[str, dict[int, int]]], rank: int, own: Sequence[tuple[str, int]]
) -> list[tuple[str, dict[int, int]]]:
    """Messages in an order that holds those of one rank more: as few as possible."""
    found: list[tuple[str, dict[int, int]]] = []
    matcher = difflib.SequenceMatcher(None, [w for w, _ in known], [w for w, _ in own], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            found += [(w, {**step, rank: own[c + i][1]}) for i, (w, step) in enumerate(known[a:b])]
            continue
        found += known[a:b]
        found += [(w, {rank: i}) for w, i in own[c:d]]
    return found


def _refuse_difference(every: Sequence[_Body], gaps: Sequence[list[tuple[list[int], int | None]]], number: int) -> None:
    said = []
    for rank, (body, own) in enumerate(zip(every, gaps, strict=True)):
        at = own[number][1] if number < len(own) else None
        step = body.steps[at] if at is not None else None
        said.append(f"rank {rank} {'ends' if step is None else f'computes `{step.name}` from {step.line}'}")
    shown = "; ".join([*said[:3], *(["..."] if len(said) > 3 else [])])
    refuse(
        f"the ranks compute different things, and one text is written for all of them: {shown}. Compute the same on all "
        "ranks (jnp.where on a number of the rank), or pass what differs as an argument"
    )
