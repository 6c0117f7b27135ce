"""The thread that owns the model: texts of all requests grow in one batch, first come first served.

Whoever asks hands in wishes and gets pieces back through a callback; nothing here knows of HTTP.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from andrea.closing import Closing
from andrea.errors import AndreaError, StateError

from .batch import Batch
from .errors import RequestError
from .text import GrowingText, Piece, Wish

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

# Called in the writing thread, with the number of the text; an error ends that text.
Deliver = Callable[[int, Piece | Exception], None]


class Ticket:
    """The texts of one request, for `BatchWriter.cancel`."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.is_cancelled = False


@dataclass
class _Text:
    ticket: Ticket
    index: int
    wish: Wish
    growing: GrowingText | None = None

    def deliver(self, what: Piece | Exception) -> None:
        if self.ticket.is_cancelled:
            return
        try:
            self.ticket.deliver(self.index, what)
        except Exception:  # nobody is there to hear it any more
            self.ticket.is_cancelled = True


class BatchWriter(Closing):
    """Writes up to `parallel` texts at once; up to `queue` more wait for their turn.

    Raises:
        OutOfMemoryError: the cache of keys and values doesn't fit in memory.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, *, parallel: int, queue: int) -> None:
        self._tokenizer = tokenizer
        self._most = parallel + queue
        self._batch = Batch(model, parallel)
        self._members: dict[int, _Text] = {}
        self._waiting: deque[_Text] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def num_writing(self) -> int:
        """Texts that grow now."""
        return len(self._members)

    @property
    def num_waiting(self) -> int:
        """Texts that wait for their turn."""
        return len(self._waiting)

    def submit(self, wishes: Sequence[Wish], deliver: Deliver) -> Ticket:
        """Ask for texts; each one's pieces are delivered as they come, the last with its reason.

        Raises:
            RequestError: too many texts wait already (429).
            StateError: the writer is closed.
        """
        ticket = Ticket(deliver)
        with self._changed:
            if self._is_closing:
                raise StateError("the server is stopping")
            if self.num_writing + self.num_waiting + len(wishes) > self._most:
                raise RequestError(
                    f"{self.num_writing} texts are being written and {self.num_waiting} wait: "
                    "try again later",
                    status=429,
                    code="rate_limit_exceeded",
                )
            self._waiting.extend(_Text(ticket, i, wish) for i, wish in enumerate(wishes))
            self._changed.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Deliver no more of these texts, and write them no further."""
        with self._changed:
            ticket.is_cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End all texts and the thread; a second call does nothing."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        while self._take_in():
            try:
                self._write_tokens()
            except Exception as error:
                self._fail(error)
        self._fail(StateError("the server is stopping"))
        for text in self._waiting:
            text.deliver(StateError("the server is stopping"))
        self._waiting.clear()

    def _take_in(self) -> bool:
        """Let cancelled texts go and waiting ones join; sleeps where there is nothing to write."""
        with self._changed:
            while not self._is_closing:
                self._let_go()
                while self._waiting and len(self._members) < self._batch.most:
                    self._join(self._waiting.popleft())
                if self._members:
                    return True
                self._changed.wait()
        return False

    def _let_go(self) -> None:
        for number in [n for n, text in self._members.items() if text.ticket.is_cancelled]:
            self._leave(number)
        if any(text.ticket.is_cancelled for text in self._waiting):
            self._waiting = deque(t for t in self._waiting if not t.ticket.is_cancelled)

    def _join(self, text: _Text) -> None:
        if text.wish.max_tokens == 0:
            text.deliver(Piece("", (), 0, "length"))
            return
        try:
            text.growing = GrowingText(text.wish, self._tokenizer)
        except AndreaError as error:
            text.deliver(error)
            return
        self._members[self._batch.join(text.wish.prompt)] = text

    def _write_tokens(self) -> None:
        """One token for each text whose prompt has been read."""
        for number, logits in self._batch.logits().items():
            text = self._members[number]
            assert text.growing is not None
            try:
                token, piece = text.growing.grow(logits)
            except AndreaError as error:
                self._leave(number)
                text.deliver(error)
                continue
            if piece.reason is None:
                self._batch.append(number, token)
            else:
                self._leave(number)
            text.deliver(piece)

    def _leave(self, number: int) -> None:
        self._batch.leave(number)
        del self._members[number]

    def _fail(self, error: Exception) -> None:
        """The engine could not go on: every text that was being written ends with the error."""
        failed, self._members = list(self._members.values()), {}
        self._batch.clear()
        for text in failed:
            text.deliver(error)
