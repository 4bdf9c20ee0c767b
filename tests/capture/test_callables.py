"""Python callables as text, and the calls behind callback equations."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import untrace
from untrace import jax_compat
from untrace.capture.callables import CallableSource, describe_callable, stand_in
from untrace.capture.callbacks import CallbackInfo, Operand, callback_of, is_callback

pytestmark = pytest.mark.usefixtures("unguarded")

X = np.array([0.5, 1.5, 2.5], np.float32)
SHAPE = jax.ShapeDtypeStruct((3,), np.float32)


# ---------------------------------------------------------------- callables to describe

TABLE = np.array([0.0, 1.0, -0.0], np.float32)
SCALE = {"by": 3, "names": ("a", "b")}
SEEN: list[Any] = []
BIG = np.zeros(1000)


class OutOfRange(ValueError):
    """A value is out of range."""


class Meter:
    def read(self, x: Any) -> Any:
        return x


def scaled(x: Any) -> Any:
    return np.asarray(x) * SCALE["by"]


def interpolated(x: Any, *, limit: float = 5.0, order: tuple[int, ...] = (1, 2)) -> Any:
    """A docstring stays."""
    if np.any(x > limit):
        raise OutOfRange(f"above {limit}")
    return np.interp(scaled(x), TABLE, order[0] * TABLE).astype(np.float32)


def factorial(n: int) -> int:
    return 1 if n <= 1 else n * factorial(n - 1)


def remembers(x: Any) -> None:
    SEEN.append(x)


def reads_big(x: Any) -> Any:
    return x + BIG[0]


def imports_other(x: Any) -> Any:
    import pytest as other

    return other.approx(x)


def jax_inside(x: Any) -> Any:
    return jnp.sin(x) + jax.lax.cos(x)


def messages(texts: list[str], number: float) -> Callable[[Any], str]:
    def pick(index: Undefined) -> Undefined:  # noqa: F821  (annotations are left out)
        return texts[index] + str(number)

    return pick


def counter() -> Callable[[], int]:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


@functools.lru_cache
def decorated(x: float) -> float:
    return x * 2


def run(source: CallableSource) -> Any:
    """The callable that the described text defines, in a module of its own."""
    lines = [f"import {module} as {alias}" for module, alias in source.imports]
    namespace: dict[str, Any] = {}
    exec(compile("\n".join([*lines, *source.definitions]), "<written>", "exec"), namespace)
    return namespace[source.name]


# ---------------------------------------------------------------- import


@pytest.mark.parametrize(
    ("function", "module", "name"),
    [
        (np.sin, "numpy", "sin"),
        (np.asarray, "numpy", "asarray"),
        (np.linalg.norm, "numpy.linalg", "norm"),
        (jnp.sin, "jax.numpy", "sin"),
        (jax.nn.relu, "jax.nn", "relu"),
        (math.sqrt, "math", "sqrt"),
        (os.path.join, "os.path", "join"),
        (print, "builtins", "print"),
    ],
)
def test_public_functions_are_imported(function: Any, module: str, name: str) -> None:
    source = describe_callable(function)
    assert (source.kind, source.module, source.name) == ("import", module, name)


# ---------------------------------------------------------------- embed


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (scaled, (X,)),
        (interpolated, (X,)),
        (factorial, (5,)),
        (jax_inside, (X,)),
        (messages(["none", "one"], 2.5), (1,)),
        (lambda x: x + 1, (X,)),
        (lambda x: (math.pi * x, TABLE + x), (X,)),
        (functools.partial(interpolated, limit=9.0), (X,)),
        (functools.partial(np.multiply, 2), (X,)),
        (functools.partial(lambda a, b: a - b, np.float32(0.1)), (X,)),
    ],
)
def test_self_contained_functions_are_embedded(function: Any, args: Any) -> None:
    source = describe_callable(function)
    assert source.kind == "embed", source.reason
    written = run(source)
    for a, b in zip(jax.tree.leaves(written(*args)), jax.tree.leaves(function(*args)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes() or a == b


def test_embedded_text_is_plain_where_nothing_is_read() -> None:
    source = describe_callable(jax_inside)
    assert source.imports == (("jax", "jax"), ("jax.numpy", "jnp"))
    assert source.definitions == ("def jax_inside(x):\n    return jnp.sin(x) + jax.lax.cos(x)",)


def test_what_a_function_reads_stands_in_a_scope_of_its_own() -> None:
    source = describe_callable(interpolated, taken={"interpolated", "TABLE", "np"})
    assert source.name == "interpolated_2"
    assert [d.split("(")[0] for d in source.definitions] == [
        "def _make_interpolated_2",
        "interpolated_2 = _make_interpolated_2",
    ]
    assert source.imports == ()  # `np` is taken: imported inside
    with pytest.raises(ValueError, match="above 5.0") as caught:
        run(source)(X * 100)
    assert type(caught.value).__name__ == "OutOfRange"


def test_embedding_is_deterministic() -> None:
    assert describe_callable(interpolated) == describe_callable(interpolated)


def test_lambdas_on_one_line_are_told_apart() -> None:
    first, second = (lambda x: x + 1), (lambda x: x + 2)
    assert run(describe_callable(first))(1) == 2
    assert run(describe_callable(second))(1) == 3


def test_odd_literals_survive() -> None:
    values = (math.nan, math.inf, -0.0, complex(-0.0, math.nan), b"\x00", {1: {2}}, 10**30, None)
    written = run(describe_callable(lambda: values))()
    assert repr(written) == repr(values)
    empty = np.zeros((2, 0, 3), np.int8)
    written = run(describe_callable(lambda: empty.shape + (empty.dtype.name,)))()
    assert written == (2, 0, 3, "int8")


# ---------------------------------------------------------------- parameter


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (remembers, "it may change 'SEEN'"),
        (counter(), "it assigns 'count'"),
        (reads_big, "an array of 1000 elements"),
        (imports_other, "it imports pytest"),
        (Meter().read, "a method of an object of type Meter"),
        (Meter(), "Meter"),
        (decorated, "which has no short text"),
        (eval("lambda x: x"), "its source is not available"),
        (lambda x: pytest.approx(x), "it uses the module pytest"),
    ],
)
def test_everything_else_becomes_a_parameter(function: Any, reason: str) -> None:
    source = describe_callable(function)
    assert source.kind == "parameter"
    assert reason in source.reason
    assert source.name.isidentifier()


def test_an_edited_file_is_not_believed(tmp_path: Any, monkeypatch: Any) -> None:
    import importlib
    import linecache

    path = tmp_path / "edited_module.py"
    path.write_text("def f(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited_module")
    assert describe_callable(module.f).kind == "embed"
    path.write_text("def f(x):\n    return x + 2\n")
    linecache.checkcache(str(path))
    source = describe_callable(module.f)
    assert (source.kind, source.reason) == (
        "parameter",
        "its source file does not have this function (any more)",
    )


def test_a_stand_in_says_what_is_missing() -> None:
    namespace: dict[str, Any] = {}
    reason = 'it may change \'x\'\n"""\nimport os' + ", and more" * 20
    exec(stand_in("host", reason), namespace)
    host = namespace["host"]
    assert "change 'x'?" in host.__doc__ and "os" not in namespace
    with pytest.raises(NotImplementedError, match="set host.function to the Python function"):
        host(1, k=2)
    host.function = lambda x, k: x + k
    assert host(1, k=2) == 3


