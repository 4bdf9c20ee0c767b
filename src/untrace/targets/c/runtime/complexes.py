"""Complex numbers, as structs of two parts: `Z` stands for the struct, `T` for the type of its parts, `S` for the suffix, `F` for
that of functions in <math.h>."""

from __future__ import annotations

import re

# The suffix of helpers: the struct, the type of its parts, what <math.h> and <complex.h> call functions of that.
TYPES = {"c64": ("struct complex64", "float", "f"), "c128": ("struct complex128", "double", "")}
_ANY_NAN = "isnan(z.re) || isnan(z.im)"
_NO_NUMBER = "!isfinite(z.re)"
# Functions of one complex number in <complex.h>, and where XLA has NaN for both parts and C has not.
FUNCTIONS = {
    "exp": "!isfinite(z.re) && !isfinite(z.im)", "log": _ANY_NAN, "sqrt": _ANY_NAN, "sin": _NO_NUMBER, "cos": _NO_NUMBER,
    "tan": "!isfinite(z.re) && z.im == 0", "tanh": "z.re == 0 && !isfinite(z.im)", "asin": "z.re == 0 && isnan(z.im)",
    "acos": "z.re == 0 && isnan(z.im)", "acosh": "z.re == 0 && isnan(z.im)", "asinh": "isnan(z.re) && z.im == 0",
    "atan": "", "atanh": "",
}  # fmt: skip
# Those with a cut along an axis, where XLA does not tell -0 from 0.
_CUTS = dict.fromkeys(("sqrt", "asin", "acos", "acosh"), "im") | {"asinh": "re"}

