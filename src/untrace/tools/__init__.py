"""Tools that work on programs and what was written: `doctor` finds where numbers go wrong."""
