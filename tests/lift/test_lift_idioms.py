"""Each idiom: a function of one call comes back as that call, at proof level `jaxpr`, with and without provenance."""

from __future__ import annotations

import ast
import functools

import jax
import jax.numpy as jnp
import jax.scipy.cluster.vq
import jax.scipy.fft
import jax.scipy.ndimage
import jax.scipy.signal
import numpy as np
import pytest
from jax import lax, nn, random
from jax.experimental import sparse
from programs import program_of

import untrace
from untrace.capture.function import trace
from untrace.ir.evaluate import evaluate
from untrace.ir.nodes import Library, walk_functions
from untrace.lift import lift
from untrace.lift.recognise.engine import IDIOMS, Guess, Matcher
from untrace.module.interface.entry import entry_of
from untrace.provenance.sites import NOWHERE
from untrace.targets.jax.rules.table import JAX

pytestmark = pytest.mark.usefixtures("unguarded")

special, linalg = jax.scipy.special, jax.scipy.linalg


def f32(*shape):
    return np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def bf16(*shape):
    return jnp.asarray(f32(*shape), jnp.bfloat16)


def i32(*shape):
    return (np.arange(int(np.prod(shape)), dtype=np.int32) % 2).reshape(shape)


def boolean(*shape):
    return (np.arange(int(np.prod(shape))) % 3 > 0).reshape(shape)


def c64(*shape):
    return (f32(*shape) + 1j * f32(*shape)[..., ::-1]).astype(np.complex64)


def square(n):
    return np.eye(n, dtype=np.float32) * 2 + f32(n, n)


def key():
    return random.key(3)


def raw_key():
    return random.PRNGKey(3)


def keys():
    return random.split(random.key(3), 4)


def raw_keys():
    return random.split(random.PRNGKey(3), 4)


INDEX = np.array([0, 2])