_OWN = {
    "add": """
static inline Z add_S(Z a, Z b)
{
    return (Z){a.re + b.re, a.im + b.im};
}
""",
    "sub": """
static inline Z sub_S(Z a, Z b)
{
    return (Z){a.re - b.re, a.im - b.im};
}
""",
    "mul": """
static inline Z mul_S(Z a, Z b)
{
    return (Z){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
""",
    "neg": """
static inline Z neg_S(Z a)
{
    return (Z){-a.re, -a.im};
}
""",
    "conj": """
static inline Z conj_S(Z a)
{
    return (Z){a.re, -a.im};
}
""",
    "eq": """
static inline bool eq_S(Z a, Z b)
{
    return a.re == b.re && a.im == b.im;
}
""",
    "ne": """
static inline bool ne_S(Z a, Z b)
{
    return a.re != b.re || a.im != b.im;
}
""",
    "abs": """
static inline T abs_S(Z a)
{
    return hypotF(a.re, a.im);
}
""",
    "max": """
/* The one that is larger by its real part, or by the other where these are equal. */
static inline Z max_S(Z a, Z b)
{
    return (a.re == b.re ? a.im > b.im : a.re > b.re) ? a : b;
}
""",
    "min": """
/* The one that is smaller by its real part, or by the other where these are equal. */
static inline Z min_S(Z a, Z b)
{
    return (a.re == b.re ? a.im < b.im : a.re < b.re) ? a : b;
}
""",
    "div": """
/* By Smith's method, which does not overflow on its way. */
static Z div_S(Z a, Z b)
{
    const bool wide = fabsF(b.re) < fabsF(b.im);
    const T r = wide ? b.re / b.im : b.im / b.re;
    const T d = wide ? b.re * r + b.im : b.re + b.im * r;
    const Z q = wide ? (Z){(a.re * r + a.im) / d, (a.im * r - a.re) / d}
            : (Z){(a.re + a.im * r) / d, (a.im - a.re * r) / d};
    if (!isnan(q.re) || !isnan(q.im)) {
        return q;
    }
    if (b.re == 0 && b.im == 0 && (!isnan(a.re) || !isnan(a.im))) {
        const T inf = copysignF((T)INFINITY, b.re);
        return (Z){inf * a.re, inf * a.im};
    }
    if ((isinf(a.re) || isinf(a.im)) && isfinite(b.re) && isfinite(b.im)) {
        const T x = copysignF((T)(isinf(a.re) ? 1 : 0), a.re);
        const T y = copysignF((T)(isinf(a.im) ? 1 : 0), a.im);
        return (Z){(T)INFINITY * (x * b.re + y * b.im), (T)INFINITY * (y * b.re - x * b.im)};
    }
    if ((isinf(b.re) || isinf(b.im)) && isfinite(a.re) && isfinite(a.im)) {
        const T x = copysignF((T)(isinf(b.re) ? 1 : 0), b.re);
        const T y = copysignF((T)(isinf(b.im) ? 1 : 0), b.im);
        return (Z){0 * (a.re * x + a.im * y), 0 * (a.im * x - a.re * y)};
    }
    return q;
}
""",
}
_FUNCTION = """
static inline Z NAME_S(Z z)
{
    T _Complex w;
BEFORE    memcpy(&w, &z, sizeof w);
    w = cNAMEF(w);
    memcpy(&z, &w, sizeof z);
    return z;
}
"""
_LAST = {
    "sign": """
/* Of modulus 1; of 0, which has no direction, 0. */
static Z sign_S(Z z)
{
    const T size = abs_S(z);
    return size == 0 ? (Z){0, 0} : (Z){z.re / size, z.im / size};
}
""",
    "rsqrt": """
static Z rsqrt_S(Z z)
{
    Z root = sqrt_S(z);
    root.im = copysignF(root.im, z.im);
    return isinf(z.re) || isinf(z.im) ? (Z){0, 0} : div_S((Z){1, 0}, root);
}
""",
    "pow": """
static Z pow_S(Z a, Z b)
{
    const T square = a.re * a.re + a.im * a.im;
    const T angle = atan2F(a.im, a.re);
    const T length = powF(square, b.re / 2) * expF(-b.im * angle);
    const T turn = b.re * angle + b.im / 2 * logF(square);
    if (b.im == 0 && (b.re == 0 || (a.re == (T)INFINITY && a.im == 0) || (square == 0 && b.re > 0))) {
        return (Z){b.re == 0 ? 1 : length, 0};
    }
    return (Z){length * cosF(turn), length * sinF(turn)};
}
""",
    "sinh": """
/* As XLA has it, which loses digits near 0. */
static Z sinh_S(Z z)
{
    const T shift = (T)-0.69314718055994530942; /* log 1/2 */
    return sub_S(exp_S((Z){z.re + shift, z.im}), exp_S((Z){shift - z.re, -z.im}));
}
""",
    "cosh": """
static Z cosh_S(Z z)
{
    const T shift = (T)-0.69314718055994530942; /* log 1/2 */
    return add_S(exp_S((Z){z.re + shift, z.im}), exp_S((Z){shift - z.re, -z.im}));
}
""",
    "fft": """
/* The Fourier transform of a row in its place, by the factors of n; the inverse one is not divided by n. */
static void fft_S(int n, bool inverse, Z *x, Z *spare)
{
    Z *from = x;
    Z *to = spare;
    int factor = 2;
    for (int done = 1; done < n; done *= factor) { /* rows of so many numbers are transformed */
        while (n / done % factor != 0) {
            factor = factor * factor > n / done ? n / done : factor + 1;
        }
        const int size = done * factor;
        const int count = n / size;
        for (int k = 0; k < size; k++) {
            for (int q = 0; q < factor; q++) {
                const double part = (double)((int64_t)q * k % size) / size;
                const double turn = (inverse ? 6.283185307179586477 : -6.283185307179586477) * part;
                const Z unit = {(T)cos(turn), (T)sin(turn)};
                for (int j = 0; j < count; j++) {
                    const Z term = mul_S(unit, from[k % done + done * (j + count * q)]);
                    to[k + size * j] = q == 0 ? term : add_S(to[k + size * j], term);
                }
            }
        }
        Z *const other = from;
        from = to;
        to = other;
    }
    for (int i = 0; i < n && from != x; i++) {
        x[i] = from[i];
    }
}
""",
    "cholesky": """
/* The lower factor of a matrix that is its own conjugate transpose, and stays as it is above its diagonal; NaN where
   there is no factor. */
static void cholesky_S(int n, const Z *a, Z *l)
{
    bool fails = false;
    for (int j = 0; j < n; j++) {
        T d = a[j * n + j].re;
        for (int k = 0; k < j; k++) {
            d -= mul_S(l[j * n + k], conj_S(l[j * n + k])).re;
        }
        fails = fails || !(d > 0);
        d = fails ? (T)NAN : sqrtF(d);
        for (int i = 0; i < n; i++) {
            Z s = a[i * n + j];
            for (int k = 0; k < j && i > j; k++) {
                s = sub_S(s, mul_S(l[i * n + k], conj_S(l[j * n + k])));
            }
            l[i * n + j] = i < j ? s : i == j ? (Z){d, 0} : (Z){s.re / d, s.im / d};
        }
    }
    for (int i = 0; i < n * n && fails; i++) {
        l[i] = (Z){(T)NAN, (T)NAN};
    }
}
""",
    "solve_triangular": """
/* Solves a x = b, or its transpose, in place: x is b at first, of m columns. */
static void solve_triangular_S(int n, int m, const Z *a, bool lower, bool transposed, bool unit, Z *x)
{
    const bool forwards = lower != transposed;
    for (int step = 0; step < n; step++) {
        const int i = forwards ? step : n - 1 - step;
        for (int k = forwards ? 0 : i + 1; k < (forwards ? i : n); k++) {
            const Z f = transposed ? a[k * n + i] : a[i * n + k];
            for (int j = 0; j < m; j++) {
                x[i * m + j] = sub_S(x[i * m + j], mul_S(f, x[k * m + j]));
            }
        }
        for (int j = 0; j < m && !unit; j++) {
            x[i * m + j] = div_S(x[i * m + j], a[i * n + i]);
        }
    }
}
""",
    "lu": """
/* The factors of a matrix in its own place, with the rows that were exchanged, and the order of the rows. */
static void lu_S(int n, Z *a, int32_t *pivots, int32_t *order)
{
    for (int i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int k = 0; k < n; k++) {
        int p = k;
        T most = fabsF(a[k * n + k].re) + fabsF(a[k * n + k].im);
        for (int i = k + 1; i < n; i++) {
            const T size = fabsF(a[i * n + k].re) + fabsF(a[i * n + k].im);
            p = size > most ? i : p;
            most = size > most ? size : most;
        }
        pivots[k] = p;
        if (p != k) {
            const int32_t row = order[k];
            order[k] = order[p];
            order[p] = row;
            for (int j = 0; j < n; j++) {
                const Z t = a[k * n + j];
                a[k * n + j] = a[p * n + j];
                a[p * n + j] = t;
            }
        }
        const Z pivot = a[k * n + k];
        for (int i = k + 1; i < n && (pivot.re != 0 || pivot.im != 0); i++) {
            const Z factor = div_S(a[i * n + k], pivot);
            a[i * n + k] = factor;
            for (int j = k + 1; j < n; j++) {
                a[i * n + j] = sub_S(a[i * n + j], mul_S(factor, a[k * n + j]));
            }
        }
    }
}
""",
    "expm1": """
static Z expm1_S(Z z)
{
    const T half = sinF(z.im / 2);
    return (Z){expm1F(z.re) * cosF(z.im) - 2 * half * half, z.im == 0 ? z.im : expF(z.re) * sinF(z.im)};
}
""",
    "log1p": """
static Z log1p_S(Z z)
{
    const T size = abs_S((Z){z.re + 1, z.im});
    if (isnan(z.re) || isnan(z.im)) {
        return (Z){(T)NAN, (T)NAN};
    }
    return (Z){size > (T)0.5 && size < 2 ? log1pF(z.re * (2 + z.re) + z.im * z.im) / 2 : logF(size), atan2F(z.im, z.re + 1)};
}
""",
}


