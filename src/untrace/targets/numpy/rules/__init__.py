"""The rules of the NumPy target."""
