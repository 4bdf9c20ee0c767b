"""Comparison of compiled programs: StableHLO as JAX lowers it, then what XLA makes of it.

Stripped before the texts are compared: source locations, names of modules and functions, labels of
arguments and results, how often a constant is named, and addresses of Python callbacks in this process.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import jax
import jax.extend.core

from untrace import jax_compat
from untrace._garbage import collect_young

_LOCATION = re.compile(r"\s*loc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()]|\([^()]*\))*\))*\)")
_LOCATION_LINE = re.compile(r"^#loc.*\n?", re.M)
_MODULE = re.compile(r'module @(?:"[^"]*"|[\w.$-]+)')
_LABEL = re.compile(r'jax\.(?:result_info|arg_info) = "(?:[^"\\]|\\.)*"(?:, )?')
_DEFINITION = re.compile(r'func\.func (?:public |private )?@("(?:[^"\\]|\\.)*"|[\w.$-]+)')
_SYMBOL = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)')
_ADDRESS = re.compile(r"\b\d{9,}\b")
METADATA = re.compile(r",? ?metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*\}")
_TABLES = re.compile(r"(?ms)^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n.*?(?:\n\n|\Z)")


# What XLA makes of the HLO is what is compared; how the machine code is made of that, and how hard LLVM works on it,
# is not. With these a compilation costs a quarter. Each line of JAX knows some of them: the others are left out.
_QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# The same of a compilation that is stopped before there is code. The verifier changes nothing, and copies are put in last of
# all: programs that are the same before are the same after. Both take a sixth of the time that is left.
_UNNEEDED = {"xla_disable_hlo_passes": "hlo-verifier,copy-insertion"}
# The modules of one comparison are told by their names from what else the process compiles.
_COUNT = itertools.count()
_NO_SUCH_OPTION = re.compile(r"No such compile option: '(\w+)'")


def same_stablehlo(f: Any, g: Any, args: Sequence[Any]) -> bool:
    """Whether `f(*args)` and `g(*args)` lower to the same StableHLO, names and locations aside.

    f, g: functions, here and below, or closed jaxprs, of which `args` are the flat arguments: arrays, pytrees of them, or
    ShapeDtypeStructs. False too when one cannot be lowered.
    """
    return stablehlo_difference(f, g, args) is None


def stablehlo_difference(f: Any, g: Any, args: Sequence[Any]) -> str | None:
    """The first line in which the StableHLO of two functions differs; None when it is the same."""
    try:
        left, right = (normalise_stablehlo(_lower(h, args).as_text()) for h in (f, g))
        difference = _first_difference(left, right)
        if difference is not None:
            alive = [normalise_stablehlo(_lower_alive(h, args).as_text()) for h in (f, g)]
            if alive[0] == alive[1]:
                return None
    except Exception as error:  # lowering runs rules of any library
        return f"it cannot be lowered: {type(error).__name__}: {error}"
    return difference


def same_optimised(f: Any, g: Any, args: Sequence[Any]) -> bool:
    """Whether XLA compiles both functions to the same optimised HLO, names and metadata aside."""
    return OptimisedAlike(f, g, args)()


class OptimisedAlike:
    """`same_optimised`, begun: a call waits for the answer.

    XLA compiles without Python's lock, and so beside what the caller does meanwhile. lowered_alike: whether the two may
    lower to the same StableHLO, which is asked first: nothing is begun then. first: what `begin_alone` gave of `f`.
    """

    def __init__(
        self, f: Any, g: Any, args: Sequence[Any], lowered_alike: bool = False, first: Compilation | None = None
    ):
        self._functions = f, g
        self._args = args
        self._lowered_alike = lowered_alike
        self._first = first
        self._together = None if lowered_alike or first is not None else _begin_together(f, g, args)
        self._apart: list[Compilation] | None = None
        self._answer: bool | None = None
        # Programs on several devices wait: of those the text's own jaxpr may have to be compiled, with JAX's casts in it.
        if first is not None and not lowered_alike and not _communicates(f):
            self._apart = self._begin_both()

    def __call__(self) -> bool:
        if self._answer is None:
            self._answer = self._asked()
        return self._answer

    def _asked(self) -> bool:
        if self._lowered_alike and same_stablehlo(*self._functions, self._args):
            return True
        if self._together is not None and _are_halves(self._together):
            return True
        both = self._apart or self._begin_both()
        try:
            left, right = (_normalised(c) for c in both) if both else ("", "")
        except Exception:  # as above
            return False
        return left == right != ""

    def _begin_both(self) -> list[Compilation]:
        """Both by themselves; nothing where one cannot be lowered."""
        f, g = self._functions
        try:
            return [self._first or _begin(f, self._args), _begin(g, self._args)]
        except Exception:  # lowering runs rules of any library
            return []


def begin_alone(f: Any, args: Sequence[Any], always: bool = False) -> Compilation | None:
    """Begins to compile a closed jaxpr that is no program to be compiled side by side with another; else None.

    always: whether any program is begun, for there may be several to compare it with.
    """
    try:
        return _begin(f, args) if always or _communicates(f) else None
    except Exception:  # as above
        return None


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compilation that was begun: the places of the arguments that the program reads, of how many, and the optimised HLO;
    None where that does not say all."""

    kept: tuple[int, ...]
    count: int
    text: Future[str | None]


