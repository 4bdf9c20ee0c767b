"""The intermediate representation: a jaxpr with a richer callee.

    Program   one entry function, its signature and pytrees, and where it came from
    Function  flat single-assignment equations between parameters and results
    Equation  a call: outputs = callee(*inputs, **params)
    callee    a Primitive (of JAX or of a library), with its bodies where it is Structured: a Scan, a While, a Cond, or one of
              `ir.structured` (CustomRule, Map, Transformed); or what a pass found: a Library function, a Local one, the same
              for every leaf of a tree (TreeMap), the sum of one (TreeSum), its leaves as one vector (TreeRavel) and back
              (TreeUnravel); Pack and Unpack make a tuple of values and take it apart

The Functions of other primitives stand inside `params`, where JAX keeps jaxprs (`jaxpr`, `call_jaxpr`, ...). A jaxpr that is
shared by identity is one Function, so sharing survives every pass and is printed once.
`Value` and `Constant` objects are compared by identity: the object *is* the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, final

from untrace.ir.facts import NOTHING, FunctionFacts, ProgramFacts, Selected, Transposed
from untrace.ir.signatures import MapSignature
from untrace.ir.types import Aval, EntrySignature, Jaxpr, Origin, Parameter, PrimitiveObject, PyTree, Sources
from untrace.ir.values import Atom as Atom
from untrace.ir.values import Constant as Constant
from untrace.ir.values import Literal as Literal
from untrace.ir.values import Value as Value
from untrace.provenance.frames import Frame

T = TypeVar("T")
Passed = Value | Constant  # what a call of a local function may be passed


class Primitive:
    """A callee that is a JAX primitive. `object` is the primitive itself, `name` its name."""

    __slots__ = ("object", "name")

    def __init__(self, object: PrimitiveObject):
        self.object = object
        self.name: str = object.name


class Structured(Primitive):
    """A JAX primitive whose bodies are Functions of the program: what each does with them is said by a class of its own.

    `Equation.params` has the other parameters; `Equation.parameters` has all, as JAX names them.
    """

    __slots__ = ()

    @property
    def bodies(self) -> Sequence[Function]:
        """The Functions, in the order in which passes visit them."""
        raise NotImplementedError(type(self).__name__)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """What JAX calls the Functions, and what says how the operands belong to them."""
        raise NotImplementedError(type(self).__name__)


@final
class Scan(Structured):
    """`lax.scan`. `body` takes constants, the carry and the elements of a turn, and gives the carry and the outputs of a turn;
    the equation's inputs are the constants (`consts` of them), the first carry (`carries`) and the arrays of elements, its
    outputs the last carry and the outputs, stacked."""

    __slots__ = ("body", "consts", "carries")

    def __init__(self, object: PrimitiveObject, body: Function, consts: int, carries: int):
        super().__init__(object)
        self.body = body
        self.consts = consts
        self.carries = carries

    @property
    def bodies(self) -> Sequence[Function]:
        return (self.body,)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"jaxpr": self.body}

    def with_body(self, body: Function) -> Scan:
        return Scan(self.object, body, self.consts, self.carries)


@final
class While(Structured):
    """`lax.while_loop`. `condition` and `body` take constants, each its own, and the carry; the equation's inputs are those of
    the condition (`condition_consts`), those of the body (`body_consts`) and the first carry, its outputs the last one."""

    __slots__ = ("condition", "body", "condition_consts", "body_consts")

    def __init__(
        self,
        object: PrimitiveObject,
        condition: Function,
        body: Function,
        condition_consts: int,
        body_consts: int,
    ):
        super().__init__(object)
        self.condition = condition
        self.body = body
        self.condition_consts = condition_consts
        self.body_consts = body_consts

    @property
    def consts(self) -> int:
        """How many of the equation's inputs come before the carry."""
        return self.condition_consts + self.body_consts

    @property
    def bodies(self) -> Sequence[Function]:
        return (self.condition, self.body)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "cond_jaxpr": self.condition, "body_jaxpr": self.body,
            "cond_nconsts": self.condition_consts, "body_nconsts": self.body_consts,
        }  # fmt: skip


