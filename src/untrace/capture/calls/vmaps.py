"""Finds the calls of `jax.vmap` again that JAX traced away.

A jaxpr holds what became of a mapped function, not the function. So the calls that the user's code makes are noted
while it is traced, each with a jaxpr of the function for one element (`noted_vmaps`). `folded` then puts one equation of
the primitive `vmap` in the place of the equations that such a call left. These functions are mapped again
(`unfolding`): only where that gives the very program back is the form used, so nothing here needs to be trusted.

Calls inside a function that JAX differentiated are not found, unless that is a call again (`differentiated`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace._trees import is_plain, part_of_tree
from untrace.capture.calls.derivative_calls import CALLS
from untrace.capture.calls.handed_on import read_from_calls
from untrace.ir.signatures import MapSignature
from untrace.jaxprs.equal.compare import count_equations
from untrace.jaxprs.equal.values import same_constant
from untrace.jaxprs.expand.expand import OURS, Expander
from untrace.provenance.whose import file_kind, kind_of_called

# The file whose code calls what the user handed over.
ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "function.py")
# Library functions with fewer equations read as well where they were batched.
_FEWEST = 12


@dataclass(slots=True)
class VmapCall:
    """One call, flat. `body`: the jaxpr for one element; its first parameters are what the function closes over.

    inputs: variables or literals of the jaxpr around it, or arrays. in_axes, out_axes: one for each input and output, None where
    the input is for all elements. beyond: of inputs that are variables of a function around the call, what they are there.
    handed: of outputs that no equation makes, new variables, which input each is.
    """

    body: Any
    inputs: list[Any]
    in_axes: tuple[int | None, ...]
    out_axes: tuple[int, ...]
    outputs: list[Any]
    source_info: Any
    signature: MapSignature
    is_entry: bool = False  # the whole of what was given to decompile
    beyond: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    handed: Mapping[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def made(self) -> list[Any]:
        """The outputs that equations make."""
        return [x for x in self.outputs if x not in self.handed]


def _mapped(
    *args: Any, jaxpr: Any, in_axes: Sequence[int | None], out_axes: Sequence[int], signature: MapSignature
) -> list[Any]:
    function = jax.extend.core.jaxpr_as_fun(jaxpr)
    return jax.vmap(lambda *xs: function(*xs), tuple(in_axes), list(out_axes))(*args)


VMAP = jax.extend.core.Primitive("vmap")
VMAP.multiple_results = True
VMAP.def_impl(_mapped)
OURS.add(VMAP)


@contextlib.contextmanager
def noted_vmaps() -> Iterator[list[VmapCall]]:
    """While the context is open, calls of `jax.vmap` in code that is not JAX's own go to the list that it gives."""
    calls: list[VmapCall] = []

    depth = 0

    def note(call: jax_compat.MappedCall) -> None:
        nonlocal depth
        depth += 1
        # A number of Python's is an array to the function, unless it decides what is traced. Tracing a user's function once
        # more may raise anything; then this call stays as JAX batched it.
        for static in dict.fromkeys([_static_places(call), _static_places(call, numbers=True)]):
            with contextlib.suppress(Exception):
                noted = _noted(_without(call, static), depth > 1)
                if noted is not None:
                    calls.append(noted)
                break
        depth -= 1

    with jax_compat.intercepted_vmap(note):
        yield calls


