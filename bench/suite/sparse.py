"""BCOO and BCSR: products, conversions, reductions, batches, gradients, `sparsify`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse

from suite.control import matrix, vector
from suite.registry import Program, case

DENSE = np.array([[0, 1.5, 0, 2], [0, 0, -3, 0], [4, 0, 0, 0.5]], np.float32)


def bcoo(dense=DENSE, **options) -> sparse.BCOO:
    """`DENSE` as a BCOO array."""
    return sparse.BCOO.fromdense(jnp.asarray(dense), **options)


@case("bcoo_dot_general", grad=True, vmap=True)
def bcoo_matvec() -> Program:
    indices = bcoo().indices
    return lambda data, v: sparse.BCOO((data, indices), shape=(3, 4)) @ v, (
        bcoo().data,
        vector(4),
    )


@case("bcoo_dot_general", "scan", grad=True)
def bcoo_matvec_in_scan() -> Program:
    indices = bcoo(DENSE[:, :3]).indices

    def fn(data, v):
        m = sparse.BCOO((data, indices), shape=(3, 3))
        return lax.scan(lambda c, _: (jnp.tanh(m @ c), c.sum()), v, None, length=3)

    return fn, (bcoo(DENSE[:, :3]).data, vector(3))


@case("bcoo_dot_general", "jit")
def bcoo_argument() -> Program:
    """A BCOO array is itself an argument and a result: a registered pytree."""

    def fn(m, x):
        return jax.jit(lambda a, b: a @ b)(m, x), m * 2.0, m.T

    return fn, (bcoo(), matrix(4, 2))


@case("bcoo_dot_general")
def bcoo_transposed_and_sparse_rhs() -> Program:
    def fn(m, x):
        return x @ m, m.T @ x.T

    return fn, (bcoo(), matrix(2, 3))


@case("bcoo_spdot_general")
def bcoo_times_bcoo() -> Program:
    return lambda a, b: (a @ b.T).todense(), (bcoo(), bcoo())


@case("bcoo_fromdense", "bcoo_todense", grad=True)
def bcoo_from_and_to_dense() -> Program:
    def fn(x):
        m = sparse.BCOO.fromdense(x, nse=5)
        return m.todense() * 2, m.data

    return fn, (jnp.asarray(DENSE),)


@case("bcoo_dot_general")
def bcoo_batched() -> Program:
    def fn(m, x):
        return sparse.bcoo_dot_general(m, x, dimension_numbers=(((2,), (0,)), ((), ())))

    return fn, (bcoo(np.stack([DENSE, DENSE]), n_batch=1), vector(4))


@case("bcoo_sort_indices")
def bcoo_structure() -> Program:
    def fn(m):
        total = sparse.bcoo_reduce_sum(m, axes=(0,))
        return (
            m.sort_indices().data,
            total.todense(),
            sparse.bcoo_transpose(m, permutation=(1, 0)).todense(),
            sparse.bcoo_sum_duplicates(m + m, nse=5).data,
            sparse.bcoo_slice(m, start_indices=(0, 1), limit_indices=(3, 3)).todense(),
            sparse.bcoo_reshape(m, new_sizes=(2, 6)).todense(),
            sparse.bcoo_concatenate([m, m], dimension=0).todense(),
            sparse.bcoo_multiply_dense(m, jnp.ones((3, 4)) * 2),
        )

    return fn, (bcoo(),)


@case("bcsr_dot_general", grad=True)
def bcsr_matvec() -> Program:
    m = sparse.BCSR.fromdense(jnp.asarray(DENSE))

    def fn(data, v):
        return sparse.BCSR((data, m.indices, m.indptr), shape=m.shape) @ v

    return fn, (m.data, vector(4))


@case("bcsr_todense")
def bcsr_conversions() -> Program:
    def fn(x):
        m = sparse.BCSR.fromdense(x, nse=5)
        return m.todense(), sparse.BCSR.from_bcoo(sparse.BCOO.fromdense(x, nse=5)).data

    return fn, (jnp.asarray(DENSE),)


@case("jit", grad=True)
def bcoo_sparsified_function() -> Program:
    @sparse.sparsify
    def f(m, x):
        return jnp.sum((m @ x) ** 2) + (m * 2).sum()

    indices = bcoo().indices
    return lambda data, x: f(sparse.BCOO((data, indices), shape=(3, 4)), x), (
        bcoo().data,
        vector(4),
    )


@case("bcoo_extract")
def bcoo_extracted() -> Program:
    return lambda m, x: sparse.bcoo_extract(m, x).data, (bcoo(), matrix(3, 4))


@case(grad=True)
def segment_sums() -> Program:
    def fn(x, ids):
        return jax.ops.segment_sum(x, ids, num_segments=3), jax.ops.segment_max(x, ids, 3)

    return fn, (vector(), jnp.array([0, 0, 1, 2, 2, 1], jnp.int32))
