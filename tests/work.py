"""How much a function does, counted in lines of Python that run: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable


def lines_run(function: Callable[[], object]) -> int:
    """Lines of Python that `function` runs, each turn of a loop anew; what C does inside of one line counts as one."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
