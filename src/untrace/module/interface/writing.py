"""What those who help to write a module see of it and of its functions: the writers themselves (`writer`) are above them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol

from jax.extend.core import JaxprEqn

from untrace.ir.facts import ModuleParts, Setting
from untrace.ir.nodes import Atom, Equation, Function, SizeNumbers, Value
from untrace.ir.said import SaidNumber
from untrace.ir.types import Jaxpr, Origin, PrimitiveObject, PyTree
from untrace.module.access_paths import Layout, Step
from untrace.module.constants import ConstantWriter
from untrace.module.docstrings import Described
from untrace.module.grouping.kinds import Group, Row, Sum
from untrace.module.interface.guarded import Guarded
from untrace.module.known_trees import Structure, Trees
from untrace.module.loops.of_calls import Turns
from untrace.module.sizes import Sizes
from untrace.provenance.frames import Frame
from untrace.python.names import Scope
from untrace.python.pytrees import TreeCalls
from untrace.python.statements import Def, Statement
from untrace.python.tree import Call, Expr, Name


class Contents(ConstantWriter):
    """What one module has so far: functions in order, constants, helpers, imports, and what is known of its functions.

    `forced`: jaxpr equations that must be written as a `bind` (their rule was tried and taken back).
    `idiomatic`: values without a name of their own stand inside the expression that uses them.
    `tree_calls`: how the text calls what puts trees together.
    """

    tree_calls: TreeCalls

    def __init__(self, forced: frozenset[JaxprEqn] = frozenset(), standalone: bool = False, idiomatic: bool = False):
        super().__init__()
        self.entry_decorators: Sequence[Expr] = ()
        self.describes_types = ""  # the helper that gives types in words; "" for JAX's own
        self.idiomatic = idiomatic
        self.folded: dict[Origin, tuple[Origin, ...]] = {}  # an equation -> those whose expressions stand in its own
        self.definitions: list[Statement] = []
        self.units: list[list[Statement]] = []  # those of them that belong together, as a function and its rules
        self.notes: list[str] = []
        self.reroll = False  # whether loops over local functions become scans
        self.scans = 0  # how many did
        self.annotation_words: set[str] = set()  # names of jaxtyping that annotations use
        self.described = Described(self)  # docstrings and annotations
        self.forced = forced
        self.standalone = standalone
        self.callables: dict[int, Expr] = {}  # Python functions of callbacks, by identity
        self.missing: dict[str, Callable[..., object]] = {}  # those without text: name of the stand-in -> function
        self.twins: dict[object, Expr] = {}  # classes that stand for a library's, by class
        self.program: Jaxpr = None  # the jaxpr of the whole program
        self.being_written: set[Function] = set()  # functions inside whose definition we are
        self.kept: list[object] = []  # what something knows by its id, which is only unique while it lives
        self.entry: Function | None = None
        self.returned: dict[Function, list[Group]] = {}  # of local functions: which of their results are trees
        self.in_order = False  # see `module.Manner`
        self.keeps_carries = True  # whether the carries of loops keep their order
        self.kept_carries = False  # whether one has no tree in it for that reason
        self.sums: dict[Equation, list[Sum]] = {}  # of loops: the trees that they add up
        self.rows: dict[Equation, list[Row]] = {}  # the same: the trees that they stack
        self.layouts: dict[Function, Layout] = {}  # of local functions: which parameters they take as one tree
        self.unfit: dict[Function, Layout] = {}  # where a call has no such tree: in what all calls agree
        self.agreed: Mapping[Function, Layout] = {}  # which are to be so from the start
        self.locals: dict[Hashable, str] = {}  # local functions: name by what they are, and by their text
        self.local_definitions: dict[str, Def] = {}  # their definitions, by name
        self.called_from: dict[str, Sequence[Frame]] = {}  # by name: where the author made one of its calls
        self.attributes: dict[
            str, Mapping[str, Setting]
        ] = {}  # by name: numbers that the author's object has a word for
        self.left: dict[str, tuple[str, ...]] = {}  # by name: the author's parameters that none of these is
        self.passed: dict[str, Mapping[str, int | float]] = {}  # of local functions: `passed` of their facts
        self.passed_as: dict[str, Mapping[str, SaidNumber]] = {}  # and `passed_as`
        self.callees: dict[str, Frame | None] = {}  # and `callee`
        self.variadic: dict[str, str] = {}  # by name: what the author calls the parameter of all further arguments
        self.parts: dict[str, list[ModuleParts | None]] = {}  # by name: which parts of their parameters objects have
        self.residuals: Mapping[Value, Value] = {}  # what a loop takes of what was stacked -> the value there
        self.numbers = SizeNumbers()  # those that follow the sizes of the inputs
        self.size_names: Mapping[int, str] = {}  # the author's words for them
        self.guarded: Guarded | None = None  # what the entry depends on; None without a guard
        self.guard: list[Statement] = []  # the entry's first statements then
        self.sizes_of: dict[Function, tuple[int, ...]] = {}  # of local functions: the sizes that they take
        self.built_in: set[int] = set()  # those of them that had to be written as numbers
        self.primitive_names: dict[PrimitiveObject, Expr | None] = {}

    def writer(self) -> Writer:
        """A writer for a module-level function."""
        raise NotImplementedError


class Writer(Protocol):
    """The writer of one function, as its helpers see it."""

    scope: Scope
    names: dict[Value, Expr]
    statements: list[Statement]
    equation: Equation  # the one that is written
    trees: Trees  # those that can be named here
    packs: list[Name]  # of a local function: the parameters that are trees
    structures: dict[Equation, Structure]  # of the maps over trees
    looked_up: dict[object, Name]  # classes of libraries that variables hold
    sizes: Sizes | None
    sized: list[Value]  # parameters, whose shapes tell sizes
    # Inside the `tangent_solve` of a `custom_root`: the name of its `g`, leaves of the root, constants of `f`.
    root_map: tuple[str, int, int] | None

    @property
    def module(self) -> Contents: ...
    @property
    def outer(self) -> Writer | None:
        """That of the function around this one."""

    def nested(self, scope: Scope | None = None) -> Writer: ...
    def bind_parameter(self, value: Value, hint: str | None = None) -> Name: ...
    def atom(self, atom: Atom) -> Expr: ...
    def source(self, value: object) -> Expr: ...
    def array_call(self, name: str, *args: object, **kwargs: object) -> Call: ...
    def count(self, expr: Expr) -> Expr: ...
    def equations(self, equations: Sequence[Equation], results: Sequence[Atom] = ()) -> None: ...
    def results(self, atoms: Sequence[Atom]) -> Expr: ...
    def remaining(self) -> tuple[Sequence[Equation], Sequence[Atom]]: ...
    def is_read(self, output: Value) -> bool: ...
    def is_read_later(self, value: Value) -> bool: ...
    def is_taken_later(self, key: Hashable, taken_by: Callable[[Equation], Iterable[Hashable]]) -> bool: ...
    def zeros_like(self, node: PyTree, parts: Sequence[Expr] | None, way: tuple[Step, ...] = ()) -> Expr | None: ...
    def added_trees(self, total: Expr, tree: Expr) -> Expr: ...
    def note_unscanned(self, equations: Sequence[Equation], at: int) -> None: ...
    def scan_of_calls(self, turns: Turns) -> list[Statement]: ...
    def _statement(self, equation: Equation, expr: Expr, several: bool = False, base: str | None = None) -> None: ...
    def _target(self, output: Value, base: str) -> str: ...
