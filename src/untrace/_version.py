"""The version of untrace, where what writes it into modules finds it without the package."""

__version__ = "0.1.0"
