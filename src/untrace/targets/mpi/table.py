"""The table of the rules of the MPI target, which has NumPy's for all that moves nothing between ranks."""

from __future__ import annotations

from untrace.module.rules import RuleTable
from untrace.targets.numpy.rules.table import NUMPY

MPI = RuleTable("mpi4py", NUMPY)
rule = MPI.rule
