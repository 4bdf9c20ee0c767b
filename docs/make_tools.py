"""Writes docs/tools.md: what the tools show of a small program.

python docs/make_tools.py            writes it
python docs/make_tools.py --check    says whether it is up to date
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp

import untrace
from untrace.tools import dump as dumps
from untrace.tools.lint.rules.table import RULES

PAGE = Path(__file__).resolve().parent / "tools.md"

MODEL = """\
import jax
import jax.numpy as jnp
from jax import lax


def layer(params, x):
    hidden = jax.nn.relu(x @ params["w"] + params["b"])
    scale = jnp.sqrt(jnp.mean(hidden**2, axis=-1, keepdims=True))
    return hidden / scale


def loss(params, x, target):
    x = layer(params, x)

    def relax(state, _):
        state = state - 0.5 * jnp.sin(state)
        return state, jnp.abs(state).max()

    state, sizes = lax.scan(relax, x, length=4)
    return jnp.mean((state - target) ** 2) + sizes[-1]


def step(params, x, target):
    value, grads = jax.value_and_grad(loss)(params, x, target)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return value, new
"""

SHARP = """\
import jax.numpy as jnp


def rollout(x, weights, start):
    for i in range(12):
        x = jnp.tanh(x @ weights) + 0.1 * i
    first = x[jnp.arange(3)]
    y = jnp.sin(x)[: len(weights)]  # a slice may be as long as it likes
    return first, y[start], jnp.where(x > 0, 1.0, 0.0)
"""

# One sentence on each line, as in all documents.
# ruff: noqa: E501
TEXT = """\
# Tools

This page is written by `python docs/make_tools.py`; what it shows is what the tools print.

## `untrace.watch`: the values, statement by statement

```python
{model}```

`print(untrace.watch(step, turns=2)(params, x, target))`:

```
{watched}
```

Each line is a statement of the text that `untrace.decompile` writes, with the type of what it gives, the mean, the least and the largest of the finite numbers, a histogram from the one to the other, counts of what is worth a look (`0`, `-0`, `nan`, `+inf`, `-inf`, `subnormal`), and your own line.
Scalars stand in full.
A function that is called is one step further in; a loop shows its turns, from 0 on: of one with more than `turns=` (8) the first ones and the last one, or the turns that you name, `turns={{0, 500}}`.
Of a choice the branch that ran is there.
`∂ hidden` is the cotangent of `hidden`, of a derivative that the text calls; `d hidden` is a tangent of forward mode.
What `jax.checkpoint` computes once more says `(again)`, and what `jax.vmap` maps says which axis is the batch's.

Each operation is computed by itself, in the order of the program, so that the numbers are those of the operations.
A jitted run may round otherwise, for XLA fuses what stands side by side.

### What is asked of a run

```python
w = untrace.watch(step)(params, x, target)
w.result  # what step gives
w["hidden"]  # the last value, a NumPy array; w["layer.hidden"] of one function's
w.all("hidden")  # all its records, those of its cotangents too
w.records()  # every record: name, frames, turns, line, author, type, statistics, value
w.where_first_nonfinite()  # the record of the first NaN or infinity; None
w.json_lines()  # a line of JSON for each record
```

`only=` names what is recorded: a variable, a function, `layer.hidden`, a pattern (`layer*`), or `"first non-finite"`.
A NaN or an infinity in a turn that is not recorded is found all the same.

Memory is bounded: `keep=` is how many bytes of values are kept (64 MiB; statistics are always there), `records=` how many records (200,000; the first half and the last ones), and `to=` gets each record as it comes.
Where something is left out, a note says so.

### Two runs

`w.compare(other)` lays two runs beside each other, by names and turns: with other arguments, another dtype, another device or precision, or of an edited text.
It names the first statement that differs, in how many significant bits the two agree (-log2 of the largest deviation by the largest value), and what comes after it.
Here `params`, `x` and `target` are bfloat16 the second time; a statement differs there that agrees in fewer than the eight bits of bfloat16:

```
{compared}
```

`compare(other, bits=12)` asks for so many bits.
Two settings often do not fit one process: `w.save("run.npz")` and `untrace.load_run("run.npz")` take a run from one to the other.

### On the command line

