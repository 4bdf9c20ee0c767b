"""The intermediate representation: a jaxpr with a richer callee.

    Program   one entry function, its signature and pytrees, and where it came from
    Function  flat single-assignment equations between parameters and results
    Equation  a call: outputs = callee(*inputs, **params)
    callee    a Primitive (of JAX or of a library), or what a pass found there: a Library function, a Local one, the same for
              every leaf of a tree (TreeMap), the sum of one (TreeSum); Pack and Unpack make a tuple of values and take it apart

Functions stand inside `params` where JAX keeps jaxprs (`jaxpr`, `branches`, `call_jaxpr`, ...). A jaxpr that is
shared by identity is one Function, so sharing survives every pass and is printed once.
`Value` and `Constant` objects are compared by identity: the object *is* the variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final


@final
class Value:
    """A variable: bound once, by a Function's parameter or an Equation's output. `aval` is JAX's abstract value.

    `hint` is a name for it; `named` says that the author bound it to that name, in a statement of its own, and
    `named_inside` that a library did.
    """

    __slots__ = ("aval", "hint", "named", "named_inside")

    def __init__(self, aval: Any, hint: str | None = None):
        self.aval = aval
        self.hint = hint
        self.named = False
        self.named_inside = False


@final
class Literal:
    """A scalar that stands in an equation itself. `value`: Python or NumPy scalar of `aval.dtype`, shape ()."""

    __slots__ = ("value", "aval")

    def __init__(self, value: Any, aval: Any):
        self.value = value
        self.aval = aval


@final
class Constant:
    """An array that a function closes over; one object per array identity in the whole Program.

    `hint` is a name for it: from where the function has it, or from what it holds; None where nobody has said.
    """

    __slots__ = ("value", "aval", "hint")

    def __init__(self, value: Any, aval: Any, hint: str | None = None):
        self.value = value
        self.aval = aval
        self.hint = hint


Atom = Value | Literal | Constant
Passed = Value | Constant  # what a call of a local function may be passed


@final
class Primitive:
    """A callee that is a JAX primitive. `object` is the primitive itself, `name` its name."""

    __slots__ = ("object", "name")

    def __init__(self, object: Any):
        self.object = object
        self.name: str = object.name


@final
class Slot:
    """The place of input number `index` of an equation in the arguments of a Library callee."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def __repr__(self) -> str:
        return f"Slot({self.index})"


@final
class Library:
    """A callee that is a public function of JAX, with the equations that it stands for.

    `name`: its path (`jnp.mean`, `operator.add`; see `lift.library`). `args`, `kwargs`: its arguments, with a Slot where an
    input of the equation goes; tuples, lists and slices may hold Slots. `body`: what it does, so that a
    target without this function can write that.
    """

    __slots__ = ("name", "args", "kwargs", "body")

    def __init__(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], body: Function):
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.body = body


@final
class Local:
    """A callee that is a function of the program itself: a call that the author made. Several calls may share `body`,
    which must be complete when this is made. `effects`: whether it does more than compute its results.
    """

    __slots__ = ("body", "effects")
    name = "local call"  # of no primitive; the function's own is `body.name`

    def __init__(self, body: Function):
        self.body = body
        self.effects = any(e.effects for e in body.equations)


@final
class Pack:
    """A callee that makes one tuple of its inputs."""

    __slots__ = ()
    name = "pack"
    effects = False


@final
class Unpack:
    """A callee that takes one tuple apart; `outputs` holds None for the parts that nothing needs."""

    __slots__ = ()
    name = "unpack"
    effects = False


