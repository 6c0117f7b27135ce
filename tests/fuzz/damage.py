"""Damage with a seed: to bytes as disks and networks do it, to JSON values as other programs do it.

What comes back always differs from what was given.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

_BLOCK = 512


def damage_bytes(random: Random, data: bytes) -> bytes:
    """Damage a file's content once or a few times."""
    while True:
        damaged = data
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            damaged = random.choice(_BYTE_DAMAGES)(random, damaged)
        if damaged != data:
            return damaged


def _place(random: Random, data: bytes) -> int:
    """A position, often near an end: headers and trailers are there."""
    if not data:
        return 0
    near = min(len(data), 64)
    if random.random() < 0.3:
        return random.randrange(near)
    if random.random() < 0.2:
        return len(data) - 1 - random.randrange(near)
    return random.randrange(len(data))


def _flip_a_bit(random: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    at = _place(random, data)
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _set_a_number(random: Random, data: bytes) -> bytes:
    """Lengths and offsets that are too large, too small, negative."""
    at, width = _place(random, data), random.choice((1, 2, 4, 8))
    value = random.choice((0, 1, -1, 2 ** (8 * width - 1), random.getrandbits(8 * width)))
    number = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return data[:at] + number + data[at + width :]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: _place(random, data)]


def _drop(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + data[at + random.randint(1, _BLOCK) :]


def _insert(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.randbytes(random.randint(1, 40)) + data[at:]


def _repeat(random: Random, data: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + data[at : at + _BLOCK] + data[at:]


def _blank(random: Random, data: bytes) -> bytes:
    """A block that was never written."""
    at = _place(random, data) // _BLOCK * _BLOCK
    return data[:at] + bytes(len(data[at : at + _BLOCK])) + data[at + _BLOCK :]


def _swap(random: Random, data: bytes) -> bytes:
    first, second = sorted((_place(random, data), _place(random, data)))
    size = min(random.choice((1, 4, 64)), second - first)
    one, other = data[first : first + size], data[second : second + size]
    return data[:first] + other + data[first + size : second] + one + data[second + size :]


def _extend(random: Random, data: bytes) -> bytes:
    return data + random.choice((b"\0", b"\n", b"{}", data, random.randbytes(9)))


_BYTE_DAMAGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip_a_bit,
    _flip_a_bit,
    _set_a_number,
    _truncate,
    _drop,
    _insert,
    _repeat,
    _blank,
    _swap,
    _extend,
)

# ---- JSON

ODD_NUMBERS = (0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**64, -(2**63), 10**30)
ODD_FLOATS = (0.0, -0.0, 0.5, 1e-45, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
ODD_TEXTS = ("", " ", "\0", "\n", "a" * 300, "ä😀\ud800", "NaN", "../../x", "%s{}", "\x1b[31m", "1")


def odd_value(random: Random) -> Any:
    """A JSON value that nobody expects."""
    kind = random.randrange(7)
    if kind == 0:
        return random.choice(ODD_NUMBERS)
    if kind == 1:
        return random.choice(ODD_FLOATS)
    if kind == 2:
        return random.choice(ODD_TEXTS)
    if kind == 3:
        return random.choice((None, True, False))
    if kind == 4:
        return [odd_value(random) for _ in range(random.randrange(4))]
    if kind == 5:
        return {random.choice(ODD_TEXTS): odd_value(random) for _ in range(random.randrange(3))}
    value: Any = random.choice(ODD_NUMBERS)
    for _ in range(random.choice((3, 50))):
        value = [value] if random.random() < 0.5 else {"name": value}
    return value


def damage_json(random: Random, value: Any) -> Any:
    """Damage a JSON value at one place or a few; what was given stays as it is."""
    before = json.dumps(value, sort_keys=True)
    while True:
        damaged = [copy.deepcopy(value)]
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            _damage_place(random, damaged)
        if json.dumps(damaged[0], sort_keys=True) != before:
            return damaged[0]


def _damage_place(random: Random, root: list[Any]) -> None:
    """Change one of all places below the root, which is a list so that the top can change, too."""
    holder, key = random.choice(_places(root))
    choice = random.randrange(8)
    if choice == 0 and holder is not root:
        del holder[key]
    elif choice == 1 and isinstance(holder, dict):
        holder[random.choice((*ODD_TEXTS, key + "s", key.upper()))] = holder.pop(key)
    elif choice == 2 and isinstance(holder, dict):
        holder[random.choice(ODD_TEXTS)] = odd_value(random)
    elif choice == 3 and isinstance(holder, list) and holder is not root:
        holder.insert(random.randrange(len(holder) + 1), odd_value(random))
    elif choice == 4:
        holder[key] = _near(random, holder[key])
    elif choice == 5 and holder is not root:
        other = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        holder[key] = odd_value(random)


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    found, waiting = [], [root]
    while waiting:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])
    return found


def _near(random: Random, value: Any) -> Any:
    """A value of the same kind, a little off; or the same value as another kind."""
    if random.random() < 0.3:
        return random.choice((str(value), [value], {"value": value}))
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, 2 * value, float(value)))
    if isinstance(value, float):
        return random.choice((value / 2, -value, 1e9 * value))
    if isinstance(value, str):
        at = random.randrange(len(value) + 1)
        return value[:at] + random.choice(ODD_TEXTS) + value[at + random.randrange(3) :]
    return odd_value(random)
