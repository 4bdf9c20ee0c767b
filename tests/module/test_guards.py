"""A written function is right for what it is called with, or says that it is not: the guard of the entry."""

import collections
import dataclasses
import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from work import lines_run

import untrace

_serial = itertools.count()


def saved(d: Any, folder: Any) -> Any:
    """The entry of the saved text, imported as a fresh module."""
    name = f"guarded_{next(_serial)}"
    path = folder / f"{name}.py"
    d.save(path)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, d.name)


def squared(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


W, X, Y = jnp.arange(3.0), jnp.linspace(0.0, 1.0, 12).reshape(4, 3), jnp.ones(4)
REFUSED = r"this was written for .*not for .*Decompile the original"


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["mass", "name"])
@dataclasses.dataclass
class Body:
    x: Any
    mass: float
    name: str


class Point(NamedTuple):
    x: Any
    y: Any


def test_a_gradient_follows_the_batch_and_refuses_other_types(tmp_path):
    text = saved(untrace.decompile(jax.grad(squared))(W, X, Y), tmp_path)
    more = jnp.linspace(-1.0, 1.0, 24).reshape(8, 3), jnp.ones(8)
    np.testing.assert_array_equal(text(W, *more), jax.grad(squared)(W, *more))
    with pytest.raises(TypeError, match=REFUSED):
        text(W.astype(int), X, Y)
    with pytest.raises(TypeError, match=REFUSED):
        text(W, X, jnp.ones(5))
    with pytest.raises(TypeError, match=REFUSED):
        text([W], X, Y)


def test_the_message_says_what_was_fixed_and_what_came():
    d = untrace.decompile(jax.grad(squared))(W, X, Y)
    with pytest.raises(TypeError) as caught:
        d(W, X, jnp.ones(5))
    assert "y: f32[n] (m = 3, n = 4), not for f32[5]" in str(caught.value)


WEIGHTS = np.array([0.1, 0.7, 1.9])


def test_a_module_that_was_imported_without_64_bits_is_refused_with_them(tmp_path):
    with jax.enable_x64(True):
        d = untrace.decompile(lambda x: x @ jnp.asarray(WEIGHTS))(jnp.ones(3))
        assert saved(d, tmp_path)(jnp.ones(3)) == d(jnp.ones(3))
    text = saved(d, tmp_path)
    with jax.enable_x64(True), pytest.raises(TypeError, match="imported with jax_enable_x64=False.* import it with True"):
        text(jnp.ones(3))


def test_the_message_says_of_which_number_a_size_is_a_multiple():
    d = untrace.decompile(lambda x: x.reshape(-1, 2).sum(axis=1))(jnp.ones(8))
    with pytest.raises(TypeError, match="a multiple of 2.*not for"):
        d(jnp.ones(7))


def test_a_static_field_on_which_only_a_derivative_depends_is_fixed():
    """Rules are other objects at every trace, as JAX's memory has it: what they say tells whether they are the same."""

    def scaled(body):
        @jax.custom_jvp
        def wave(x):
            return jnp.sin(x)

        @wave.defjvp
        def wave_jvp(primals, tangents):
            return wave(*primals), body.mass * tangents[0]

        return wave(body.x)

    texts = set()
    for _ in range(2):
        texts.add(untrace.decompile(scaled)(Body(jnp.ones(3), 2.0, "a")).source)
        jax.clear_caches()
    (text,) = texts
    assert "Body(f32[n] | (2.0, *))" in text, text


