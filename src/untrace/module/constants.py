"""Constants of a module: small ones as literals, large ones as entries of the `.npz`, each once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.nodes import Constant, Literal
from untrace.ir.said import Given, Numbers, Rows, SaidArray, SaidComputed
from untrace.provenance.sites import Provenance
from untrace.python import helpers
from untrace.python.names import Scope
from untrace.python.of_source import of_source
from untrace.python.statements import Assign, Statement
from untrace.python.tree import ATOM, UNARY, Attribute, Call, Expr, List, Name, Subscript, Text, quoted
from untrace.python.values import SMALL_BYTES, Values

_PYTHONS = frozenset("abs len list max min range reversed tuple".split())  # that may be in an author's expression


class ConstantWriter:
    """What `ModuleWriter` does with constants and literals, and with the helper that reads the large ones."""

    idiomatic: bool
    namespace: str

    def __init__(self) -> None:
        self.provenance = Provenance()  # that of the program
        self.scope = Scope()
        self.modules: set[str] = set()
        self.imports: set[str] = set()
        self.values = Values(self.modules)
        self.helpers: list[str] = []
        self.constants: list[Statement] = []
        self.large: dict[str, np.ndarray] = {}
        self._constants: dict[Literal | Constant, Expr] = {}
        self._constants_by_bits: dict[Hashable, Expr] = {}
        self._jax_constants: dict[Constant, Expr] = {}
        self._literals: dict[Hashable, Expr] = {}
        self._numbers: dict[tuple[str, Numbers], Name] = {}
        self.arrays: dict[str, np.ndarray] = {}  # by the name that it has in the module: an array
        # What functions that differ in a number or an array call it, by its text.
        self.words: dict[str | None, str] = {}

    def helper(self, name: str) -> Text:
        """The name of one of our own helper routines (`runtime`), which is then part of the module."""
        for needed in helpers.needs(name):
            self.helper(needed)
        if name not in self.helpers:
            self.helpers.append(name)
            self.modules.update(helpers.modules(name))
        return Text(name)

    def constant(self, constant: Constant) -> Expr:
        """A module-level name for a constant: a literal when it is small, else an entry of the `.npz`."""
        found = self._constants.get(constant)
        if found is None:
            base = self._base(constant, "const")
            found = self._write_constant(constant.value, constant.aval, base, constant.said if self.idiomatic else None)
            self._constants[constant] = found
            if type(found) is Name:
                found.symbol.constant = constant
        return found

    def constant_named(self, expr: Expr) -> Constant | None:
        """The constant of the module that `expr` is, as the body of a loop closes over it; None for other values."""
        return expr.symbol.constant if type(expr) is Name else None

    def is_numpy(self, expr: Expr) -> bool:
        """Whether `expr` is a constant of the module that stands there as NumPy's."""
        return not self.idiomatic and self.constant_named(expr) is not None

    def _base(self, constant: Constant, otherwise: str) -> str:
        """What a constant is called in idiomatic style; in the other they are numbered."""
        return constant.hint if self.idiomatic and constant.hint else otherwise

    def jax_constant(self, constant: Constant) -> Expr:
        """A constant as an array of JAX: one of NumPy's is converted to another dtype at once, without an equation."""
        found = self._jax_constants.get(constant)
        if found is None:
            plain = self.array_call("asarray", self.constant(constant))
            found = self._jax_constants[constant] = self._module_name(self._base(constant, "const"), plain)
        return found

    def numpy_constant(self, constant: Constant) -> Expr:
        """A constant as NumPy's array also in idiomatic style, for an index that JAX is to know while it traces."""
        array = np.asarray(constant.value)
        key = ("numpy", array.dtype.name, array.shape, array.tobytes())
        found = self._constants_by_bits.get(key)
        if found is None:
            plain = self.values.array(array)
            found = self._constants_by_bits[key] = self._module_name(self._base(constant, "const"), plain, array)
        return found

    def text_of(self, atom: Literal | Constant) -> str | None:
        """How a number, or an array that the module has, stands in the text."""
        if type(atom) is Literal:
            return self.literal(atom).flat().removeprefix(f"np.{atom.aval.dtype}(").rstrip(")")
        found = self._constants.get(atom)
        if found is None:
            array = np.asarray(atom.value)
            found = self._constants_by_bits.get(("numpy", array.dtype.name, array.shape, array.tobytes()))
        return None if found is None else found.flat()

    def number_array(self, literal: Literal) -> Expr:
        """A number as an array of JAX, for a function to close over: a bare one is part of the equations that use it."""
        key = ("array", self.literal(literal).flat())
        found = self._literals.get(key)
        if found is None:
            call = self.array_call("asarray", self.literal(literal))
            found = self._literals[key] = self._module_name("scalar" if self.idiomatic else "const", call)
        return found

    def _write_constant(
        self, value: object, aval: object, base: str, said: SaidArray | SaidComputed | None = None
    ) -> Expr:
        if jax_compat.is_key(value):
            impl = self.values.source(jax_compat.key_impl_name(value))
            data = self._write_constant(jax_compat.key_data(value), None, f"{base}_data" if self.idiomatic else "const")
            return self._module_name(base if self.idiomatic else "key", self._key(data, impl))
        why = jax_compat.why_no_constant(value)
        if why:
            raise UnsupportedPrimitiveError(why)
        array = np.asarray(value)
        dtype = getattr(aval, "dtype", array.dtype)
        if not self.idiomatic and not jax_compat.is_jax_array(value) and array.dtype == dtype:
            repeated = self._repeated(array)
            if repeated is not None and not getattr(aval, "weak_type", False):
                return self._module_name("const", repeated)
        if array.dtype != dtype and dtype != jax_compat.FLOAT0:
            array = array.astype(dtype)
        array = np.ascontiguousarray(array).reshape(array.shape)
        weak = getattr(aval, "weak_type", False)
        listed = self._listed(array, said)
        key = (array.dtype.name, array.shape, array.tobytes(), weak, None if listed is None else listed.flat())
        found = self._constants_by_bits.get(key)
        if found is None and weak and self.idiomatic and (full := self._full(array)) is not None:
            found = self._constants_by_bits[key] = self._module_name(base, full, array)
            return found
        if found is None:
            expr = self.values.scalar(array[()], dtype, True) if weak and not array.ndim else self.values.array(array)
            if listed is not None and type(expr) is Call and expr.args and type(expr.args[0]) is List:
                expr = Call(expr.func, [listed, *expr.args[1:]], expr.kwargs)
            if not array.ndim and jax_compat.is_jax_array(value):
                # A NumPy scalar would be a literal to JAX, and some equations on literals are folded away.
                expr = self.array_call("asarray", expr)
            if (
                array.nbytes > SMALL_BYTES
                and type(expr) is Call
                and expr.func in ("np.array",)
                or len(expr.flat()) > 8000
            ):
                self.helper("_constants")
                name = self.scope.fresh(base)
                self.large[name] = array
                expr = self._as_array(Call("_constants", [Text(quoted(name)), self.values.dtype(array.dtype)]), array)
                self.constants.append(Assign([name], expr))
                found = Name(name)
                self.arrays[name] = array
            else:
                found = self._module_name(base, self._as_array(expr, array), array)
            if weak and array.ndim:
                found = self._module_name(base if self.idiomatic else "weak", self._weakly_typed(found, dtype))
            self._constants_by_bits[key] = found
        elif array.ndim:
            # Another array with the same values: JAX tells constants apart by identity, and lowers each.
            again = self._as_array(self.values.array(array), array) if self.idiomatic and not weak else None
            if again is None or len(again.flat()) > 80:
                again = Call(Attribute(found, "copy"), [])
            found = self._module_name(base, again, array)
        elif jax_compat.is_jax_array(value):
            found = self._module_name(base, self.array_call("copy", found))
        return found

    def said(
        self, node: Rows, numbers: Mapping[str, Given], variables: Mapping[str, Expr] = MappingProxyType({})
    ) -> Expr:
        """An expression of the author's of numbers, or a list of such; the module has those by their names then. variables: what
        stands in the text for variables of his."""
        if isinstance(node, list):
            return List([self.said(part, numbers) for part in node])

        def named(name: str) -> Expr:
            is_variable = name in variables and name not in numbers
            return variables[name] if is_variable else self._said_name(name, numbers, self.namespace)

        return of_source(node, named)

    def _said_name(self, name: str, numbers: Mapping[str, Given], mathematics: str) -> Expr:
        """A name of a number or of a Python module, in an expression of the author's."""
        if name in numbers:
            given = numbers[name]
            made = None if given.made is None else self.said(given.made, given.of)
            return self.number_named(name, given.value, made)
        if name in _PYTHONS:
            return Text(name)
        module = mathematics if name == "math" else name.removeprefix("python.")
        self.modules.add(module)
        return Text(module)

    def computed(self, said: SaidComputed) -> Expr:
        """The author's expression for an array; the module has the numbers and arrays in it by their names then."""
        if said.made is None:
            array = np.asarray(said.value)
            return (
                self._write_constant(array, None, said.name)
                if jax_compat.is_jax_array(said.value)
                else self.values.array(array)
            )
        namespace = self.namespace if jax_compat.is_jax_array(said.value) else "np"

        def named(name: str) -> Expr:
            array = said.arrays.get(name)
            return self._said_name(name, said.numbers, namespace) if array is None else self.computed_named(array)

        return of_source(said.made, named)

    def computed_named(self, said: SaidComputed) -> Expr:
        """The module's name for an array of the author's, which it has by his expression then."""
        array = np.asarray(said.value)
        key = ("computed", said.name, type(said.value), array.dtype.name, array.shape, array.tobytes())
        found = self._constants_by_bits.get(key)
        if found is None:
            expr = self.computed(said)
            is_plain = not jax_compat.is_jax_array(said.value)  # JAX tells its own apart by identity
            known = expr if type(expr) is Name else self._said_already(said.name, expr) if is_plain else None
            found = known or self._module_name(said.name, expr, array)
            self._constants_by_bits[key] = found
        return found

    def converted(self, said: SaidComputed, base: str, array: np.ndarray, by: Callable[[Expr], Expr]) -> Expr:
        """The module's name for what the text takes an array of the author's as: his expression, converted, once."""
        key = ("converted", said.name, array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants_by_bits:
            self._constants_by_bits[key] = self._module_name(base, by(self.computed(said)), array)
        return self._constants_by_bits[key]

    def _listed(self, array: np.ndarray, said: SaidArray | SaidComputed | None) -> Expr | None:
        """An array of numbers as its author lists them; None where there is another word for it."""
        if said is None or isinstance(said, SaidComputed) or array.size > 2 and (array == array.flat[0]).all():
            return None
        return self.said(*said)

    def _repeated(self, array: np.ndarray) -> Expr | None:
        """A NumPy array that holds its values once for all places along some axes, as one that does so too; else None.

        JAX lowers it as a small constant and a broadcast. Source: `_ndarray_constant_handler`, interpreters/mlir.py.
        """
        repeated = [not stride for stride in array.strides]
        if not array.size or not any(repeated):
            return None
        base = array[tuple(0 if again else slice(None) for again in repeated)]
        self.modules.add("np")
        small = base.nbytes <= SMALL_BYTES
        expr = self.values.array(np.array(base)) if small else self._write_constant(np.array(base), None, "const")
        index = ["None" if again else ":" for again in repeated]
        while index and index[0] == "None":  # NumPy puts those in front itself
            index.pop(0)
        if "None" in index:
            expr = Subscript(expr, Text(", ".join(index)))
        behind = array.ndim - len(index)
        if behind or any(again and length > 1 for again, length in zip(repeated, array.shape, strict=True)):
            expr = Call("np.broadcast_to", [expr, self.values.source(tuple(array.shape))])
        return expr

    def _as_array(self, expr: Expr, array: np.ndarray) -> Expr:
        """What stands for an array of NumPy's, `expr`, in the text: an array of the target where it has to be one."""
        return expr

    def _key(self, data: Expr, impl: Expr) -> Expr:
        """An array of random keys, made of their words."""
        raise NotImplementedError

    def array_call(self, function: str, *args: Expr) -> Call:
        """A call of a function on arrays of the target."""
        self.modules.add(self.namespace)
        return Call(f"{self.namespace}.{function}", args)

    def _full(self, array: np.ndarray) -> Expr | None:
        """An array of one number, which has a weak type as the number has; None for an array of several numbers."""
        usual = array.dtype in (jax.dtypes.canonicalize_dtype(float), jax.dtypes.canonicalize_dtype(int))
        first = array.reshape(-1)[:1]
        if not array.ndim or not usual or not array.size or not np.isfinite(first[0]):
            return None
        if array.tobytes() != first.tobytes() * array.size:
            return None
        number = self.values.scalar(first[0], array.dtype, True)
        return self.array_call("full", self.values.source(tuple(array.shape)), number)

    def _weakly_typed(self, array: Expr, dtype: np.dtype) -> Expr:
        """An array of a type that gives way to that of other arrays, as Python's numbers do."""
        raise NotImplementedError

    def _module_name(self, base: str, expr: Expr, array: np.ndarray | None = None) -> Name:
        name = self.scope.fresh(base)
        if array is not None:
            self.arrays[name] = array
        self.constants.append(Assign([name], expr))
        return Name(name)

    def number_named(self, name: str, value: Numbers, made: Expr | None = None) -> Name:
        """The module's name for a number of the author's module, or a list of them: it has `GRAVITY = 9.81` then, or what it is
        `made` of."""
        found = self._numbers.get((name, value))
        if found is None:
            digits = repr(value)
            expr = Text(digits, UNARY if digits[0] == "-" else ATOM) if made is None else made
            base = identifier(name, "number")
            found = self._numbers[name, value] = self._said_already(base, expr) or self._module_name(base, expr)
        return found

    def _said_already(self, name: str, expr: Expr) -> Name | None:
        """The constant of the module that has this name and says the same."""
        same = (s for s in self.constants if isinstance(s, Assign) and [*s.targets] == [name])
        return Name(name) if any(s.value.flat() == expr.flat() for s in same) else None

    def number_of(self, parameter: str, value: float) -> Name | None:
        """The module's name for the number that a parameter has; None where the program was written without one."""
        return self._numbers.get((parameter.upper(), value))

    def literal(self, literal: Literal) -> Expr:
        value, aval = literal.value, literal.aval
        bits = np.asarray(value)
        key = (bits.tobytes(), bits.dtype, aval.dtype, aval.weak_type)
        found = self._literals.get(key)
        if found is None:
            found = self._literals[key] = self.values.scalar(value, aval.dtype, aval.weak_type)
        return found


class Named(Expr):
    """A constant of the module that has no statement before its name is written: what reads it may know it in another form."""

    __slots__ = ("module", "constant")

    def __init__(self, module: ConstantWriter, constant: Constant):
        self.module, self.constant = module, constant

    def flat(self) -> str:
        return self.module.constant(self.constant).flat()