# (function, arguments, the expression that must stand in the text): found without provenance as well.
ANYWHERE = [
    (lambda x, w: x @ w, (f32(2, 3, 4), f32(4, 5)), "x @ w"),
    (lambda x: jnp.isnan(x), (f32(3),), "jnp.isnan(x)"),
    (lambda x, w: jnp.matmul(x, w, precision="highest"), (f32(3, 4), f32(4, 5)), "jnp.matmul(x, w, precision='highest')"),
    (lambda x, y: jnp.outer(x, y), (f32(3), f32(4)), "jnp.outer(x, y)"),
    (lambda x, y: jnp.kron(x, y), (f32(3, 2), f32(4, 2)), "jnp.kron(x, y)"),
    (lambda x, y: jnp.cross(x, y), (f32(3), f32(3)), "jnp.cross(x, y)"),
    (lambda c, x, y: jnp.where(c, x, y), (boolean(3, 1), f32(3, 4), f32(4)), "jnp.where(c, x, y)"),
    (lambda x: jnp.where(x > 0, x, -jnp.inf), (f32(3, 4),), "jnp.where(x > 0.0, x, -jnp.inf)"),
    (lambda x: jnp.clip(x, 0, 1), (f32(3),), "jnp.clip(x, 0, 1)"),
    (lambda x: jnp.clip(x, max=2.0), (f32(3),), "jnp.clip(x, max=2.0)"),
    (lambda x: x.mean(-1, keepdims=True), (f32(3, 4),), "x.mean(axis=-1, keepdims=True)"),
    (lambda x: jnp.mean(x, -1), (bf16(3, 4),), "x.mean(axis=-1)"),
    (lambda x: jnp.square(x).mean(-1), (f32(3, 4),), "jnp.square(x).mean(axis=-1)"),
    (lambda x: jnp.var(x, -1, keepdims=True), (f32(3, 4),), "x.var(axis=-1, keepdims=True)"),
    (lambda x: jnp.std(x, ddof=1), (f32(3, 4),), "x.std(ddof=1)"),
    (lambda x: jnp.median(x, axis=-1), (f32(3, 4),), "jnp.median(x, axis=-1)"),
    (lambda x: jnp.sum(x > 0), (f32(3, 4),), "(x > 0.0).sum()"),
    (lambda x: jnp.nansum(x), (f32(3, 4),), "jnp.nansum(x)"),
    (lambda x: jnp.any(x > 0), (f32(3, 4),), "(x > 0.0).any()"),
    (lambda x: jnp.argmax(x, -1), (f32(3, 4),), "x.argmax(axis=-1)"),
    (lambda x: jnp.ptp(x), (f32(3, 4),), "jnp.ptp(x)"),
    (lambda x: jnp.cov(x), (f32(3, 4),), "jnp.cov(x)"),
    (lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True), (f32(3, 4),), "jnp.linalg.norm(x, axis=-1, keepdims=True)"),
    (lambda x: jnp.cumsum(x, axis=0), (f32(3, 4),), "jnp.cumsum(x, axis=0)"),
    (lambda x: jnp.diff(x), (f32(7),), "jnp.diff(x)"),
    (lambda x: nn.softmax(x, axis=0), (f32(3, 4),), "jax.nn.softmax(x, axis=0)"),
    (lambda x: nn.log_softmax(x, axis=0), (f32(3, 4),), "jax.nn.log_softmax(x, axis=0)"),
    (lambda x: nn.logsumexp(x), (f32(3, 4),), "jax.nn.logsumexp(x)"),
    (lambda x: nn.gelu(x), (f32(3),), "jax.nn.gelu(x)"),
    (lambda x: nn.silu(x), (f32(3),), "jax.nn.silu(x)"),
    (lambda x: nn.relu(x), (f32(3),), "jax.nn.relu(x)"),
    (lambda x: nn.leaky_relu(x, 0.2), (f32(3),), "jax.nn.leaky_relu(x, 0.2)"),
    (lambda x: nn.sigmoid(x), (f32(3),), "jax.nn.sigmoid(x)"),
    (lambda x: nn.softplus(x), (f32(3),), "jax.nn.softplus(x)"),
    (
        lambda x, y, t, s: jax.jvp(jnp.hypot, (x, y), (t, s))[1],
        (f32(3), f32(3), f32(3), f32(3)),
        "jax.jvp(jnp.hypot, (x, y), (t, s))",
    ),
    (
        lambda x, y, t, s: jax.vmap(lambda t, s: jax.jvp(jnp.hypot, (x, y), (t, s)), out_axes=(None, 0))(t, s),
        (f32(3), f32(3), f32(4, 3), f32(4, 3)),
        "jax.jvp(jnp.hypot, (x, y), (x_dot, y_dot))",
    ),
    (lambda q, k, v: nn.dot_product_attention(q, k, v), (f32(2, 5, 4, 8),) * 3, "jax.nn.dot_product_attention(q, k, v)"),
    (
        lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True),
        (f32(2, 5, 4, 8), f32(2, 5, 2, 8), f32(2, 5, 2, 8)),
        "jax.nn.dot_product_attention(q, k, v, is_causal=True)",
    ),
    (
        lambda q, k, v, mask: nn.dot_product_attention(q, k, v, mask=mask, scale=0.5),
        (bf16(2, 5, 4, 8), bf16(2, 5, 2, 8), bf16(2, 5, 2, 8), boolean(2, 4, 5, 5)),
        "jax.nn.dot_product_attention(q, k, v, mask=mask, scale=0.5)",
    ),
    (
        lambda q, k, v, bias: nn.dot_product_attention(q, k, v, bias=bias),
        (f32(2, 5, 4, 8), f32(2, 5, 4, 8), f32(2, 5, 4, 8), f32(1, 4, 5, 5)),
        "jax.nn.dot_product_attention(q, k, v, bias=bias)",
    ),
    (lambda x: nn.glu(x), (f32(3, 4),), "jax.nn.glu(x)"),
    (lambda x: nn.one_hot(x, 7), (i32(3),), "jax.nn.one_hot(x, 7)"),
    (lambda x: nn.one_hot(x, 7, axis=0), (i32(3),), "jax.nn.one_hot(x, 7, axis=0)"),
    (lambda x: jnp.isinf(x), (f32(3),), "jnp.isinf(x)"),
    (lambda x: jnp.nan_to_num(x), (f32(3),), "jnp.nan_to_num(x)"),
    (lambda x: jnp.round(x, 2), (f32(3),), "jnp.round(x, decimals=2)"),
    (lambda x: jnp.trunc(x), (f32(3),), "jnp.trunc(x)"),
    (lambda x: x**3, (f32(3),), "x ** 3"),
    (lambda x, y: x**y, (f32(3), f32(3)), "x ** y"),
    (lambda x: x // 2, (i32(3),), "x // 2"),
    (lambda x: x % 3.0, (f32(3),), "x % 3.0"),
    (lambda x, y: jnp.logaddexp(x, y), (f32(3), f32(3)), "jnp.logaddexp(x, y)"),
    (lambda x, y: special.xlogy(x, y), (f32(3), f32(3)), "jax.scipy.special.xlogy(x, y)"),
    (lambda x: x[-1], (f32(3, 4),), "x[-1]"),
    (lambda x: x[..., 1:], (f32(3, 4, 5),), "x[..., 1:]"),
    (lambda x: x[:, None], (f32(3, 4),), "x[:, None]"),
    (lambda x: x[::-1], (f32(3, 4),), "x[::-1]"),
    (lambda x: x[::2], (f32(12, 4),), "x[::2]"),
    (lambda x: x[:11:2], (f32(12, 4),), "x[:-1:2]"),
    (lambda x: lax.slice_in_dim(x, 0, 10, stride=3), (f32(12, 4),), "x[:-2:3]"),
    (lambda x: lax.slice_in_dim(x, 2, 11, stride=4, axis=1), (f32(3, 12),), "x[:, 2:11:4]"),
    (lambda x, i: x[:, i], (f32(3, 4), i32()), "x[:, i]"),
    (lambda x, i: x[i, 1:], (f32(3, 4), i32()), "x[i, 1:]"),
    (lambda x, i: x[i], (f32(3, 4), i32(5)), "x[i]"),
    (lambda x, i, j: x[i, j], (f32(3, 4), i32(5), i32(5)), "x[i, j]"),
    (lambda x: x[INDEX], (f32(3, 4),), "return x[ind"),
    (lambda x, v: x.at[:, INDEX].add(v), (f32(3, 4), f32(3, 2)), "return x.at[:, ind"),
    (lambda x, i, j: x[:, i, j], (f32(2, 3, 4), i32(5), i32(5)), "x[:, i, j]"),
    (lambda x, i, j, v: x.at[:, i, j].add(v), (f32(2, 3, 4), i32(5), i32(5), f32(2, 5)), "x.at[:, i, j].add(v)"),
    (lambda x, i, v: x.at[jnp.arange(3)[:, None], i].add(v), (f32(4, 8), i32(3, 8), f32(3, 8)), "x.at[jnp.arange(3)[:, None], i].add(v)"),
    (lambda x: jnp.squeeze(x, 1), (f32(3, 1),), "x.squeeze(axis=1)"),  # not squeeze(): of one row another program
    (lambda x, i: jnp.take(x, i, axis=-1), (f32(3, 4), i32(5)), "jnp.take(x, i, axis=-1)"),
    (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (f32(3, 4), i32(5)), "jnp.take(x, i, axis=0, mode='clip')"),
    (lambda x, i: jnp.take_along_axis(x, i, axis=-1), (f32(3, 4), i32(3, 2)), "jnp.take_along_axis(x, i, axis=-1)"),
    (lambda x, i: x.at[i].get(mode="fill", fill_value=0), (f32(3, 4), i32(5)), "x.at[i].get(mode='fill', fill_value=0"),
    (lambda x: x.at[1:].add(1.0), (f32(3, 4),), "x.at[1:].add(1.0)"),
    (lambda x, v: x.at[1:, :2].set(v), (f32(3, 4), f32(2, 2)), "x.at[1:, :2].set(v)"),
    (lambda x: x.at[1:, 2].set(0), (f32(3, 4),), "x.at[1:, 2].set(0"),
    (lambda x, i, v: x.at[i].add(v, mode="drop"), (f32(3, 4), i32(2), f32(2, 4)), "x.at[i].add(v)"),
    (lambda x, i, v: x.at[i].set(v, unique_indices=True), (f32(3, 4), i32(1), f32(1, 4)), "x.at[i].set(v, unique_indices=True)"),
    (lambda x: x.mT, (f32(2, 3, 4),), "x.mT"),
    (lambda x: x.reshape(6, -1), (f32(2, 3, 4),), "x.reshape(6, -1)"),
    (lambda x: jnp.tile(x, (2, 3)), (f32(3, 4),), "jnp.tile(x, (2, 3))"),
    (lambda x: jnp.repeat(x, 2, axis=0), (f32(3, 4),), "jnp.repeat(x, 2, axis=0)"),
    (lambda x, y: jnp.concatenate([x, y], axis=-1), (f32(3, 4), f32(3, 2)), "jnp.concatenate([x, y], axis=-1)"),
    (lambda x, y: jnp.vstack([x, y]), (f32(3), f32(3)), "jnp.concatenate(["),
    (lambda x: jnp.roll(x, -1, axis=0), (f32(3, 4),), "jnp.roll(x, -1, axis=0)"),
    (lambda x: [jnp.roll(x, s, (0, 1)) for s in [(-1, 1)]][0], (f32(3, 4),), "jnp.roll(x, (-1, 1), axis=(0, 1))"),
    (lambda x: jnp.fft.ifftshift(x), (f32(3, 5),), "jnp.fft.ifftshift(x)"),
    (lambda x: jnp.pad(x, ((0, 0), (1, 2))), (f32(3, 4),), "jnp.pad(x, ((0, 0), (1, 2)))"),
    (lambda x: jnp.flip(x, -1), (f32(3, 4),), "jnp.flip(x, axis=-1)"),
    (lambda x: jnp.triu(x, k=1), (f32(4, 4),), "jnp.triu(x, k=1)"),
    (lambda x: jnp.diag(x), (f32(3),), "jnp.diag(x)"),
    (lambda x: jnp.linspace(x, 2.0, 4), (f32(),), "jnp.linspace(x, 2.0, 4)"),
    (lambda x: jnp.sort(x, axis=0), (f32(3, 4),), "jnp.sort(x, axis=0)"),
    (lambda x: jnp.argsort(x), (f32(3, 4),), "jnp.argsort(x)"),
    (lambda x: tuple(x), (f32(3),), " = x\n"),
    (lambda x, y: jnp.array([x, 2.0, y]), (f32(), f32()), "jnp.array([x, 2.0, y])"),
    (lambda x, y: jnp.array([[x, y], [0.0, x]]), (f32(), f32()), "jnp.array([[x, y], [0.0, x]])"),
    (lambda x: jnp.meshgrid(x, x), (f32(3),), " = jnp.meshgrid(x, x"),
    (lambda x: x[jnp.triu_indices(3, k=1)], (f32(3, 3),), " = jnp.triu_indices(3, k=1)"),
    (lambda x: x[jnp.tril_indices(3, -1, 4)], (f32(3, 4),), " = jnp.tril_indices(3, k=-1, m=4)"),
    (lambda x: x[jnp.triu_indices(3)], (f32(3, 3),), " = jnp.triu_indices(3)"),
    (lambda x: jnp.meshgrid(x, x, indexing="ij"), (f32(3),), " = jnp.meshgrid(x, x, indexing='ij')"),
    (lambda c: jnp.where(c, np.float32(2.0), 1.0), (boolean(),), "jnp.where(c, np.float32(2.0), 1.0)"),
    (lambda x: -1j * x.imag, (c64(3),), "-1j * x.imag"),
    (lambda x: 0.5 * x, (c64(3),), "0.5 * x"),
    (lambda a, v: jnp.searchsorted(a, v, side="right"), (f32(5), f32(3)), "jnp.searchsorted(a, v, side='right')"),
    (lambda x, k: lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
     (f32(1, 8, 8, 3), f32(3, 3, 3, 4)), "lax.conv_general_dilated(x, k, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))"),
    (lambda x: jnp.fft.rfft(x), (f32(8),), "jnp.fft.rfft(x)"),
    (lambda x: jnp.fft.ifft2(x), (c64(8, 8),), "jnp.fft.ifft2(x)"),
    (lambda x: jnp.linalg.inv(x), (square(3),), "jnp.linalg.inv(x)"),
    (lambda x: jnp.linalg.slogdet(x), (square(3),), "jnp.linalg.slogdet(x)"),
    (lambda x: jnp.linalg.cholesky(x), (square(3),), "jnp.linalg.cholesky(x)"),
    (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), (square(3),),
     "lax.linalg.cholesky(x, symmetrize_input=False)"),
    (lambda x: tuple(lax.linalg.qr(x, full_matrices=False)), (square(3),), "lax.linalg.qr(x, full_matrices=False)"),
    (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), (square(3), f32(3, 2)),
     "lax.linalg.triangular_solve(a, b, left_side=True, lower=True)"),
    (lambda x: jnp.tri(3, k=-1, dtype=bool) & x, (boolean(3, 3),), "jnp.tri(3, k=-1, dtype=bool) & x"),
    (lambda x: jnp.eye(3, dtype=bool) & x, (boolean(3, 3),), "jnp.eye(3, dtype=bool) & x"),
    (lambda x, y: jnp.linalg.solve(x, y), (square(3), f32(3)), "jnp.linalg.solve(x, y)"),
    (lambda x: tuple(jnp.linalg.eigh(x)), (square(3),), "jnp.linalg.eigh(x)"),
    (lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), (f32(3, 4),), "jnp.linalg.svd(x, full_matrices=False)"),
    (lambda x: tuple(jnp.linalg.qr(x)), (f32(3, 4),), "jnp.linalg.qr(x)"),
    (lambda x, y: linalg.solve_triangular(x, y, lower=True), (square(3), f32(3)), "jax.scipy.linalg.solve_triangular(x, y, lower=True)"),
    (lambda x, y: linalg.cho_solve((x, True), y), (square(3), f32(3)), "jax.scipy.linalg.cho_solve((x, True), y)"),
    (lambda k: random.uniform(k, (3,)), (key(),), "jax.random.uniform(k, (3,))"),
    (lambda k: random.normal(k, (3,)), (raw_key(),), "jax.random.normal(k, (3,))"),
    (lambda k: random.split(k), (raw_key(),), "jax.random.split(k)"),
    (lambda k: tuple(random.split(k, 3)), (key(),), " = jax.random.split(k, 3)"),
    (lambda k, i: random.fold_in(k, i), (key(), i32()), "jax.random.fold_in(k, i"),
    (lambda i: random.PRNGKey(i), (i32(),), "jax.random.PRNGKey(i)"),
    (lambda k: random.randint(k, (3,), 0, 10), (key(),), "jax.random.randint(k, (3,), 0, 10)"),
    (lambda k: random.bernoulli(k, 0.3, (3,)), (key(),), "jax.random.bernoulli(k, 0.3, (3,))"),
    (lambda v, i, x: sparse.BCOO((v, i), shape=(4, 4)) @ x, (f32(5), i32(5, 2), f32(4)), "sparse.BCOO((v, i), shape=(4, 4)) @ x"),
    (lambda v, i: sparse.BCOO((v, i), shape=(4, 4), unique_indices=True).todense(), (f32(5), i32(5, 2)),
     "sparse.BCOO((v, i), shape=(4, 4), unique_indices=True).todense()"),
    (lambda v, i, x: x @ sparse.BCOO((v, i), shape=(4, 4)), (f32(5), i32(5, 2), f32(3, 4)),
     "sparse.bcoo_dot_general(sparse.BCOO((v, i), shape=(4, 4)), x, "),
    (lambda k: random.truncated_normal(k, -2.0, 2.0, (3,)), (key(),), "jax.random.truncated_normal(k, -2.0, 2.0, (3,))"),
]  # fmt: skip

