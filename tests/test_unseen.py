"""Programs in the manner of real repositories, by authors who did not know how untrace writes: what of them comes back.

`KEPT` are the functions of theirs that are functions of the text; more may join them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util

import pytest

import untrace

KEPT = {
    "arm_ik": "axis_angle_to_matrix chain forward_kinematics iterate pose_error residual rotation_log skew",
    "beam_search": "body cond decode_one layer length_penalty rms_norm translate",
    "cma_es": "ask generation keep_going rastrigin run",
    "crf_tagger": (
        "crf_log_partition crf_path_score emissions forward length_mask mean_nll step train_step viterbi_decode"
    ),
    "dqn_cartpole": "act double_q_loss env_step learn q_values select skip step_env train",
    "equinox_vae": "body gaussian_kl negative_elbo sample train",
    "gaussian_mixture": (
        "component_log_prob covariance e_step fit init_params iterate kmeans_plusplus log_sum_exp m_step not_done "
        "one_restart pick run_em sq_distances"
    ),
    "hmm_baum_welch": (
        "backtrack backward_pass baum_welch_step e_step emission_log_probs forward_pass m_step max_product "
        "smooth step viterbi"
    ),
    "ilqr_quadrotor": (
        "forward_pass iterate plan project_psd quadrotor_ode riccati rollout stage_cost step terminal_cost"
    ),
    "lattice_boltzmann": (
        "apply_inlet bounce_back collide drag equilibrium inlet_profile macroscopic simulate step stream vorticity"
    ),
    "llama_decode": "apply_rope attention decode_step forward generate generate_both rms_norm sample_token",
    "mala_tempering": (
        "evaluate log_likelihood log_prior one_step proposal_logpdf run sample_chain step swap tempered"
    ),
    "multitask_gat": (
        "attention_layer forward linear masked_mean multitask_loss segment_softmax smoothed_cross_entropy train_step"
    ),
    "navier_stokes": "diagnose make_grid make_rhs rhs rk4_step save_interval simulate velocity_from_vorticity",
    "nerf": "apply_nerf composite dense loss_fn positional_encoding render_rays stratified_depths train_step",
    "particle_filter": (
        "bootstrap_filter effective_sample_size estimate_log_likelihood expectation keep log_observation resample "
        "resample_if_needed reweight sample_initial sample_transition step systematic_ancestors weighted_quantiles"
    ),
    "sinkhorn_implicit": (
        "dual_potentials dual_potentials_bwd dual_potentials_fwd keep_going log_plan marginal_residual "
        "objective softmin squared_euclidean step update"
    ),
    "spiking_lif": "adam_update alif_step loss_fn readout_step run_network spike step train_step",
    "unet_denoiser": "cosine_alpha_bar diffuse f loss_fn min_snr_weight sinusoidal_embedding train_step",
    "science.felsenstein_gtr_likelihood": (
        "discrete_rates log_likelihood log_prior posterior_report prune rate_matrix transition_matrices"
    ),
    "science.gp_elliptical_slice": (
        "elliptical_slice gp_logprior gram_cholesky hyper_logprior hyper_step logpost matern52 negbin_loglik perturb "
        "predict propose sample_posterior"
    ),
    "science.heston_barrier_greeks": "black_scholes_call correlated_normals greeks price simulate smooth_payoff",
    "science.pose_graph_slam": (
        "edge_residual linearize normal_equations optimize robust_cost rot se2_between se2_compose se2_exp wrap_angle"
    ),
    "science.shallow_water_adjoint": "apply_walls axpy ddx ddy laplacian misfit rk3_step sensitivity tendency",
}
LIBRARIES = {
    "crf_tagger": "optax",
    "dqn_cartpole": "optax",
    "nerf": "optax",
    "equinox_vae": "equinox",
    "unet_denoiser": "flax",
}
# What was handed over is a `jax.vmap`, which is written out with all that is in it.
HANDED_OVER = {"arm_ik"}
TRANSFORMS = ("jax.grad(", "jax.value_and_grad(", "jax.vjp(", "jax.jacfwd(", "jax.hessian(", "filter_value_and_grad(")


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_comes_back(name, monkeypatch):
    for library in (LIBRARIES.get(name, "jax"), "optax" if name in LIBRARIES else "jax"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    monkeypatch.setenv("UNTRACE_STRICT", "1")
    module = importlib.import_module(f"unseen.{name}")
    function, args = module.build()
    written = untrace.decompile(function)(*args)
    assert written.proof.at_least("bits")
    defined = {node.name for node in ast.walk(ast.parse(written.source)) if isinstance(node, ast.FunctionDef)}
    assert set(KEPT[name].split()) <= defined
    with open(module.__file__, encoding="utf-8") as file:
        differentiates = any(transform in file.read() for transform in TRANSFORMS)
    if differentiates and name not in HANDED_OVER:
        assert any(transform in written.source for transform in TRANSFORMS)
        assert "# backward" not in written.source
