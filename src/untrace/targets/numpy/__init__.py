"""NumPy: the program without JAX. Loops and branches are Python's, derivatives are written out."""