# ---------------------------------------------------------------- the user's own modules

USER_MODULE = """
calls = []

class Counter:
    def add(self, x):
        calls.append(x)
        return x

counter = Counter()

def remember(x):
    calls.append(x)
    return x

class Tools:
    @staticmethod
    def note(x):
        calls.append(x)

def inner():
    def f(x):
        calls.append(x)
    return f
"""


@pytest.fixture
def user_module(tmp_path: Any, monkeypatch: Any) -> Any:
    import importlib

    (tmp_path / "my_callbacks.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("my_callbacks")
    del sys.modules["my_callbacks"]


def test_functions_with_state_are_imported_from_the_users_module(user_module: Any) -> None:
    """Also a method of an object that the module has; without permission they are parameters."""
    for function, name in (
        (user_module.remember, "remember"),
        (user_module.counter.add, "counter.add"),
        (user_module.Tools.note, "Tools.note"),
    ):
        source = describe_callable(function, from_user_modules=True)
        assert (source.kind, source.module, source.name) == ("import", "my_callbacks", name)
        assert source.reason
        assert describe_callable(function).kind == "parameter"


def test_what_another_program_could_not_import_is_a_parameter(user_module: Any) -> None:
    """Functions in functions, objects of nowhere, files that the search path does not lead to."""
    for function in (user_module.inner(), user_module.Counter().add):
        assert describe_callable(function, from_user_modules=True).kind == "parameter"
    user_module.__file__ = os.devnull
    assert describe_callable(user_module.remember, from_user_modules=True).kind == "parameter"


def test_a_written_module_imports_or_is_given_what_has_no_text(user_module: Any, tmp_path: Any) -> None:
    """Imported where it may be, set by its reader where not; `Decompiled` itself just runs."""

    def fn(x: Any) -> Any:
        return io_callback(user_module.counter.add, SHAPE, x) + 1

    imported = untrace.decompile(fn)(X)
    assert "from my_callbacks import counter" in imported.source
    assert np.array_equal(imported(X), X + 1) and not imported.callables
    alone = untrace.decompile(fn, standalone=True)(X)
    assert "my_callbacks" not in alone.source.replace("my_callbacks.Counter", "")
    assert any("set add.function of the module" in note for note in alone.proof.notes)
    assert list(alone.callables) == ["add"]
    assert np.array_equal(alone(X), X + 1) and len(user_module.calls) == 2
    alone.save(tmp_path / "saved_alone.py")
    spec = importlib.util.spec_from_file_location("saved_alone", tmp_path / "saved_alone.py")
    assert spec is not None and spec.loader is not None
    saved = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(saved)
    with pytest.raises(Exception, match="set add.function to the Python function"):
        jax.block_until_ready(jax.jit(saved.fn)(X))
    saved.add.function = lambda x: x * 2  # not too late, though the function is compiled
    assert np.array_equal(jax.jit(saved.fn)(X), X * 2 + 1)


# ---------------------------------------------------------------- equations


def host(x: Any, y: Any = None, *, z: Any = 0) -> Any:
    return np.asarray(x)


def callbacks(function: Callable[..., Any], *args: Any) -> list[Any]:
    found: list[Any] = []

    def walk(closed: Any) -> None:
        jaxpr, _ = jax_compat.open_jaxpr(closed)
        for eqn in jaxpr.eqns:
            if is_callback(eqn):
                found.append(eqn)
            for value in eqn.params.values():
                for part in value if isinstance(value, (tuple, list)) else (value,):
                    if jax_compat.is_jaxpr(part):
                        walk(part)

    walk(jax.make_jaxpr(function)(*args))
    return found


def again(info: CallbackInfo, operands: Any) -> Any:
    """The public call that `info` describes, as a printer would write it."""

    def filled(value: Any) -> Any:
        return jax.tree.map(
            lambda v: operands[v.index] if isinstance(v, Operand) else v,
            value,
            is_leaf=lambda v: isinstance(v, Operand),
        )

    args, kwargs = filled(info.args), filled(dict(info.kwargs))
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in info.result_avals)
    if info.kind == "pure_callback":
        return jax.pure_callback(
            info.function, shapes, *args, vmap_method=info.vmap_method, sharding=info.sharding,
            **kwargs,
        )  # fmt: skip
    if info.kind == "io_callback":
        return io_callback(info.function, shapes, *args, sharding=info.sharding, ordered=info.ordered, **kwargs)
    options: dict[str, Any] = {"ordered": info.ordered, "partitioned": info.partitioned}
    if info.kind == "debug_callback":
        return jax.debug.callback(info.function, *args, **options, **kwargs)
    if info.skip_format_check:
        options["skip_format_check"] = True
    with np.printoptions(**info.print_options):
        return jax.debug.print(info.fmt, *args, **options, **kwargs)


