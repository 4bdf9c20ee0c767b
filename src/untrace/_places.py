"""How a line of the author's is named: `model.py:6`, `In [3]:6` of IPython, `a notebook cell:6` of Jupyter."""

from __future__ import annotations

import os
import re

_IPYTHON = re.compile(r"<ipython-input-(\d+)-\w+>")
# Jupyter's kernel gives a cell a file that does not exist, named after a checksum.
_IPYKERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\]\d+\.py")


def is_cell(file: str) -> bool:
    """Whether the name of a file is that of a cell of IPython or Jupyter."""
    return bool(_IPYTHON.fullmatch(file) or _IPYKERNEL.fullmatch(file))


def place_of(file: str, line: int | str) -> str:
    """A place without folders, process numbers and checksums."""
    cell = _IPYTHON.fullmatch(file)
    if cell:
        return f"In [{cell.group(1)}]:{line}"
    if _IPYKERNEL.fullmatch(file):
        return f"a notebook cell:{line}"
    return f"{os.path.basename(file)}:{line}"
