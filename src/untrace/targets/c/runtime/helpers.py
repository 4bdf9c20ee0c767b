"""What C has no operator for, or leaves undefined, as functions for each type: `T` stands for the type, `S` for its suffix.

Each is a text that is compiled and tested as it stands; a file has those that it calls, and those that these call.
"""

from __future__ import annotations

import functools
import re

from untrace.targets.c.runtime.complexes import complex_helpers
from untrace.targets.c.runtime.factors import FACTORS

TYPES = {
    "f32": "float", "f64": "double", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "bool": "bool",
}  # fmt: skip
_FLOATS = ("f32", "f64")
_SIGNED = ("i8", "i16", "i32", "i64")
_INTEGERS = (*_SIGNED, "u8", "u16", "u32", "u64")
_LIMITS = {
    "i8": ("INT8_MIN", "INT8_MAX"), "i16": ("INT16_MIN", "INT16_MAX"), "i32": ("INT32_MIN", "INT32_MAX"),
    "i64": ("INT64_MIN", "INT64_MAX"), "u8": ("0", "UINT8_MAX"), "u16": ("0", "UINT16_MAX"), "u32": ("0", "UINT32_MAX"),
    "u64": ("0", "UINT64_MAX"),
}  # fmt: skip

_PLAIN = {
    "clamp_index": """
/* An index outside is the nearest one inside. */
static inline int clamp_index(int64_t i, int last)
{
    return i < 0 ? 0 : i > last ? last : (int)i;
}
""",
    "in_range": """
static inline bool in_range(int64_t i, int64_t last)
{
    return 0 <= i && i <= last;
}
""",
    "permutation": """
/* The order of the rows after they were exchanged. */
static void permutation(int n, int count, const int32_t *pivots, int32_t *order)
{
    for (int i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int i = 0; i < count; i++) {
        const int32_t row = order[i];
        order[i] = order[pivots[i]];
        order[pivots[i]] = row;
    }
}
""",
    "wide_bf16": """
static inline float wide_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
""",
    "narrow_bf16": """
/* The nearest bfloat16, of two the even one. */
static inline uint16_t narrow_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((isnan(x) ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
""",
    "rounded_bf16": """
static inline float rounded_bf16(float x)
{
    return wide_bf16(narrow_bf16(x));
}
""",
    "wide_f16": """
static inline float wide_f16(uint16_t x)
{
    const int exponent = x >> 10 & 31;
    const float part = (float)(x & 1023);
    const float size = exponent == 31 ? (part > 0 ? NAN : INFINITY)
            : exponent == 0 ? ldexpf(part, -24) : ldexpf(part + 1024.0f, exponent - 25);
    return x >> 15 ? -size : size;
}
""",
    "narrow_f16": """
/* The nearest float16, of two the even one. */
static inline uint16_t narrow_f16(float x)
{
    const int sign = signbit(x) ? 0x8000 : 0;
    const float size = fabsf(x);
    if (isnan(x) || size >= 65520.0f || size == 0) {
        return (uint16_t)(sign | (isnan(x) ? 0x7e00 : size == 0 ? 0 : 0x7c00));
    }
    int exponent;
    (void)frexpf(size, &exponent);
    exponent = exponent < -13 ? -13 : exponent; /* below that, numbers are as far apart as there */
    const int part = (int)nearbyintf(ldexpf(size, 11 - exponent));
    return (uint16_t)(sign | (((exponent + 14) << 10) + part - 1024));
}
""",
    "rounded_f16": """
static inline float rounded_f16(float x)
{
    return wide_f16(narrow_f16(x));
}
""",
    "threefry": """
/* A word of random bits for a key of two words and a count of two (Salmon et al., 2011). */
static inline uint32_t threefry(uint32_t a, uint32_t b, uint32_t x, uint32_t y, int which)
{
    static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t keys[3] = {a, b, a ^ b ^ 0x1BD11BDAu};
    x += a;
    y += b;
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 4; j++) {
            const int n = turns[i % 2][j];
            x += y;
            y = ((y << n) | (y >> (32 - n))) ^ x;
        }
        x += keys[(i + 1) % 3];
        y += keys[(i + 2) % 3] + (uint32_t)(i + 1);
    }
    return which == 0 ? x : y;
}
""",
    "random_word": """
/* Random bits for the element number i. */
static inline uint32_t random_word(uint32_t a, uint32_t b, uint32_t i)
{
    return threefry(a, b, 0, i, 0) ^ threefry(a, b, 0, i, 1);
}
""",
    "erf_inv_f32": """
/* Giles, Approximating the erfinv function (2012), as XLA has it. */
static float erf_inv_f32(float x)
{
    static const float near[9] = {
        2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f, 0.00021858087f,
        -0.00125372503f, -0.00417768164f, 0.246640727f, 1.50140941f};
    static const float far[9] = {
        -0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f, 0.00573950773f,
        -0.0076224613f, 0.00943887047f, 1.00167406f, 2.83297682f};
    float w = -log1pf(-x * x);
    const bool is_near = w < 5.0f;
    w = is_near ? w - 2.5f : sqrtf(w) - 3.0f;
    const float *c = is_near ? near : far;
    float p = c[0];
    for (int i = 1; i < 9; i++) {
        p = c[i] + p * w;
    }
    return fabsf(x) == 1.0f ? x * INFINITY : p * x;
}
""",
}

