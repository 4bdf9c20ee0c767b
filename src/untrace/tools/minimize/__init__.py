"""The smallest program for which a fault still shows."""
