"""`python -m untrace` is the command `untrace`."""

from untrace.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
