"""The rules of the linter, each a function of a traced program that finds one of JAX's sharp bits."""
