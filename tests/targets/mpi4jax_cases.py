"""What tests/targets/test_mpi4jax.py runs on several ranks: programs of mpi4jax, written for mpi4py by all ranks together.

Each text is proven on simulated ranks, and run here beside the original on the real ones.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from jax import lax
from mpi4py import MPI

import untrace

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
FOLDER = Path(sys.argv[1])


def written(program: Callable[..., Any], *args: Any) -> str:
    """The text, whose results on this rank are those of the program; "" on the other ranks than the first."""
    d = untrace.decompile(program, target="mpi4py")(*args)
    assert d.proof.at_least("close"), d.proof
    found, expected = d(*args), program(*args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    jax.tree.map(lambda a, b: np.testing.assert_equal(np.asarray(a).dtype, b.dtype), found, expected)
    path = d.save(FOLDER / f"{d.name}_{SIZE}.py")
    assert Path(path).read_text() == d.source and "import jax" not in d.source
    return d.source.partition("\n\n\ndef _")[0]


def refused(program: Callable[..., Any], *args: Any) -> str:
    try:
        untrace.decompile(program, target="mpi4py")(*args)
    except untrace.UnsupportedPrimitiveError as error:
        return str(error)
    raise AssertionError("it was written")


def collectives(x):
    total = mpi4jax.allreduce(x, op=MPI.SUM)
    scaled = mpi4jax.bcast(total * (RANK + 1.0), 0)
    largest = mpi4jax.reduce(scaled + x, MPI.MAX, 0)
    upto = mpi4jax.scan(x, MPI.SUM)
    every = mpi4jax.allgather(x)
    turned = mpi4jax.alltoall(every)
    gathered = mpi4jax.gather(x, SIZE - 1)
    part = mpi4jax.scatter(every if RANK == 0 else x, 0)
    mpi4jax.barrier()
    return total, scaled, largest, upto, every, turned, gathered, part


def other_types(x):
    alike = mpi4jax.allreduce(x > 0, op=MPI.LAND)
    bits = mpi4jax.scan(x.astype(jnp.int32) + RANK, MPI.BOR)
    product = mpi4jax.allreduce(lax.complex(x, x), op=MPI.SUM)
    above = mpi4jax.bcast(x > RANK, SIZE - 1)
    return alike, bits, product, above


def halo(u):
    """Ghost cells of a ring."""
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    from_left = mpi4jax.sendrecv(u[-2], u[0], source=left, dest=right)
    from_right = mpi4jax.sendrecv(u[1], u[-1], source=right, dest=left)
    return u.at[0].set(from_left).at[-1].set(from_right)


def heat(u):
    def step(u, _):
        u = halo(u)
        u = u.at[1:-1].add(0.1 * (u[:-2] - 2 * u[1:-1] + u[2:]))
        return u, mpi4jax.allreduce(jnp.max(jnp.abs(u)), op=MPI.MAX)

    return lax.scan(step, u, None, length=5)


def relaxed(u):
    """A loop on which all ranks decide alike."""

    def body(state):
        u = halo(state[0]) * 0.5
        return u, mpi4jax.allreduce(jnp.max(jnp.abs(u)), op=MPI.MAX)

    return lax.while_loop(lambda state: state[1] > 1e-3, body, (u, jnp.float32(1.0)))


def stopped_alone(u):
    """A loop that each rank ends when it likes to."""
    return lax.while_loop(lambda u: jnp.max(jnp.abs(u)) > 1e-3, lambda u: halo(u) * 0.5, u)


def loss(params, x, y):
    errors = jnp.sum((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)
    return mpi4jax.allreduce(errors, op=MPI.SUM) / (SIZE * x.shape[0])


@jax.jit
def train_step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    grads = jax.tree.map(lambda g: mpi4jax.allreduce(g, op=MPI.SUM), grads)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def shifted_square(x):
    return jnp.sum(mpi4jax.sendrecv(x**2, x, source=(RANK - 1) % SIZE, dest=(RANK + 1) % SIZE) * x)


def pipeline(x):
    """Each rank waits for the one before."""
    if RANK > 0:
        x = mpi4jax.recv(x, source=RANK - 1, tag=7)
    x = x * 2.0
    if RANK < SIZE - 1:
        mpi4jax.send(x, dest=RANK + 1, tag=7)
    return x


def answered(x):
    """The first rank asks the last one."""
    last = SIZE - 1
    if RANK == 0:
        mpi4jax.send(x, dest=last)
        x = mpi4jax.recv(x, source=last)
    elif RANK == last:
        asked = mpi4jax.recv(x, source=0)
        mpi4jax.send(asked, dest=0)
        x = asked
    return x * x


def in_a_circle(x):
    mpi4jax.send(x, dest=(RANK + 1) % SIZE)
    return mpi4jax.recv(x, source=(RANK - 1) % SIZE)


def different(x):
    return jnp.sin(x) if RANK == 0 else jnp.cos(x)


def first_heard(x):
    return mpi4jax.recv(x) if RANK else mpi4jax.sendrecv(x, x, source=0, dest=0)


def main() -> None:
    u = np.random.default_rng(RANK).standard_normal(8).astype(np.float32)
    text = written(collectives, u)
    assert "_broadcast(comm, total * np.float32(rank + 1), 0)" in text, text
    assert "part = _scatter(comm, every if rank == 0 else x, 0)" in text, text
    assert f'raise RuntimeError("this is for {SIZE} ranks: run it with `mpirun -n {SIZE}`")' in text, text
    text = written(heat, u)
    assert f"(rank + 1) % {SIZE}" in text and text.count("def halo(") == 1, text
    text = written(pipeline, u)
    if SIZE > 2:
        assert "rank - 1 if rank > 0 else MPI.PROC_NULL, tag=7" in text, text
        assert f"rank + 1 if rank < {SIZE - 1} else MPI.PROC_NULL" in text, text
    written(answered, u)
    assert "ranks wait for ever: rank 0 in Send to 1" in refused(in_a_circle, u)
    if SIZE == 2:
        whatever_the_number_of_ranks(u)


def whatever_the_number_of_ranks(u):
    random = np.random.default_rng(RANK)
    x, y = [random.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (4, 2))]
    params = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    text = written(other_types, u)
    assert "MPI.LAND" in text and "np.int32(rank)" in text, text
    written(relaxed, u)
    assert "on which the ranks along rank may decide otherwise" in refused(stopped_alone, u)
    text = written(train_step, params, x, y)
    assert text.count("_allreduce(comm") == 3, text
    written(jax.grad(loss), params, x, y)
    written(jax.grad(shifted_square), u)
    said = refused(different, u)
    assert "rank 0 computes `sin` from" in said and "mpi4jax_cases.py:" in said, said
    assert "receives from any rank" in refused(first_heard, u)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        COMM.Abort(1)  # the other ranks would wait for this one
    if RANK == 0:
        print(f"{os.path.basename(__file__)}: all on {SIZE} ranks")
