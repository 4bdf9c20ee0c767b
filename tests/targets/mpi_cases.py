"""What tests/targets/test_mpi.py runs on four devices: programs over a mesh, written for mpi4py.

Each is proven on simulated ranks, is called once more on whole arrays, and is left in a folder with its inputs and results,
for a real `mpirun`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import untrace

RANDOM = np.random.default_rng(0)
FOLDER = Path(os.environ["UNTRACE_MPI_CASES"])
Program = Callable[..., Any]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def over(function: Program, in_specs: Any, out_specs: Any, check: bool = False, **axes: int) -> Program:
    """A function on a mesh, of one axis `x` of four devices where nothing else is said."""
    axes = axes or {"x": 4}
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    count = int(np.prod(mesh.devices.shape))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]).reshape(mesh.devices.shape), tuple(axes))
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)


def written(name: str, program: Program, *args: Any, has_one_device: bool = True) -> Any:
    """The text, as it is proven; its results are those of the program, and those of one for NumPy, where that can be."""
    d = untrace.decompile(program, target="mpi4py")(*args)
    assert d.proof.at_least("close"), d.proof
    expected, found = program(*args), d(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    jax.tree.map(_same, expected, found)
    if has_one_device:
        alone = untrace.decompile(program, target="numpy")(*args)
        jax.tree.map(_same, expected, alone(*args))
    else:
        with pytest.raises(untrace.UnsupportedPrimitiveError, match="shard_map"):
            untrace.decompile(program, target="numpy")(*args)
    ranks = int(d.source.partition("Get_size() != ")[2].partition(":")[0])
    d.save(FOLDER / f"{name}.py")
    paths = jax.tree_util.tree_leaves_with_path(expected)
    np.savez(FOLDER / f"{name}.expected.npz", **{f"result{jax.tree_util.keystr(p)}": bits(y) for p, y in paths})
    inputs = dict(zip(_names(d.source), map(bits, jax.tree.leaves(args)), strict=True))
    np.savez(FOLDER / f"{name}.inputs.npz", **inputs)
    (FOLDER / f"{name}.ranks").write_text(str(ranks))
    return d


def bits(array: Any) -> np.ndarray:
    found = np.asarray(array)
    return found if found.dtype.isbuiltin == 1 else found.view(f"V{found.dtype.itemsize}")


def _names(source: str) -> list[str]:
    """The names of the arrays that the module reads from its file."""
    module: dict[str, Any] = {}
    text = source.partition('if __name__ == "__main__":')[2].partition("\n")[2].partition("result = ")[0]
    exec("mesh, _handed_out = None, lambda mesh, specs: list(specs)\nif True:\n" + text, module)
    return module["given"]


def _same(expected: Any, found: Any) -> None:
    wanted = np.asarray(expected)
    assert np.asarray(found).dtype == wanted.dtype
    np.testing.assert_allclose(
        np.asarray(found).astype(np.complex128),
        wanted.astype(np.complex128),
        rtol=1e-2 if wanted.itemsize < 4 else 1e-5,
    )


def refused(program: Program, *args: Any) -> str:
    with pytest.raises(untrace.UnsupportedPrimitiveError) as caught:
        untrace.decompile(program, target="mpi4py")(*args)
    message = str(caught.value)
    assert message.startswith("this program cannot be written for mpi4py"), message
    return message


X = floats(8, 12)


# ---------------------------------------------------------------- programs


def loss(params, batch):
    inputs, targets = batch
    return jnp.mean((jnp.tanh(inputs @ params["w"]) + params["b"] - targets) ** 2)


def sgd(axes: Any) -> Program:
    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        grads = jax.tree.map(lambda g: lax.pmean(g, axes), grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), lax.pmean(value, axes)

    return step


PARAMS, BATCH = {"w": floats(3, 2), "b": floats(2)}, (floats(12, 3), floats(12, 2))


@pytest.mark.parametrize("check", [False, True])
def test_data_parallel_step(check):
    @jax.jit
    def step(params, batch):
        return over(sgd("x"), (P(), P("x")), P(), check)(params, batch)

    d = written(f"sgd_{check}", step, PARAMS, BATCH)
    assert "for mpi4py, 4 ranks (x=4; simulated for the proof)" in d.source and "import jax" not in d.source
    assert "def step(params, batch):" in d.source and "pvary" not in d.source
    assert 'batch: (f32[3,3], f32[3,2])"' in d.source, d.source
    assert "_allreduce(mesh, " in d.source


@pytest.mark.parametrize("axes", [{"x": 2, "y": 2}, {"x": 3}, {"x": 2}])
def test_steps_on_other_meshes(axes):
    names = tuple(axes)
    written("step_" + "".join(f"{k}{v}" for k, v in axes.items()), over(sgd(names), (P(), P(names)), P(), True, **axes),
            PARAMS, BATCH)  # fmt: skip


def test_reductions():
    def reduced(x):
        total, *_ = lax.psum((x, x + 1), "x")
        return total, lax.pmax(x, "y"), lax.pmin(x, ("y", "x")), lax.psum(x > 0, "x"), lax.psum(x[0, :1], "y")

    d = written(
        "reductions", over(reduced, P("x", "y"), (P(None, "y"), P("x"), P(), P(None, "y"), P("x")), x=2, y=2), X
    )
    assert "along_x = mesh.Sub([True, False])" in d.source, d.source
    assert "MPI.MIN" in d.source and "_allreduce(mesh, " in d.source
    assert any("NaN" in note for note in d.notes)


def test_narrow_types():
    def narrow(x):
        half, words = x.astype(jnp.bfloat16), x.astype(jnp.float16)
        total, most = lax.psum(half, "x"), lax.pmax(x > 0, "x")
        return total, lax.all_gather(half, "x", tiled=True), lax.ppermute(words, "x", [(0, 1), (1, 3)]), most

    d = written("narrow", over(narrow, P("x"), (P(), P(), P("x"), P())), X)
    assert ".view(np.uint16)" in d.source


def test_complex_and_integers():
    def function(x):
        return (
            lax.psum(x + 1j * x, "x"),
            lax.psum((x * 8).astype(jnp.int8), "x"),
            lax.pmax((x * 8).astype(jnp.uint32), "x"),
        )

    written("complex", over(function, P("x"), (P(), P(), P())), np.abs(X))


def test_scattered_sums():
    def function(x):
        return (
            lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
            lax.psum_scatter(x.reshape(3, 4, 2), "x", scatter_dimension=1),
            lax.psum_scatter(x.astype(jnp.bfloat16), "x", scatter_dimension=1, tiled=True),
        )

    written("scattered", over(function, P("x"), (P("x"), P("x"), P("x"))), X)


def test_scattered_sums_over_two_axes():
    function = over(lambda x: lax.psum_scatter(x, ("y", "x"), tiled=True), P(("x", "y")), P(("x", "y")), x=2, y=2)
    written("scattered_two", function, floats(16, 3))


def test_gathers():
    def function(x):
        return (
            lax.all_gather(x, "x"),
            lax.all_gather(x, "x", axis=1),
            lax.all_gather(x, "y", axis=1, tiled=True),
            lax.all_gather(x, ("x", "y")),
            lax.all_gather(x, ("y", "x"), tiled=True),
            lax.all_gather(x[0, 0], "x"),
        )

    d = written("gathers", over(function, P("x", "y"), P(("x", "y")), x=2, y=2), X)
    assert "along_y_x = mesh.Sub([True, True]).Split(0, mesh.coords[1] * 2 + mesh.coords[0])" in d.source, d.source


def test_exchanges():
    def function(x):
        return (
            lax.all_to_all(x, "x", 1, 0, tiled=True),
            lax.all_to_all(x, "x", 1, 1, tiled=True),
            lax.all_to_all(x.reshape(2, 4, 3), "x", 1, 0),
            lax.all_to_all(x.reshape(2, 4, 3), "x", 1, 2),
            lax.all_to_all(x.astype(jnp.bfloat16), "x", 1, 0, tiled=True),
        )

    written("exchanges", over(function, P("x"), P("x")), X)


def test_arrays_in_another_order_of_memory():
    """MPI sends what lies in memory, whatever the axes are."""

    def function(x):
        y = x.T
        return (
            lax.psum(y, "x"),
            lax.all_to_all(y.reshape(4, 3, 2).T, "x", 2, 0, tiled=True),
            lax.all_gather(y, "x", axis=1, tiled=True),
            lax.psum_scatter(y, "x", scatter_dimension=0, tiled=True),
            lax.ppermute(y, "x", [(0, 2), (2, 0)]),
        )

    d = written("transposed", over(function, P("x"), (P(), P("x"), P(), P("x"), P(None, "x"))), X)
    d(np.asfortranarray(X))


def test_exchange_over_two_axes():
    function = over(lambda x: lax.all_to_all(x, ("y", "x"), 1, 0, tiled=True), P(("x", "y")), P(("x", "y")), x=2, y=2)
    written("exchange_two", function, X)


def test_permutations():
    def function(x):
        moved = lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
        return moved, lax.ppermute(x, "x", [(3, 0), (1, 2)]), lax.pshuffle(x, "x", [1, 0, 3, 2])

    written("permutations", over(function, P("x"), P("x")), X)


def test_broadcast():
    """XLA has none on the CPU, so that nothing can be proven here."""
    program = over(lambda x: lax.pbroadcast(x, "x", 2), P("x"), P())
    found = untrace.decompile(program, target="mpi4py", prove=False)(X)(X)
    np.testing.assert_array_equal(found, X[4:6])


def test_permutation_over_two_axes():
    def function(axes):
        program = over(lambda x: lax.ppermute(x, axes, [(0, 1), (1, -2), (2, 3)]), P("x", "y"), P("x", "y"), x=2, y=2)
        return lambda x: program(x)

    written("permutation_two", function(("x", "y")), X, has_one_device=False)
    assert "in another order than the mesh" in refused(function(("y", "x")), X)


def test_places():
    def function(x):
        size = lax.axis_size("x")
        return x + lax.axis_index("x") * 10 + lax.axis_index(("x", "y")) + size + lax.psum(1, ("x", "y"))

    d = written("places", over(function, P("x", "y"), P("x", "y"), x=2, y=2), X)
    assert "np.int32(along_x.Get_rank())" in d.source, d.source


@pytest.mark.parametrize("target", ["numpy", "c", *(["torch"] if importlib.util.find_spec("torch") else [])])
def test_a_mesh_on_one_device(target):
    """All shards are in one array, which has an axis for that of the mesh."""

    def normalised(x):
        total = lax.psum(jnp.sum(x), "x")
        return x / total, lax.pmax(jnp.max(x), "x")

    d = untrace.decompile(over(normalised, P("x"), (P("x"), P())), target=target)(X)
    assert "`shard_map` is written as its implementation on one device" in d.source or target == "c"
    jax.tree.map(_same, over(normalised, P("x"), (P("x"), P()))(X), d(X))


def test_groups():
    groups = [[0, 2], [3, 1]]

    def function(x):
        return (
            lax.psum(x, "x", axis_index_groups=groups),
            lax.all_gather(x, "x", axis_index_groups=groups, tiled=True),
            lax.all_to_all(x, "x", 1, 0, tiled=True, axis_index_groups=groups),
            lax.psum_scatter(x, "x", tiled=True, axis_index_groups=groups),
        )

    d = written("groups", over(function, P("x"), P("x")), X, has_one_device=False)
    assert "grouped_x = mesh.Split((0, 1, 0, 1)[mesh.Get_rank()], (0, 1, 1, 0)[mesh.Get_rank()])" in d.source, d.source


def test_halo_in_a_scan():
    """Each turn takes the edges of the neighbours, as a ring and with zeros outside."""

    def diffuse(u):
        def step(u, _):
            left = lax.ppermute(u[-1:], "x", [(i, (i + 1) % 4) for i in range(4)])
            right = lax.ppermute(u[:1], "x", [(i + 1, i) for i in range(3)])
            wide = jnp.concatenate([left, u, right])
            u = u + 0.1 * (wide[2:] - 2 * u + wide[:-2])
            return u, lax.psum(jnp.sum(u), "x")

        return lax.scan(step, u, None, length=5)

    d = written("halo", over(diffuse, P("x"), (P("x"), P())), floats(16, 2))
    assert "for _ in range(5):" in d.source, d.source


def test_loops_and_branches_that_all_ranks_decide_alike():
    def function(x):
        def goes_on(state):
            turn, x = state
            return (turn < 10) & (lax.psum(jnp.sum(x**2), "x") > 1.0)

        turns, x = lax.while_loop(goes_on, lambda s: (s[0] + 1, s[1] * lax.pmean(0.5, "x")), (0, x))
        x = lax.fori_loop(0, 3, lambda i, x: x + lax.pmean(x, "x") * i, x)
        big = lax.pmax(jnp.max(x), "x") > 0.1
        return turns, lax.cond(big, lambda x: lax.ppermute(x, "x", [(0, 1)]), lambda x: x, x)

    written("decided", over(function, P("x"), (P(), P("x"))), X)


def test_branches_without_collectives_are_each_rank_s_own():
    def function(x):
        x = lax.cond(lax.axis_index("x") == 0, lambda x: x * 2, lambda x: -x, x)
        return lax.while_loop(lambda x: jnp.sum(x**2) > 1, lambda x: x * 0.5, x)

    written("own_branches", over(function, P("x"), P("x")), X)


def test_a_decision_along_another_axis():
    """The ranks along y decide alike, those along x do not: each row meets by itself."""

    def function(x):
        first = lax.axis_index("x") == 0
        return lax.cond(first, lambda x: x + lax.psum(x, "y"), lambda x: x, x)

    written("rows", over(function, P("x", "y"), P("x", "y"), x=2, y=2), X)


def test_pmap():
    def step(a, weights):
        total = lax.psum(a * weights, "i")
        return a / total, total, lax.axis_index("i")

    program = jax.pmap(step, axis_name="i", in_axes=(0, None))
    d = written("pmapped", program, floats(4, 3) + 3, jnp.ones(3) * 2)
    assert "4 ranks (i=4; " in d.source


def test_constants_arguments_and_results_that_are_whole():
    table = np.arange(12, dtype=np.float32)

    def program(x, untouched):
        y = over(lambda v: v + table * lax.axis_index("x").astype(jnp.float32), P("x"), P("x"))(x)
        return {"moved": y, "same": x, "whole": untouched, "none": None}

    d = written("constants", program, X, floats(3))
    assert "none" in d(X, floats(3))


def test_keys():
    def function(key, x):
        key = jax.random.fold_in(key, lax.axis_index("x"))
        return x + lax.pmean(jax.random.normal(key, x.shape), "x")

    d = untrace.decompile(over(function, (P(), P("x")), P("x")), target="mpi4py")(jax.random.key(0), X)
    assert d.proof.at_least("close"), d.proof


def test_arguments_of_another_tree_or_size_are_refused():
    d = untrace.decompile(over(sgd("x"), (P(), P("x")), P()), target="mpi4py")(PARAMS, BATCH)
    with pytest.raises(TypeError, match="this was written for"):
        d(params=PARAMS, batch=BATCH)
    with pytest.raises(TypeError, match="this was written for"):
        d(PARAMS, (floats(16, 3), floats(16, 2)))
    with pytest.raises(ValueError, match="cannot be cut"):
        d(PARAMS, (floats(10, 3), floats(10, 2)))


def test_a_text_that_is_wrong_is_found():
    """The ranks of the proof say what MPI would wait for, or take for numbers."""
    d = untrace.decompile(over(lambda x: lax.psum(x, "x"), P("x"), P()), target="mpi4py")(X)
    for wrong, said in (
        ("comm.Allreduce(x, out, op)", "if comm.Get_rank():\n        comm.Allreduce(x, out, op)"),
        ("x = np.asarray(x, order", "x = np.asarray(x[comm.Get_rank() > 0:], order"),
        ("np.empty_like(x)", "np.empty(x.shape, np.float64)"),
    ):
        assert wrong in d.source
        broken = untrace.decompile(over(lambda x: lax.psum(x, "x"), P("x"), P()), target="mpi4py")(X)
        broken.source = broken.source.replace(wrong, said)
        with pytest.raises(Exception, match="wait for ever|different calls|two types"):
            broken(X)


# ---------------------------------------------------------------- refusals


def test_what_is_more_than_one_mapped_function_is_refused():
    both = over(lambda x: x + 1, P("x"), P("x"))
    assert "more than one shard_map" in refused(lambda x: both(both(x)), X)
    assert "beside its shard_map it computes `mul` from " in refused(lambda x: both(x) * 2, X)
    assert "it has no jax.shard_map" in refused(lambda x: jnp.sin(x) * 2, X)
    assert "it has no jax.shard_map" in refused(lambda x: x, X)


def test_what_the_compiler_would_place_is_refused():
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    partly = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    assert "leaves axes of the mesh to the compiler" in refused(jax.jit(partly), X)
    place = jax.sharding.NamedSharding(mesh, P("x"))
    refused(lambda x: lax.with_sharding_constraint(x, place) + 1, X)


def test_two_parts_of_one_argument_are_refused():
    program = over(lambda a, b: a + b.sum(), (P("x"), P()), P("x"))
    assert "twice, with different in_specs" in refused(lambda x: program(x, x), X)


@pytest.mark.parametrize("decision", ["index", "shard", "loop", "other"])
def test_collectives_that_ranks_may_not_come_to_are_refused(decision):
    def function(x):
        if decision == "loop":
            return lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x * 0.5 - lax.pmean(x, "x"), x)
        if decision == "other":  # a loop of as many turns as the rank has, whose result decides
            turns = lax.while_loop(lambda n: n < lax.axis_index("x"), lambda n: n + 1, 0)
            return lax.cond(turns > 1, lambda x: lax.psum(x, "x"), lambda x: x, x)
        is_first = lax.axis_index("x") == 0 if decision == "index" else x[0, 0] > 0
        return lax.cond(is_first, lambda x: lax.ppermute(x, "x", [(0, 1)]), lambda x: x, x)

    message = refused(over(function, P("x"), P("x")), X)
    assert "may decide otherwise: some would wait for ever" in message and "mpi_cases.py:" in message, message


def test_what_numpy_has_not_is_refused():
    assert "has nothing for" in refused(over(lambda x: lax.psum(jax.pure_callback(np.sin, x, x), "x"), P("x"), P()), X)


def test_static_arguments_are_refused():
    program = over(lambda x: x, P("x"), P("x"))
    with pytest.raises(untrace.UnsupportedPrimitiveError, match="static arguments"):
        untrace.decompile(lambda x, n: program(x), target="mpi4py", static_argnums=1)(X, 3)


def test_other_sizes_are_refused():
    with pytest.raises(untrace.OptionError, match="sizes of its example"):
        untrace.decompile(over(lambda x: x, P("x"), P("x")), target="mpi4py", also=[X])(X)
