"""Library primitives in a jaxpr, written out in JAX's own."""
