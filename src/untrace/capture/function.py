"""From a Python function and its arguments to a traced, expanded Program."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import traceback
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from untrace import jax_compat
from untrace._errors import CaptureError
from untrace._identifiers import snake_case
from untrace._identity import IdentityMap
from untrace._places import place_of
from untrace.capture import closed_over
from untrace.capture.body_trees import Bodies, has_unknown_loops, note_trees, noted_bodies
from untrace.capture.calls.checkpoints import Checkpoints, has_unknown_checkpoints, noted_checkpoints
from untrace.capture.calls.differentiated import called_derivatives, noted_derivatives
from untrace.capture.calls.unfolding import gives_back
from untrace.capture.calls.vmaps import VmapCall, noted_vmaps
from untrace.capture.fixed_parts import Around
from untrace.capture.hooks import NO_HOOKS, CaptureHooks
from untrace.capture.jaxpr import Importer
from untrace.ir.nodes import Program, SizeNumbers
from untrace.jaxprs.expand.expand import Expander
from untrace.provenance import syntax
from untrace.provenance.call_records import CallRecords
from untrace.provenance.sites import Provenance


@dataclass(frozen=True, slots=True)
class Limit:
    """Which sizes a dimension may have that is not the example's alone: from `least` to `most`, multiples of `multiple`; or
    those that are the sum of `terms` (sizes of other dimensions, and how often) and `plus`."""

    least: int
    multiple: int = 1
    most: int | None = None  # None: any
    terms: tuple[tuple[int, int], ...] = ()
    plus: int = 0


@dataclass(slots=True)
class Beside:
    """The capture on the user's own arguments, beside one at other sizes.

    `groups`: which dimensions have other sizes (`sizes.Group`). `objects`, `equations`: what corresponds to parameters that
    are no data, by name, and to equations. `numbers`, `others`: those of the program at other sizes, and what is no data in
    its parameters, of which is known what they are here.
    """

    example: Captured
    groups: tuple[Any, ...]
    objects: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    equations: dict[JaxprEqn, JaxprEqn] = field(default_factory=dict)
    numbers: set[float] = field(default_factory=set)
    others: IdentityMap[Any, None] = field(default_factory=IdentityMap)


@dataclass(slots=True)
class Called:
    """The function traced once more, with the derivatives that it asks for as equations (`differentiated`).

    `kept`: which of them, by number, of `asked` in all. `without(numbers)`: the same with these as JAX makes them; None where it cannot be traced.
    """

    jaxpr: Any
    vmaps: Sequence[VmapCall]
    kept: Sequence[int]
    asked: int
    without: Callable[[Collection[int]], Called | None]


@dataclass(slots=True)
class Captured:
    """What tracing gave. `jaxpr` is the original, `expanded` the one without library primitives (often the same object).

    `dynamic_args`/`dynamic_kwargs`: the arguments that were traced; `out_example`: the result with ShapeDtypeStruct leaves.
    """

    jaxpr: Any
    expanded: Any
    notes: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: dict[int | str, Any]
    out_example: Any
    name: str
    summary: str = ""  # "Gradient of `loss` with respect to params"; "" of a function that is no transformation's
    expander: Any = None  # what replaced the library primitives, for those inside derivative rules
    hooks: CaptureHooks = NO_HOOKS  # what a capture of its own knows (`torch`)
    function: Any = None  # what was traced; None of a jaxpr that came alone
    constant_names: IdentityMap[Any, str] = field(
        default_factory=IdentityMap
    )  # names for what the function closes over
    vmaps: Sequence[VmapCall] = ()  # the calls of `jax.vmap` that were made, where they were noted
    bodies: Bodies = field(default_factory=Bodies)  # the pytrees of functions that were traced, where they were noted
    checkpoints: Checkpoints = field(default_factory=Checkpoints)  # what `jax.checkpoint` marked, where it was noted
    # Gives the context in which JAX finds what it traced for this: rules that are called later must find the same.
    caches: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    numbers: SizeNumbers | None = None  # of a program for other sizes too
    limits: dict[int, Limit] = field(default_factory=dict)  # what those may be, by the number that stands for a size
    idle: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # see Program
    # What code outside JAX asked JAX of devices, processes and the mesh around it, by JAX's names: `device_count`.
    asked: frozenset[str] = frozenset()
    # Whether those are all: not where JAX took functions of the author's from its caches, which it does not call again.
    asked_all: bool = True
    beside: Beside | None = None  # where this is at other sizes than the user's own (`capture.sizes.sizes`)
    noted: bool = False  # whether calls were looked for, and the function did not mind
    leaves_jax: bool = False  # whether `expanded` is without references, which only JAX has
    one_device: bool = False  # whether `expanded` is for one device where it runs on those of a mesh
    keeps_calls: bool = False  # whether derivatives that are asked for stay calls
    asked_for: int = 0  # how many derivatives the function was seen to ask for, those of others not counted
    # Traces the function once more with the derivatives that it asks for as calls; None where it asks for none.
    trace_calls: Callable[[], Called | None] | None = None
    folded: Any = None  # what was captured, with all calls found again, once somebody asked
    repeats: bool = False  # whether it was seen to make equal calls of `jax.vjp`
    is_run: bool | None = None  # whether it is compiled and run for a proof; None: nobody has asked yet
    begun: bool = False  # whether XLA was asked to compile it, beside what happens meanwhile
    compilation: Any = (
        None  # what came of that (`prove.hlo.Compilation`); None where it is compiled with another program
    )
    provenance: Provenance = field(default_factory=Provenance)  # of all programs that are made of it
    around: Around | None = None  # what takes other things than arrays out of its arguments, where there are some
    _traced_calls: Called | None = None
    _called: Called | None = None
    _asked_calls: bool = False
    _looked_for: IdentityMap[Any, None] = field(default_factory=IdentityMap)

    @contextlib.contextmanager
    def as_traced(self) -> Iterator[None]:
        """A context in which JAX finds what it traced for this, and in which calls are seen as they were then."""
        with self.caches(), self.provenance.calls.noted():
            yield

    @property
    def traced_calls(self) -> Called | None:
        """The function traced once more with the derivatives that it asks for as calls, when somebody asks first."""
        if self.trace_calls is not None:
            self._traced_calls, self.trace_calls = self.trace_calls(), None
        return self._traced_calls

    @property
    def called(self) -> Called | None:
        """The same where it is the program that was captured, without calls that do not come back. Asked after `expand`."""
        found = self.traced_calls
        if found is not None and not self._asked_calls:
            self._asked_calls = True
            with self.as_traced():
                self._called = _that_comes_back(self, found)
        return self._called

    @property
    def taken(self) -> int:
        """How many derivatives the function asks for, those of others not counted; where it was noted."""
        found = self.traced_calls
        return self.asked_for if found is None else found.asked

    def goes(self, one_device: bool) -> None:
        """It is for another library than JAX."""
        self.leaves_jax, self.one_device = True, one_device

    @property
    def example(self) -> Captured | None:
        """The capture on the user's own arguments, where this one is at other sizes."""
        return None if self.beside is None else self.beside.example

    def where(self) -> str:
        """`model.py:6` of the function; "" where that is not known."""
        code = getattr(inspect.unwrap(self.function), "__code__", None) if self.static and self.function else None
        if code is None:
            return jax_compat.function_source(self.jaxpr)
        return place_of(code.co_filename, str(code.co_firstlineno))  # not of what holds the static arguments

    def name_constants(self, constants: Iterable[Any]) -> None:
        """Looks for the names by which the function knows arrays that it closes over."""
        new = IdentityMap((value, None) for value in constants if value not in self._looked_for)
        if new and self.function is not None:
            self._looked_for.update(new)
            self.constant_names.update(closed_over.names_of(self.function, new))


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static_argnums: Container[int] = frozenset(),
    static_argnames: Iterable[str] = frozenset(),
    note_calls: bool = False,
    afresh: bool = False,
    derivatives: str = "written",
    sure: bool = False,
    note_arguments: bool = False,
) -> Captured:
    """Traces `function` on arrays or `ShapeDtypeStruct`s.

    static_argnums, static_argnames: positions in `args` and names in `kwargs` that are not traced. note_calls: whether
    calls of `jax.vmap` are looked for, which traces mapped functions once more, and the pytrees of loops. afresh: whether
    JAX has traced much of it before, so that it is traced without what it remembers at once. derivatives: which calls of
    `jax.grad` and its like are looked for as well: as in `untrace.decompile`. sure: what looks for calls is known not to
    disturb the function, whose errors are its own. note_arguments: whether what functions are called with is looked at, which
    note_calls does too. Raises CaptureError with JAX's own message below ours.
    """
    args = tuple(args)
    positions = {i for i in range(len(args)) if i in static_argnums}
    static: dict[int | str, Any] = {i: args[i] for i in sorted(positions)}
    static.update({k: kwargs[k] for k in sorted(static_argnames) if k in kwargs})
    dynamic_args = tuple(a for i, a in enumerate(args) if i not in positions)
    dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in static}

    def call(*dynamic: Any, **named: Any) -> Any:
        rest = iter(dynamic)
        whole = [args[i] if i in positions else next(rest) for i in range(len(args))]
        return function(*whole, **named, **{k: v for k, v in static.items() if isinstance(k, str)})

    _check_arguments(function, args, dynamic_args, kwargs, static)
    whole = call if static or not callable(getattr(function, "__call__", None)) else function  # noqa: B004

    asked: set[str] = set()

    def traced() -> Any:
        with jax_compat.intercepted_questions(asked.add):
            return jax.make_jaxpr(whole, return_shape=True)(*dynamic_args, **dynamic_kwargs)

    bodies, checkpoints, calls = Bodies(), Checkpoints(), CallRecords()
    vmaps: Sequence[VmapCall] = ()
    taken: list[str] = []  # derivatives that it asks for
    outermost = derivatives == "called"
    reused: list[Any] | None = None  # what JAX had traced before; None where that is not known
    caches: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @contextlib.contextmanager
    def undisturbed() -> Iterator[None]:
        """Where calls are looked for: an error is not raised, for it may come of that; but where it cannot."""
        try:
            yield
        except Exception as error:
            if sure:
                raise CaptureError(_explain(function, error)) from error

    def traced_afresh() -> bool:
        """Whether the function could be traced without what JAX has traced before, which it does not call again."""
        nonlocal jaxpr, out_example, vmaps, caches, taken
        fresh = jax_compat.fresh_caches()
        with (
            undisturbed(),
            fresh(),
            noted_bodies(bodies),
            calls.noted(),
            noted_checkpoints(checkpoints),
            noted_vmaps() as vmaps,
            noted_derivatives(outermost) as taken,
        ):
            jaxpr, out_example = traced()
            caches = fresh
        return caches is fresh

    def with_calls(refused: Collection[int] = ()) -> Called | None:
        """The function with the derivatives that it calls; None where there are none."""
        with (
            contextlib.suppress(Exception),
            jax_compat.fresh_caches()(),
            noted_bodies(bodies),
            calls.noted(),
            noted_checkpoints(checkpoints),
            noted_vmaps() as vmaps,
            called_derivatives(outermost, tuple(refused), classes_in((args, kwargs, out_example))) as found,
        ):
            jaxpr, _ = traced()
            if found.kept:
                return Called(jaxpr, vmaps, found.kept, found.count, with_calls)
        return None

    jaxpr, out_example = None, None
    if note_arguments and not note_calls:
        fresh = jax_compat.fresh_caches()
        with undisturbed(), fresh(), calls.noted():
            jaxpr, out_example = traced()
            reused, caches = [], fresh
    elif note_calls and afresh and traced_afresh():
        reused = []
    elif note_calls:
        # Where noting fails, or the function itself does, it is traced as it is.
        with (
            undisturbed(),
            noted_bodies(bodies),
            calls.noted(),
            noted_checkpoints(checkpoints),
            noted_vmaps() as vmaps,
            noted_derivatives(outermost) as taken,
            jax_compat.noted_reuse() as old,
        ):
            jaxpr, out_example = traced()
            reused = old
    if reused is None:
        try:
            jaxpr, out_example = traced()
        except Exception as error:  # whatever the user's function raises while it is traced
            raise CaptureError(_explain(function, error)) from error
    if note_calls and caches is contextlib.nullcontext:
        mapped = jax_compat.is_mapped(jaxpr)
        unknown = mapped and (reused is None or any(map(jax_compat.is_mapped, reused)))
        unknown = unknown or reused != [] and has_unknown_checkpoints(jaxpr, checkpoints)
        unknown = unknown or not all(map(bodies.knows, checkpoints.functions()))
        if unknown or has_unknown_loops(jaxpr, bodies):
            traced_afresh()  # where that fails, the calls stay unknown
        elif not mapped:
            vmaps = ()
    unknown = caches is contextlib.nullcontext and (reused is None or any(map(jax_compat.is_differentiated, reused)))
    has_calls = note_calls and derivatives != "written" and (bool(taken) or unknown)
    name = name_of(function)
    if name == "<lambda>":
        name = syntax.lambda_name(getattr(inspect.unwrap(function), "__code__", None), through_any=True) or name
    return Captured(
        jaxpr,
        jaxpr,
        (),
        dynamic_args,
        dynamic_kwargs,
        static,
        out_example,
        str(name),
        jax_compat.transformation(function),
        function=function,
        vmaps=vmaps,
        noted=note_calls and reused is not None,
        keeps_calls=note_calls and derivatives != "written",
        asked_for=len(taken),
        trace_calls=with_calls if has_calls else None,
        bodies=bodies,
        checkpoints=checkpoints,
        caches=caches,
        provenance=Provenance(calls),
        around=function if isinstance(function, Around) else None,
        asked=frozenset(asked),
        asked_all=caches is not contextlib.nullcontext
        or reused is not None
        and all(map(jax_compat.is_library_jaxpr, reused)),
    )


