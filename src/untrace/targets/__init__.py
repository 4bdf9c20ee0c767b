"""Other targets than JAX: the same program in the words of another library."""
