"""Where an equation came from: the user's frames, expressions and statements behind it.

    Frame    one call on the stack: code object, instruction, exact line and column range, and the AST node there
    Site     the frames of one equation from the traced function inwards, the library function entered below them,
             name scopes, and whether it belongs to a forward or a backward pass
    Target   a name that the author bound the value of an expression to

JAX cuts its tracebacks at the function being traced, so a loop body's frames start at the body. Frames of JAX, NumPy,
Python and untrace are cut out; those of third-party libraries stay, marked `library`. Source may be missing (REPL,
`exec`) or have changed since: then `Frame.node` is None and there are no targets. Nothing here raises.
"""

from __future__ import annotations

import ast
import copy
import dis
import operator
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any

from untrace import jax_compat
from untrace._identity import IdentityMap
from untrace._places import place_of
from untrace.provenance import bytecode, syntax
from untrace.provenance.call_records import CallRecords
from untrace.provenance.frames import Climb, Frame, Position, Target
from untrace.provenance.returns import Field, changes_tree, makes_tree, name_called
from untrace.provenance.whose import INSIDE, NAMING, kind_of_code, tells

_UNKNOWN = ("unknown", "", None)


class Site:
    """Where one equation came from.

    `frames`: outermost to innermost, the user's and those of third-party libraries. `scopes`: the entries of the name
    stack as strings, transformations written `jvp()`. `phase`: "backward" below a transposition, else "forward".
    `around`: the frames around those, of the functions in which what JAX traces by itself (the body of a loop) was called.
    """

    __slots__ = (
        "frames", "scopes", "phase", "differentiated", "by_jvp", "through", "below", "user_frames", "around", "_library",
    )  # fmt: skip

    def __init__(self, frames: tuple[Frame, ...], below: tuple[tuple[CodeType, int], ...], scopes: tuple[str, ...], by_jvp: bool,
                 through: Mapping[int, str] = MappingProxyType({}), around: tuple[Frame, ...] = ()):  # fmt: skip
        self.frames = frames
        self.around = around
        self.user_frames = tuple([f for f in frames if not f.library])
        self.through = through  # {place of a frame: what JAX does with the value of its call before giving it back}
        self.scopes = scopes
        self.differentiated = "jvp()" in scopes
        self.phase = "backward" if "transpose()" in scopes else "forward"
        self.by_jvp = by_jvp and self.differentiated  # primals and tangents were traced together
        self.below = below  # (code, instruction) of JAX's own functions below the innermost frame, outermost first
        self._library: Any = False

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the user's own code; where there is none, the innermost of a library."""
        for frame in reversed(self.frames):
            if not frame.library:
                return frame
        return self.frames[-1] if self.frames else None

    @property
    def library(self) -> tuple[str, str] | None:
        """The first public function of JAX entered below the innermost frame, as ("jax.numpy", "mean").

        An operator is ("operator", "add"), a method or property of an array ("method", "sum").
        """
        if self._library is False:
            self._library = _library_function([code for code, _ in self.below], self.frames)
        return self._library

    @property
    def line(self) -> str:
        """`file.py:12` of the user's statement; "" where there is none."""
        frame = self.frame
        return place_of(frame.file, frame.line) if frame is not None else ""

    def __repr__(self) -> str:
        return f"Site({list(self.frames)}, {self.phase}, {'/'.join(self.scopes)})"


def is_in_loop(frames: Sequence[Frame]) -> bool:
    """Whether a `for` of one of the user's functions is around what has these frames."""
    return any(not f.library and f.line is not None and syntax.loops_around(f.code, f.line) for f in frames)


NOWHERE = Site((), (), (), False)


# The last: how many frames are inside of what JAX traced.
_Chain = tuple[tuple[Frame, ...], tuple[tuple[CodeType, int], ...], bool, Mapping[int, str], int]


