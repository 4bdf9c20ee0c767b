"""Paths of library functions: what a Library callee's `name` means, as something that can be called.

    jnp.mean, jax.nn.softmax, lax.scan    the public function of that path
    operator.add, operator.getitem        an operator of Python
    method.reshape, attribute.T           a method or an attribute of the first argument
    at.add                                `x.at[index].add(y)`; arguments x, index, y
    unpack, unpack.1.2                    `a, b, c = x`: the parts of an array along its first axis, or those of these places
    sparse.matmul, sparse.todense         `@` and a method of a BCOO matrix; arguments its data, indices and shape, and the rest
    sparse.bcoo_dot_general               the function of that name, with the same arguments
    item.0.jnp.nonzero                    the part of that place of what the function of that path gives
    vmap.jax.random.normal                `jax.vmap` of the function of that path; its first argument says which of the others
                                          have the axis
    jvp.jnp.hypot                         `jax.jvp` of the function of that path; arguments the primals, then as many tangents
    jvps.jnp.hypot                        the same for several tangents, along their first axis
    ode.odeint                            the integrator of `jax.experimental.ode`
    primitive.reduce_window_max           the primitive of that name; keyword arguments its parameters
    vjp.jnp.var                           `jax.vjp` of the function of that path, and the call of what it gives back; arguments
                                          which of the inputs vary, the function's own, the cotangents (None for the one
                                          of two results that is auxiliary)
    vjp.vmap.jnp.linalg.solve             the same of what is mapped

A printer spells them its own way; here is only what they do.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from untrace import jax_compat
from untrace._identity import IdentityMap

# Where a function of a given name is looked for, as a module writes it; the first that has it is the likeliest.
_MODULES = (
    "jnp", "jax.nn", "jax.random", "jnp.linalg", "jnp.fft", "jax.scipy.special", "jax.scipy.linalg", "jax.ops", "jax.image",
    "jax.scipy.signal", "jax.scipy.stats", "jax.scipy.fft", "jax.scipy.ndimage", "jax.scipy.stats.norm", "lax", "lax.linalg", "jax",
)  # fmt: skip

_ROOTS = {"jnp": jnp, "lax": lax, "jax": jax, "operator": operator}


def is_unpacked(path: str) -> bool:
    """Whether nothing is called: an array is bound to several names."""
    return path.partition(".")[0] == "unpack"


@cache
def resolve(path: str) -> Callable[..., Any] | None:
    """The function of a path; None where the installed JAX has none."""
    kind, _, rest = path.partition(".")
    if kind == "method":
        return lambda x, *args, **kwargs: getattr(x, rest)(*args, **kwargs)
    if kind == "attribute":
        return lambda x: getattr(x, rest)
    if kind == "at":
        return lambda x, index, *args, **kwargs: getattr(x.at[index], rest)(*args, **kwargs)
    if kind == "unpack":
        places = frozenset(map(int, rest.split("."))) if rest else None
        return lambda x: tuple([part for place, part in enumerate(x) if places is None or place in places])
    if kind == "sparse":
        return functools.partial(_of_sparse, rest)
    if kind == "item":
        place, _, path = rest.partition(".")
        inner = resolve(path)
        return None if inner is None else lambda *args, **kwargs: inner(*args, **kwargs)[int(place)]
    if kind == "vmap":
        inner = resolve(rest)
        return None if inner is None else lambda mapped, *args, **kwargs: _mapped(inner, mapped, args, kwargs)
    if kind in ("jvp", "jvps"):
        inner = resolve(rest)
        return None if inner is None else functools.partial(_pushed_forward, inner, kind == "jvps")
    if kind == "primitive":
        primitive = getattr(lax, f"{rest}_p", None)
        return None if primitive is None else primitive.bind
    if kind == "ode":
        from jax.experimental import ode  # few programs need it

        return getattr(ode, rest, None)
    if kind == "transpose":
        inner = resolve(rest)
        return None if inner is None else functools.partial(_transposed, inner)
    if kind == "vjp":
        inner = resolve(rest)
        return None if inner is None else functools.partial(_pulled_back, inner)
    found: Any = _ROOTS[kind]
    for word in rest.split("."):
        found = getattr(found, word, None)
        if found is None:
            return None
    return found


def makes_arrays(path: str) -> bool:
    """Whether the function of a path makes arrays of the numbers that it is given."""
    return path.partition(".")[0] in ("jnp", "jax", "vmap", "item")


ASSOCIATIVE_SCAN = "lax.associative_scan"
# What belongs to the matrix itself.
OF_MATRIX = ("indices_sorted", "unique_indices")


def _of_sparse(name: str, data: Any, indices: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
    from jax.experimental import sparse  # few programs need it

    flags = {k: kwargs.pop(k) for k in OF_MATRIX if k in kwargs}
    matrix = sparse.BCOO((data, indices), shape=shape, **flags)
    if name == "matmul":
        return matrix @ args[0]
    return matrix.todense() if name == "todense" else getattr(sparse, name)(matrix, *args, **kwargs)


def _mapped(function: Callable[..., Any], mapped: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    def one(*parts: Any) -> Any:
        whole = list(args)
        for place, part in zip(mapped, parts, strict=True):
            whole[place] = part
        return function(*whole, **kwargs)

    return jax.vmap(one)(*[args[place] for place in mapped])


def _transposed(function: Callable[..., Any], cotangent: Any, *args: Any, **kwargs: Any) -> Any:
    (x,) = jax.linear_transpose(lambda x: function(x, *args, **kwargs), cotangent)(cotangent)
    return x


def _pushed_forward(function: Callable[..., Any], several: bool, *args: Any) -> Any:
    primals, tangents = args[: len(args) // 2], args[len(args) // 2 :]

    def one(*dots: Any) -> Any:
        return jax.jvp(function, primals, dots)

    return jax.vmap(one, out_axes=(None, 0))(*tangents) if several else one(*tangents)


def _pulled_back(
    function: Callable[..., Any], varied: Sequence[int], args: Sequence[Any], cotangents: Sequence[Any], **kwargs: Any
) -> Any:
    leaves, tree = jax.tree.flatten(args)
    arrays = list(IdentityMap((a, None) for a in leaves if isinstance(a, jax.Array)))

    def one(*parts: Any) -> Any:
        given = IdentityMap(zip([arrays[i] for i in varied], parts, strict=True))
        found = function(*jax.tree.unflatten(tree, [given.get(a, a) for a in leaves]), **kwargs)
        return tuple(found) if isinstance(found, tuple) else found

    of = [i for i, c in enumerate(cotangents) if c is not None]
    if len(of) < len(cotangents):  # of the two results the other is auxiliary
        (place,) = of

        def parted(*parts: Any) -> Any:
            first, second = one(*parts)
            return (second, first) if place else (first, second)

        result, pullback, other = jax.vjp(parted, *[arrays[i] for i in varied], has_aux=True)
        return (*((other, result) if place else (result, other)), *pullback(cotangents[place]))
    results, pullback = jax.vjp(one, *[arrays[i] for i in varied])
    structure = jax.tree.structure(results)
    return (*jax.tree.leaves(results), *pullback(jax.tree.unflatten(structure, cotangents)))


# Parameters of functions of functions, and annotations of those, of flags and of sizes: no array can go there.
_CALLABLES = frozenset({"f", "fn", "fun", "func", "body_fun", "cond_fun"})
_NO_ARRAYS = ("Callable", "Sequence[Callable", "DimSize")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a function without tracing it, so that a guess need not be traced to be wrong.

    `call`: the name of the one call that it leaves in a trace. `bare`: whether it returns one array, `several`: whether it
    returns some, `parts`: whether it may. `plain`: the places of arguments that are no arrays. `least`: of how many arguments it takes; `most`: of
    those without a name; `names`: its parameters that may be named. None: any.
    """

    call: str | None = None
    bare: bool = False
    several: bool = False
    parts: bool = False
    plain: tuple[int, ...] = ()
    least: int = 0
    most: int | None = None
    names: frozenset[str] | None = None


