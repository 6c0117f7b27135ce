"""The byte tokenizer: one token per UTF-8 byte. It needs no training and knows every text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.tokenizers.base import Tokenizer, well_formed


class ByteTokenizer(Tokenizer):
    """256 byte values and the beginning-of-document token: 257 tokens."""

    name = "byte"

    def __init__(self) -> None:
        """Build the only byte tokenizer there is."""
        super().__init__([bytes([value]) for value in range(256)])

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the UTF-8 bytes of the text, int32 (n,)."""
        data = well_formed(text).encode("utf-8")
        return np.frombuffer(data, dtype=np.uint8).astype(np.int32)

    def to_dict(self) -> dict[str, Any]:
        """Return the name: there is nothing else to know."""
        return {"name": self.name}
