"""Parts of arrays: where each lies in the whole, and how a module that is run by itself hands them out and collects them."""

from __future__ import annotations

import numpy as np

from untrace.python.helpers import helper


@helper(last="_place")
def _place(shape, spec, mesh, coords):
    """Where in the whole array the part of this shape is that the rank at these coordinates has.

    spec: for each dimension, over which axes of the mesh it is cut. mesh: its shape.
    """
    index = []
    for dimension, size in enumerate(shape):
        part = 0
        for axis in spec[dimension] if dimension < len(spec) else ():
            part = part * mesh[axis] + coords[axis]
        index.append(slice(part * size, (part + 1) * size))
    return tuple(index)


@helper("np", needs=("_place",), last="_cut")
def _cut(whole, spec, mesh):
    """The parts of an array, one for each rank of the mesh."""
    whole = np.asarray(whole)
    shape = list(whole.shape)
    for dimension, axes in enumerate(spec):
        shape[dimension], rest = divmod(shape[dimension], int(np.prod([mesh[axis] for axis in axes])))
        if rest:
            raise ValueError(f"an array {whole.shape} cannot be cut along its axis {dimension}")
    return [np.array(whole[_place(shape, spec, mesh, coords)]) for coords in np.ndindex(*mesh)]


@helper("np", needs=("_place",), last="_joined")
def _joined(parts, spec, mesh):
    """The whole array of the parts of all ranks; of what several have, the first one's."""
    shape = list(parts[0].shape)
    for dimension, axes in enumerate(spec):
        shape[dimension] *= int(np.prod([mesh[axis] for axis in axes]))
    whole = np.empty(shape, parts[0].dtype)
    for part, coords in reversed([*zip(parts, np.ndindex(*mesh), strict=True)]):
        whole[_place(part.shape, spec, mesh, coords)] = part
    return whole


@helper("np", needs=("_cut",), last="_handed_out")
def _handed_out(mesh, specs):
    """This rank's parts of the arrays in the file that the command line names first; an error ends all ranks."""
    import sys

    def stop(*error):
        sys.__excepthook__(*error)
        mesh.Abort(1)

    sys.excepthook = stop
    parts = None
    if mesh.Get_rank() == 0:
        if len(sys.argv) not in (2, 3):
            print(f"usage: {sys.argv[0]} inputs.npz [outputs.npz], with the arrays {', '.join(specs)}", file=sys.stderr)
            mesh.Abort(2)
        with np.load(sys.argv[1]) as file:
            cut = [_cut(file[name], spec, mesh.dims) for name, spec in specs.items()]
        parts = [dict(zip(specs, each, strict=True)) for each in zip(*cut, strict=True)] or [{}] * mesh.Get_size()
    return mesh.scatter(parts)


@helper("np", needs=("_joined",), last="_collected")
def _collected(mesh, results, specs):
    """Writes the arrays that the parts of all ranks make to the file that the command line names second, or their types."""
    import sys

    parts = mesh.gather([np.asarray(result) for result in results.values()])
    if mesh.Get_rank() == 0:
        whole = {
            name: _joined(each, spec, mesh.dims)
            for name, spec, each in zip(results, specs, zip(*parts, strict=True), strict=True)
        }
        if len(sys.argv) > 2:
            np.savez(sys.argv[2], **whole)
        else:
            for name, array in whole.items():
                print(f"{name}: {array.dtype}{list(array.shape)}")
