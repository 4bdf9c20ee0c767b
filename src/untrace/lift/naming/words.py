"""Words for values without a name of the author's: what a value is, in a noun or two.

All are identifiers that hide no builtin and no module. Nothing here looks at provenance.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container
from typing import Any

from untrace import jax_compat
from untrace._identifiers import RESERVED, identifier
from untrace.ir.callees import output_of
from untrace.ir.nodes import Equation, Value

# By primitive, or by the name of a function of JAX where that says the same: the two agree on most words.
NOUNS: dict[str, str] = {
    "abs": "magnitude", "absolute": "magnitude", "acos": "angle", "add": "total", "add_any": "total", "all": "every",
    "and": "both", "any": "some", "approx_top_k": "top", "arange": "indices", "argmax": "best", "argmin": "worst",
    "argsort": "order", "asarray": "array", "asin": "angle", "associative_scan": "prefixes", "astype": "cast", "atan": "angle",
    "atan2": "angle", "arctan2": "angle", "bernoulli": "flips", "bitcast_convert_type": "bits", "broadcast_in_dim": "filled",
    "broadcast_to": "spread", "categorical": "choice", "cbrt": "root", "ceil": "ceiling", "checkpoint": "block",
    "cholesky": "factor", "clamp": "clipped", "clip": "clipped", "complex": "z", "concatenate": "joined", "cond": "chosen",
    "conj": "conjugate", "conv_general_dilated": "convolved", "convert_element_type": "cast", "copy": "copied", "cos": "cosine",
    "cosh": "cosh", "count_nonzero": "count", "cumlogsumexp": "running", "cummax": "running_max", "cummin": "running_min",
    "cumprod": "running_product", "cumsum": "running_total", "custom_jvp_call": "result", "custom_linear_solve": "solution",
    "custom_vjp_call": "result", "diag": "diagonal", "diagonal": "diagonal", "digamma": "digamma", "div": "ratio", "dot": "product",
    "dot_general": "product", "divide": "ratio", "dynamic_slice": "part", "dynamic_update_slice": "updated", "eig": "spectrum",
    "eigh": "spectrum", "einsum": "product", "eq": "equal", "equal": "equal", "erf": "erf", "exp": "exponential",
    "exp2": "exponential", "expand_dims": "expanded", "expm1": "growth", "eye": "identity", "fft": "spectrum", "floor": "floor",
    "fori_loop": "result", "full": "filled", "full_like": "filled", "gather": "taken", "ge": "at_least", "getitem": "part",
    "greater": "greater", "greater_equal": "at_least", "gt": "greater", "householder_product": "orthogonal", "igamma": "igamma",
    "imag": "imaginary", "integer_pow": "power", "inv": "inverse", "iota": "indices", "is_finite": "finite",
    "isfinite": "finite", "isnan": "is_nan", "jit": "result", "le": "at_most", "less": "less", "less_equal": "at_most",
    "lgamma": "log_gamma", "log": "logarithm", "log1p": "logarithm", "logistic": "gate", "logsumexp": "log_total",
    "lt": "less", "lu": "lu_factors", "matmul": "product", "max": "largest", "maximum": "larger", "mean": "mean", "min": "smallest",
    "minimum": "smaller", "mod": "remainder", "mul": "scaled", "multiply": "scaled", "ne": "unequal", "neg": "negated",
    "negative": "negated", "nextafter": "neighbour", "norm": "norm", "normal": "noise", "not": "negation",
    "not_equal": "unequal", "one_hot": "one_hot", "one_minus_square": "one_minus_square", "ones": "ones",
    "ones_like": "ones", "optimization_barrier": "kept", "or": "either", "outer": "outer", "pad": "padded",
    "permutation": "shuffled", "pjit": "result", "pmax": "largest", "pmin": "smallest", "population_count": "count", "pow": "power",
    "power": "power", "prod": "product", "psum": "total", "psum_invariant": "total", "pure_callback": "result", "qr": "factors",
    "randint": "integers", "random_bits": "bits", "random_fold_in": "key", "random_gamma": "samples", "random_seed": "key",
    "random_split": "keys", "random_unwrap": "key_data", "random_wrap": "key", "real": "real", "reciprocal": "reciprocal",
    "reduce_and": "every", "reduce_max": "largest", "reduce_min": "smallest", "reduce_or": "some", "reduce_precision": "rounded",
    "reduce_prod": "product", "reduce_sum": "total", "regularized_incomplete_beta": "beta", "relu": "activated",
    "rem": "remainder", "remat2": "block", "remainder": "remainder", "reshape": "reshaped", "rev": "reversed_", "roll": "rolled",
    "round": "rounded", "rsqrt": "inverse_root", "scan": "result", "scatter": "updated", "scatter_add": "updated",
    "scatter-add": "updated", "scatter_max": "updated", "scatter_min": "updated", "scatter_mul": "updated",
    "searchsorted": "positions", "select": "selected", "select_n": "selected", "select_and_scatter_add": "scattered",
    "shift_left": "shifted", "shift_right_arithmetic": "shifted", "shift_right_logical": "shifted", "sigmoid": "gate",
    "sign": "sign", "silu": "activated", "sin": "sine", "sinh": "sinh", "slice": "part", "softmax": "weights", "softplus": "softplus",
    "solve": "solution", "sort": "ordered", "split": "parts", "sqrt": "root", "square": "square", "squeeze": "squeezed",
    "stack": "stacked", "std": "deviation", "sub": "difference", "subtract": "difference", "sum": "total", "svd": "factors",
    "take": "taken", "take_along_axis": "taken", "tan": "tangent", "tanh": "tanh", "tile": "tiled", "top_k": "top",
    "transpose": "transposed", "triangular_solve": "solution", "tril": "lower", "triu": "upper", "true_divide": "ratio",
    "truediv": "ratio", "uniform": "uniform", "unstack": "parts", "var": "variance", "vdot": "product", "where": "selected",
    "while": "result", "while_loop": "result", "xor": "differs", "zeros": "zeros", "zeros_like": "zeros", "zeta": "zeta",
    "logical_and": "both", "logical_or": "either", "logical_not": "negation", "log_softmax": "log_weights", "gelu": "activated",
    "convolve": "convolved", "corrcoef": "correlation", "cov": "covariance", "cross": "cross", "det": "determinant", "expm": "exponential",
    "interp": "interpolated", "median": "median", "percentile": "percentile", "pinv": "pseudoinverse", "quantile": "quantile", "trace": "trace",
    "relu6": "activated", "elu": "activated", "selu": "activated", "mish": "activated", "hard_swish": "activated",
    "hard_sigmoid": "gate",
}  # fmt: skip

# Those of them that say which step was the last, and nothing of what the value is.
STEPS = frozenset(
    "total product scaled difference ratio selected cast reshaped transposed result joined stacked part taken updated "
    "spread filled negated copied kept".split()
)

# Those of arrays that are filled with one number, or made of numbers alone.
CONSTANTS = frozenset("zeros ones full empty eye identity".split())

# What a variable is called whose author thought of no name.
STOCK = frozenset("out output result results ret retval res val value tmp temp".split())

# Names for one operation on one named value: `{}` is the value's.
_DERIVED = {
    "transpose": "{}_t", "neg": "neg_{}", "exp": "exp_{}", "log": "log_{}", "sqrt": "root_{}", "square": "{}_squared",
    "rsqrt": "inverse_root_{}", "abs": "abs_{}", "sort": "{}_sorted", "rev": "{}_reversed", "reduce_max": "{}_max",
    "reduce_min": "{}_min", "sign": "sign_{}", "is_finite": "{}_finite", "argmax": "best_{}", "floor": "{}_floor", "sin": "sin_{}",
    "cos": "cos_{}", "tanh": "tanh_{}", "logistic": "sigmoid_{}", "copy": "{}", "copy_p": "{}", "stop_gradient": "{}",
}  # fmt: skip
# Those after which a word that was made up still fits.
_SAME = frozenset("broadcast_in_dim copy copy_p expand_dims reshape squeeze stop_gradient".split())
_SHAPES = frozenset("reshape squeeze broadcast_in_dim expand_dims".split())


@functools.lru_cache(1 << 13)
def clean(text: str, fallback: str = "value") -> str:
    """`text` (data from outside) as an identifier; a name that the module or Python needs gets an underscore."""
    name = identifier(text.lstrip("_"), fallback)
    return name + "_" if name in RESERVED else name


def noun(names: list[str], aval: Any) -> str:
    """A word for a value that the first known of `names` (primitives, functions of JAX) made."""
    dtype = getattr(aval, "dtype", None)
    if dtype is not None and jax_compat.is_key_dtype(dtype):
        return "keys" if aval.shape else "key"
    for name in names:
        plain = name.lstrip("_")
        found = NOUNS.get(plain) or NOUNS.get(plain.replace("-", "_"))
        if found is not None:
            break
    else:
        found = next((clean(n.strip("_").removeprefix("reduce_"), "value") for n in names if n.strip("_")), "value")
    if found in _TRUTHS and getattr(dtype, "kind", "") == "b":
        return "mask" if getattr(aval, "shape", ()) else f"is_{found}"
    return found


# Those of what bounds a value: the last step of `jax.random.uniform` and `jnp.clip`.
_BOUNDS = frozenset("largest smallest larger smaller".split())
_TRUTHS = frozenset("equal unequal less greater at_least at_most both either negation selected finite differs".split())


def after_lift(hint: str | None, function: str, aval: Any) -> str | None:
    """The word for what a library function gives, where `hint` only says which primitive came last in it."""
    step = (hint or "").removesuffix("_t").removesuffix("_wide")
    if not NOUNS.get(function) or step not in STEPS | _BOUNDS and hint not in _TRUTHS:
        return hint
    word = noun([function], aval)
    return hint if word is None else word


def derived(equation: Equation, coined: Container[Value]) -> str | None:
    """A name for the result from its one named operand (`x_t`, `log_p`); None where that would not be short and sure.

    coined: ids of values whose names were made this way, from which no further ones are.
    """
    name = equation.callee.name
    operands = [a for a in equation.inputs if type(a) is Value]
    if len(operands) != 1 or not operands[0].hint:
        return None
    base = operands[0].hint
    if operands[0] in coined:
        return base if name in _SAME else None
    if name in _DERIVED:
        made = _DERIVED[name].format(base)
    elif name == "convert_element_type":
        made = f"{base}_{_short(getattr(output_of(equation).aval, 'dtype', 'cast'))}"
    elif name in _SHAPES:
        made = f"{base}_flat" if len(getattr(output_of(equation).aval, "shape", (0, 0))) == 1 else f"{base}_wide"
        if name in ("reshape", "squeeze") and made.endswith("_wide"):
            made = f"{base}_reshaped"
    else:
        return None
    return made if len(made) <= 28 else None


def expression(node: ast.AST | None) -> str | None:
    """A name for the value of a small expression of the author's: `mean[0]` -> `mean_0`, `x - mean` -> `x_centered`."""
    match node:
        case ast.Subscript(value=ast.Name(id=base), slice=ast.Constant(value=int() as index)) if index is not True:
            return clean(f"{base}_{index}")
        case ast.Subscript(slice=ast.Constant(value=str() as key)) if key.strip("_"):
            return clean(key)
        case ast.Attribute(value=ast.Name(id=base), attr="T" | "mT"):
            return clean(f"{base}_t")
        case ast.Attribute(value=ast.Name(id=base), attr=attr) if base not in ("self", "jnp"):
            return clean(f"{base}_{attr}")
        case ast.BinOp(left=ast.Name(id=base), op=ast.Sub(), right=right) if _is_mean(right):
            return clean(f"{base}_centered")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=base)):
            return clean(f"neg_{base}")
    return None


