"""The author's calls, as functions of the program."""
