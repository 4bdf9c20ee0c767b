"""Signatures, argument pytrees and results: what is written takes and gives the original's."""

from __future__ import annotations

import collections
import dataclasses
import enum
import subprocess
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from written_trees import LEAF, Written

import untrace
from untrace._errors import UnsupportedPrimitiveError
from untrace.module.interface import stand_ins
from untrace.module.interface.put_together import rebuild
from untrace.python.names import Scope
from untrace.python.pytrees import is_plain_identifier, leaf_paths, suggest_names, unpack
from untrace.python.tree import Name, Text
from untrace.targets.base import TREE_CALLS


class Point(NamedTuple):
    x: Any
    y: Any


class Outer:
    class Inner(NamedTuple):
        value: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Belief:
    mean: Any
    covariance: Any
    label: Any = dataclasses.field(default="belief", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Opaque:
    """Gives JAX no keys and keeps its children where no attribute shows them."""

    def __init__(self, children: tuple[Any, ...], kind: Any):
        self._hidden = children
        self._kind = kind

    def tree_flatten(self) -> tuple[Any, Any]:
        return self._hidden, self._kind

    @classmethod
    def tree_unflatten(cls, kind: Any, children: Any) -> Opaque:
        return cls(tuple(children), kind)


class Colour(enum.Enum):
    RED = 1


def identity(tree: Any) -> Any:
    return tree


def assert_same(tree: Any, standalone: bool, out: Any = None) -> Written:
    """The argument's leaves come back, in order, in the tree of `out` (None: of the argument)."""
    written = Written(identity, (tree,), out=tree if out is None else out, standalone=standalone)
    got = written(tree)
    assert jax.tree.structure(got) == jax.tree.structure(written.out), written.text
    given = jax.tree.leaves(tree)
    for i, leaf in enumerate(jax.tree.leaves(got)):
        assert leaf is given[i % len(given)], written.text
    allowed = {"jax", "numpy", *sys.stdlib_module_names}
    assert not standalone or written.imported() <= allowed, written.text
    return written


def floats(count: int) -> list[Any]:
    return [jnp.float32(i) for i in range(count)]


BOTH = pytest.mark.parametrize("standalone", [False, True], ids=["library", "standalone"])

TREES = {
    "leaf": lambda a, b, c: a,
    "dict": lambda a, b, c: {"w": a, "b": b, "nested": {"deep": {"er": c}}},
    "int keys": lambda a, b, c: {0: a, 7: {"x": b}, -1: c},
    "tuple keys": lambda a, b, c: {("a", 1): a, ("b", 2): (b, c)},
    "tuple": lambda a, b, c: (a, b, c),
    "single": lambda a, b, c: ((a,), [b], c),
    "mixed": lambda a, b, c: (a, [b, (c,)], None, {}),
    "empty": lambda a, b, c: ({}, (), [], None, a),
    "namedtuple": lambda a, b, c: Point(a, {"k": Point(b, c)}),
    "namedtuple of None": lambda a, b, c: Point(None, a),
    "nested class": lambda a, b, c: (Outer.Inner(a), Outer.Inner((b, c))),
    "dataclass": lambda a, b, c: Belief(a, (b, None), "other"),
    "opaque": lambda a, b, c: (Opaque((a, {"k": b}), "kind"), c),
    "ordered": lambda a, b, c: collections.OrderedDict([("z", a), ("a", b), ("m", c)]),
    "default": lambda a, b, c: collections.defaultdict(list, {"z": a, "a": (b, c)}),
    "bcoo": lambda a, b, c: sparse.BCOO((a[None], jnp.zeros((1, 1), int)), shape=(3,)),
    "partial": lambda a, b, c: jax.tree_util.Partial(jnp.sin, a, k=b),
}


@BOTH
@pytest.mark.parametrize("make", TREES.values(), ids=TREES)
def test_the_tree_comes_back(make: Any, standalone: bool) -> None:
    assert_same(make(*floats(3)), standalone)


@BOTH
@pytest.mark.parametrize("make", TREES.values(), ids=TREES)
def test_the_tree_is_made_from_leaves_alone(make: Any, standalone: bool) -> None:
    """As a result that no argument resembles; the classes are loaded, so they are found."""
    assert_same(jnp.float32(1), standalone, out=make(*floats(3)))


@BOTH
def test_part_of_the_tree_comes_from_an_argument(standalone: bool) -> None:
    a, b = floats(2)
    tree = {"p": Point(a, b), "q": Opaque((a, b), ("kind", 3))}
    out = [Point(LEAF, Point(LEAF, None)), Opaque((LEAF, (LEAF,)), ("kind", 3)), tree["q"]]
    assert_same(tree, standalone, out=out)


# ---------------------------------------------------------------- how it reads


def test_leaves_are_reached_as_a_person_would() -> None:
    a, b, c = floats(3)
    params = {"dense": {"kernel": a, "bias": b}, "layers": [(c, a), (b, c)]}
    state = Point(a, Belief(b, c))
    written = Written(lambda params, state: None, (params, state))
    assert written.body[:8] == [
        'bias = params["dense"]["bias"]',
        'kernel = params["dense"]["kernel"]',
        'layers_0_0, layers_0_1 = params["layers"][0]',
        'layers_1_0, layers_1_1 = params["layers"][1]',
        "x = state.x",
        "mean = state.y.mean",
        "covariance = state.y.covariance",
        "return ()",
    ]


def test_a_flat_tuple_is_unpacked() -> None:
    assert Written(identity, ((1.0, 2.0),)).body[0] == "tree_0, tree_1 = tree"
    assert Written(identity, ([1.0],)).body[0] == "(tree_0,) = tree"


def test_a_class_without_attributes_is_flattened() -> None:
    written = Written(identity, ({"o": Opaque((1.0, (2.0,)), None)},))
    assert written.body[0].endswith(' = jax.tree.leaves(tree["o"])')


def test_attributes_without_keys_are_found() -> None:
    written = Written(identity, (sparse.BCOO.fromdense(jnp.eye(2)),))
    assert written.body[:2] == ["data = tree.data", "indices = tree.indices"]


def test_leaves_that_are_not_needed_are_not_bound() -> None:
    written = Written(identity, ({"a": 1.0, "b": (2.0, 3.0)},), needed={1})
    assert written.body[0] == 'b_0 = tree["b"][0]'
    assert written.body[1] == "return ()"


def test_unpack_gives_an_expression_for_every_leaf() -> None:
    tree = {"a": 1.0, "b": (2.0, 3.0)}
    statements, leaves = unpack(tree, Name("t"), lambda i: f"v{i}", TREE_CALLS, needed={0})
    assert [leaf.flat() for leaf in leaves] == ["v0", 't["b"][0]', 't["b"][1]']
    assert len(statements) == 1


def test_names_are_the_shortest_that_tell_leaves_apart() -> None:
    tree = {"enc": {"w": 1.0, "b": 2.0}, "dec": {"w": 3.0}, "0": 4.0}
    paths = leaf_paths(tree, ("params",))
    assert suggest_names(paths) == ["params_0", "dec_w", "b", "enc_w"]
    assert suggest_names([("x",), ("params", "x")], {"x", "params"}) == ["x", "params_x"]


# ---------------------------------------------------------------- hostile data


@BOTH
@pytest.mark.parametrize(
    "key",
    [
        '"',
        "'",
        "\n",
        '"]\nimport os\n#',
        "\\",
        "lambda",
        "ﬁ",
        "\udc80",
        "",
        "__import__('os')",
        "é",
    ],
)
def test_hostile_dict_keys(key: str, standalone: bool) -> None:
    written = assert_same({key: 1.0, "other": (2.0,)}, standalone)
    assert written.text.isascii()
    assert "os" not in written.imported()


@BOTH
@pytest.mark.parametrize("name", ["a b", "x\nimport os", '"""', "class", "ﬁ", "Ünï", "__debug__"])
def test_hostile_class_names(name: str, standalone: bool) -> None:
    cls = type(name, (), {})
    cls.__module__ = "x\nimport os"

    def unflatten(_: Any, children: Any) -> Any:
        made = cls()
        made.child = children[0]
        return made

    jax.tree_util.register_pytree_node(cls, lambda node: ((node.child,), "data"), unflatten)
    tree = unflatten(None, [1.0])
    assert_same(tree, standalone)
    written = Written(identity, (1.0,), out=(tree, tree), standalone=standalone)
    assert jax.tree.leaves(written(1.0)) == [1.0, 1.0]
    assert "os" not in written.imported() and len(written.notes) == 1


def test_hostile_field_names() -> None:
    cls = collections.namedtuple("cls", ["def", "a", "a", "ok"], rename=True)
    assert_same(cls(*floats(4)), True)
    written = Written(identity, (1.0,), out=cls(LEAF, LEAF, LEAF, LEAF), standalone=True)
    assert jax.tree.leaves(written(1.0)) == [1.0] * 4


def test_identifiers_that_python_would_read_otherwise() -> None:
    assert is_plain_identifier("fit") and is_plain_identifier("é")
    for name in ("ﬁt", "lambda", "a b", "", "__debug__", None, 3):
        assert not is_plain_identifier(name)


# ---------------------------------------------------------------- classes and twins


def test_the_public_place_of_a_class() -> None:
    assert stand_ins.place_of(sparse.BCOO) == stand_ins.Place("jax.experimental.sparse", ("BCOO",))
    assert stand_ins.place_of(jax.tree_util.Partial).module == "jax.tree_util"
    assert stand_ins.place_of(Outer.Inner) == stand_ins.Place(__name__, ("Outer", "Inner"))
    assert stand_ins.place_of(type("Local", (), {})) is None
    lying = type("Point", (), {"__module__": __name__})
    assert stand_ins.place_of(lying) is None


def test_library_classes_are_imported_unless_standalone() -> None:
    out = Point(LEAF, Belief(LEAF, LEAF, ("a", 1, None)))
    written = Written(identity, (1.0,), out=out)
    assert written.body[0] == ('return Point(x=tree, y=Belief(mean=tree, covariance=tree, label=("a", 1, None)))')
    assert __name__.split(".")[0] in written.imported()


def test_a_twin_serves_where_the_class_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    out = (Point(LEAF, LEAF), Belief(LEAF, LEAF, "label"), Opaque((LEAF,), "kind"))
    written = Written(identity, (1.0,), out=out, standalone=True)
    assert jax.tree.structure(written(1.0)) == jax.tree.structure(out)
    monkeypatch.delitem(sys.modules, __name__)
    point, belief, opaque = written(1.0)
    assert type(point) is not Point and point._asdict() == {"x": 1.0, "y": 1.0}
    assert repr(belief) == "Belief(mean=1.0, covariance=1.0, label='label')"
    assert repr(opaque) == "Opaque(0=1.0)"
    assert jax.tree.leaves((point, belief, opaque)) == [1.0] * 5
    assert jax.tree.structure(jax.jit(written.function)(1.0)) == jax.tree.structure(written(1.0))


def test_a_class_of_another_shape_is_not_taken_for_the_library_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written(identity, (1.0,), out=Point(LEAF, LEAF), standalone=True)
    other = types.ModuleType(__name__)
    other.Point = collections.namedtuple("Point", ["x", "z"])
    monkeypatch.setitem(sys.modules, __name__, other)
    assert written(1.0)._fields == ("x", "y")


def test_a_standalone_module_runs_in_a_fresh_process() -> None:
    out = {"p": Point(LEAF, None), "b": Belief(LEAF, LEAF), "o": Opaque((LEAF,), Colour.RED)}
    written = Written(identity, (1.0,), out=out, standalone=True)
    code = written.text + "print(jax.tree.leaves(jax.jit(written)(1.0)) == [1.0] * 4)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


METADATA = {
    "plain": ("a\n", b"b", 1, -2.5, None, True, (), frozenset({2, 1}), 3j),
    "dtypes": (np.dtype("int32"), jnp.bfloat16, np.float32, np.dtype(jnp.bfloat16)),
    "functions": (jnp.sin, jax.nn.relu, np.add, len),
    "classes": (Point, dict, Colour, Colour.RED),
    "tree": jax.tree.structure({"a": (0, Point(0, None))}),
    "containers": [{"k": [1, 2]}, slice(1, None), ...],
    "nested": Point(1, Belief(2, 3)),
}


@BOTH
@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA)
def test_metadata_is_written(metadata: Any, standalone: bool) -> None:
    assert not assert_same(jnp.float32(1), standalone, out=Opaque((LEAF,), metadata)).notes


