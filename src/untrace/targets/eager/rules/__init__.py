"""Rules, and parts of rules, that are the same for each library of arrays."""
