"""Without the extra `untrace[torch]`: untrace works, and says what is missing. Runs everywhere."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import sys
    sys.modules["torch"] = sys.modules["torchax"] = None
    import untrace
    for call in (lambda: untrace.from_torch(len)(1), lambda: untrace.annotate_torch(len)(1)):
        try:
            call()
        except untrace.OptionError as error:
            assert "pip install 'untrace[torch]'" in str(error), error
        else:
            raise SystemExit("no error")
    assert "jnp" in untrace.decompile(lambda x: __import__("jax").numpy.tanh(x))(1.0).source
"""


def test_error_names_the_extra():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
