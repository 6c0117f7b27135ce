"""Makes andrea/_ffi.py, cffi's out-of-line ABI declarations, from the public headers (by CMake)."""

from __future__ import annotations

import argparse
from pathlib import Path

from cffi import FFI


def declarations(header: str) -> str:
    """The header without what only the preprocessor and C++ need."""
    lines = []
    for line in header.splitlines():
        stripped = line.strip()
        if stripped.startswith("#") or stripped == 'extern "C" {':
            continue
        lines.append(line.replace("MG_API ", ""))
    text = "\n".join(lines)
    # The brace that closes extern "C" is the last thing in a header.
    return text.rstrip().removesuffix("}")


def main() -> None:
    """Command line: emit_ffi.py --output FILE HEADER..."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("headers", type=Path, nargs="+")
    arguments = parser.parse_args()
    ffi = FFI()
    for header in arguments.headers:
        ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    ffi.set_source("andrea._ffi", None)
    ffi.emit_python_code(str(arguments.output))


if __name__ == "__main__":
    main()
