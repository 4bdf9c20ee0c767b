"""What differentiation leaves: pullbacks, residuals, cotangents and their sums."""