```console
$ untrace watch model.py:step @model.py:make_args
$ untrace watch model.py:step @model.py:make_args --only "first non-finite" --json
$ untrace watch model.py:step @model.py:make_args --save before.npz
$ untrace watch model.py:step @model.py:make_args --compare before.npz
```

The last one says where the run differs and exits with 1 if it does.
Of arguments that are types (`f32[8,128]`) the values are drawn, with `--seed`.

## `untrace.stages`: one function through every stage

`untrace.stages(jax.grad(loss))(params, x, target).save("page.html")` writes a page that opens from a disk, without a network: your source, the jaxpr and the written text of `loss`, those of `jax.grad(loss)`, StableHLO and the HLO that XLA makes of it, side by side.
Of `jax.jit(jax.vmap(jax.grad(f)))` there are the stages after each of the three, in your order; one that changes nothing is hidden.
[stages_gpt.html](stages_gpt.html) is the page of the gradient of the GPT that `untrace demo` shows:

![The gradient of a GPT: source, jaxpr, written text and optimised HLO. One line is pinned, and what it computes is marked in every pane.](stages_light.png)

Point at a line, and what it computes is marked everywhere, forward and backward; lightly marked is what leads there: calls, loops, the heads of functions.
A fused kernel points at all lines that are in it.
A click pins the line, takes the other panes there, and makes the address of the page a link to it.
Beside each line of Python stand its equations and its flops, and with `values=True` what a run gave there.
The bars of one colour are one line of yours; `/` searches, `f` folds, `t` is the theme, `?` shows all keys.

How the lines are linked: each equation of the program is lowered inside a scope with its number, which JAX writes beside every operation and XLA hands on through all its passes.
The written text is linked by the places that its own equations came from.
So a line without a link computes nothing, or was simplified or merged away; `python bench/stages.py` counts both.

`print` shows the same in a terminal, by the lines of your source; here is `layer` (without HLO, which is long):

```
{staged}
```

`s["hlo"]` is one of the stages, with the numbers of equations of each line, `s.computations` are the equations, and `s.linked("source", 8, "hlo")` are the lines of another stage that belong to a line.

```console
$ untrace stages model.py:loss @model.py:make_args --grad -o page.html
```

## `untrace.lint`: JAX's sharp bits

```python
{sharp}```

`print(untrace.lint(rollout)(x, weights, 9))`:

```
{linted}
```

A finding is one line of yours, what happens there, what it costs (equations, bytes, turns of a loop, floating point operations, programs that are compiled), and what to write instead.
Libraries' own lines are not named, and where nothing is certain nothing is said: small arrays, short loops, `x[0]`, a `while_loop` that data ends.

| rule | finds |
|---|---|
{rules}

The function is traced, twice, and not compiled.
Where the arguments have values, what its indices depend on is run with them, up to a limit, and a note says what was left out; of `jax.ShapeDtypeStruct`s the indices are looked at that the program itself knows.
Of a derivative (`untrace.lint(jax.grad(loss))(x)`) the whole program is looked at, the backward pass too: `idle-checkpoint` needs it.
`static_argnums=` and `static_argnames=` are those of `jax.jit`, `rules=` names the rules that are looked for.

`# untrace: ignore[gather-slice]` on the line silences a rule there, with commas several, and `# untrace: ignore` all of them.

```python
found = untrace.lint(rollout)(x, weights, 9)  # a sequence, empty where nothing is found
found[0].rule, found[0].file, found[0].line, found[0].source
found[0].message, found[0].cost, found[0].change
found.to_json()
```

On the command line the exit code is 1 where there is a finding, else 0:

```console
$ untrace lint model.py:step @model.py:make_args
$ untrace lint model.py:step "f32[8,128]" --static train=True --json
```

## `untrace.minimize`: the smallest case of a fault

With `0 * x` the same step gives NaNs. `untrace.minimize(step, untrace.nonfinite(), path="least.py")(params, 0 * x, target)` takes equations out of the program, opens calls and the bodies of loops, shortens loops and makes arrays and numbers simpler, as long as the fault stays the same.
Of {before} equations {now} is left, and `least.py`, which needs nothing but JAX and NumPy, shows the fault by itself (its head says which versions):

```python
{least}```

What an equation that was taken out had computed is an argument, with the value that it had; simpler ones are tried after that.
The best program so far is always in the file, and Ctrl-C ends the search with it.

