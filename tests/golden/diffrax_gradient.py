"""Jacobian of `end_energy` with respect to `params` (diffrax_gradient.py:8).

untrace 0.1.0 · jax 0.10.2 · proven: same compiled program

equinox's primitive `nonbatchable` is written as its implementation; vmap over it is no longer refused
equinox's primitive `select_if_vmap` (9 times) is written as its implementation
equinox's primitive `select_if_vmap` (8 times) is written as its implementation with its own derivative rule
equinox's primitive `unvmap_any` (2 times) is written as its implementation
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

flag = jnp.asarray(np.array(True, dtype=jnp.bool_))
flag_2 = jnp.copy(flag)


def _weakly_typed(x, dtype):
    """`x` as an array of a type that gives way to that of other arrays, as Python's numbers do."""
    from jax.extend.core import primitives

    return primitives.convert_element_type_p.bind(x, new_dtype=jnp.dtype(dtype), weak_type=True, sharding=None)


def _unvmap(reduce, x):
    """`reduce(x)`; under vmap that of the whole batch, one result for all examples."""
    import jax.custom_batching

    def whole_batch(size, in_batched, batch):
        return _unvmap(reduce, batch), False

    function = jax.custom_batching.custom_vmap(lambda x: reduce(x))
    function.def_vmap(whole_batch)
    return function(x)


def _select_if_batched(pred, x, y):
    """`x`; under a vmap that maps over `pred`, `x` where `pred` and else `y`."""
    import jax.custom_batching

    def select(size, in_batched, pred, x, y):
        if not any(in_batched):
            return x, False
        several = [
            v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip((x, y), in_batched[1:], strict=True)
        ]
        if in_batched[0]:
            return jax.vmap(lax.select)(pred, *several), True
        return _select_if_batched(pred, *several), True

    function = jax.custom_batching.custom_vmap(lambda pred, x, y: x)
    function.def_vmap(select)
    return function(pred, x, y)


def _true_unless_batched(pred):
    """True; under a vmap that maps over `pred`, `pred`."""
    import jax.custom_batching

    function = jax.custom_batching.custom_vmap(lambda pred: jnp.full(pred.shape, True))
    function.def_vmap(
        lambda size, in_batched, pred: (pred, True) if in_batched[0] else (_true_unless_batched(pred), False)
    )
    return function(pred)


@jax.jit
def branched_error_if_impl(x):
    return x


@jax.custom_jvp
def nextafter(x):
    return jnp.where(x == 0.0, np.float32(1.1754944e-38), jnp.nextafter(x, jnp.inf))


@nextafter.defjvp
def nextafter_jvp(primals, tangents):
    (x,) = primals
    (x_dot,) = tangents
    return nextafter(x), x_dot


@jax.custom_jvp
def prevbefore(x):
    return jnp.where(x == 0.0, np.float32(-1.1754944e-38), jnp.nextafter(x, -jnp.inf))


@prevbefore.defjvp
def prevbefore_jvp(primals, tangents):
    (x,) = primals
    (x_dot,) = tangents
    return prevbefore(x), x_dot


def contr(direction, tnext, t0):
    """Args: direction: i32[]; tnext, t0: f32[].  Returns: f32[]."""
    contr_2 = jnp.where(direction == 1, tnext, -t0) - jnp.where(
        direction == 1, t0, -tnext
    )
    return direction * contr_2


def field(param_1, cast, y0, zeros, y0_2, zeros_2, param_0, cast_2):
    """Args: param_1: f32[]; cast: f32[2]; y0: f32[]; zeros: f32[2]; y0_2: f32[];
    zeros_2: f32[2]; param_0: f32[]; cast_2: f32[2].
    Returns: (f32[], f32[2]).
    """
    neg_damping_f32 = (-param_0).astype(jnp.float32)
    param_1_f32 = param_1.astype(jnp.float32)
    difference = (
        -cast_2 * y0_2 + neg_damping_f32 * zeros_2 - (cast * y0 + param_1_f32 * zeros)
    )
    return neg_damping_f32 * y0_2 - param_1_f32 * y0, difference


def adapt_step_size(t0, t1, steps_already_completed, t1_sim_or_dt0, num_steps):
    """Args: t0, t1: f32[]; steps_already_completed: i32[]; t1_sim_or_dt0: f32[];
    num_steps: i32[].
    Returns: (f32[], i32[]).
    """
    steps_completed = steps_already_completed + 1
    ratio = steps_completed.astype(jnp.float32) / num_steps.astype(jnp.float32)
    t1_next = jnp.where(
        steps_completed == num_steps, t1_sim_or_dt0, t0 + (t1_sim_or_dt0 - t0) * ratio
    )
    return jnp.where(num_steps >= 0, t1_next, t1 + t1_sim_or_dt0), steps_completed