def _prints_short(x: Any) -> None:
    with np.printoptions(precision=3):
        jax.debug.print("{} {a[k]}", x, a={"k": x})


CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "pure": (lambda x: jax.pure_callback(host, SHAPE, x, vmap_method="sequential"), X),
    "pure keyword": (lambda x: jax.pure_callback(host, SHAPE, x, z=x, y=2.0), X),
    "pure tree": (lambda x: jax.pure_callback(host, (SHAPE, SHAPE), [x, {"a": x}], None), X),
    "pure vmap": (
        jax.vmap(lambda x: jax.pure_callback(host, SHAPE, x, vmap_method="expand_dims")),
        X[None],
    ),
    "io": (lambda x: io_callback(host, SHAPE, x, ordered=True), X),
    "io nothing": (lambda x: io_callback(remembers, None, x), X),
    "io vmap": (jax.vmap(lambda x: io_callback(host, SHAPE, x)), X[None]),
    "print": (lambda x: jax.debug.print("x {} {y:.2f}", x, y=x[0], ordered=True), X),
    "print plain": (lambda x: jax.debug.print("hello"), X),
    "print braces": (lambda x: jax.debug.print("{{}} {x!r:>10}", x=x), X),
    "print static": (lambda x: jax.debug.print("{} {}", x, "static"), X),
    "print unused": (lambda x: jax.debug.print("x", x, skip_format_check=True), X),
    "print options": (_prints_short, X),
    "print partitioned": (lambda x: jax.debug.print("{}", x, partitioned=True), X),
    "debug": (lambda x: jax.debug.callback(host, x, y="s", ordered=True), X),
    "debug none": (lambda x: jax.debug.callback(host, x, None, z=x, partitioned=True), X),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_public_call_gives_the_same_equation(name: str) -> None:
    function, arg = CALLS[name]
    (eqn,) = callbacks(function, arg)
    info = callback_of(eqn)
    assert not info.flat_reason
    operands = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    literal = jax_compat.LITERAL_TYPE
    (new,) = callbacks(lambda *xs: again(info, xs), *operands)
    assert new.primitive is eqn.primitive
    assert new.effects == eqn.effects
    assert [str(v.aval) for v in new.outvars] == [str(v.aval) for v in eqn.outvars]
    assert len(new.invars) == len(eqn.invars)
    assert not any(type(v) is literal for v in new.invars)
    if eqn.primitive.name == "debug_callback":  # a closure made at every call
        assert jax_compat.flat_callback(new.params["callback"]) == jax_compat.flat_callback(eqn.params["callback"])
        eqn, new = (e.replace(params={**e.params, "callback": None}) for e in (eqn, new))
    assert new.params == eqn.params