def expand(captured: Captured, keep_primitives: Collection[str] = ()) -> None:
    """Puts what was traced without library primitives, but those in `keep_primitives`, into `captured`."""
    captured.expander = Expander(keep_primitives, one_device=captured.one_device)
    with captured.as_traced():
        captured.expander.perturbed = jax_compat.perturbed_operands(captured.jaxpr)
        traced = jax_compat.without_refs(captured.jaxpr) if captured.leaves_jax else captured.jaxpr
        captured.expanded = captured.expander.closed(traced)
        captured.notes = captured.expander.notes
    captured.name_constants(jax_compat.constants_in(captured.expanded))


def classes_in(tree: Any) -> frozenset[type]:
    """The classes of the nodes of a pytree."""
    found, nodes = set(), [jax.tree.structure(tree)]
    while nodes:
        node = nodes.pop()
        if node.node_data() is not None:
            found.add(node.node_data()[0])
            nodes += node.children()
    return frozenset(found)


def _that_comes_back(captured: Captured, called: Called) -> Called | None:
    """What was captured with as many of its derivatives called as give the very program back."""

    def is_right(some: Called | None) -> bool:
        if some is None:
            return False
        some.jaxpr = captured.expander.closed(some.jaxpr)
        return comes_back(captured, some.jaxpr)

    if is_right(called):
        return called
    if len(called.kept) == 1:
        return None
    right = [n for n in called.kept if is_right(called.without([m for m in called.kept if m != n]))]
    rest = called.without([n for n in called.kept if n not in right]) if right else None
    return rest if is_right(rest) else None


