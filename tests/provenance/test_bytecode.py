"""What a function does with a value: the instructions say the same as the source does."""

import argparse
import collections
import dis
import inspect
import linecache
import types

import jax.numpy as jnp
import pytest

from untrace.provenance import bytecode, syntax
from untrace.provenance.frames import Frame
from untrace.provenance.sites import climbed


def f(x):
    return x


def bound(x):
    shifted = f(x) - 1
    return shifted * 2


def returned(x):
    return f(x)


def either(x, flag):
    return f(x) if flag else x


def used(x, y):
    return jnp.add(f(x), y)[0]


def copied(x):
    return tuple(f(x))


def in_a_tuple(x):
    return x, f(x)


def handed_out(x):
    out = f(x)
    return out


def kept(x):
    out = f(x)
    return out + 1


def bound_again(x):
    out = f(x)
    out = out + 1
    return out


def maybe_again(x, flag):
    out = f(x)
    if flag:
        out = out + 1
    return out


def in_turns(x):
    out = f(x)
    for _ in range(3):
        out = out + 1
    return out


def elements(xs):
    return tuple(f(x) for x in xs)


def _call(function, name="f"):
    """The instruction of `function` that calls `name`."""
    seen = False
    for i in dis.get_instructions(function):
        seen = seen or i.argval == name
        if seen and i.opname == "CALL":
            return i.offset
    raise AssertionError


@pytest.mark.parametrize(
    "function, kind",
    [(returned, "returned"), (used, "used"), (copied, "unknown"), (in_a_tuple, "unknown"), (either, "returned")],
)
def test_the_instructions_after_a_call_say_what_becomes_of_its_value(function, kind):
    assert bytecode.fate(function.__code__, _call(function)) == (kind, "")


def test_the_place_of_a_call_that_is_going_on_may_be_behind_it():
    code, place = returned.__code__, _call(returned)
    assert bytecode.fate(code, place + 2).kind == "returned"


def test_a_value_may_be_an_element_of_what_a_generator_gives():
    (inner,) = [c for c in elements.__code__.co_consts if isinstance(c, types.CodeType)]
    assert bytecode.fate(inner, _call(inner)).kind == "element"


def test_a_variable_that_a_value_is_bound_to_and_whether_it_is_returned():
    assert bytecode.fate(handed_out.__code__, _call(handed_out)) == ("bound", "out")
    assert bytecode.fate(bound.__code__, _call(bound)).kind == "used"
    said = [
        bytecode.is_returned(g.__code__, "out", _call(g))
        for g in (handed_out, kept, bound_again, maybe_again, in_turns)
    ]
    assert said == [True, False, None, True, None]


def listed(x):
    out = jnp.stack([f(x), x])
    return out


def kept_as_a_list(x):
    both = [f(x), x]
    return both[1]


def spread(x):
    return jnp.add(1, *f(x))


def told(x):
    raise ValueError(f"{f(x)}: no")


def asked(x):
    if f(x) is None:
        return 1


@pytest.mark.parametrize("function", [listed, kept_as_a_list, spread, told, asked])
def test_what_is_in_a_list_that_is_no_result_or_in_a_text_or_asked_for_is_used(function):
    assert bytecode.fate(function.__code__, _call(function)).kind == "used"


def test_the_loops_of_a_function_are_those_that_dis_finds():
    codes = [c for f in vars(argparse.ArgumentParser).values() if inspect.isfunction(f) for c in _codes(f.__code__)]
    found = 0
    for code in codes:
        back = [i for i in dis.get_instructions(code) if "BACKWARD" in i.opname]
        assert bytecode.loops(code) == [(i.argval, i.offset) for i in back]
        found += len(back)
    assert found > 20


def _codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def test_the_instructions_say_what_the_source_says_of_the_functions_of_jax():
    counts = collections.Counter()
    functions = [v for v in vars(jnp).values() if inspect.isfunction(inspect.unwrap(v))]
    for outer in {id(c): c for v in functions for c in [inspect.unwrap(v).__code__]}.values():
        for code in _codes(outer):
            positions = {}
            for instruction in dis.get_instructions(code):
                if instruction.opname not in ("CALL", "BINARY_OP"):
                    continue
                frame = Frame(code, instruction.offset, True, positions)
                kind, name = bytecode.fate(code, instruction.offset)
                if kind in ("unknown", "element") or frame.node is None:
                    continue
                climb = climbed(frame)
                names = [t.name for t in climb.targets if t.kind == "assign" and not t.path]
                whole = climb.returned and not any(str(step).startswith(".") for step in climb.path)
                said = ("bound", names[0]) if names else ("returned" if whole else "used", "")
                # Of `a or f()` and `x if a else b` behind a `return` the source is not asked for the parts.
                counts[said == (kind, name)] += 1
                if kind == "bound" and bytecode.is_returned(code, name, instruction.offset) is False:
                    assert not climb.returned
    assert counts[True] > 2000
    assert counts[False] < counts[True] / 200


LONG = """
def helper(first, second):
    return first + second


class Model:
    {filler}

    def decorated(self, xs):
        return [helper(x, x) for x in xs]

    def plain(self, x):
        return self.scale(x * 2, 3)

    def scale(self, value, by):
        return value * by


{more}
"""


@pytest.fixture
def long_file(tmp_path):
    path = tmp_path / "long.py"
    filler = "\n    ".join(f"constant_{i} = {i}" for i in range(40))
    more = "\n".join(f"other_{i} = {i}" for i in range(60))
    path.write_text(LONG.format(filler=filler, more=more))
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space


def test_of_a_long_file_the_function_around_a_comprehension_is_read_and_no_more(long_file):
    code = long_file["Model"].decorated.__code__
    inner = next((c for c in code.co_consts if isinstance(c, types.CodeType)), code)  # 3.12 has it in the function
    assert syntax.definition(inner) is not None
    assert sorted(syntax._FILES[code.co_filename]._pieces) == [code.co_firstlineno]


def test_the_parameter_of_a_method_elsewhere_in_a_long_file_is_known(long_file):
    code = long_file["Model"].plain.__code__
    call = syntax.definition(code).body[0].value
    assert [syntax.parameter(code, call, i) for i in (0, 1)] == ["value", "by"]


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\n",
        b"x = 1",
        b"",
        b"x = 1\n\x0cy = 2\n",
        "x = 'a\u2028b\x85'\n".encode(),
        b"\xef\xbb\xbfx = 1\n",
        b"x = 1\r\ny = 2\r\n",
        b"#!/usr/bin/env python\n# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"x = '\xe9'\n",
    ],
)
def test_a_file_is_read_as_linecache_reads_it(tmp_path, data):
    path = str(tmp_path / "module.py")
    with open(path, "wb") as file:
        file.write(data)
    expected = list(linecache.getlines(path))
    linecache.cache.pop(path, None)
    file = syntax._file(path)
    assert (list(file.lines) if file is not None else []) == expected
    assert linecache.getlines(path) == expected
    linecache.cache.pop(path, None)
