"""Kinds of nodes of Python's syntax trees."""

from __future__ import annotations

import ast

# Fields that hold statements: a statement is indexed without those inside it.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = frozenset((*DEFINITIONS, ast.Lambda, ast.ClassDef))
INLINE = frozenset((ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
# Operators and contexts are objects that `ast` shares; names and numbers compute nothing.
LEAVES = frozenset(
    v for v in vars(ast).values()
    if isinstance(v, type) and issubclass(v, (ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.type_ignore))
) | {ast.Name, ast.Constant, ast.arg, ast.alias}  # fmt: skip
