"""Pictures of the lessons: one palette, one style, SVG whose text stays text.

Drawn by matplotlib, which comes with the extra `plots`. Backgrounds are transparent and what is
neither curve nor bar is grey, so that a picture can be read on light and on dark pages.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.errors import ArgumentError, LibraryError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's (Color Universal Design, 2008), for every kind of colour vision: blue, vermilion,
# green, purple, orange, sky blue. The first four stand out against white and near-black by 3 to 1,
# as lines have to; the last two are for areas. Curves differ by their dashes, too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
# Words and axes: 4 to 1 against white and near-black alike.
GREY = "#767676"
# Colour maps of matplotlib: for amounts from 0, and for what may be above or below 0.
AMOUNTS, SIGNED = "cividis", "RdBu_r"

_FORMATS = (".svg", ".png")
_DOTS_PER_INCH = 160
_STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": 10,
    # A name with dollars in it is no formula.
    "text.parse_math": False,
    "svg.fonttype": "none",
    # The same picture is the same file.
    "svg.hashsalt": "andrea",
}


class Picture:
    """A drawn figure; `draw` makes it."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def svg(self) -> str:
        """The picture as an <svg> element, for a file of its own or within a page."""
        data = io.StringIO()
        with _styled():
            nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
            self._figure.savefig(data, format="svg", metadata=nothing)
        text = data.getvalue()
        return text[text.index("<svg") :]

    def png(self) -> bytes:
        """The picture as PNG, its background transparent."""
        data = io.BytesIO()
        with _styled():
            self._figure.savefig(
                data, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None}
            )
        return data.getvalue()

    def write(self, path: str | Path) -> None:
        """Write the picture to a file, over the one that is there; its name says the format.

        Raises:
            ArgumentError: the name ends in neither .svg nor .png.
            OSError: the file cannot be written.
        """
        path = check_picture_path(path)
        if path.suffix.lower() == ".png":
            path.write_bytes(self.png())
        else:
            path.write_text(self.svg(), encoding="utf-8")


def draw(paint: Callable[[Figure], None], *, width: float = 8.0, height: float = 4.5) -> Picture:
    """A picture of so many inches in the house's style; `paint` puts the axes on its figure.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    with _styled():
        # Not pyplot's: no window, and nothing of the caller's own pictures changes.
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        # The layout is settled once: it would move a little each time that the picture is written.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return Picture(figure)


def check_picture_path(path: str | Path) -> Path:
    """The path, if a picture can be written under that name.

    Raises:
        ArgumentError: it ends in neither .svg nor .png.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise ArgumentError(
            f"a picture is {' or '.join(_FORMATS)} by its name, which {str(path)!r:.200} is not"
        )
    return path


def require_matplotlib() -> None:
    """Refuse where matplotlib is missing.

    Raises:
        LibraryError: it is not installed, or cannot be imported.
    """
    log = logging.getLogger("matplotlib")
    level = log.level
    # The first import on a machine lists its fonts, and would tell so.
    log.setLevel(logging.ERROR)
    try:
        import matplotlib.font_manager  # noqa: F401
    except ImportError as error:
        raise LibraryError(
            "pictures need matplotlib: install it with pip install 'andrea[plots]'"
        ) from error
    finally:
        log.setLevel(level)


def best_ink(background: str) -> str:
    """Black or white: which of them can be read better on a colour, "#rrggbb"."""
    light = relative_luminance(background)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def relative_luminance(colour: str) -> float:
    """How light a colour, "#rrggbb", is: 0 for black, 1 for white (WCAG 2.1's definition)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        # Not over the user's own matplotlibrc, which may say anything.
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        yield
