"""An editor goes over a written text, and only what is proven stays."""