def _noted(call: jax_compat.MappedCall, inside: bool) -> VmapCall | None:
    in_axes = tuple(call.in_axes)
    if all(axis is None for axis in in_axes) or not all(type(axis) is int for axis in call.out_axes):
        return None
    slices = [_slice(x, axis) for x, axis in zip(call.args, in_axes, strict=True)]
    args, kwargs = jax.tree_util.tree_unflatten(call.in_tree, slices)
    with jax_compat.tracing_inside_mesh([jax_compat.typeof(x) for x in call.args]):
        closed, out = jax.make_jaxpr(as_function(call.function), return_shape=True)(*args, **kwargs)
    body, traced = jax_compat.traced_constants_as_inputs(closed)
    jaxpr, _ = jax_compat.open_jaxpr(body)
    if jaxpr.effects or len(jaxpr.outvars) != len(call.outs) or not is_reached((args, kwargs)) or not is_reached(out):
        return None
    function = _unwrapped(call.function)
    is_entry = call.caller == ENTRY
    if not is_entry and "library" in (file_kind(call.caller), kind_of_called(function)):
        given = [x for x in (*args, *kwargs.values()) if x is not None]
        # What a library puts around the author's values says nothing to a reader, nor do small parts of it; but a derivative
        # in it can only stay a call where the function does.
        asks = any(e.primitive.name in CALLS for e in jax_compat.equations_in(closed))
        if not asks and (not is_plain([given, out]) or count_equations(closed) < _FEWEST):
            return None
    inputs = [call.variable(x) if jax_compat.is_tracer(x) else x for x in (*traced, *call.args)]
    every = [call.variable(x) if jax_compat.is_tracer(x) else None for x in call.outs]
    if any(x is None for x in inputs) or not all(map(jax_compat.is_variable, every)):
        return None
    # What it gives back as it came, or twice, no equation makes.
    given = {x for x in inputs if jax_compat.is_variable(x)}
    kept = [x not in every[:place] for place, x in enumerate(every)]
    if given.issuperset(every):
        return None
    if not all(kept):
        body = jax_compat.rebuilt_jaxpr(
            body,
            jaxpr.eqns,
            list(itertools.compress(jaxpr.outvars, kept)),
            kept=list(itertools.compress(range(len(kept)), kept)),
        )
        out = part_of_tree(out, kept)
    handed: dict[Any, Any] = {}
    outputs = []
    for output in itertools.compress(every, kept):
        if output in given:
            own = jax_compat.fresh_variable(output)
            handed[own], output = output, own
        outputs.append(output)
    out_axes = tuple(itertools.compress(call.out_axes, kept))
    axes = (*(None for _ in traced), *in_axes)
    signature = MapSignature((args, kwargs), out, len(traced), name_of_called(function))
    beyond = {
        var: jax_compat.variable_of(x)
        for x, var in zip((*traced, *call.args), inputs, strict=True)
        if jax_compat.is_tracer(x) and jax_compat.variable_of(x) is not var
    }
    return VmapCall(body, inputs, axes, out_axes, outputs, call.source_info, signature, is_entry, beyond, handed)


def _static_places(call: jax_compat.MappedCall, numbers: bool = False) -> tuple[int, ...]:
    """Which arguments that all elements have are no arrays, such as a configuration. numbers: whether Python's count as such."""
    return tuple(
        place
        for place, (x, axis) in enumerate(zip(call.args, call.in_axes, strict=True))
        if axis is None and (not jax_compat.is_traceable(x) or numbers and isinstance(x, (bool, int, float, complex)))
    )


def _without(call: jax_compat.MappedCall, static: Sequence[int]) -> jax_compat.MappedCall:
    """The same call of a function that knows some of its arguments, which are None in it."""
    if not static:
        return call
    called = as_function(call.function)
    left = [place not in static for place in range(len(call.args))]

    @functools.wraps(called)
    def function(*args: Any, **kwargs: Any) -> Any:
        rest = iter(jax.tree.leaves((args, kwargs)))
        leaves = [next(rest) if is_array else x for x, is_array in zip(call.args, left, strict=True)]
        given, named = jax.tree.unflatten(call.in_tree, leaves)
        return called(*given, **named)

    return dataclasses.replace(
        call,
        function=function,
        in_tree=jax.tree.structure(jax.tree.unflatten(call.in_tree, [0 if is_array else None for is_array in left])),
        args=list(itertools.compress(call.args, left)),
        in_axes=list(itertools.compress(call.in_axes, left)),
    )


def as_function(called: Any) -> Any:
    """What is called, as a function: JAX takes the whole `repr` of anything else for its name, each time."""
    if inspect.isroutine(_unwrapped(called)):
        return called

    def function(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    function.__name__ = "<unnamed>"
    with_signature: Any = function
    with contextlib.suppress(TypeError, ValueError):
        with_signature.__signature__ = inspect.signature(called)
    return function


def is_reached(tree: Any) -> bool:
    """Whether keys, places and attributes lead to every leaf, also of a class that does not say which they are."""
    if tree is None or jax.tree_util.all_leaves([tree]):
        return True
    keys = (jax.tree_util.SequenceKey, jax.tree_util.DictKey, jax.tree_util.GetAttrKey)
    held = list(getattr(tree, "__dict__", {}).values())
    parts = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda part: part is not tree)
    return all((type(path[0]) in keys or any(part is own for own in held)) and is_reached(part) for path, part in parts)


