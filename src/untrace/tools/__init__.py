"""What stands on written texts and on the evaluator: looking at values, at faults, at the smallest case."""
