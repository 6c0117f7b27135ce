"""Pictures: colours that anyone can tell apart, on light and dark, and text that stays text."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from andrea import ArgumentError, LibraryError, ModelConfig
from andrea.config import PRESETS
from andrea.lessons import Count, changed_config, count_parameters, draw_shares
from andrea.lessons.pictures import DASHES, GREY, PALETTE, best_ink, check_picture_path
from andrea.lessons.pictures import relative_luminance as luminance
from andrea.words import percent
from extras import needs

WHITE, DARK = "#ffffff", "#131416"
# How colours look to who has no cones of a kind: Machado, Oliveira & Fernandes 2009, severity 1.
EYES = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# sRGB to CIE XYZ (IEC 61966-2-1), each row divided by that of white.
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def seen(colour: str, eyes: str) -> NDArray[np.float64]:
    """A colour in CIELAB, as these eyes see it."""
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(np.array(EYES[eyes]) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def words_of(picture: str) -> list[str]:
    page = ElementTree.fromstring(picture)
    return ["".join(node.itertext()) for node in page.iter("{http://www.w3.org/2000/svg}text")]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("eyes", EYES)
def test_colours_can_be_told_apart(eyes: str) -> None:
    for one, other in combinations(PALETTE, 2):
        # A just noticeable difference is 2.3 (Mahy et al. 1994).
        distance = np.linalg.norm(seen(one, eyes) - seen(other, eyes))
        assert distance > 6 * 2.3, (one, other, distance)
    assert len(set(DASHES)) == len(PALETTE)


def test_colours_stand_out_on_light_and_dark() -> None:
    for paper in (WHITE, DARK):
        assert all(contrast(colour, paper) >= 3 for colour in PALETTE[:4])
        assert all(contrast(colour, paper) >= 2.2 for colour in PALETTE)
        assert contrast(GREY, paper) >= 4
    assert all(contrast(best_ink(colour), colour) >= 4.5 for colour in PALETTE)
    assert contrast(WHITE, "#000000") == pytest.approx(21)


def counts(*, changed: bool) -> dict[str, Count]:
    config = ModelConfig(vocab_size=300, block_size=32, n_layer=2, n_head=2, n_embd=32)
    found = {"a $<model>$": count_parameters(config, device="cpu")}
    if changed:
        other = changed_config(config, {"tie_embeddings": False}, mlp_ratio=2)
        found["changed"] = count_parameters(other, device="cpu")
    return found


@needs("matplotlib", extra="plots")
@pytest.mark.parametrize("changed", [False, True])
def test_the_picture_of_shares(changed: bool, tmp_path: Path) -> None:
    models = counts(changed=changed)
    picture = draw_shares(models)
    words = words_of(picture.svg())
    assert {"parameters", "a $<model>$"} <= {word.strip() for word in words}
    # V, T, C, L = 300, 32, 32, 2: tables, attention, MLP and norms, by hand.
    mlp = 2 * (2 * 4 * 32 * 32 + 5 * 32)
    parameters = 332 * 32 + 2 * (4 * 32 * 32 + 4 * 32) + mlp + 5 * 2 * 32
    assert f"{parameters:,}" in words
    shares = [f"MLP {mlp / parameters:.1%}", "head 0%"]
    if changed:
        half = 2 * (2 * 2 * 32 * 32 + 3 * 32)
        parameters += 300 * 32 + half - mlp
        assert {"changed", f"{parameters:,}"} <= set(words)
        shares[0] += f" → {half / parameters:.1%}"
        shares[1] += f" → {300 * 32 / parameters:.1%}"
    assert set(shares) <= set(words)
    again = draw_shares(models)
    assert again.svg() == again.svg() == picture.svg(), "the same picture is the same file"
    picture.write(tmp_path / "shares.svg")
    assert (tmp_path / "shares.svg").read_text("utf-8") == picture.svg()
    picture.write(str(tmp_path / "shares.PNG"))
    data = (tmp_path / "shares.PNG").read_bytes()
    assert data.startswith(b"\x89PNG") and data == again.png()


@needs("matplotlib", extra="plots")
def test_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        loud = draw_shares(counts(changed=False)).svg()
        assert dict(matplotlib.rcParams) == before
    assert loud == draw_shares(counts(changed=False)).svg()


def test_without_matplotlib_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.font_manager", raising=False)
    with pytest.raises(LibraryError, match=r"^pictures need matplotlib: .*'andrea\[plots\]'$"):
        draw_shares(counts(changed=False))


def test_names_that_are_no_pictures() -> None:
    for name in ("a.jpg", "svg", "a.svg.gz", ""):
        with pytest.raises(ArgumentError, match=r"a picture is \.svg or \.png"):
            check_picture_path(name)
    assert check_picture_path("a.b.SVG") == Path("a.b.SVG")


@needs("matplotlib", extra="plots")
def test_a_share_stands_in_its_bar_only_where_it_has_room() -> None:
    """At 7.9% of the longest bar "10.3%" would touch both ends of its part."""
    before = count_parameters(ModelConfig(**PRESETS["andrea-120m"]))
    after = count_parameters(changed_config(before.config, {}, mlp_ratio=2))
    words = words_of(draw_shares({"before": before, "after": after}).svg())
    share = percent(after.share(after.kinds[0].parameters))
    assert len(share) == 5 and share not in words and "7.9%" in words