@BOTH
def test_metadata_without_source_is_said(standalone: bool) -> None:
    out = Belief(LEAF, LEAF, lambda x: x)
    written = Written(identity, (1.0,), out=out, standalone=standalone)
    assert jax.tree.leaves(written(1.0)) == [1.0, 1.0]
    (note,) = written.notes
    assert note == (
        "the metadata of the `Belief` in the result has no source form, so that the tree differs "
        "from the original's there"
    )
    # With an argument like it, it is taken from there and nothing is lost.
    assert not assert_same(dataclasses.replace(out, mean=1.0, covariance=2.0), standalone).notes


def test_a_dict_key_without_source() -> None:
    class Key:
        def __lt__(self, other: Any) -> bool:
            return id(self) < id(other)

    tree = {Key(): 1.0, Key(): (2.0, 3.0)}
    assert_same(tree, True)
    with pytest.raises(UnsupportedPrimitiveError, match="a dict with a key that has no source"):
        Written(identity, (1.0,), out=tree)


@BOTH
def test_containers_of_libraries(standalone: bool) -> None:
    optax = pytest.importorskip("optax")
    state = optax.chain(optax.clip(1.0), optax.adam(1e-3)).init({"w": jnp.ones(3)})
    assert_same(state, standalone)
    written = assert_same(jnp.ones(()), standalone, out=state)
    assert standalone or "from optax import ScaleByAdamState" in written.text


