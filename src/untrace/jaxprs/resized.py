"""A jaxpr of one program at other sizes, by what corresponds to its numbers there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from untrace import jax_compat


class Resizer:
    """Puts other numbers into jaxprs: `numbers` for integers (whole floats too), `fractions` for other floats, `objects` for
    parameters that are no data (functions that hold sizes), by id."""

    def __init__(
        self, numbers: Mapping[int, int], fractions: Mapping[float, float], objects: Mapping[Any, Any]
    ) -> None:
        self._numbers, self._fractions, self._objects = numbers, fractions, objects
        self._variables: dict[Any, Any] = {}
        self._jaxprs: dict[Any, Any] = {}

    def jaxpr(self, closed: Any) -> Any:
        """A closed or open jaxpr at the other sizes; jaxprs that are one stay one."""
        found = self._jaxprs.get(closed)
        if found is None:
            jaxpr, _ = jax_compat.open_jaxpr(closed)
            eqns = [
                eqn.replace(
                    invars=self._atoms(eqn.invars),
                    outvars=self._atoms(eqn.outvars),
                    params={name: self._param(name, value) for name, value in eqn.params.items()},
                )
                for eqn in jaxpr.eqns
            ]
            outvars, invars = self._atoms(jaxpr.outvars), self._atoms(jaxpr.invars)
            found = self._jaxprs[closed] = jax_compat.rebuilt_jaxpr(closed, eqns, outvars, invars=invars)
        return found

    def _atoms(self, atoms: Sequence[Any]) -> list[Any]:
        return [self._atom(a) for a in atoms]

    def _atom(self, atom: Any) -> Any:
        if type(atom) is jax_compat.LITERAL_TYPE:
            value = self._value(atom.val)
            if value is atom.val:
                return atom
            return jax_compat.literal(value, atom.aval)
        found = self._variables.get(atom)
        if found is None:
            shape = getattr(atom.aval, "shape", ())
            new = self._value(tuple(shape))
            found = atom if new == tuple(shape) else jax_compat.fresh_variable(atom, new)
            if type(atom) is not jax_compat.DROP_TYPE:
                self._variables[atom] = found
        return found

    def _param(self, name: str, value: Any) -> Any:
        return self._value(value)

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in (bool, str, bytes) or value is None:
            return value
        if kind is int:
            return self._numbers.get(value, value)
        if isinstance(value, np.ndarray):
            return self._number(value) if not value.ndim and value.dtype.kind in "if" else value
        if isinstance(value, (int, float, np.number)):
            return self._number(value)
        if jax_compat.is_jaxpr(value):
            return self.jaxpr(value)
        if jax_compat.is_array_type(value):
            new = self._value(tuple(value.shape))
            return value if new == tuple(value.shape) else value.update(shape=new)
        if isinstance(value, (tuple, list)):
            items = [self._value(v) for v in value]
            return kind(*items) if hasattr(value, "_fields") else kind(items)
        if kind is dict:
            return {key: self._value(v) for key, v in value.items()}
        return self._objects.get(value, value)

    def _number(self, value: Any) -> Any:
        number = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
        if isinstance(number, complex) or number != number or number in (float("inf"), float("-inf")):
            return value
        new = self._numbers.get(int(number)) if number == int(number) else self._fractions.get(number)
        if new is None:
            return value
        if isinstance(value, (np.generic, np.ndarray)):
            return np.asarray(new, value.dtype)[()]
        return type(value)(new, value.dtype) if hasattr(value, "dtype") else type(value)(new)  # JAX's own numbers


class Lengthened(Resizer):
    """Puts another length of one axis into the jaxpr of a function that does the same along all of it: of the numbers of a
    shape that are `length` the first, which is where such an axis mostly stands."""

    def __init__(self, length: int, other: int) -> None:
        super().__init__({}, {}, {})
        self._length, self._other = length, other

    def _param(self, name: str, value: Any) -> Any:
        return value if name in _AXES else self._value(value)

    def _value(self, value: Any) -> Any:
        if type(value) is tuple and value and all(type(n) is int for n in value):
            place = value.index(self._length) if self._length in value else len(value)
            return tuple([self._other if i == place else n for i, n in enumerate(value)])
        return super()._value(value)


_AXES = frozenset(
    "axes axis dimensions broadcast_dimensions dimension_numbers permutation start_indices strides".split()
)