| predicate | holds where the program |
|---|---|
| `untrace.nonfinite()`, `nonfinite("nan")` | gives a NaN or an infinity, and takes none |
| `untrace.crashes()` | raises, with the same exception and message but for numbers and names, or ends its process, by the same signal |
| `untrace.hangs(20)` | gives nothing in so many seconds |
| `untrace.differs("jit", "eager")` | gives something else, by 0.001 of the largest number, when it is run in two ways: jitted, operation by operation, with settings of `jax.config` (`{{"jax_default_matmul_precision": "highest"}}`), by another Python with another JAX (its path) |
| `untrace.compiles_slower_than(5)` | is compiled for longer than so many seconds |
| a function of `(fn, args)`, or `"file.py:name"` | makes that return true |

Each candidate runs in a process of its own, with a limit (`seconds=`), which is replaced when it has crashed or hangs; `repeats=` runs it more than once, for faults that come and go; `budget=` is the time for all.

```console
$ untrace minimize model.py:step @model.py:make_args --fault nonfinite -o least.py
```

## `untrace dump`: all of it as files

```console
$ untrace dump dumped model.py:step @model.py:make_args
```

| file | what it is |
|---|---|
{files}

`{index}` lists them, with what was proven of each text.
What cannot be made stands there with the reason, and stops no other file.
The same program gives the same bytes, in every process: two dumps are compared with `diff -r`.

The folder is made where there is none.
Files that an earlier dump wrote are replaced; where there are others, or you have changed some, the dump is refused, and `--overwrite` replaces those of the same names.
The command ends with 3 where the program could not be written at all.

## In a notebook

As the last line of a cell, a `Decompiled` shows its highlighted source and what was proven, a run of `watch` tables of its statements in functions and turns that fold, a `Diagnosis` the findings, the errors by ranges, the lines that go wrong and the repaired source, and what `minimize` found its program.
It is HTML without scripts, light or dark as your system is.

## Breakpoints

A written module is ordinary Python, and its statements are those of the program: a debugger stops in them.

```console
$ python -m pdb train.py
(Pdb) b grad_loss.py:18
(Pdb) c
> grad_loss.py(18)layer()
(Pdb) p hidden
```

Called as it is, an entry runs each operation when its line is reached, and names have values.
Under `jax.vmap`, `jax.grad` and `jax.jit`, and in the bodies of loops, it stops while JAX traces: names have shapes and types there, and `jax.debug.print` or `untrace.watch` shows the values.
"""


def module(folder: str, name: str, text: str) -> ModuleType:
    """A program as a module of its own, in a file."""
    path = Path(folder) / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        step = module(folder, "model", MODEL).step
        grid = jnp.linspace(-1.0, 1.0, 12)
        args = (
            {"w": jnp.sin(9 * grid).reshape(4, 3), "b": jnp.zeros(3)},
            jnp.cos(7 * grid).reshape(3, 4),
            grid[:9].reshape(3, 3),
        )
        watched = untrace.watch(step, turns=2)(*args)
        half = untrace.watch(step, turns=2)(*halved(args))
        compared = "\n".join(watched.compare(half).lines(most=8))
        params, x, target = args
        stages = untrace.stages(module(folder, "model", MODEL).layer)(params, x)
        staged = str(replace(stages, stages=stages.stages[:-1]))
        found = untrace.minimize(step, untrace.nonfinite())(params, 0 * x, target)
        now, before = found.equations
        linted = untrace.lint(module(folder, "sharp", SHARP).rollout)(jnp.ones(4), jnp.eye(4), 9)
        rules = "\n".join(f"| `{rule.name}` | {rule.finds} |" for rule in RULES)
        least = found.source.partition('"""\n\n')[2]
        files = "\n".join(f"| `{part.path}` | {part.what} |" for part in dumps.PARTS)
        return TEXT.format(
            model=MODEL,
            watched="\n".join(watched.lines()),
            compared=compared,
            now=now,
            before=before,
            least=least,
            files=files,
            index=dumps.INDEX,
            sharp=SHARP,
            linted=linted,
            rules=rules,
            staged=staged,
        )


def halved(args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments as bfloat16."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), args)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        is_same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("docs/tools.md is up to date" if is_same else "docs/tools.md is another: python docs/make_tools.py")
        return not is_same
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
