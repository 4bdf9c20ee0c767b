"""Host callbacks and debugging effects. Source: jax/_src/callback.py, jax/_src/debugging.py."""
