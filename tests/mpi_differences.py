"""Where MPI means something else than JAX's collectives, and how a text for mpi4py keeps what JAX means.

`docs/make_targets.py` writes this into docs/targets.md, the programs of tests/targets/mpi_cases.py run what it says.
"""

TEXT = (
    "A program that is one `jax.shard_map` or one `jax.pmap`, as NumPy for one process of each device, with mpi4py between them. "
    "All that moves nothing between devices is written as for NumPy, with the tables above; ranks are the mesh's devices, row "
    "by row, and each axis, or several together, has a communicator of its own. One text is for all ranks: what depends on the "
    "rank is computed from it. The proof runs the text on as many simulated ranks, which must meet in every collective."
)
DIFFERENCES = (
    (
        "arrays that are no buffers in C's order",
        "an array has no order",
        "a transposed array is sent as it stands in memory, without an error; one with gaps is refused",
        "each helper sends a copy in C's order, and receives into an array that it makes",
    ),
    (
        "types of the two sides",
        "are one",
        "are not compared: a message of `float32` into `float64` is taken as it comes",
        "both buffers are made from one array",
    ),
    (
        "`float16` and `bfloat16`",
        "are added in `float32`, and rounded",
        "has no type for them",
        "added in `float32`; what is only moved, as words of 16 bits. NumPy's files have no name for `bfloat16`: in `outputs.npz` "
        "it is `V2`, and `array.view(ml_dtypes.bfloat16)` reads it",
    ),
    (
        "truth values",
        "`psum` counts them; `pmax` is any, `pmin` is all",
        "`SUM` of them is an error",
        "the sum is one of `int32`, as in the jaxpr; the others are of bytes",
    ),
    ("keys", "are arrays", "has no type for them", "moved as their words"),
    (
        "`ppermute` to nobody",
        "who receives nothing has zeros",
        "who receives nothing keeps what was there",
        "`_permuted` receives into zeros",
    ),
    (
        "parts along an axis",
        "any axis is scattered, gathered or exchanged",
        "the first axis in memory is",
        "`np.moveaxis` before and after",
    ),
    (
        "groups of ranks",
        "`axis_index_groups`",
        "a communicator for each",
        "`Split`, once, in the order of the groups",
    ),
)
NOT_KEPT = (
    (
        "the order of sums",
        "MPI may add what the ranks have in another order than from the first to the last; the proof has a note",
    ),
    (
        "`pmax` and `pmin` of NaN",
        "what comes out depends on the order of the ranks, in XLA as well; the proof has a note",
    ),
)
