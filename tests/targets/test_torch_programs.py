"""Programs written for PyTorch: the text beside the original, and under what PyTorch does with functions of tensors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strategies
from jax import lax
from target_programs import PARAMS, PROGRAMS, X, Y, floats, loss

import untrace
from untrace import jax_compat

torch = pytest.importorskip("torch")
from torch.utils import _pytree as trees  # noqa: E402

from untrace.targets.torch.tensors import array_of, tensor_of  # noqa: E402

# Loops that end when their numbers say so: neither a compiler nor `vmap` can know how many turns they take.
LOOKS_AT_NUMBERS = ("while",)
IMPORTS = (
    "import torch",
    "import torch.nn.functional as F",
    "import numpy as np",
    "import math",
    "import functools",
    "import itertools",
)


def as_tensors(args: Any) -> Any:
    """Arguments of the original as tensors, keys as their words."""
    return jax.tree.map(lambda x: tensor_of(jax_compat.as_numpy(x)), args)


def entry(text: Any) -> Any:
    """The function that the text defines, which takes tensors."""
    return getattr(text.module, text.name)


def same(found: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """That trees of tensors are of the same types and close."""
    ones, others = trees.tree_leaves(found), trees.tree_leaves(expected)
    assert len(ones) == len(others)
    for a, b in zip(ones, others, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


@pytest.fixture(scope="module", params=list(PROGRAMS))
def written(request: Any) -> Any:
    function, args = PROGRAMS[request.param]
    text = untrace.decompile(function, target="torch")(*args)
    return request.param, function, args, text


def test_the_text_computes_what_the_original_does(written: Any) -> None:
    _, function, args, text = written
    assert text.proof.at_least("close"), text.proof
    expected, found = function(*args), text(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert isinstance(b, torch.Tensor)
        b = array_of(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        step = float(jnp.finfo(a.dtype).eps) if jnp.issubdtype(a.dtype, jnp.inexact) else 0.0
        wide = np.complex128 if jnp.issubdtype(a.dtype, jnp.complexfloating) else np.float64
        np.testing.assert_allclose(np.asarray(a).astype(wide), b.astype(wide), rtol=max(2e-5, 2 * step), atol=2e-6)


def test_the_text_knows_nothing_of_jax(written: Any) -> None:
    imports = [line for line in written[3].source.splitlines() if line.startswith(("import ", "from "))]
    assert all(line in IMPORTS or line.startswith("from typing") for line in imports), imports


def test_a_compiler_takes_it_whole(written: Any) -> None:
    name, _, args, text = written
    compiled = torch.compile(entry(text), backend="eager", fullgraph=True)
    given = as_tensors(args)
    if name in LOOKS_AT_NUMBERS:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent"):
            compiled(*given)
        return
    same(compiled(*given), entry(text)(*given))


def test_it_is_exported(written: Any) -> None:
    name, _, args, text = written
    function, given = entry(text), as_tensors(args)

    class Model(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    if name in LOOKS_AT_NUMBERS:
        with pytest.raises(Exception, match="data-dependent"):
            torch.export.export(Model(), tuple(given))
        return
    same(torch.export.export(Model(), tuple(given)).module()(*given), function(*given))


def test_it_is_mapped(written: Any) -> None:
    name, _, args, text = written
    function, given = entry(text), as_tensors(args)
    other = jax.tree.map(lambda x: tensor_of(np.flip(array_of(x))), given)
    both = trees.tree_map(lambda x, y: torch.stack([x, y]), given, other)
    if name in LOOKS_AT_NUMBERS:
        with pytest.raises(RuntimeError, match="data-dependent"):
            torch.func.vmap(function)(*both)
        return
    found = torch.func.vmap(function)(*both)
    for place, one in enumerate((given, other)):
        same(trees.tree_map(lambda x, place=place: x[place], found), function(*one))


def test_it_has_the_derivatives_of_the_original(written: Any) -> None:
    _, function, args, text = written
    leaves, tree = jax.tree.flatten(args)
    places = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]
    results = jax.tree.leaves(jax.eval_shape(function, *args))
    if not places or not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in results):
        return  # nothing to differentiate
    given, own = as_tensors(leaves), entry(text)

    def original_sum(*some: Any) -> Any:
        whole = list(leaves)
        for i, x in zip(places, some, strict=True):
            whole[i] = x
        found = jax.tree.leaves(function(*jax.tree.unflatten(tree, whole)))
        return sum(jnp.sum(jnp.real(y)).astype(jnp.float32) for y in found if jnp.issubdtype(y.dtype, jnp.inexact))

    def own_sum(*some: Any) -> Any:
        whole = list(given)
        for i, x in zip(places, some, strict=True):
            whole[i] = x
        found = trees.tree_leaves(own(*jax.tree.unflatten(tree, whole)))
        return sum(torch.real(y).sum().to(torch.float32) for y in found if y.is_floating_point() or y.is_complex())

    numbers = tuple(range(len(places)))
    found = torch.func.grad(own_sum, argnums=numbers)(*[given[i] for i in places])
    try:
        expected = jax.grad(original_sum, argnums=numbers)(*[jnp.asarray(leaves[i]) for i in places])
    except ValueError:  # a loop that ends when its numbers say so, of which PyTorch has the derivative and JAX none
        assert all(bool(torch.isfinite(x).all()) for x in found)
        return
    narrow = any(x.dtype == torch.bfloat16 for x in found)
    same(found, as_tensors(list(expected)), **(dict(rtol=1e-2, atol=1e-2) if narrow else {}))


def test_other_sizes_are_followed_and_other_arguments_refused() -> None:
    text = untrace.decompile(jax.grad(loss), target="torch")(PARAMS, X, Y)
    x, y = floats(8, 3), floats(8, 4)
    expected = jax.grad(loss)(PARAMS, x, y)
    np.testing.assert_allclose(text(PARAMS, x, y)["w"], expected["w"], rtol=1e-5, atol=1e-7)
    with pytest.raises(TypeError, match="written for"):
        text(PARAMS, floats(8, 2), y)
    with pytest.raises(TypeError, match="written for"):
        text({"w": PARAMS["w"]}, x, y)
    with pytest.raises(TypeError, match="written for"):
        text(PARAMS, x.astype(np.int32), y)


def test_numbers_and_wide_tensors_become_what_jax_makes_of_them() -> None:
    def program(x, y):
        return jnp.sum(x * y), x + 1

    text = untrace.decompile(program, target="torch")(floats(3), np.float32(2.0))
    x = floats(3)
    for given in (torch.from_numpy(x).double(), x.astype(np.float64), torch.from_numpy(x)):
        for factor in (2.0, torch.tensor(2.0, dtype=torch.float64), np.float64(2.0)):
            total, more = entry(text)(given, factor)
            assert total.dtype == more.dtype == torch.float32
            np.testing.assert_allclose(total, program(x, np.float32(2.0))[0], rtol=1e-6)
    torch.set_default_dtype(torch.float16)
    try:
        assert entry(text)(given, 2.0)[0].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    counted = untrace.decompile(lambda n: n * 2, target="torch")(np.int32(3))
    assert entry(counted)(4).dtype == torch.int32 and int(entry(counted)(torch.tensor(4))) == 8


def test_nothing_depends_on_the_default_type(written: Any) -> None:
    _, _, args, text = written
    expected = text(*args)
    torch.set_default_dtype(torch.float64)
    try:
        found = text(*args)
    finally:
        torch.set_default_dtype(torch.float32)
    same(found, expected)


def test_words_of_keys_go_in_and_come_out_as_they_are() -> None:
    def program(key):
        first, second = jax.random.split(key)
        return first, jax.random.bits(second, (3,)), jax.random.key_data(jax.random.fold_in(second, 7))

    raw = jax.random.PRNGKey(11)
    text = untrace.decompile(program, target="torch")(raw)
    for found, wanted in zip(text(raw), program(raw), strict=True):
        assert found.dtype == torch.uint32
        np.testing.assert_array_equal(array_of(found), wanted)


def test_it_runs_where_jax_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = untrace.decompile(jax.grad(loss), target="torch")(PARAMS, X, Y)
    path = Path(text.save(tmp_path / "model.py"))
    for name in ("jax", "jaxlib", "untrace", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    found = model.grad_loss(trees.tree_map(torch.from_numpy, PARAMS), torch.from_numpy(X), torch.from_numpy(Y))
    monkeypatch.undo()
    for name, grad in jax.grad(loss)(PARAMS, X, Y).items():
        np.testing.assert_allclose(found[name], grad, rtol=1e-5, atol=1e-7)


def test_large_constants_stand_in_a_file_beside_it(tmp_path: Path) -> None:
    table, half = floats(40, 20), jnp.asarray(floats(600), jnp.bfloat16)

    def program(x, key):
        words = np.arange(400, dtype=np.uint32) + np.uint32(2**31)
        return x @ table + half[0], half.sum(), words ^ key

    text = untrace.decompile(program, target="torch")(floats(40), np.uint32(5))
    text.save(tmp_path / "model.py")
    assert (tmp_path / "model.npz").exists()
    x = floats(40)
    for found, wanted in zip(text(x, np.uint32(9)), program(x, np.uint32(9)), strict=True):
        found = array_of(found)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.astype(float), np.asarray(wanted).astype(float), rtol=2e-2)


def test_complex_numbers_that_are_not_finite_stand_in_the_text() -> None:
    table = np.array([complex(np.inf, -0.0), complex(-0.0, np.nan), 1 - 2j], np.complex64)

    def program(x):
        return jnp.where(x > 0, table, 1j * x)

    text = untrace.decompile(program, target="torch")(floats(3))
    for x in (np.ones(3, "f4"), -np.ones(3, "f4")):
        np.testing.assert_array_equal(array_of(text(x)), program(x))


def test_a_choice_is_made_of_both_and_with_a_loop_of_one() -> None:
    def cheap(x):
        return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)

    def halved(x):
        return lax.while_loop(lambda y: jnp.abs(y).max() > 1, lambda y: y / 2, x)

    def costly(x):
        return lax.cond(x.sum() > 0, halved, lambda x: x - 1, x)

    text = untrace.decompile(cheap, target="torch", guard=False)(floats(3))
    assert "torch.where(" in text.source and "if " not in text.source.split('"""')[-1]
    text = untrace.decompile(costly, target="torch", guard=False)(floats(3))
    body = text.source.split('"""')[-1]
    assert "if " in body and "while " in body and "torch.where" not in body
    for x in (np.float32([9, 1, 2]), np.float32([-9, 1, 2])):
        np.testing.assert_allclose(text(x), costly(x))


