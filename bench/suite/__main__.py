"""Lets JAX itself run every case of the suite, and counts what the cases reach.

    cd bench && python -m suite [--only REGEX] [--trace] [--verbose]

Each case is built, traced, jitted and run on CPU; its gradient and its batched form too where the
case allows them. Fails when a case fails, when a case claims a primitive that it does not reach, or
when a primitive that JAX's own corpus never reaches stands in fewer than three cases.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

NEEDED = 3


def primitive_names(jaxpr: Any) -> set[str]:
    """The names of the primitives in a jaxpr and in all jaxprs below it."""
    names: set[str] = set()
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        item = stack.pop()
        if isinstance(item, (tuple, list)):
            stack.extend(item)
            continue
        inner = getattr(item, "jaxpr", item)
        if not hasattr(inner, "eqns") or id(inner) in seen:
            continue
        seen.add(id(inner))
        for equation in inner.eqns:
            names.add(equation.primitive.name)
            stack.extend(equation.params.values())
    return names


def dynamic(case: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that are not static."""
    return tuple(arg for index, arg in enumerate(args) if index not in case.static_argnums)


def dynamic_keywords(case: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that are not static."""
    return {name: arg for name, arg in kwargs.items() if name not in case.static_argnames}


def check_case(case: Any, trace_only: bool) -> set[str]:
    """The primitives that a case reaches, once JAX has run all its forms. Raises what JAX raises,
    `AssertionError` where the case claims what is not so.
    """
    import jax

    from suite.derive import batch, batched, gradient

    context = jax.enable_x64(True) if case.x64 else contextlib.nullcontext()
    with context:
        fn, args = case.build()
        kwargs = dict(case.kwargs())
        forms = [("plain", fn, args, kwargs)]
        if case.grad:
            forms.append(("grad", gradient(fn), args, kwargs))
        if case.vmap:
            forms.append(("vmap", batched(fn), batch(args), batch(kwargs)))
        names: set[str] = set()
        for form, function, form_args, form_kwargs in forms:
            try:
                static = {
                    "static_argnums": case.static_argnums,
                    "static_argnames": case.static_argnames,
                }
                traced = jax.jit(function, **static).trace(*form_args, **form_kwargs)
                names |= primitive_names(traced.jaxpr)
                if case.lowers:
                    lowered = traced.lower()
                if case.runs and not trace_only:
                    compiled = lowered.compile()
                    out = compiled(*dynamic(case, form_args), **dynamic_keywords(case, form_kwargs))
                    jax.block_until_ready(out)
                    jax.effects_barrier()
            except Exception as error:
                error.add_note(f"in the form {form!r} of case {case.name!r}")
                raise
        missing = [name for name in case.primitives if name not in names]
        assert not missing, f"{case.name} does not reach {missing}, only {sorted(names)}"
    return names


def run(cases: list[Any], options: argparse.Namespace) -> tuple[dict[str, list[str]], list[str]]:
    """Primitive -> names of the cases that reach it, and the names of the cases that failed."""
    reached: dict[str, list[str]] = collections.defaultdict(list)
    failed = []
    for case in cases:
        start = time.perf_counter()
        try:
            with quiet():
                names = check_case(case, options.trace)
        except Exception as error:
            failed.append(case.name)
            notes = " ".join(getattr(error, "__notes__", [])[-1:])
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAIL {case.family}.{case.name}: {text[:400]} ({notes})")
            if options.verbose:
                traceback.print_exc(file=sys.stdout)
            continue
        for name in names:
            reached[name].append(case.name)
        if options.verbose:
            print(f"ok   {case.family}.{case.name} {time.perf_counter() - start:.2f} s")
    return reached, failed


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides what the cases print, and warnings."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def main() -> int:
    """Runs the check; 0 when all holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cases whose FAMILY.NAME matches this regex")
    parser.add_argument("--trace", action="store_true", help="trace and lower, do not run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    # Whether a program runs is the question here, not how fast: compile without optimisation.
    cheap = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{flags} {cheap} --xla_force_host_platform_device_count=4"
    import jax

    from suite import all_cases
    from suite.required import required_names

    everything = [case for case in all_cases() if case.applies(jax.__version__)]
    chosen = [case for case in everything if not options.only or re.search(options.only, f"{case.family}.{case.name}")]
    reached, failed = run(chosen, options)
    required = required_names()
    few = []
    print(f"\nJAX {jax.__version__}: {len(chosen)} cases, {len(reached)} primitives")
    for name, primitive in sorted(required.items()):
        count = len(reached.get(primitive, ()))
        if count < NEEDED:
            few.append(name)
        label = name if name == primitive else f"{name} ({primitive})"
        print(f"  {count:4d}  {label}{'  TOO FEW' if count < NEEDED else ''}")
    others = sorted(set(reached) - set(required.values()))
    print("others:", ", ".join(f"{name} {len(reached[name])}" for name in others))
    print(f"failed: {', '.join(failed) or 'none'}")
    if options.only:
        return bool(failed)
    print(f"reached fewer than {NEEDED} times: {', '.join(few) or 'none'}")
    return bool(failed or few)


if __name__ == "__main__":
    sys.exit(main())
