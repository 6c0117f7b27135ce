"""What machine the figures are of, for the head of a table. Standard library only."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else None


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; None for what the system doesn't tell."""
    processor = _text("/proc/cpuinfo")
    flags = set((_first(r"^flags\s*:(.*)$", processor) or "").split())
    memory = _first(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo"))
    pages = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "processor": _first(r"^model name\s*:(.*)$", processor) or platform.processor() or None,
        "family": _first(r"^cpu family\s*:(.*)$", processor),
        "model": _first(r"^model\s*:(.*)$", processor),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_mb": int(memory) // 1024 if memory else None,
        "largest_cache": _text("/sys/devices/system/cpu/cpu0/cache/index3/size").strip() or None,
        "huge_pages": _first(r"\[(\w+)\]", pages),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def machine_line(told: dict[str, Any]) -> str:
    """The machine in one line of 100 columns."""
    parts = [
        str(told["processor"]),
        f"{told['cpus']} CPUs",
        " ".join(told["flags"]) or "no AVX2",
        f"cache {told['largest_cache']}",
        f"huge pages {told['huge_pages']}",
    ]
    return "; ".join(parts)[:100]