def test_a_print_that_only_two_calls_can_say() -> None:
    (eqn,) = callbacks(lambda x: jax.debug.print()("{ordered}", ordered=x), X)
    info = callback_of(eqn)
    assert info.option_clash
    assert dict(info.kwargs) == {"ordered": Operand(0)}


def test_arguments_that_only_their_library_can_build_are_flat() -> None:
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a: Any, b: Any):
            self.a, self.b = a, b

        def tree_flatten(self) -> Any:
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(*children)

    def total(pair: Any) -> Any:
        return np.asarray(pair.a + pair.b)

    (eqn,) = callbacks(lambda x: jax.pure_callback(total, SHAPE, Pair(x, x)), X)
    info = callback_of(eqn)
    assert "Pair, which only its library can build" in info.flat_reason
    assert info.args == (Operand(0), Operand(1))
    np.testing.assert_array_equal(info.flat_function()(X, X), X + X)


def test_other_equations_are_refused() -> None:
    eqn = jax.make_jaxpr(jnp.sin)(X).jaxpr.eqns[0]
    assert not is_callback(eqn)
    with pytest.raises(LookupError):
        callback_of(eqn)


# ---------------------------------------------------------------- libraries


def test_errors_of_equinox_are_raised_with_the_same_message() -> None:
    eqx = pytest.importorskip("equinox")
    eqns = callbacks(lambda x: eqx.error_if(x, x > 1, "x is too large"), 0.5)
    sources = {s.name: s for s in (describe_callable(callback_of(e).function) for e in eqns)}
    assert {s.kind for s in sources.values()} == {"embed"}
    assert "its assignment to equinox._jit.last_error_info is left out" in sources["raises"].notes[0]
    with pytest.raises(RuntimeError, match="^x is too large\n"):
        run(sources["raises"])(np.int32(0))


def test_callback_of_tinygp() -> None:
    solver = pytest.importorskip("tinygp.solvers.quasisep.solver")
    source = describe_callable(solver._check_sorted)
    assert source.kind == "embed", source.reason
    with pytest.raises(ValueError, match="sorted"):
        run(source)(np.array([2.0, 1.0]))


def test_a_stand_in_is_proven_to_stand_for_its_function() -> None:
    """A policy, a callable object, a method: what the stand-in calls is the original's own object."""
    state: list[Any] = []

    def policy(primitive: Any, *args: Any, **params: Any) -> bool:
        state.append(primitive)
        return False

    def fn(x: Any) -> Any:
        y = io_callback(Meter().read, SHAPE, x)
        return jax.checkpoint(jnp.sin, policy=policy)(y)

    decompiled = untrace.decompile(fn)(X)
    assert decompiled.callables.keys() == {"read", "policy"}
    assert decompiled.proof.level == "jaxpr"
    assert not any("taken to be the same" in note for note in decompiled.proof.notes)


def test_a_callback_with_one_result_is_not_unpacked():
    def looked_up(x):
        return jax.pure_callback(host, SHAPE, x, vmap_method="sequential") + 1.0

    for style in ("exact", "idiomatic"):
        found = untrace.decompile(looked_up, style=style)(X)
        assert ",) = jax.pure_callback(" not in found.source
        assert found.proof.level == "jaxpr"
        np.testing.assert_array_equal(found(X), looked_up(X))
