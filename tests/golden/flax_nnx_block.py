"""`forward` (flax_nnx_block.py:26).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program, at n = 2 and 2003
"""

import jax
import jax.numpy as jnp
from jax import lax


def layer_norm(params, x):
    """Args: params: {"bias": f32[8], "scale": f32[8]}; x: f32[n,6,8].  Returns: f32[n,6,8]."""
    mus = x.mean(axis=-1)
    difference = jnp.square(x).mean(axis=-1) - jnp.square(mus)
    total = jnp.maximum(0.0, difference)[:, :, None] + 1e-06
    y = (x - mus[:, :, None]) * (lax.rsqrt(total) * params["scale"])
    return y + params["bias"]


def linear_general(params, inputs):
    """Args: params: {"bias": f32[2,4], "kernel": f32[8,2,4]}; inputs: f32[n,6,8].
    Returns: f32[n,6,2,4].
    """
    return jnp.einsum("ijk,klm->ijlm", inputs, params["kernel"]) + params["bias"]


def multi_head_attention(params, inputs_q):
    """Args: params: {"key": {...}, "out": {...}, "query": {...}, "value": {...}};
    inputs_q: f32[n,6,8].
    Returns: f32[n,6,8].
    """
    out = jax.nn.dot_product_attention(
        linear_general(params["query"], inputs_q),
        linear_general(params["key"], inputs_q),
        linear_general(params["value"], inputs_q),
    )
    product = jnp.einsum("ijkl,klm->ijm", out, params["out"]["kernel"])
    return product + params["out"]["bias"]


def linear(params, inputs):
    """Args: params: {"bias": f32[_], "kernel": f32[_,_]}; inputs: f32[n,6,_].  Returns: f32[n,6,_]."""
    return inputs @ params["kernel"] + params["bias"]


def forward(params, x):
    """Args: params: a dict of 16 arrays; x: f32[n,6,8].  Returns: f32[n,6,8]."""
    params, x = _checked(
        "params: {attention: {key: {bias: f32[2,4], kernel: f32[8,2,4]}, "
        "out: {bias: f32[8], kernel: f32[2,4,8]}, query: {bias: f32[2,4], "
        "kernel: f32[8,2,4]}, value: {bias: f32[2,4], kernel: f32[8,2,4]}}, "
        "down: {bias: f32[8], kernel: f32[32,8]}, norm1: {bias: f32[8], "
        "scale: f32[8]}, norm2: {bias: f32[8], scale: f32[8]}, "
        "up: {bias: f32[32], kernel: f32[8,32]}}; x: f32[n,6,8]",
        params, x,
    )
    x = x + multi_head_attention(params["attention"], layer_norm(params["norm1"], x))
    hidden = jax.nn.gelu(linear(params["up"], layer_norm(params["norm2"], x)))
    return x + linear(params["down"], hidden)


def _type_of(tree, avals, weak):
    """The type of a pytree in words: `{w: f32[3,4]}`; of numbers that give way to other types with a `~`, if `weak`."""
    words = ["~" * (weak and aval.weak_type) + aval.str_short(short_dtypes=True) for aval in avals]
    return str(jax.tree.unflatten(tree, words)).replace("'", "")


_KNOWN, _X64 = set(), jax.config.jax_enable_x64


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
