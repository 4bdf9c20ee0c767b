"""What trees have in common (`python/anti_unify.py`), and when definitions say the same (`module/merge/`)."""

from __future__ import annotations

import pytest

from untrace.module.def_use import bound_names
from untrace.module.merge.alpha_equivalent import say_the_same
from untrace.module.merge.parametric import Alike, calls_of
from untrace.python.anti_unify import AntiUnifier, Different, get, places_of, put
from untrace.python.statements import Assign, Def, Parameter, Return
from untrace.python.tree import Attribute, Binary, Call, Expr, Lambda, Name, Text, Tuple


def scaled(function: str, x: str, y: str, number: str, attribute: str = "T") -> Def:
    """`def f(x): y = jnp.sum(x.T, axis=0) * 2.0; return y`."""
    total = Call("jnp.sum", [Attribute(Name(x), attribute)], [("axis", Text("0"))])
    return Def(function, [Parameter(x)], [Assign([y], Binary(total, "*", Text(number))), Return(Name(y))])


class Holes(AntiUnifier):
    """Whatever differs becomes a tuple of what there is."""

    def part(self, position, nodes):
        try:
            return self.common(nodes)
        except Different:
            return Tuple([n for n in nodes if isinstance(n, Expr)])


def test_what_is_the_same_stays_the_very_same():
    tree = Binary(Call("f", [Name("x")], [("axis", Text("0"))]), "+", Lambda(["a"], Name("a")))
    assert AntiUnifier().common([tree, tree]) is tree


def test_the_least_general_generalisation():
    trees = [Binary(Call("f", [Name("x"), Text(n)]), "+", Name("z")) for n in ("1", "2", "3")]
    made = Holes().common(trees)
    assert made.flat() == "f(x, (1, 2, 3)) + z"
    assert [t.flat() for t in trees] == ["f(x, 1) + z", "f(x, 2) + z", "f(x, 3) + z"]


@pytest.mark.parametrize(
    "other", [Call("g", [Name("x")]), Call("f", [Name("x"), Name("x")]), Name("f"), Call("f", [], [("x", Name("x"))])]
)
def test_words_lengths_and_kinds_that_differ(other):
    with pytest.raises(Different):
        AntiUnifier().common([Call("f", [Name("x")]), other])


def test_places():
    call = Call("f", [Name("x"), Tuple([Name("y")])], [("axis", Text("0"))])
    found = {get(p).flat(): p for p in places_of(call)}
    assert list(found) == ["x", "(y,)", "0"]
    put(found["0"], Name("axis"))
    put(found["x"], Text("1"))
    assert call.flat() == "f(1, (y,), axis=axis)"


def test_names_stand_for_each_other_by_where_they_are_met():
    assert say_the_same([scaled("f", "x", "y", "2.0")], [scaled("f_2", "a", "b", "2.0")])
    assert not say_the_same([scaled("f", "x", "y", "2.0")], [scaled("f_2", "a", "b", "3.0")])
    assert not say_the_same([scaled("f", "x", "y", "2.0")], [scaled("f_2", "a", "a", "2.0")])


def test_functions_of_two_names_stay_two():
    assert not say_the_same([scaled("encode", "x", "y", "2.0")], [scaled("decode", "x", "y", "2.0")])


def test_attributes_are_no_variables():
    assert say_the_same([scaled("f", "x", "T", "2.0")], [scaled("f_2", "a", "b", "2.0")])
    assert not say_the_same([scaled("f", "x", "T", "2.0", "T")], [scaled("f_2", "x", "b", "2.0", "b")])


def test_a_unit_calls_its_own_functions():
    def unit(name: str) -> list[Def | Assign]:
        inner = Def(name, [Parameter("x")], [Return(Name("x"))])
        return [inner, Assign([], Call(f"{name}.defvjp", [Name(name)]))]

    assert say_the_same(unit("f"), unit("f_2"))
    assert not say_the_same(unit("f"), [unit("f_2")[0], unit("f")[1]])


def test_numbers_that_differ():
    definitions = [scaled("f", "x", "y", "2.0"), scaled("g", "a", "b", "3.0"), scaled("h", "c", "d", "3.0")]
    found = Alike([set(bound_names(d)) for d in definitions], arrays=())
    made = found.definition(definitions)
    assert [(v.texts, v.keyword) for v in found.varying] == [(("0", "0", "0"), "axis"), (("2.0", "3.0", "3.0"), "")]
    assert made.name == "f" and "\n".join(made.lines("")) == "\n".join(definitions[0].lines(""))


def test_a_call_that_stands_in_two_places_is_one_call():
    call = Call("f", [Name("x")])
    calls: list[tuple[Call, int]] = []
    assert calls_of(Return(Tuple([call, call])), {"f": 0}, calls) and calls == [(call, 0)]
    assert not calls_of(Return(Name("f")), {"f": 0}, [])
