"""What holds files and has to let go of them: a `with` that ends with close()."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing(ABC):
    """Something that is closed at the end of a `with`, whatever ends it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; a second call does nothing."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()
