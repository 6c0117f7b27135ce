"""Answers in the form of the OpenAI interface: whole, or event by event."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .requests import Request, Served
from .text import Odds, Piece, Reason

# How a token without text is named, after GPT-2's, which stands between documents, too.
_NEW_DOCUMENT = "<|endoftext|>"


@dataclass
class _Written:
    """What has been written of one text."""

    parts: list[str] = field(default_factory=list)
    odds: list[Odds] = field(default_factory=list)
    num_tokens: int = 0
    reason: Reason | None = None
    has_begun: bool = False


class Answer:
    """The answer to one request; takes its pieces and renders them as JSON values."""

    def __init__(self, request: Request, served: Served) -> None:
        self._request = request
        self._tokenizer = served.tokenizer
        chat = request.answers_chat
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }
        self._texts = [_Written() for _ in request.wishes]

    @property
    def is_whole(self) -> bool:
        """Whether every text has come to its end."""
        return all(text.reason is not None for text in self._texts)

    def add(self, index: int, piece: Piece) -> str:
        """Take the next piece of a text; returns what of it is to be shown."""
        written, shown = self._texts[index], piece.text
        if not written.has_begun and self._request.echo:
            shown = self._request.echo[index] + shown
        elif not written.has_begun and self._request.strips:
            shown = shown.lstrip()
        written.has_begun = written.has_begun or bool(shown)
        written.parts.append(shown)
        written.odds.extend(piece.odds)
        written.num_tokens, written.reason = piece.num_tokens, piece.reason
        return shown

    def whole(self) -> dict[str, Any]:
        """All of it, once it is whole."""
        choices = []
        for index, text in enumerate(self._texts):
            content = "".join(text.parts)
            choice: dict[str, Any] = {"index": index, "finish_reason": text.reason}
            if self._request.answers_chat:
                choice["message"] = {"role": "assistant", "content": content, "refusal": None}
            else:
                choice["text"] = content
            choice["logprobs"] = self._logprobs(index, text.odds)
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": self._usage()}

    def opening(self) -> Iterable[dict[str, Any]]:
        """Events before the first piece: a chat's answers say who speaks."""
        if self._request.answers_chat:
            for index in range(len(self._texts)):
                yield self._event(index, {"delta": {"role": "assistant", "content": ""}})

    def event(self, index: int, piece: Piece) -> dict[str, Any] | None:
        """The event of a piece, which is added; None where there is nothing to tell yet."""
        shown = self.add(index, piece)
        if not shown and not piece.odds and piece.reason is None:
            return None
        chat = self._request.answers_chat
        part = {"delta": {"content": shown} if shown else {}} if chat else {"text": shown}
        logprobs = self._logprobs(index, piece.odds)
        return self._event(index, {**part, "logprobs": logprobs}, piece.reason)

    def closing(self) -> Iterable[dict[str, Any]]:
        """Events after the last piece."""
        if self._request.includes_usage:
            yield {**self._event_head(), "choices": [], "usage": self._usage()}

    def _event(
        self, index: int, part: dict[str, Any], reason: Reason | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "logprobs": None, **part, "finish_reason": reason}
        event = {**self._event_head(), "choices": [choice]}
        return {**event, "usage": None} if self._request.includes_usage else event

    def _event_head(self) -> dict[str, Any]:
        chat = self._request.answers_chat
        return {**self._head, "object": "chat.completion.chunk"} if chat else self._head

    def _usage(self) -> dict[str, int]:
        prompt, written = self._request.prompt_tokens, sum(t.num_tokens for t in self._texts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    # ---- log-probabilities

    def _logprobs(self, index: int, odds: Sequence[Odds]) -> dict[str, Any] | None:
        if self._request.wishes[index].alternatives is None:
            return None
        if self._request.answers_chat:
            return {
                "content": [
                    {
                        **self._entry(one.token, one.logprob),
                        "top_logprobs": [self._entry(*other) for other in one.alternatives],
                    }
                    for one in odds
                ],
                "refusal": None,
            }
        return {
            "tokens": [self._name(one.token) for one in odds],
            "token_logprobs": [one.logprob for one in odds],
            # The token that was written always stands among them.
            "top_logprobs": [
                {self._name(token): p for token, p in (*one.alternatives, (one.token, one.logprob))}
                for one in odds
            ],
            "text_offset": [one.offset for one in odds],
        }

    def _bytes(self, token: int) -> bytes:
        return self._tokenizer.decode_bytes(np.array([token]))

    def _name(self, token: int) -> str:
        """The text of a token, or its bytes where they are only a part of a character."""
        if token == self._tokenizer.beginning_of_document:
            return _NEW_DOCUMENT
        data = self._bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{value:02x}" for value in data)

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        is_new_document = token == self._tokenizer.beginning_of_document
        data = self._bytes(token)
        return {
            "token": _NEW_DOCUMENT if is_new_document else data.decode("utf-8", "replace"),
            "logprob": logprob,
            "bytes": None if is_new_document else list(data),
        }
