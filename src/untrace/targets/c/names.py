"""Names that C takes: whatever a program calls its things, it is an identifier, no keyword, and nothing of C's library."""

from __future__ import annotations

from collections.abc import Iterable

from untrace._identifiers import identifier

_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    bool true false asm typeof alignas alignof noreturn static_assert thread_local complex imaginary
    and or not xor bitand bitor compl and_eq or_eq not_eq xor_eq catch class const_cast delete dynamic_cast explicit export
    friend mutable namespace new nullptr operator private protected public reinterpret_cast static_cast template this throw
    try typeid typename using virtual wchar_t constexpr decltype noexcept concept requires linux unix
""".split()
# Functions and macros of C's library that a local of the same name would hide; what some systems declare beside them.
_LIBRARY = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin
    fmod fpclassify frexp hypot ilogb isfinite isinf isnan isnormal signbit ldexp lgamma llrint llround log log10 log1p log2
    logb lrint lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sinh sqrt
    tan tanh tgamma trunc isgreater isless isunordered y0 y1 yn j0 j1 jn gamma significand drem scalb signgam
    abs labs llabs div ldiv exit abort atoi atof malloc calloc realloc free qsort bsearch rand srand system getenv atexit
    memcpy memmove memset memcmp memchr strlen strcpy strcmp index rindex printf puts putc getc remove rename signal time
    clock main errno stdin stdout stderr EOF NULL NAN INFINITY HUGE_VAL M_PI I conj creal cimag cexp cabs carg
    link read write open close pipe select send recv wait sleep stat access dup fork kill pause
    size_t ptrdiff_t offsetof work calls memory environ daemon double_t float_t
""".split()
_TYPES = [f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)] + ["INT32_MIN", "INT64_C", "UINT64_C"]
_FLOAT_NAMES = {name + suffix for name in _LIBRARY for suffix in ("f", "l")}
RESERVED = frozenset(_KEYWORDS) | frozenset(_LIBRARY) | frozenset(_TYPES) | _FLOAT_NAMES


def c_name(text: str, fallback: str) -> str:
    """An identifier of C for a word from outside."""
    name = identifier(text, fallback)
    if name.startswith("_"):  # which C keeps for itself where more follows
        name = name.lstrip("_") or fallback
        name = name if not name[0].isdigit() else f"{fallback}_{name}"
    return name + "_" if name in RESERVED else name


class Scope:
    """Names that are taken. `fresh` gives one that was not, and takes it."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def fresh(self, text: str, fallback: str) -> str:
        base = name = c_name(text, fallback)
        count = 2
        while name in self.taken:
            name = f"{base}_{count}"
            count += 1
        self.taken.add(name)
        return name
