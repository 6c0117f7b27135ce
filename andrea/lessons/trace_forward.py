"""One pass of the engine over a text, kept to be looked at, and the weights as it multiplied them.

What the engine keeps is read through the named views of `GPT.activations`, and what is derived from
it is computed in float64. In precision bf16 the engine multiplies matrices of rounded numbers by
rounded numbers; so does what is derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from andrea.arrays import token_array
from andrea.errors import ArgumentError
from andrea.formats.raw import float32_to_bfloat16
from andrea.formats.safetensors_file import bfloat16_to_float32

if TYPE_CHECKING:
    from andrea.model import GPT

Array = NDArray[np.float64]

NORM_EPS = 1e-5
"""What the engine adds to a variance; GPT-2's."""


class ForwardPass:
    """A pass over one text: what the engine kept, and its parameters, as float64 arrays.

    It is to be read before the model's next call, which writes over what was kept.

    Args:
        model: on any device; one on a GPU needs CuPy. The activations of a `forward` that still
            waits for its `backward` are lost.
        tokens: (T,) token ids, 1 to block_size of them.

    Raises:
        ArgumentError: there are none or too many tokens, or an id is outside the vocabulary.
        DTypeError: the tokens are not integers.
        DeviceError: the model is on a GPU and CuPy is not installed.
    """

    def __init__(self, model: GPT, tokens: ArrayLike) -> None:
        self.config = model.config
        self.tokens = _checked(tokens, self.config.block_size)
        self._is_rounded = model.precision == "bf16"
        # The last token has no successor; its loss isn't read.
        targets = np.append(self.tokens[1:], self.tokens[:1])
        model.forward(self.tokens[None, :], targets[None, :])
        self._views = model.activations()
        self._tensors = model.tensors()

    @property
    def num_tokens(self) -> int:
        """T, the length of the text."""
        return len(self.tokens)

    def rows(self, name: str) -> Array:
        """What the engine kept by that name: (T, width), or (T,) of a norm's statistics."""
        values: Any = self._views[name][0]
        if hasattr(values, "get"):
            values = values.get()  # of a GPU
        values = np.asarray(values)
        if values.dtype.itemsize == 2:
            values = bfloat16_to_float32(values.view(np.uint16))
        wide: Array = values.astype(np.float64)
        return wide

    def has(self, name: str) -> bool:
        """Whether the engine keeps something by that name in the model's dialect."""
        return name in self._views

    def matrix(self, name: str) -> Array:
        """A weight matrix (outputs, inputs) as the engine multiplies by it."""
        return self.rounded(self._tensors[name].read())

    def vector(self, name: str) -> Array | None:
        """A bias or a norm's gain (width,); None where the dialect has none."""
        if name not in self._tensors:
            return None
        return self._tensors[name].read().astype(np.float64)

    def rounded(self, values: NDArray[Any]) -> Array:
        """Numbers as a layer reads them: in bf16 rounded to that."""
        if self._is_rounded:
            narrow = float32_to_bfloat16(values.astype(np.float32))
            return bfloat16_to_float32(narrow).astype(np.float64)
        return values.astype(np.float64)

    def scaled(self, norm: str, standardised: Array) -> Array:
        """A norm's rows (..., C), standardised, times its gain and plus its bias."""
        gain, bias = self.vector(f"{norm}.weight"), self.vector(f"{norm}.bias")
        if gain is not None:
            standardised = standardised * gain
        return standardised if bias is None else standardised + bias

    # ---- the residual stream

    def stream(self, depth: int) -> Array:
        """The residual stream (T, C) after so many blocks: 0, what the first one reads."""
        if depth < self.config.n_layer:
            return self.rows(f"h.{depth}.input")
        return self.rows("ln_f.input" if self.config.final_norm else "head.stream")

    def middle(self, block: int) -> Array:
        """The stream (T, C) between a block's attention and its MLP."""
        return self.rows(f"h.{block}.middle")

    def sums(self, block: int) -> tuple[Array, Array]:
        """The streams (T, C) right after attention and MLP: before the norms of post-norm blocks,
        else `middle(block)` and `stream(block + 1)`."""
        if self.config.norm_position == "post":
            return self.rows(f"h.{block}.ln_1.input"), self.rows(f"h.{block}.ln_2.input")
        return self.middle(block), self.stream(block + 1)

    def deltas(self, block: int) -> tuple[Array, Array]:
        """What a block's attention and MLP put out, (T, C) each: the stream after it less that
        before it, or without a residual connection the stream itself."""
        after_attention, after_mlp = self.sums(block)
        if not self.config.residual:
            return after_attention, after_mlp
        return after_attention - self.stream(block), after_mlp - self.middle(block)


def checked_index(name: str, value: int, length: int, what: str) -> int:
    """A place among `length`, which may be counted from the end with -1 for the last.

    Raises:
        ArgumentError: there is no such place.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name} must be an integer, got {value!r:.60}")
    if not -length <= value < length:
        places = f"0 to {length - 1}, or from the end -1 to -{length}" if length > 1 else "0 alone"
        raise ArgumentError(f"there is no {name} {value}: {what} has {places}")
    return int(value) % length


def checked_positions(positions: Sequence[int] | None, num_tokens: int) -> list[int]:
    """Places of tokens in the text, all of them for None; see `checked_index`."""
    if positions is None:
        return list(range(num_tokens))
    return [checked_index("token", place, num_tokens, "the text") for place in positions]


def _checked(tokens: ArrayLike, block_size: int) -> NDArray[np.int32]:
    if np.size(tokens) == 0:
        raise ArgumentError("the text is empty: there is no token to follow")
    found = token_array("tokens", tokens, ndim=1)
    if found.size > block_size:
        raise ArgumentError(
            f"the text has {found.size:,} tokens, and the model sees {block_size:,} at once: "
            "take a shorter one"
        )
    return found
