"""Stop sequences in a stream, whatever its pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.stopping import StopFinder


def whole(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: cut before the stop that is complete first; of those the longest."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stops if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=8),
    stops=st.lists(st.text("ab", max_size=4), max_size=3),
)
def test_pieces_do_not_matter(pieces: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops, "")
    shown, is_stopped = "", False
    for piece in pieces:
        more, is_stopped = finder.push(piece)
        shown += more
        # Nothing is shown that a stop could still take back.
        assert whole("".join(pieces), stops)[0].startswith(shown)
        if is_stopped:
            break
    else:
        shown += finder.finish()
    assert (shown, is_stopped) == whole("".join(pieces), stops)


def test_holds_back_no_more_than_it_must() -> None:
    finder = StopFinder(["END"], "")
    assert finder.push("the E") == ("the ", False)
    assert finder.push("N") == ("", False)
    assert finder.push("T") == ("ENT", False)
    assert finder.push("EN") == ("", False)
    assert finder.push("D.") == ("", True)


def test_tokens_work_like_text() -> None:
    finder = StopFinder([(1, 2), (9,)], ())
    assert finder.push((5, 1)) == ((5,), False)
    assert finder.push((1,)) == ((1,), False)
    assert finder.push((2,)) == ((), True)
    assert StopFinder([(9,)], ()).push((3, 9, 4)) == ((3,), True)
