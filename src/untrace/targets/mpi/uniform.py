"""Whether all ranks of a collective come to it: over which axes of the mesh values, and so decisions, may differ.

A collective inside of a branch or of a loop whose ranks do not decide alike waits for ever. A value differs along an axis where
it comes from a shard or an `axis_index` of it, until it is summed or gathered along that: MPI gives all ranks the same then.
"""

from __future__ import annotations

from collections.abc import Sequence

from untrace import jax_compat
from untrace.ir.calls import function_run
from untrace.ir.nodes import Atom, Cond, Equation, Function, Scan, Value, While, functions_called, walk_functions
from untrace.targets.mpi.ranks import CHOICE, MESSAGES, NUMBER
from untrace.targets.mpi.sharded import Sharding, refuse

Axes = frozenset[str]

# After these all ranks along the axes have the same.
ALIKE = frozenset(
    {"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "pbroadcast"}
    | {"allreduced", "broadcasted", "allgathered"}
)
# After these they have not, also where they had.
APART = (
    frozenset({"ppermute", "all_to_all", "reduce_scatter", "axis_index"})
    | (MESSAGES | {NUMBER.name, CHOICE.name}) - ALIKE
)
# Of these no rank waits for another.
_ALONE = frozenset({"axis_index", NUMBER.name, CHOICE.name})
_NOTHING: Axes = frozenset()


def check_decisions(entry: Function, sharding: Sharding) -> None:
    """Raises UnsupportedPrimitiveError where ranks may not come to a collective together."""
    every: Axes = frozenset(sharding.names)
    specs = [frozenset(sharding.names[a] for part in spec for a in part) for spec in sharding.inputs]
    _Flow(every).function(entry, specs)


def axes_of(equation: Equation) -> Axes:
    """The axes of the mesh that a collective is over; what mpi4jax calls is over all ranks."""
    if equation.callee.name in MESSAGES | {NUMBER.name, CHOICE.name}:
        return frozenset({"rank"})
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return frozenset([axes] if isinstance(axes, str) else [a for a in axes if isinstance(a, str)])


class _Flow:
    def __init__(self, every: Axes):
        self.every = every

    def function(self, function: Function, given: Sequence[Axes]) -> list[Axes]:
        """Over which axes the results differ."""
        known: dict[Value, Axes] = dict(zip(function.params, given, strict=True))

        def read(atom: Atom) -> Axes:
            return known[atom] if type(atom) is Value else _NOTHING

        for equation in function.equations:
            found = self._equation(equation, [read(a) for a in equation.inputs])
            known.update({o: axes for o, axes in zip(equation.outputs, found, strict=True) if o is not None})
        return [read(r) for r in function.results]

    def _equation(self, equation: Equation, given: Sequence[Axes]) -> Sequence[Axes]:
        callee, count = equation.callee, len(equation.outputs)
        union = _NOTHING.union(*given)
        if callee.name in ALIKE | APART:
            if callee.name in ALIKE and equation.params.get("axis_index_groups") is None:
                return [axes - axes_of(equation) for axes in given]
            return [union | axes_of(equation)] * count
        if type(callee) is Scan:
            return self._turns(callee.body, given[: callee.consts], list(given[callee.consts :]), callee.carries)
        if type(callee) is While:
            return self._while(callee, equation, given)
        if type(callee) is Cond:
            self._decided(equation, callee.branches, given[0])
            found = [self.function(branch, given[1:]) for branch in callee.branches]
            return [given[0].union(*axes) for axes in zip(*found, strict=True)]
        run = function_run(equation, given)
        if run is not None:
            return self.function(*run)
        self._decided(equation, functions_called(equation), self.every)  # what calls these, and when, nobody here knows
        return [union] * count

    def _turns(self, body: Function, consts: Sequence[Axes], rest: list[Axes], carries: int) -> Sequence[Axes]:
        while True:
            found = self.function(body, [*consts, *rest])
            carry = [a | b for a, b in zip(rest[:carries], found[:carries], strict=True)]
            if carry == rest[:carries]:
                return [*carry, *found[carries:]]
            rest[:carries] = carry

    def _while(self, loop: While, equation: Equation, given: Sequence[Axes]) -> Sequence[Axes]:
        ours, consts = given[: loop.condition_consts], given[loop.condition_consts : loop.consts]
        carry = list(given[loop.consts :])
        while True:
            (decision,) = self.function(loop.condition, [*ours, *carry])
            found = self.function(loop.body, [*consts, *carry])
            new = [a | b | decision for a, b in zip(carry, found, strict=True)]
            if new == carry:
                self._decided(equation, loop.bodies, decision)
                return carry
            carry = new

    def _decided(self, equation: Equation, bodies: Sequence[Function], decision: Axes) -> None:
        """Raises where the bodies have collectives over axes along which ranks may decide otherwise."""
        inside = [e for body in bodies for f in walk_functions(body) for e in f.equations]
        for one in inside:
            if one.callee.name in (ALIKE | APART) - _ALONE and decision & axes_of(one):
                line = jax_compat.user_line(equation.origin) if equation.origin is not None else ""
                axes = ", ".join(sorted(decision & axes_of(one)))
                refuse(
                    f"`{one.callee.name}` stands inside of a `{equation.callee.name}`{' from ' + line if line else ''} on which "
                    f"the ranks along {axes} may decide otherwise: some would wait for ever. "
                    "Do it before or after that, or decide on what all of them have (a psum)"
                )
