"""The verbs of the package: options, `from_jaxpr`, `rule`, `Decompiled`, and what is on disk."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import io
import linecache
import mmap
import os
import pdb
import stat
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import untrace
from untrace import _garbage

X = jnp.array([0.5, -1.5, 2.5])
F32 = jax.ShapeDtypeStruct((3,), np.float32)


def scaled(x: Any, *, by: Any) -> Any:
    return {"scaled": jnp.sin(x) * by}


def load(path: str | os.PathLike[str]) -> ModuleType:
    """The saved module, imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- decompile


def test_arrays_and_their_types_give_one_text() -> None:
    """Only shapes and dtypes matter, not values."""
    by = jax.ShapeDtypeStruct((), np.float32)
    first = untrace.decompile(scaled)(X, by=jnp.float32(3))
    assert first.source == untrace.decompile(scaled)(F32, by=by).source
    assert first.name == "scaled" and "def scaled(x, *, by):" in first.source
    assert np.array_equal(first(X, by=2.0)["scaled"], scaled(X, by=2.0)["scaled"])
    assert first.proof.level == "jaxpr" and str(first.proof).startswith("proven: same jaxpr")
    assert len(first.jaxpr.eqns) == 2
    assert {"capture", "write", "load", "retrace", "compare"} <= first.timings.keys()


def power(x: Any, n: int, kind: str = "sum") -> Any:
    return getattr(jnp, kind)(x**n)


def test_static_arguments_are_fixed() -> None:
    by_position = untrace.decompile(power, static_argnums=(1, 2))(X, 3, "max")
    by_name = untrace.decompile(power, static_argnames=("n", "kind"))(X, n=3, kind="max")
    for decompiled in (by_position, by_name):
        assert decompiled(X, 3, "max") == power(X, 3, "max")
        with pytest.raises(Exception, match="n=3|n == 3|3"):
            decompiled(X, 4, "max")


def test_prove_false_says_so() -> None:
    decompiled = untrace.decompile(scaled, prove=False)(X, by=2.0)
    assert str(decompiled.proof) == "unproven: prove=False"
    assert np.array_equal(decompiled(X, by=2.0)["scaled"], scaled(X, by=2.0)["scaled"])


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


jax.tree_util.register_dataclass(Point)


def test_standalone_imports_no_library() -> None:
    """The class of the result is the library's own where that is loaded."""

    def swap(p: Point) -> Point:
        return Point(p.y * 2, p.x)

    decompiled = untrace.decompile(swap, standalone=True)(Point(X, X))
    assert f"import {__name__}" not in decompiled.source and f"from {__name__}" not in decompiled.source
    assert type(decompiled(Point(X, X))) is Point


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: untrace.decompile(scaled, style="prose")(X), untrace.OptionError, "style='prose' is not known"),
        (lambda: untrace.decompile(scaled)(X, by="two"), untrace.CaptureError, "argument 'by' of scaled is a str"),
        (lambda: untrace.decompile(3)(X), untrace.CaptureError, "decompile needs a function, not a int"),
        (
            lambda: untrace.decompile(lambda x: x if x > 0 else -x)(1.0),
            untrace.CaptureError,
            "It needs a concrete value where JAX has an abstract one",
        ),
        (
            lambda: untrace.decompile(lambda x, n: sum(x for _ in range(n)))(1.0, 3),
            untrace.CaptureError,
            "It needs a concrete value where JAX has an abstract one",
        ),
        (lambda: untrace.decompile(lambda x: x.foo)(1.0), untrace.CaptureError, "by JAX (test_api.py:"),
        (lambda: untrace.decompile(scaled)(X), untrace.CaptureError, "missing 1 required keyword-only argument"),
        (lambda: untrace.from_jaxpr(3), untrace.CaptureError, "from_jaxpr needs a ClosedJaxpr"),
        (lambda: untrace.decompile(jnp.sin)(X).to("cobol"), untrace.OptionError, "the target 'cobol' is not there"),
    ],
)
def test_bad_input_is_one_clear_sentence(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)
    assert isinstance(caught.value, untrace.UntraceError)