_OF_FLOATS = {
    "max": """
/* NaN where one of them is; 0 is more than -0. */
static inline T max_S(T a, T b)
{
    return isnan(a) || a > b || (a == b && !signbit(a)) ? a : b;
}
""",
    "min": """
/* NaN where one of them is; -0 is less than 0. */
static inline T min_S(T a, T b)
{
    return isnan(a) || a < b || (a == b && signbit(a)) ? a : b;
}
""",
    "sign": """
/* -1, 1, or the number itself where it is a zero or NaN. */
static inline T sign_S(T x)
{
    return x > 0 ? (T)1 : x < 0 ? (T)-1 : x;
}
""",
    "cosh": """
/* As XLA has it. */
static inline T cosh_S(T x)
{
    const T shift = (T)-0.69314718055994530942; /* log 1/2 */
    return (T)(expF(x + shift) + expF(shift - x));
}
""",
    "sinh": """
/* As XLA has it. */
static inline T sinh_S(T x)
{
    const T shift = (T)-0.69314718055994530942; /* log 1/2 */
    const T below = expm1F(x);
    return fabsF(x) < 1 ? (T)0.5 * (below + below / (below + 1)) : expF(x + shift) - expF(shift - x);
}
""",
    "product": """
/* The product of two matrices, m by k and k by n, whose elements are so far apart along rows and columns.
   With UNTRACE_BLAS defined it is the one of a BLAS, but for one row. */
static void product_S(int m, int n, int k, const T *restrict a, int a_row, int a_column, const T *restrict b,
        int b_row, int b_column, T *restrict out)
{
    for (int i = 0; i < m * n; i++) {
        out[i] = 0;
    }
    if (m == 1 && b_column == 1) {
        for (int p = 0; p < k; p++) {
            const T factor = a[p * a_column];
            for (int j = 0; j < n; j++) {
                out[j] += factor * b[p * b_row + j];
            }
        }
        return;
    }
#ifdef UNTRACE_BLAS
    GEMM(CblasRowMajor, a_column == 1 ? CblasNoTrans : CblasTrans, b_column == 1 ? CblasNoTrans : CblasTrans,
            m, n, k, 1, a, a_column == 1 ? a_row : a_column, b, b_column == 1 ? b_row : b_column, 0, out, n);
#else
    enum { ROWS = 4, COLUMNS = 16, TERMS = 64 }; /* so many sums stand in registers */
    for (int j = 0; j < n; j += COLUMNS) {
        for (int p = 0; p < k; p += TERMS) {
            const int terms = k - p < TERMS ? k - p : TERMS;
            T panel[TERMS][COLUMNS];
            for (int q = 0; q < terms; q++) {
                for (int c = 0; c < COLUMNS; c++) {
                    panel[q][c] = j + c < n ? b[(p + q) * b_row + (j + c) * b_column] : 0;
                }
            }
            for (int i = 0; i < m; i += ROWS) {
                const T *rows[ROWS];
                T sums[ROWS][COLUMNS] = {{0}};
                for (int r = 0; r < ROWS; r++) {
                    rows[r] = a + (i + r < m ? i + r : m - 1) * a_row + p * a_column;
                }
                for (int q = 0; q < terms; q++) {
                    for (int r = 0; r < ROWS; r++) {
                        const T factor = rows[r][q * a_column];
                        for (int c = 0; c < COLUMNS; c++) {
                            sums[r][c] += factor * panel[q][c];
                        }
                    }
                }
                for (int r = 0; r < ROWS && i + r < m; r++) {
                    for (int c = 0; c < COLUMNS && j + c < n; c++) {
                        out[(i + r) * n + j + c] += sums[r][c];
                    }
                }
            }
        }
    }
#endif
}
""",
}

