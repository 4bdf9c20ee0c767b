"""What the targets share that compute at once, in Python: NumPy and PyTorch. Loops and branches are Python's, and calls of
JAX's library are those of the target's where these do the same."""
