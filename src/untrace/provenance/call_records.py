"""What the author's functions were called with, seen while they were traced.

A jaxpr keeps no calls, and the frames of its equations say where a function was entered, not with what. So each time JAX
asks where an equation is made, the frames of Python's stack are looked at: a function whose frame was not there before
has just been called, and its variables still are its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import warnings
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._identifiers import snake_case
from untrace._identity import IdentityMap
from untrace._trees import is_namedtuple, is_simple
from untrace.provenance.whose import kind_of_code

Steps = tuple[tuple[str, Hashable], ...]

_PLAIN = (np.generic, bool, int, float, complex, str, bytes)


@dataclass(frozen=True, slots=True)
class Access:
    """What the author's function has a value as: its parameter `root`, or the part of it to which the steps lead.

    A step is ("item", the key) or ("attribute", the name). exact: False for something below that part.
    """

    root: str
    steps: tuple[tuple[str, Hashable], ...] = ()
    exact: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether it is the parameter itself."""
        return self.exact and not self.steps


@dataclass(frozen=True, slots=True, eq=False)
class CallRecord:
    """One call of a function: of `code`, from inside of `caller`, at its instruction `place`; None of the outermost."""

    code: CodeType
    caller: CallRecord | None
    place: int = -1
    variables: dict[Any, Access] = field(default_factory=dict)
    """What it had the variables of the jaxpr as that was traced."""
    makers: IdentityMap[Any, list[Access]] = field(default_factory=IdentityMap)
    """What it had the values as that equations with these tracebacks had made."""
    trees: dict[str, jax.tree_util.PyTreeDef] = field(default_factory=dict)
    """The structures of its arguments that are trees of traced arrays and nothing else."""
    numbers: dict[str, int | float] = field(default_factory=dict)
    """Its arguments that are plain numbers."""
    settings: set[str] = field(default_factory=set)
    """The parameters that no traced array is in."""
    opaque: set[str] = field(default_factory=set)
    """The parameters that hold more than traced arrays and plain data: an array, a function, an object that is no pytree."""
    functions: set[str] = field(default_factory=set)
    """Those that are functions: what these close over is no argument."""

    def note(self, name: str, argument: Any) -> None:
        """Notes the leaves of an argument that are being traced, or that it is a number."""
        if type(argument) in (int, float):
            self.numbers[name] = argument
        if isinstance(argument, FunctionType):
            self.functions.add(name)
        leaves = jax.tree_util.tree_leaves_with_path(argument)
        if not any(jax_compat.is_tracer(leaf) for _, leaf in leaves):
            self.settings.add(name)
        if len(leaves) > 1 and is_simple(argument) and all(jax_compat.is_tracer(leaf) for _, leaf in leaves):
            self.trees[name] = jax.tree.structure(argument)
        for path, leaf in leaves:
            if not jax_compat.is_tracer(leaf):
                if not isinstance(leaf, _PLAIN):
                    self.opaque.add(name)
                continue
            steps = _steps(path)
            access = Access(name, steps, len(steps) == len(path))
            variable, traceback = jax_compat.origin_of(leaf)
            if variable is not None:
                self.variables.setdefault(variable, access)
            elif traceback is None:
                self.opaque.add(name)
            if traceback is not None:
                self.makers.setdefault(traceback, []).append(access)

    def accesses(
        self, origins: Sequence[tuple[Any, Any]], own: Container[str], read: Sequence[Access | None]
    ) -> list[Access | None]:
        """What the call had values as, of which the variables and the tracebacks of their makers are known.

        own: the parameters that count. read: the same as the source says it, for values that a rewrite made anew.
        """
        found = [self.variables.get(variable) for variable, _ in origins]
        made = [traceback for _, traceback in origins]
        for place, traceback in enumerate(made):
            several = self.makers.get(traceback, [])
            if found[place] is None and len(several) == 1 and sum(other is traceback for other in made) == 1:
                found[place] = several[0]
        roots = {access.root for access in {*self._every()}.difference(found)} | self.opaque
        said = [seen if seen is not None and seen.root in own else None for seen in found]
        return [
            other if other is not None and (other.root in roots if seen is None else _tells_more(other, seen)) else seen
            for seen, other in zip(said, read, strict=True)
        ]

    def may_hold(self, name: str) -> bool:
        """Whether traced arrays may be in what a parameter was passed."""
        is_open = name in self.opaque and name not in self.functions
        return is_open or any(access.root == name for access in self._every())

    def _every(self) -> Iterator[Access]:
        return itertools.chain(self.variables.values(), *self.makers.values())

    def whole(self, accesses: Sequence[Access | None]) -> Iterator[tuple[str, jax.tree_util.PyTreeDef, list[int]]]:
        """(a parameter, the structure of the tree that it was, the places of its leaves) where each leaf is one of these."""
        for name, structure in self.trees.items():
            numbered = structure.unflatten(range(structure.num_leaves))
            ways = [Access(name, _steps(path)) for path, _ in jax.tree_util.tree_leaves_with_path(numbered)]
            place_of = {a: place for place, a in enumerate(accesses) if a is not None and a.root == name}
            is_all = sum(a is not None and a.root == name for a in accesses) == len(ways)
            if is_all and place_of.keys() == set(ways):
                yield name, structure, [place_of[way] for way in ways]


