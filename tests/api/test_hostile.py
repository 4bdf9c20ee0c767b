"""Names inside a program are data: whatever they hold, the text stays a module of the same program.

In every case the text parses, imports only what it may, does nothing but define, and is proven. The
names carry a canary that would set an environment variable.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import roundtrip
from jax import lax

import untrace

CANARY = "UNTRACE_HOSTILE_NAME_WAS_RUN"
ATTACK = f"import os; os.environ[{CANARY!r}] = '1'"
NAMES = {
    "newline": f"f\n{ATTACK}\n",
    "docstring end": f'"""\n{ATTACK}\n"""',
    "single docstring end": f"'''\n{ATTACK}\n'''",
    "call": f"f(__import__('os').environ.__setitem__('{CANARY}', '1'))",
    "quote": "f'); " + ATTACK + "; ('",
    "double quote": 'f"); ' + ATTACK + '; ("',
    "comment": f"f # \r{ATTACK}",
    "carriage return": f"f\r{ATTACK}\r",
    "form feed": f"f\f{ATTACK}",
    "line separator": f"f\u2028{ATTACK}\u2029{ATTACK}\x85{ATTACK}",
    "backslash": "f\\",
    "backslash quote": '\\"""\\\'',
    "braces": "{f} {0} {}",
    "percent": "%s %d %%",
    "null": "f\0g",
    "surrogate": "f\ud800",
    "right to left": "\u202ef\u202c",
    "keyword": "lambda",
    "soft keyword": "match",
    "constant": "None",
    "dunder": "__builtins__",
    "module dunder": "__name__",
    "jnp": "jnp",
    "jax": "jax",
    "lax": "lax",
    "np": "np",
    "builtin list": "list",
    "builtin print": "print",
    "unicode": "größe_π",
    "compatibility form": "ﬁ",
    "emoji": "🦊",
    "digits": "2fast",
    "empty": "",
    "blank": "a b",
    "underscore": "_",
    "mangled": "__secret",
    "long": "f" * 3000,
}
CASES = [pytest.param(name, id=key) for key, name in NAMES.items()]
# JAX itself takes no surrogates as names of functions.
FUNCTION_CASES = [case for case in CASES if case.id != "surrogate"]
X = jnp.arange(3.0)


@pytest.fixture(autouse=True)
def _canary() -> Iterator[None]:
    os.environ.pop(CANARY, None)
    yield
    assert CANARY not in os.environ, "a name was run as code"