@jax.custom_jvp
def select_if_vmap(cond_fun, total, y0):
    return _select_if_batched(cond_fun, total, y0)


@select_if_vmap.defjvp
def select_if_vmap_jvp(primals, tangents):
    cond_fun, total, y0 = primals
    cond_fun_dot, total_dot, y0_dot = tangents
    val2 = select_if_vmap(cond_fun.copy(), total.copy(), y0.copy())
    pred = cond_fun.copy()
    return val2, lax.select(_true_unless_batched(pred), total_dot.copy(), y0_dot.copy())


@jax.jit
def diffeqsolve_fwd(state_0, state_1, param_0, param_1, cast, cast_2):
    """Args: state_0, state_1, param_0, param_1: f32[]; cast, cast_2: f32[2].
    Returns: a tuple of 11 arrays.
    """
    dt0 = branched_error_if_impl(0.1).astype(jnp.float32)
    direction = jnp.where(True, 1, -1)
    t0 = 0.0 * direction.astype(jnp.float32)
    t1 = direction.astype(jnp.float32)
    dt0 = dt0 * direction
    num_steps = jnp.ceil((t1 - t0) / nextafter(dt0)).astype(jnp.int32)
    ts = jnp.full((1,), direction * jnp.inf, dtype=jnp.float32)
    t1_clip_floor = prevbefore(prevbefore(prevbefore(prevbefore(t1))))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor = prevbefore(prevbefore(prevbefore(t1_clip_floor)))
    t1_clip_floor_33 = prevbefore(prevbefore(prevbefore(t1_clip_floor)))

    def new_cond_fun(state):
        step, _, _, _, _, tprev, *_ = state
        return _unvmap(jnp.any, (tprev < t1) & flag) & (step < 16)

    def new_body_fun(state):
        (
            x, cond_fun, _, y0, y0_2, t0_2, tnext, x_2, x_3, num_steps, t0_3,
            t1_sim_or_dt0, x_4, x_5, x_6, x_7, x_8, ts, ys, ys_2, x_9, zeros, zeros_2,
        ) = state
        contr_out = contr(direction, tnext, t0_2)
        difference, difference_2 = field(
            param_1, cast_2, y0, zeros, y0_2, zeros_2, param_0, cast
        )
        t1_next, steps_completed = adapt_step_size(
            t0_3, tnext, x_3, t1_sim_or_dt0, num_steps
        )
        tprev = jnp.minimum(tnext, t1)
        tclip = jnp.where(True, t1, tprev + 0.5 * (t1 - tprev))
        tnext_2 = jnp.where(t1_next > t1_clip_floor_33, tclip, t1_next)
        num_steps_2 = x_5 + 1
        num_accepted_steps = x_6 + jnp.where(True, 1, 0)
        num_rejected_steps = x_7 + jnp.where(True, 0, 1)
        val2 = select_if_vmap(cond_fun, y0 + contr_out * y0_2, y0)
        val2_2 = select_if_vmap(cond_fun, zeros + contr_out * zeros_2, zeros)
        val2_3 = select_if_vmap(cond_fun, y0_2 + contr_out * difference, y0_2)
        val2_4 = select_if_vmap(cond_fun, zeros_2 + contr_out * difference_2, zeros_2)
        x_10 = _select_if_batched(cond_fun, np.bool_(False), x_2)
        x_11 = _select_if_batched(cond_fun, steps_completed, x_3)
        x_12 = _select_if_batched(cond_fun, num_steps, num_steps)
        val2_5 = select_if_vmap(cond_fun, t1_sim_or_dt0, t1_sim_or_dt0)
        x_13 = _select_if_batched(cond_fun, np.int32(0), x_4)
        x_14 = _select_if_batched(cond_fun, num_accepted_steps, x_6)
        x_15 = _select_if_batched(cond_fun, num_rejected_steps, x_7)
        return (
            x + 1,
            cond_fun & ((tprev < t1) & flag_2),
            cond_fun,
            val2,
            val2_3,
            select_if_vmap(cond_fun, tprev, t0_2),
            select_if_vmap(cond_fun, tnext_2, tnext),
            x_10,
            x_11,
            x_12,
            select_if_vmap(cond_fun, t0_3, t0_3),
            val2_5,
            x_13,
            _select_if_batched(cond_fun, num_steps_2, x_5),
            x_14,
            x_15,
            _select_if_batched(cond_fun, x_8, x_8),
            ts.copy(),
            ys.copy(),
            ys_2.copy(),
            _select_if_batched(cond_fun, x_9, x_9),
            val2_2,
            val2_4,
        )

    (
        _, _, _, final_val, val2, val2_2, *_, x, x_2, x_3, x_4, _, buffer_val2,
        buffer_val2_2, buffer_val2_3, x_5, val2_3, val2_4,
    ) = lax.while_loop(
        new_cond_fun,
        new_body_fun,
        (
            0,
            (t0 < t1) & flag,
            np.bool_(True),
            state_0.astype(jnp.float32),
            state_1.astype(jnp.float32),
            t0,
            jnp.minimum(t0 + dt0, t1),
            np.bool_(False),
            np.int32(1),
            jnp.where(jnp.isfinite(t1), num_steps, -1),
            t0,
            jnp.where(jnp.isfinite(t1), t1, dt0),
            np.int32(0),
            0,
            0,
            0,
            0,
            ts,
            jnp.full((1,), jnp.inf, dtype=jnp.float32),
            jnp.full((1,), jnp.inf, dtype=jnp.float32),
            0,
            jnp.zeros((2,)),
            jnp.zeros((2,)),
        ),
    )
    ts_2 = lax.dynamic_update_slice_in_dim(
        buffer_val2, jnp.broadcast_to(val2_2, (1,)), x_5, 0
    )

    def false_branch():
        return buffer_val2_2[x_5], buffer_val2_3[x_5], jnp.zeros((2,)), jnp.zeros((2,))

    part, part_2, y_to_save, y_to_save_2 = lax.cond(
        True, lambda: (final_val, val2, val2_3, val2_4), false_branch
    )
    selected = lax.select(x_5 < 0, x_5.astype(jnp.int32) + 1, x_5)
    ys = lax.dynamic_update_slice_in_dim(
        buffer_val2_2,
        jnp.broadcast_to(part, (1,)),
        selected,
        0,
        allow_negative_indices=False,
    )
    updated = lax.scatter(
        jnp.zeros((2, 1)),
        jnp.broadcast_to(selected, (1,)),
        y_to_save[:, None],
        lax.ScatterDimensionNumbers(
            update_window_dims=(0, 1),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(1,),
            operand_batching_dims=(),
            scatter_indices_batching_dims=(),
        ),
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.CLIP,
    )
    selected_2 = lax.select(x_5 < 0, x_5.astype(jnp.int32) + 1, x_5)
    ys_2 = lax.dynamic_update_slice_in_dim(
        buffer_val2_3,
        jnp.broadcast_to(part_2, (1,)),
        selected_2,
        0,
        allow_negative_indices=False,
    )
    updated_2 = lax.scatter(
        jnp.zeros((2, 1)),
        jnp.broadcast_to(selected_2, (1,)),
        y_to_save_2[:, None],
        lax.ScatterDimensionNumbers(
            update_window_dims=(0, 1),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(1,),
            operand_batching_dims=(),
            scatter_indices_batching_dims=(),
        ),
        indices_are_sorted=True,
        unique_indices=True,
        mode=lax.GatherScatterMode.CLIP,
    )
    return (
        t0 * direction,
        t1 * direction,
        ts_2 * direction,
        ys,
        ys_2,
        x_3,
        x_4,
        x_2,
        jnp.where((val2_2 < t1) & flag, 1, x),
        updated,
        updated_2,
    )


def jacobian_end_energy(params, state):
    """Args: params: (f32[], f32[]); state: (f32[], f32[]).  Returns: like params."""
    params, state = _checked(
        "params: (f32[], f32[]); state: (f32[], f32[])",
        params, state,
    )
    parts, parts_2 = jnp.split(jnp.eye(2), 2, axis=-1)
    _, _, _, ys, ys_2, *_, updated, updated_2 = diffeqsolve_fwd(
        state[0],
        state[1],
        params[0],
        params[1],
        _weakly_typed(parts.ravel(), jnp.float32),
        _weakly_typed(parts_2.ravel(), jnp.float32),
    )
    total_dot = (updated * (2.0 * ys) + updated_2 * (2.0 * ys_2)).squeeze(axis=1)
    parts_3, parts_4 = jnp.split(0.5 * total_dot, 2)
    return parts_3.reshape(), parts_4.reshape()


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
