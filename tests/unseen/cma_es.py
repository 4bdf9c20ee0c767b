"""CMA-ES with an ask/tell interface, run to a tolerance or an iteration budget in a while_loop.

Weights and learning rates follow Hansen's tutorial (arXiv:1604.00772); the active (negative weight)
update is left out.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MIN_EIGENVALUE = 1e-10


class CMAState(NamedTuple):
    key: jax.Array
    mean: jax.Array
    sigma: jax.Array
    cov: jax.Array
    path_sigma: jax.Array
    path_cov: jax.Array
    eig_vectors: jax.Array
    eig_scales: jax.Array  # square roots of the eigenvalues of cov
    best_x: jax.Array
    best_fitness: jax.Array
    generation: jax.Array


def rastrigin(x: jax.Array, amplitude: float = 10.0) -> jax.Array:
    return amplitude * x.shape[-1] + jnp.sum(x**2 - amplitude * jnp.cos(2 * jnp.pi * x), axis=-1)


class CMAES:
    """Covariance matrix adaptation; strategy constants are Python floats fixed at construction."""

    def __init__(self, dim: int, popsize: int | None = None, bounds: tuple[float, float] = (-5.12, 5.12)):
        self.dim = dim
        self.popsize = popsize or 4 + int(3 * math.log(dim))
        self.bounds = bounds
        self.num_parents = self.popsize // 2

        raw = math.log((self.popsize + 1) / 2) - np.log(np.arange(1, self.num_parents + 1))
        self.weights = jnp.asarray(raw / raw.sum(), dtype=jnp.float32)
        self.mu_eff = float(raw.sum() ** 2 / (raw**2).sum())

        n, mu = dim, self.mu_eff
        self.c_sigma = (mu + 2) / (n + mu + 5)
        self.d_sigma = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + self.c_sigma
        self.c_cov = (4 + mu / n) / (n + 4 + 2 * mu / n)
        self.c_1 = 2 / ((n + 1.3) ** 2 + mu)
        self.c_mu = min(1 - self.c_1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
        self.chi_n = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))

    def init(self, key: jax.Array, mean: jax.Array, sigma: float | jax.Array = 1.0) -> CMAState:
        zeros, eye = jnp.zeros(self.dim), jnp.eye(self.dim)
        return CMAState(
            key=key,
            mean=mean,
            sigma=jnp.asarray(sigma, jnp.float32),
            cov=eye,
            path_sigma=zeros,
            path_cov=zeros,
            eig_vectors=eye,
            eig_scales=jnp.ones(self.dim),
            best_x=mean,
            best_fitness=jnp.asarray(jnp.inf),
            generation=jnp.asarray(0, jnp.int32),
        )

    def ask(self, state: CMAState) -> tuple[jax.Array, CMAState]:
        key, subkey = jax.random.split(state.key)
        z = jax.random.normal(subkey, (self.popsize, self.dim))
        steps = (z * state.eig_scales) @ state.eig_vectors.T
        population = jnp.clip(state.mean + state.sigma * steps, *self.bounds)
        return population, state._replace(key=key)

    def tell(self, state: CMAState, population: jax.Array, fitness: jax.Array) -> CMAState:
        order = jnp.argsort(fitness)
        parents = population[order[: self.num_parents]]
        steps = (parents - state.mean) / state.sigma
        mean_step = self.weights @ steps
        mean = state.mean + state.sigma * mean_step

        whitened = state.eig_vectors @ ((state.eig_vectors.T @ mean_step) / state.eig_scales)
        path_sigma = (1 - self.c_sigma) * state.path_sigma
        path_sigma += math.sqrt(self.c_sigma * (2 - self.c_sigma) * self.mu_eff) * whitened
        norm = jnp.linalg.norm(path_sigma)
        decay = 1 - (1 - self.c_sigma) ** (2 * (state.generation + 1))
        h_sigma = jnp.where(norm / jnp.sqrt(decay) < (1.4 + 2 / (self.dim + 1)) * self.chi_n, 1.0, 0.0)

        path_cov = (1 - self.c_cov) * state.path_cov
        path_cov += h_sigma * math.sqrt(self.c_cov * (2 - self.c_cov) * self.mu_eff) * mean_step
        rank_one = jnp.outer(path_cov, path_cov) + (1 - h_sigma) * self.c_cov * (2 - self.c_cov) * state.cov
        rank_mu = jnp.einsum("i,ij,ik->jk", self.weights, steps, steps)
        cov = (1 - self.c_1 - self.c_mu) * state.cov + self.c_1 * rank_one + self.c_mu * rank_mu
        cov = 0.5 * (cov + cov.T)
        eig_values, eig_vectors = jnp.linalg.eigh(cov)

        sigma = state.sigma * jnp.exp((self.c_sigma / self.d_sigma) * (norm / self.chi_n - 1))
        improved = fitness[order[0]] < state.best_fitness
        return CMAState(
            state.key,
            mean,
            sigma,
            cov,
            path_sigma,
            path_cov,
            eig_vectors,
            eig_scales=jnp.sqrt(jnp.maximum(eig_values, MIN_EIGENVALUE)),
            best_x=jnp.where(improved, population[order[0]], state.best_x),
            best_fitness=jnp.minimum(fitness[order[0]], state.best_fitness),
            generation=state.generation + 1,
        )


def minimize(
    objective: Callable[[jax.Array], jax.Array], strategy: CMAES, *, max_generations: int = 100, ftol: float = 1e-6
):
    def run(key: jax.Array, x0: jax.Array, sigma0: jax.Array):
        def keep_going(state: CMAState):
            unconverged = (state.best_fitness > ftol) & (state.sigma * jnp.max(state.eig_scales) > 1e-8)
            return (state.generation < max_generations) & unconverged

        def generation(state: CMAState) -> CMAState:
            population, state = strategy.ask(state)
            return strategy.tell(state, population, jax.vmap(objective)(population))

        final = jax.lax.while_loop(keep_going, generation, strategy.init(key, x0, sigma0))
        condition = jnp.max(final.eig_scales) / jnp.min(final.eig_scales)
        return final.best_x, {
            "fitness": final.best_fitness,
            "generations": final.generation,
            "sigma": final.sigma,
            "axis_ratio": condition,
        }

    return run


def build():
    strategy = CMAES(dim=4, popsize=24)
    x0 = jnp.array([2.5, -1.5, 3.0, -2.0])
    return minimize(rastrigin, strategy, max_generations=120), (jax.random.key(5), x0, jnp.float32(2.0))
