"""Lessons: what a transformer's blocks are made of and do, counted, traced and tried.

Plain data, computed from a configuration or by the engine; nothing here prints. Names are loaded
when they are first used, so that no lesson waits for the libraries of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea.lazy import on_first_use

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
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "counting": (
                "Comparison",
                "Count",
                "Kind",
                "Operations",
                "changed_config",
                "count_operations",
                "count_parameters",
            ),
            "lens": ("LogitLens", "lens_logits", "logit_lens"),
            "shares": ("draw_shares",),
            "trace": ("StreamNorms", "TokenTrace", "stream_norms", "trace_token"),
            "trace_pictures": ("draw_attention", "draw_lens", "draw_stream"),
            "trace_start": ("Start", "measure_start"),
            "trace_tokens": ("token_labels",),
        },
    )

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