def test_static_fields_are_refused_where_the_text_depends_on_them(tmp_path):
    energy = saved(untrace.decompile(lambda b: 0.5 * b.mass * jnp.sum(b.x**2))(Body(jnp.ones(3), 2.0, "a")), tmp_path)
    assert energy(Body(jnp.ones(5), 2.0, "b")) == 5.0  # the name makes no difference, the size follows
    with pytest.raises(TypeError, match=REFUSED):
        energy(Body(jnp.ones(3), 5.0, "a"))
    length = saved(untrace.decompile(lambda b: jnp.sum(b.x**2))(Body(jnp.ones(3), 2.0, "a")), tmp_path)
    assert length(Body(jnp.ones(3), 5.0, "a")) == 3.0


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["x"],
    meta_fields=["rows", "columns", "rate", "word", "other", "flag"],
)
@dataclasses.dataclass(frozen=True)
class Layer:
    x: jax.Array
    rows: int = 3
    columns: int = 4
    rate: float = 0.5
    word: str = "a"
    other: str = "b"
    flag: bool = True


def test_of_many_static_fields_only_those_that_matter_are_fixed(tmp_path):
    found = untrace.decompile(lambda one, two: jnp.sum(one.x) * one.rate + two.x)(Layer(X), Layer(X, rate=2.0))
    text = saved(found, tmp_path)
    given = Layer(X, 7, 8, 0.5, "c", "d", False)
    np.testing.assert_array_equal(text(given, given), jnp.sum(X) * 0.5 + X)
    with pytest.raises(TypeError, match=REFUSED):
        text(dataclasses.replace(given, rate=0.25), given)


@pytest.mark.parametrize(
    "tree, others",
    [
        ({"a": X, "b": Y}, [{"a": X, "b": Y, "c": Y}, {"a": X}, collections.OrderedDict(a=X, b=Y)]),
        ([X, X], [[X, X, X], [X], (X, X)]),
        ((X, None), [(X, X), [X, None], (X,)]),
        (Point(X, Y), [(X, Y), Point(Y, X)]),
    ],
    ids=["keys", "lengths", "None", "classes"],
)
def test_another_tree_is_refused(tree, others, tmp_path):
    text = saved(untrace.decompile(lambda t: sum(jnp.sum(x) for x in jax.tree.leaves(t)))(tree), tmp_path)
    text(tree)
    for other in others:
        with pytest.raises(TypeError, match=REFUSED):
            text(other)


def test_numbers_and_numpy_s_arrays_are_taken(tmp_path):
    def scaled(x, scale, steps):
        return (x * scale).astype(jnp.int32) + steps.astype(jnp.int32)

    text = saved(untrace.decompile(lambda x, s, n: scaled(x, jnp.asarray(s), jnp.asarray(n)))(X, 2.0, 3), tmp_path)
    for args in ((X, 2.0, 3), (np.asarray(X), np.float32(2.0), jnp.asarray(3)), (X, jnp.float32(2.0), 3)):
        np.testing.assert_array_equal(text(*args), scaled(X, jnp.float32(2.0), jnp.int32(3)))


def test_weak_types_are_told_apart_where_they_matter():
    half = jnp.ones(3, jnp.bfloat16)
    d = untrace.decompile(lambda x, scale: x * scale)(half, 2.0)
    assert d(half, 3.0).dtype == jnp.bfloat16
    with pytest.raises(TypeError, match=REFUSED):  # the original gives float32 there
        d(half, jnp.float32(3.0))


def test_64_bit_mode_and_the_implementation_of_keys_are_part_of_it():
    d = untrace.decompile(lambda x: jnp.arange(3) + x)(jnp.int32(1))
    with jax.enable_x64(True), pytest.raises(TypeError, match="jax_enable_x64=False"):
        d(jnp.int32(1))
    d = untrace.decompile(lambda n: jax.random.normal(jax.random.key(n), (2,)))(3)
    with jax.default_prng_impl("rbg"), pytest.raises(TypeError, match="prng=threefry2x32"):
        d(3)


def test_without_arguments_the_mode_is_checked_all_the_same(tmp_path):
    text = saved(untrace.decompile(lambda: jnp.arange(3) * 2.0)(), tmp_path)
    assert text().dtype == jnp.float32
    with jax.enable_x64(True), pytest.raises(TypeError, match="jax_enable_x64=False"):
        text()