@final
class Cond(Structured):
    """`lax.cond` and `lax.switch`. The equation's inputs are the number of the branch and the operands of all `branches`."""

    __slots__ = ("branches",)

    def __init__(self, object: PrimitiveObject, branches: Sequence[Function]):
        super().__init__(object)
        self.branches = tuple(branches)

    @property
    def bodies(self) -> Sequence[Function]:
        return self.branches

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"branches": self.branches}


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

    `name`: its path (`jnp.mean`, `operator.add`; see `lift.recognise.library`). `args`, `kwargs`: its arguments, with a Slot where an
    input of the equation goes; tuples, lists and slices may hold Slots. `body`: what it does, so that a
    target without this function can write that.

    `function`: the author's function that it is called with (`lax.associative_scan`, `cg`), None where it takes none;
    `closed`: how many of the equation's first inputs that closes over; `signature`: its trees, where it takes some.
    Of a call of `jax.vjp` (`vjp.jnp.linalg.qr`): `auxiliary` is which of the two results is no differentiated one, None
    where both are; `own_tuple` says that the function gives a tuple of a class of its own.
    """

    __slots__ = ("name", "args", "kwargs", "body", "function", "closed", "signature", "auxiliary", "own_tuple")

    def __init__(self, name: str, args: Sequence[Parameter], kwargs: Mapping[str, Parameter], body: Function):
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.body = body
        self.function: Function | None = None
        self.closed = 0
        self.signature: MapSignature | None = None
        self.auxiliary: int | None = None
        self.own_tuple = False


@final
class Local:
    """A callee that is a function of the program itself: a call that the author made. Several calls may share `body`,
    which must be complete when this is made. `frames`: where the author made the call, from the outermost function on.
    `effects`: whether it does more than compute its results.
    """

    __slots__ = ("body", "frames", "effects")
    name = "local call"  # of no primitive; the function's own is `body.name`

    def __init__(self, body: Function, frames: Sequence[Frame] = ()):
        self.body = body
        self.frames = frames
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
    names for the leaves, one for each tree; `function`, `result`: those of the function and of what it all gives. `own`,
    `own_result`: whether these are the author's, and no library's. `selected`: which leaves it changes, where it is not all;
    of another one there is no output. `is_called`: whether a call of `jax.tree.map` and its like was seen, and not only that
    the same is done several times.
    """

    __slots__ = ("turns", "trees", "names", "function", "result", "own", "own_result", "selected", "is_called")
    name = "tree map"

    def __init__(
        self,
        turns: Sequence[Function],
        trees: int,
        names: Sequence[str | None],
        function: str = "",
        result: str | None = None,
        own: bool = False,
        own_result: bool = False,
        selected: Selected | None = None,
        is_called: bool = True,
    ):
        self.turns = turns
        self.trees = trees
        self.names = names
        self.function = function
        self.result = result
        self.own = own
        self.own_result = own_result
        self.selected = selected
        self.is_called = is_called

    def with_turns(self, turns: Sequence[Function], selected: Selected | None = None) -> TreeMap:
        """The same map of other leaves."""
        known = self.trees, self.names, self.function, self.result, self.own, self.own_result
        return TreeMap(turns, *known, selected, self.is_called)

    def columns(self, inputs: Sequence[T]) -> list[Sequence[T]]:
        """The leaves of each tree, of the equation's inputs."""
        count = len(self.turns)
        return [inputs[tree * count : (tree + 1) * count] for tree in range(self.trees)]

    def given(self, equation: Equation) -> list[Atom | None]:
        """The leaves of the tree that the equation of this callee gives."""
        if self.selected is None:
            return list(equation.outputs)
        kept = self.columns(equation.inputs)[self.selected.kept]
        return [kept[i] if o is None else o for i, o in enumerate(equation.outputs)]

    def arguments(self, inputs: Sequence[T], turn: int) -> list[T]:
        """Which of the equation's inputs go to one turn."""
        count = len(self.turns)
        return [*[inputs[tree * count + turn] for tree in range(self.trees)], *inputs[self.trees * count :]]


