"""Library calls in the place of the equations that they trace to."""