class Provenance:
    """Reads sites; caches per traceback, which equal calls share. One for a Program: it keeps code objects alive.

    `calls`: those of the author's functions that were seen while the program was traced.
    """

    def __init__(self, calls: CallRecords | None = None) -> None:
        self.calls = calls or CallRecords()
        self._chains: dict[Any, _Chain] = {}
        self._sites: dict[Any, Site] = {None: NOWHERE}  # by equation: every pass asks for them
        self._by_key: dict[Any, Site] = {}
        self._scopes: dict[Any, tuple[str, ...]] = {}
        # Code objects compare by content, which is slow.
        self._kinds: IdentityMap[CodeType, str] = IdentityMap()
        self._frames: IdentityMap[CodeType, dict[int, Frame]] = IdentityMap()
        self._fates: IdentityMap[CodeType, dict[int, tuple[str, str, bool | None]]] = IdentityMap()
        self._positions: IdentityMap[CodeType, Sequence[Position]] = IdentityMap()

    def shared(self) -> Provenance:
        """Another one that knows what this one has read, and what it reads later, but for what is shortened."""
        made = copy.copy(self)
        made._sites = {None: NOWHERE}
        return made

    def shorten(self, eqn: Any, depth: int) -> None:
        """Says of an equation that it was made in the function of the outermost `depth` frames, not inside its call."""
        site = self.site(eqn)
        self._sites[eqn] = Site(site.frames[:depth], (), site.scopes, site.by_jvp)

    def site(self, eqn: Any) -> Site:
        """The Site of a jaxpr equation; NOWHERE for None and for equations without source information."""
        found = self._sites.get(eqn)
        if found is None:
            found = self._sites[eqn] = self._site(eqn)
        return found

    def _site(self, eqn: Any) -> Site:
        traceback, stack = jax_compat.equation_source(eqn)
        key = (traceback, stack)
        found = self._by_key.get(key)
        if found is None:
            frames, below, by_jvp, through, _ = self._chain(traceback)
            scopes = self._scopes.get(stack)
            if scopes is None:
                scopes = self._scopes[stack] = jax_compat.scope_names(stack)
            found = self._by_key[key] = Site(frames, below, scopes, by_jvp, through, self._around(traceback, frames))
        return found

    def _around(self, traceback: Any, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The frames around those of a traceback, as the calls were seen."""
        records = self.calls.around(traceback)
        count = len(records) - len(frames)
        if count <= 0 or any(r.code is not f.code for r, f in zip(records[count:], frames, strict=True)):
            return ()
        return tuple(
            [
                self._frame(record.code, inner.place, self.kind(record.code) == "library")
                for record, inner in zip(records[:count], records[1:], strict=False)
            ]
        )

    def _chain(self, traceback: Any) -> _Chain:
        found = self._chains.get(traceback)
        if found is None:
            found = self._chains[traceback] = self._read(traceback)
        return found

    def _read(self, traceback: Any) -> _Chain:
        codes, offsets = jax_compat.raw_frames(traceback)
        kinds = self._kinds
        frames: list[Frame] = []
        below: list[tuple[CodeType, int]] = []
        by_jvp = False
        wrapper = ""
        wrapped: list[str] = []
        depth = len(codes)
        outwards = iter(offsets)
        for code, lasti in zip(codes, outwards, strict=True):  # innermost first
            kind = kinds.get(code) or self.kind(code)
            if kind == "jax":  # most of them
                if not frames:
                    below.append((code, lasti))
            elif kind in INSIDE:
                by_jvp = by_jvp or kind == "jvp"
                if not frames:
                    below.append((code, lasti))
                elif kind in ("value", "drop"):  # the outermost counts: `grad` calls `value_and_grad` calls `vjp`
                    wrapper = kind
            elif kind == "entry":
                depth -= operator.length_hint(outwards) + 1
                break
            elif kind != "cut":
                frames.append(self._frame(code, lasti, kind == "library"))
                wrapped.append(wrapper)
                wrapper = ""
        frames.reverse()
        below.reverse()
        wrapped.reverse()
        through = {i: w for i, w in enumerate(wrapped) if w}
        return tuple(frames), tuple(below), by_jvp, through, depth

    def raw_frames(self, traceback: Any) -> list[tuple[CodeType, int]]:
        """(code, instruction) of all frames of a traceback from the traced function inwards, JAX's own among them."""
        depth = self._chain(traceback)[-1]
        codes, offsets = jax_compat.raw_frames(traceback)
        return list(zip(codes[:depth], offsets[:depth], strict=True))[::-1]

    def library_name(self, eqn: Any) -> str | None:
        """What JAX's own functions call the value of an equation inside them: `shifted` in `log_softmax`; None where they
        have no word for it that tells anything."""
        _, below, *_ = self._chain(jax_compat.inner_traceback(eqn))
        path: tuple[int | str, ...] = ()
        for code, lasti in reversed(below):
            if not code.co_filename.startswith(NAMING):
                continue
            kind, name, goes_out = self._fate(code, lasti) if not path or path[0] == "*" else _UNKNOWN
            if kind == "element":
                path = ("*", *path)
                continue
            if kind == "bound":  # one of several elements gets no name
                if not path and tells(name):
                    return name
                goes_out = goes_out if not path else False
            if goes_out:
                continue
            if goes_out is not None:
                return None
            climb = climbed(self._frame(code, lasti, True), path)
            for target in climb.targets:
                if target.kind == "assign" and not target.path and tells(target.name):
                    return target.name
            if not climb.returned:
                return None
            path = climb.path
        return None

    def _fate(self, code: CodeType, lasti: int) -> tuple[str, str, bool | None]:
        """`bytecode.fate` of a value, and whether its function returns it; None where that is not certain."""
        of_code = self._fates.setdefault(code, {})
        found = of_code.get(lasti)
        if found is None:
            kind, name = bytecode.fate(code, lasti)
            goes_out = {"returned": True, "used": False}.get(kind)
            if kind == "bound" and not tells(name):
                goes_out = bytecode.is_returned(code, name, lasti)
            found = of_code[lasti] = kind, name, goes_out
        return found

    def kind(self, code: CodeType) -> str:
        """Whose code it is, see `kind_of_code`; "user" and "library" are the kinds that Frames are made of."""
        found = self._kinds.get(code)
        if found is None:
            found = self._kinds[code] = kind_of_code(code)
        return found

    def _frame(self, code: CodeType, lasti: int, library: bool) -> Frame:
        of_code = self._frames.setdefault(code, {})
        found = of_code.get(lasti)
        if found is None:
            found = of_code[lasti] = Frame(code, lasti, library, self._positions, self.calls.settings)
        return found


# ---------------------------------------------------------------- which library function


def _library_function(below: Sequence[CodeType], frames: Sequence[Frame]) -> tuple[str, str] | None:
    public = jax_compat.public_functions()
    for code in below:
        found = public.get(code)
        if found is not None:
            return found
        kind = jax_compat.array_operation(code)
        if kind is not None:
            return kind
    # A jitted function is entered through C++, and ufuncs through one `__call__`: the user's own words say which.
    node = frames[-1].node if frames else None
    return jax_compat.public_function_named(syntax.dotted(node.func)) if isinstance(node, ast.Call) else None


# ---------------------------------------------------------------- names


def targets(site: Site) -> tuple[Target, ...]:
    """Names for the value of the innermost expression of `site`, the author's own before weaker hints.

    Where the expression is what its function returns, the caller's expression is the call, and its names follow, each
    frame further out. The innermost names come first; strong ones before weak ones, and the user's before a library's.
    """
    found = [t for _, ts in _targets_by_frame(site) for t in ts]
    return tuple(sorted(found, key=lambda t: (not t.strong, t.library)))


def names_by_part(site: Site) -> dict[tuple[int | str, ...], Target]:
    """The name that each part of the value of `site` is bound to: the author's rather than a library's."""
    return {t.path: t for t in reversed(targets(site)) if t.strong}


def _targets_by_frame(site: Site) -> Iterator[tuple[int, list[Target]]]:
    """(place of a frame, the names that the value gets there), innermost first."""
    path: tuple[int | str, ...] = ()
    for place in range(len(site.frames) - 1, -1, -1):
        frame = site.frames[place]
        through = site.through.get(place)
        if through == "drop":
            break
        if through == "value":
            path = (0, *path)
        climb = climbed(frame, path)
        yield place, [t._replace(library=True) for t in climb.targets] if frame.library else climb.targets
        if not climb.returned:
            break
        path = climb.path


def binds_again(before: Site, site: Site, name: str) -> bool:
    """Whether the expression of `site` is bound to the variable `name` that the one of `before` was bound to, further
    down in the same call of a function."""
    places = []
    for one in (before, site):
        found = (place for place, names in _targets_by_frame(one) if any(t.strong and t.name == name for t in names))
        places.append(next(found, -1))
    place = places[0]
    if place < 0 or places[1] != place or before.frames[:place] != site.frames[:place]:
        return False
    old, new = before.frames[place], site.frames[place]
    return old.code is new.code and bool(old.line and new.line) and old.line < new.line


def climbed(frame: Frame, path: tuple[int | str, ...] = ()) -> Climb:
    """What becomes of the value (of the part `path` of it) that `frame` is computing; see Climb."""
    if path:
        return _climb(frame, path)
    if frame._targets is None:
        frame._targets = _climb(frame, ())
    return frame._targets


def _climb(frame: Frame, path: tuple[int | str, ...]) -> Climb:
    try:
        node = frame.node
        return Climb([], False, ()) if node is None else _climb_node(frame, node, path)
    except (RecursionError, AttributeError, TypeError):  # an AST of a Python that we do not know
        return Climb([], False, ())


def _climb_node(frame: Frame, node: ast.AST, path: tuple[int | str, ...]) -> Climb:
    found: list[Target] = []

    def done(*more: Target) -> Climb:
        # A name that is returned at the end: what the caller calls it comes after the name itself.
        for target in more:
            if target.kind == "container" or target.kind == "assign" and not target.path:
                place = syntax.returned(frame.code, target.name, node)
                if place is not None:
                    return Climb([*found, *more], True, (*place, *target.path))
        return Climb([*found, *more], False, ())

    if isinstance(node, ast.AugAssign):
        return done(*_bound(node.target, path))
    if isinstance(getattr(node, "ctx", None), ast.Store):  # `first, second = array` unpacks at the targets
        return done(*_bound(node, path))
    while True:
        parent, field, index = syntax.parent(frame.code, node)
        match parent:
            case ast.Assign():
                return done(*[t for target in parent.targets for t in _bound(target, path)])
            case ast.AnnAssign():
                return done(*_bound(parent.target, path))
            case ast.NamedExpr():
                return done(*_bound(parent.target, path))
            case ast.For() | ast.comprehension() if field == "iter" and (path or _iterates(frame)):
                return done(*(t._replace(kind="for") for t in _bound(parent.target, path[1:])))
            case ast.Return():
                name = frame.name
                plain = not name.startswith(("<", "__")) and name not in ("forward", "call") and not path
                return Climb([*found, *([Target(name, path, "return")] if plain else [])], True, path)
            case ast.Lambda() if field == "body":
                return Climb(found, True, path)
            case ast.Tuple() | ast.List():
                path = (index, *path)
            case ast.Dict() if field == "values":
                key = parent.keys[index]
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append(Target(key.value, path, "key"))
                    path = (key.value, *path)
                else:
                    path = ("?", *path)
            case ast.IfExp() if field != "test":
                pass
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() if field == "elt":
                path = ("*", *path)
                if parent in syntax.roots(frame.code):  # before 3.12 a comprehension is a function of its own
                    return Climb(found, True, path)
            case ast.Subscript() if field == "value" and path and _constant(parent.slice) == _place(path[0]):
                path = path[1:]
            case ast.keyword() if parent.arg:
                found.append(Target(parent.arg, path, "keyword"))
                around = syntax.parent(frame.code, parent)[0]
                if not isinstance(around, ast.Call):
                    return done()
                if makes_tree(around, syntax.classes_of(frame.code)):
                    place = len(around.args) + around.keywords.index(parent)
                    path = (Field(place, name_called(around), parent.arg), *path)
                elif changes_tree(around):
                    path = (Field(around.keywords.index(parent), "", parent.arg), *path)
                else:
                    return done()
                parent = around
            case ast.Call() if field == "args":
                name = syntax.parameter(frame.code, parent, index)
                if makes_tree(parent, syntax.classes_of(frame.code)):
                    found.extend([Target(name, path, "argument")] if name else [])
                    path = (Field(index, name_called(parent)), *path)
                elif isinstance(parent.func, ast.Name) and parent.func.id in ("tuple", "list") and index == 0:
                    pass
                else:
                    return done(*([Target(name, path, "argument")] if name else []))
            case _:
                return done()
        node = parent


def _iterates(frame: Frame) -> bool:
    """Whether the frame is taking elements of the value of its expression, and not computing it."""
    instruction = frame.code.co_code[frame.lasti]
    return dis.opname[instruction] in ("GET_ITER", "FOR_ITER")


def _place(step: int | str) -> int | str:
    """What a part is unpacked by: that of a named tuple by its place, where it is passed so."""
    return int(step[1:]) if isinstance(step, Field) and not step.name else step


def _constant(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _bound(target: ast.AST, path: tuple[int | str, ...]) -> list[Target]:
    """Names that an assignment to `target` gives to the part `path` of the value."""
    while isinstance(target, (ast.Tuple, ast.List)) and path and path[0] != "*":
        first, path = _place(path[0]), path[1:]
        starred = next((i for i, e in enumerate(target.elts) if isinstance(e, ast.Starred)), None)
        if type(first) is not int or first >= len(target.elts) or (starred is not None and first >= starred):
            return []
        target = target.elts[first]
    match target:
        case ast.Tuple() | ast.List():
            found = []
            for i, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    break
                found.extend(t._replace(path=(i, *t.path)) for t in _bound(element, ()))
            return found
        case ast.Starred():
            return []
        case ast.Name():
            name = target.id
        case ast.Attribute(value=value, attr="value" | "raw_value"):  # of a variable of a library: the variable
            return _bound(value, path)
        case ast.Attribute():
            name = target.attr
        case ast.Subscript():
            key = _constant(target.slice)
            if isinstance(key, str):
                name = key
            else:  # `hs[i] = h`
                return [t._replace(kind="element") for t in _bound(target.value, path)]
        case _:
            return []
    if "*" in path:
        return [Target(name, path, "element")]
    return [Target(name, path, "container" if path else "assign")]