# What only the author's own line tells.
WRITTEN = [
    (lambda k, p: random.choice(k, 5, (4,), p=p), (key(), f32(5)), "jax.random.choice(k, 5, (4,), p=p)"),
    (lambda k, x, p: random.choice(k, x, (4,), p=p), (key(), f32(5), f32(5)), "jax.random.choice(k, x, (4,), p=p)"),
    (lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (f32(2, 5, 3, 4), f32(2, 6, 3, 4)), "'bqhd,bkhd->bhqk'"),
    (lambda x, *ws: [jnp.einsum("td,hdk->htk", x, w).sum() for w in ws], (f32(3, 4), f32(2, 4, 5), f32(2, 4, 6)),
     "jnp.einsum('td,hdk->htk', x, ws[0])"),
    (lambda x: x.astype(jnp.float32) * f32(3), (i32(3),), "x.astype(jnp.float32)"),
    (lambda x, y: x[:, None] + y, (f32(3), f32(3, 4)), "x[:, None] + y"),
    (lambda x: x + jnp.eye(3), (f32(3, 3),), "x + jnp.eye(3)"),
    (lambda x: x + jnp.tri(4), (f32(4, 4),), "x + jnp.tri(4)"),
    (lambda x: jnp.sum(x, where=x > 0), (f32(3, 4),), "jnp.sum(x, where=x > 0.0)"),
    (lambda x: nn.softmax(x, where=x > 0), (f32(3, 4),), "jax.nn.softmax(x, where=x > 0.0)"),
    (lambda x: nn.standardize(x, axis=0, epsilon=1e-6), (f32(3, 4),), "jax.nn.standardize(x, axis=0, epsilon=1e-06)"),
    (lambda x: jax.scipy.stats.norm.logpdf(x, 1.0, 2.0), (f32(3),), "jax.scipy.stats.norm.logpdf(x, loc=1.0, scale=2.0)"),
    (lambda x: jax.scipy.stats.gamma.logpdf(x, 2.0), (f32(3),), "jax.scipy.stats.gamma.logpdf(x, 2.0)"),
    (lambda x: jax.scipy.stats.beta.logpdf(x, 2.0, 3.0), (f32(3),), "jax.scipy.stats.beta.logpdf(x, 2.0, 3.0)"),
    (lambda x: jax.scipy.stats.poisson.entropy(x), (f32(3),), "jax.scipy.stats.poisson.entropy(x)"),
    (lambda x: jax.scipy.stats.truncnorm.logpdf(x, -1.0, 2.0), (f32(3),), "jax.scipy.stats.truncnorm.logpdf(x, -1.0, 2.0)"),
    (lambda x, m, c: jax.scipy.stats.multivariate_normal.logpdf(x, m, c), (f32(3), f32(3), square(3)),
     "jax.scipy.stats.multivariate_normal.logpdf(x, m, c)"),
    (lambda x: special.ndtri(x), (f32(3),), "jax.scipy.special.ndtri(x)"),
    (lambda x: jax.scipy.fft.idct(x), (f32(8),), "jax.scipy.fft.idct(x)"),
    (lambda x: jnp.fft.fftshift(x, axes=0), (f32(8, 2),), "jnp.fft.fftshift(x, axes=0)"),
    (lambda x: jax.scipy.signal.stft(x, nperseg=4), (f32(16),), "jax.scipy.signal.stft(x, nperseg=4)"),
    (lambda x, y: jax.scipy.cluster.vq.vq(x, y), (f32(6, 3), f32(2, 3)), "jax.scipy.cluster.vq.vq(x, y)"),
    (lambda x: jnp.nonzero(x > 0.5, size=3)[0], (f32(6),), "jnp.nonzero(x > 0.5, size=3)[0]"),
    (lambda x: jnp.where(x > 0.5, size=3)[0], (f32(6),), "jnp.where(x > 0.5, size=3)[0]"),
    (lambda x: jnp.histogram(x, bins=4)[1], (f32(6),), "jnp.histogram(x, bins=4)[1]"),
    (lambda x, y: jnp.select([x < 0.3, x < 0.6], [x, y], 0.0), (f32(6), f32(6)), "jnp.select([x < 0.3, x < 0.6], [x, y], 0.0)"),
    (lambda x, y: jnp.select([x > y], [x]), (f32(6), f32(6)), "jnp.select([x > y], [x], 0.0)"),
    (lambda x, y, z: jax.scipy.ndimage.map_coordinates(x, [y, z], order=1), (f32(3, 4), f32(5), f32(5)),
     "jax.scipy.ndimage.map_coordinates(x, [y, z], 1)"),
    (lambda x: jnp.quantile(x, 0.3), (f32(3, 4),), "jnp.quantile(x, 0.3)"),
    (lambda x, y: jnp.diff(x, append=y), (f32(3, 4), f32(3, 1)), "jnp.diff(x, append=y)"),
    (lambda x, y: jnp.block([[x, x], [y, -y]]), (f32(3, 4), f32(2, 4)), "jnp.block([[x, x], [y, -y]])"),
    (lambda x: jnp.roll(x, (1, 1), axis=(0, 1)), (f32(3, 4),), "jnp.roll(x, (1, 1), axis=(0, 1))"),
    (lambda v, i: jax.ops.segment_sum(v, i, 5), (f32(8, 2), i32(8)), "jax.ops.segment_sum(v, i, 5)"),
    (lambda x: x * jnp.fft.fftfreq(8, d=1.0 / 8), (f32(8),), "x * jnp.fft.fftfreq(8, d=0.125)"),
    (lambda x, y: tuple(jnp.meshgrid(x, y, indexing="ij")), (f32(3), f32(4)), "jnp.meshgrid(x, y, indexing='ij')"),
    (lambda k, l: random.categorical(k, l, axis=-1), (raw_key(), f32(2, 3)), "jax.random.categorical(k, l, axis=-1)"),  # noqa: E741
]  # fmt: skip