@cache
def signature(path: str) -> inspect.Signature | None:
    """The signature of the function at `path`; None where it has none, or there is no such function."""
    function = resolve(path)
    if function is None or isinstance(function, type):
        return None
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


@cache
def facts(path: str) -> Facts:
    """What is known of the function at `path`."""
    root, _, rest = path.partition(".")
    if root == "vmap":  # its first argument says what is mapped: the others' places are not those of the function
        inside = facts(rest)
        return Facts(inside.call, inside.bare, inside.several)
    if root == "item":
        return dataclasses.replace(facts(rest.partition(".")[2]), several=False)
    # The signature of a builtin is a text that `inspect` would have to parse.
    if root == "operator" or root not in _ROOTS:
        return Facts()
    call = jax_compat.name_of_call(resolve(path))
    known = signature(path)
    if known is None:
        return Facts(call)
    returns = known.return_annotation
    parameters = list(known.parameters.values())
    kinds = {p.kind for p in parameters}
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return Facts(
        call,
        returns == "Array" or returns is jax.Array,
        isinstance(returns, str) and returns.startswith(("tuple[", "list[")),
        returns is known.empty or isinstance(returns, str) and ("tuple[" in returns or "list[" in returns),
        tuple([i for i, p in enumerate(placed) if _takes_no_array(p, path)]),
        sum(p.default is p.empty and p.kind not in several for p in parameters),
        None if inspect.Parameter.VAR_POSITIONAL in kinds else len(placed),
        None
        if inspect.Parameter.VAR_KEYWORD in kinds
        else frozenset(p.name for p in parameters if p.kind != p.POSITIONAL_ONLY),
    )


