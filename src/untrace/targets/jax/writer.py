"""The printer of the JAX target: what it spells otherwise than another would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from untrace import jax_compat
from untrace._errors import UnsupportedPrimitiveError
from untrace._identifiers import identifier
from untrace.ir.callees import callee_of
from untrace.ir.nodes import Atom, Constant, Equation, Function, Primitive
from untrace.ir.said import SaidArray, SaidComputed
from untrace.module.access_paths import Step
from untrace.module.known_trees import plain_type, same_structure
from untrace.module.library_calls import with_author_sizes
from untrace.module.loops.of_calls import Turns
from untrace.module.rules import Groups
from untrace.module.writer import FunctionWriter, ModuleWriter
from untrace.python.names import Scope
from untrace.python.statements import Statement
from untrace.python.tree import Attribute, Call, Expr, Name, Text, Tuple, quoted
from untrace.python.values import Unwritable
from untrace.targets.base import TREE_CALLS
from untrace.targets.jax import check_errors, guard, library, loop_as_scan, rules, runtime, tree_maps  # noqa: F401  (registers)
from untrace.targets.jax.rules.table import JAX

# Constructors that give the same bits in `jax.numpy`.
_SAME_IN_JAX = ("np.array", "np.zeros", "np.arange", "np.eye")


class JaxModule(ModuleWriter):
    """Collects what one module for JAX needs: as `ModuleWriter`."""

    rules = JAX
    namespace = "jnp"
    operations = "lax"
    tree_calls = TREE_CALLS

    def _write_constant(
        self, value: object, aval: object, base: str, said: SaidArray | SaidComputed | None = None
    ) -> Expr:
        if type(said) is not SaidComputed:
            return super()._write_constant(value, aval, base, said)
        if jax_compat.is_jax_array(said.value):
            return self.computed_named(said)
        return self.converted(said, base, np.asarray(value), lambda whole: self.array_call("asarray", whole))

    def numpy_constant(self, constant: Constant) -> Expr:
        said = constant.said
        if not self.idiomatic or type(said) is not SaidComputed or not said.name or jax_compat.is_jax_array(said.value):
            return super().numpy_constant(constant)
        return self.computed_named(said)

    def writer(self) -> FunctionWriter:
        return JaxFunction(self, Scope(self.scope))

    def _as_array(self, expr: Expr, array: np.ndarray) -> Expr:
        """In idiomatic style an array of JAX: what Python's operators do with NumPy's own would never be traced."""
        if not self.idiomatic or not array.ndim or not jax_compat.is_canonical(array.dtype):
            return expr
        if type(expr) is Call and expr.func in _SAME_IN_JAX:
            self.modules.add("jnp")
            return Call(expr.func.replace("np.", "jnp."), expr.args, expr.kwargs)
        return self.array_call("asarray", expr)

    def _key(self, data: Expr, impl: Expr) -> Expr:
        self.modules.add("jax")
        return Call("jax.random.wrap_key_data", [data], [("impl", impl)])

    def _weakly_typed(self, array: Expr, dtype: np.dtype) -> Expr:
        """As there: only the primitive itself gives such a type to what is no Python scalar."""
        self.imports.add("from jax.extend.core import primitives")
        options = [("new_dtype", self.values.dtype(dtype)), ("weak_type", Text("True")), ("sharding", Text("None"))]
        return Call("primitives.convert_element_type_p.bind", [array], options)


class JaxFunction(FunctionWriter):
    """Writes one function's body; this is the `w` that rules get."""

    def lax(self, name: str, *args: Any, **kwargs: Any) -> Call:
        """`lax.name(*args, **kwargs)`; arguments that are not expressions are written as values."""
        self.module.modules.add("lax")
        return self._call("lax." + name, with_author_sizes(self, self.equation, name, args), kwargs)

    def jnp(self, name: str, *args: Any, **kwargs: Any) -> Call:
        return self.array_call(name, *args, **kwargs)

    def jax(self, name: str, *args: Any, **kwargs: Any) -> Call:
        self.module.modules.add("jax")
        return self._call("jax." + name, args, kwargs)

    def array(self, expr: Expr) -> Expr:
        return self.jnp("asarray", expr)

    def library_call(self, equation: Equation, operands: Sequence[Expr]) -> Expr | Groups:
        return library.library_call(self, equation, operands)

    def settled(self, equations: Sequence[Equation], results: Sequence[Atom]) -> Sequence[Equation]:
        return tree_maps.settle(self, equations, results)

    def write_over_trees(self, equation: Equation) -> None:
        tree_maps.write_over_trees(self, equation)

    def zeros_like(self, node: Any, parts: Sequence[Expr] | None, way: tuple[Step, ...] = ()) -> Expr | None:
        """`jax.tree.map(jnp.zeros_like, params)` for a tree of zeros, where one has a name that is of the same types.

        parts: the leaves, which must be zeros; None: they are. way: of several such trees rather the one at this end of a way.
        """
        if parts is not None and (len(parts) < 2 or any(type(p) is not Call or p.func != "jnp.zeros" for p in parts)):
            return None
        wanted = [plain_type(x) for x in jax.tree.leaves(node)]
        if None in wanted:
            return None

        def is_alike(example: object) -> bool:
            return wanted == [plain_type(x) for x in jax.tree.leaves(example)] and same_structure(node, example)

        found = [leaf for leaf, structure in self.trees.by_leaves.values() if is_alike(structure.example)]
        if not found:
            return None
        best = next((leaf for leaf in found if leaf.steps[len(leaf.steps) - len(way) :] == way), found[0])
        self.module.modules.update(("jax", "jnp"))
        return Call("jax.tree.map", [Text("jnp.zeros_like"), best])

    def added_trees(self, total: Expr, tree: Expr) -> Expr:
        self.module.modules.update(("jax", "jnp"))
        return Call("jax.tree.map", [Text("jnp.add"), total, tree])

    def scan_of_calls(self, turns: Turns) -> list[Statement]:
        return loop_as_scan.scan_statements(self, turns)

    def note_unscanned(self, equations: Sequence[Equation], at: int) -> None:
        loop_as_scan.note_unscanned(self, equations, at)

    def primitive(self, prim: Any) -> Expr | None:
        """`primitives.add_p`, or another public place of the primitive object; None where there is none."""
        found: Any = self.module.primitive_names.get(prim, False)
        if found is False:
            path = jax_compat.public_primitive(prim)
            if path is not None:
                module, _, name = path.rpartition(".")
                if module == "jax.extend.core.primitives":
                    self.module.imports.add("from jax.extend.core import primitives")
                    path = f"primitives.{name}"
                elif module == "jax.lax":
                    self.module.modules.add("lax")
                    path = f"lax.{name}"
                else:
                    self.module.imports.add(f"from {module} import {name}")
                    path = name
            found = self.module.primitive_names[prim] = None if path is None else Text(path)
        return found

    def bind(self, equation: Equation, operands: Sequence[Expr]) -> Expr:
        """`primitives.x_p.bind(*operands, **params)`: the very same equation."""
        prim = callee_of(equation, Primitive).object
        if jax_compat.binds_functions(prim):
            why = self._reason or "it has no rule, and a call primitive cannot be bound with written functions"
            raise UnsupportedPrimitiveError(_unsupported(equation, why))
        place = self.primitive(prim)
        if place is None:
            raise UnsupportedPrimitiveError(
                _unsupported(equation, "it has no rule, and no public place to import it from")
            )
        kwargs = []
        params = equation.parameters
        for key in params:
            try:
                kwargs.append((key, self.parameter(params[key])))
            except Unwritable as error:
                raise UnsupportedPrimitiveError(
                    _unsupported(equation, self._reason or f"its parameter {key!r} cannot be written: {error}")
                ) from None
        if not all(key.isidentifier() for key in params):
            raise UnsupportedPrimitiveError(_unsupported(equation, "a parameter's name is not an identifier"))
        return Call(Attribute(place, "bind"), operands, kwargs)

    def parameter(self, value: Any) -> Expr:
        """A parameter of a `bind`: like `source`, with Functions as jaxprs traced from written functions."""
        if type(value) is Function:
            return self.jaxpr(value)
        if type(value) is tuple:
            return Tuple([self.parameter(v) for v in value])
        if isinstance(value, np.dtype):  # a `bind` takes dtypes as they are, not what stands for them elsewhere
            self.module.modules.add("jnp")
            return Call("jnp.dtype", [Text(quoted(value.name))])
        return self.source(value)

    def jaxpr(self, function: Function) -> Expr:
        """`_jaxpr(f, *avals)`: the jaxpr of a written function, open or closed as the original was."""
        name = self.module.function(function)
        self.module.helper("_jaxpr")
        avals = [self.aval(p.aval) for p in function.params]
        call = Call("_jaxpr", [Name(name), *avals])
        return Attribute(call, "jaxpr") if jax_compat.is_open(function.jaxpr) else call

    def aval(self, aval: Any) -> Expr:
        """A `jax.ShapeDtypeStruct` for an abstract value."""
        self.module.modules.add("jax")
        return jax_compat_struct(self, aval)