def test_under_a_transformation_nothing_is_left_of_it():
    d = untrace.decompile(squared)(W, X, Y)
    assert str(jax.make_jaxpr(d)(W, X, Y)) == str(jax.make_jaxpr(squared)(W, X, Y))
    np.testing.assert_array_equal(jax.grad(d)(W, X, Y), jax.grad(squared)(W, X, Y))
    jax.vmap(d, in_axes=(None, 0, 0))(W, jnp.stack([X, X]), jnp.stack([Y, Y]))


def test_a_known_call_costs_a_few_lines():
    d = untrace.decompile(squared)(W, X, Y)
    d(W, X, Y)
    types = next(line for line in d.source.splitlines() if "_checked(" in line).split('"')[1]
    checked = d.module._checked
    checked(types, W, X, Y)
    assert lines_run(lambda: checked(types, W, X, Y)) < 30


def test_without_a_guard_there_is_none():
    d = untrace.decompile(squared, guard=False)(W, X, Y)
    assert "_checked" not in d.source and d.source.count("def ") == 1
    assert "_checked" in untrace.decompile(squared, style="exact")(W, X, Y).source
    assert "_checked" in untrace.from_jaxpr(jax.make_jaxpr(squared)(W, X, Y)).source


def test_a_long_tree_is_told_in_short_and_a_very_long_one_by_its_hash(tmp_path):
    layers = [{"w": jnp.ones((3, 3)), "b": jnp.ones(3)} for _ in range(3)]

    def step(layers, moments, x):
        for layer in layers:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x, jax.tree.map(lambda m, p: 0.9 * m + p, moments, layers)

    d = untrace.decompile(step)(layers, layers, X)
    assert "layers: [{b: f32[m], w: f32[m,m]}] * 3; moments: like layers; " in d.source, d.source
    text = saved(d, tmp_path)
    text(layers, layers, jnp.ones((7, 3)))
    with pytest.raises(TypeError, match=REFUSED):
        text(layers[:2], layers[:2], X)
    many = {f"parameter_{i}": jnp.ones((i + 1, 3)) for i in range(50)}
    d = untrace.decompile(lambda p: sum(jnp.sum(x) for x in p.values()), sizes="fixed")(many)
    assert "p: #" in d.source
    text = saved(d, tmp_path)
    text(many)
    with pytest.raises(TypeError, match=REFUSED):
        text({**many, "parameter_3": jnp.ones((9, 3))})


def test_the_guard_holds_in_another_process(tmp_path):
    """Descriptions of static fields hold no addresses and no order of a set."""
    (tmp_path / "model.py").write_text(
        "import dataclasses, functools, jax, jax.numpy as jnp\n"
        "@functools.partial(jax.tree_util.register_dataclass, data_fields=['x'], meta_fields=['f', 'tags'])\n"
        "@dataclasses.dataclass\n"
        "class Model:\n    x: object\n    f: object\n    tags: frozenset\n"
        "def scaled(by):\n    return lambda x: by * x\n"
        "def call(m):\n    return m.f(m.x)\n"
        "def make(by=2.0):\n    return Model(jnp.ones(3), scaled(by), frozenset({'a', 'b', 'c'}))\n"
    )
    write = "import model, untrace; untrace.decompile(model.call)(model.make()).save('written.py')"
    use = (
        "import model, written\nprint(written.call(model.make()))\n"
        "try:\n    written.call(model.make(3.0))\nexcept TypeError as e:\n    print('refused', e)\n"
    )
    for seed, program in (("1", write), ("2", use), ("3", use)):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert program is write or "[2. 2. 2.]" in done.stdout and "refused" in done.stdout


def test_a_partial_bears_the_name_of_its_function_and_takes_what_is_left():
    d = untrace.decompile(functools.partial(squared, W), guard=False)(X, Y)
    assert d.name == "squared" and "def squared(x, y):" in d.source
    d = untrace.decompile(jax.grad(functools.partial(squared, y=Y)), guard=False)(W, X)
    assert d.name == "grad_squared" and "def grad_squared(w, x):" in d.source