def check(function: Callable[..., Any], *args: Any, path: Path, **kwargs: Any) -> str:
    """The text written for the function: proven, harmless, and the same types when imported.

    Bits need a compilation for each of hundreds of cases: `test_all_names_at_once` compares them.
    """
    decompiled = untrace.decompile(function, style="exact")(*args, **kwargs)
    assert decompiled.proof.level == "jaxpr", decompiled.proof
    written, text = roundtrip.saved(decompiled, path)
    roundtrip.check_text(text, {__name__})
    roundtrip.compare_types(jax.eval_shape(function, *args, **kwargs), jax.eval_shape(written, *args, **kwargs))
    assert CANARY not in os.environ
    return text


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under another name."""
    function.__name__ = function.__qualname__ = name
    return function


# ---------------------------------------------------------------- functions and scopes


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_jit_name(name: str, tmp_path: Path) -> None:
    inner = jax.jit(named(name, lambda x: jnp.sin(x) * 2))
    check(lambda x: inner(x) + inner(x + 1), X, path=tmp_path)


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_entry_name(name: str, tmp_path: Path) -> None:
    check(named(name, lambda x: jnp.cos(x) + list(range(2))[1]), X, path=tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_named_scope(name: str, tmp_path: Path) -> None:
    if name in ("", NAMES["surrogate"]):
        pytest.skip("JAX does not take this scope name")

    def function(x: jax.Array) -> jax.Array:
        with jax.named_scope(name):
            return jnp.sin(x)

    check(function, X, path=tmp_path)


def test_all_names_at_once(tmp_path: Path) -> None:
    """One function for each name, custom derivatives and loops among them, none hiding another."""
    functions = []
    # StableHLO itself has no text for an empty name.
    names = [case.values[0] for case in FUNCTION_CASES if case.id != "empty"]
    for i, name in enumerate(names):
        f = named(name, lambda x, i=i: jnp.sin(x) * (i + 2))
        match i % 4:
            case 0:
                f = jax.jit(f)
            case 1:
                f = jax.checkpoint(f)
            case 2:
                f = jax.custom_jvp(f)
                f.defjvp(lambda p, t, i=i: (jnp.sin(p[0]) * (i + 2), t[0] * i))
            case _:
                g, f = f, jax.custom_vjp(f)
                f.defvjp(lambda x, g=g: (g(x), x), lambda res, ct, i=i: (ct * res * i,))
        functions.append(f)

    def function(x: jax.Array) -> jax.Array:
        for f in functions:
            x = f(x) + lax.fori_loop(0, 2, lambda _, c, f=f: f(c), x)
        return x

    roundtrip.check_function(function, (X,), {}, tmp_path)


@pytest.mark.parametrize("name", ["newline", "docstring end", "jnp", "keyword", "braces", "surrogate"])
def test_checkpoint_name(name: str, tmp_path: Path) -> None:
    from jax.ad_checkpoint import checkpoint_name

    check(lambda x: checkpoint_name(jnp.sin(x), NAMES[name]) * 2, X, path=tmp_path)


@pytest.mark.parametrize("name", ["newline", "docstring end", "jnp", "keyword", "braces", "empty"])
def test_axis_name(name: str, tmp_path: Path) -> None:
    """Axis names of meshes stay in the program, and reach its collectives."""
    from jax.sharding import Mesh, PartitionSpec

    axis = NAMES[name]
    mesh = Mesh(np.array(jax.devices()[:1]), (axis,))
    spec = PartitionSpec(axis)

    def body(x: jax.Array) -> jax.Array:
        return x * 2 + lax.psum(x, axis)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    check(lambda x: mapped(x) + 1, X, path=tmp_path)
    batched = jax.vmap(lambda x: x - lax.pmax(x, axis), axis_name=axis)
    check(batched, X, path=tmp_path)


# ---------------------------------------------------------------- the signature


def _with_parameters(names: tuple[str, str], keyword: bool = False) -> Callable[..., Any]:
    """A function with those parameter names, written as text because some hide what it uses."""
    a, b = names
    scope: dict[str, Any] = {"sine": jnp.sin, "total": jnp.sum, "clip": jnp.clip}
    star = "*, " if keyword else ""
    exec(f"def f({a}, {star}{b}):\n    return sine({a}) * total({b}) + clip({b}, 0, 1)", scope)
    return scope["f"]


PARAMETERS = [
    ("jnp", "lax"),
    ("jax", "np"),
    ("print", "list"),
    ("sin", "mul"),
    ("functools", "dataclasses"),
    ("f", "_"),
    ("größe", "ﬁ"),
    ("self", "cls"),
    ("args", "kwargs"),
    ("__x", "__"),
    ("match", "type"),
    ("float", "int"),
    ("os", "_constants"),
    ("arg0", "arg1"),
]


@pytest.mark.parametrize("names", PARAMETERS, ids="-".join)
def test_parameter_names(names: tuple[str, str], tmp_path: Path) -> None:
    text = check(_with_parameters(names), X, X + 1, path=tmp_path)
    assert f"def f({', '.join(names)}" in text.replace("\n    ", "") or "ﬁ" in names


@pytest.mark.parametrize("names", PARAMETERS, ids="-".join)
def test_keyword_only_names(names: tuple[str, str], tmp_path: Path) -> None:
    import unicodedata

    keyword = unicodedata.normalize("NFKC", names[1])  # what Python itself makes of the name
    check(_with_parameters(names, keyword=True), X, path=tmp_path, **{keyword: X + 1})


def test_arguments_through_stars(tmp_path: Path) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return args[0] * args[1], {key: value + 1 for key, value in kwargs.items()}

    check(function, X, X, path=tmp_path, jnp=X, lax=X, a=X)


@pytest.mark.parametrize("name", CASES)
def test_dict_keys(name: str, tmp_path: Path) -> None:
    check(lambda d: {name: d[name] * d["x"], "x": {name: d["x"]}}, {name: X, "x": X}, path=tmp_path)


def test_keys_of_other_types(tmp_path: Path) -> None:
    keys = [(1, "a"), (2, NAMES["docstring end"])]
    check(lambda d: {k: v * 2 for k, v in d.items()}, dict.fromkeys(keys, X), path=tmp_path)
    check(lambda d: {k: v * 2 for k, v in d.items()}, {b"\n": X, b'"': X}, path=tmp_path)
    check(lambda d: {k: v * 2 for k, v in d.items()}, {True: X, False: X}, path=tmp_path)
    check(lambda d: {k: v * 2 for k, v in d.items()}, {1.5: X, -0.0: X}, path=tmp_path)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Labelled:
    value: Any
    label: str = dataclasses.field(metadata={"static": True})


class Fields(NamedTuple):
    jnp: Any
    print: Any


@pytest.mark.parametrize("name", CASES)
def test_static_metadata(name: str, tmp_path: Path) -> None:
    check(lambda d: Labelled(d.value * 2, d.label), Labelled(X, name), path=tmp_path)


def test_namedtuple_fields(tmp_path: Path) -> None:
    check(lambda p: Fields(p.print, p.jnp * 2), Fields(X, X + 1), path=tmp_path)


# ---------------------------------------------------------------- comments and docstrings


@pytest.mark.parametrize("docstring", CASES)
def test_docstring(docstring: str, tmp_path: Path) -> None:
    def function(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    function.__doc__ = docstring
    check(function, X, path=tmp_path)


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_file_name(name: str, tmp_path: Path) -> None:
    """The module's docstring says where the function came from: a file name is data, too."""
    if "\0" in name:
        pytest.skip("Python does not take this file name")
    scope: dict[str, Any] = {"jnp": jnp}
    exec(compile("def f(x):\n    return jnp.sin(x)\n", name, "exec"), scope)
    check(scope["f"], X, path=tmp_path)