class OverLeaves:
    """A callee that stands for `equations` over all leaves of a tree."""

    __slots__ = ("equations",)
    name = ""

    def __init__(self, equations: Sequence[Equation]):
        self.equations = equations


@final
class TreeSum(OverLeaves):
    """A callee that adds up the leaves of a tree, its inputs, one after the other; from 0 on where `from_zero`."""

    __slots__ = ("from_zero",)
    name = "tree sum"

    def __init__(self, equations: Sequence[Equation], from_zero: bool):
        super().__init__(equations)
        self.from_zero = from_zero


@final
class TreeRavel(OverLeaves):
    """A callee that lays the leaves of a tree, its inputs, one after the other into a vector: `ravel_pytree`.

    `inverse`: the author's name for the function that takes such a vector apart again.
    """

    __slots__ = ("inverse",)
    name = "tree ravel"

    def __init__(self, equations: Sequence[Equation], inverse: str):
        super().__init__(equations)
        self.inverse = inverse


@final
class TreeUnravel(OverLeaves):
    """A callee that takes a vector apart into the leaves of a tree, its outputs.

    `sizes`: how many numbers each leaf has. `inverse`: the author's name for the function that does it, where it is one that
    `ravel_pytree` gave; else "". `result`: a name for the tree; `own_result`: whether the author bound it to that name.
    """

    __slots__ = ("sizes", "inverse", "result", "own_result")
    name = "tree unravel"

    def __init__(self, equations: Sequence[Equation], sizes: Sequence[int], inverse: str):
        super().__init__(equations)
        self.sizes = tuple(sizes)
        self.inverse = inverse
        self.result = ""
        self.own_result = False


@final
class TupleType:
    """What stands for the abstract value of a tuple: those of its parts, with names for them."""

    __slots__ = ("parts", "hints")
    shape, dtype, weak_type = (), None, False  # of no array

    def __init__(self, parts: Sequence[Aval], hints: Sequence[str | None]):
        self.parts = tuple(parts)
        self.hints = tuple(hints)


@final
class PullbackType:
    """What stands for the abstract value of the function that `jax.vjp` gives back: those of the residuals that it holds.

    `path`: of what it is the derivative.
    """

    __slots__ = ("path", "parts")
    shape, dtype, weak_type = (), None, False  # of no array

    def __init__(self, path: str, parts: Sequence[Aval]):
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
        callee: Primitive | Library | Local | TreeMap | OverLeaves | Pack | Unpack,
        inputs: Sequence[Atom],
        outputs: Sequence[Value | None],
        params: Mapping[str, Parameter],
        origin: Origin = None,
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

    @property
    def may_hold_functions(self) -> bool:
        """Whether it is worth looking for Functions in it: most equations have no parameters, and every pass asks."""
        return (
            bool(self.params)
            or isinstance(self.callee, Structured)
            or type(self.callee) is Library
            and self.callee.function is not None
        )

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """All parameters as JAX has them, in its order, with Functions where it has jaxprs."""
        if not isinstance(self.callee, Structured):
            return self.params
        every = {**self.params, **self.callee.parameters}
        order = self.origin.params if self.origin is not None else ()
        return {**{key: every[key] for key in order if key in every}, **every}