_SORT = """
/* Puts `order` into the order of its keys, equal ones as they were. */
static void NAME_S(int n, const T *key, int32_t *order, int32_t *spare)
{
    for (int width = 1; width < n; width *= 2) {
        for (int first = 0; first < n; first += 2 * width) {
            const int middle = first + width < n ? first + width : n;
            const int end = middle + width < n ? middle + width : n;
            int i = first;
            int j = middle;
            for (int k = first; k < end; k++) {
                const bool right = j < end && (i >= middle || BEFORE(key[order[j]], key[order[i]]));
                spare[k] = right ? order[j++] : order[i++];
            }
        }
        for (int k = 0; k < n; k++) {
            order[k] = spare[k];
        }
    }
}
"""
_BEFORE = """
/* NaN comes last. */
static inline bool before_S(T a, T b)
{
    return a < b || (isnan(b) && !isnan(a));
}
"""
_AFTER = """
/* In the total order: NaN comes first, one with a sign last; 0 comes before -0. */
static inline bool after_S(T a, T b)
{
    const int rank = isnan(a) ? (signbit(a) ? -1 : 1) : 0;
    const int rank_2 = isnan(b) ? (signbit(b) ? -1 : 1) : 0;
    return rank != rank_2 ? rank > rank_2 : a > b || (a == b && !signbit(a) && signbit(b));
}
"""

# U: the unsigned type in which it is computed.
_OF_INTEGERS = {
    "add": """
static inline T add_S(T a, T b)
{
    return (T)((U)a + (U)b);
}
""",
    "sub": """
static inline T sub_S(T a, T b)
{
    return (T)((U)a - (U)b);
}
""",
    "mul": """
static inline T mul_S(T a, T b)
{
    return (T)((U)a * (U)b);
}
""",
    "max": """
static inline T max_S(T a, T b)
{
    return a > b ? a : b;
}
""",
    "min": """
static inline T min_S(T a, T b)
{
    return a < b ? a : b;
}
""",
    "shift_left": """
/* 0 where all bits go. */
static inline T shift_left_S(T a, T n)
{
    return (T)((V)n < BITS ? (U)a << (U)n : 0);
}
""",
    "shift_right_logical": """
/* 0 where all bits go. */
static inline T shift_right_logical_S(T a, T n)
{
    return (T)((V)n < BITS ? (U)(V)a >> (U)n : 0);
}
""",
    "population_count": """
static inline T population_count_S(T x)
{
    U rest = (V)x;
    int count = 0;
    for (; rest != 0; rest &= rest - 1) {
        count++;
    }
    return (T)count;
}
""",
    "clz": """
static inline T clz_S(T x)
{
    int count = 0;
    for (U bit = (U)1 << (BITS - 1); bit != 0 && ((V)x & bit) == 0; bit >>= 1) {
        count++;
    }
    return (T)count;
}
""",
    "to": """
/* A number too large is the largest, or the smallest, that there is; NaN is 0. */
static inline T to_S(double x)
{
    return isnan(x) ? 0 : x <= (double)LOW ? LOW : x >= (double)HIGH ? HIGH : (T)x;
}
""",
}
_OF_SIGNED = {
    "div": """
/* What XLA gives: -1 for a division by zero. */
static inline T div_S(T a, T b)
{
    return (T)(b == 0 ? -1 : b == -1 ? (T)(0 - (U)a) : a / b);
}
""",
    "rem": """
/* What XLA gives: the number itself for a division by zero. */
static inline T rem_S(T a, T b)
{
    return (T)(b == 0 ? a : b == -1 ? 0 : a % b);
}
""",
    "sign": """
static inline T sign_S(T x)
{
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}
""",
    "abs": """
static inline T abs_S(T x)
{
    return (T)(x < 0 ? 0 - (U)x : (U)x);
}
""",
    "shift_right_arithmetic": """
/* The sign where all bits go. */
static inline T shift_right_arithmetic_S(T a, T n)
{
    const int by = (V)n < BITS ? (int)n : BITS - 1;
    return (T)(a < 0 ? ~(~a >> by) : a >> by);
}
""",
}
_OF_UNSIGNED = {
    "div": """
/* What XLA gives: all bits for a division by zero. */
static inline T div_S(T a, T b)
{
    return (T)(b == 0 ? HIGH : a / b);
}
""",
    "rem": """
/* What XLA gives: the number itself for a division by zero. */
static inline T rem_S(T a, T b)
{
    return (T)(b == 0 ? a : a % b);
}
""",
    "sign": """
static inline T sign_S(T x)
{
    return x > 0 ? 1 : 0;
}
""",
    "shift_right_arithmetic": """
/* The first bit where all others go. */
static inline T shift_right_arithmetic_S(T a, T n)
{
    const bool set = (a >> (BITS - 1)) != 0;
    const U ones = set ? ~(U)0 : 0;
    return (T)(n < BITS ? n == 0 ? (U)a : ((U)a >> n) | (U)(ones << (BITS - n)) : ones);
}
""",
}