# ---------------------------------------------------------------- a jaxpr of someone else


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_from_jaxpr(name: str, tmp_path: Path) -> None:
    """A jaxpr full of a hostile name, and that name asked for: safe or refused in one sentence."""
    inner = jax.jit(named(name, lambda x: jnp.sin(x) * 2))
    rule = jax.custom_jvp(named(name, lambda x: jnp.cos(x)))
    rule.defjvp(lambda p, t: (jnp.cos(p[0]), t[0]))
    closed = jax.make_jaxpr(lambda x: rule(inner(x)))(X)
    decompiled = untrace.from_jaxpr(closed)
    assert decompiled.proof.level == "jaxpr"
    written, text = roundtrip.saved(decompiled, tmp_path)
    roundtrip.check_text(text)
    first = jax.tree_util.tree_leaves(written(X))
    assert [x.tobytes() for x in map(np.asarray, first)] == [
        np.asarray(x).tobytes() for x in jax.core.eval_jaxpr(closed.jaxpr, closed.consts, X)
    ]
    try:
        decompiled = untrace.from_jaxpr(closed, name=name)
    except untrace.UntraceError as error:
        assert str(error)
    else:
        _, text = roundtrip.saved(decompiled, tmp_path)
        roundtrip.check_text(text)
        assert decompiled.name.isidentifier()


def test_names_of_modules_that_callbacks_come_from(tmp_path: Path) -> None:
    """An argument, an inner function and a key may be called like a module that the text imports."""
    import copy
    import reprlib

    def program(reprlib_: Any, io: Any, zipfile: Any) -> Any:
        def inner(x: Any) -> Any:
            return jax.pure_callback(copy.copy, jax.ShapeDtypeStruct((), np.float32), x)

        inner.__name__ = "copy"
        jax.debug.callback(reprlib.repr, reprlib_)
        return {"copy": jax.jit(inner)(io), "table": zipfile @ TABLE}

    program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("reprlib", "io", "zipfile")]
    )
    args = (jnp.float32(0.001), jnp.float32(2.5), jnp.ones((2, 40)))
    decompiled = untrace.decompile(program)(*args)
    assert decompiled.proof.level == "jaxpr"
    decompiled.save(tmp_path / "modules.py")
    spec = importlib.util.spec_from_file_location("modules", tmp_path / "modules.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected, got = program(*args), getattr(module, decompiled.name)(*args)
    assert got["copy"] == expected["copy"] == 2.5
    assert np.array_equal(got["table"], expected["table"])


TABLE = np.linspace(0, 1, 1600, dtype=np.float32).reshape(40, 40)


def test_a_parameter_called_underscore() -> None:
    """A result that nobody uses is called so too."""

    def program(x: Any, _: Any) -> Any:
        total, _unused = jax.jit(lambda v: (v.sum(), v * 2))(x)
        largest = lax.top_k(x, 2)[1]
        return {"_": total + _, "largest": largest}

    decompiled = untrace.decompile(program)(jnp.arange(3.0), jnp.float32(2))
    assert decompiled.proof.level == "jaxpr"
    got = decompiled(jnp.arange(3.0), _=jnp.float32(2))
    assert got["_"] == 5 and list(got["largest"]) == [2, 1]
