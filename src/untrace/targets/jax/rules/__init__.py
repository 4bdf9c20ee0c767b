"""The rules of the JAX target, by family. Importing this package registers them all."""

from untrace.targets.jax.rules import (  # noqa: F401
    callbacks,
    calls,
    collective,
    control,
    custom,
    differentiated,
    dot_conv,
    elementwise,
    gather_scatter,
    linalg,
    mapped,
    pallas,
    params,
    random,
    reduce,
    refs,
    shape,
    sort,
)
