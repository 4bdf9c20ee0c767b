"""Times the allreduce of the JaxDecompiler paper: mpi4jax as it was written, jitted, beside the mpi4py that untrace writes of it.

    mpirun -n 2 python bench/allreduce.py
    mpirun -n 4 python bench/allreduce.py --json OUT.json

Ten runs of each, in turn, for arrays of several sizes: mean and standard deviation of one call, in microseconds, by the slowest
rank. The results of both are compared, to the bit, before anything is timed. The last line reads `N passed, M failed`, for each
size: failed where results differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI

import untrace

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
RUNS = 10
SIZES = {1: 2000, 1_000: 2000, 100_000: 200, 1_000_000: 20}  # numbers in an array -> calls in a run


def mean_over_ranks(x: Any) -> Any:
    return mpi4jax.allreduce(x, op=MPI.SUM) / SIZE


def seconds_of_a_call(function: Callable[[Any], Any], x: Any, calls: int) -> float:
    COMM.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        result = function(x)
    jax.block_until_ready(result)
    return COMM.allreduce(time.perf_counter() - start, op=MPI.MAX) / calls


def row(size: int, calls: int) -> dict[str, Any]:
    x = np.random.default_rng(RANK).standard_normal(size).astype(np.float32)
    given = jnp.asarray(x)
    original = jax.jit(mean_over_ranks)
    written = untrace.decompile(mean_over_ranks, target="mpi4py")(x)
    text = getattr(written.module, written.name)
    same = COMM.allreduce(np.array_equal(np.asarray(original(given)), text(x)), op=MPI.LAND)
    runs = [(seconds_of_a_call(original, given, calls), seconds_of_a_call(text, x, calls)) for _ in range(RUNS)]
    mean, deviation = np.mean(runs, axis=0) * 1e6, np.std(runs, axis=0, ddof=1) * 1e6
    return {"size": size, "same": bool(same), "mean": mean.tolist(), "deviation": deviation.tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="where to write everything measured")
    options = parser.parse_args()
    rows = [row(size, calls) for size, calls in SIZES.items()]
    if RANK:
        return 0
    print(f"{SIZE} ranks, us per call: mean +- standard deviation of {RUNS} runs")
    print(f"{'numbers':>10} {'mpi4jax, jitted':>24} {'written mpi4py':>24} {'ratio':>8}")
    for each in rows:
        one, other = [f"{m:.1f} +- {d:.1f}" for m, d in zip(each["mean"], each["deviation"], strict=True)]
        ratio = each["mean"][1] / each["mean"][0]
        print(f"{each['size']:>10,} {one:>24} {other:>24} {ratio:>8.2f}{'' if each['same'] else '   DIFFERENT'}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"ranks": SIZE, "rows": rows}, file, indent=1)
    failed = sum(not each["same"] for each in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
