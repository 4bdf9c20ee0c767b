"""Helpers in C that the text carries where it calls them."""