def test_a_static_field_without_a_hash(tmp_path):
    """The original takes it where nothing is jitted, and so does the text."""
    text = saved(untrace.decompile(lambda b: 2.0 * b.x)(Body(jnp.ones(3), [1, 2], "a")), tmp_path)
    np.testing.assert_array_equal(text(Body(jnp.ones(3), [1, 2], "a")), 2.0 * jnp.ones(3))
    with pytest.raises(TypeError, match=REFUSED):
        text(Body(jnp.ones(3), [1, 3], "a"))


def test_names_of_the_helpers_may_be_the_author_s(tmp_path):
    def _checked(x):
        return jnp.sin(x) * jnp.cos(x) + x**3 - jnp.tanh(x)

    def re(x):
        return _checked(x) + _checked(x + 1.0)

    def f(_type_of, hashlib):
        return re(_type_of) * re(hashlib)

    d = untrace.decompile(f)(X, X)
    assert d.proof.level == "jaxpr" and "idiomatic" not in " ".join(d.notes)
    np.testing.assert_array_equal(jax.jit(saved(d, tmp_path))(X, X), jax.jit(f)(X, X))


_WRITE = """
import sys, jax, jax.numpy as jnp, untrace
from jax import process_count
from jax.sharding import NamedSharding, PartitionSpec as P
auto = (jax.sharding.AxisType.Auto,)
mesh = jax.make_mesh((8,), ("i",), axis_types=auto)
inner = jax.jit(lambda a: a * jax.device_count())

def plain(a): return 2.0 * a
def counted(a): return a * jax.device_count()
def traced_before(a): return inner(a) + 1.0
def first(a): return a * len([d for d in jax.local_devices() if d.platform == "cpu"])
def processes(a): return a * (process_count() + 1)
def mapped(a): return jax.shard_map(lambda v: jax.lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())(a)
def placed(a): return jax.lax.with_sharding_constraint(2.0 * a, NamedSharding(mesh, P("i")))
def on_each(a): return jax.pmap(lambda v: v / jax.lax.psum(v, "i"), axis_name="i")(a)
def around(a): return a * jax.sharding.get_abstract_mesh().size
def unplaced(a): return jax.lax.with_sharding_constraint(2.0 * a, P("i"))

x = jnp.arange(8.0)
inner(x)
process_count(), jax.local_devices()  # which remember their answers
for f in (plain, counted, traced_before, first, processes, mapped, placed, on_each):
    untrace.decompile(f)(x).save(f"{f.__name__}_w.py")
untrace.from_jaxpr(jax.make_jaxpr(mapped)(x), name="mapped").save("jaxpr_w.py")
with jax.set_mesh(mesh):
    for f in (around, unplaced):
        untrace.decompile(f)(x).save(f"{f.__name__}_w.py")
    assert "_placed" not in untrace.decompile(plain)(x).source
untrace.decompile(around)(x).save("nothing_around_w.py")
"""
_USE = """
import importlib, contextlib, sys, jax, jax.numpy as jnp
auto = (jax.sharding.AxisType.Auto,)
meshes = {n: jax.make_mesh((n,), ("i",), axis_types=auto) for n in (2, 4, 8) if n <= jax.device_count()}
for word in sys.argv[1:]:
    file, name, size = word.split(":")
    with jax.set_mesh(meshes[int(size)]) if int(size) else contextlib.nullcontext():
        try:
            getattr(importlib.import_module(file + "_w"), name)(jnp.arange(8.0))
            print(word, "taken")
        except TypeError as error:
            print(word, error)
"""