def _named(text: str, suffix: str) -> str:
    """The same with the names of one type: `max_S` is a helper of ours, `expF` a function of <math.h>."""
    ending = "f" if suffix == "f32" else ""
    return re.sub(r"_S\b", f"_{suffix}", re.sub(r"(?<=[a-z0-9])F(?=\()", ending, text))


def _typed(text: str, suffix: str) -> str:
    low, high = _LIMITS.get(suffix, ("", ""))
    bits = re.sub(r"\D", "", suffix) or "8"
    words = {
        "T": TYPES[suffix], "U": "uint64_t" if bits == "64" else "uint32_t", "V": f"uint{bits}_t", "BITS": bits,
        "LOW": low, "HIGH": high, "GEMM": f"cblas_{'s' if suffix == 'f32' else 'd'}gemm",
    }  # fmt: skip
    return re.sub(r"\b(T|U|V|BITS|LOW|HIGH|GEMM)\b", lambda m: words[m[0]], _named(text, suffix)).strip() + "\n"


@functools.cache
def helpers() -> dict[str, str]:
    """All helpers, by name, in an order in which each stands after those that it calls."""
    found = {name: text.strip() + "\n" for name, text in _PLAIN.items()}
    for table, suffixes in (
        (_OF_FLOATS | FACTORS, _FLOATS),
        (_OF_INTEGERS, _INTEGERS),
        (_OF_SIGNED, _SIGNED),
        (_OF_UNSIGNED, _INTEGERS[4:]),
    ):
        for name, text in table.items():
            for suffix in suffixes:
                found[f"{name}_{suffix}"] = _typed(text, suffix)
    for suffix in _FLOATS:
        found[f"before_{suffix}"] = _typed(_BEFORE, suffix)
        found[f"after_{suffix}"] = _typed(_AFTER, suffix)
    for suffix in TYPES:
        floats = suffix in _FLOATS
        before = f"before_{suffix}(A, B)" if floats else "A < B"
        after = f"after_{suffix}(A, B)" if floats else "A > B"
        for name, test in (("sort", before), ("sort_down", after)):
            inner = test.replace("A", "key[order[j]]").replace("B", "key[order[i]]")
            text = _SORT.replace("NAME", name).replace("BEFORE(key[order[j]], key[order[i]])", inner)
            found[f"{name}_{suffix}"] = _typed(text, suffix)
    for one, other in (("f32", "i32"), ("f32", "u32"), ("f64", "i64"), ("f64", "u64")):
        for a, b in ((one, other), (other, one)):
            found[f"bits_{a}_{b}"] = (
                f"static inline {TYPES[b]} bits_{a}_{b}({TYPES[a]} x)\n{{\n    {TYPES[b]} y;\n"
                "    memcpy(&y, &x, sizeof y);\n    return y;\n}\n"
            )
    for suffix, integer in (("f32", "i32"), ("f64", "i64")):
        kind, most = TYPES[integer], _LIMITS[integer][1]
        found[f"total_{suffix}"] = (
            f"/* A number that is ordered as -NaN, -inf .. -0, 0 .. inf, NaN. */\nstatic inline {kind} total_{suffix}("
            f"{TYPES[suffix]} x)\n{{\n    const {kind} bits = bits_{suffix}_{integer}(x);\n"
            f"    return bits < 0 ? bits ^ {most} : bits;\n}}\n"
        )
    return found | complex_helpers()


def needed(used: set[str]) -> list[str]:
    """The texts of some helpers and of those that they call."""
    every = helpers()
    wanted = set(used)
    for name in reversed(list(every)):
        if name in wanted:
            wanted |= {other for other in re.findall(r"\b\w+(?=\()", every[name]) if other in every}
    return [text for name, text in every.items() if name in wanted]
