"""Type strings: what each of them means, and what the message of a wrong one says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from untrace._errors import TypeStringError, UntraceError
from untrace._typestrings import known_dtypes, parse


def array(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[8,128]", array((8, 128), jnp.float32)),
        ("float32[8, 128]", array((8, 128), jnp.float32)),
        ("bf16[4]", array((4,), jnp.bfloat16)),
        ("i32[]", array((), jnp.int32)),
        (" i32 [ ] ", array((), jnp.int32)),
        ("u8[3,]", array((3,), jnp.uint8)),
        ("f16[0,2]", array((0, 2), jnp.float16)),
        ("bool[2]", array((2,), jnp.bool_)),
        ("pred[]", array((), jnp.bool_)),
        ("c64[2]", array((2,), jnp.complex64)),
        ("f8_e4m3fn[4]", array((4,), jnp.float8_e4m3fn)),
        ("i4[2]", array((2,), jnp.int4)),
        ("u4[2]", array((2,), jnp.uint4)),
        ("()", ()),
        ("[]", []),
        ("{}", {}),
        ("(f32[2])", array((2,), jnp.float32)),
        ("(f32[2],)", (array((2,), jnp.float32),)),
        ("(f32[2], 3)", (array((2,), jnp.float32), 3)),
        ("[f32[2], [None]]", [array((2,), jnp.float32), [None]]),
        (
            "{'w': f32[3,4], 'b': f32[4]}",
            {"w": array((3, 4), jnp.float32), "b": array((4,), jnp.float32)},
        ),
        ('{"a b": {0: i8[1]},}', {"a b": {0: array((1,), jnp.int8)}}),
        ("None", None),
    ],
)
def test_a_type_string_means(text: str, expected: object) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("2j", 2j),
        ("True", True),
        ("False", False),
    ],
)
def test_python_scalars_stay_python_scalars(text: str, expected: object) -> None:
    value = parse(text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "impl", "shape"),
    [
        ("key", None, ()),
        ("key[2,3]", None, (2, 3)),
        ("key<fry>", "threefry2x32", ()),
        ("key<fry>[4]", "threefry2x32", (4,)),
        ("key<rbg>[]", "rbg", ()),
        ("key<unsafe_rbg>", "unsafe_rbg", ()),
    ],
)
def test_keys(text: str, impl: str | None, shape: tuple[int, ...]) -> None:
    assert parse(text) == array(shape, jax.random.key(0, impl=impl).dtype)


IN_32_BITS = [name for name in known_dtypes() if name not in ("i64", "u64", "f64", "c128")]


@pytest.mark.parametrize("name", IN_32_BITS)
def test_every_known_dtype_can_be_used(name: str) -> None:
    parsed = parse(f"{name}[2]")
    assert parsed.shape == (2,)
    assert jnp.zeros(parsed.shape, parsed.dtype).dtype == parsed.dtype


def test_the_names_are_those_that_jax_prints() -> None:
    for text in ("f32[8,128]", "i4[2]", "bf16[]", "f8_e4m3fn[4]", "bool[3]", "key<fry>[4]"):
        jaxpr = jax.make_jaxpr(lambda x: x)(parse(text))
        assert text in str(jaxpr)


def test_64_bit_types_need_the_64_bit_mode() -> None:
    with pytest.raises(TypeStringError, match=r"'f64' needs JAX's 64-bit mode \(the option --x64"):
        parse("f64[2]")
    with jax.enable_x64(True):
        assert parse("f64[2]") == array((2,), jnp.float64)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("f3[2]", 1, "'f3' is not a type that is known here; known are bool, pred, "),
        ("(f32[2], foo)", 10, "'foo' is not a type"),
        ("__import__('os')", 1, "'__import__' is not a type"),
        ("f32", 4, "'[' is missing after 'f32' (a scalar is written f32[]), but here stands"),
        ("f32[n]", 5, "a size is a whole number such as 8, but here stands 'n'"),
        ("f32[-1]", 5, "a size is a whole number such as 8, but here stands '-'"),
        ("f32[2.5]", 5, "a size is a whole number such as 8, but here stands '2.5'"),
        ("f32[2", 6, "']' is missing after the sizes, but here stands the end of the text"),
        ("f32[99999999999999999999]", 5, "does not fit in 64 bits"),
        ("(f32[2]", 8, "')' is missing at the end of the items"),
        ("f32[2] f32[3]", 8, "the value is complete, but 'f32' follows"),
        ("'a'", 1, "the string 'a' is no value that JAX can trace"),
        ("{w: f32[2]}", 2, "a dict key is a quoted string or a whole number, but here is 'w'"),
        ("{'w' f32[2]}", 6, "':' is missing after the dict key"),
        ("{'w': 1, 'w': 2}", 10, "the dict key 'w' stands there twice"),
        ("{1.5: 1}", 2, "a dict key is a quoted string or a whole number"),
        ("key<foo>", 5, "'foo' is not a kind of random key; known are key<fry>, key<rbg>"),
        ("f32[2]; import os", 7, "';' does not belong in a type string"),
        ("-", 2, "a number is missing after the sign"),
        ("1__0", 1, "'1__0' is no number"),
        ("", 1, "a type is missing; write it like f32[8,128]"),
        ("(" * 1000, 65, "the nesting is deeper than 64"),
    ],
)
def test_a_wrong_type_string_says_where_and_why(text: str, column: int, message: str) -> None:
    with pytest.raises(TypeStringError) as caught:
        parse(text)
    assert f"at column {column}, " in str(caught.value)
    assert message in str(caught.value)


def test_a_caret_points_at_the_column() -> None:
    with pytest.raises(UntraceError) as caught:
        parse("{'w': f3[2]}")
    assert str(caught.value).splitlines()[1:] == ["    {'w': f3[2]}", "          ^"]
