"""One function through every stage, side by side."""
