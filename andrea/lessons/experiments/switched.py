"""Models of several depths, each with one setting on and off: all that two experiments vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from andrea.training import TrainConfig

from .experiment import Variant
from .settings import small_model


@dataclass(frozen=True)
class Switch:
    """A yes-or-no setting of `ModelConfig`. factor: what people call it; on, off: its values in
    words, of which a variant's name is made."""

    setting: str
    factor: str
    on: str
    off: str

    def name(self, depth: int, is_on: bool) -> str:
        """Of the variant with so many blocks."""
        return f"{depth} blocks, {self._word(is_on)}"

    def variants(
        self, vocab_size: int, depths: Sequence[int], train: TrainConfig
    ) -> tuple[Variant, ...]:
        """Depth by depth, first with the setting on and then with it off."""
        return tuple(
            Variant(
                self.name(depth, is_on),
                small_model(vocab_size, n_layer=depth, **{self.setting: is_on}),
                train,
                {"blocks": depth, self.factor: self._word(is_on)},
            )
            for depth in depths
            for is_on in (True, False)
        )

    def _word(self, is_on: bool) -> str:
        return self.on if is_on else self.off


def at_depth(depth: int) -> Callable[[Variant], bool]:
    """Whether a variant has so many blocks."""
    return lambda variant: bool(variant.factors["blocks"] == depth)
