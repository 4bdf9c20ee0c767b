"""MPI: the NumPy text of what each device of a mesh does, for one process each; collectives are calls of mpi4py."""
