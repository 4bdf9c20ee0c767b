"""C as a target: a lifted Program becomes loops over arrays (`loops`), these are joined, and printed."""
