"""Names for values and functions."""
