"""`train_step` (optax_adamw_step.py:15).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program, at m, n = 3, 4 and 2018, 2027
"""

import functools

import jax
import jax.numpy as jnp
from optax import EmptyState, ScaleByAdamState


def loss(params, x, y):
    """Args: params: {"b": f32[], "w": f32[m]}; x: f32[n,m]; y: f32[n].  Returns: f32[]."""
    prediction = x @ params["w"] + params["b"]
    return jnp.mean((prediction - y) ** 2)


def update_fn(updates, state):
    """Args: updates: {"b": f32[], "w": f32[m]};
    state: ScaleByAdamState(count=i32[], mu={...}, nu={...}).
    Returns: (like updates, like state).
    """
    mu = jax.tree.map(lambda g, t: 0.1 * g + 0.9 * t, updates, state.mu)
    nu = jax.tree.map(lambda g, t: 0.001 * g**2 + 0.999 * t, updates, state.nu)
    count_inc = jnp.where(state.count < 2147483647, state.count + 1, 2147483647)
    difference = 1.0 - 0.9**count_inc
    difference_2 = 1.0 - 0.999**count_inc
    updates_2 = mu["b"] / difference / (jnp.sqrt(nu["b"] / difference_2 + 0.0) + 1e-08)
    updates_3 = mu["w"] / difference / (jnp.sqrt(nu["w"] / difference_2 + 0.0) + 1e-08)
    return (
        {"b": updates_2, "w": updates_3},
        ScaleByAdamState(
            count=count_inc, mu=mu, nu={"b": nu["b"].astype(jnp.float32), "w": nu["w"]}
        ),
    )


def update(updates, state, params):
    """Args: updates: {"b": f32[], "w": f32[m]};
    state: [0: ScaleByAdamState(count=i32[], mu={...}, nu={...})];
    params: {"b": f32[], "w": f32[m]}.
    Returns: (like updates, ScaleByAdamState(...)).
    """
    updates_2, new_state = update_fn(updates, state[0])
    updates_3 = jax.tree.map(lambda g, p: g + 0.0001 * p, updates_2, params)
    return jax.tree.map(lambda x: -0.001 * x, updates_3), new_state


def train_step(params, state, x, y):
    """Args: params: {"b": f32[], "w": f32[m]};
    state: (ScaleByAdamState(...), EmptyState(), EmptyState()); x: f32[n,m]; y: f32[n].
    Returns: (like params, like state, f32[]).
    """
    params, state, x, y = _checked(
        _spelled_out(
            "params: {b: f32[], w: f32[m]}; state: (ScaleByAdamState(i32[], "
            "like params, like params), EmptyState(), EmptyState()); x: f32[n,m]; "
            "y: f32[n]"
        ),
        params, state, x, y,
    )
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    updates, new_state = update(gradient, state, params)
    new_params = jax.tree.map(lambda x, x_2: x + x_2, params, updates)
    return new_params, (new_state, EmptyState(), EmptyState()), value


def _type_of(tree, avals, weak):
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


@functools.cache
def _spelled_out(types):
    """The types with lists (`[f32[n]] * 2`), what is `like x` and what has a letter (`P = {w: f32[n]}`) written out."""
    import re

    found, letters = {}, {}
    for text in types.split("; "):
        text = re.sub(r"\b[A-Z]\b(?! = )", lambda m: letters.get(m[0], m[0]), text)
        if text[1:4] == " = ":
            letters[text[0]] = text[4:]
            continue
        name, _, text = text.partition(": ")
        text = re.sub(r"\[((?:[^][]|\[[\w,]*\])*)\] \* (\d+)", lambda m: f"[{', '.join([m[1]] * int(m[2]))}]", text)
        found[name] = re.sub(r"like (\w+)", lambda m: found.get(m[1], m[0]), text)
    return "; ".join([f"{name}: {text}" for name, text in found.items()])


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