def _unwrapped(function: Any) -> Any:
    """The function inside a partial or a jitted one; an object that is called stays as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def name_of_called(function: Any) -> str:
    """`mlp` for an object of class `MLP` that is called; "" for a function, whose jaxpr has its name."""
    if inspect.isroutine(_unwrapped(function)):
        return ""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(function).__name__.strip("_")).lower()


def _slice(value: Any, axis: int | None) -> Any:
    aval = jax_compat.typeof(value)
    shape = list(aval.shape)
    if axis is not None:
        del shape[axis]
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


# ---------------------------------------------------------------- folding


def folded(
    closed: Any,
    plain: Any,
    calls: Sequence[VmapCall],
    expander: Expander,
    gives_back: Callable[[Any, Any, Expander], bool],
) -> Any:
    """`closed` with an equation `vmap` for each call that is found in it and gives the same equations again.

    The very same object where there is none. `plain`: the same program without calls, which what is found `gives_back`.
    `expander`: what replaced the library primitives of `closed`.
    """
    usable = [c for c in calls if expander.closed(c.body) is c.body]
    if not _stops_apart(closed):  # what is mapped as a whole is asked for as JAX batches it
        usable = [c for c in usable if not c.is_entry or _branches(c.body) > _branches(closed)]

    def giving_back(some: Sequence[VmapCall]) -> Any:
        found = _Folder(some, closed).jaxpr(closed)
        if found is closed or not gives_back(plain, found, expander):
            return None
        return found

    best = closed
    with contextlib.suppress(Exception):  # rules that cannot be traced by themselves
        whole = giving_back(usable)
        if whole is not None or len(usable) < 2:
            return best if whole is None else whole
        # One call that does not come back hides the others: each is tried beside those that do, with what it is inside of.
        kept = [False] * len(usable)
        for place in reversed(range(len(usable))):
            some = [c for i, c in enumerate(usable) if kept[i] or i == place]
            found = giving_back(some)
            if found is not None:
                kept[place], best = True, found
    return best


def _stops_apart(closed: Any) -> bool:
    """Whether a program has a loop over elements that each stop at a time of their own: only `vmap` makes one."""
    loops = [e for e in jax_compat.equations_in(closed) if e.primitive.name == "while"]
    conditions = [jax_compat.open_jaxpr(e.params["cond_jaxpr"])[0] for e in loops]
    return any(getattr(c.outvars[0].aval, "shape", ()) for c in conditions)


def _branches(closed: Any) -> int:
    """How many choices between branches there are: where each element chooses by itself, JAX computes all of them."""
    return sum(e.primitive.name == "cond" for e in jax_compat.equations_in(closed))


class _Folder(jax_compat.JaxprRewriter):
    """Folds jaxprs that may share parts, each once."""

    def __init__(self, calls: Sequence[VmapCall], closed: Any):
        super().__init__()
        self.calls = list(calls)
        self._constant = _constant_inputs([closed, *(c.body for c in calls)])
        self._operand = _operands(closed)

    def rewritten(self, closed: Any) -> Any:
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        known = IdentityMap((value, var) for var, value in zip(jaxpr.constvars, consts, strict=False))
        eqns: list[Any] = [jax_compat.with_inner_jaxprs(e, self.jaxpr) for e in jaxpr.eqns]
        changed = any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True))
        made_by = {v: i for i, e in enumerate(eqns) for v in e.outvars}
        dead = _dead(eqns, jaxpr.outvars)
        gone: set[int] = set()
        closed_over = [(self._constant[v], v) for v in jaxpr.invars if v in self._constant]
        here = {**{v: v for v in made_by}, **{self._origin(v): v for v in jaxpr.invars}}
        for call in self.calls:
            if closed_over:
                call = _closing_over(call, closed_over)
            call = self._from_here(call, here)
            places = _places(call, jaxpr, eqns, made_by, dead)
            if not places or gone.intersection(places):
                continue
            call = self._handing_on(call, here)
            equation = self._equation(call, eqns[max(places)], known)
            if equation is None:
                continue
            gone.update(places)
            gone.discard(max(places))
            eqns[max(places)] = equation
            changed = True
        if not changed:
            return closed
        if gone:
            gone |= _dead([e if i not in gone else None for i, e in enumerate(eqns)], jaxpr.outvars)
        left, outvars = [e for i, e in enumerate(eqns) if i not in gone], jaxpr.outvars
        handed = {own: x for call in self.calls for own, x in call.handed.items()}
        if handed:
            left, outvars = read_from_calls(left, outvars, handed)
        return jax_compat.rebuilt_jaxpr(closed, left, outvars)

    def _origin(self, var: Any) -> Any:
        """What an input of a loop or a branch is in the program around all of them."""
        while var in self._operand:
            var = self._operand[var]
        return var

    def _from_here(self, call: VmapCall, here: Mapping[Any, Any]) -> VmapCall:
        """The call with inputs that are variables of what is around it: to what nothing reads there JAX gives another one each
        time. `here`: those variables, by their origins."""
        if not call.beyond:
            return call
        known = set(here.values())
        new = {x: here.get(self._origin(outer), x) for x, outer in call.beyond.items() if x not in known}
        if not new:
            return call
        inputs = [new.get(x, x) if jax_compat.is_variable(x) else x for x in call.inputs]
        return dataclasses.replace(call, inputs=inputs)

    def _handing_on(self, call: VmapCall, here: Mapping[Any, Any]) -> VmapCall:
        """The call whose function also closes over what it only hands on to others of the calls, which do not read it: leaves
        of a tree. `here`: the variables around the call, by their origins."""
        jaxpr, _ = jax_compat.open_jaxpr(call.body)
        made = {v for e in jaxpr.eqns for v in e.outvars}
        inside = made.union(jaxpr.invars, jaxpr.constvars)
        within = [other for other in self.calls if other is not call and made.issuperset(other.made)]
        beyond = {x: self._origin(outer) for other in within for x, outer in other.beyond.items() if x not in inside}
        more = {x: here[outer] for x, outer in beyond.items() if outer in here}
        if not more:
            return call
        return dataclasses.replace(
            call,
            body=jax_compat.rebuilt_jaxpr(call.body, jaxpr.eqns, jaxpr.outvars, invars=[*more, *jaxpr.invars]),
            inputs=[*more.values(), *call.inputs],
            in_axes=(*(None for _ in more), *call.in_axes),
            signature=dataclasses.replace(call.signature, closed=call.signature.closed + len(more)),
        )

    def _equation(self, call: VmapCall, like: Any, known: IdentityMap[Any, Any]) -> Any:
        """The equation for a call; `known`: the variables of arrays, by id. None where an input is none of the jaxpr's."""
        atoms = []
        for x in call.inputs:
            if jax_compat.is_variable(x) or type(x) is jax_compat.LITERAL_TYPE:
                atoms.append(x)
            elif x in known:
                atoms.append(known[x])
            elif np.ndim(x) == 0:
                atoms.append(jax_compat.literal(x, jax_compat.typeof(x)))
            else:
                return None
        params = {"jaxpr": self.jaxpr(call.body), "in_axes": call.in_axes, "out_axes": call.out_axes}
        params["signature"] = call.signature
        return like.replace(
            primitive=VMAP, invars=atoms, outvars=list(call.outputs), params=params, source_info=call.source_info
        )


