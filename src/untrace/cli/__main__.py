"""`python -m untrace.cli`: the command line."""

import sys

from untrace.cli import main

sys.exit(main())