def lifted(function, args):
    """The lifted Program of a function of arrays."""
    captured = trace(function, args, {}, (), ())
    program = program_of(captured, "f", entry_of(function, captured, args, {}, (), ()), JAX.user_names())
    lift(program)
    return captured, program


def paths(program):
    return [e.callee.name for f in walk_functions(program.entry) for e in f.equations if type(e.callee) is Library]


def same_bits(left, right):
    def bits(x):
        x = random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return np.asarray(x).tobytes(), x.shape, str(x.dtype)

    return [bits(x) for x in left] == [bits(x) for x in right]


def text_of(function, args):
    d = untrace.decompile(function, style="idiomatic", simplify=False)(*args)
    assert d.proof.level == "jaxpr"
    entry = next(n for n in ast.parse(d.source).body if isinstance(n, ast.FunctionDef) and n.name == d.name)
    return ast.unparse(entry) + "\n"


@pytest.mark.usefixtures("as_given")
@pytest.mark.parametrize("function, args, expected", ANYWHERE, ids=[e for *_, e in ANYWHERE])
def test_an_idiom_is_found_without_provenance(function, args, expected, monkeypatch):
    monkeypatch.setattr(Matcher, "site", lambda self, equation: NOWHERE)
    assert expected in text_of(function, args)


@pytest.mark.parametrize("function, args, expected", WRITTEN, ids=[e for *_, e in WRITTEN])
def test_the_call_on_the_authors_line_is_found(function, args, expected):
    assert expected in text_of(function, args)