def _function(name: str) -> str:
    nan, cut = FUNCTIONS[name], _CUTS.get(name)
    before = f"    z.{cut} += 0; /* no -0 */\n" if cut else ""
    before += f"    if ({nan}) {{\n        return (Z){{(T)NAN, (T)NAN}};\n    }}\n" if nan else ""
    return _FUNCTION.replace("NAME", name).replace("BEFORE", before)


def complex_helpers() -> dict[str, str]:
    """The helpers of complex numbers, by name, each after those that it calls."""
    texts = {**_OWN, **{name: _function(name) for name in FUNCTIONS}, **_LAST}
    found: dict[str, str] = {}
    for suffix, (struct, part, ending) in TYPES.items():
        for name, text in texts.items():
            made = re.sub(r"_S\b", f"_{suffix}", re.sub(r"(?<=[a-z0-9])F\(", f"{ending}(", text))
            found[f"{name}_{suffix}"] = re.sub(r"\bT\b", part, re.sub(r"\bZ\b", struct, made)).strip() + "\n"
    for one, other in (("c64", "c128"), ("c128", "c64")):
        struct, part, _ = TYPES[one]
        found[f"to_{one}_{other}"] = (
            f"static inline {struct} to_{one}_{other}({TYPES[other][0]} z)\n{{\n"
            f"    return ({struct}){{({part})z.re, ({part})z.im}};\n}}\n"
        )
    return found