def _is_mean(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return name == "mean" or name.endswith("_mean") or name.startswith("mean_")
        case ast.Call(func=ast.Attribute(attr="mean")):
            return True
    return False


_DTYPE = re.compile("^(b?f)loat|^(u?i)nt")


@functools.cache
def _short(dtype: Any) -> str:
    return clean(_DTYPE.sub(r"\1\2", str(dtype)), "cast")


def plural(name: str) -> str:
    """`hidden` -> `hiddens`: a name for the stacked values of a loop."""
    if name.endswith("s") and not name.endswith("ss") or name.endswith("_"):
        return name
    if name.endswith(("x", "ch", "sh", "ss")) and len(name) > 1:
        return name + "es"
    if name.endswith("y") and len(name) > 2 and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + "s"


_IRREGULAR = {
    "axes": "axis", "caches": "cache", "halves": "half", "indices": "index", "leaves": "leaf", "matrices": "matrix",
    "series": "series", "vertices": "vertex",
}  # fmt: skip


def singular(name: str) -> str:
    """`sequences` -> `sequence`, `xs` -> `x`: a name for one of them; the same name where it is no plural."""
    head, _, last = name.rpartition("_")
    if last in _IRREGULAR:
        return f"{head}_{_IRREGULAR[last]}" if head else _IRREGULAR[last]
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if name.endswith(("xes", "ches", "shes", "sses")) and len(name) > 4:
        return name[:-2]
    if name.endswith("s") and not name.endswith(("ss", "us", "is", "as")) and len(name) > 1:
        return name[:-1]
    return name
