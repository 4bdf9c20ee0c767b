"""Whether two jaxprs are the same program, and where they differ."""