def _begin(function: Any, args: Sequence[Any]) -> Compilation:
    """Lowers a function and has XLA compile it. Raises what JAX does."""
    leaves = jax.tree_util.tree_leaves(args)
    name = f"untrace_{next(_COUNT)}"
    # Without the arguments that nobody reads: XLA 0.10 crashes on some programs that have them.
    lowered = _lower(function, args, False, name)
    options = _options()
    compilation = jax_compat.prepared_compilation(lowered, options)

    def compiled() -> str | None:
        text = jax_compat.text_of_modules(_optimised(lowered, f"jit_{name}", options, compilation))
        # Where the values of large constants are left out, the text proves nothing.
        return None if text is None or "{...}" in text else text

    return Compilation(jax_compat.kept_arguments(lowered), len(leaves), _compilers(os.getpid()).submit(compiled))


@cache
def _compilers(process: int) -> ThreadPoolExecutor:
    """The threads of this process that wait for XLA: to start one takes as long as to lower ten equations."""
    return ThreadPoolExecutor(2, "untrace")


def _begin_together(f: Any, g: Any, args: Sequence[Any]) -> Compilation | None:
    """Both programs as one, each of arguments of its own: what they share is lowered once, and XLA is called once.

    Nothing of one can become part of the other then, but for what depends on no argument: that is one, and may be fused
    with an instruction of one half only. Where much does, each half is a function that is called. Where the halves differ,
    the two have to be compiled apart, and so do programs that run on several devices.
    """
    try:
        first, second = (_traced(h, args) for h in (f, g))
        if _communicates(first):
            return None
        together = jax_compat.called_side_by_side if _computes_constants(first) else jax_compat.side_by_side
        both = together(first, second)
        leaves = jax.tree_util.tree_leaves(args)
        return None if both is None else _begin(both, [*leaves, *leaves])
    except Exception:  # as above
        return None


def _are_halves(compilation: Compilation) -> bool:
    """Whether both halves of a program became the same; no answer is a no, for the two can still be compiled apart."""
    kept, count = compilation.kept, compilation.count // 2
    read = [i for i in kept if i < count]
    try:
        text = _waited_for(compilation)
    except Exception:  # whatever XLA refuses
        return False
    return text is not None and [i - count for i in kept[len(read) :]] == read and same_halves(text, len(read))


def _normalised(compilation: Compilation) -> str:
    text = _waited_for(compilation)
    return "" if text is None else f"arguments {compilation.kept}\n{normalise_optimised(text)}"


def _waited_for(compilation: Compilation) -> str | None:
    if not compilation.text.done():
        collect_young()  # rather than sit idle
    return compilation.text.result()


def _communicates(closed: Any) -> bool:
    """Whether a jaxpr runs on several devices, whose messages are numbered throughout."""
    if not jax_compat.is_jaxpr(closed):
        return False
    return any(eqn.primitive.name in ("shard_map", "xla_pmap") for eqn in jax_compat.equations_in(closed))


def _computes_constants(closed: Any) -> bool:
    """Whether a program computes arrays of floating-point numbers from none of its arguments, and that is expensive.

    Two programs side by side would share them, and XLA could fuse them with one of both. What is cheap it computes
    wherever that is used, and of an array of one number everywhere it computes that number, once and for all.
    Source: `InstructionFusion::IsExpensive` in xla/service/instruction_fusion.cc.
    """
    jaxpr, _ = jax_compat.open_jaxpr(closed)
    known = {*jaxpr.constvars, *jaxpr.invars}
    uniform: set[Any] = set()
    for eqn in jaxpr.eqns:
        operands = [atom for atom in eqn.invars if type(atom) is not jax_compat.LITERAL_TYPE]
        if any(v in known for v in operands):
            known.update(eqn.outvars)
        elif eqn.primitive.name in _UNIFORM and uniform.issuperset(operands):
            uniform.update(eqn.outvars)
        elif not all(e.primitive.name in _CHEAP for e in _called(eqn)):
            # A single number XLA computes itself.
            if any(v.aval.shape and jax.numpy.issubdtype(v.aval.dtype, jax.numpy.inexact) for v in eqn.outvars):
                return True
    return False