def comes_back(captured: Captured, calls: Any) -> bool:
    """Whether a jaxpr with calls is the program that was captured."""
    try:
        return gives_back(captured.expanded, calls, captured.expander)
    except Exception:  # a pullback that is called elsewhere, rules that cannot be traced by themselves
        return False


def program_of(
    captured: Captured,
    jaxpr: Any,
    name: str,
    signature: Any,
    rules: bool = True,
    is_public: Callable[[Any], bool] = lambda eqn: False,
) -> Program:
    """The Program of what `captured` was expanded to, or of what a rewrite made of that.

    rules: whether it has the derivative rules of the functions that it calls. is_public: of which of them `capture_rest`
    has yet to capture those; see `Importer`.
    """
    importer = Importer(captured.expander, captured.checkpoints, rules, is_public, captured.keeps_calls, captured.noted)
    with captured.as_traced():
        entry = importer.program(jaxpr, name)
    constants = importer.constants
    captured.name_constants(c.value for c in constants)
    for constant in constants:
        constant.hint = captured.constant_names.get(constant.value)
    program = Program(
        entry,
        signature,
        tuple(importer.notes),
        importer.rule_notes,
        numbers=captured.numbers,
        idle=captured.idle,
        provenance=captured.provenance,
        capture_rest=importer.capture_rest,
    )
    note_trees(program, captured.bodies)
    return program


