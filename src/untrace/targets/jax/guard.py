"""The check of a JAX entry's arguments, as the module carries it, and what a program depends on beside them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from untrace import jax_compat
from untrace.capture.function import Captured
from untrace.module.interface.guarded import Guarded, Settings
from untrace.python import helpers
from untrace.python.helpers import helper


@helper("jax", "jnp", last="_checked", state=("_KNOWN, _X64 = set(), jax.config.jax_enable_x64",))
def _checked(types, *values, least={}, most={}, multiples={}, sums={}, weak=False, x64=False, prng=None):
    """The values, numbers as arrays, where this was written for them: `x: f32[n,3]` may have `n` from 2 (`least`) to `most`."""
    leaves, tree = jax.tree.flatten(values)
    if not all([hasattr(leaf, "aval") for leaf in leaves]):
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        values = jax.tree.unflatten(tree, leaves)
    settings = (jax.config.jax_enable_x64, prng and jax.config.jax_default_prng_impl)
    key = (types, settings, tree, *[leaf.aval for leaf in leaves])
    try:
        is_known = key in _KNOWN
    except (TypeError, ValueError):  # a static field that has no hash
        key, is_known = types, False
    if not is_known:
        import fnmatch, hashlib, itertools, math, re

        sizes, said = {}, "Decompile the original with such arguments: it may do something else there."
        if settings != (x64, prng):
            raise TypeError(f"this was written for jax_enable_x64={x64}, prng={prng}, not for {settings}. {said}")
        if _X64 != x64:
            raise TypeError(f"this was imported with jax_enable_x64={_X64}, with arrays for it: import it with {x64}.")
        for (name, expected), value in zip([t.split(": ", 1) for t in types.split("; ") if t], values, strict=True):
            inside, tree = jax.tree.flatten(value)
            found = _type_of(tree, [leaf.aval for leaf in inside], weak)
            if expected[0] == "#":
                found = "#" + hashlib.sha256(found.encode()).hexdigest()[:12]
            tokens = [re.findall(r"(?<=[\[,])\w+|[^][,]+|.", text) for text in (expected, found)]
            for old, new in itertools.zip_longest(*tokens, fillvalue=""):
                is_size = old.isidentifier() and new.isdecimal()
                is_size = is_size and least.get(old, 2) <= int(new) <= most.get(old, int(new))
                is_size = is_size and int(new) % multiples.get(old, 1) == 0 and sizes.setdefault(old, new) == new
                if not is_size and not fnmatch.fnmatchcase(new, old):
                    given = [f"{n} = {number}" for n, number in sizes.items()]
                    given += [f"{n} ≥ {least[n]}" for n in least] + [f"{n} ≤ {most[n]}" for n in most]
                    given += [f"{n} a multiple of {multiples[n]}" for n in multiples]
                    given = ", ".join(given) or "of no size yet"
                    raise TypeError(f"this was written for {name}: {expected} ({given}), not for {found}. {said}")
        for size, text in sums.items():  # `n: "2*m + k"`
            terms = [[int(sizes.get(f, f)) for f in term.split("*")] for term in text.split(" + ")]
            if int(sizes[size]) != sum([math.prod(term) for term in terms]):
                given = ", ".join([f"{n} = {number}" for n, number in sizes.items()])
                raise TypeError(f"this was written for {size} = {text}, not for {given}. {said}")
        _KNOWN.add(key)
    return values[0] if len(values) == 1 else values


_KNOWN: set[Any] = set()
_X64: bool = jax.config.jax_enable_x64


@helper("jax", last="_type_of")
def _type_of(tree, avals, weak):
    """The type of a pytree in words: `{w: f32[3,4]}`; of numbers that give way to other types with a `~`, if `weak`."""
    words = ["~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True) for aval in avals]
    return str(jax.tree.unflatten(tree, words)).replace("'", "")


@helper(last="_type_of")
def _type_of_classes(tree, avals, weak):
    """The type of a pytree in words, with the static fields of its classes: `Body(f32[3,4] | 2.0)`."""
    import re

    types = iter(["~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True) for aval in avals])

    def static(value, depth=3):
        if isinstance(value, (tuple, list, set, frozenset)):
            parts = [static(v, depth) for v in value]
            return f"({', '.join(sorted(parts) if isinstance(value, (set, frozenset)) else parts)})"
        name = getattr(value, "__qualname__", None)
        if name is None:
            return re.sub("; | at 0x[0-9a-f]+", "", repr(value))
        cells = [c.cell_contents for c in getattr(value, "__closure__", None) or () if c != type(c)()]
        return f"{value.__module__}.{name}" + (static(cells, depth - 1) if cells and depth else "")

    def words(tree):
        if tree.node_data() is None:
            return next(types)
        kind, fixed = tree.node_data()
        if kind is type(None):
            return "None"
        parts = [words(child) for child in tree.children()]
        if kind is dict:
            names = [key if isinstance(key, str) and key.isidentifier() else static(key) for key in fixed]
            parts, fixed = [f"{name}: {part}" for name, part in zip(names, parts, strict=True)], None
        start, end = {dict: "{}", list: "[]", tuple: "()"}.get(kind, (f"{kind.__name__}(", ")"))
        return start + ", ".join(parts) + ("" if fixed is None else f" | {static(fixed)}") + end

    return words(tree)


@helper(needs=("_answer",), last="_placed")
def _placed(**answers):
    """Refuses to run where JAX has another answer: `device_count=8` is that of `jax.device_count()`."""
    for question, answer in answers.items():
        found = _answer(question)
        if found != answer:
            said = "Decompile the original there: it may do something else."
            raise TypeError(f"this was written for {question} = {answer}, not for {found}. {said}")


@helper("jax", last="_answer")
def _answer(question):
    """What JAX says of the place where this runs: a number, or words for devices (`8 cpu`) and a mesh (`i=8 Auto`)."""
    found = (getattr(jax, question, None) or getattr(jax.sharding, question))()
    if isinstance(found, list):
        return f"{len(found)} {', '.join(sorted({device.device_kind for device in found}))}"
    if isinstance(found, jax.sharding.AbstractMesh):
        axes = zip(found.axis_names, found.axis_sizes, found.axis_types, strict=True)
        return ", ".join([f"{name}={size} {kind.name}" for name, size, kind in axes]) or "no mesh"
    return found


@helper("jax", last="_refuses")
def _refuses(transformations, *values):
    """The values, of a function that has no rules to be differentiated ("grad") or mapped ("vmap"), which is refused."""

    def refuse(transformation):
        allowed = "Decompile the original with allow=('grad', 'vmap')."
        raise NotImplementedError(f"this was written without the rules that jax.{transformation} needs. {allowed}")

    def _refused(*values):
        return values

    if "grad" in transformations:
        differentiated = jax.custom_jvp(_refused)
        differentiated.defjvp(lambda *_: refuse("grad"))
        values = differentiated(*values)
    if "vmap" in transformations:
        mapped = jax.custom_batching.custom_vmap(_refused)
        mapped.def_vmap(lambda *_: refuse("vmap"))
        mapped(*jax.lax.stop_gradient(values))
    return values[0] if len(values) == 1 else values


def guarded_by(captured: Captured, refuses: tuple[str, ...] = ()) -> Guarded:
    """What a program depends on beside its arguments. refuses: transformations that its text is not to be put to."""
    alive = jax_compat.without_dead_code(captured.jaxpr)
    settings = _settings_of(alive)
    limits = captured.limits.items()
    settings["least"] = {size: limit.least for size, limit in limits if limit.least != max(limit.multiple, 2)}
    settings["most"] = {size: limit.most for size, limit in limits if limit.most is not None}
    settings["multiples"] = {size: limit.multiple for size, limit in limits if limit.multiple > 1}
    settings["sums"] = {size: (limit.terms, limit.plus) for size, limit in limits if limit.terms}
    questions = set(captured.asked)
    if jax_compat.speaks_of_devices(alive):
        questions.add("devices" if "devices" in questions else "device_count")
        if jax.sharding.get_abstract_mesh().axis_names:
            questions.add("get_abstract_mesh")
    return Guarded(
        settings, {question: helpers.function("_answer")(question) for question in sorted(questions)}, refuses
    )


def _settings_of(jaxpr: Any) -> Settings:
    """What a program depends on beside its arguments, as `_checked` takes it."""
    kinds: set[tuple[str, Any]] = set()
    makes_keys = False
    for eqn in jax_compat.equations_in(jaxpr):
        makes_keys = makes_keys or eqn.primitive.name in ("random_seed", "random_wrap")
        for atom in (*eqn.invars, *eqn.outvars):
            dtype = getattr(atom.aval, "dtype", None)
            if dtype is not None and dtype != jax_compat.FLOAT0 and not jax_compat.is_key_dtype(dtype):
                kind = "f" if jnp.issubdtype(dtype, jnp.inexact) else "i" if jnp.issubdtype(dtype, jnp.integer) else ""
                kinds.add((kind, jnp.finfo(dtype).dtype if kind == "f" else dtype))
    found: Settings = {}
    # A number that gives way to other types, and one that does not, are two programs where there are other types.
    if any(len([k for k, _ in kinds if k == kind]) > 1 for kind in "fi"):
        found["weak"] = True
    config: Any = jax.config  # its settings are no attributes to a type checker
    if config.jax_enable_x64:
        found["x64"] = True
    if makes_keys:
        found["prng"] = config.jax_default_prng_impl
    return found
