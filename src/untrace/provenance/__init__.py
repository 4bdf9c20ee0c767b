"""Where equations came from: frames, the author's syntax, and whose code it is."""