# ---------------------------------------------------------------- from_jaxpr


def test_a_jaxpr_is_a_function_of_its_flat_inputs() -> None:
    """Its name is the caller's, its result a tuple always; constants come with it."""
    table = np.linspace(0, 1, 3, dtype=np.float32)
    closed = jax.make_jaxpr(lambda t: t["a"] * table + t["b"])({"a": X, "b": X})
    decompiled = untrace.from_jaxpr(closed, name="mix")
    assert "def mix(" in decompiled.source and decompiled.name == "mix"
    assert decompiled.proof.level == "jaxpr"
    (got,) = decompiled(X, X)
    assert np.array_equal(got, jax.jit(lambda a, b: a * table + b)(X, X))
    assert untrace.from_jaxpr(closed).name == "decompiled"


def test_a_jaxpr_may_have_no_inputs_and_no_outputs() -> None:
    assert untrace.from_jaxpr(jax.make_jaxpr(lambda: ())())() == ()
    (three,) = untrace.from_jaxpr(jax.make_jaxpr(lambda: 3.0)())()
    assert three == 3.0
    (same, again) = untrace.from_jaxpr(jax.make_jaxpr(lambda x: (x, x))(X))(X)
    assert same is again or np.array_equal(same, again)


def test_a_jaxpr_that_lost_its_constants_is_refused() -> None:
    closed = jax.make_jaxpr(lambda x: x + np.arange(3.0, dtype=np.float32))(X)
    if not closed.consts:
        pytest.skip("this JAX keeps array constants as literals")
    with pytest.raises(untrace.CaptureError):
        untrace.from_jaxpr(closed.jaxpr.replace(constvars=closed.jaxpr.constvars) if closed.jaxpr is not closed else 3)


# ---------------------------------------------------------------- rule, in a process of its own

RULE = """
    import jax, jax.numpy as jnp, numpy as np
    import jax.extend.core
    from jax.interpreters import mlir
    import untrace

    double_p = jax.extend.core.Primitive("double_it")
    double_p.def_abstract_eval(lambda x, *, times, note: x)
    double_p.def_impl(lambda x, *, times, note: x * 2.0**times)
    mlir.register_lowering(double_p, mlir.lower_fun(lambda x, *, times, note: x * 2.0**times, False))
    f = lambda x: double_p.bind(jnp.sin(x), times=2, note=object())

    if {expand!r} == "no":
        try:
            untrace.decompile(f)(1.0)
            print("expanded")
        except untrace.UnsupportedPrimitiveError as error:
            print("refused", "@untrace.rule" in str(error))

    @untrace.rule("double_it")
    def double_it(w, x, *, times, note):
        return w.jnp("multiply", x, 2.0**times)

    decompiled = untrace.decompile(f)(1.0)
    assert "jnp.multiply(" in decompiled.source and ", 4.0)" in decompiled.source, decompiled.source
    assert decompiled(1.0) == f(1.0)
    print(decompiled.proof.level)

    @untrace.rule("double_it")  # a later one replaces it; this one is wrong
    def wrong(w, x, *, times, note):
        return w.jnp("multiply", x, 3.0**times)

    try:
        print(untrace.decompile(f)(1.0).source)
    except untrace.ProofError as error:
        print("not proven")
"""


def test_a_rule_from_outside_teaches_a_primitive() -> None:
    """It goes before everything else, it is proven, and a wrong one is noticed."""
    code = textwrap.dedent(RULE).format(expand="no")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] in ("expanded", "refused True")
    assert lines[1] in ("hlo", "bits")
    assert lines[2] == "not proven"


# ---------------------------------------------------------------- save


def big(x: Any) -> Any:
    return x @ jnp.asarray(TABLE) + jnp.asarray(TABLE)[0]