def jax_compat_struct(w: FunctionWriter, aval: Any) -> Expr:
    if not jax_compat.is_shaped_array(aval):
        raise Unwritable(f"a parameter of type {aval} has no ShapeDtypeStruct")
    kwargs: list[tuple[str, Expr]] = []
    if aval.weak_type:
        kwargs.append(("weak_type", Text("True")))
    if jax_compat.has_typed_mesh(aval):  # inside shard_map, or under an explicit mesh
        kwargs.append(("sharding", w.source(aval.sharding)))
    vma = jax_compat.varying_axes(aval)
    if vma:
        varying = [("varying", w.source(frozenset(vma)))]
        kwargs.append(("manual_axis_type", Call("jax.sharding.ManualAxisType", [], varying)))
    return Call("jax.ShapeDtypeStruct", [w.source(tuple(aval.shape)), w.module.values.dtype(aval.dtype)], kwargs)


def _unsupported(equation: Equation, why: str) -> str:
    name = equation.callee.name
    params = ", ".join(f"{k}={str(v)[:60]}" for k, v in equation.params.items())
    where = jax_compat.user_line(equation.origin)
    return (
        f"cannot write the primitive `{name}` [{params}]{' from ' + where if where else ''}: {why}.\n"
        f"To teach untrace how it is written, register a rule:\n"
        f'    @untrace.rule("{name}")\n'
        f"    def {identifier(name, 'primitive')}(w, *operands, **params): return w.jnp('some_function', *operands)"
    )
