"""A PyTorch module and its inputs as a JAX function, with a mark on every equation that says which module call made it.

The mark is a name scope: JAX keeps the stack of scopes with each equation, so the program itself stays flat, and state
that modules hand to each other in Python (caches, lists) needs no care.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import jax

from untrace import jax_compat
from untrace._errors import CaptureError, UntraceError
from untrace._identity import IdentityMap
from untrace.torch import randomness, trees
from untrace.torch import state as states
from untrace.torch.arguments import Arguments, Mutated
from untrace.torch.bridge import array_of, author_place, element, torchax
from untrace.torch.environment import environment
from untrace.torch.functions import function_name, with_derivatives
from untrace.torch.ops.parts import RUNNER, Part

_SCOPE = "untrace_module_"

Path = tuple[int | str, ...]


@dataclass(slots=True)
class ModuleCall:
    """One call of a module while it was traced. `path`: its name in the model, as `named_modules` has it."""

    number: int
    module: Any
    path: tuple[str, ...]
    arguments: tuple[tuple[str, Any], ...]  # (the author's parameter, the variable of the jaxpr that it got)
    results: tuple[tuple[Path, Any], ...] = ()  # (where in what it returned, the variable there)

    @property
    def kind(self) -> Any:
        """The module's class; of a part of a layer its function."""
        return self.module.function if type(self.module) is Part else type(self.module)

    @property
    def code(self) -> CodeType | None:
        """The code of its `forward`, below decorators."""
        function = inspect.unwrap(self.kind if type(self.module) is Part else self.kind.forward)
        return getattr(function, "__code__", None)


@dataclass(slots=True)
class Capture:
    """A module as a JAX function of `(params, buffers, key, *inputs)`, each of the first three where it needs it.

    `function`, `args`: for tracing. `calls`: every module call, by number. `inputs`: the names of the other arguments.
    `changed`: names of buffers that come back new, beside the result. `kept`: arguments that are changed in place (a cache,
    a list) and are no part of the result, which they come back behind. `apart`: whether a tensor that a module gets
    twice is two arguments.
    """

    module: Any
    state: states.State
    function: Any = None
    args: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    calls: list[ModuleCall] = field(default_factory=list)
    running: list[tuple[str, ...]] = field(default_factory=list)  # paths of the modules that run, outermost first
    arguments: Arguments = field(default_factory=Arguments)
    apart: bool = True
    changed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    random: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)


def check_module(module: Any) -> None:
    """Raises OptionError where the extra is missing, CaptureError for what is no module."""
    torchax()  # says what to install where it is missing
    import torch

    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"from_torch needs a torch.nn.Module, not a {type(module).__name__}.")


def capture(module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Capture:
    """Runs `module(*args, **kwargs)` once abstractly, to learn what it reads and changes. Raises CaptureError."""
    check_module(module)
    found = Capture(module, states.read_state(module))
    given = _bound(module, args, kwargs)
    dynamic = {n: v for n, v in given if trees.has_tensor(v)}
    found.inputs = tuple(dynamic)
    found.fixed = {n: v for n, v in given if n not in dynamic}
    values = [trees.plain(v, _array) for v in dynamic.values()]
    runner = _Runner(found, args, kwargs, dict(given))
    key = jax.random.key(0)
    given_to_all = (found.state.params, found.state.buffers, key, *values)
    try:
        _explained(module, lambda: jax.eval_shape(runner.everything, *given_to_all))
    except Mutated:
        found.apart = False
        _explained(module, lambda: jax.eval_shape(runner.everything, *given_to_all))
    found.random, found.changed = runner.random, runner.changed
    used = runner.used_buffers
    buffers = {}
    for name in states.flat_names(found.state.buffers):
        if name in used and (name not in found.state.unsaved or name in found.changed):
            states.insert(buffers, tuple(name.split(".")), states.lookup(found.state.buffers, name))
    leading: list[tuple[str, Any]] = [("params", found.state.params)]
    if buffers:
        leading.append(("buffers", buffers))
    if found.random:
        leading.append(("key", key))
    taken = {n for n, _ in leading}
    own = [n if n not in taken else n + "_in" for n in found.inputs]
    found.names = (*[n for n, _ in leading], *own)
    found.args = (*[v for _, v in leading], *values)
    found.function = runner.function(found.names)
    return found


def _changed_arguments(built: Mapping[str, tuple[Any, list[Any]]], out: Any) -> tuple[str, ...]:
    """The names of arguments with other tensors than before the call, which the result does not have."""
    found = []
    for name, (value, before) in built.items():
        after = trees.tensors_of(value)
        same = len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))
        if not same and not trees.is_in(value, out):
            found.append(name)
    return tuple(found)


