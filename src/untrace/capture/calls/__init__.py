"""Calls of JAX's transformations, found again in what they left."""
