"""JAX's sharp bits in a function, from its trace: one rule for each, with the line, the cost and the change."""
