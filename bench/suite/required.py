"""What JAX's test corpus never reaches: the primitives that the suite must cover three times.

Measured by tracing every harness of `jax._src.internal_test_util.test_harnesses` on JAX 0.10.2 (43
of 175 primitives) and 0.12.0.1 (44 of 178), nested jaxprs included. Names are those of
`jax.extend.core.primitives` without `_p`.
"""

from __future__ import annotations

UNREACHED = (
    "after_all",
    "all_gather",
    "all_to_all",
    "axis_index",
    "call",
    "closed_call",
    "clz",
    "cond",
    "create_token",
    "custom_jvp_call",
    "custom_lin",
    "custom_vjp_call",
    "empty2",
    "eq_to",
    "exp2",
    "get",
    "hessenberg",
    "householder_product",
    "igamma_grad_a",
    "le_to",
    "lt_to",
    "name",
    "not",
    "one_minus_square",  # only where JAX has it
    "pmax",
    "pmin",
    "polygamma",
    "polynomial",  # only where JAX has it
    "ppermute",
    "psum",
    "ragged_all_to_all",
    "random_fold_in",
    "reduce_xor",
    "remat",
    "rng_uniform",
    "scan",
    "schur",
    "select_and_scatter",
    "sharding_constraint",
    "square",
    "swap",
    "threefry2x32",
    "tridiagonal",
    "while",
    "zeta",
)

# Primitives outside `jax.extend.core.primitives`, by their own names, that programs do meet.
BEYOND = (
    "addupdate",
    "bcoo_dot_general",
    "composite",
    "copy",
    "custom_linear_solve",
    "custom_vmap_call",
    "debug_callback",
    "device_put",
    "ffi_call",
    "freeze",
    "io_callback",
    "linear_call",
    "new_ref",
    "optimization_barrier",
    "pallas_call",
    "pure_callback",
    "pvary",
    "random_bits",
    "random_seed",
    "random_split",
    "random_unwrap",
    "random_wrap",
    "reduce_scatter",
    "shard_map",
)


def required_names() -> dict[str, str]:
    """The primitives of this JAX that need three cases: name in the list -> `primitive.name`."""
    import jax.extend.core.primitives as primitives

    names = {}
    for name in UNREACHED:
        primitive = getattr(primitives, name + "_p", None)
        if primitive is not None:
            names[name] = primitive.name
    names.update((name, name) for name in BEYOND)
    return names
