"""Short words for results that have no name: `reduce_sum` -> `total`."""

from __future__ import annotations

from untrace import jax_compat
from untrace._identifiers import identifier
from untrace.ir.nodes import Equation

_BASES: dict[str, str] = {}


def base_of(name: str) -> str:
    """The base of a result's name, from its primitive: `reduce_sum` -> `total`... kept short and readable."""
    found = _BASES.get(name)
    if found is None:
        short = _SHORT.get(name) or name.rpartition(".")[2].removeprefix("reduce_").removesuffix("_p")
        short = _SHORT.get(short, short)
        found = _BASES[name] = identifier(short, "out")
    return found


_SHORT = {
    "dot_general": "dot", "convert_element_type": "cast", "broadcast_in_dim": "broadcast", "add_any": "add",
    "conv_general_dilated": "conv", "dynamic_slice": "slice", "dynamic_update_slice": "update", "integer_pow": "power",
    "select_n": "where", "reduce_sum": "total", "reduce_max": "maximum", "reduce_min": "minimum", "max": "maximum",
    "min": "minimum", "abs": "magnitude", "pow": "power", "round": "rounded", "custom_jvp_call": "out",
    "custom_vjp_call": "out", "jit": "out", "pjit": "out", "reduce_and": "every", "reduce_or": "some",
    "random_bits": "bits", "random_wrap": "key", "random_split": "keys", "random_fold_in": "key", "random_seed": "key",
    "random_unwrap": "key_data", "while": "loop", "reduce_prod": "product", "iota": "index",
    "dynamic_update_index": "update", "bitcast_convert_type": "bitcast", "shift_right_logical": "shift",
    "shift_left": "shift", "shift_right_arithmetic": "shift", "checkpoint": "out", "remat2": "out", "cond": "branch",
    "and": "both", "or": "either", "not": "negation", "xor": "differs", "sort": "ordered", "slice": "part",
    "sum": "total", "any": "some", "all": "every", "add_": "total", "truediv": "ratio", "matmul": "product",
    "getitem": "part", "floordiv": "quotient", "mod": "remainder", "and_": "both", "or_": "either", "invert": "negation",
    "local call": "out", "operator.add": "total", "operator.sub": "difference", "operator.mul": "product", "T": "transposed", "mT": "transposed",
    "einsum": "product", "astype": "cast", "select": "chosen", "zeros": "zeros", "ones": "ones", "full": "filled",
    "broadcast_to": "broadcast", "power": "power", "custom_root": "root", "root_linear_map": "slope",
    "complex": "z", "eq": "equal", "ne": "unequal", "lt": "less", "le": "at_most", "gt": "greater", "ge": "at_least",
}  # fmt: skip


def base_of_results(equation: Equation) -> str:
    """The base of the names of an equation's results; of a primitive object (JAX 0.12), by what it is."""
    name = equation.callee.name
    return base_of(jax_compat.primitive_label(equation.origin) if name == "call_hi_primitive" else name)