TABLE = np.random.RandomState(0).standard_normal((64, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def large() -> Iterator[untrace.Decompiled]:
    yield untrace.decompile(big)(jnp.ones((2, 64)))


def test_save_refuses_to_overwrite(large: Any, tmp_path: Path) -> None:
    """Neither the module nor the data beside it; `overwrite` replaces both."""
    path = tmp_path / "big.py"
    assert large.save(path) == str(path)
    assert sorted(os.listdir(tmp_path)) == ["big.npz", "big.py"]
    with pytest.raises(untrace.OutputExistsError, match="big.py exists; pass overwrite=True"):
        large.save(path)
    path.unlink()
    with pytest.raises(untrace.OutputExistsError, match="big.npz exists"):
        large.save(path)
    assert not path.exists()
    large.save(path, overwrite=True)
    assert np.array_equal(load(path).big(jnp.ones((2, 64))), large(jnp.ones((2, 64))))


def test_a_save_that_fails_leaves_what_was_there(large: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """No half a file, and nothing temporary; whichever step it is that fails."""
    path = tmp_path / "big.py"
    path.write_text("mine\n")
    (tmp_path / "big.npz").write_text("my data\n")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left")

    for name in ("replace", "chmod"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
            patch.setattr(os, name, refuse)
            large.save(path, overwrite=True)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(np, "savez", refuse)
        large.save(path, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["big.npz", "big.py"]
    assert path.read_text() == "mine\n" and (tmp_path / "big.npz").read_text() == "my data\n"


def test_saved_files_have_the_usual_permissions(tmp_path: Path) -> None:
    """Those of a new file, or of the file that was there: not those of a temporary one."""
    decompiled = untrace.decompile(jnp.sin)(X)
    mask = os.umask(0o027)
    try:
        decompiled.save(tmp_path / "new.py")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.py").stat().st_mode) == 0o640
    (tmp_path / "new.py").chmod(0o755)
    decompiled.save(tmp_path / "new.py", overwrite=True)
    assert stat.S_IMODE((tmp_path / "new.py").stat().st_mode) == 0o755


def test_save_wants_a_module_in_a_folder(tmp_path: Path) -> None:
    decompiled = untrace.decompile(jnp.sin)(X)
    with pytest.raises(untrace.OptionError, match="a module is saved as a .py file"):
        decompiled.save(tmp_path / "module.txt")
    with pytest.raises(untrace.OptionError, match="there is no folder"):
        decompiled.save(tmp_path / "none" / "module.py")


# ---------------------------------------------------------------- debuggers


def broken(x: Any) -> Any:
    y = jnp.sin(x)
    return jax.pure_callback(fails, F32, y)


def fails(x: Any) -> Any:
    raise ZeroDivisionError("on the host")


def test_a_breakpoint_stops_at_a_line_of_the_text() -> None:
    """By file name and line, as in a saved file; the debugger shows the text."""
    decompiled = untrace.decompile(scaled, style="exact")(X, by=2.0)
    path = decompiled.module.__file__
    lines = decompiled.source.splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "lax.sin(x)" in line)
    commands = f"break {path}:{number}\ncontinue\nlist\np x\ncontinue\n"
    screen = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=screen, nosigint=True)
    debugger.use_rawinput = False
    debugger.runcall(decompiled, X, by=2.0)
    shown = screen.getvalue()
    assert f"Breakpoint 1 at {path}:{number}" in shown
    assert f"> {path}({number})scaled()" in shown
    assert "-> " + lines[number - 1].strip() in shown
    assert lines[number].strip() in shown
    assert "Array([ 0.5, -1.5,  2.5]" in shown


def test_a_traceback_shows_lines_of_the_text() -> None:
    """Also after linecache was asked to look at the disk; another text has another file."""
    first, second = (untrace.decompile(scaled)(X, by=2.0) for _ in range(2))
    assert first.module.__file__ != second.module.__file__
    linecache.checkcache()
    assert "".join(linecache.getlines(first.module.__file__)) == first.source
    with pytest.raises(TypeError) as caught:
        first(X, by="two")
    frames = traceback.extract_tb(caught.value.__traceback__)
    mine = [f for f in frames if f.filename == first.module.__file__]
    assert mine and all(f.line and f.line in first.source for f in mine)


def test_the_text_of_a_module_goes_with_it() -> None:
    decompiled = untrace.decompile(scaled, style="exact")(X, by=2.0)
    path = decompiled.module.__file__
    assert Path(path).read_text(encoding="utf-8") == decompiled.source
    del decompiled
    gc.collect()
    assert not os.path.exists(path) and path not in linecache.cache


def test_the_garbage_collector_is_left_as_it_was(monkeypatch: Any) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    with _garbage.no_collections():
        assert not gc.isenabled()
        _garbage.collect_young()
    assert gc.isenabled() and collected == [0]
    gc.disable()  # a user's own wish
    try:
        with _garbage.no_collections():
            _garbage.collect_young()
        assert not gc.isenabled() and collected == [0]
    finally:
        gc.enable()


@pytest.mark.parametrize("step", ["_place", "_show"])
def test_without_a_place_for_files_the_text_still_runs(monkeypatch: Any, step: str) -> None:
    from untrace.prove import load as loading

    def refuse(*args: Any) -> Any:
        raise OSError("read-only")

    monkeypatch.setattr(loading, step, refuse)
    decompiled = untrace.decompile(scaled)(X, by=2.0)
    assert step == "_show" or decompiled.module.__file__.startswith("<untrace scaled ")
    assert not os.path.exists(decompiled.module.__file__)
    assert "".join(linecache.getlines(decompiled.module.__file__)) == decompiled.source


def test_origin_names_the_users_line() -> None:
    decompiled = untrace.decompile(scaled, style="exact")(X, by=2.0)
    number = 1 + next(i for i, s in enumerate(decompiled.source.splitlines()) if "lax.sin" in s)
    assert decompiled.origin(number).startswith(__file__) or "test_api.py:" in decompiled.origin(number)
    assert decompiled.origin(0) == decompiled.origin(10_000) == decompiled.origin(1) == ""


# ---------------------------------------------------------------- constants


def test_a_large_constant_is_written_once_and_mapped(tmp_path: Path) -> None:
    """The same array in two places is one entry; importing the module maps it, and reads nothing."""
    table = jnp.asarray(TABLE)

    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, c: c @ table, x @ table) + table[0]

    decompiled = untrace.decompile(fn)(jnp.ones((2, 64)))
    assert len(decompiled.arrays) == 1
    decompiled.save(tmp_path / "fn.py")
    with np.load(tmp_path / "fn.npz", allow_pickle=False) as data:
        assert [data[name].tobytes() for name in data] == [TABLE.tobytes()]
    module = load(tmp_path / "fn.py")
    (name,) = decompiled.arrays
    mapped = module._constants(name, np.float32)
    owner = mapped
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert type(owner) is mmap.mmap and type(mapped) is np.ndarray
    assert np.array_equal(jax.jit(module.fn)(jnp.ones((2, 64))), jax.jit(fn)(jnp.ones((2, 64))))
    with np.load(tmp_path / "fn.npz") as data:
        np.savez_compressed(tmp_path / "again.npz", **data)
    (tmp_path / "again.npz").replace(tmp_path / "fn.npz")
    assert np.array_equal(load(tmp_path / "fn.py")._constants(name, np.float32), TABLE)


def test_a_constant_in_the_order_of_fortran_survives(tmp_path: Path) -> None:
    table = np.asfortranarray(TABLE[:, :40])
    untrace.decompile(lambda x: x @ table)(jnp.ones((2, 64))).save(tmp_path / "fortran.py")
    module = load(tmp_path / "fortran.py")
    expected = jax.jit(lambda x: x @ table)(jnp.ones((2, 64)))
    assert np.array_equal(jax.jit(module.lambda_)(jnp.ones((2, 64))), expected)


SPECIAL = {
    "float32": [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-45, np.finfo(np.float32).tiny / 2],
    "float64": [np.nan, np.inf, -0.0, 5e-324, 1e-310],
    "float16": [np.nan, -np.inf, -0.0, 6e-8],
    "bfloat16": [np.nan, np.inf, -0.0, 1e-40],
    "float8_e4m3fn": [np.nan, -0.0, 0.002, 448.0],
    "float8_e5m2": [np.nan, -np.inf, -0.0, 1.5e-5],
    "complex64": [complex(np.nan, -0.0), complex(-np.inf, 1e-45), complex(-0.0, np.nan)],
    "int4": [-8, 7, 0],
    "uint32": [2**32 - 1, 0],
    "bool": [True, False],
}


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("repeats", [1, 2000])
def test_special_values_survive(dtype: str, repeats: int, tmp_path: Path) -> None:
    """Bit for bit, as literals and as entries of the file; NaNs with their signs and payloads."""
    with jax.enable_x64(dtype == "float64"):
        values = np.array(SPECIAL[dtype] * repeats).astype(jnp.dtype(dtype))
        if dtype == "float32":
            values.view(np.uint32)[1] = 0xFFC12345  # a NaN with a payload
        table = jnp.asarray(values)

        def fn(i: Any) -> Any:
            return table, lax.dynamic_index_in_dim(table, i, keepdims=False)

        decompiled = untrace.decompile(fn)(0)
        assert bool(decompiled.arrays) == (repeats > 1)
        decompiled.save(tmp_path / "special.py")
        got, first = load(tmp_path / "special.py").fn(0)
        assert got.dtype == table.dtype
        assert np.asarray(got).tobytes() == values.tobytes()
        # XLA may compute small floats in larger ones: the first NaN is what it makes of it.
        assert np.asarray(first).tobytes() == np.asarray(fn(0)[1]).tobytes()


def test_special_scalars_survive() -> None:
    """Literals in equations: the sign of zero and of infinity, and what text tends to lose."""
    values = [-0.0, np.inf, -np.inf, 1e-45, 3.4028235e38, 0.1, np.float32(np.nan)]

    def fn(x: Any) -> Any:
        return [jnp.float32(v) * x for v in values] + [jnp.full(2, v, jnp.bfloat16) for v in values]

    got = untrace.decompile(fn)(1.0)(1.0)
    for a, b in zip(got, fn(1.0), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.arange(200), "arange(200"),
        (np.eye(20, dtype=np.float32), "eye(20"),
        (np.full((30, 30), 2.5, np.float32), "full((30, 30), 2.5"),
        (np.zeros((40, 40), np.float32), "zeros((40, 40)"),
    ],
)
def test_a_regular_constant_is_written_as_what_it_is(array: Any, text: str) -> None:
    """`arange`, `eye`, `full`: short text instead of a file, whatever their size."""
    decompiled = untrace.decompile(lambda x: x + jnp.asarray(array))(1)
    assert text in decompiled.source
    assert not decompiled.arrays
    assert np.array_equal(decompiled(1), array + 1)