def with_kept(capture: Capture, out: Any, built: Mapping[str, tuple[Any, Any]]) -> Any:
    """What a module returned with what it changed behind it."""
    return (out, *[built[n][0] for n in capture.kept]) if capture.kept else out


def call(capture: Capture, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a module of PyTorch returns for these arguments, with those that it changes in place behind it."""
    given = {n: (v, None) for n, v in _bound(module, args, dict(kwargs))} if capture.kept else {}
    return with_kept(capture, module(*args, **kwargs), given)


def draws_of(found: Capture) -> list[randomness.Draw]:
    """The random numbers that the module draws on its example, run on JAX arrays one operation after the other."""
    calls, arguments = list(found.calls), found.arguments
    try:
        with randomness.recorded() as drawn:
            found.function(*found.args)
    finally:
        found.calls[:], found.arguments = calls, arguments
    return drawn


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else array_of(value)


def _bound(module: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """(name of the parameter of `forward`, what is passed for it)."""
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(f"{type(module).__name__} cannot be called with these arguments: {error}.") from error
    except ValueError:
        return [*[(f"x{i}", a) for i, a in enumerate(args)], *kwargs.items()]
    found: list[tuple[str, Any]] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found += [(f"{name}_{i}", v) for i, v in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found += list(value.items())
        else:
            found.append((name, value))
    return found


class _Runner:
    """Runs the module on JAX arrays."""

    def __init__(self, capture: Capture, args: Sequence[Any], kwargs: dict[str, Any], given: dict[str, Any]):
        self.capture = capture
        self.args, self.kwargs = args, kwargs
        self.random = False
        self.changed: tuple[str, ...] = ()
        self.used_buffers: set[str] = set()
        self.given = given

    def function(self, names: Sequence[str]) -> Any:
        """A function with parameters of these names, as `jax.make_jaxpr` and the signature's printer read them."""
        capture = self.capture
        places = {n: i for i, n in enumerate(names)}
        start = len(names) - len(capture.inputs)

        def call(*values: Any) -> Any:
            buffers = values[places["buffers"]] if "buffers" in places else {}
            key = values[places["key"]] if "key" in places else None
            return self.run(values[0], buffers, key, values[start:])

        call.__name__ = function_name(type(capture.module))
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        described: Any = call
        described.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        return call

    def everything(self, params: Any, buffers: Any, key: Any, *inputs: Any) -> Any:
        """For the first look: all buffers are inputs, and what happens to them is written down."""
        return self.run(params, buffers, key, inputs, look=True)

    def run(self, params: Any, buffers: Any, key: Any, inputs: Sequence[Any], look: bool = False) -> Any:
        import torch

        capture, state = self.capture, self.capture.state
        with jax.ensure_compile_time_eval():  # torchax makes a thread's first key when it is asked for
            env = environment()
            env.param  # noqa: B018
        self.capture.calls.clear()
        self.capture.running.clear()
        self.capture.arguments = Arguments()
        wraps: dict[str, Any] = {}
        for slots in state.slots:
            try:
                array = states.lookup(params if state.kinds[slots.name] == "params" else buffers, slots.name)
            except KeyError:  # a buffer that does not change, or is not needed: a constant, still PyTorch's
                array = array_of(states.current(state, slots))
            wraps[slots.name] = env.tensor(array)
        before = {name: t._elem for name, t in wraps.items()}
        values = dict(zip(capture.inputs, inputs, strict=True))
        args, kwargs = self._arguments(values, env.tensor)
        built = {n: (v, trees.tensors_of(v)) for n, v in _bound(capture.module, args, kwargs)}
        first_key = key if key is not None else jax.random.key(0)
        env._property.content.autocast_dtype = None
        with states.replaced(capture.module, state, wraps), env.override_property(prng=first_key):
            with (
                _marked(capture),
                _unchecked_distributions(),
                _masks_not_compared(),
                with_derivatives(),
                torch.enable_grad(),
                env,
            ):  # a `torch.no_grad` inside is the author's
                out = capture.module(*args, **kwargs)
            self.random = env.param.prng is not first_key
            after = {s.name: states.current(state, s) for s in state.slots}
        if look:
            capture.kept = _changed_arguments(built, out)
        out = with_kept(capture, out, built)
        result = trees.plain(out, lambda t: env.t2j_iso(t) if isinstance(t, torch.Tensor) else t)
        new = {n: env.t2j_iso(t) for n, t in after.items() if isinstance(t, torch.Tensor)}
        buffers_out = {n: a for n, a in new.items() if a is not before[n]}
        if look:
            self.changed = tuple(n for n in buffers_out if state.kinds[n] == "buffers")
            self.used_buffers = {n for n, k in state.kinds.items() if k == "buffers"}
        if not self.changed:
            return result
        tree: dict[str, Any] = {}
        for name in states.flat_names(buffers):
            states.insert(tree, tuple(name.split(".")), new.get(name, before[name]))
        return result, tree

    def _arguments(self, values: dict[str, Any], wrap: Any) -> tuple[list[Any], dict[str, Any]]:
        """The call's arguments with the arrays of `values` in the places of tensors."""
        names = IdentityMap((v, n) for n, v in self.given.items())

        def one(value: Any) -> Any:
            name = names.get(value)
            if name in values:
                return trees.rebuilt(value, values[name], wrap)
            # A cache that is still empty is filled.
            return copy.deepcopy(value) if trees.cache_layers(value) is not None else value

        return [one(a) for a in self.args], {k: one(v) for k, v in self.kwargs.items()}


@contextlib.contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """torch.distributions looks at the values of its parameters, which are not known here."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextlib.contextmanager
def _masks_not_compared() -> Iterator[None]:
    """nn.Transformer looks whether the values of a mask are causal, for a hint: its attention has the mask as well."""
    from torch.nn.modules import transformer

    before = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


@contextlib.contextmanager
def _marked(capture: Capture) -> Iterator[None]:
    """Every module's `forward` in a name scope of its own, numbered by call."""
    paths: IdentityMap[Any, tuple[str, ...]] = IdentityMap()
    modules = []
    for name, module in capture.module.named_modules():
        paths[module] = tuple(name.split(".")) if name else ()
        modules.append(module)

    def marked(module: Any, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = len(capture.calls)
            made = ModuleCall(number, module, paths[module], _given(forward, args, kwargs))
            capture.calls.append(made)
            new: list[Any] = []
            if capture.apart and number:
                args, kwargs, new = capture.arguments.apart(number, forward, args, kwargs)
            capture.running.append(made.path)
            with jax.named_scope(f"{_SCOPE}{number}"):
                out = forward(*args, **kwargs)
            capture.running.pop()
            capture.arguments.check(new)
            made.results = tuple(_variables((), out))
            return out

        return call

    for module in modules:
        if "forward" not in module.__dict__:
            module.__dict__["forward"] = marked(module, module.forward)
    token = RUNNER.set(functools.partial(within_part, capture))
    try:
        yield  # `replaced` puts the modules back as they were
    finally:
        RUNNER.reset(token)


def within_part(capture: Capture, part: Part, args: Any, kwargs: Any) -> Any:
    """Runs a part of a layer, as one call in the tree of calls of a module that is being captured."""
    made = ModuleCall(len(capture.calls), part, capture.running[-1], _given(part.function, args, kwargs))
    capture.calls.append(made)
    with jax.named_scope(f"{_SCOPE}{made.number}"):
        out = part.function(*args, **kwargs)
    made.results = tuple(_variables((), out))
    return out


def _given(forward: Any, args: Any, kwargs: Any) -> tuple[tuple[str, Any], ...]:
    """(parameter of `forward`, variable of the jaxpr) of each tensor that a module is called with."""
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return ()
    found: list[tuple[str, Any]] = []
    for name, value in bound.arguments.items():
        for path, var in _variables((), value):
            words = [p for p in path if isinstance(p, str)][-1:] or [name]
            found.append(("_".join([*words, *[str(p) for p in path if isinstance(p, int)]]), var))
    return tuple(found)


def _variables(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """(where, variable of the jaxpr) of each tensor in arguments or results."""
    if isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _variables((*path, i), item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _variables((*path, str(key)), item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field_ in dataclasses.fields(value):
            yield from _variables((*path, field_.name), getattr(value, field_.name, None))
    else:
        var = jax_compat.tracer_variable(element(value))
        if var is not None:
            yield path, var


def call_numbers(scopes: Sequence[str]) -> list[int]:
    """The module calls around an equation, outermost first, from its name scopes."""
    return [int(s[len(_SCOPE) :]) for s in scopes if s.startswith(_SCOPE)]


def _explained(module: Any, work: Any) -> Any:
    """`work()`, with what a module raises under JAX explained."""
    try:
        return work()
    except (UntraceError, Mutated):
        raise
    except Exception as error:  # whatever the user's module raises while it is traced
        name = type(module).__name__
        place, statement = author_place(error)
        where = f" at {place}: `{statement}`" if place else ""
        hint = ""
        if isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)):
            hint = (
                " A Python decision there depends on the values of a tensor, which JAX does not know while it traces."
            )
        raise CaptureError(
            f"{name} could not be run on JAX arrays{where}.{hint}\nThe error was ({type(error).__name__}): {error}"
        ) from error
