"""Programs whose written form is kept as a golden file, and shown in docs/gallery.md. Each has `build() -> (function, args)`."""
