"""The character tokenizer: one token per distinct character of the training text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.errors import TokenizerError
from andrea.tokenizers.base import Tokenizer, well_formed

_NAMED_AT_MOST = 10


class CharTokenizer(Tokenizer):
    """The characters of a text in code-point order and the beginning-of-document token."""

    name = "char"

    def __init__(self, characters: str) -> None:
        """Take the known characters; TokenizerError if there are none, or a lone surrogate."""
        if not characters:
            raise TokenizerError("a char tokenizer needs at least one character: the text is empty")
        if any("\ud800" <= character <= "\udfff" for character in characters):
            raise TokenizerError("a char tokenizer cannot hold lone surrogates")
        self.characters = "".join(sorted(set(characters)))
        super().__init__([character.encode("utf-8") for character in self.characters])
        # One entry past the highest known code point stands for everything above it.
        self._token_of_code = np.full(ord(self.characters[-1]) + 2, -1, dtype=np.int32)
        self._token_of_code[code_points(self.characters)] = np.arange(len(self.characters))

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return one token per character, int32 (n,).

        Raises TokenizerError that names the characters without a token.
        """
        codes = code_points(well_formed(text))
        tokens = self._token_of_code[np.minimum(codes, len(self._token_of_code) - 1)]
        if tokens.size and tokens.min() < 0:
            raise TokenizerError(self._unknown_characters(codes[tokens < 0]))
        return tokens

    def to_dict(self) -> dict[str, Any]:
        """Return name and characters."""
        return {"name": self.name, "characters": self.characters}

    def _unknown_characters(self, codes: NDArray[np.uint32]) -> str:
        unknown = [int(code) for code in np.unique(codes)]
        named = ", ".join(f"{chr(code)!r} (U+{code:04X})" for code in unknown[:_NAMED_AT_MOST])
        more = f" and {len(unknown) - _NAMED_AT_MOST} more" if len(unknown) > _NAMED_AT_MOST else ""
        return (
            f"the char tokenizer does not know {named}{more}: it has only the "
            f"{len(self.characters)} characters of its training text; leave them out, or train "
            "with --tokenizer byte or bpe"
        )


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code point of each character, uint32 (n,); the text must be well formed."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