def _constant_inputs(programs: Sequence[Any]) -> dict[Any, Any]:
    """The inputs of loops, branches and differentiated functions that are constants of the program, and their values."""
    values: dict[Any, Any] = {}
    several: set[Any] = set()
    seen: set[Any] = set()

    def visit(closed: Any) -> None:
        jaxpr, consts = jax_compat.open_jaxpr(closed)
        if jaxpr in seen:
            return
        seen.add(jaxpr)
        values.update(zip(jaxpr.constvars, consts, strict=False))
        for eqn in jaxpr.eqns:
            for inner, operands in _closed_over(eqn):
                params = jax_compat.open_jaxpr(inner)[0].invars
                for var, operand in zip(params, operands, strict=False):
                    value = values.get(operand) if jax_compat.is_variable(operand) else None
                    if values.setdefault(var, value) is not value:
                        several.add(var)
                visit(inner)

    for program in programs:
        visit(program)
    return {var: value for var, value in values.items() if value is not None and var not in several}


def _operands(closed: Any) -> dict[Any, Any]:
    """{input of a loop, of a branch, of what is differentiated: the one variable that it is all along}."""
    found: dict[Any, Any] = {}
    several: set[Any] = set()
    for eqn in jax_compat.equations_in(closed):
        for inner, operands in _closed_over(eqn):
            for var, operand in zip(jax_compat.open_jaxpr(inner)[0].invars, operands, strict=False):
                if found.setdefault(var, operand) is not operand or not jax_compat.is_variable(operand):
                    several.add(var)
    return {var: operand for var, operand in found.items() if var not in several}


