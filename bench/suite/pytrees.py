"""Arguments and results: dicts, named tuples, dataclasses, static metadata, None, keywords."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from suite.control import matrix, vector
from suite.registry import Program, case


class Point(NamedTuple):
    """A named tuple."""

    x: jax.Array
    y: jax.Array


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name", "width"])
@dataclasses.dataclass
class Layer:
    """A dataclass with static metadata."""

    w: jax.Array
    b: jax.Array
    name: str
    width: int


@jax.tree_util.register_pytree_node_class
class Interval:
    """A registered class; its children are flattened by hand, one of them is metadata."""

    def __init__(self, lo, hi, closed=True):
        self.lo, self.hi, self.closed = lo, hi, closed

    def tree_flatten(self):
        return (self.lo, self.hi), self.closed

    @classmethod
    def tree_unflatten(cls, closed, children):
        return cls(*children, closed)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Settings:
    """Static as a whole: a node without children."""

    rate: float
    mode: str


@case(grad=True, vmap=True)
def tree_nested() -> Program:
    def fn(tree, pair):
        total = tree["a"] + tree["b"][0] * pair[1]
        return {"z": (total, [pair[0]]), "a": {"deep": {"er": total.sum()}}}

    return fn, ({"a": vector(), "b": [vector(), jnp.int32(1)]}, (vector(2), jnp.float32(3)))


@case(grad=True, vmap=True)
def tree_namedtuple() -> Program:
    return lambda p: Point(p.y * 2, p.x + p.y), (Point(vector(), vector() + 1),)


@case(grad=True)
def tree_dataclass() -> Program:
    def fn(layer, x):
        y = jnp.tanh(x @ layer.w + layer.b)
        return y, dataclasses.replace(layer, w=layer.w * 0.9)

    return fn, (Layer(matrix(3, 2), vector(2), "first", 2), matrix(4, 3))


@case(grad=True)
def tree_registered_class() -> Program:
    def fn(i):
        return Interval(i.lo - 1, i.hi + 1, i.closed), [Interval(i.hi, i.lo, False)]

    return fn, (Interval(vector(), vector() + 1),)


@case()
def tree_static_node() -> Program:
    def fn(settings, x):
        return x * settings.rate if settings.mode == "scale" else x

    return fn, (Settings(0.5, "scale"), vector())


@case(grad=True)
def tree_none_and_empty() -> Program:
    def fn(x, nothing, empty):
        return None, {"x": x * 2, "none": nothing, "empty": empty}, (), [None, x]

    return fn, (vector(), None, {"a": (), "b": []})


@case()
def tree_ordered_and_default_dict() -> Program:
    def fn(o, d):
        out = collections.OrderedDict(second=o["first"], first=o["second"])
        return out, collections.defaultdict(list, {"k": d["k"] * 2})

    ordered = collections.OrderedDict(second=vector(), first=vector(2))
    return fn, (ordered, collections.defaultdict(list, {"k": vector()}))


@case()
def tree_integer_and_odd_keys() -> Program:
    """Keys that are no identifiers, or reserved words, or ints."""

    def fn(tree, ints):
        return {"class": tree["a b"], "x-y": tree["lambda"], '"\n': ints[2]}, {7: ints[1]}

    return fn, ({"a b": vector(), "lambda": vector(2)}, {1: vector(3), 2: vector()})


@case(
    grad=True,
    kwargs=lambda: {"scale": jnp.float32(2.0), "bias": {"b": vector()}},
)
def keyword_only_arguments() -> Program:
    def fn(x, *, scale, bias, unused=1.0):
        return x * scale + bias["b"]

    return fn, (vector(),)


@case(kwargs=lambda: {"y": vector()}, vmap=True)
def keyword_for_positional() -> Program:
    def fn(x, y, z=3.0):
        return x + y * z

    return fn, (vector(),)


@case(grad=True)
def star_arguments() -> Program:
    def fn(first, *rest):
        return first + sum(r.sum() for r in rest)

    return fn, (vector(), vector(2), matrix())


@case(kwargs=lambda: {"alpha": vector(), "beta": vector() * 2})
def star_star_keywords() -> Program:
    def fn(x, **options):
        return x + options["alpha"] * options["beta"]

    return fn, (vector(),)


@case(grad=True)
def default_arguments() -> Program:
    def fn(x, y=2.0, *, z=3):
        return x * y + z

    return fn, (vector(),)


@case(static_argnums=(1,), static_argnames=("mode",), kwargs=lambda: {"mode": "sin"})
def static_arguments() -> Program:
    def fn(x, n, *, mode):
        return (jnp.sin(x) if mode == "sin" else x) ** n

    return fn, (vector(), 3)


@case()
def argument_names_that_shadow() -> Program:
    """Argument names that a written module uses itself."""

    def fn(jnp, jax, lax, np, list, print):
        return jax * jnp + lax, np @ np, list, print

    return fn, tuple(vector() + i for i in range(6))


@case(grad=True)
def same_array_in_many_places() -> Program:
    def fn(x):
        y = x * 2
        return y, [y, y], {"y": y, "x": x}

    return fn, (vector(),)


@case("scan", "cond", grad=True)
def tree_through_control_flow() -> Program:
    def fn(layer, xs):
        def body(state, x):
            state = jax.lax.cond(
                x[0] > 0,
                lambda s: dataclasses.replace(s, b=s.b + 1),
                lambda s: dataclasses.replace(s, w=s.w * 0.5),
                state,
            )
            return state, Point(x @ state.w, state.b)

        return jax.lax.scan(body, layer, xs)

    return fn, (Layer(matrix(3, 2), vector(2), "cell", 2), matrix(4, 3))


class Affine:
    """A callable object with arrays in its attributes."""

    def __init__(self):
        self.w = vector()

    def __call__(self, x, shift=1.0):
        return x * self.w + shift

    def method(self, x):
        return x - self.w


@case(grad=True, vmap=True)
def callable_object() -> Program:
    return Affine(), (vector(),)


@case(grad=True)
def bound_method_and_partial() -> Program:
    return functools.partial(Affine().method), (vector(),)