@BOTH
def test_equinox_modules(standalone: bool) -> None:
    equinox = pytest.importorskip("equinox")
    layer = equinox.nn.Linear(2, 3, key=jax.random.key(0))
    assert_same(layer, standalone)
    assert_same(jnp.ones(()), standalone, out=layer)


@BOTH
def test_flax_containers(standalone: bool) -> None:
    core = pytest.importorskip("flax.core")
    nnx = pytest.importorskip("flax.nnx")
    assert_same(core.FrozenDict({"a": {"b": 1.0, "c": (2.0,)}}), standalone)
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    assert_same(state, standalone)
    assert_same(jnp.ones(()), standalone, out=state)


def test_rebuild_counts_leaves() -> None:
    with pytest.raises(ValueError, match="1 leaves for a tree of 2"):
        rebuild((LEAF, LEAF), [Text("0")], [], False, Scope().fresh, TREE_CALLS)


def test_large_trees_take_linear_time() -> None:
    tree = {f"layer{i}": {"w": float(i), "b": (1.0, 2.0)} for i in range(700)}
    assert_same(tree, True)


@pytest.mark.parametrize("style", ["exact", "idiomatic"])
@pytest.mark.parametrize("standalone", [False, True])
def test_a_namedtuple_that_is_registered_with_metadata(style, standalone):
    """JAX's example optimizers keep trees without leaves in theirs: such a node is made by its constructor."""
    from jax.example_libraries import optimizers

    init, update, params_of = optimizers.adam(1e-2)
    x = jnp.arange(3.0)

    def step(i, state, x):
        grads = jax.grad(lambda p: jnp.sum((p["w"] * x) ** 2))(params_of(state))
        return i + 1, update(i, grads, state)

    args = (0, init({"w": jnp.ones(3)}), x)
    d = untrace.decompile(step, style=style, standalone=standalone)(*args)
    assert d.proof.at_least("bits")
    assert jax.tree.structure(d(*args)) == jax.tree.structure(step(*args))


class Variable:
    """A variable of one array that is read as `variable[...]`, as Flax NNX has it."""

    def __init__(self, value: Any):
        self._value = value

    def __getitem__(self, index: Any) -> Any:
        return self._value if index is ... and isinstance(self._value, jax.Array) else self._value[index]


jax.tree_util.register_pytree_node(Variable, lambda v: ((v._value,), None), lambda _, leaves: Variable(*leaves))


@BOTH
def test_a_variable_of_one_array_is_read_by_an_ellipsis(standalone: bool) -> None:
    params = {"w": Variable(jnp.ones(3)), "b": Variable(jnp.zeros(3))}

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p: p * 2.0, params), params["w"][...] * x + params["b"][...]

    d = untrace.decompile(step, standalone=standalone)(params, jnp.ones(3))
    assert 'params["w"][...]' in d.source and "jax.tree.leaves" not in d.source, d.source
    assert jax.tree.structure(d(params, jnp.ones(3))) == jax.tree.structure(step(params, jnp.ones(3)))