def _closed_over(eqn: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The jaxprs of a loop, of branches, of what is differentiated or jitted, each with operands that are its first inputs all
    along: JAX and `differentiated` take arrays that it closes over out of there."""
    if eqn.primitive.name in CALLS:
        yield eqn.params["jaxpr"], eqn.invars[: eqn.params["derivative"].signature.closed]
    elif eqn.primitive.name in ("jit", "pjit"):
        yield eqn.params["jaxpr"], eqn.invars
    elif eqn.primitive.name in ("scan", "while", "cond"):
        for key, number, place in jax_compat.inner_places(eqn):
            if eqn.primitive.name == "scan":
                place = place[: jax_compat.scan_counts(eqn)[0]]
            yield jax_compat.inner_jaxpr(eqn.params, key, number), [eqn.invars[i] for i in place]


def _closing_over(call: VmapCall, known: Sequence[tuple[Any, Any]]) -> VmapCall:
    """The call with those constants that it or its function takes as inputs that are inputs of the jaxpr around it."""
    # By their bits: what an author's expression makes (`MASK[0]`) is another array in each trace.
    arrays = [*jax_compat.open_jaxpr(call.body)[1], *(x for x in call.inputs if not jax_compat.is_variable(x))]
    standing_for: IdentityMap[Any, Any] = IdentityMap()
    for array in arrays:
        var = next((var for other, var in known if other is array or _is_same(other, array)), None)
        if var is not None:
            standing_for[array] = var
    body, moved = jax_compat.constants_as_inputs(call.body, lambda value: value in standing_for)
    inputs = [x if jax_compat.is_variable(x) else standing_for.get(x, x) for x in call.inputs]
    return dataclasses.replace(
        call,
        body=body,
        inputs=[*(standing_for[array] for array in moved), *inputs],
        in_axes=(*(None for _ in moved), *call.in_axes),
        signature=dataclasses.replace(call.signature, closed=call.signature.closed + len(moved)),
    )


def _is_same(left: Any, right: Any) -> bool:
    if any(map(jax_compat.is_tracer, (left, right))) or type(right) is jax_compat.LITERAL_TYPE:
        return False
    return same_constant(left, jax_compat.typeof(left), right, jax_compat.typeof(right))


def _dead(eqns: Sequence[Any], outvars: Sequence[Any]) -> set[int]:
    """The places of equations that nothing needs."""
    live = {v for v in outvars if type(v) is not jax_compat.LITERAL_TYPE}
    found = set()
    for place in range(len(eqns) - 1, -1, -1):
        eqn = eqns[place]
        if eqn is None:
            continue
        if eqn.effects or any(v in live for v in eqn.outvars):
            live.update(v for v in eqn.invars if type(v) is not jax_compat.LITERAL_TYPE)
        else:
            found.add(place)
    return found


def _places(call: VmapCall, jaxpr: Any, eqns: Sequence[Any], made_by: dict[Any, int], dead: set[int]) -> set[int]:
    """The places of the equations that a call left; none where they are not a piece of the program by themselves."""
    given = {x for x in call.inputs if jax_compat.is_variable(x)}
    if not all(o in made_by for o in call.made):
        return set()
    known = made_by.keys() | set(jaxpr.invars) | set(jaxpr.constvars)
    if not given <= known:
        return set()
    places: set[int] = set()
    stack = [made_by[o] for o in call.made]
    outside = set(jaxpr.invars) - given
    while stack:
        place = stack.pop()
        if place in places:
            continue
        places.add(place)
        if eqns[place].effects:
            return set()
        for atom in eqns[place].invars:
            if type(atom) is jax_compat.LITERAL_TYPE or atom in given:
                continue
            if atom in outside:
                return set()
            if atom in made_by:
                stack.append(made_by[atom])
    own = {v for p in places for v in eqns[p].outvars} - set(call.made)
    read = [a for i, e in enumerate(eqns) if i not in places and i not in dead for a in e.invars]
    if any(type(a) is not jax_compat.LITERAL_TYPE and a in own for a in (*read, *jaxpr.outvars)):
        return set()
    return places
