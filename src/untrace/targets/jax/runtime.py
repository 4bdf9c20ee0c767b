"""The helper routines that a module for JAX may carry."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from untrace.capture.fixed_parts import _word_of
from untrace.jaxprs.expand import batched
from untrace.python.helpers import helper


@helper("jax", state=("_JAXPRS = {}", "_NOTHING = jax.jit(lambda: ())"))
def _jaxpr(function, *avals):
    """The jaxpr of `function` on abstract values; a jaxpr traced before is the same object again."""
    # The first is another object under other settings, and after `jax.clear_caches()`.
    key = _NOTHING.trace().jaxpr, function, avals
    if key not in _JAXPRS:
        _JAXPRS[key] = jax.make_jaxpr(function)(*avals)
    return _JAXPRS[key]


_JAXPRS: dict[Any, Any] = {}
_NOTHING = jax.jit(lambda: ())


@helper("jax", needs=("_jaxpr",))
def _traced_for(function, types, *args):
    """Calls `function` as it was traced for other weak types than those of `args`."""
    from jax.extend.core import jaxpr_as_fun

    out = jaxpr_as_fun(_jaxpr(function, *types))(*args)
    return out[0] if len(out) == 1 else out


@helper("jax")
def _recomputed(function, *args, prevent_cse=True, policy=None):
    """Calls `function` as differentiation does what `jax.checkpoint` marked: its values are computed again here."""
    from jax.extend.core import primitives

    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return primitives.remat_p.bind(*args, jaxpr=jaxpr, prevent_cse=prevent_cse, differentiated=True, policy=policy)


@helper("jnp")
def _weakly_typed(x, dtype):
    """`x` as an array of a type that gives way to that of other arrays, as Python's numbers do."""
    from jax.extend.core import primitives

    return primitives.convert_element_type_p.bind(x, new_dtype=jnp.dtype(dtype), weak_type=True, sharding=None)


@helper("jax")
def _transposed(function, cotangent, *args, **kwargs):
    """From the cotangent of `function(x, *args, **kwargs)` to that of `x`, where the one is linear in the other and like it."""
    return jax.linear_transpose(lambda x: function(x, *args, **kwargs), cotangent)(cotangent)[0]


@helper("jax", "lax")
def _scan_trees(consts, carry, xs, ys):
    """The parameters of a scan that say how many constants, carries, inputs and outputs it has."""

    def template(consts, init, xs):
        return lax.scan(
            lambda c, x: ([v + sum(consts) for v in c], [sum(c + x + consts, 0.5)] * ys), init, xs, length=1
        )

    traced = jax.make_jaxpr(template)([1.0] * consts, [1.0] * carry, [jax.numpy.ones(1)] * xs)
    return {key: value for key, value in traced.eqns[-1].params.items() if key.startswith("ft_")}


@helper("jax", "lax")
def _solve_tuple(**parts):
    """The record type that the parameters of a custom_linear_solve equation have."""

    def template(b):
        return lax.custom_linear_solve(lambda x: x, b, lambda matvec, x: x, symmetric=True)

    return type(jax.make_jaxpr(template)(1.0).eqns[-1].params["jaxprs"])(**parts)


@helper()
def _no_rule(*args, **kwargs):
    """Stands for a derivative rule that the module does not have."""
    raise NotImplementedError("this function's derivative rule could not be written; see the notes of the proof")


@helper("jax", "lax")
def _platform_index(platforms):
    """The index of the branch for the platform that the program is lowered for."""
    traced = jax.make_jaxpr(lambda: lax.platform_dependent(cpu=lambda: 0, default=lambda: 1))()
    return traced.eqns[0].primitive.bind(platforms=platforms)