@pytest.mark.parametrize("function, args, expected", [*ANYWHERE, *WRITTEN], ids=[e for *_, e in [*ANYWHERE, *WRITTEN]])
def test_a_lifted_program_computes_the_same(function, args, expected):
    captured, program = lifted(function, args)
    assert paths(program)
    again = jax.jit(functools.partial(evaluate, program.entry))(*args)
    assert same_bits(again, jax.jit(jax.extend.core.jaxpr_as_fun(captured.jaxpr))(*args))


def test_a_wrong_guess_changes_nothing(monkeypatch):
    def nonsense(m, equation):
        for path in ("jnp.cos", "jnp.sum", "jnp.no_such_function", "operator.mul", "jnp.linalg.svd", "unpack"):
            yield Guess(path, tuple(equation.inputs))
            yield Guess(path, tuple(reversed(equation.inputs)), {"axis": 7})

    def function(x, y):
        return jnp.sin(x) - y, x / y

    args = (f32(3), f32(3))
    before = text_of(function, args)
    for name in ("sin", "sub", "div"):
        monkeypatch.setitem(IDIOMS, name, [nonsense, *IDIOMS[name]])
    assert text_of(function, args) == before


def test_a_refused_equation_stays():
    def function(x):
        return nn.softmax(x) + 1.0

    captured = trace(function, (f32(3),), {}, (), ())
    args = (f32(3),)
    program = program_of(captured, "f", entry_of(function, captured, args, {}, (), ()), JAX.user_names())
    refused = frozenset(e for e in captured.expanded.eqns if e.primitive.name in ("exp", "add"))
    lift(program, refused)
    assert "jax.nn.softmax" not in paths(program)
    names = [e.callee.name for e in program.entry.equations]
    assert "exp" in names and "add" in names


