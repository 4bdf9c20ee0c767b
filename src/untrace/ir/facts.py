"""What passes find out about a function or a program, for passes after them: one question of a reader is one field.

The default of a field is what holds where nobody has said anything. Facts are never changed: a pass that has something to
say gives the function, or the program, other facts (`dataclasses.replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from untrace.ir.said import SaidNumber
from untrace.ir.trees import BodyTrees, Tree
from untrace.ir.types import Jaxpr, Origin, PyTree, Variable
from untrace.ir.values import Constant, Literal, Value
from untrace.provenance.call_records import Access
from untrace.provenance.frames import Frame

# From a tree to a part of it: ("item", the key as source, how many children the tuple or list has, 0 for a dict) or
# ("attribute", its name, 0) each.
Step: TypeAlias = tuple[str, str, int]
Way: TypeAlias = tuple[Step, ...]
# What an author's object is set to: numbers, short words.
Setting: TypeAlias = "int | float | str | tuple[Setting, ...]"


@dataclass(frozen=True, slots=True)
class Transposed:
    """What an equation is the derivative of. function: the jaxpr of what `jax.checkpoint` marked.

    primals: for each of its inputs, which operand of the equation that is, -1 for one that the derivative does not need (a
    bias that is added last). varied: the inputs that it is differentiated for.
    cotangents: the operands that are those of its results. results: for each varied input the output that is its cotangent.
    """

    function: Jaxpr
    primals: tuple[int, ...]
    varied: tuple[int, ...]
    cotangents: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Parameters that are passed together as trees.

    packs: for each tree the places of the parameters that are its leaves, and the way to each. names: what the trees are
    called; None where that is seen from what they hold.
    """

    packs: Sequence[tuple[list[int], list[Way]]]
    names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PackedResults:
    """Results that go together in one dict, behind `count` others. ways: the way to each of them in it."""

    count: int
    ways: Sequence[Way]


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """The ways into the parameters of the modules of PyTorch that call a function: (params or buffers, keys as source).

    every: those that all of the modules have. some: those that any of them has.
    """

    every: frozenset[tuple[str, tuple[str, ...]]]
    some: frozenset[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Addend:
    """Where zeros are to be added: to `variable`, right after the equation `after`, as `like` adds in another call.

    `first`: whether they are its first operand. `readers`: (equation, operand) that read the sum. `beside`: the equation before
    which the zeros are made, None for where the program begins; `depth`: how many of its frames are theirs.
    """

    after: Origin
    variable: Variable
    like: Origin
    first: bool
    readers: tuple[tuple[Origin, int], ...]
    beside: Origin
    depth: int


@dataclass(frozen=True, slots=True)
class Selected:
    """Which leaves a map over trees changes: those for which the leaf of tree number `tree` has more than `axes` axes (None:
    however many), or, where that does not tell all, those of them at some places in the tree. The others stay what they are
    in tree number `kept`."""

    tree: int
    axes: int | None
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """What is known of one Function."""

    # ------------------------------------------------------------ from capture

    trees: BodyTrees | None = None
    """The pytrees that it takes and gives: of a loop's or branch's function, one that is jitted or differentiated."""

    taken: Sequence[tuple[str, Tree]] | None = None
    """The trees that a function takes that `jax.checkpoint` marked, each with the author's word for it ("" for none); None
    of other functions."""

    rule_paths: Sequence[str] = ()
    """Of a function with a rule for derivatives, or of the rule: JAX's names for the leaves of its arguments."""

    pruned: bool = False
    """Whether it is the condition of a loop from which JAX has taken out dead code."""

    whole: str = ""
    """Of a loop's function: that of the author's whose call is all that it does."""

    # ------------------------------------------------------------ of a function that was made of the author's calls

    calls: int = 1
    """How many calls there are of it."""

    is_one_of_several: bool = False
    """Whether other functions are made of the same code of the author's."""

    definition: Sequence[str] = ()
    """The author's names of its positional parameters, in order."""

    unmatched: Sequence[str] = ()
    """Those of them that none of the values which it takes was seen to be."""

    numbers: Sequence[str] = ()
    """Those of them that may be numbers: no flags, and none of a library's."""

    passed: Mapping[str, int | float] = field(default_factory=dict)
    """The plain numbers that its calls were passed, by the author's parameter, where all were passed the same."""

    passed_as: Mapping[str, SaidNumber] = field(default_factory=dict)
    """The author's expressions for some of them, of numbers of the module, where all its calls have the same."""

    callee: Frame | None = None
    """The frame of the author's function in one of its calls."""

    accesses: Sequence[Access | None] = ()
    """What the author's function has each of the parameters as; None where that is not known. Empty: of none."""

    given: Sequence[tuple[list[int], PyTree]] = ()
    """The trees among its results: the places of the leaves of each, and one like it."""

    variadic: str | None = None
    """What the author calls the parameter that takes all further arguments; None where there is none."""

    said: frozenset[Value] = frozenset()
    """Its parameters whose names are those of a library's code."""

    same: frozenset[int] = frozenset()
    """The places of parameters for which all calls pass the same value."""

    author_trees: Sequence[tuple[str, Tree]] = ()
    """The author's parameters that are trees of which every leaf is a parameter."""

    together: Sequence[list[int]] | None = None
    """Places of parameters that are neighbours in one tree at every turn of a loop over it; None where it stands in none."""

    words: Sequence[tuple[Literal | Constant, str]] = ()
    """What the author calls the numbers and arrays in which variants of it differ."""

    uneven: bool = False
    """Whether a variant of it splits an array into parts of different sizes."""

    called_once: bool = False
    """Whether one place of the text calls it, so that it may stand there."""

    saved: int = 0
    """How many of its results, the last ones, are residuals: kept for the backward part."""

    backward: bool = False
    """Whether it is the backward part of a call."""

    known: frozenset[Constant] = frozenset()
    """Arrays that it closes over; the parameters that stood for them are not read any more."""

    wholes: tuple[str, str] = ("left", "right")
    """The author's names for the two arguments of a function that `lax.associative_scan` combines elements with."""

    # ------------------------------------------------------------ from a capture that knows the calls (PyTorch's modules)

    grouping: Grouping | None = None
    """Which parameters are trees, whoever calls; None where that is seen from the calls."""

    packed_results: PackedResults | None = None
    """Results that go together in one dict (the new buffers of a module), if any."""

    head: str = ""
    """What it is, as a comment above its body: `class Attention`."""

    attributes: Mapping[str, Setting] = field(default_factory=dict)
    """Numbers that the author's object has a word for."""

    parts: ModuleParts | None = None
    """Which parameters the modules have that call it; None of what is called by no module."""

    size_names: Mapping[int, str] = field(default_factory=dict)
    """The author's words for sizes in it."""

    size_words: Sequence[str] = ()
    """The author's words for sizes that it is passed as numbers."""

    @property
    def author_parameters(self) -> Sequence[str]:
        """The author's names of its parameters, those of trees among them."""
        return self.definition or [word for word, _ in self.taken or ()]


# Those of a function of which nobody has said anything.
NOTHING = FunctionFacts()


def _of_nothing(value: Value) -> Value | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """What is known of a whole Program."""

    # ------------------------------------------------------------ from capture

    own: Collection[str] = ()
    """The primitives for which the user has registered rules: no lift takes them in."""

    summary: str = ""
    """What the program is, where it is what a transformation of JAX gave: "Gradient of `loss` with respect to params"."""

    # ------------------------------------------------------------ from the passes of `lift`

    primal_of: Callable[[Value], Value | None] = _of_nothing
    """The value that another one is the cotangent of; None where that is not known."""

    residuals: Mapping[Value, Value] = field(default_factory=dict)
    """What a loop takes, slice by slice, of what an earlier loop has stacked: the parameter of its body, the value there."""

    addends: Sequence[Addend] = ()
    """The sums that are missing in backward parts beside those of other calls of the same function."""
