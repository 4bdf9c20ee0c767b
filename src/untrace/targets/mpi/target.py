"""MPI as a target, through mpi4py: NumPy for each rank, and collectives between them."""

from __future__ import annotations

import functools
from dataclasses import replace

from jax.tree_util import PyTreeDef

from untrace.ir.nodes import Program
from untrace.targets.base import Company, Target
from untrace.targets.eager.lower import lowered
from untrace.targets.mpi import collectives, messages  # noqa: F401  (register rules and helpers)
from untrace.targets.mpi.company import Together, company
from untrace.targets.mpi.main import main_of
from untrace.targets.mpi.ranks import has_messages, make_one
from untrace.targets.mpi.sharded import Sharding, take_apart
from untrace.targets.mpi.simulated import simulated
from untrace.targets.mpi.table import MPI
from untrace.targets.mpi.uniform import check_decisions
from untrace.targets.mpi.writer import MpiModule, RanksModule
from untrace.targets.numpy.library import LIBRARY
from untrace.targets.numpy.target import TARGET as NUMPY

_LIBRARY = replace(LIBRARY, title="mpi4py", rules=MPI)


def _lower(program: Program) -> None:
    lowered(program, _LIBRARY)


def _begun(program: Program, arguments: PyTreeDef, company: Company) -> Target:
    """The target for the mesh of a program, of which what each device does is left; or for what the ranks of a company do."""
    if isinstance(company, Together) and (company.size > 1 or has_messages(program)):
        make_one(program, company)
        own = Sharding(("rank",), (company.size,), (((0,),),) * len(program.entry.params), ())
        company.agreed(lambda: check_decisions(program.entry, own))
        return replace(
            TARGET,
            writer=functools.partial(RanksModule, size=company.size),
            words=f", {company.size} ranks (each with its own arguments; simulated for the proof)",
        )
    signature = program.signature
    params = program.entry.params
    sharding = take_apart(program)
    check_decisions(program.entry, sharding)
    return replace(
        TARGET,
        writer=functools.partial(MpiModule, sharding=sharding),
        load=functools.partial(simulated, sharding=sharding, arguments=arguments),
        below=lambda name: main_of(name, signature, params, sharding),
        words=f", {sharding.ranks} ranks ({sharding.words}; simulated for the proof)",
    )


TARGET = replace(
    NUMPY, name="mpi4py", title="mpi4py", lower=_lower, has_ranks=True, company=company, begin=_begun, any_size=False
)