def test_the_package_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "untrace", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("untrace ")


def test_the_head_names_the_users_file_also_with_static_arguments():
    def power(x, n):
        return x**n

    head = untrace.decompile(power, static_argnums=1)(jnp.ones(3), 3).source.splitlines()[0]
    assert head.startswith('"""`power` (test_api.py:')


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


@functools.partial(jax.jit, static_argnames=("times",))
def jitted(x, times):
    y = jnp.sin(x) * times
    return y, Pair(jnp.cumsum(y), y + 1.0)


def test_static_arguments_of_a_jitted_function_need_not_be_said_again():
    for args, kwargs in (((jnp.ones(4),), {"times": 3}), ((jnp.ones(4), 3), {})):
        written = untrace.decompile(jitted)(*args, **kwargs)
        assert written.proof.level == "jaxpr"
        with pytest.raises(ValueError, match="'times' was 3"):
            written(jnp.ones(4), 4)


def test_a_jitted_function_is_the_entry():
    written = untrace.decompile(functools.partial(jitted, times=3))(jnp.ones(4))
    assert '@jax.jit\ndef jitted(x):\n    """Args: x: f32[n].' in written.source
    assert written.source.count("def jitted") == 1
    assert written.proof.level == "jaxpr"

    @jax.jit
    def both(x):
        return jnp.sin(x), jnp.cumsum(x)

    written = untrace.decompile(both)(jnp.ones(4))
    assert '@jax.jit\ndef both(x):\n    """Args: x: f32[n].' in written.source and "both_2" not in written.source
