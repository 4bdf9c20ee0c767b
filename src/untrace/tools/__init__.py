"""Tools that work on programs and on what was written: the values of a run, faults of its numbers, the smallest case of one."""
