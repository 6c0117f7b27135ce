"""Lessons: what a transformer's blocks are made of and do, counted, traced and tried.

Plain data, computed from a configuration or by the engine; nothing here prints. Names are loaded
when they are first used, so that no lesson waits for the libraries of another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .counting import (
        Comparison,
        Count,
        Kind,
        Operations,
        changed_config,
        count_operations,
        count_parameters,
    )
    from .lens import LogitLens, lens_logits, logit_lens
    from .shares import draw_shares
    from .trace import StreamNorms, TokenTrace, stream_norms, trace_token
    from .trace_pictures import draw_attention, draw_lens, draw_stream
    from .trace_start import Start, measure_start
    from .trace_tokens import token_labels

_LAZY = {
    "Comparison": "counting",
    "Count": "counting",
    "Kind": "counting",
    "Operations": "counting",
    "changed_config": "counting",
    "count_operations": "counting",
    "count_parameters": "counting",
    "draw_shares": "shares",
    "LogitLens": "lens",
    "lens_logits": "lens",
    "logit_lens": "lens",
    "StreamNorms": "trace",
    "TokenTrace": "trace",
    "stream_norms": "trace",
    "trace_token": "trace",
    "draw_attention": "trace_pictures",
    "draw_lens": "trace_pictures",
    "draw_stream": "trace_pictures",
    "Start": "trace_start",
    "measure_start": "trace_start",
    "token_labels": "trace_tokens",
}

__all__ = [
    "Comparison",
    "Count",
    "Kind",
    "LogitLens",
    "Operations",
    "Start",
    "StreamNorms",
    "TokenTrace",
    "changed_config",
    "count_operations",
    "count_parameters",
    "draw_attention",
    "draw_lens",
    "draw_shares",
    "draw_stream",
    "lens_logits",
    "logit_lens",
    "measure_start",
    "stream_norms",
    "token_labels",
    "trace_token",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
