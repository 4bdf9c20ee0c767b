"""The head of a written function: its docstring with types, its annotations, and the comments beside its statements."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import untrace
from untrace.python.types import array_type, docstring, tree_type, tuple_type

pytestmark = pytest.mark.usefixtures("as_given")

NEEDS_JAXTYPING = pytest.mark.skipif(
    importlib.util.find_spec("jaxtyping") is None, reason="jaxtyping is not installed (the extra `test` has it)"
)


class State(NamedTuple):
    count: Any
    mean: Any


def described(example: Any, names: tuple[str, ...] = ()) -> Any:
    avals = [jax.core.ShapedArray(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(example)]
    return tree_type(example, avals, names)


# ------------------------------------------------------------------ types in words


def test_a_type_reads_like_the_value() -> None:
    w, b = jnp.zeros((4, 5)), jnp.zeros(5)
    assert described({"w": w, "b": [b, None, ()]}).short() == '{"b": [f32[5], None, ()], "w": f32[4,5]}'
    assert described((w,)).short() == "(f32[4,5],)"
    assert described(State(1, (w, w))).short() == "State(count=i32[], mean=(f32[4,5], f32[4,5]))"
    assert described((w, b), ("w", "b")).short() == "(w: f32[4,5], b: f32[5])"


def test_what_is_long_is_said_in_short() -> None:
    layer = {"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)}
    assert described([layer] * 12).short() == '[{"b": f32[4], "w": f32[4,4]}] * 12'
    deep = {f"layer_{i}": layer for i in range(4)}
    assert described(deep).short() == '{"layer_0": {...}, "layer_1": {...}, "layer_2": {...}, "layer_3": {...}}'
    wide = {f"layer_{i}": layer for i in range(30)}
    assert described(wide).short() == "a dict of 60 arrays"


def test_a_result_like_an_argument_says_so() -> None:
    params, x = described({"w": jnp.zeros(3), "b": jnp.zeros(())}), described(jnp.zeros(3))
    arguments = [("params", params), ("x", x)]
    assert docstring(arguments, params, "the gradient") == (
        'Args: params: {"b": f32[], "w": f32[3]}; x: f32[3].  Returns: the gradient, like params.'
    )
    assert docstring(arguments, tuple_type([params, x])).endswith("Returns: (like params, f32[3]).")
    # An array is no shorter by the name of another one.
    assert docstring(arguments, x, "the gradient").endswith("Returns: f32[3].")


def test_a_docstring_of_many_arguments_takes_lines_and_of_too_many_is_left_out() -> None:
    some = [(f"argument_{i}", array_type(jax.core.ShapedArray((i, i), jnp.float32))) for i in range(8)]
    lines = docstring(some, some[0][1]).split("\n")
    assert len(lines) == 4 and lines[-1] == "Returns: f32[0,0]." and max(map(len, lines)) <= 84
    many = [(f"argument_{i}", array_type(jax.core.ShapedArray((i, i), jnp.float32))) for i in range(40)]
    assert docstring(many, many[0][1]) == ""
    alike = [(f"x_{i}", array_type(jax.core.ShapedArray((2,), jnp.float32))) for i in range(3)]
    assert docstring(alike, alike[0][1]) == "Args: x_0, x_1, x_2: f32[2].  Returns: f32[2]."


def test_types_of_two_calls_merge_where_only_sizes_differ() -> None:
    left, right = described({"w": jnp.zeros((4, 8))}), described({"w": jnp.zeros((4, 9))})
    merged = left.merged(right)
    assert merged is not None and merged.short() == '{"w": f32[4,_]}'
    assert left.merged(described({"w": jnp.zeros(4)})) is None
    assert left.merged(described({"w": jnp.zeros((4, 8), jnp.int32)})) is None
    assert left.merged(described([jnp.zeros((4, 8))])) is None


# ------------------------------------------------------------------ docstrings in the text


def layer(params: Any, x: Any) -> Any:
    hidden = x @ params["w"] + params["b"]
    return jnp.tanh(hidden) * jax.nn.sigmoid(hidden)


def network(params: Any, x: Any) -> Any:
    for part in params:
        x = layer(part, x)
    return x


def weights(*sizes: int) -> list[dict[str, Any]]:
    return [{"w": jnp.ones((n, m)), "b": jnp.ones(m)} for n, m in zip(sizes, sizes[1:], strict=False)]


def test_the_functions_of_the_text_have_docstrings_with_types() -> None:
    d = untrace.decompile(network)(weights(3, 3, 3, 3), jnp.ones((2, 3)))
    assert d.proof.at_least("hlo")
    assert d.module.network.__doc__ == (
        'Args: params: [{"b": f32[3], "w": f32[3,3]}] * 3; x: f32[2,3].  Returns: f32[2,3].'
    )
    assert d.module.layer.__doc__ == 'Args: params: {"b": f32[3], "w": f32[3,3]}; x: f32[2,3].  Returns: f32[2,3].'


def test_a_function_of_several_types_claims_none_that_is_wrong() -> None:
    d = untrace.decompile(network)(weights(3, 4, 5), jnp.ones((2, 3)))
    assert d.source.count("def layer") == 1, d.source
    assert d.module.layer.__doc__ == 'Args: params: {"b": f32[_], "w": f32[_,_]}; x: f32[2,_].  Returns: f32[2,_].'


def test_the_gradient_is_like_its_argument() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(layer(params, x))

    d = untrace.decompile(jax.grad(loss))(weights(3, 4)[0], jnp.ones((2, 3)))
    assert d.module.grad_loss.__doc__ == (
        'Args: params: {"b": f32[4], "w": f32[3,4]}; x: f32[2,3].  Returns: the gradient, like params.'
    )


def test_a_hostile_key_stays_inside_the_docstring() -> None:
    key = '"""\nimport os\nos.abort()\n"""\\'
    d = untrace.decompile(lambda tree: tree[key] * 2.0)({key: jnp.ones(2)})
    assert "import os" not in [line.strip() for line in d.source.split("\n")]
    assert "import os" in inspect.getdoc(getattr(d.module, d.name))
    assert jnp.array_equal(d({key: jnp.ones(2)}), 2 * jnp.ones(2))


def test_exact_style_and_no_comments_have_no_docstrings() -> None:
    args = (weights(3, 3), jnp.ones((2, 3)))
    for options in ({"style": "exact"}, {"comments": "none"}):
        d = untrace.decompile(network, **options)(*args)
        assert getattr(d.module, d.name).__doc__ is None


# ------------------------------------------------------------------ annotations


def rollout(params: Any, xs: Any, key: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = layer(params, h) + x * 0.5
        return h, h.sum()

    h, totals = lax.scan(step, jnp.zeros(3) + jax.random.normal(key, (3,)), xs)
    return {"h": h, "totals": totals}, xs.astype(jnp.int32)


ROLLOUT = (weights(3, 3)[0], jnp.ones((5, 3)), jax.random.key(0))


@NEEDS_JAXTYPING
@pytest.mark.parametrize("style", ["idiomatic", "exact"])
def test_annotations_hold_when_the_text_runs(style: str, tmp_path: Any) -> None:
    import jaxtyping

    d = untrace.decompile(rollout, style=style, annotations="jaxtyping")(*ROLLOUT)
    assert d.proof.at_least("hlo")
    if style == "idiomatic":
        assert 'xs: Float[Array, "5 3"]' in d.source and 'key: Key[Array, ""]' in d.source
        assert 'PyTree[Float[Array, "..."]], Int[Array, "5 3"]' in d.source
        assert 'h: Float[Array, "3"]' in d.source  # a function inside the function
    path = tmp_path / "annotated.py"
    d.save(path)
    spec = importlib.util.spec_from_file_location("annotated", path)
    assert spec is not None and spec.loader is not None
    with jaxtyping.install_import_hook("annotated", "untrace_checker.typechecked"):
        sys.modules["untrace_checker"] = _checker()
        try:
            spec = importlib.util.spec_from_file_location("annotated", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            del sys.modules["untrace_checker"]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, module.rollout(*ROLLOUT), rollout(*ROLLOUT)))
    with pytest.raises(TypeError):
        checked(module.rollout)(ROLLOUT[0], jnp.ones((5, 4)), ROLLOUT[2])


def checked(function: Any) -> Any:
    """`function`, whose array arguments and result are compared with their annotations by jaxtyping."""
    import functools

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            _check(value, signature.parameters[name].annotation)
        result = function(*args, **kwargs)
        _check(result, signature.return_annotation)
        return result

    return call


def _check(value: Any, annotation: Any) -> None:
    if annotation is inspect.Signature.empty:
        return
    if getattr(annotation, "__origin__", None) is tuple:
        for part, expected in zip(value, annotation.__args__, strict=True):
            _check(part, expected)
    elif annotation is not None and not isinstance(value, annotation):
        raise TypeError(f"{value} is no {annotation}")


def _checker() -> Any:
    import types

    module = types.ModuleType("untrace_checker")
    module.typechecked = checked  # type: ignore[attr-defined]
    return module


@NEEDS_JAXTYPING
def test_axes_keep_the_authors_names() -> None:
    from jaxtyping import Array, Float

    def project(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    # Annotations in this file would be text, of names inside this function: these are what they stand for.
    project.__annotations__ = {
        "x": Float[Array, "batch features"], "w": Float[Array, "features 4"], "return": Float[Array, "batch 4"],
    }  # fmt: skip
    d = untrace.decompile(project, annotations="jaxtyping")(jnp.ones((8, 3)), jnp.ones((3, 4)))
    head = 'def project(\n    x: Float[Array, "batch features"], w: Float[Array, "features 4"]\n'
    assert head + ') -> Float[Array, "batch 4"]:' in d.source
    # An expression would be evaluated by jaxtyping; of a batched function the names do not fit.
    project.__annotations__["x"] = Float[Array, "batch 1+2"]
    d = untrace.decompile(project, annotations="jaxtyping")(jnp.ones((8, 3)), jnp.ones((3, 4)))
    assert 'x: Float[Array, "8 3"]' in d.source and "1+2" not in d.source
    d = untrace.decompile(jax.vmap(project, (0, None)), annotations="jaxtyping")(jnp.ones((2, 8, 3)), jnp.ones((3, 4)))
    assert 'x: Float[Array, "2 8 3"]' in d.source


@NEEDS_JAXTYPING
def test_names_of_the_program_do_not_hide_the_annotations() -> None:
    def Float(x: Any) -> Any:
        y = jnp.sin(x)
        return y * y + x

    def program(Array: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            PyTree = jnp.cos(h)
            return PyTree * x, PyTree

        return lax.scan(step, Float(Array) + Float(x[0]), x)

    d = untrace.decompile(program, annotations="jaxtyping")(jnp.ones(3), jnp.ones((4, 3)))
    assert d.proof.at_least("hlo") and 'Array: Float[Array, "3"]' in d.source
    assert jnp.array_equal(d(jnp.ones(3), jnp.ones((4, 3)))[1], program(jnp.ones(3), jnp.ones((4, 3)))[1])


def test_without_the_option_nothing_is_annotated_and_jaxtyping_is_not_needed() -> None:
    d = untrace.decompile(rollout)(*ROLLOUT)
    assert "jaxtyping" not in d.source and "->" not in d.source
    with pytest.raises(untrace.OptionError, match="annotations='mypy' is not known"):
        untrace.decompile(rollout, annotations="mypy")


@NEEDS_JAXTYPING
def test_the_command_line_annotates(tmp_path: Any) -> None:
    (tmp_path / "model.py").write_text("import jax.numpy as jnp\n\ndef f(x):\n    return jnp.sin(x) * 2.0\n")
    command = [sys.executable, "-m", "untrace", "show", "model.py:f", "f32[3,4]"]
    command += ["--no-guard", "--sizes", "fixed", "--annotations", "jaxtyping"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'def f(x: Float[Array, "3 4"]) -> Float[Array, "3 4"]:' in done.stdout
    done = subprocess.run([*command[:-2], "--comments", "none"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Args:" not in done.stdout


# ------------------------------------------------------------------ comments


def softcap(logits: Any, cap: float) -> Any:
    scaled = logits / cap
    return cap * jnp.tanh(scaled)


def capped_loss(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w"])
    centered = hidden - jnp.mean(hidden, axis=-1, keepdims=True) * 0.25
    capped = softcap(centered, 30.0)
    return jnp.sum(capped * hidden)


def commented(comments: str) -> str:
    return untrace.decompile(jax.grad(capped_loss), comments=comments)({"w": jnp.ones((3, 4))}, jnp.ones((2, 3))).source


def comment_of(source: str, start: str) -> str:
    """The comment of the statement that begins so: beside it, or on the line above."""
    lines = [line.strip() for line in source.split("\n")]
    place = next(i for i, line in enumerate(lines) if line.startswith(start))
    beside = lines[place].partition("  # ")[2]
    return beside or lines[place - 1].removeprefix("# ") * lines[place - 1].startswith("# ")


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_described.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_full_comments_say_type_and_place_of_every_statement() -> None:
    source = commented("full")
    for start in ("hidden = ", "centered = "):
        assert comment_of(source, start) == f"f32[2,4]  {line_of(capped_loss, start)}", f"{start}\n{source}"
    # A statement of the backward pass says the line that it is the derivative of, and whose it is.
    backward = source[source.index("# backward") :]
    assert f"# f32[2,4]  {line_of(softcap, 'tanh')}, softcap\n" in backward, source
    body = source[source.index("# forward") :].split("\n")
    assert max(map(len, body)) <= 88, "no comment makes a line that a formatter would break"


def test_some_comments_say_the_primal_line_of_the_backward_pass_only() -> None:
    source = commented("some")
    forward, backward = source[source.index("# forward") :].split("# backward")
    assert "test_described.py" not in forward and "test_described.py:" in backward
    assert '"""Args: params:' in source


