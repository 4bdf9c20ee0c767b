"""Arguments written as text, the way JAX prints types: `parse("{'w': f32[3,4], 'key': key}")`.

The grammar is Python's own for containers and numbers, with JAX's short types as leaves:

    value   := type | key | number | "True" | "False" | "None" | tuple | list | dict | "(" value ")"
    type    := dtype "[" [size {"," size} [","]] "]"           f32[8,128]   i32[]   f8_e4m3fn[4]
    key     := "key" ["<" impl ">"] ["[" sizes "]"]            key   key<rbg>[4]
    dict    := "{" [(string | integer) ":" value {"," ...}] "}"

The text is read by hand and never evaluated: `i32[]` is not Python, an error can name its column,
and a type string may come from someone else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from untrace._errors import TypeStringError

# Short name, as JAX prints it -> attribute of jax.numpy.  Looked up when used, for the exotic ones
# come and go with the version of JAX (and of ml_dtypes).
_DTYPES: dict[str, str] = {
    "bool": "bool_",
    "pred": "bool_",  # the name in HLO
    **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    "bf16": "bfloat16",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{
        f"f{name}": f"float{name}"
        for name in ("8_e3m4 8_e4m3 8_e4m3b11fnuz 8_e4m3fn 8_e4m3fnuz 8_e5m2 8_e5m2fnuz 8_e8m0fnu 4_e2m1fn").split()
    },
    "c64": "complex64",
    "c128": "complex128",
}
_LONG_DTYPES = {long: long for long in _DTYPES.values() if long != "bool_"}

# Tag, as JAX prints it in `key<fry>[]` -> name of the implementation; the names are accepted too.
_KEY_IMPLS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}

_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False}

# A deeper nesting than anyone writes; it keeps hostile text from ending in a RecursionError.
_MAX_DEPTH = 64

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?[jJ]?)
    | (?P<word>[^\W\d]\w*)
    | (?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    | (?P<mark>[][(){}<>,:+-])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


def parse(text: str) -> Any:
    """The pytree that `text` describes, its arrays as `jax.ShapeDtypeStruct`s.

    Python scalars stay Python scalars, which JAX traces as weakly typed arguments; a `key` is a
    `ShapeDtypeStruct` with a key dtype.

    Raises `TypeStringError`, which names the column and what is known, when `text` cannot be read,
    and for a 64-bit type where JAX's 64-bit mode is off (JAX would silently take 32 bits).
    """
    return _Parser(text).parse()


def known_dtypes() -> tuple[str, ...]:
    """The short dtype names that the installed JAX knows, as `parse` accepts them."""
    return tuple(short for short, long in _DTYPES.items() if hasattr(jnp, long))


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int  # of its first character, from 0


class _Parser:
    """Recursive descent over the tokens of one type string."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self.position = 0
        self.token = self._next_token()

    # -- tokens ----------------------------------------------------------------------------------
    def _next_token(self) -> _Token:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            rest = self.text[self.position :]
            column = self.position + len(rest) - len(rest.lstrip())
            raise self._error(f"{self.text[column]!r} does not belong in a type string", column)
        self.position = match.end()
        return _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))

    def _advance(self) -> _Token:
        token, self.token = self.token, self._next_token()
        return token

    def _sees(self, mark: str) -> bool:
        return self.token.kind == "mark" and self.token.text == mark

    def _accepts(self, mark: str) -> bool:
        if not self._sees(mark):
            return False
        self._advance()
        return True

    def _expect(self, mark: str, after: str) -> None:
        if not self._accepts(mark):
            raise self._error(f"{mark!r} is missing {after}, but here stands {self._here()}")

    def _here(self) -> str:
        return "the end of the text" if self.token.kind == "end" else repr(self.token.text)

    def _error(self, what: str, column: int | None = None) -> TypeStringError:
        column = self.token.column if column is None else column
        message = f"cannot read the type string {self.text!r}: at column {column + 1}, {what}."
        if "\n" not in self.text and self.text:
            message += f"\n    {self.text}\n    {' ' * column}^"
        return TypeStringError(message)

    # -- values ----------------------------------------------------------------------------------
    def parse(self) -> Any:
        if self.token.kind == "end":
            raise self._error(f"a type is missing; write it like {_examples()}")
        value = self._value()
        if self.token.kind != "end":
            raise self._error(f"the value is complete, but {self._here()} follows")
        return value

    def _value(self) -> Any:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self._error(f"the nesting is deeper than {_MAX_DEPTH}")
        try:
            return self._value_here()
        finally:
            self.depth -= 1

    def _value_here(self) -> Any:
        token = self.token
        if token.kind == "word":
            return self._word()
        if token.kind == "number" or self._sees("-") or self._sees("+"):
            return self._number()
        if token.kind == "string":
            raise self._error(
                f"the string {token.text} is no value that JAX can trace (a string that is fixed"
                " while tracing is a static argument: --static name=value)"
            )
        for opening, read in (("(", self._tuple), ("[", self._list), ("{", self._dict)):
            if self._accepts(opening):
                return read()
        raise self._error(f"a type or a value is missing, but here stands {self._here()}")

    def _word(self) -> Any:
        word = self._advance()
        if word.text in _WORDS:
            return _WORDS[word.text]
        if word.text == "key":
            return self._key()
        dtype = self._dtype(word)
        self._expect("[", f"after {word.text!r} (a scalar is written {word.text}[])")
        return jax.ShapeDtypeStruct(self._sizes(), dtype)

    def _dtype(self, word: _Token) -> Any:
        long = _DTYPES.get(word.text) or _LONG_DTYPES.get(word.text)
        if long is None or not hasattr(jnp, long):
            raise self._error(
                f"{word.text!r} is not a type that is known here; known are"
                f" {', '.join(known_dtypes())}, key, Python numbers, True, False and None",
                word.column,
            )
        dtype = jnp.dtype(getattr(jnp, long))
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise self._error(
                f"{word.text!r} needs JAX's 64-bit mode (the option --x64, or JAX_ENABLE_X64=1),"
                " and without it JAX would take 32 bits",
                word.column,
            )
        return dtype

    def _key(self) -> jax.ShapeDtypeStruct:
        make: Callable[..., Any] = jax.random.key
        if self._accepts("<"):
            impl = self._advance()
            if impl.text not in _KEY_IMPLS and impl.text not in _KEY_IMPLS.values():
                raise self._error(
                    f"{impl.text!r} is not a kind of random key; known are"
                    f" {', '.join(f'key<{tag}>' for tag in _KEY_IMPLS)}",
                    impl.column,
                )
            self._expect(">", "after the kind of key")
            make = partial(make, impl=_KEY_IMPLS.get(impl.text, impl.text))
        shape = self._sizes() if self._accepts("[") else ()
        return jax.ShapeDtypeStruct(shape, jax.eval_shape(make, 0).dtype)

    def _sizes(self) -> tuple[int, ...]:
        sizes: list[int] = []
        while not self._accepts("]"):
            size = self.token
            if size.kind != "number" or not size.text.replace("_", "").isdecimal():
                raise self._error(f"a size is a whole number such as 8, but here stands {self._here()}")
            sizes.append(int(size.text))
            if sizes[-1] >= 2**63:
                raise self._error(f"the size {size.text} does not fit in 64 bits")
            self._advance()
            if not self._accepts(","):
                self._expect("]", "after the sizes")
                break
        return tuple(sizes)

    def _number(self) -> Any:
        sign = 1
        while self._sees("-") or self._sees("+"):
            sign = -sign if self._advance().text == "-" else sign
        number = self.token
        if number.kind != "number":
            raise self._error(f"a number is missing after the sign, but here is {self._here()}")
        try:
            value = ast.literal_eval(number.text)
        except (SyntaxError, ValueError):
            raise self._error(f"{number.text!r} is no number") from None
        self._advance()
        return sign * value

    def _tuple(self) -> Any:
        items, trailing_comma = self._items(")")
        # As in Python, parentheses alone do not make a tuple.
        return items[0] if len(items) == 1 and not trailing_comma else tuple(items)

    def _list(self) -> list[Any]:
        return self._items("]")[0]

    def _items(self, closing: str) -> tuple[list[Any], bool]:
        items: list[Any] = []
        comma = False
        while not self._accepts(closing):
            items.append(self._value())
            comma = self._accepts(",")
            if not comma:
                self._expect(closing, "at the end of the items")
                break
        return items, comma

    def _dict(self) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        while not self._accepts("}"):
            key = self.token
            if key.kind not in ("string", "number"):
                raise self._error(f"a dict key is a quoted string or a whole number, but here is {self._here()}")
            try:
                name = ast.literal_eval(key.text)
            except (SyntaxError, ValueError):
                raise self._error(f"{key.text} is no dict key") from None
            if not isinstance(name, str | int):
                raise self._error("a dict key is a quoted string or a whole number")
            if name in result:
                raise self._error(f"the dict key {key.text} stands there twice")
            self._advance()
            self._expect(":", "after the dict key")
            result[name] = self._value()
            if not self._accepts(","):
                self._expect("}", "at the end of the dict")
                break
        return result


def _examples() -> str:
    return "f32[8,128], i32[], key, 0.5 or {'w': f32[3,4]}"