def _called(eqn: Any) -> Iterable[Any]:
    """The equations of a call of `jit`; any other is itself."""
    return jax_compat.equations_in(eqn.params["jaxpr"]) if eqn.primitive.name in ("jit", "pjit") else [eqn]


_CHEAP = frozenset(
    "abs add broadcast_in_dim ceil clamp concatenate convert_element_type copy dynamic_slice dynamic_update_slice eq "
    "expand_dims floor ge gt iota jit le lt max min mul ne neg pad pjit reshape rev round select_n sign slice split "
    "square squeeze sub tile transpose".split()
)
# Operations that make arrays of one number everywhere of such arrays, and of numbers.
_UNIFORM = frozenset(
    "abs add broadcast_in_dim convert_element_type cos div exp expand_dims expm1 integer_pow log log1p logistic max min mul "
    "neg pow reduce_max reduce_min reduce_sum reshape rsqrt sin slice sqrt square squeeze sub tanh transpose".split()
)


def _traced(function: Any, args: Sequence[Any]) -> Any:
    return function if jax_compat.is_jaxpr(function) else jax.make_jaxpr(lambda *xs: function(*xs))(*args)


def optimised_text(function: Any, args: Sequence[Any]) -> str:
    """The optimised HLO that XLA makes of a function, normalised; "" where it does not say all. Raises what JAX does."""
    return _normalised(_begin(function, args))


def _options() -> dict[str, Any]:
    return {**_QUICKLY, **(_UNNEEDED if jax_compat.stops_before_code() else {})}


def _optimised(lowered: Any, name: str, options: dict[str, Any], compilation: Callable[[], list[bytes]]) -> list[bytes]:
    """What XLA makes of the module of that name, serialised. compilation: of `lowered` with these options, prepared."""
    while True:
        with jax_compat.stopped_before_code(name) as found:
            try:
                return compilation()
            except Exception as error:
                if found:
                    return found
                unknown = _NO_SUCH_OPTION.search(str(error))
                if unknown is None or options.pop(unknown.group(1), None) is None:
                    raise
                _QUICKLY.pop(unknown.group(1), None)
        compilation = jax_compat.prepared_compilation(lowered, options)


def _lower(function: Any, args: Sequence[Any], keep_unused: bool = True, name: str = "call") -> Any:
    if jax_compat.is_jaxpr(function):
        return jax_compat.lowered(function, args, keep_unused, name)

    # A function of its own: jit would remember a lowering with other argument names.
    def call(*xs: Any) -> Any:
        return function(*xs)

    call.__name__ = name
    return jax.jit(call, keep_unused=keep_unused).lower(*args)


def _lower_alive(function: Any, args: Sequence[Any]) -> Any:
    """`_lower` without dead code, as `jit` compiles it; but all arguments stay in their places."""
    closed = function if jax_compat.is_jaxpr(function) else jax.make_jaxpr(lambda *xs: function(*xs))(*args)
    closed = jax_compat.without_dead_code(closed)
    flat = jax.extend.core.jaxpr_as_fun(closed)
    return jax.jit(flat, keep_unused=True).lower(*jax.tree_util.tree_leaves(args))


def normalise_stablehlo(text: str) -> str:
    """StableHLO text without what may differ between two writings of one program."""
    text = _LOCATION_LINE.sub("", _LOCATION.sub("", text))
    text = _MODULE.sub("module @m", text)
    text = _LABEL.sub("", text).replace(" {}", "")
    names: dict[str, str] = {}
    for name in _DEFINITION.findall(text):
        names.setdefault(name, f"f{len(names)}")
    text = _SYMBOL.sub(lambda m: "@" + names.get(m.group(1), m.group(1)), text)
    # Only there do long numbers stand for addresses; elsewhere they are constants.
    lines = [_ADDRESS.sub("ADDRESS", line) if "callback" in line else line for line in text.splitlines()]
    return "\n".join(_constants_by_value(lines))


_CONSTANT = re.compile(r"\s*(%\w+) = (?:stablehlo\.constant ()|stablehlo\.broadcast_in_dim (%\w+), )(.*)")
_REGISTER = re.compile(r"%\w+")


