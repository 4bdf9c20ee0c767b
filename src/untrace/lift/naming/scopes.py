"""What names of the author's mean, where an expression of his stands: numbers and lists of his module, what a call passes, what a
name of a function is given."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from untrace.provenance import syntax
from untrace.provenance.arguments import arguments_by_parameter, last_name
from untrace.provenance.sites import Frame


class NoNumber(Exception):
    """An expression that is not made of numbers alone."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names of an expression mean: those of a module with these `values`, before a line of its `file`; inside the
    innermost of `frames`, its own."""

    values: Mapping[str, object]
    file: str
    frames: tuple[Frame, ...] = ()
    before: int = sys.maxsize

    @staticmethod
    def of(frames: tuple[Frame, ...]) -> Scope:
        """That of what the innermost frame runs; the names of a library's modules are no words of the author's."""
        values = {} if frames[-1].library else _globals_of(frames[-1])
        return Scope(values or {}, frames[-1].file, frames)

    def has_global(self, name: str) -> bool:
        if not self.frames:
            return True
        code = self.frames[-1].code  # attributes are among its names
        return name in code.co_names and name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)

    def meaning(self, name: str) -> tuple[ast.expr, Scope]:
        """The expression that gives a name of a function its one value, and where that stands: of a parameter what the call
        gives for it, or its default. Raises NoNumber where there is no such expression."""
        if not self.frames:
            raise NoNumber
        frame, outer = self.frames[-1], self.frames[:-1]
        if name in frame.code.co_freevars:
            for place in reversed(range(len(outer))):
                if frame.code in outer[place].code.co_consts:
                    return Scope.of(outer[: place + 1]).meaning(name)
            raise NoNumber
        definition = frame.definition
        if not isinstance(definition, ast.FunctionDef):
            raise NoNumber
        stored = [
            n for n in ast.walk(definition) if isinstance(n, ast.Name) and n.id == name and type(n.ctx) is ast.Store
        ]
        parameters = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)]
        if name not in parameters:
            made = [n.value for n in ast.walk(definition) if isinstance(n, ast.Assign) and n.targets == stored]
            if len(stored) != 1 or len(made) != 1:
                raise NoNumber
            return made[0], self
        if stored:
            raise NoNumber
        file = Scope(self.values, self.file)
        if not outer:  # nobody of the author's calls it
            default = _default(frame, name)
            if default is None:
                raise NoNumber
            return default, file
        given = self.passed(name)
        calls = _calls_of("".join(linecache.getlines(outer[-1].file)), definition.name)
        every = [_given_for(name, frame, each) for each in calls]
        if any(one is None or ast.dump(one) != ast.dump(given) for one in every):
            raise NoNumber  # one function for all of them could not say it
        if given in definition.args.defaults or given in definition.args.kw_defaults:
            return given, file
        scope = Scope.of(outer)
        if len(every) > 1 and not all(scope.has_global(n.id) for n in ast.walk(given) if isinstance(n, ast.Name)):
            raise NoNumber
        return given, scope

    def is_of_a_turn(self, name: str) -> bool:
        """Whether a loop around what runs gives a name its values."""
        frame = self.frames[-1] if self.frames else None
        loops = syntax.loops_around(frame.code, frame.line) if frame is not None and frame.line else ()
        return any(isinstance(n, ast.Name) and n.id == name for loop in loops for n in ast.walk(loop.target))

    def passed(self, name: str) -> ast.expr:
        """What the call of the innermost function gives for a parameter, or its default; that is an expression of the function
        around it. Raises NoNumber where that is not to be seen."""
        frame, caller = self.frames[-1], self.frames[-2] if len(self.frames) > 1 else None
        call = caller.node if caller is not None else None
        if not isinstance(call, ast.Call) or last_name(call.func) != getattr(frame.definition, "name", ""):
            raise NoNumber
        given = _given_for(name, frame, call)
        if given is None:
            raise NoNumber
        return given


def _given_for(name: str, callee: Frame, call: ast.Call) -> ast.expr | None:
    """What a call gives for a parameter, or its default; None where that is not to be seen."""
    given = arguments_by_parameter(call, callee).get(name)
    is_open = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    return given if given is not None or is_open else _default(callee, name)


def _default(callee: Frame, name: str) -> ast.expr | None:
    definition = callee.definition
    if not isinstance(definition, ast.FunctionDef):
        return None
    args = definition.args
    places = [a.arg for a in (*args.posonlyargs, *args.args)]
    defaults = dict(zip(places[::-1], args.defaults[::-1], strict=False))
    return {**defaults, **{a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)}}.get(name)


@functools.lru_cache(maxsize=64)
def _calls_of(source: str, function: str) -> Sequence[ast.Call]:
    """The calls of what has this name in a file."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return ()
    return [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == function]


def _globals_of(frame: Frame) -> Mapping[str, object] | None:
    """What the names of a module mean; None for code of no module that Python knows."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == frame.file:
            return vars(module)
    return None
