"""What the author called a function's parameters, leaf by leaf: `w, b = params` makes `params[0]` a `w`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from untrace import jax_compat
from untrace._identifiers import LONGEST
from untrace.lift.naming.words import clean, singular
from untrace.provenance import syntax
from untrace.provenance.whose import file_kind

Path = tuple[int | str, ...]
# Parameters of functions that take anything, as they stand in names of leaves: `args[0]` is an `arg_0`.
_SEVERAL = frozenset("arg args const consts".split())
_HEAD = re.compile(r"[^\W\d]\w*")
_STEP = re.compile(r"\.([^\W\d]\w*)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")


@functools.lru_cache(maxsize=4096)
def parse_path(text: str) -> Path:
    """`params['w'][0].mean` -> ("params", "w", 0, "mean"); what it cannot read ends it."""
    head = _HEAD.match(text)
    if head is None:
        return ()
    path: list[int | str] = [head.group()]
    at = head.end()
    while match := _STEP.match(text, at):
        attribute, index, single, double = match.groups()
        path.append(int(index) if index is not None else attribute or single or double or "")
        at = match.end()
    return tuple(path)


def leaf_names(
    paths: Sequence[Path], function: ast.AST | None, find: Callable[[str], Any] | None = None
) -> list[str | None]:
    """A name for each path, of the function's own where it unpacks them; None for the empty path.

    `find(name)`: the definition of a function that it calls, which may be the one that unpacks them.

    Two leaves with the same last key get the key before it as well (`query_kernel`, `key_kernel`), up to the whole path.
    """
    unpacked = _unpacked(function, find) if function is not None and _has_parts(paths) else {}
    own = [_by_own_name(path, unpacked) for path in paths]
    names: list[str | None] = []
    for path in paths:
        found = unpacked.get(path)
        names.append(clean(found) if found is not None else _last_words(path, 1))
    for depth in (2, 3, 4):
        clashing = _clashing(names, own, [unpacked.get(path) for path in paths])
        if not clashing:
            break
        for i in clashing:
            names[i] = _last_words(own[i], depth)
    return names


def _by_own_name(path: Path, unpacked: dict[Path, str]) -> Path:
    """`params['w']` for `carry[0]['w']`, where the function says `params, state = carry`."""
    for size in range(len(path) - 1, 1, -1):
        if path[:size] in unpacked:
            return (unpacked[path[:size]], *path[size:])
    return path


def _clashing(names: list[str | None], paths: Sequence[Path], own: Sequence[str | None]) -> list[int]:
    """Leaves that share a name with another one. Where several arguments have a leaf of that name (parameters and the
    optimiser's state), the first argument's keeps it, if it is only one.
    """
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        if name is not None:
            groups.setdefault(name, []).append(i)
    found: list[int] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        first = [i for i in group if paths[i][:1] == paths[group[0]][:1]]
        keep = first[0] if len(first) == 1 else None
        found.extend(i for i in group if i != keep and own[i] is None)
    return found


def _last_words(path: Path, depth: int) -> str | None:
    """The last `depth` keys of a path as one name; numbers count with the word before them."""
    if not path:
        return None
    words: list[str] = []
    for step in reversed(path):
        words.append(str(step))
        if sum(not w.isdigit() for w in words) >= depth:
            break
    words.reverse()
    if len(words) > 1 and words[1].isdigit() and not words[0].isdigit():
        words[0] = singular(words[0])
    if words[0] in _SEVERAL and all(w.isdigit() for w in words[1:]):
        return None  # `*args`: what is passed for it is called something
    # Keys that libraries put around every leaf say nothing.
    useful = [w for w in words if w not in ("value", "raw_value")] or words
    return clean("_".join(useful if len("_".join(useful)) <= LONGEST else _without_the_middle(useful)), "x")


def _without_the_middle(words: Sequence[str]) -> list[str]:
    """Where a name starts and ends, for one that is too long: `layer_1_key_w` for `layer_1/multi_head_attention/key`, `w`."""
    first, *rest = [part for word in words for part in word.split("/") if part[:1].isalnum()] or words
    while len(rest) > 1 and len("_".join((first, *rest))) > LONGEST:
        del rest[0]
    return [first, *rest]


def definition_of(closed: Any) -> ast.AST | None:
    """The AST node of the function of a jaxpr."""
    place = jax_compat.function_place(closed)
    return syntax.function_at(*place) if place is not None else None


def function_names(closed: Any) -> list[str | None]:
    """Names of a jaxpr's inputs as its function knows them, None where it has none."""
    names = jax_compat.argument_names(closed)
    if names is None:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        return [None] * len(jaxpr.invars)
    paths = [parse_path(n) for n in names]
    if not _has_parts(paths):
        return leaf_names(paths, None)
    place = jax_compat.function_place(closed)
    if place is None or file_kind(place[0]) == "cut":  # what another package's own functions say is nothing to a reader
        return leaf_names(paths, None)
    return leaf_names(paths, definition_of(closed), functools.partial(syntax.function_named, place[0]))


def _has_parts(paths: Sequence[Path]) -> bool:
    """Whether any is of a part of a parameter: a parameter as a whole has the name that it has."""
    return any(len(path) > 1 for path in paths)


def unpacked_names(closed: Any) -> dict[Path, str]:
    """{path of a part of a parameter: the author's name for it}, for the function of a jaxpr: `params, state = carry`."""
    place, function = jax_compat.function_place(closed), definition_of(closed)
    if function is None or place is None:
        return {}
    return _unpacked(function, functools.partial(syntax.function_named, place[0]))


def has_source(closed: Any) -> bool:
    """Whether the source of the function of a jaxpr is at hand."""
    return definition_of(closed) is not None


def positional(function: ast.AST | None) -> list[list[str]]:
    """For each positional parameter of a function its names: those it is unpacked into, else its own."""
    arguments = getattr(function, "args", None)
    if function is None or not isinstance(arguments, ast.arguments):
        return []
    unpacked = _unpacked(function)
    found = []
    for argument in (*arguments.posonlyargs, *arguments.args):
        parts = sorted(
            (p[1], n) for p, n in unpacked.items() if len(p) == 2 and p[0] == argument.arg and type(p[1]) is int
        )
        whole = [i for i, _ in parts] == list(range(len(parts))) and parts
        found.append([clean(n) for _, n in parts] if whole else [clean(argument.arg)])
    return found


def _unpacked(function: ast.AST, find: Callable[[str], Any] | None = None) -> dict[Path, str]:
    """{path of a parameter's part: the local name that it is bound to first}, from plain assignments in the function, and
    then from those in functions that it passes the parameter to."""
    found: dict[Path, str] = {}
    body = getattr(function, "body", ())
    arguments = getattr(function, "args", None)
    if not isinstance(arguments, ast.arguments):
        return found
    roots: dict[str, Path] = {a.arg: (a.arg,) for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}

    def bind(target: ast.AST, path: Path) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    return
                bind(element, (*path, i))
        elif isinstance(target, ast.Name) and len(path) > 1 and not target.id.startswith("_"):
            found.setdefault(path, target.id)
            if target.id not in roots:
                roots[target.id] = path

    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                values = statement.value
                if (
                    isinstance(target, ast.Tuple)
                    and isinstance(values, ast.Tuple)
                    and len(target.elts) == len(values.elts)
                ):
                    pairs = list(zip(target.elts, values.elts, strict=True))
                else:
                    pairs = [(target, values)]
                for left, right in pairs:
                    path = _path_of(right, roots)
                    if path is not None:
                        bind(left, path)
    every = syntax.walked(function) if find is not None else []
    made = _assigned(every)
    for node in every:
        callee = _called(node, made, find) if find is not None and isinstance(node, ast.Call) else None
        if callee is not None:
            own = [a.arg for a in (*callee.args.posonlyargs, *callee.args.args)]
            inside = _unpacked(callee)
            for i, argument in enumerate(node.args):
                path = _path_of(argument, roots)
                for rest, name in inside.items():
                    if path and i < len(own) and rest[0] == own[i]:
                        found.setdefault((*path, *rest[1:]), name)
    return found


def _assigned(nodes: Sequence[ast.AST]) -> dict[str, list[ast.AST]]:
    """What is assigned to each name by statements that assign to it alone."""
    found: dict[str, list[ast.AST]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _called(node: ast.Call, made: dict[str, list[ast.AST]], find: Callable[[str], Any]) -> Any:
    """The definition of what `f(x)` or `jax.grad(f)(x)` calls; of `df(x)` after `df = jax.grad(f)` too."""
    called: ast.AST = node.func
    if isinstance(called, ast.Name) and len(made.get(called.id, ())) == 1:
        called = made[called.id][0]
    while isinstance(called, ast.Call) and called.args:
        called = called.args[0]
    return find(called.id) if isinstance(called, ast.Name) else None


def _path_of(node: ast.AST, roots: dict[str, Path]) -> Path | None:
    steps: list[int | str] = []
    while True:
        match node:
            case ast.Name():
                root = roots.get(node.id)
                return None if root is None else (*root, *reversed(steps))
            case ast.Attribute():
                steps.append(node.attr)
                node = node.value
            case ast.Subscript(slice=ast.Constant(value=int() | str() as key)):
                steps.append(key)
                node = node.value
            case _:
                return None
