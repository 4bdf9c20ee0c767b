"""Rewrites of the jaxpr that keep every bit."""
