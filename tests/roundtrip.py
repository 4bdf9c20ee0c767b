"""What a written module must hold, checked on the file: saved, read again, imported, traced, run.

`check` raises `Mismatch` where a promise is broken and `Refused` where JAX itself does not take the
program. It is the whole of the property tests and of `bench/fuzz.py`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from random_programs import Program, forget

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from _common import compare_bits, host_leaves, stablehlo, with_constants_inlined  # noqa: E402

_serial = itertools.count()


class Mismatch(AssertionError):
    """The written program breaks a promise; `kind` is one word for it."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class Refused(Exception):
    """JAX cannot trace, lower or run the original."""


def check(
    program: Program,
    directory: Path,
    *,
    gradients: bool = True,
    again: bool = True,
    fixpoint: bool = True,
    same_text: bool = False,
    style: str = "exact",
) -> None:
    """Checks all promises for one random program; files go to `directory`.

    `gradients` compares `grad` (or `jvp` where JAX has no reverse mode), `again` decompiles a
    second time with empty caches, `fixpoint` decompiles the written function; with `same_text` that
    must give the very same text, which no one promises (shared functions may be found elsewhere).
    """
    module = program.module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = program.arguments(module)
            samples = [program.arguments(module, salt) for salt in (1,)]
            check_function(
                module.program,
                args,
                kwargs,
                directory,
                samples=samples,
                allowed={module.__name__},
                gradients=gradients,
                again=again,
                fixpoint=fixpoint,
                same_text=same_text,
                style=style,
            )
    finally:
        forget(module)


def check_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    directory: Path,
    *,
    samples: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
    allowed: set[str] = frozenset(),  # type: ignore[assignment]
    gradients: bool = True,
    again: bool = True,
    fixpoint: bool = True,
    same_text: bool = False,
    style: str = "exact",
) -> str:
    """The text that untrace writes for `function`, after every promise was checked.

    `allowed` are modules that the text may import beside JAX, NumPy and the standard library: those
    that define the pytree classes of arguments and results. In style "idiomatic" the text may be
    simplified: the proof is then `bits` at least, and the lowered program another one.
    """
    import untrace

    original = _attempt(lambda: jax.jit(function).lower(*args, **kwargs))
    with _stage("decompile"):
        decompiled = untrace.decompile(function, style=style)(*args, **kwargs)
    # A primitive that had to be expanded leaves another jaxpr; the compiled program must agree.
    expanded = "expanded" in str(decompiled.proof) or style != "exact"
    if not decompiled.proof.at_least("jaxpr" if not expanded else "hlo" if style == "exact" else "bits"):
        raise Mismatch("proof", str(decompiled.proof))
    written, text = saved(decompiled, directory)
    check_text(text, allowed)
    with _stage("lower"):
        lowered = jax.jit(written).lower(*args, **kwargs)
    first, second = (with_constants_inlined(stablehlo(side)) for side in (original, lowered))
    if first != second and not expanded:
        raise Mismatch("stablehlo", _first_difference(first, second))
    compare_types(jax.eval_shape(function, *args, **kwargs), jax.eval_shape(written, *args, **kwargs))
    expected_run = _attempt(original.compile)
    with _stage("compile"):
        written_run = lowered.compile()
    for some_args, some_kwargs in ((args, kwargs), *samples):
        expected = _attempt(lambda a=some_args, k=some_kwargs: expected_run(*a, **k))
        with _stage("run"):
            got = written_run(*some_args, **some_kwargs)
        _compare_values("bits", expected, got)
    if gradients:
        _compare_gradients(function, written, args, kwargs)
    if again:
        jax.clear_caches()
        with _stage("decompile again"):
            second_text = untrace.decompile(function, style=style)(*args, **kwargs).source
        if second_text != decompiled.source:
            raise Mismatch("determinism", _first_difference(decompiled.source, second_text))
    if fixpoint:
        with _stage("decompile the text"):
            own = untrace.decompile(written, style=style)(*args, **kwargs)
        if own.proof.level != "jaxpr" and not expanded:
            raise Mismatch("fixpoint proof", str(own.proof))
        first, second = (without_docstring(d.source) for d in (decompiled, own))
        if same_text and first != second:
            raise Mismatch("fixpoint", _first_difference(first, second))
    return text


# ---------------------------------------------------------------- the written text


def saved(decompiled: Any, directory: Path) -> tuple[Callable[..., Any], str]:
    """The function imported from the saved file as a fresh module, and the file's text."""
    name = f"written_module_{next(_serial)}"
    path = directory / f"{name}.py"
    decompiled.save(path, overwrite=True)
    text = path.read_text(encoding="utf-8")
    with _stage("import"):
        module = imported(path, name)
    return getattr(module, decompiled.name), text