def test_a_value_that_is_needed_elsewhere_keeps_its_equation():
    def function(x):
        shifted = jnp.exp(x - x.max())
        return shifted / shifted.sum(), shifted

    assert "softmax" not in text_of(function, (f32(3),))


def test_an_effect_is_never_lifted():
    def function(x):
        jax.debug.print("{}", x)
        return x + 1.0

    assert "jax.debug.print" in text_of(function, (f32(3),)) or "debug" in text_of(function, (f32(3),))


def test_a_function_of_the_author_with_the_name_of_a_librarys_is_no_library_call():
    @jax.jit
    def norm():
        return jnp.zeros(3)

    @jax.jit
    def clip(low, x, high, scale):
        return jnp.clip(x, low, high) * scale

    def function(x):
        return clip(0.0, x, 1.0, 2.0) + norm()

    assert "clip(0.0, x, 1.0, 2.0)" in text_of(function, (f32(3),)).replace("np.float32(0.0)", "0.0").replace(
        "np.float32(1.0)", "1.0"
    ).replace("np.float32(2.0)", "2.0")


# Calls under `vmap` where nothing says what was mapped, as in a jaxpr or inside of a larger mapped function.
MAPPED = [
    (lambda k: jax.vmap(random.split)(k), (keys(),), "jax.vmap(jax.random.split)("),
    (lambda k: jax.vmap(random.split)(k), (raw_keys(),), "jax.vmap(jax.random.split)("),
    (lambda k, i: jax.vmap(random.fold_in, (0, None))(k, i), (keys(), i32()), "jax.vmap(lambda key: jax.random.fold_in(key, "),
    (lambda k, i: jax.vmap(random.fold_in)(k, i), (keys(), i32(4)), "jax.vmap(jax.random.fold_in)("),
    (lambda k: jax.vmap(lambda k: random.normal(k, (2,)))(k), (keys(),), "jax.vmap(lambda key: jax.random.normal(key, (2,)))("),
    (lambda k: jax.vmap(lambda k: random.randint(k, (2,), 0, 9))(k), (raw_keys(),),
     "jax.vmap(lambda key: jax.random.randint(key, (2,), 0, 9))("),
    (lambda k: jax.vmap(lambda k: random.bernoulli(k, 0.3, (2,)))(k), (keys(),),
     "jax.vmap(lambda key: jax.random.bernoulli(key, 0.3, (2,)))("),
    (lambda x, i: jax.vmap(lambda x, i: x[i])(x, i), (f32(4, 3), i32(4)), "jax.vmap(lambda x, i: x[i])("),
    (lambda x, i: jax.vmap(lambda x, i: x.at[i].set(2.0))(x, i), (f32(4, 3), i32(4)), "jax.vmap(lambda x, i: x.at[i].set(2.0))("),
    (lambda x, i, v: jax.vmap(lambda x, i, v: x.at[i].add(v))(x, i, v), (f32(4, 3), i32(4), f32(4)),
     "jax.vmap(lambda x, i, value: x.at[i].add(value))("),
    (lambda x, i, v: jax.vmap(lambda x, i, v: x.at[i].add(v, mode="clip", wrap_negative_indices=False))(x, i, v),
     (f32(4, 3), i32(4), f32(4)), "x.at[i].add(value, mode="),
    (lambda x, i: jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2))(x, i), (f32(4, 3), i32(4)),
     "jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2))("),
]  # fmt: skip