def _constants_by_value(lines: list[str]) -> list[str]:
    """The lines with each constant where it is used, and the other values of a function numbered as they appear.

    A constant has no identity: a program that names it twice is the program that names it once. JAX lowers an array of
    one repeated element to a broadcast, which is a constant as well.
    """
    found: list[str] = []
    names: dict[str, str] = {}
    count = 0
    for line in lines:
        if "func.func" in line:
            names, count = {}, 0  # they are a function's own
        constant = _CONSTANT.fullmatch(line)
        operand = constant and (constant[3] is None or names.get(constant[3], "%").startswith("("))
        if constant is not None and operand:
            text = constant[4] if constant[3] is None else f"{names[constant[3]]}, {constant[4]}"
            names[constant[1]] = f"({text})" if len(text) < 200 else f"(constant {_hash(text)})"
            continue
        for name in _REGISTER.findall(line):
            if name not in names:
                names[name] = f"%{count}"
                count += 1
        found.append(_REGISTER.sub(lambda m, known=names: known[m[0]], line))
    return found


def without_places(text: str) -> str:
    """The optimised HLO text without the lines of the source that its instructions came from."""
    return METADATA.sub("", without_tables(text))


def without_tables(text: str) -> str:
    """The optimised HLO text without its tables of files and stack frames, to which the metadata of instructions refer."""
    return _TABLES.sub("", text)


def normalise_optimised(text: str) -> str:
    """Optimised HLO text without names, the order of independent instructions, and that of the factors of a product.

    Each instruction is named after what it computes: a hash of its line, in which operands and computations stand by
    their own hashes. A computation is its root and the instructions that it has, how often; what has an effect keeps
    its place among its like.
    """
    return _read_optimised(text, lambda parts: _hash("".join(map(str, parts))))[0]


@dataclass(slots=True)
class _Instruction:
    digest: str
    pieces: list[str]  # of its line: what stands between names of other instructions and of computations, and those
    has_effect: bool

    @property
    def operands(self) -> list[str]:
        return self.pieces[1::2]


def _read_optimised(
    text: str,
    digest_of: Callable[[tuple[str | int, ...]], str],
    parameters: int | None = None,
    in_order: bool = False,
) -> tuple[str, dict[str, _Instruction]]:
    """What `normalise_optimised` says, and the instructions of the entry computation by name, the root last.

    digest_of: what stands for some pieces of text, and for no others. parameters: those of so many arguments that stand
    for the first ones again. in_order: whether computations other than that one are told by their texts as they are, names
    aside, which takes half the time.
    """
    if "metadata=" in text:
        text = METADATA.sub("", text)
    text = without_tables(text)
    text = _HLO_MODULE.sub("HloModule m", text)
    lines = text.splitlines()
    if "callback" in text:
        lines = [_ADDRESS.sub("ADDRESS", line) if "callback" in line else line for line in lines]
    hashes: dict[str, str] = {}  # of computations that were read, and of the instructions of the one that is
    found: list[str] = []
    inside: dict[str, str] = {}
    entry: dict[str, _Instruction] = {}
    effects: list[str] = []
    asked = text[text.rfind("\nENTRY") :] if in_order else text
    has_effects = any(word in asked for word in _EFFECT_WORDS) and _EFFECT.search(asked) is not None
    head = root = current = ""
    is_entry = as_it_is = False
    body: list[str] = []
    split = _NAME.split
    for line in lines:
        if as_it_is:
            body.append(line)
            if line.startswith("}"):
                pieces = split("\n".join(body))
                numbers: dict[str, int] = defaultdict(itertools.count().__next__)
                pieces[1::2] = [hashes.get(n) or numbers[n] for n in pieces[1::2]]
                # Each line has a name of its own; where another is read, nothing is known of what that stands for.
                is_closed = len(numbers) == len(body) - 2
                hashes[current] = digest_of(tuple(pieces) if is_closed else (current,))
                as_it_is = False
        elif head and " = " in line:
            name, _, rest = line.partition(" = ")
            before, _, name = name.rpartition(" ")
            if is_entry and parameters is not None and " parameter(" in rest:
                rest = _PARAMETER.sub(lambda m, count=parameters: f" parameter({int(m[1]) % count})", rest)
            pieces = split(rest)
            meaning = pieces.copy()
            meaning[1::2] = [inside.get(n) or hashes.get(n, n) for n in pieces[1::2]]
            if len(meaning) > 3 and meaning[2] == ", " and meaning[0].endswith(_COMMUTATIVE):
                meaning[1], meaning[3] = sorted((meaning[1], meaning[3]))
            inside[name] = digest = digest_of(tuple(meaning))
            has_effect = has_effects and _EFFECT.search(rest) is not None
            if has_effect:
                effects.append(digest)
            if is_entry:
                entry[name] = _Instruction(digest, pieces, has_effect)
            if before.endswith("ROOT"):
                root = digest
                if is_entry:
                    entry[name] = entry.pop(name)
        elif line.endswith("{") and _HEAD.match(line):
            # Parameters in the head of a computation have names without a percent sign.
            named = _HEAD_NAME.search(line)
            assert named is not None  # every computation has one
            name = named[0]
            current = name if name.startswith("%") else "%" + name
            is_entry = parameters is not None and line.startswith("ENTRY")
            as_it_is = in_order and not is_entry
            if as_it_is:  # the types of the parameters are said once more inside
                body = [line.rpartition(" -> ")[2]]
                continue
            head = _HEAD_PARAMETER.sub(r"\1p: ", line.replace(name, "", 1))
            inside, root, effects = {}, "", []
        elif line.startswith("}"):
            parts = [head, root, *sorted(inside.values()), "in order", *effects]
            hashes[current] = digest_of(tuple([f"{part}\n" for part in parts]))
            if head.startswith("ENTRY"):
                found.extend(parts)
            head = ""
        elif line.strip():
            found.append(line)
    return "\n".join(found), entry