class Settings:
    """What the author's functions had that is no data and was there before the trace: objects that hold numbers (a config, or
    what a method is of), and numbers that functions close over. By the name of the parameter or of the variable."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self._several: set[str] = set()  # names of more than one of them
        self._names: IdentityMap[object, str] = IdentityMap()  # of objects, those of the module first
        self._codes: dict[str, IdentityMap[CodeType, None]] = {}  # of functions that were called, by their files

    def note(self, code: CodeType, name: str, value: object, module: Mapping[str, object]) -> None:
        """Notes what a function's variable has. `module`: what the names of its module mean."""
        is_number = type(value) in (int, float)
        if not is_number and not _holds_values(value):
            return
        known = self._values.setdefault(_key(code, name), value)
        if known is not value and not (is_number and type(known) is type(value) and known == value):
            self._several.add(_key(code, name))
        if not is_number and value not in self._names:
            named = (n for n, v in module.items() if v is value)
            self._names[value] = next(named, snake_case(type(value).__name__) if name == "self" else name)

    def note_called(self, code: CodeType) -> None:
        """Notes a function of the author's that was called."""
        self._codes.setdefault(code.co_filename, IdentityMap())[code] = None

    def codes_at(self, file: str, line: int) -> list[CodeType]:
        """The functions that were called in which a line stands, the innermost last."""
        found = [code for code in self._codes.get(file, ()) if code.co_firstlineno <= line <= last_line(code)]
        return sorted(found, key=lambda code: last_line(code) - code.co_firstlineno, reverse=True)

    def number(self, name: str) -> int | float | None:
        """The one number that a variable had."""
        found = None if name in self._several else self._values.get(name)
        return found if isinstance(found, int | float) and type(found) is not bool else None

    def holder(self, code: CodeType, name: str) -> object:
        """The one object that a function has as its parameter, or closes over; None where there were several."""
        is_own = name in (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_freevars)
        key = _key(code, name)
        found = self._values.get(key) if is_own and key not in self._several else None
        return None if type(found) in (int, float) else found

    def name(self, holder: object) -> str | None:
        """What an object is called wherever it is used."""
        return self._names.get(holder)


def last_line(code: CodeType) -> int:
    """The last line of a function."""
    return max(line for *_, line in code.co_lines() if line is not None)


def _key(code: CodeType, name: str) -> str:
    return code.co_qualname.rpartition(".")[0] + ".self" if name == "self" else name