def test_no_comments_leave_the_sections_and_nothing_else() -> None:
    source = commented("none")
    comments = [line.strip() for line in source.split("\n") if "#" in line]
    backward = "# backward, written out: an edit above does not change it"
    assert comments == ["# forward", backward] and "Args:" not in source


def test_comments_change_nothing_else() -> None:
    import ast

    def without(source: str) -> str:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node) is not None:
                del node.body[0]
        return ast.unparse(tree)

    assert without(commented("full")) == without(commented("some")) == without(commented("none"))


def test_a_comment_says_no_type_of_another_result() -> None:
    def last(xs: Any) -> Any:
        _, totals = lax.scan(lambda h, x: (h + x, (h * x, h.sum())), xs[0], xs)
        return totals[0] * 2.0

    source = untrace.decompile(last, comments="full")(jnp.ones((5, 3))).source
    scan = next(line for line in source.split("\n") if "lax.scan" in line or "lax.map" in line)
    assert "f32" not in scan, source


def test_a_tuple_that_is_passed_on_is_called_a_tuple() -> None:
    """A function of the author's that gets a tuple as one argument: the ways to its leaves are those to a list's."""

    def residual(data, w):
        x, y = data
        return jnp.tanh(x @ w) - y

    def loss(w, data):
        return jnp.sum(residual(data, w) ** 2) + jnp.sum(jnp.abs(residual(data, 2.0 * w)))

    d = untrace.decompile(loss)(jnp.ones(3), (jnp.ones((4, 3)), jnp.ones(4)))
    assert '"""Args: data: (f32[4,3], f32[4]); w: f32[3].' in d.source


def test_two_trees_that_are_passed_whole_are_passed_as_such() -> None:
    """A network and its target: the function that is called with both takes a tree, not the parts of one."""

    def q_values(params, x):
        hidden = jnp.tanh(x @ params["dense"]["w"] + params["dense"]["b"])
        return hidden @ params["out"]["w"] + params["out"]["b"]

    def loss(params, target, x, y):
        return jnp.sum((q_values(params, x) - 0.9 * q_values(target, y)) ** 2)

    params = {"dense": {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}, "out": {"w": jnp.ones((4, 2)), "b": jnp.ones(2)}}
    d = untrace.decompile(loss)(params, params, jnp.ones((5, 3)), jnp.ones((5, 3)))
    assert "def q_values(params, x):" in d.source
    assert "q_values(target, y)" in d.source
