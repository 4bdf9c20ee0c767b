"""Runs as files: one `.npz` with the records as JSON and their values as arrays."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from untrace._errors import OptionError, OutputExistsError
from untrace.prove.load import save_arrays
from untrace.prove.saving import write_atomically
from untrace.tools.probe import Frame
from untrace.tools.records import Record
from untrace.tools.statistics import Statistics

_FORMAT = "untrace watch 2"


def save_run(
    path: str | os.PathLike[str],
    name: str,
    records: Sequence[Record],
    notes: Sequence[str],
    skipped: int,
    overwrite: bool,
) -> str:
    """Writes records to `path`, an `.npz` file, whole or not at all; returns the path. skipped: how many turns are left out.

    Raises OptionError for another path, OutputExistsError where it exists, unless `overwrite`.
    """
    path = os.fspath(path)
    if not path.endswith(".npz"):
        raise OptionError(f"a run is saved as an .npz file, not as {path!r}")
    if os.path.exists(path) and not overwrite:
        raise OutputExistsError(f"{path} exists; pass overwrite=True (on the command line --force) to replace it")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OptionError(f"there is no folder {folder} to save into")
    rows: list[object] = []
    arrays: dict[str, np.ndarray] = {}
    for record in records:
        plain = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "value"}
        plain["frames"] = [[f.function, f.line] for f in record.frames]
        plain["statistics"] = dataclasses.astuple(record.statistics)
        plain["value"] = None
        if record.value is not None:
            plain["value"] = record.value.dtype.name
            arrays[f"value_{record.index}"] = record.value
        rows.append(plain)
    text = json.dumps({"format": _FORMAT, "name": name, "records": rows, "notes": [*notes], "skipped": skipped})
    arrays["records"] = np.frombuffer(text.encode(), np.uint8)
    write_atomically(path, lambda temporary: save_arrays(temporary, arrays))
    return path


def read_run(path: str | os.PathLike[str]) -> tuple[str, list[Record], tuple[str, ...], int]:
    """(the function's name, records, notes, how many turns are left out) of a file that `save_run` wrote. Raises OptionError
    where it is none."""
    path = os.fspath(path)
    if os.path.isfile(path) and not zipfile.is_zipfile(path):
        raise OptionError(f"{path} is no run that untrace has saved: that is an .npz file")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = json.loads(arrays["records"].tobytes())
            if found["format"] != _FORMAT:
                raise ValueError(found["format"])
            records = [_record(row, arrays) for row in found["records"]]
            return str(found["name"]), records, tuple(map(str, found["notes"])), int(found["skipped"])
    except FileNotFoundError:
        raise OptionError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise OptionError(f"{path} is no run that this version of untrace has saved: {error}") from None


def _record(row: Any, arrays: Mapping[str, np.ndarray]) -> Record:
    value = None
    if row["value"] is not None:
        dtype = np.dtype(getattr(ml_dtypes, row["value"], row["value"]))
        value = arrays[f"value_{row['index']}"].view(dtype)
    fields: Any = {
        **row, "value": value,
        "frames": tuple([Frame(str(function), int(line)) for function, line in row["frames"]]),
        "turns": tuple([tuple(turn) for turn in row["turns"]]),
        "occurrence": tuple(row["occurrence"]), "depths": tuple(row["depths"]),
        "shape": tuple(row["shape"]), "batch": tuple(row["batch"]), "statistics": _statistics(row["statistics"]),
    }  # fmt: skip
    return Record(**fields)


def _statistics(numbers: Any) -> Statistics:
    return Statistics(*numbers[:-1], histogram=tuple(numbers[-1]))