@pytest.mark.parametrize("count", [2, 3])
def test_a_choice_by_a_number_is_clamped(count: int) -> None:
    branches = [jnp.sin, jnp.cos, jnp.tan][:count]

    def program(i, x):
        def both(x):
            return lax.switch(i, branches, x), lax.switch(1, branches, x)

        return both(x), jax.vmap(lambda x: lax.switch(i, branches, x))(x)

    text = untrace.decompile(program, target="torch")(np.int32(1), floats(4))
    for i in (-3, 0, 1, 2, 9):
        x = floats(4)
        found, wanted = jax.tree.leaves(text(np.int32(i), x)), jax.tree.leaves(program(np.int32(i), x))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_names_and_keys_from_outside_are_no_code() -> None:
    hostile = {'a"]; import os; os.abort() #': floats(2), "b\n": floats(2)}

    def program(params):
        return sum(jnp.sum(v) for v in params.values())

    program.__name__ = "f(x): import os #"
    text = untrace.decompile(program, target="torch")(hostile)
    np.testing.assert_allclose(text(hostile), program(hostile), rtol=1e-5)


def on_the_host(x):
    drawn = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (4,))[1]
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4,), np.float32), x) + drawn


def test_what_it_has_not_is_refused_with_the_authors_lines() -> None:
    with pytest.raises(untrace.UnsupportedPrimitiveError) as raised:
        untrace.decompile(on_the_host, target="torch")(floats(4))
    assert "pure_callback" in str(raised.value) and "rng_bit_generator" in str(raised.value)  # all of it at once
    assert str(raised.value).count("test_torch_programs.py") == 2