@final
class TreeMap:
    """A callee that does the same for every leaf of some trees: `jax.tree.map(f, params, grads)`.

    `turns`: what is done for each leaf, of one result. All have the same parameters in the same order: first one for each
    tree, then those that are the same for every leaf. The inputs of the equation are the leaves of the first tree, those
    of the second, and so on, and what they share; its outputs are the leaves of the result. `names`: the author's
    names for the leaves, one for each tree; `function`, `result`: those of the function and of what it all gives.
    """

    __slots__ = ("turns", "trees", "names", "function", "result")
    name = "tree map"

    def __init__(
        self,
        turns: Sequence[Function],
        trees: int,
        names: Sequence[str | None],
        function: str = "",
        result: str | None = None,
    ):
        self.turns = turns
        self.trees = trees
        self.names = names
        self.function = function
        self.result = result

    def arguments(self, inputs: Sequence[Any], turn: int) -> list[Any]:
        """Which of the equation's inputs go to one turn."""
        count = len(self.turns)
        return [*[inputs[tree * count + turn] for tree in range(self.trees)], *inputs[self.trees * count :]]


@final
class TreeSum:
    """A callee that adds up the leaves of a tree, its inputs, one after the other; from 0 on where `from_zero`.

    `equations`: the additions.
    """

    __slots__ = ("equations", "from_zero")
    name = "tree sum"

    def __init__(self, equations: Sequence[Equation], from_zero: bool):
        self.equations = equations
        self.from_zero = from_zero


@final
class TupleType:
    """What stands for the abstract value of a tuple: those of its parts, with names for them."""

    __slots__ = ("parts", "hints")
    shape, dtype, weak_type = (), None, False  # of no array

    def __init__(self, parts: Sequence[Any], hints: Sequence[str | None]):
        self.parts = tuple(parts)
        self.hints = tuple(hints)


@final
class PullbackType:
    """What stands for the abstract value of the function that `jax.vjp` gives back: those of the residuals that it holds.

    `path`: of what it is the derivative.
    """

    __slots__ = ("path", "parts")
    shape, dtype, weak_type = (), None, False  # of no array

    def __init__(self, path: str, parts: Sequence[Any]):
        self.path = path
        self.parts = tuple(parts)


@final
class Equation:
    """`outputs = callee(*inputs, **params)`.

    `outputs` holds None where the program drops a result. `params` maps names to plain values, or to Functions
    where JAX has jaxprs. `origin` is the jaxpr equation it came from (provenance), or None (a call of a Local).
    """

    __slots__ = ("callee", "inputs", "outputs", "params", "origin")

    def __init__(
        self,
        callee: Primitive | Library | Local | TreeMap | TreeSum | Pack | Unpack,
        inputs: Sequence[Atom],
        outputs: Sequence[Value | None],
        params: Mapping[str, Any],
        origin: Any = None,
    ):
        self.callee = callee
        self.inputs = inputs
        self.outputs = outputs
        self.params = params
        self.origin = origin

    @property
    def effects(self) -> bool:
        """Whether it does more than compute its results."""
        if type(self.callee) is Local:
            return self.callee.effects
        return self.origin is not None and bool(self.origin.effects)


@final
class Function:
    """Equations between `params` and `results`; `name` is a hint from the program (data: not yet an identifier).

    `jaxpr` is the jaxpr it was made from, or None. Where other functions are called than before, `equations` is another list.
    """

    __slots__ = ("name", "params", "equations", "results", "jaxpr", "extra", "_walked")

    def __init__(
        self,
        name: str,
        params: Sequence[Value],
        equations: list[Equation],
        results: Sequence[Atom],
        jaxpr: Any = None,
    ):
        self.name = name
        self.params = params
        self.equations = equations
        self.results = results
        self.jaxpr = jaxpr
        self.extra: dict[str, Any] = {}
        # None stands for the function itself: without circles what is done with goes without Python's collector.
        self._walked: list[tuple[Function | None, list[Equation]]] = []

    @property
    def result_avals(self) -> list[Any]:
        return [r.aval for r in self.results]


@dataclass(frozen=True, slots=True)
class SizeNumbers:
    """Numbers of a program that follow the sizes of its inputs, each with what stands in its places at the sizes of the
    examples.

    `integers`: whole floats too. `fractions`: other floats. `rounded`: those fractions that were rounded on the way.
    """

    integers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    fractions: Mapping[float, tuple[float, ...]] = field(default_factory=dict)
    rounded: frozenset[float] = frozenset()


