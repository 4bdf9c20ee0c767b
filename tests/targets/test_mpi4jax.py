"""Programs of mpi4jax, written for mpi4py by all ranks together: `mpi4jax_cases.py` under mpirun, and what has no need of MPI."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_mpi import HAS_MPI, MPIRUN, ranks

from untrace.prove.ranks import RanksDisagree, World
from untrace.targets.mpi.messages import of_rank, ranks_in

HERE = Path(__file__).parent
HAS_MPI4JAX = HAS_MPI and importlib.util.find_spec("mpi4jax") is not None

needs_mpi4jax = pytest.mark.skipif(not HAS_MPI4JAX, reason="there is no mpirun, or no mpi4jax")


def mpirun(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert MPIRUN is not None
    command = [MPIRUN, "--oversubscribe", "--allow-run-as-root", "-n", str(count), sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@needs_mpi4jax
@pytest.mark.parametrize("count", [2, 3, 4])
def test_programs_of_all_ranks(count, tmp_path):
    said = mpirun(count, str(HERE / "mpi4jax_cases.py"), str(tmp_path))
    assert said.returncode == 0 and f"all on {count} ranks" in said.stdout, said.stdout + said.stderr
    assert len(list(tmp_path.glob(f"*_{count}.py"))) == (9 if count == 2 else 4)


_PROGRAM = """
import mpi4jax
from mpi4py import MPI

RANK = MPI.COMM_WORLD.Get_rank()

def passed_on(x):
    return mpi4jax.sendrecv(x * (RANK + 1.0), x, source=1 - RANK, dest=1 - RANK)
