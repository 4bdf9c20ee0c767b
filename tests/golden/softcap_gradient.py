"""Gradient of `loss` with respect to `params` (softcap_gradient.py:12).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program, at m, k, n = 4, 5, 3 and 521, 538, 502
"""

import jax
import jax.numpy as jnp

SOFTCAP_CAP = 30.0


def grad_loss(params, x):
    """Args: params: (w: f32[m,k], b: f32[k]); x: f32[n,m].  Returns: the gradient, like params."""
    params, x = _checked("params: (f32[m,k], f32[k]); x: f32[n,m]", params, x)
    w, b = params

    # forward
    total = x @ w + b
    hidden = jax.nn.relu(total)
    centered = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
    scaled = centered / SOFTCAP_CAP
    tanh_scaled = jnp.tanh(scaled)

    # backward, written out: an edit above does not change it
    d_tanh_scaled = 30.0 * (1.0 - tanh_scaled)
    d_centered = (d_tanh_scaled + d_tanh_scaled * tanh_scaled) / SOFTCAP_CAP
    d_centered_2 = d_centered + (-d_centered).mean(axis=-1, keepdims=True)
    d_total = jnp.where(total > 0.0, d_centered_2, 0.0)  # softcap_gradient.py:14
    return x.T @ d_total, d_total.sum(axis=0)


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
