"""Writes the parts of README.md that a program made: `python docs/make_readme.py`.

A part stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`.  With `--check` nothing is
written, and the exit code is 1 when a part is out of date.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

from untrace import cli

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

EXAMPLE = "examples/loss.py"
COMMAND = f'show {EXAMPLE}:loss "(f32[4,5], f32[5])" "f32[3,4]" "f32[3,5]" --grad'


def without_helpers(source: str) -> str:
    """The text without the helpers of its guard, which are the same in every text and stand at its end."""
    start = source.index("\n\n\ndef _type_of")
    count = source[start:].strip().count("\n") + 1
    return f"{source[:start]}\n\n\n# ... and {count} lines for `_checked`, which are the same in every file."


def example() -> str:
    """The first screen: a function, the command, the source that comes out and its proof."""
    source, proof = run(COMMAND)
    function = (ROOT / EXAMPLE).read_text(encoding="utf-8")
    return "\n\n".join(
        [
            block("python", function),
            "ask for its gradient as source:",
            block("console", f"$ untrace {COMMAND}"),
            block("python", without_helpers(source)),
            "and what was proven of it:",
            block("text", proof),
        ]
    )


TRAINED = 'show examples/train.py:train_step "(f32[4,5], f32[5])" "f32[3,4]" "f32[3,5]" --no-guard'


def train_step() -> str:
    """A train step, its text, and the text with the derivative written out."""
    written_out = f"{TRAINED} --derivatives written"
    return "\n\n".join(
        [
            block("python", (ROOT / "examples" / "train.py").read_text(encoding="utf-8")),
            block("console", f"$ untrace {TRAINED}"),
            block("python", run(TRAINED)[0]),
            block("console", f"$ untrace {written_out}"),
            block("python", run(written_out)[0]),
        ]
    )


LEFT = {"numpy": "python", "torch": "python", "c": "c"}  # target -> language of its text
LEAVES = 'show examples/pendulum.py:swing "f32[]" "f32[]" "f32[]"'


def leave() -> dict[str, str]:
    """One function as each target has it, by the name of the part; those whose library is installed."""
    made = {"leave jax": block("python", (ROOT / "examples" / "pendulum.py").read_text(encoding="utf-8"))}
    for target, language in LEFT.items():
        if target != "torch" or importlib.util.find_spec("torch") is not None:
            source = run(f"{LEAVES} --to {target} --no-guard")[0]
            made[f"leave jax for {target}"] = block(language, without_head(source))
    return made


FAULTY = "examples/unstable.py:loss @examples/unstable.py:arguments"
SHARP = 'examples/rollout.py:rollout "f32[4]" "f32[4,4]"'


def see() -> str:
    """What a program computes, where its numbers go wrong, the smallest case of it, and JAX's sharp bits."""
    with tempfile.TemporaryDirectory() as folder:
        least = Path(folder, "least.py")
        run(f"minimize {FAULTY} --fault nonfinite -o {least}")
        smallest = without_head(least.read_text(encoding="utf-8"))
    watched = run(f"watch {FAULTY}")[0]
    report, _, _ = run(f"doctor {FAULTY}", 1)[0].partition("\nrepaired:\n")
    linted = run(f"lint {SHARP}", 1)[0]
    return "\n\n".join(
        [
            block("python", (ROOT / "examples" / "unstable.py").read_text(encoding="utf-8")),
            "What it computes, statement by statement, with the counts of what is no number:",
            block("console", f"$ untrace watch {FAULTY}\n{watched}"),
            "Where it goes wrong, why, and what to write instead; `-o fixed.py` writes the repaired module:",
            block("console", f"$ untrace doctor {FAULTY}\n{report}"),
            "The smallest program that still has the fault, ready for an issue (its head says which versions it was seen with):",
            block("console", f"$ untrace minimize {FAULTY} --fault nonfinite -o least.py"),
            block("python", smallest),
            "JAX's sharp bits, here of a loop over a dozen steps:",
            block("console", f"$ untrace lint {SHARP}\n{linted}"),
        ]
    )


def without_head(source: str) -> str:
    """The text without what its head says."""
    return source.partition("*/\n" if source.startswith("/*") else '\n"""\n')[2].strip()


def run(command: str, expected: int = 0) -> tuple[str, str]:
    """What `untrace command` prints on stdout and on stderr, run at the root of the repository. expected: its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = cli.main(shlex.split(command))
    if code != expected:
        raise SystemExit(f"untrace {command} failed with {code}:\n{err.getvalue()}")
    return out.getvalue(), err.getvalue()


def block(language: str, text: str) -> str:
    """`text` as a fenced block of Markdown."""
    return f"```{language}\n{text.strip()}\n```"


def part(readme: str, name: str) -> str:
    """What stands in the part `name` of a README."""
    found = re.search(_pattern(name), readme, re.DOTALL)
    if found is None:
        raise SystemExit(f"README.md has no part between <!-- begin: {name} --> and its end")
    return found[2]


def with_part(readme: str, name: str, text: str) -> str:
    """The README with `text` as its part `name`."""
    part(readme, name)
    return re.sub(_pattern(name), lambda m: f"{m[1]}\n\n{text}\n\n{m[3]}", readme, flags=re.DOTALL)


def _pattern(name: str) -> str:
    return rf"(<!-- begin: {name} -->)\s*(.*?)\s*(<!-- end: {name} -->)"


def parts() -> dict[str, str]:
    """All that untrace writes of the README, by the name of the part."""
    return {"example": example(), "train step": train_step(), "see": see(), **leave()}


def main(argv: list[str]) -> int:
    """Renews README.md, or only compares with it; the exit code."""
    before = README.read_text(encoding="utf-8")
    after = before
    for name, text in parts().items():
        after = with_part(after, name, text)
    if "--check" in argv:
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