"""

_RUN = """
import numpy as np, runpy
module = runpy.run_path("out.py")
print(int(module["passed_on"](np.full(3, module["rank"] + 5, np.float32))[0]))
"""


@needs_mpi4jax
def test_the_command_line_writes_once_and_says_it_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = ("-m", "untrace", "write", "program.py:passed_on", "f32[3]", "--to", "mpi4py", "-o", "out.py")
    said = mpirun(2, *command)
    assert said.returncode == 0 and said.stderr.count("wrote out.py") == 1, said.stderr
    text = (tmp_path / "out.py").read_text()
    assert "_send_receive(" in text and "x * np.float32(rank + 1)" in text and "(rank + 1) % 2" in text
    again = mpirun(2, *command)
    assert again.returncode != 0 and "out.py exists" in again.stderr and (tmp_path / "out.py").read_text() == text
    ran = mpirun(2, "-c", _RUN)
    assert sorted(ran.stdout.split()) == ["12", "5"], ran.stdout + ran.stderr


# ---------------------------------------------------------------- numbers of the rank


@given(st.lists(st.sampled_from([-2, 0, 1, 2, 3, 4, 5, 7]), min_size=1, max_size=6))
def test_an_expression_of_the_rank_has_its_values(values):
    text = of_rank(values, len(values)).flat()

    class MPI:
        PROC_NULL = -2

    for rank, value in enumerate(values):
        assert eval(text, {"rank": rank, "MPI": MPI}) == value, text


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_a_condition_on_the_rank_holds_for_these(case):
    size, chosen = case
    text = ranks_in(chosen, size)
    assert {rank for rank in range(size) if eval(text, {"rank": rank})} == chosen, text


@pytest.mark.parametrize(
    "values, text",
    [
        ((1, 2, 3, 0), "(rank + 1) % 4"),
        ((3, 0, 1, 2), "(rank - 1) % 4"),
        ((1, 2, 3, -2), "rank + 1 if rank < 3 else MPI.PROC_NULL"),
        ((-2, 0, 1, 2), "rank - 1 if rank > 0 else MPI.PROC_NULL"),
        ((3, 2, 1, 0), "3 - rank"),
        ((1, 0, 3, 2), "rank ^ 1"),
        ((0, 0, 0, 0), "0"),
        ((5, 0, 2, 2), "(5, 0, 2, 2)[rank]"),
    ],
)
def test_numbers_are_written_as_an_author_would(values, text):
    assert of_rank(values, len(values)).flat() == text


# ---------------------------------------------------------------- the ranks of the proof


def test_messages_come_in_order_and_by_tag():
    def function(mpi):
        comm, rank, out = mpi.COMM_WORLD, mpi.COMM_WORLD.Get_rank(), [np.zeros(2), np.zeros(2)]
        if rank == 0:
            for tag in (1, 2):
                comm.Send(np.full(2, float(tag)), 1, tag)
        elif rank == 1:
            comm.Recv(out[0], 0, 1)
            comm.Recv(out[1], 0)
        comm.Recv(out[0] if rank == 2 else np.zeros(1), mpi.PROC_NULL)
        comm.Barrier()
        return [o[0] for o in out]

    assert ranks(3, function) == [[0, 0], [1, 2], [0, 0]]


def test_what_one_rank_has_and_what_all_have():
    def function(mpi):
        comm = mpi.COMM_WORLD
        rank = comm.Get_rank()
        x = np.array([rank + 1.0, 2.0 - rank])
        total, upto, part = np.empty(2), np.empty(2), np.empty(2)
        every = np.empty((3, 2)) if rank == 1 else None
        comm.Reduce(x, total if rank == 2 else None, mpi.PROD, 2)
        comm.Scan(x, upto, mpi.MAX)
        comm.Gather(x, every, 1)
        comm.Scatter(every, part, 1)
        alike = np.empty(1, np.uint8)
        comm.Allreduce(np.array([rank > 0], np.uint8), alike, mpi.LOR)
        return (total.tolist() if rank == 2 else None), upto.tolist(), part.tolist(), int(alike[0])

    found = ranks(3, function)
    assert [f[0] for f in found] == [None, None, [6.0, 0.0]]
    assert [f[1] for f in found] == [[1, 2], [2, 2], [3, 2]]
    assert [f[2] for f in found] == [[1, 2], [2, 1], [3, 0]]
    assert [f[3] for f in found] == [1, 1, 1]


def _wait(rank: int, mpi: Any, wrong: str) -> None:
    comm, x, out = mpi.COMM_WORLD, np.ones(4, np.float32), np.empty(4, np.float32)
    other = 1 - rank
    if wrong == "circle":
        comm.Send(x, other), comm.Recv(out, other)
    elif wrong == "both receive":
        comm.Recv(out, other)
    elif wrong == "tag" and rank:
        comm.Recv(out, 0, 2)
    elif wrong == "tag":
        comm.Send(x, 1, 1)
    elif wrong == "size":
        comm.Recv(out[:3].copy(), 0) if rank else comm.Send(x, 1)
    elif wrong == "types":
        comm.Recv(np.empty(4, np.int32), 0) if rank else comm.Send(x, 1)
    elif wrong == "nobody there":
        comm.Send(x, 2)
    elif wrong == "unheard":
        if rank == 0:
            comm.Send(x, 1)
    elif wrong == "root":
        comm.Reduce(x, out, mpi.SUM, 0)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("circle", "wait for ever: rank 0 in Send to 1, rank 1 in Send to 0"),
        ("both receive", "wait for ever: rank 0 in Recv from 1"),
        ("tag", "wait for ever: rank 0 in Send to 1, rank 1 in Recv from 0"),
        ("size", "rank 0 sends rank 1 4 float32, which takes 3 float32"),
        ("types", "rank 0 sends rank 1 4 float32, which takes 4 int32"),
        ("nobody there", "there is no rank 2 of 2"),
        ("unheard", "wait for ever: rank 0 in Send to 1, and 1 ranks have ended"),
        ("root", "Reduce to rank 0, and rank 1 has the wrong buffers"),
    ],
)
def test_messages_that_nobody_answers_are_an_error(wrong, said):
    world = World(2)
    with pytest.raises(RanksDisagree, match=said):
        world.run(lambda rank: _wait(rank, world.mpi(rank), wrong))
