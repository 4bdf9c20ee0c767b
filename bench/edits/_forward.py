"""The twenty edits of programs that take no derivative, by program. They were chosen by the authors' sources alone."""

from __future__ import annotations

from edits._table import Program, replace

FORWARD = (
    Program(
        "zoo",
        "fft_navier_stokes",
        None,
        (
            replace(
                "dealiased at a quarter, not a third",
                "vorticity_tendency simulate",
                "jnp.abs(A) < B / 3",
                "jnp.abs(A) < B / 4",
            ),
            replace(
                "twenty steps, not ten", "simulate", "jax.lax.scan(A, B, length=10)", "jax.lax.scan(A, B, length=20)"
            ),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "metropolis_typed_keys",
        None,
        (
            replace("forty samples, not 25", "", "25", "40"),
            replace(
                "uniform proposals",
                "metropolis_chain sample_chains",
                "jax.random.normal(A, B)",
                "jax.random.uniform(A, B, minval=-2.0, maxval=2.0)",
            ),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo2",
        "nested_pytrees_flock",
        None,
        (
            replace("walls at 0.5 and 3.5, not a torus", "", "jnp.mod(A, 4.0)", "jnp.clip(A, 0.5, 3.5)"),
            replace("sight of 0.8, not 1.2", "", "1.2", "0.8"),
            replace("five steps, not three", "build advance", "3", "5"),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "associative_scan_ssm",
        None,
        (
            replace(
                "bilinear discretisation",
                "discretise state_space_layer",
                "jnp.exp(A * B)",
                "(1.0 + 0.5 * A * B) / (1.0 - 0.5 * A * B)",
            ),
            replace(
                "backwards in time",
                "",
                "jax.lax.associative_scan(A, B)",
                "jax.lax.associative_scan(A, B, reverse=True)",
            ),
        ),
    ),
    Program(
        "zoo",
        "int8_quantised_matmul",
        None,
        (replace("five bits, not eight", "quantise quantised_dot quantised_mlp", "127", "15"),),
        tolerance=1e-3,
    ),
    Program("zoo", "while_cond_switch_vm", None, (replace("jumps above 3, not 0", "", "A > 0", "A > 3"),)),
    Program(
        "zoo",
        "sparse_bcoo_cg",
        None,
        (replace("five iterations, not 30", "", "30", "5"),),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "flax_nnx_llama",
        None,
        (
            replace("rotary base of 500,000", "", "10000.0 ** A", "500000.0 ** A"),
            replace(
                "attention in a window",
                "",
                "jax.nn.dot_product_attention(A, B, C, is_causal=True)",
                "jax.nn.dot_product_attention(A, B, C, is_causal=True, local_window_size=(3, 0))",
            ),
        ),
    ),
    Program(
        "zoo",
        "distrax_realnvp_log_prob",
        None,
        (replace("half the range of scales", "", "jnp.tanh(A[B])", "0.5 * jnp.tanh(A[B])"),),
    ),
    Program(
        "zoo",
        "pallas_softmax_interpret",
        None,
        (replace("a softmax twice as hot", "", "jnp.exp(A - B)", "jnp.exp(0.5 * (A - B))"),),
    ),
    Program(
        "zoo",
        "diffrax_tsit5_lotka_volterra",
        None,
        (
            replace(
                "prey lives off 20",
                "lotka_volterra simulate",
                "A * B - C * B * D",
                "A * B * (1.0 - B / 20.0) - C * B * D",
            ),
        ),
        tolerance=1e-3,
    ),
    Program("zoo2", "haiku_resnet_state", None, (replace("averages over 100 batches", "", "0.9", "0.99"),)),
    Program(
        "zoo",
        "lineax_gmres_operator",
        None,
        (
            replace(
                "fixed ends, not a ring",
                "",
                "2.2 * A - jnp.roll(A, 1) - jnp.roll(A, -1)",
                "2.2 * A - jnp.pad(A[:-1], (1, 0)) - jnp.pad(A[1:], (0, 1))",
            ),
        ),
        tolerance=1e-3,
    ),
    Program("zoo", "equinox_vit", None, (replace("one more layer", "", 'A["blocks"]', "[*A, A[-1]]"),)),
)