@final
class Function:
    """Equations between `params` and `results`; `name` is a hint from the program (data: not yet an identifier).

    `jaxpr` is the jaxpr it was made from, or None. `facts`: what passes know of it. `transposed`: the function that
    `jax.checkpoint` marked, where this is the derivative of one, and how the two belong
    together. Where other functions are called than before, `equations` is another list.
    """

    __slots__ = ("name", "params", "equations", "results", "jaxpr", "facts", "transposed", "_walked")

    def __init__(
        self,
        name: str,
        params: Sequence[Value],
        equations: list[Equation],
        results: Sequence[Atom],
        jaxpr: Jaxpr = None,
    ):
        self.name = name
        self.params = params
        self.equations = equations
        self.results = results
        self.jaxpr = jaxpr
        self.facts: FunctionFacts = NOTHING
        self.transposed: tuple[Function, Transposed] | None = None
        # None stands for the function itself: without circles what is done with goes without Python's collector.
        self._walked: list[tuple[Function | None, list[Equation]]] = []

    @property
    def result_avals(self) -> list[Aval]:
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

    `notes` are sentences for the proof (what was expanded, which callable became a parameter); `rule_notes`: those of them that
    are of derivative rules. `numbers`: those that follow
    the sizes of the inputs; None where the sizes are the example's own. `idle`: the traced arguments (positional, keyword)
    with other static fields, on which the program does not depend. `provenance`: where equations came from
    (`provenance.sites`), once somebody asked. `facts`: what passes know of it. `capture_rest`: captures what was put off of
    these functions; False where that is nothing.
    """

    entry: Function
    signature: EntrySignature
    notes: tuple[str, ...] = ()
    rule_notes: Collection[str] = ()
    where: str = ""
    facts: ProgramFacts = field(default_factory=ProgramFacts)
    numbers: SizeNumbers | None = None
    idle: tuple[tuple[PyTree, ...], dict[str, PyTree]] | None = None
    provenance: Sources = None
    capture_rest: Callable[[Iterable[Function]], bool] = lambda functions: False


def functions_in(value: Parameter) -> list[Function]:
    """The Functions in an equation's parameter value, outermost order, not those inside them."""
    kind = type(value)
    if kind is Function:
        return [value]
    if kind in _WITHOUT:
        return []
    if not isinstance(value, (tuple, list, dict)):
        _WITHOUT.add(kind)
        return []
    items: Iterable[Parameter] = value
    if isinstance(value, dict):
        items = value.values() if kind is dict else ()
    return [] if _are_plain(items) else [f for item in items for f in functions_in(item)]


def _are_plain(items: Iterable[Parameter]) -> bool:
    """Whether these are no Functions, nor tuples of such: sizes and axes are tuples of tuples of numbers."""
    while True:
        types = set(map(type, items)) - _WITHOUT
        if not types:
            return True
        if types != {tuple}:
            return False
        items = [part for item in items if type(item) is tuple for part in item]


def functions_called(equation: Equation) -> list[Function]:
    """The Functions among the parameters of an equation, not those inside them; the one that a library's is called with."""
    found: list[Function] = []
    callee = equation.callee
    if isinstance(callee, Structured):
        return list(callee.bodies)
    if type(callee) is Library and callee.function is not None:
        found.append(callee.function)
    without = _WITHOUT
    for value in equation.params.values():
        kind = type(value)
        # Most are numbers, or tuples of them: each pass asks this of every equation.
        if not (kind in without or kind is tuple and without.issuperset(map(type, value))):
            found.extend(functions_in(value))
    return found


# Types of parameters that hold no Functions, as they are met: every pass asks that of all parameters.
_WITHOUT: set[type] = set()


def callees(function: Function) -> list[Function]:
    """The Functions that the equations of a function hold, the last first."""
    found: list[Function] = []
    without = _WITHOUT
    # Most equations have nothing that could hold one: every pass walks all of them.
    for equation in [e for e in reversed(function.equations) if e.params or type(e.callee) is not Primitive]:
        callee = equation.callee
        if type(callee) is Local:
            found.append(callee.body)
        elif type(callee) is TreeMap:
            found.extend(callee.turns)
        elif type(callee) is Library and callee.function is not None:  # such an equation has no parameters
            found.append(callee.function)
        elif isinstance(callee, Structured):
            found.extend(callee.bodies)
            continue
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
    seen: set[Function] = set()
    # An explicit stack: programs nest deeper than Python's own stack likes.
    stack: list[tuple[Function, bool]] = [(entry, False)]
    while stack:
        function, done = stack.pop()
        if done:
            order.append(function)
            continue
        if function in seen:
            continue
        seen.add(function)
        stack.append((function, True))
        stack.extend([(callee, False) for callee in callees(function) if callee not in seen])
    return order