@pytest.mark.parametrize("function, args, expected", MAPPED, ids=[e for *_, e in MAPPED])
def test_calls_under_vmap(function, args, expected):
    found = untrace.from_jaxpr(jax.make_jaxpr(function)(*args), style="idiomatic", simplify=False)
    assert found.proof.level == "jaxpr"
    assert expected in found.source


def test_what_is_taken_apart_may_be_indexed_as_well():
    def turned(state):
        angle, speed = state
        return jnp.stack([speed, -jnp.sin(angle) * speed])

    def function(state):
        heights = []
        for _ in range(3):
            state = turned(state)
            heights.append(state[1] ** 2 - jnp.cos(state[0]))
        return state, jnp.stack(heights)

    d = untrace.decompile(function)(np.ones(2, np.float32))
    assert d.source.count("def turned") == 1 and "turned_2" not in d.source, d.source
    assert d.source.count("angle, speed = state") == 1 and d.proof.level == "jaxpr"


@pytest.mark.parametrize(
    "function, args, expected",
    [
        # Its body is JAX's own, jitted: no frames of an author are in it.
        (
            lambda k, c: random.multivariate_normal(k, jnp.zeros(2), c),
            (jax.random.key(0), np.eye(2, dtype=np.float32)),
            "jax.random.multivariate_normal(k, jnp.zeros((2,)), c)",
        ),
        # The number has a type of its own, and what JAX does with it is more than one would read.
        (lambda h: h % jnp.uint32(128), (np.arange(6, dtype=np.uint32),), "return h % np.uint32(128)"),
        # Indices as they stand there.
        (lambda x: x[2] - x[-3], (np.ones(3, np.float32),), "return x[2] - x[-3]"),
        (lambda x, y: x[..., None] * y[:, :-1], (f32(3), f32(3, 5)), "return x[..., None] * y[:, :-1]"),
        (lambda x: jnp.sin(x)[..., 0], (f32(3, 1),), "return jnp.sin(x)[..., 0]"),
        (lambda x, i: x[0, :, i], (f32(5, 4, 6), i32(2)), "return x[0, :, i]"),
        (
            lambda x, i: x.at[-1, :, i].set(x[-2, :, i]),
            (f32(5, 4, 6), i32(2)),
            "return x.at[-1, :, i].set(x[-2, :, i])",
        ),
        (
            lambda x, y, i: lax.dynamic_update_slice(x, y, (1, i, 0)),
            (f32(3, 5, 2), f32(1, 2, 2), i32()),
            "return lax.dynamic_update_slice(x, y, (1, i, 0))",
        ),
        (lambda x, y: x[:, None] * y, (f32(3), f32(4)), "return x[:, None] * y"),
        (lambda x, y: jnp.outer(x, y), (f32(3), f32(4)), "return jnp.outer(x, y)"),
        # In the digits of its own precision, each part.
        (lambda z: 0.8 * z + (0.3 - 0.1j) * z**2, (np.ones(3, np.complex64),), "return 0.8 * z + (0.3-0.1j) * z**2"),
    ],
)
def test_the_statement(function, args, expected, monkeypatch):
    monkeypatch.setenv("UNTRACE_STRICT", "1")
    found = untrace.decompile(function)(*args)
    assert expected in found.source, found.source
    assert found.proof.at_least("jaxpr")


def test_what_counts_is_called_as_the_author_calls_it():
    """With its first number, and by place; what he adds to it himself stays an addition."""

    def counted(x):
        rows = x[1:] * jnp.arange(1, x.shape[0]), x * jnp.arange(x.shape[0] - 1, -1, -1), 1 + jnp.arange(x.shape[0])
        return rows, jnp.arange(1, 5) * x[0], jnp.arange(1.0, 5.0) * x[0], jnp.arange(1, 9, 2) * x[0]

    source = untrace.decompile(counted)(f32(7)).source
    for text in (
        "jnp.arange(1, x.shape[0])",
        "jnp.arange(x.shape[0] - 1, -1, -1)",
        "1 + jnp.arange(x.shape[0])",
        "jnp.arange(1, 5)",
        "jnp.arange(1.0, 5.0)",
        "jnp.arange(1, 9, 2)",
    ):
        assert text in source, source
