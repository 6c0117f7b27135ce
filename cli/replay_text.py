"""What `andrea replay` tells people, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .screen.display import row_lines
from .screen.formats import plural

Facts = Mapping[str, Any]

_NAME, _COLUMN = 44, 14
# Of a tensor that one of the two machines could not read.
_UNKNOWN = {"norm": "-", "not_finite": 0}


def list_lines(facts: Facts, path: str) -> list[str]:
    """The steps that are recorded, and how one of them is replayed."""
    lines = [f"{'step':>10}  {'what':<14}  {'loss':>10}  {'grad norm':>10}  first not finite"]
    for each in facts["incidents"]:
        what = each["reason"] + ("" if each["z"] is None else f", z {each['z']:.3g}")
        lines.append(
            f"{each['step']:>10,}  {what:<14}  {_number(each['loss']):>10}  "
            f"{_number(each['gradient_norm']):>10}  {each['first_not_finite'] or '-'}"
        )
    step = facts["incidents"][0]["step"]
    return [*lines, "", f"one of them again: andrea replay {path} --step {step}"]


def replay_lines(facts: Facts, width: int) -> list[str]:
    """The replayed step beside the recorded one."""
    return [
        *(f"passed over: {line}" for line in facts["damaged"]),
        *_rows(facts, width),
        "",
        *_numbers(facts),
        "",
        *_sizes(facts),
        "",
        _verdict(facts),
    ]


def _rows(facts: Facts, width: int) -> Iterator[str]:
    done = "its update was done" if facts["updated"] else "it was skipped"
    outlier = f", {facts['z']:.1f} deviations away" if facts["z"] is not None else ""
    rows = [
        ("step", f"{facts['step']:,}: {facts['reason']}{outlier}; {done}"),
        ("recorded", f"on {facts['recorded_on']}"),
        ("replayed", f"on {facts['replayed_on']}"),
        ("from", f"{facts['checkpoint']}, {plural(facts['steps'], 'step')} of the recorded text"),
        ("the way", _way(facts)),
        ("not finite", f"first: {facts['replayed']['first_not_finite'] or 'nothing'}"),
    ]
    for name, parts in row_lines(rows, width):
        for number, part in enumerate(parts):
            yield (name if number == 0 else " " * len(name)) + part


def _way(facts: Facts) -> str:
    if not facts["compared"]:
        return "the log tells nothing of it"
    if facts["first_different"] is None:
        return (
            f"{plural(facts['compared'], 'step')} with the losses that the log tells, bit for bit"
        )
    return f"differs from the log from step {facts['first_different']:,} on"


def _numbers(facts: Facts) -> Iterator[str]:
    recorded, replayed = facts["recorded"], facts["replayed"]
    yield f"{'':<{_NAME}}{'replayed':>{_COLUMN}}{'recorded':>{_COLUMN}}"
    for name, key in (("loss", "loss"), ("gradient norm", "gradient_norm")):
        yield _line(name, replayed[key], recorded[key])
    if len(replayed["losses"]) > 1:
        for number, pair in enumerate(zip(replayed["losses"], recorded["losses"], strict=True), 1):
            yield _line(f"loss of micro-batch {number}", *pair)


def _sizes(facts: Facts) -> Iterator[str]:
    """Norms of activations and gradients; of all else, what is not finite or differs."""
    yield "norms of the numbers that are finite"
    for kind, found in facts["replayed"]["sizes"].items():
        then = facts["recorded"]["sizes"][kind]
        for name in {**found, **then}:
            now, before = found.get(name, _UNKNOWN), then.get(name, _UNKNOWN)
            is_usual = now == before and not now["not_finite"]
            if kind in ("activations", "gradients") or not is_usual:
                bad = "" if not now["not_finite"] else f"  {now['not_finite']:,} not finite"
                is_same = now == before
                yield _line(f"{kind} {name}", _norm(now), _norm(before), is_same) + bad


def _norm(size: Mapping[str, Any]) -> Any:
    return "-" if size["not_finite"] and not size["norm"] else size["norm"]


def _line(name: str, found: Any, then: Any, is_same: bool | None = None) -> str:
    is_same = found == then if is_same is None else is_same
    differs = "" if is_same else "  differs"
    return f"{name:<{_NAME}}{_number(found):>{_COLUMN}}{_number(then):>{_COLUMN}}{differs}"


def _number(value: Any) -> str:
    if value is None:
        return "not finite"
    return value if isinstance(value, str) else f"{value:.6g}"


def _verdict(facts: Facts) -> str:
    if facts["is_same"]:
        return "the same bits as recorded: the step is reproduced"
    number = plural(len(facts["different"]), "number")
    why = ""
    if facts["recorded_on"] != facts["replayed_on"]:
        why = "; other devices, precisions and instruction sets round in other ways"
    return f"not the same bits as recorded: {number} differ, first {facts['different'][0]}{why}"