def test_a_text_that_computes_something_else_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from untrace.targets.torch.rules.table import TORCH

    monkeypatch.setitem(TORCH._rules, "rsqrt", lambda w, x, **_: w.torch("sqrt", x))
    with pytest.raises(untrace.ProofError, match="result differs by .* at sampled input"):
        untrace.decompile(lambda x: lax.rsqrt(x) + 1.0, target="torch")(floats(3))


def test_a_text_for_jax_goes_to_pytorch() -> None:
    text = untrace.decompile(loss)(PARAMS, X, Y).to("torch")
    assert text.target == "torch"
    assert "torch.tanh(x @ params" in text.source


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_is_close_or_refused(seed: int) -> None:
    program = strategies.seeded_program(str(seed), size=6)
    module = program.module()
    args, kwargs = program.arguments(module)
    try:
        text = untrace.decompile(module.program, target="torch", sizes="fixed")(*args, **kwargs)
    except untrace.UnsupportedPrimitiveError:
        return
    assert text.proof.at_least("close")
    found = jax.tree.leaves(text(*args, **kwargs))
    expected = jax.tree.leaves(jax.eval_shape(module.program, *args, **kwargs))  # JAX cannot run all of them eagerly
    found = [array_of(x) for x in found]
    assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]


def test_the_command_line_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from untrace.cli import main

    source = tmp_path / "model.py"
    source.write_text("import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x) * 2\n")
    assert main(["show", f"{source}:f", "f32[3]", "--to", "torch"]) == 0
    assert "torch.sin(x) * 2.0" in capsys.readouterr().out


def test_turns_of_an_axis_are_pytorchs():
    def program(x):
        return jnp.roll(x, 1, axis=0) + jnp.roll(x, (1, -2), axis=(0, 1)) + jnp.roll(x, 3)

    x, other = floats(4, 5), floats(7, 9)
    text = untrace.decompile(program, target="torch")(x)
    assert text.source.count("torch.roll(") == 3 and "torch.cat" not in text.source
    np.testing.assert_allclose(text(other), program(other), rtol=1e-6)


def test_what_a_number_of_a_library_chooses_is_chosen():
    x = floats(4, 5)
    text = untrace.decompile(lambda x, i: x[i] * 2.0, target="torch")(x, jnp.int32(1))
    assert "torch.tensor(" not in text.source.partition("def _")[0]
    np.testing.assert_allclose(text(x, np.int32(9)), x[3] * 2.0)
