"""`python -m andrea`: the command line, for where the program `andrea` is not on the PATH."""

from __future__ import annotations

from importlib import import_module

if __name__ == "__main__":
    # By name: the package knows nothing of its command line, which lies beside it in the sources.
    import_module("andrea.cli").main()
