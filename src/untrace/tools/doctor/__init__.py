"""Where a program's numbers go wrong, why, and what to write instead."""
