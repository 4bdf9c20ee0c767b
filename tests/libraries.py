"""Code that counts as an installed library's, whose source is to be had."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def library(code: str, **names: Any) -> dict[str, Any]:
    """The names that a library's module binds; it has `jax` and `jnp`, and these."""
    folder = Path(tempfile.mkdtemp()) / "site-packages"
    folder.mkdir()
    file = folder / "layers.py"
    file.write_text(code, encoding="utf-8")
    names = {"jax": jax, "jnp": jnp, **names}
    exec(compile(code, str(file), "exec"), names)
    return names
