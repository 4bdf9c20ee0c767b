"""The idiom list: which library call to try where, and how to read its arguments off the equations.

One short generator per idiom and anchor, grouped by family. A guess is proven by `engine`, so an idiom need not check
what tracing checks anyway. Idioms of one anchor are tried in the order in which the families are imported here: the
larger first.
"""

# isort: skip_file

from untrace.lift.recognise.idioms import (  # noqa: F401  (each registers its idioms)
    triangles,
    calls,
    indexing,
    nn,
    reductions,
    linalg,
    shapes,
    elementwise,
    random,
    sparse,
    written,
)
