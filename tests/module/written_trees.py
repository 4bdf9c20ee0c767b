"""Trees as text: what the tests of pytrees share."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp

from untrace.module.interface.put_together import rebuild
from untrace.module.interface.signature import signature_parameters, unpack_arguments
from untrace.python import helpers
from untrace.python.names import Scope
from untrace.python.statements import Def, Return
from untrace.targets.base import TREE_CALLS

LEAF = jax.ShapeDtypeStruct((), jnp.float32)


class Written:
    """A module whose function returns its arguments' leaves, in turn, in the result's tree."""

    def __init__(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        out: Any = (),
        standalone: bool = False,
        needed: Any = None,
        static: tuple[Any, Any] = (frozenset(), frozenset()),
    ):
        scope = Scope()
        signature = signature_parameters(fn, args, kwargs or {}, *static)
        for parameter in signature.parameters:
            scope.claim_parameter(parameter.name)
        statements, leaves = unpack_arguments(signature.arguments, scope.fresh, TREE_CALLS, needed)
        count = len(jax.tree.leaves(out))
        results = [leaves[i % len(leaves)] for i in range(count)] if leaves else []
        name = scope.fresh("written")
        inputs = [(a.root, a.example) for a in signature.arguments]
        built = rebuild(out, results, inputs, standalone, scope.fresh, TREE_CALLS)
        modules = {"jax", *built.modules, *signature.modules}
        for helper in built.helpers:
            modules.update(helpers.modules(helper))
        spelled = {"jnp": "import jax.numpy as jnp", "np": "import numpy as np"}
        lines = [spelled.get(m, f"import {m}") for m in sorted(modules)] + sorted(built.imports)
        for helper in built.helpers:
            lines += ["", "", helpers.text(helper)]
        for definition in built.definitions:
            lines += ["", "", *definition.lines("")]
        inner = f"_{name}" if signature.public else name
        body = [*signature.checks, *statements, *built.statements, Return(built.value)]
        lines += ["", "", *Def(inner, signature.parameters, body).lines("")]
        forwarder = signature.forwarder(name, inner)
        lines += ["", "", *forwarder.lines("")] if forwarder else []
        self.text = "\n".join(lines) + "\n"
        self.body = [line.strip() for line in self.text.split(f"def {inner}(")[1].split("\n")[1:]]
        self.signature, self.notes, self.out = signature, (*signature.notes, *built.notes), out
        namespace: dict[str, Any] = {"__name__": "written_module"}
        exec(compile(self.text, "<written>", "exec"), namespace)
        self.function = namespace[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def imported(self) -> set[str]:
        found = set()
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.split(".")[0])
        return found