def _takes_no_array(parameter: inspect.Parameter, path: str) -> bool:
    words = parameter.annotation if isinstance(parameter.annotation, str) else ""
    if parameter.name in _CALLABLES and path.startswith("lax."):
        return True
    return words == "bool" or words.startswith(_NO_ARRAYS)


@cache
def named(name: str) -> tuple[str, ...]:
    """Paths of the public functions that a jitted library function of this name may be the inside of: `_where`, `_roll_static`."""
    plain = name.lstrip("_")
    words = dict.fromkeys(
        (plain, *(plain.removesuffix(s) for s in ("_static", "_dynamic", "_impl", "_real", "_jit", "_vjp", "_batched")))
    )
    found = []
    for module in _MODULES:
        if not _may_define(module, words):
            continue
        root = resolve(module) if "." in module else _ROOTS[module]
        for word in words:
            function = getattr(root, word, None)
            if callable(function) and not isinstance(function, type) and type(function).__name__ != "module":
                found.append(f"{module}.{word}")
    return tuple(found)


def paths_of(closed: Any, name: str) -> tuple[str, ...]:
    """Paths of the public functions that a jaxpr traced from a library function of this name may be of: that function itself
    where it is public, and those that `named` has."""
    place = jax_compat.function_place(closed)
    own = jax_compat.public_function_at(place) if place is not None else None
    return tuple(dict.fromkeys([*([] if own is None else [public(*own)]), *named(name)]))


def is_public_rule(eqn: Any) -> bool:
    """Whether a `custom_jvp_call` is one of a public function of JAX, or inside one, which brings its rule: nobody has to
    write that."""
    if jax_compat.has_rule_of_jax(eqn):
        return True
    name = jax_compat.jaxpr_name(eqn.params["call_jaxpr"])
    return any(jax_compat.is_call_of(resolve(path), eqn) for path in named(str(name or "")))


def _may_define(module: str, words: Iterable[str]) -> bool:
    """Whether a module may have a function of one of these names: one that nobody imported yet is asked by its text.

    JAX imports most of `jax.scipy` when it is first touched, which takes longer than many a program's trace.
    """
    head, _, rest = module.partition(".")
    whole = f"{_ROOTS[head].__name__}.{rest}" if rest else _ROOTS[head].__name__
    if whole in sys.modules:
        return True
    found = _words_of(whole)
    return found is None or not found.isdisjoint(words)


@cache
def _words_of(module: str) -> frozenset[str] | None:
    """The words of a module's code, of which its functions are some, without the modules inside it; None where all that
    another module has is in it."""
    place = Path(jax.__file__).parent.joinpath(*module.split(".")[1:])  # what finds a module imports those around it
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            code = re.sub(r"#.*", "", file.read_text(encoding="utf-8"))
            inside = {f[:-3] for f in os.listdir(place) if f.endswith(".py")} if file.parent == place else set()
            return None if "import *" in code else frozenset(re.findall(r"\w+", code)) - inside
    return None


@cache
def public(path: str, name: str) -> str:
    """How a module writes the function `name` of the public module `path`: `jnp.mean`, `lax.rsqrt`, `jax.nn.relu`."""
    for long, short in (("jax.numpy", "jnp"), ("jax.lax", "lax")):
        if path == long or path.startswith(long + "."):
            path = short + path[len(long) :]
    return f"{path}.{name}"