def imported(path: Path, name: str) -> ModuleType:
    """The file executed as a module that `sys.modules` knows while it is executed."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def without_docstring(text: str) -> str:
    """The module after its docstring, which names the file that the function came from."""
    first = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[first.end_lineno :])


# What may stand at the top of a written module.
_TOP_LEVEL = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.Expr,
)
# Functions that would run text or touch the machine.
_FORBIDDEN = {"eval", "exec", "compile", "__import__", "open", "input", "breakpoint", "globals"}
_MODULES = {"jax", "numpy"}


def check_text(text: str, allowed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Raises Mismatch where the text does not parse, imports too much or does more than define."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise Mismatch("syntax", str(error)) from error
    for node in tree.body:
        if not isinstance(node, _TOP_LEVEL):
            raise Mismatch("text", f"line {node.lineno}: {type(node).__name__} at the top")
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=module, level=level):
                modules = ["." * level + (module or "")]
            case _:
                modules = []
        for name in modules:
            root = name.split(".")[0]
            known = root in _MODULES or root in sys.stdlib_module_names or name in allowed
            # A module with an .npz beside it asks `os` where it stands.
            harmful = root in ("os", "subprocess", "sys", "shutil") and "np.load(" not in text
            if not known or harmful or "_src" in name:
                raise Mismatch("imports", f"line {node.lineno}: imports {name}")
        if isinstance(node, ast.Name) and node.id in _FORBIDDEN and isinstance(node.ctx, ast.Load):
            raise Mismatch("text", f"line {node.lineno}: uses {node.id}")
        if isinstance(node, ast.Attribute) and node.attr == "_src":
            raise Mismatch("imports", f"line {node.lineno}: uses _src")


# ---------------------------------------------------------------- comparisons


@contextlib.contextmanager
def _stage(kind: str) -> Iterator[None]:
    """Turns any exception into a Mismatch that names the stage."""
    try:
        yield
    except Mismatch:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        raise Mismatch(kind, f"{type(error).__name__}: {message[:1500]}") from error


def _attempt(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _class_names(tree: Any) -> str:
    return str(jax.tree_util.tree_structure(tree))


def compare_types(expected: Any, got: Any) -> None:
    """Same pytrees, shapes, dtypes and weak types of the results."""
    if jax.tree_util.tree_structure(expected) != jax.tree_util.tree_structure(got):
        raise Mismatch("tree", f"{_class_names(got)} instead of {_class_names(expected)}")
    pairs = zip(jax.tree_util.tree_leaves(expected), jax.tree_util.tree_leaves(got), strict=True)
    for i, (a, b) in enumerate(pairs):
        types = [(x.shape, x.dtype, bool(getattr(x, "weak_type", False))) for x in (a, b)]
        if types[0] != types[1]:
            raise Mismatch("types", f"leaf {i}: {types[1]} instead of {types[0]}")


def _compare_values(kind: str, expected: Any, got: Any) -> None:
    if jax.tree_util.tree_structure(expected) != jax.tree_util.tree_structure(got):
        raise Mismatch("tree", f"{_class_names(got)} instead of {_class_names(expected)}")
    difference = compare_bits(_wide(expected), _wide(got))
    if not difference.same:
        raise Mismatch(kind, f"{difference.detail}, {difference.ulps} ULPs")


def _wide(tree: Any) -> list[np.ndarray]:
    """The leaves for a comparison of bits; 4-bit integers as bytes."""
    leaves = host_leaves(tree)
    return [x.astype(np.int8) if x.dtype.name in ("int4", "uint4") else x for x in leaves]


def _compare_gradients(
    function: Callable[..., Any],
    written: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Bits of the gradient of the sum of the float results, of the JVP where there is none."""
    leaves, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    places = [i for i, x in enumerate(leaves) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)]
    if not places:
        return
    floats = [leaves[i] for i in places]

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        def scalar(*floats: Any) -> Any:
            full = list(leaves)
            for i, x in zip(places, floats, strict=True):
                full[i] = x
            a, k = jax.tree_util.tree_unflatten(tree, full)
            outs = [jnp.asarray(x) for x in jax.tree_util.tree_leaves(f(*a, **k)) if not _is_key(x)]
            outs = [x for x in outs if jnp.issubdtype(x.dtype, jnp.inexact)]
            return sum((jnp.sum(x.real.astype(jnp.float32)) for x in outs), jnp.float32(0))

        return scalar

    every = tuple(range(len(floats)))

    def gradient(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(total(f), every)).lower(*floats).compile()(*floats)

    def tangent(f: Callable[..., Any]) -> Any:
        run = jax.jit(lambda *xs: jax.jvp(total(f), xs, xs)).lower(*floats).compile()
        return run(*floats)

    for name, transform in (("grad", gradient), ("jvp", tangent)):
        try:
            expected = transform(function)
        except Exception:  # JAX refuses: no reverse mode through `while`, say
            continue
        with _stage(name):
            got = transform(written)
        try:
            _compare_values(name, expected, got)
        except Mismatch:
            # JAX adds up cotangents in another order when it differentiates its own jaxpr instead
            # of the Python function (seen with linalg.solve on 0.12): then that is the original.
            _compare_values(name, transform(_as_jaxpr(function, args, kwargs)), got)
        return


def _as_jaxpr(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The function as JAX itself evaluates its jaxpr."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    tree = jax.tree_util.tree_structure(shapes)

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        outs = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *leaves)
        return jax.tree_util.tree_unflatten(tree, outs)

    return evaluate


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _first_difference(expected: str, got: str) -> str:
    """The first lines that differ."""
    first, second = expected.splitlines(), got.splitlines()
    for i, (a, b) in enumerate(itertools.zip_longest(first, second), 1):
        if a != b:
            return f"line {i}: {b!r} instead of {a!r}"[:1500]
    return "line endings"