def same_halves(text: str, parameters: int) -> bool:
    """Whether the two halves of the results of an optimised program come of the same instructions, and of how many.

    parameters: how many each half has; those of the second stand for those of the first. What depends on none is shared,
    and used by both alike where the answer is True.
    """
    return any(_same_halves(text, parameters, in_order) for in_order in (True, False))


def _same_halves(text: str, parameters: int, in_order: bool) -> bool:
    digests_of: dict[tuple[str | int, ...], str] = {}

    def digest_of(parts: tuple[str | int, ...]) -> str:
        return digests_of.setdefault(parts, f"#{len(digests_of)}")

    entry = _read_optimised(text, digest_of, parameters, in_order)[1]
    if not entry:
        return False
    root = list(entry.values())[-1]
    results = [name for name in root.operands if name in entry]
    if " tuple(" not in root.pieces[0] or len(results) % 2:
        return False
    half = len(results) // 2
    parts = [_all_behind(results[:half], entry), _all_behind(results[half:], entry)]
    effects = [name for name, instruction in entry.items() if instruction.has_effect]
    if not parts[0].union(parts[1]).issuperset(effects):
        return False

    def digests(names: Iterable[str]) -> list[str]:
        return [entry[name].digest for name in names]

    left, right = (
        (digests(outs), sorted(digests(part)), digests(n for n in effects if n in part))
        for outs, part in zip((results[:half], results[half:]), parts, strict=True)
    )
    return left == right and not any(" parameter(" in entry[name].pieces[0] for name in parts[0] & parts[1])


def _all_behind(names: list[str], entry: dict[str, _Instruction]) -> set[str]:
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in entry and name not in found:
            found.add(name)
            todo.extend(entry[name].operands)
    return found


_PARAMETER = re.compile(r" parameter\((\d+)\)")
_HLO_MODULE = re.compile(r"^HloModule [^,\n]+")
_HEAD_PARAMETER = re.compile(r"([( ])[\w.\-]+: ")
_HEAD = re.compile(r"(?:ENTRY )?%?[\w.\-]+ \(")
_HEAD_NAME = re.compile(r"%[\w.\-]+|(?<=ENTRY )[\w.\-]+")
_NAME = re.compile(r"(%[\w.\-]+)")
_EFFECT = re.compile(
    r"custom_call_has_side_effect=true|API_VERSION|\b(?:infeed|outfeed|send|recv|rng|rng-get-and-update-state|after-all|"
    r"all-[\w-]+|collective-[\w-]+|reduce-scatter)\("
)

# One of them is in what it finds; a search for all at once takes a quarter of the time of all that is read.
_EFFECT_WORDS = tuple("side_effect API_VERSION feed( send( recv( rng all- collective- reduce-scatter(".split())


# Not of `add`: which of two products LLVM contracts with their sum depends on the order. Nor of `maximum`, of zeros.
_COMMUTATIVE = (" multiply(", " and(", " or(", " xor(")


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _first_difference(left: str, right: str) -> str | None:
    if left == right:
        return None
    first, second = left.splitlines(), right.splitlines()
    for i, (x, y) in enumerate(zip(first, second, strict=False), 1):
        if x != y:
            return f"line {i} of the StableHLO is `{x.strip()[:80]}`, as written `{y.strip()[:80]}`"
    return f"the StableHLO has {len(first)} lines, as written {len(second)}"