def _check_arguments(
    function: Any, args: Sequence[Any], dynamic: Sequence[Any], kwargs: dict[str, Any], static: dict[Any, Any]
) -> None:
    """Raises CaptureError naming the first argument whose leaves are not arrays, before JAX's own long message."""
    if not callable(function):
        raise CaptureError(f"decompile needs a function, not a {type(function).__name__}: {function!r:.80}")
    named = [(f"argument {i}", a) for i, a in enumerate(args) if i not in static]
    named += [(f"argument {k!r}", v) for k, v in kwargs.items() if k not in static]
    for what, value in named:
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if not jax_compat.is_traceable(leaf):
                place = what + jax.tree_util.keystr(path)
                how = "Pass it as static (static_argnums or static_argnames), or close over it."
                if path:  # a part of an argument cannot be static alone
                    how = (
                        "Take it out of the argument, and put it back inside of a function around this one: with equinox, "
                        "`arrays, rest = eqx.partition(argument, eqx.is_array)`, and `eqx.combine(arrays, rest)` inside."
                    )
                raise CaptureError(
                    f"{place} of {_name(function)} is a {type(leaf).__name__}, which JAX cannot trace. {how}"
                )


def name_of(function: Any) -> str:
    """What a function is called; an object that can be called (a layer, a solver) by its class: `dense_block`; a function
    with some of its arguments (`functools.partial`) as without them."""
    while isinstance(function, functools.partial | Around):
        function = function.function if isinstance(function, Around) else function.func
    return getattr(function, "__name__", None) or snake_case(type(function).__name__)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__


# JAX's errors for a value that is not known while tracing; not all are ConcretizationTypeErrors.
_ABSTRACT = (
    jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError, jax.errors.NonConcreteBooleanIndexError,
)  # fmt: skip


def _explain(function: Any, error: Exception) -> str:
    first = str(error).strip() or type(error).__name__
    hint = ""
    if isinstance(error, _ABSTRACT):
        hint = (
            " It needs a concrete value where JAX has an abstract one: make that argument static "
            "(static_argnums or static_argnames; on the command line --static)."
        )
    place = _user_place(error)
    where = f" ({place})" if place else ""
    return f"{_name(function)} could not be traced by JAX{where}.{hint}\nJAX says ({type(error).__name__}): {first}"


def _user_place(error: Exception) -> str:
    """`model.py:12`, the innermost line of the user's on the way to an error; "" where there is none."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = (os.path.dirname(jax.__file__), ours, "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(libraries)]
    return place_of(frames[-1].filename, frames[-1].lineno or 0) if frames else ""