def test_devices_and_meshes_are_part_of_it_where_they_matter(tmp_path):
    def run(program, devices, *words):
        flags = f"--xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return {word: said for word, _, said in (line.partition(" ") for line in done.stdout.splitlines())}

    run(_WRITE, 8)
    assert "_placed" not in (tmp_path / "plain_w.py").read_text(encoding="utf-8")
    there = ["plain:plain:0", "plain:plain:2", "processes:processes:0", "nothing_around:around:0"]
    here = ["counted:counted:0", "traced_before:traced_before:0", "first:first:0", "mapped:mapped:0", "placed:placed:0",
            "on_each:on_each:0", "jaxpr:mapped:0"]  # fmt: skip
    around = ["around:around:8", "unplaced:unplaced:8"]
    said = run(_USE, 8, *there, *here, *around)
    assert set(said.values()) == {"taken"}, said
    assert list(said) == [*there, *here, *around]
    fewer = run(_USE, 4, *there, *here)
    assert {fewer[word] for word in there} == {"taken"}, fewer
    assert all("this was written for " in fewer[word] for word in here), fewer
    assert fewer["counted:counted:0"] == (
        "this was written for device_count = 8, not for 4. Decompile the original there: it may do something else."
    )
    assert "local_devices = 8 cpu, not for 4 cpu" in fewer["first:first:0"]
    elsewhere = run(_USE, 8, *[word[:-1] + size for word in around for size in "042"], "nothing_around:around:8")
    assert all("this was written for get_abstract_mesh" in said for said in elsewhere.values()), elsewhere
    assert "get_abstract_mesh = i=8 Auto, not for no mesh" in elsewhere["around:around:0"], elsewhere


def test_a_part_that_comes_again_has_a_letter():
    encoder = {f"{word}_{i}": jnp.ones((3, 4)) for word in ("kernel", "recurrent", "output") for i in range(5)}
    params = {"encoder": encoder, "head": jnp.ones(4)}
    state = {"params": params, "mean": params, "square": params, "S": jnp.float32(0.0)}

    def step(state, x):
        return jax.tree.map(lambda p, m, s: p - m * s, state["params"], state["mean"], state["square"]), x * state["S"]

    found = untrace.decompile(step)(state, jnp.ones(2))
    text = re.sub(r'"\n +"', "", found.source)
    assert '"P = {encoder: {' in text and "state: {S: f32[], mean: P, params: P, square: P}" in text, text
    found(state, jnp.ones(5))
    other = {**state, "mean": {**params, "head": jnp.ones(4, jnp.int32)}}
    with pytest.raises(TypeError, match=r"mean: {encoder: {kernel_0: f32.3,4., .*}, head: i32"):
        found(other, jnp.ones(2))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["leaves"], meta_fields=["names"])
@dataclasses.dataclass
class Named:
    """What a library keeps of its parameters: with their names, which the program does not look at."""

    leaves: list
    names: tuple


def test_a_long_type_with_names_that_do_not_matter_is_no_hash(tmp_path):
    parts = [{f"{word}_{i}": jnp.ones((3, 4)) for i in range(12)} for word in ("kernel", "recurrent")]
    state = (Named(parts, ("kernel", "recurrent")), Named(parts, ("kernel", "recurrent")), parts[0])

    def step(state):
        return jax.tree.map(lambda p, m: p - 0.5 * m, state[0], state[1]), jax.tree.map(jnp.sum, state[2])

    found = untrace.decompile(step, sizes="fixed")(state)
    text = re.sub(r'"\n +"', "", found.source)
    assert "| ((*, *))); state: (P, P, Q)" in text, text
    other = (*[dataclasses.replace(part, names=("k", "r")) for part in state[:2]], parts[0])
    assert saved(found, tmp_path)(other)[0].names == ("k", "r")


def gamma_of_all(key, x, prior):
    return prior / jax.random.gamma(key, 2.0 + 0.5 * x.shape[0]) + 0.5 * jnp.sum(x**2)


def test_a_line_in_a_size_is_followed(tmp_path):
    key = jax.random.key(3)
    found = untrace.decompile(gamma_of_all)(key, jnp.arange(5.0), 1.0)
    assert "2.0 + 0.5 * " in found.source, found.source
    text = saved(found, tmp_path)
    for count in (2, 4, 9):
        x = jnp.arange(float(count))
        np.testing.assert_array_equal(jax.jit(text)(key, x, 1.0), jax.jit(gamma_of_all)(key, x, 1.0))