@helper("jax", "jnp")
def _instantiate(value):
    """`value`, or zeros where it is a symbolic zero."""
    if isinstance(value, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros(value.shape, value.dtype)
    return value


@helper()
def _unperturbed(argument):
    """The value of an argument of a derivative rule that nothing may be differentiated by."""
    if argument.perturbed:
        raise ValueError("this argument of a function with its own derivative rule cannot be differentiated")
    return argument.value


@helper("jax")
def _unmoved(*tangents):
    """Refuses tangents of what nothing may be differentiated by, of a function with a derivative rule."""
    if not all(isinstance(tangent, jax.custom_derivatives.SymbolicZero) for tangent in tangents):
        raise ValueError("an argument of a function with its own derivative rule cannot be differentiated")


@helper("np")
def _with_printoptions(call, **options):
    """Calls `call()` under NumPy printing options, which `jax.debug.print` remembers."""
    with np.printoptions(**options):
        return call()


@helper("jax", "jnp")
def _primitive(name, function, *args):
    """The primitive called `name` that JAX binds somewhere in `function(*args)`: it has no public name of its own."""
    stack = [jax.make_jaxpr(function)(*args).jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            if eqn.primitive.name == name:
                return eqn.primitive
            stack.extend(getattr(p, "jaxpr", p) for p in eqn.params.values() if hasattr(p, "eqns"))
    raise LookupError(name)


@helper("jax")
def _call(primitive, function, *args):
    """Calls `function` through a call primitive of JAX."""
    import jax.extend.linear_util

    def flat(*args):
        out = function(*args)
        return list(out) if isinstance(out, tuple) else [out]

    info = jax.api_util.debug_info("call", function, args, {})
    return primitive.bind(*args, subfuns=(jax.extend.linear_util.wrap_init(flat, debug_info=info),))


@helper("jax")
def _node(cls, metadata, children):
    """A pytree node of class `cls` with these children, made as `jax.tree.unflatten` makes it."""
    leaves = [jax.tree.structure(0)] * len(children)
    tree = jax.tree_util.PyTreeDef.from_node_data_and_children(jax.tree_util.default_registry, (cls, metadata), leaves)
    return jax.tree.unflatten(tree, children)


@helper("jax")
def _like(node, children):
    """A pytree node with the class and metadata of `node`, and other children."""
    tree = jax.tree.structure(node, is_leaf=lambda other: other is not node)
    return jax.tree.unflatten(tree, children)


@helper("jax")
def _twin(name, keys):
    """A pytree class called `name` with children under `keys`, for one that is not loaded."""

    class Twin:
        def __init__(self, metadata, children):
            self.metadata, self.children = metadata, tuple(children)

        def __getitem__(self, key):
            return dict(zip(keys, self.children, strict=True))[key]

        def __getattr__(self, key):
            if key in keys:
                return self[key]
            raise AttributeError(f"{name} has no attribute {key!r}")

        def __repr__(self):
            inside = [f"{key}={self[key]!r}" for key in keys]
            return f"{name}({', '.join(inside)})"

    def flatten(node):
        return list(zip(map(entry, keys), node.children, strict=True)), node.metadata

    def entry(key):
        kind = jax.tree_util.GetAttrKey if isinstance(key, str) else jax.tree_util.FlattenedIndexKey
        return kind(key)

    Twin.__name__ = Twin.__qualname__ = name
    jax.tree_util.register_pytree_with_keys(Twin, flatten, Twin)
    return Twin


helper("jax", "jnp", "lax")(batched._unvmap)
helper("jax", "jnp", "lax")(batched._select_if_batched)
helper("jax", "jnp")(batched._true_unless_batched)


helper()(_word_of)


@helper("functools", "jax", needs=("_word_of",))
def _beside(*fixed, back=(), numbers=False):
    """Makes a function of arrays one whose arguments hold other things too: `fixed`, in their order, and nothing else.
    `back`: which parts of the result get those of which argument."""
    import inspect

    def is_array(leaf):
        return hasattr(leaf, "dtype") or not numbers and isinstance(leaf, (bool, int, float, complex))

    def filled(tree, whole):
        return jax.tree.map(lambda new, old: old if new is None else new, tree, whole, is_leaf=lambda x: x is None)

    def put_back(part, way, whole):
        if not way:
            return filled(part, whole)
        if isinstance(part, dict):
            return {**part, way[0]: put_back(part[way[0]], way[1:], whole)}
        parts = [put_back(each, way[1:], whole) if n == way[0] else each for n, each in enumerate(part)]
        return getattr(type(part), "_make", type(part))(parts)

    def decorate(function):
        @functools.wraps(function)
        def whole(*args, **kwargs):
            bound = inspect.signature(function).bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
            given = [*args, *kwargs.values()]
            trees = [g for g in given if jax.tree.structure(g) != jax.tree.structure(0)]
            found = [_word_of(leaf) for leaf in jax.tree.leaves(trees) if not is_array(leaf)]
            if found and found != list(fixed):
                raise TypeError(f"this was written for {fixed} in its arguments, not for {found}")
            taken = [jax.tree.map(lambda x: x if is_array(x) else None, g) if g is not None else g for g in given]
            result = function(*taken[: len(args)], **dict(zip(kwargs, taken[len(args) :], strict=True)))
            for way, number in dict(back if found else ()).items():
                result = put_back(result, way, given[number])
            return result

        return whole

    return decorate
