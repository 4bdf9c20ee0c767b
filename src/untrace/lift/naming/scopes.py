"""What names of the author's mean, where an expression of his stands: numbers and lists of his module, what a call passes, what a
name of a function is given."""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType

from untrace._identity import IdentityMap
from untrace.ir.said import Number
from untrace.provenance import syntax
from untrace.provenance.arguments import arguments_by_parameter, last_name, own_parameters
from untrace.provenance.frames import Frame


class NoNumber(Exception):
    """An expression that is not made of numbers alone."""


_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))  # each has code of its own


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names of an expression mean: those of a module with these `values`, before a line of its `file`; inside the
    innermost of `frames`, its own. `around`: the frames around those, of a function that JAX traces by itself; `is_around`:
    whether the frames are such."""

    values: Mapping[str, object]
    file: str
    frames: tuple[Frame, ...] = ()
    before: int = sys.maxsize
    around: tuple[Frame, ...] = ()
    is_around: bool = False

    @staticmethod
    def of(frames: tuple[Frame, ...], around: tuple[Frame, ...] = (), is_around: bool = False) -> Scope:
        """That of what the innermost frame runs; the names of a library's modules are no words of the author's."""
        values = {} if frames[-1].library else _globals_of(frames[-1])
        return Scope(values or {}, frames[-1].file, frames, around=around, is_around=is_around)

    def outwards(self, count: int) -> Scope:
        """That of the innermost of the outermost `count` frames."""
        return Scope.of(self.frames[:count], self.around, self.is_around)

    def has_global(self, name: str) -> bool:
        if not self.frames:
            return True
        code = self.frames[-1].code  # attributes are among its names
        inside = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name in _COMPREHENSIONS]
        is_read = any(name in c.co_names for c in (code, *inside))
        return is_read and name not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)

    def is_module(self, name: str, names: Sequence[str]) -> bool:
        """Whether a name is one of these modules."""
        module = self.values.get(name) if self.has_global(name) else None
        return isinstance(module, ModuleType) and module.__name__ in names

    def setting(self, name: str) -> Number | None:
        """The number that a variable has and had before the trace: one that is closed over, or the outermost function's."""
        is_closed_over = bool(self.frames) and name in self.frames[-1].code.co_freevars
        if is_closed_over and (around := self._around()) is not None:
            return around.setting(name)
        if not self.frames or self.frames[-1].library or self._stores(name):
            return None
        is_passed = len(self.frames) == 1 and name in own_parameters(self.frames[0])
        is_passed = is_passed and isinstance(_default(self.frames[0], name), ast.Constant | None)
        return self.frames[-1].settings.number(name) if is_closed_over or is_passed else None

    def _around(self) -> Scope | None:
        """The scope of the function in which the innermost one is defined; None of one that was made before the trace."""
        frames, code = self.frames[:-1], self.frames[-1].code
        places = [place for place, frame in enumerate(frames, 1) if code in frame.code.co_consts]
        if places:
            return self.outwards(places[-1])
        places = [place for place, frame in enumerate(self.around, 1) if code in frame.code.co_consts]
        return Scope.of(self.around[: places[-1]], is_around=True) if places else None

    def property_of(self, node: ast.Attribute) -> ast.expr | None:
        """What a property gives that one class of the module has by this name, of the object that it is asked of; None where it
        is no such one, or more than one expression."""
        of_classes = [vars(k).get(node.attr) for k in self.values.values() if isinstance(k, type)]
        getters = [p.fget for p in of_classes if isinstance(p, property)]
        getters += [p.func for p in of_classes if isinstance(p, functools.cached_property)]
        code = getattr(getters[0], "__code__", None) if len(getters) == 1 else None
        definition = syntax.definition(code) if isinstance(code, CodeType) else None
        match definition:
            case ast.FunctionDef(
                args=ast.arguments(args=[ast.arg(arg=own)]), body=[*told, ast.Return(value=ast.expr() as given)]
            ):
                is_all = len(told) <= 1 and all(isinstance(n, ast.Expr) for n in told)  # but its docstring
                return replaced(given, {own: node.value}) if is_all else None
        return None

    def returned(self, call: ast.expr) -> tuple[ast.expr, Mapping[str, ast.expr], Scope] | None:
        """What a function of this module gives that does nothing but give an expression of its parameters: that, what a call gives
        for these or their defaults, and where it stands; None where a call is of no such function."""
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not self.has_global(call.func.id):
            return None
        function = self.values.get(call.func.id)
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or getattr(function, "__globals__", None) is not self.values:
            return None
        callee = Frame(code, -1, False, IdentityMap())
        match callee.definition:
            case ast.FunctionDef(body=[*told, ast.Return(value=ast.expr() as given)]) if (
                all(isinstance(n, ast.Expr) for n in told)  # its docstring
            ):
                passed = {name: _given_for(name, callee, call) for name in own_parameters(callee)}
                known = {name: part for name, part in passed.items() if part is not None}
                return (given, known, Scope(self.values, code.co_filename)) if len(known) == len(passed) else None
        return None

    def _stores(self, name: str) -> bool:
        """Whether the innermost function gives a name a value, or may do so."""
        definition = self.frames[-1].definition
        return definition is None or name in _stored(definition)

    def held(self, node: ast.expr) -> tuple[object, str]:
        """What an expression of an object's attributes and keys is, and what it is called. Raises NoNumber for another expression."""
        match node:
            case ast.Attribute(value=owner, attr=key):
                outer, name = self.held(owner)
                return _held(outer, key, True), f"{name}_{key}"
            case ast.Subscript(value=owner, slice=ast.Constant(value=str() as key)):
                outer, name = self.held(owner)
                return _held(outer, key, False), f"{name}_{key}"
            case ast.Subscript(value=owner, slice=ast.Constant(value=int() as place)):
                outer, name = self.held(owner)
                within = isinstance(outer, tuple | list) and 0 <= place < len(outer)
                return tuple.__getitem__(tuple(outer), place) if within else None, f"{name}_{place}"
            case ast.Name(id=name) if self.has_global(name):
                found = self.values.get(name)
                return found, (self.frames[-1].settings.name(found) if self.frames else None) or name
            case ast.Name(id=name):
                frame = self.frames[-1] if self.frames else None
                if frame is not None and name in frame.code.co_freevars and (around := self._around()) is not None:
                    return around.held(node)
                if frame is not None and not frame.library and not self._stores(name):
                    found = frame.settings.holder(frame.code, name)
                    if found is not None:
                        return found, frame.settings.name(found) or name
                meaning, scope = self.meaning(name)
                return scope.held(meaning)
        raise NoNumber

    def made(self, node: ast.expr) -> tuple[ast.expr, Scope] | None:
        """The expression by which the module gives a part of a dict, a tuple or a config its value."""
        match node:
            case (
                ast.Attribute(value=ast.Name(id=name), attr=key)
                | ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key))
            ) if self.has_global(name):
                pass
            case _:
                return None
        file = Scope(self.values, self.file)
        match assigned("".join(linecache.getlines(self.file))).get(name):
            case ast.Dict(keys=keys, values=values):
                parts = [v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant) and k.value == key]
            case ast.Call(args=args, keywords=keywords):
                kind = type(self.values.get(name))
                fields = [*getattr(kind, "_fields", getattr(kind, "__dataclass_fields__", ()))]
                given = dict(zip(fields, args, strict=False)) | {k.arg: k.value for k in keywords}
                parts = [given[key]] if key in given else self._in_class(kind, key)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                parts = elements[key : key + 1] if type(key) is int and key >= 0 else []
            case _:
                parts = self._in_class(self.values.get(name), key)
        return (parts[0], file) if len(parts) == 1 else None

    def _in_class(self, kind: object, key: object) -> Sequence[ast.expr]:
        """What the body of a class of this file gives an attribute."""
        name = kind.__qualname__ if isinstance(kind, type) else ""
        return [*_class_body("".join(linecache.getlines(self.file)), name).get(str(key), ())]

    def meaning(self, name: str) -> tuple[ast.expr, Scope]:
        """The expression that gives a name of a function its one value, and where that stands: of a parameter what the call
        gives for it, or its default. Raises NoNumber where there is no such expression."""
        if not self.frames:
            raise NoNumber
        frame, outer = self.frames[-1], self.frames[:-1]
        if name in frame.code.co_freevars:
            around = self._around()
            if around is None:
                raise NoNumber
            return around.meaning(name)
        definition = frame.definition
        if not isinstance(definition, ast.FunctionDef):
            raise NoNumber
        stored = _stored(definition).get(name, ())
        parameters = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)]
        if name not in parameters:
            made = [part for n in _assignments(definition).get(name, ()) for part in _assigned_to(n, stored)]
            if len(stored) != 1 or len(made) != 1 or name in _filled(definition):
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
        if (of_partial := self._of_partial(name)) is not None:
            return of_partial
        given = self.passed(name)
        calls = _calls_of("".join(linecache.getlines(outer[-1].file)), definition.name)
        every = [_given_for(name, frame, each) for each in calls]
        if any(one is None or ast.dump(one) != ast.dump(given) for one in every):
            raise NoNumber  # one function for all of them could not say it
        if given in definition.args.defaults or given in definition.args.kw_defaults:
            return given, file
        scope = self.outwards(len(outer))
        is_of_module = all(scope.has_global(n.id) for n in ast.walk(given) if isinstance(n, ast.Name))
        if len(every) > 1 and not is_of_module and not all(outer[-1].encloses(call) for call in calls):
            raise NoNumber
        return given, scope

    def literal(self, name: str) -> str | None:
        """What a number of the module is called that a function has in a variable, or as a default, and reads at several places:
        `PRESSURE_GAMMA`. None where the variable is no such, for then one place says it."""
        if not self.frames:
            return None
        frame = self.frames[-1]
        if name in frame.code.co_freevars:
            around = self._around()
            return None if around is None else around.literal(name)
        if frame.library or not isinstance(frame.definition, ast.FunctionDef):
            return None
        found = [n for n in ast.walk(frame.definition) if isinstance(n, ast.Name) and n.id == name]
        is_read_again = sum(type(n.ctx) is ast.Load for n in found) > 1
        return f"{frame.definition.name}_{name}" if is_read_again else None

    def meanings(self, name: str) -> list[tuple[ast.expr, Scope]]:
        """What each call in its file, of the functions that were called, gives for a parameter of the innermost function, and
        where that stands. Raises NoNumber where there is no such call, or one of which that is not to be seen."""
        frame = self.frames[-1] if self.frames else None
        if frame is None or frame.library or name not in own_parameters(frame) or self._stores(name):
            raise NoNumber
        found = []
        for call in _calls_of("".join(linecache.getlines(frame.file)), frame.name):
            frames, given = frame.around_call(call), _given_for(name, frame, call)
            if frames and given is None:
                raise NoNumber
            if frames and given is not None:
                found.append((given, Scope.of(frames[-1:], frames[:-1], is_around=True)))
        if not found:
            raise NoNumber
        return found

    def _of_partial(self, name: str) -> tuple[ast.expr, Scope] | None:
        """The same of a parameter that the module fixes: `update = functools.partial(step, rate=RATE)`."""
        call = self.frames[-2].node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        outer = self.outwards(len(self.frames) - 1)
        partial = outer.values.get(call.func.id) if outer.has_global(call.func.id) else None
        if not isinstance(partial, functools.partial) or name not in partial.keywords or call.keywords:
            return None
        made = assigned("".join(linecache.getlines(outer.file))).get(call.func.id)
        given = [k.value for k in made.keywords if k.arg == name] if isinstance(made, ast.Call) else []
        return (given[0], Scope(outer.values, outer.file)) if given else None

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


