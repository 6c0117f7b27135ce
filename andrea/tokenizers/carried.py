"""A tokenizer from elsewhere, as its tokenizer.json says it: byte-level BPE of any pattern.

For models that were made by other programs; checkpoints carry the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tokenizers as library
from numpy.typing import NDArray

from andrea.errors import TokenizerError
from andrea.tokenizers.base import Tokenizer, well_formed
from andrea.tokenizers.bpe import byte_symbols
from andrea.tokenizers.description import check_description
from andrea.tokenizers.words import cut_between_words, pieces_between_words

# Longer texts are encoded in pieces of this many characters.
_PIECE = 1 << 14
# Vocabularies are padded to multiples of some hundreds, not to many times what is in them.
_MOST_PADDING = 1 << 16


class CarriedTokenizer(Tokenizer):
    """What a tokenizer.json describes; ids without a token, as of a padded vocabulary, are empty.

    Special tokens in a text are those tokens, as the file has it.
    """

    name = "json"

    def __init__(
        self, description: Mapping[str, Any], vocab_size: int, beginning_of_document: int
    ) -> None:
        """Take the parsed tokenizer.json, the model's vocabulary, and the token between documents.

        Raises:
            TokenizerError: it is no byte-level BPE, its tokens are not made of bytes, or they are
                not in the vocabulary.
        """
        check_description(description)
        self.description = description
        self._library = _library_of(description)
        table = _token_table(self._library, vocab_size)
        if not 0 <= beginning_of_document < vocab_size:
            raise TokenizerError(
                f"the token between documents is {beginning_of_document}, "
                f"but the vocabulary has {vocab_size} tokens"
            )
        table[beginning_of_document] = b""
        super().__init__(table, beginning_of_document)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text, int32 (n,)."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the tokens of each text, on all cores.

        Raises:
            TokenizerError: the file's patterns fail on one of them.
        """
        pieces = [pieces_between_words(well_formed(text), _PIECE) for text in texts]
        with _library_errors("can't make tokens of this text"):
            encodings = iter(
                self._library.encode_batch_fast(
                    [piece for of_text in pieces for piece in of_text], add_special_tokens=False
                )
            )
        return [
            np.concatenate([np.array(next(encodings).ids, dtype=np.int32) for _ in of_text])
            for of_text in pieces
        ]

    def vocabulary(self) -> dict[str, int]:
        """Each token as the tokenizer.json writes it, and its id."""
        tokens: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        return tokens

    def safe_cut(self, text: str) -> int:
        """Return the last position between two words, where cutting changes no token with the
        patterns in use; elsewhere it costs one."""
        return cut_between_words(text)

    def to_dict(self) -> dict[str, Any]:
        """Return name, the tokenizer.json, the vocabulary and the token between documents."""
        return {
            "name": self.name,
            "description": self.description,
            "vocab_size": self.vocab_size,
            "beginning_of_document": self.beginning_of_document,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> CarriedTokenizer:
        """Rebuild it from `to_dict`; TokenizerError if the state is not one."""
        description, sizes = state.get("description"), []
        for key in ("vocab_size", "beginning_of_document"):
            value = state.get(key)
            if type(value) is not int or not 0 <= value < 2**31:
                raise TokenizerError(f"the stored tokenizer has {key} {value!r:.40}: it is damaged")
            sizes.append(value)
        if not isinstance(description, Mapping):
            raise TokenizerError("the stored tokenizer has no tokenizer.json: it is damaged")
        return cls(description, *sizes)

    def __reduce__(self) -> tuple[type[CarriedTokenizer], tuple[Any, ...]]:
        """Pickle what it was made of."""
        return CarriedTokenizer, (self.description, self.vocab_size, self.beginning_of_document)


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Whatever the library says is an error of the tokenizer.json."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        seen = " ".join(str(error).split())
        raise TokenizerError(f"the tokenizer.json {what}: {seen:.200}") from None


def _library_of(description: Mapping[str, Any]) -> library.Tokenizer:
    # What would be put around a text is left away: asked to add nothing, the library still takes
    # the text through a template, which may have no place for it.
    plain = {**description, "post_processor": None}
    with _library_errors("can't be used"):
        json.dumps(description.get("post_processor"), allow_nan=False)  # it is saved as it is
        made = library.Tokenizer.from_str(json.dumps(plain, allow_nan=False))
        made.no_truncation()
        made.no_padding()
    return made


def _token_table(made: library.Tokenizer, vocab_size: int) -> list[bytes]:
    """The bytes of each token of the vocabulary; special tokens stand for none."""
    vocabulary: dict[str, int] = made.get_vocab(with_added_tokens=True)
    highest = max(vocabulary.values(), default=-1)
    if highest >= vocab_size:
        raise TokenizerError(
            f"the tokenizer has tokens up to {highest}, the model's vocabulary is {vocab_size}: "
            "they do not belong together"
        )
    if vocab_size > 2 * highest + _MOST_PADDING:
        raise TokenizerError(
            f"the tokenizer has tokens up to {highest}, but the vocabulary is {vocab_size}: "
            "they do not belong together"
        )
    byte_of_symbol = {symbol: byte for byte, symbol in byte_symbols().items()}
    silent = next((symbol for symbol in byte_of_symbol if symbol not in vocabulary), None)
    if silent is not None:
        raise TokenizerError(
            f"the tokenizer.json has no token of the byte {byte_of_symbol[silent]}: "
            "it can't write every text"
        )
    added = {token.content: token for token in made.get_added_tokens_decoder().values()}
    table = [b""] * vocab_size
    for content, token in vocabulary.items():
        if content in added:
            table[token] = b"" if added[content].special else well_formed(content).encode()
            continue
        try:
            table[token] = bytes(byte_of_symbol[symbol] for symbol in content)
        except KeyError:
            raise TokenizerError(
                f"the tokenizer.json has a token {content!r:.40} that is not made of bytes"
            ) from None
    token_of: dict[int, str] = {}
    for content, token in vocabulary.items():
        other = token_of.setdefault(token, content)
        if other != content:
            raise TokenizerError(
                f"the tokenizer.json gives one number, {token}, to two tokens: "
                f"{min(other, content)!r:.40} and {max(other, content)!r:.40}"
            )
    return table
