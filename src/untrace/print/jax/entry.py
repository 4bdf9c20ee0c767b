"""The entry function: the user's signature, arguments unpacked into leaves, the result rebuilt. (First form: flat.)"""
from __future__ import annotations
from typing import Any
import jax
from untrace.ir.nodes import Program
from untrace.print.names import identifier
from untrace.print.tree import *


class Signature:
    def __init__(self, args, kwargs, out): self.args, self.kwargs, self.out = args, kwargs, out
    def __iter__(self): return iter((self.args, self.kwargs, self.out))

def signature_of(fn, captured, args, kwargs): return Signature(captured.args, captured.kwargs, captured.out_example)
def flat_signature(captured): return Signature(captured.args, {}, captured.out_example)


def write_entry(module: Any, program: Program) -> tuple[str, list[Statement]]:
    name = module.scope.fresh(identifier(program.entry.name, "decompiled"))
    w = module.writer()
    sig = program.signature
    args, kwargs, out = sig
    params = []
    leaves = iter(program.entry.params)
    def unpack(expr, tree, hint):
        if isinstance(tree, dict):
            for k in sorted(tree): unpack(Subscript(expr, Text(repr(k))), tree[k], str(k))
        elif isinstance(tree, (tuple, list)):
            for i, t in enumerate(tree): unpack(Subscript(expr, Text(str(i))), t, f"{hint}_{i}")
        elif tree is None: pass
        elif jax.tree.structure(tree) == jax.tree.structure(0):
            v = next(leaves)
            if type(expr) is Name: w.names[v] = expr
            else: w.statements.append(Assign([w.bind_parameter(v, identifier(hint, "x")).id], expr))
        else:
            ls = jax.tree.leaves(tree)
            names = [w.bind_parameter(next(leaves), hint + "_leaf").id for _ in ls]
            w.statements.append(Unpack(names, Call("jax.tree.leaves", [expr]))); module.modules.add("jax")
    for i, a in enumerate(args):
        n = w.scope.fresh(f"arg{i}"); params.append(Parameter(n)); unpack(Name(n), a, n)
    for k in kwargs:
        n = w.scope.claim(k); params.append(Parameter(n, kind="keyword"))
    for k in sorted(kwargs): unpack(Name(k), kwargs[k], k)
    w.equations(program.entry.equations, program.entry.results)
    res = iter([w.atom(r) for r in program.entry.results])
    def rebuild(t):
        if isinstance(t, dict): 
            built = {k: rebuild(t[k]) for k in sorted(t)}
            return Dict([(Text(repr(k)), built[k]) for k in t])
        if isinstance(t, tuple) and not hasattr(t, '_fields'): return Tuple([rebuild(x) for x in t])
        if isinstance(t, list): return List([rebuild(x) for x in t])
        if t is None: return Text("None")
        if jax.tree.structure(t) == jax.tree.structure(0): return next(res)
        raise NotImplementedError(type(t))
    w.statements.append(Return(rebuild(out)))
    return name, [Def(name, params, w.statements)]
