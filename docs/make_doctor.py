"""Writes docs/doctor.md's parts that a program made: `python docs/make_doctor.py`; `--check` writes nothing and exits with 1
when a part is out of date."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import tempfile
from pathlib import Path

from untrace import cli

PAGE = Path(__file__).with_name("doctor.md")
MODEL = """\
import jax.numpy as jnp


def loss(w, x, y):
    z = x @ w
    return jnp.mean(jnp.log(1 + jnp.exp(z)) - y * z)


def arguments():
    x = jnp.array([[120.0, 1.0], [0.5, 1.0], [-2.0, 1.0]])
    return jnp.array([1.0, 0.0]), x, jnp.array([1.0, 0.0, 1.0])
"""


def parts() -> dict[str, str]:
    """The parts by their names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(MODEL)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["doctor", f"{path}:loss", f"@{path}:arguments", "--grad"])
        linecache.clearcache()
    text = out.getvalue()
    report, _, module = text.partition("\nrepaired:\n\n")
    module = module[: module.index("\n\n\n# ... and the helpers")]
    return {
        "model": f"```python\n{MODEL}```",
        "report": f"```text\n{report.rstrip()}\n```",
        "module": f"```python\n{module}\n```",
    }


def written(page: str) -> str:
    for name, text in parts().items():
        pattern = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
        page = re.sub(pattern, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
    return page


def main() -> int:
    old = PAGE.read_text()
    new = written(old)
    if "--check" in sys.argv:
        return int(old != new)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
