"""Tools that work on what was written: `watch` shows the values of a run, statement by statement."""
