"""Value and gradient of `loss` with respect to `params` (sliding_window_attention.py:31).

untrace 0.1.0 · jax 0.10.2 · proven: same bits, at n, k, m, length, l = 32, 16, 3, 8, 48 and 167, 158, 134, 149, 474
"""

import jax
import jax.numpy as jnp
from jax import lax

HEADS = 2
WINDOW = 4


def attention(layer, x):
    """Args: layer: {"out": bf16[k,k], "qkv": bf16[k,l]}; x: bf16[length,k].
    Returns: bf16[length,k].
    """
    length = x.shape[0]
    q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
    product = jnp.einsum(
        "qhd,khd->hqk",
        q.reshape(q.shape[0], HEADS, -1),
        k.reshape(k.shape[0], HEADS, -1),
    )
    scores = product / jnp.sqrt(x.shape[1] // 2)
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    mask = (distance >= 0) & (distance < WINDOW)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    product_2 = jnp.einsum("hqk,khd->qhd", weights, v.reshape(v.shape[0], HEADS, -1))
    return product_2.reshape(x.shape) @ layer["out"]


def block(x, layer):
    """Args: x: bf16[length,k]; layer: {"out": bf16[k,k], "qkv": bf16[k,l]}.
    Returns: bf16[length,k].
    """
    return x + attention(layer, x)


def forward(params, tokens):
    """Args: params: {"embedding": bf16[n,k], "layers": {...}}; tokens: i32[length].
    Returns: (bf16[length,n], (bf16[length,k], bf16[m,length,k], bf16[k,n])).
    """
    embedding = params["embedding"]
    x = embedding[tokens]

    def step(x, layer):
        return block(x, layer), x

    x_2, xs = lax.scan(step, x, params["layers"])
    params_t = embedding.T
    return x_2 @ params_t, (x_2, xs, params_t)


def loss_and_grad(params, tokens, targets):
    """Args: params: {"embedding": f32[n,k], "layers": {...}};
    tokens, targets: i32[length].
    Returns: (f32[], like params).
    """
    params, tokens, targets = _checked(
        "params: {embedding: f32[n,k], layers: {out: f32[m,k,k], "
        "qkv: f32[m,k,l]}}; tokens: i32[length]; targets: i32[length]",
        params, tokens, targets, multiples={"k": 2}, sums={"l": "3*k"}, weak=True,
    )
    length = tokens.shape[0]

    # forward
    params_2 = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    forward_out, forward_saved = forward(params_2, tokens)
    logits = forward_out.astype(jnp.float32)
    log_probs, log_softmax_vjp = jax.vjp(jax.nn.log_softmax, logits)
    taken, take_along_axis_vjp = jax.vjp(
        lambda x: jnp.take_along_axis(x, targets[:, None]), log_probs
    )

    # backward, written out: an edit above does not change it
    d_taken = jnp.full(taken.shape, -1.0 / length, dtype=jnp.float32)
    d_logits = log_softmax_vjp(take_along_axis_vjp(d_taken)[0])[0]
    d_product = d_logits.astype(jnp.bfloat16)  # sliding_window_attention.py:33
    x, xs, params_t = forward_saved

    def block_bwd(d_x, inputs):
        x, layer = inputs
        _, block_vjp = jax.vjp(jax.checkpoint(block), x, layer)
        d_x_2, d_layer = block_vjp(d_x)
        return d_x_2, d_layer

    d_x, d_layers = lax.scan(
        block_bwd,
        jnp.einsum("ij,kj->ik", d_product, params_t),
        (xs, params_2["layers"]),
        reverse=True,
    )  # sliding_window_attention.py:27
    zeros = jnp.zeros(params["embedding"].shape, dtype=jnp.bfloat16)
    d_params = jnp.einsum("ij,ik->jk", d_product, x) + zeros.at[tokens].add(d_x)
    grads = {"embedding": d_params, "layers": d_layers}
    grads_2 = jax.tree.map(lambda p: p.astype(jnp.float32), grads)
    return -taken.mean(), grads_2


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
