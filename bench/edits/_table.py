"""What an edit and its program are, and the thirty edits of programs that differentiate."""

from __future__ import annotations

import dataclasses

from edits._rewrite import Loss, Replace


@dataclasses.dataclass(frozen=True)
class Edit:
    """One maintenance edit of one program; `words` say what it does."""

    words: str
    how: Replace | Loss


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a folder (`own` is `bench/edits`), which of its results are its loss, and its edits.

    `loss` is a regular expression on the ways to the results, `[2]` or `[0].logdensity`; None where the program takes no
    derivative. `tolerance` is how far two compilations of one program may be apart, of the largest value of an array;
    None takes the dtype's.
    """

    folder: str
    name: str
    loss: str | None
    edits: tuple[Edit, ...]
    tolerance: float | None = None


def replace(words: str, within: str, pattern: str, by: str, everywhere: bool = False) -> Edit:
    return Edit(words, Replace(tuple(within.split()), pattern, by, everywhere))


def loss(words: str, within: str, by: str, params: str = "params") -> Edit:
    return Edit(words, Loss(within, by, params))


DECAY = "V + 1e-2 * sum(jnp.sum(p ** 2) for p in jax.tree.leaves(PARAMS))"

DIFFERENTIATED = (
    Program(
        "zoo",
        "shard_map_data_parallel",
        r"\[1\]",
        (
            replace("relu becomes tanh", "loss_fn local_step", "jax.nn.relu(A)", "jnp.tanh(A)"),
            loss("decay of w1 in the loss", "loss_fn", 'V + 1e-2 * jnp.sum(PARAMS["w1"] ** 2)'),
        ),
    ),
    Program(
        "zoo",
        "paper_molecular_descent",
        r"\[1\]",
        (
            replace("attraction of 3, not 2", "pair_energy total_energy", "A * A - 2.0 * A", "A * A - 3.0 * A"),
            replace("softer exponent", "pair_energy total_energy", "A ** 3 + 0.1", "A ** 2 + 0.1"),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "gpt_train_step_adamw",
        r"\[2\]",
        (
            replace("one more layer", "logits_of", 'A["blocks"]', "[*A, A[-1]]"),
            loss("weight decay in the loss", "loss_fn", DECAY),
            replace("clip of each token's loss", "loss_fn train_step", "jnp.mean(A)", "jnp.mean(jnp.minimum(A, 4.15))"),
        ),
    ),
    Program(
        "zoo",
        "flax_linen_resnet_train_step",
        r"\[3\]",
        (
            replace("relu becomes silu everywhere", "", "jax.nn.relu(A)", "jax.nn.silu(A)", everywhere=True),
            loss("weight decay in the loss", "loss_fn", DECAY),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo2",
        "jraph_gat_train_step",
        r"\[1\]",
        (
            loss("weight decay in the loss", "loss_fn", DECAY),
            replace("clip of each node's loss", "loss_fn train_step", "jnp.mean(A)", "jnp.mean(jnp.maximum(A, -1.2))"),
        ),
    ),
    Program(
        "zoo2",
        "optax_vae_accumulated_step",
        r"\[2\]",
        (
            replace(
                "divergence weighs twice",
                "negative_elbo train_step",
                "0.5 * jnp.sum(A, axis=-1)",
                "1.0 * jnp.sum(A, axis=-1)",
            ),
            replace(
                "clip of each example's loss",
                "negative_elbo train_step",
                "jnp.mean(A)",
                "jnp.mean(jnp.minimum(A, 14.0))",
            ),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo2",
        "hessian_newton_cg_pinn",
        r"\[1\]",
        (
            replace("sin becomes tanh", "network", "jnp.sin(A * B + C)", "jnp.tanh(A * B + C)"),
            replace(
                "boundary weighs ten times",
                "residual_loss",
                "jnp.mean(A ** 2) + B",
                "jnp.mean(A ** 2) + 10.0 * B",
            ),
        ),
        tolerance=1e-3,
    ),
    Program(
        "zoo2",
        "flax_linen_seq2seq_train_step",
        r"\[2\]",
        (
            replace(
                "clip of each token's loss",
                "loss_fn train_step",
                "jnp.sum(A * B) / C",
                "jnp.sum(jnp.minimum(A, 3.5) * B) / C",
            ),
        ),
    ),
    Program(
        "zoo2",
        "paper_molecular_forces_unrolled",
        r"\[1\]",
        (
            replace("bonds of 20, not 50", "bond_energy energy", "50.0 * A ** 2", "20.0 * A ** 2"),
            loss("a trap in the energy", "energy", "V + 0.5 * jnp.sum(PARAMS ** 2)", params="positions"),
        ),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "blackjax_hmc_step",
        r"\[0\]\.logdensity$",
        (replace("narrower prior", "log_density", "-0.5 * jnp.sum(A ** 2)", "-2.0 * jnp.sum(A ** 2)"),),
        tolerance=1e-4,
    ),
    Program(
        "zoo",
        "jaxopt_lbfgs_logistic",
        r"\[1\]",
        (loss("a smooth L1 term", "regularised_loss", "V + 0.05 * jnp.sum(jnp.sqrt(PARAMS ** 2 + 0.01))", "weights"),),
        tolerance=1e-3,
    ),
    Program(
        "own",
        "ddpm_train_step",
        r"\[3\]",
        (
            replace("relu becomes silu", "predict_noise train_step", "jax.nn.relu(A)", "jax.nn.silu(A)"),
            replace(
                "one more layer",
                "predict_noise train_step",
                'jnp.tanh(A @ W["middle"] + B)',
                "jnp.tanh(jnp.tanh(A @ W + B) @ W + B)",
            ),
        ),
    ),
    Program(
        "own",
        "hmc_chain",
        r"\[1\]\[1\]",
        (replace("narrower prior", "log_density", "A - 0.5 * jnp.sum(B ** 2)", "A - 2.0 * jnp.sum(B ** 2)"),),
        tolerance=1e-4,
    ),
    Program(
        "own",
        "private_sgd_step",
        r"\[1\]",
        (
            replace("relu becomes tanh", "predict example_loss", "jax.nn.relu(A)", "jnp.tanh(A)"),
            replace("clip of each example's loss", "example_loss", "0.5 * A ** 2", "jnp.minimum(0.5 * A ** 2, 0.6)"),
        ),
    ),
    Program(
        "own",
        "newton_poisson_step",
        r"\[1\]",
        (replace("stronger ridge", "penalised_loss", "A + 0.05 * jnp.sum(B ** 2)", "A + 0.2 * jnp.sum(B ** 2)"),),
        tolerance=1e-4,
    ),
    Program(
        "own",
        "langevin_sampler",
        r"\[1\]",
        (
            replace("deeper wells", "energy", "0.25 * A ** 2", "0.5 * A ** 2"),
            loss("a field in the energy", "energy", "V + 0.5 * jnp.sum(jnp.cos(3.0 * PARAMS))", params="heights"),
        ),
        tolerance=1e-4,
    ),
    Program(
        "own",
        "ppo_step",
        r"\[2\]",
        (
            replace("value loss weighs twice", "ppo_loss update", "0.5 * jnp.mean(A ** 2)", "1.0 * jnp.mean(A ** 2)"),
            replace(
                "one more layer",
                "actor_critic ppo_loss update",
                'jnp.tanh(A @ W["torso"] + B)',
                "jnp.tanh(jnp.tanh(A @ W + B) @ W + B)",
            ),
        ),
    ),
)