@dataclass(slots=True)
class Program:
    """A captured program: what to write, and under which signature.

    `notes` are sentences for the proof (what was expanded, which callable became a parameter). `numbers`: those that follow
    the sizes of the inputs; None where the sizes are the example's own. `idle`: the traced arguments (positional, keyword)
    with other static fields, on which the program does not depend. `in_order`: whether everything is computed in the order
    in which the author did, for the derivative of a function adds up in that order. `provenance`: where equations came from
    (`capture.provenance`), once somebody asked.
    """

    entry: Function
    signature: Any
    notes: tuple[str, ...] = ()
    where: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    numbers: SizeNumbers | None = None
    idle: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    in_order: bool = False
    provenance: Any = None


def functions_in(value: Any) -> list[Function]:
    """The Functions in an equation's parameter value, outermost order, not those inside them."""
    kind = type(value)
    if kind is Function:
        return [value]
    if kind in _WITHOUT:
        return []
    if not isinstance(value, (tuple, list, dict)):
        _WITHOUT.add(kind)
        return []
    items: Any = (value.values() if kind is dict else ()) if isinstance(value, dict) else value
    return [] if _are_plain(items) else [f for item in items for f in functions_in(item)]


def _are_plain(items: Iterable[Any]) -> bool:
    """Whether these are no Functions, nor tuples of such: sizes and axes are tuples of tuples of numbers."""
    while True:
        types = set(map(type, items)) - _WITHOUT
        if not types:
            return True
        if types != {tuple}:
            return False
        items = [part for item in items if type(item) is tuple for part in item]


def functions_called(equation: Equation) -> list[Function]:
    """The Functions among the parameters of an equation, not those inside them."""
    found: list[Function] = []
    without = _WITHOUT
    for value in equation.params.values():
        kind = type(value)
        # Most are numbers, or tuples of them: each pass asks this of every equation.
        if not (kind in without or kind is tuple and without.issuperset(map(type, value))):
            found.extend(functions_in(value))
    return found


# Types of parameters that hold no Functions, as they are met: every pass asks that of all parameters.
_WITHOUT: set[type] = set()
# Callees that hold Functions themselves.
_WITH_BODIES = frozenset((Local, TreeMap))


def callees(function: Function) -> list[Function]:
    """The Functions that the equations of a function hold, the last first."""
    found: list[Function] = []
    without = _WITHOUT
    # Most equations have nothing that could hold one: every pass walks all of them.
    for equation in [e for e in reversed(function.equations) if e.params or type(e.callee) in _WITH_BODIES]:
        callee = equation.callee
        if type(callee) is Local:
            found.append(callee.body)
        elif type(callee) is TreeMap:
            found.extend(callee.turns)
        if not without.issuperset(map(type, equation.params.values())):
            found.extend(functions_called(equation))
    return found


def walk_functions(entry: Function) -> list[Function]:
    """Every Function reachable from `entry`, each once, callees before callers."""
    order = _walked_before(entry)
    if not order:
        order = _walk(entry)
        entry._walked = [(None if function is entry else function, function.equations) for function in order]
    return order


def _walked_before(entry: Function) -> list[Function]:
    """What `walk_functions` gave last, where all of them have the equations that they had; else nothing.

    Every pass asks, few change what is called, and to look at all equations takes as long as many a pass.
    """
    if any((function or entry).equations is not equations for function, equations in entry._walked):
        return []
    return [function or entry for function, _ in entry._walked]


def _walk(entry: Function) -> list[Function]:
    order: list[Function] = []
    seen: set[int] = set()
    # An explicit stack: programs nest deeper than Python's own stack likes.
    stack: list[tuple[Function, bool]] = [(entry, False)]
    while stack:
        function, done = stack.pop()
        if done:
            order.append(function)
            continue
        if id(function) in seen:
            continue
        seen.add(id(function))
        stack.append((function, True))
        stack.extend([(callee, False) for callee in callees(function) if id(callee) not in seen])
    return order