class CallRecords:
    """The calls that were seen, by what was made in them."""

    def __init__(self) -> None:
        self._innermost: IdentityMap[Any, CallRecord] = IdentityMap()
        self.settings = Settings()

    def find(self, traceback: Any, code: CodeType) -> CallRecord | None:
        """The call of the function of `code` in which the equation was made that has this traceback."""
        record = self._innermost.get(traceback)
        while record is not None and record.code is not code:
            record = record.caller
        return record

    def around(self, traceback: Any) -> list[CallRecord]:
        """The calls in which the equation was made that has this traceback, outermost first; [] where none were seen."""
        found, record = [], self._innermost.get(traceback)
        while record is not None:
            found.append(record)
            record = record.caller
        return found[::-1]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While the context is open, the calls of functions that are traced are noted."""
        if jax_compat.looks_for_leaks():  # for what was called last is held until something else is
            yield
            return
        recorder = _Recorder(self._innermost, self.settings, sys._getframe(2))
        with jax_compat.intercepted_sources(recorder.see):
            yield


class _Recorder:
    """Follows Python's stack from one equation to the next, as far as the frame that asks for the trace."""

    def __init__(self, innermost: IdentityMap[Any, CallRecord], settings: Settings, outermost: FrameType):
        self._innermost = innermost
        self._settings = settings
        self._outermost = outermost
        self._stack: list[tuple[FrameType, CallRecord]] = []  # of functions that are being traced, outermost first
        self._places: IdentityMap[FrameType, int] = IdentityMap()  # in the stack
        self._kinds: dict[str, str] = {}  # of files, by what the first code of each is
        self._is_looking = False

    def see(self, traceback: Any) -> None:
        """Notes the functions that were entered since it was last called. `traceback`: that of an equation being made."""
        if self._is_looking:  # a class of the author's whose leaves are asked for computes something
            return
        self._is_looking = True
        try:
            self._follow(sys._getframe(2))
        finally:
            self._is_looking = False
        if self._stack and traceback is not None:
            self._innermost.setdefault(traceback, self._stack[-1][1])

    def _follow(self, frame: FrameType | None) -> None:
        entered: list[FrameType] = []
        depth = 0
        while frame is not None and frame is not self._outermost:
            place = self._places.get(frame)
            if place is not None:
                depth = place + 1
                break
            kind = self._kinds.get(frame.f_code.co_filename)
            if kind is None:
                kind = self._kinds[frame.f_code.co_filename] = kind_of_code(frame.f_code)
            if kind in ("user", "library"):
                entered.append(frame)
            frame = frame.f_back
        for left, _ in self._stack[depth:]:
            del self._places[left]
        del self._stack[depth:]
        for one in reversed(entered):
            around = self._stack[-1] if self._stack else None
            record = CallRecord(one.f_code, around and around[1], around[0].f_lasti if around else -1)
            names = one.f_code.co_varnames[: one.f_code.co_argcount + one.f_code.co_kwonlyargcount]
            variables = one.f_locals
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of iterators, which are no pytrees
                for name in names:
                    try:
                        record.note(name, variables.get(name))
                    except (
                        Exception
                    ):  # a class of the author's says what its leaves are: the trace must not fail for it
                        record.opaque.add(name)
            if self._kinds[one.f_code.co_filename] == "user":
                self._note_settings(one, record, variables)
            self._places[one] = len(self._stack)
            self._stack.append((one, record))

    def _note_settings(self, frame: FrameType, record: CallRecord, variables: Mapping[str, object]) -> None:
        code = frame.f_code
        self._settings.note_called(code)
        for name in code.co_freevars:
            if name in variables and all(code not in one.f_code.co_consts for one, _ in self._stack):
                self._settings.note(code, name, variables[name], frame.f_globals)
        for name in record.settings:
            value = variables.get(name)  # a parameter that was deleted has none
            if type(value) not in (int, float) or record.caller is None:
                self._settings.note(code, name, value, frame.f_globals)


def _holds_values(value: object) -> bool:
    """Whether an object may be a config: a dict, a named tuple, or one with attributes of its own."""
    if type(value) is dict or is_namedtuple(value):
        return True
    kind = type(value)  # of the object itself nothing is asked: its properties are the author's code
    has_own = getattr(kind, "__dictoffset__", 0) != 0 or hasattr(kind, "__slots__")
    is_other = issubclass(kind, (type, ModuleType, FunctionType, functools.partial))
    is_other = is_other or inspect.getattr_static(kind, "shape", None) is not None
    return has_own and not is_other


def _tells_more(read: Access, seen: Access) -> bool:
    """Whether the source has the whole way to a leaf of a class that is no pytree of names."""
    return read.exact and not seen.exact and read.root == seen.root


def _steps(path: tuple[Any, ...]) -> Steps:
    """The way to a leaf, as far as it has a spelling in Python."""
    found: list[tuple[str, Hashable]] = []
    for key in path:
        match key:
            case jax.tree_util.DictKey(key=name):
                found.append(("item", name))
            case jax.tree_util.SequenceKey(idx=place):
                found.append(("item", place))
            case jax.tree_util.GetAttrKey(name=name):
                found.append(("attribute", name))
            case _:
                break
    return tuple(found)
