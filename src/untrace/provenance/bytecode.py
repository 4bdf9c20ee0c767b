"""What becomes of a value, read off the instructions that follow the one that made it: no source is read for it.

Only what is certain is answered, for the Pythons whose instructions are known here; the rest is for `syntax`.
"""

from __future__ import annotations

import sys
from dis import opmap, opname
from types import CodeType
from typing import NamedTuple


class Fate(NamedTuple):
    """`kind`: "bound" (to the variable `name`), "returned", "element" (of what a comprehension that is a function of its own
    gives), "used" (in a larger expression, or dropped), or "unknown"."""

    kind: str
    name: str = ""


_UNKNOWN, _RETURNED, _ELEMENT, _USED = Fate("unknown"), Fate("returned"), Fate("element"), Fate("used")
# Instructions that leave the value of an expression.
_MAKERS = frozenset(
    "BINARY_OP BINARY_SUBSCR CALL CALL_FUNCTION_EX COMPARE_OP LOAD_ATTR UNARY_INVERT UNARY_NEGATIVE".split()
)
_SKIPPED = frozenset("CACHE KW_NAMES NOP PRECALL".split())
_LOADS = frozenset("LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_CHECK PUSH_NULL".split())
_BINARY = frozenset("BINARY_OP BINARY_SUBSCR COMPARE_OP CONTAINS_OP IS_OP".split())
_UNARY = frozenset("UNARY_INVERT UNARY_NEGATIVE UNARY_NOT".split())
# The value is taken apart, iterated over, tested or dropped.
_LAST = frozenset(
    ["GET_ITER", "LIST_EXTEND", "POP_TOP", "UNPACK_SEQUENCE", *(n for n in opmap if n.startswith("POP_JUMP_"))]
)
_ELEMENTS = {"<listcomp>": "LIST_APPEND", "<genexpr>": "YIELD_VALUE"}  # what makes elements, by the function's name
_BUILDERS = frozenset(("BUILD_LIST", "BUILD_TUPLE"))
_OUT_OF_LISTS = frozenset(("RETURN_VALUE", "UNPACK_SEQUENCE"))  # after these, what is inside may still get a name
_FORWARD_JUMPS = frozenset(n for n in opmap if n == "JUMP_FORWARD" or n.startswith("POP_JUMP_") and "BACKWARD" not in n)
_BACKWARD_JUMPS = frozenset(n for n in opmap if "BACKWARD" in n)
_GO_BACK = frozenset(opmap[n] for n in _BACKWARD_JUMPS)
_METHOD_BIT = sys.version_info >= (3, 12)  # LOAD_ATTR may push an object beside its method
_EXTENDED, _CACHE = opmap["EXTENDED_ARG"], opmap["CACHE"]


def fate(code: CodeType, lasti: int) -> Fate:
    """What the function of `code` does with the value that its instruction at `lasti` gives."""
    raw = code.co_code
    while lasti > 0 and raw[lasti] == _CACHE:  # where a frame stands while it calls a function that is Python's
        lasti -= 2
    return _followed(code, raw, lasti + 2) if opname[raw[lasti]] in _MAKERS else _UNKNOWN


def is_returned(code: CodeType, name: str, lasti: int) -> bool | None:
    """Whether the function of `code` returns what it binds to `name` after `lasti`; None where that is not certain.

    What is bound to it again further down in a branch does not count.
    """
    raw = code.co_code
    variable = code.co_varnames.index(name)
    stores: list[int] = []  # after `lasti`
    jumps: list[tuple[int, int]] = []
    returns = loops = False
    arg = 0
    for at in range(0, len(raw), 2):
        arg = arg << 8 | raw[at + 1]
        if raw[at] == _EXTENDED:
            continue
        what = opname[raw[at]]
        if what in _FORWARD_JUMPS:
            after = at + 2
            while raw[after] == _CACHE:
                after += 2
            jumps.append((at, after + 2 * arg))
        elif what in _BACKWARD_JUMPS:
            loops = True
        elif arg == variable and what in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            kind = _followed(code, raw, at + 2).kind
            if kind == "unknown":
                return None
            returns = returns or kind == "returned"
        elif arg == variable and what == "STORE_FAST" and at > lasti:
            stores.append(at)
        arg = 0
    if not returns:
        return False
    # A jump over a later one makes that a branch's; but loops jump over their bodies as well.
    passed = not loops and all(any(stores[0] < at < s < goal for at, goal in jumps) for s in stores[1:])
    return True if passed or len(stores) == 1 else None