def replaced(node: ast.expr, others: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with others in the places of names."""

    class Replaced(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return others.get(node.id, node)

    return Replaced().visit(copy.deepcopy(node))


_FILLING = frozenset(("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"))


@functools.lru_cache(maxsize=512)
def _filled(definition: ast.AST) -> frozenset[str]:
    """The names of lists and dicts that a function changes."""
    found = set[str]()
    for node in ast.walk(definition):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _FILLING:
                found.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                found.add(name)
    return frozenset(found)


@functools.lru_cache(maxsize=512)
def _stored(definition: ast.AST) -> Mapping[str, Sequence[ast.Name]]:
    """The names that a function gives values, and where."""
    found: dict[str, list[ast.Name]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and type(node.ctx) is ast.Store:
            found.setdefault(node.id, []).append(node)
    return found


@functools.lru_cache(maxsize=512)
def _assignments(definition: ast.AST) -> Mapping[str, Sequence[ast.Assign]]:
    """The statements that give names values, by these."""
    found: dict[str, list[ast.Assign]] = {}
    for statement in [n for n in ast.walk(definition) if isinstance(n, ast.Assign)]:
        targets = [n for target in statement.targets for n in ast.walk(target)]
        for name in {n.id for n in targets if isinstance(n, ast.Name)}:
            found.setdefault(name, []).append(statement)
    return found


def _assigned_to(statement: ast.Assign, stored: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """What a statement gives a variable: `C[1]` of `a, b = C`."""
    match statement.targets:
        case [ast.Tuple(elts=parts)] if len(stored) == 1 and stored[0] in parts:
            place = parts.index(stored[0])
            if isinstance(statement.value, ast.Tuple | ast.List):
                yield from statement.value.elts[place : place + 1]
            elif isinstance(statement.value, ast.Name):
                yield ast.Subscript(statement.value, ast.Constant(place))
            elif last_name(statement.value) == "shape" and not any(isinstance(part, ast.Starred) for part in parts):
                yield ast.Subscript(statement.value, ast.Constant(place - len(parts)))
        case targets if targets == list(stored):
            yield statement.value


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


# The modules of files, as last seen.
_MODULES: weakref.WeakValueDictionary[str, ModuleType] = weakref.WeakValueDictionary()


def _globals_of(frame: Frame) -> Mapping[str, object] | None:
    """What the names of a module mean; None for code of no module that Python knows."""
    module = _MODULES.get(frame.file)
    if module is None or sys.modules.get(module.__name__) is not module:
        modules = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
        module = next((m for m in modules if getattr(m, "__file__", None) == frame.file), None)
        if module is None:
            return None
        _MODULES[frame.file] = module
    return vars(module)


def _held(settings: object, key: str, is_attribute: bool) -> object:
    """What a dict, a class, or an object with no code of its own for it, has under a name; None where that is not to be seen."""
    if not is_attribute:
        return settings.get(key) if type(settings) is dict else None
    classes = settings.__mro__ if isinstance(settings, type) else type(settings).__mro__
    of_class = next((vars(c)[key] for c in classes if key in vars(c)), None)
    if isinstance(settings, type):
        return of_class
    if isinstance(settings, tuple):
        fields = getattr(type(settings), "_fields", ())
        return tuple.__getitem__(settings, fields.index(key)) if key in fields else None
    return getattr(settings, "__dict__", {}).get(key, of_class)


@functools.lru_cache(maxsize=16)
def assigned(source: str) -> Mapping[str, ast.expr]:
    """The expressions that names are given at the top of a module, of those that are given one once."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for name in [t.id for t in targets if isinstance(t, ast.Name)]:
            value = getattr(statement, "value", None)
            found.setdefault(name, []).extend([] if value is None else [value])
    return {name: values[0] for name, values in found.items() if len(values) == 1}


@functools.lru_cache(maxsize=64)
def _class_body(source: str, name: str) -> Mapping[str, Sequence[ast.expr]]:
    """The expressions that a class at the top of a module gives its attributes."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for statement in [s for c in body if isinstance(c, ast.ClassDef) and c.name == name for s in c.body]:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
                found.setdefault(key, []).append(value)
            case ast.Assign(targets=[ast.Name(id=key)], value=value):
                found.setdefault(key, []).append(value)
    return found
