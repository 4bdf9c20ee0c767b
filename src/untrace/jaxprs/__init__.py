"""What works on jaxprs alone."""