def loops(code: CodeType) -> list[tuple[int, int]]:
    """(where it begins, where it goes back) of each loop of a function; both are instructions."""
    raw = code.co_code
    found = []
    for at in [2 * i for i, instruction in enumerate(raw[::2]) if instruction in _GO_BACK]:
        arg, start, after = raw[at + 1], at, at + 2
        while start and raw[start - 2] == _EXTENDED:
            start -= 2
            arg |= raw[start + 1] << 4 * (at - start)
        while after < len(raw) and raw[after] == _CACHE:
            after += 2
        found.append((after - 2 * arg, at))
    return found


def _followed(code: CodeType, raw: bytes, at: int) -> Fate:
    """What the instructions from `at` on do with the value that is on top of the stack there."""
    above = 0  # how many values lie on top of ours
    inside = False  # whether ours is now the list or the tuple that it went into
    arg = 0
    while at < len(raw):
        arg = arg << 8 | raw[at + 1]
        at += 2
        if raw[at - 2] == _EXTENDED:
            continue
        name = opname[raw[at - 2]]
        if name == "JUMP_FORWARD":  # behind the other branch of `... if ... else ...`
            at += 2 * arg
        elif name not in _SKIPPED:
            if above == 0 and inside and (name in _OUT_OF_LISTS or name == _ELEMENTS.get(code.co_name)):
                return _UNKNOWN
            if above == 0:
                if name == "STORE_FAST" and inside:
                    return _USED
                if name == "STORE_FAST":
                    return Fate("bound", code.co_varnames[arg]) if arg < len(code.co_varnames) else _UNKNOWN
                if name == "RETURN_VALUE":
                    return _RETURNED
                if name == _ELEMENTS.get(code.co_name):
                    return _ELEMENT
                if name in _LAST:
                    return _USED
            takes, gives = _effect(name, arg)
            if takes > above:
                # `tuple(x)` and `list(x)` are still the value to a reader.
                copied = name == "CALL" and arg == 1 and not {"list", "tuple"}.isdisjoint(code.co_names)
                if gives < 0 or copied or inside and name == "BINARY_SUBSCR":
                    return _UNKNOWN
                if name not in _BUILDERS:
                    return _USED
                inside, above, arg = True, 0, 0
                continue
            above += gives - takes
        arg = 0
    return _UNKNOWN


def _effect(name: str, arg: int) -> tuple[int, int]:
    """How many values an instruction takes from the stack, and how many it leaves: -1 where that is not known here."""
    if name in _LOADS:
        return 0, 1
    if name in _BINARY:
        return 2, 1
    if name in _UNARY:
        return 1, 1
    match name:
        case "LOAD_GLOBAL":
            return 0, 1 + (arg & 1)
        case "LOAD_ATTR":
            return 1, 1 + (arg & 1 if _METHOD_BIT else 0)
        case "LOAD_METHOD":
            return 1, 2
        case "CALL":
            return arg + 2, 1
        case "BUILD_LIST" | "BUILD_SLICE" | "BUILD_STRING" | "BUILD_TUPLE":
            return arg, 1
        case "FORMAT_VALUE":
            return 2 if arg & 4 else 1, 1
        case "LIST_EXTEND":
            return 1, 0
    return 1 << 30, -1
