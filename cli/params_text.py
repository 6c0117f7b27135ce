"""The answers of `andrea params` as lines of text: one model, or two and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .info_text import table_lines, text_lines
from .screen.display import Rows
from .screen.formats import count as brief
from .screen.formats import percent, plural, size

if TYPE_CHECKING:
    from andrea.lessons import Comparison, Count, Kind

_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "mlp_dim")
_KINDS = {"mlp": "MLP"}
Table = list[tuple[str, ...]]


def params_lines(
    what: str, title: Mapping[str, Any], count: Count, changed: Count | None, width: int
) -> Iterator[str]:
    """The lines that show a count, or two, none longer than `width` where that is possible."""
    name = title.get("preset", "this run")
    notes = [("vocabulary", "is the text's; 257 tokens here, those of bytes")]
    notes = notes if title.get("vocab_size_from_text") else []
    if changed is None:
        yield from text_lines([(what, _sizes(count)), *notes, *_rows(count)], width)
        yield from _one(count, width)
        return
    from andrea.lessons import Comparison

    both = Comparison(count, changed)
    yield from text_lines([(what, _sizes(count)), *notes, *_changes(both)], width)
    yield from _two(both, name, width)


# ---- one model


def _sizes(count: Count) -> str:
    config = count.config
    return ", ".join(f"{name} {getattr(config, name):,}" for name in _SIZES)


def _rows(count: Count) -> Rows:
    return [
        ("dialect", _dialect(count)),
        ("norms", _norms(count)),
        ("output head", _head(count)),
        ("one block", _block(count)),
    ]


def _dialect(count: Count) -> str:
    from andrea.planning.dialects import describe_dialect

    return describe_dialect(count.config) or "GPT-2's"


def _norms(count: Count) -> str:
    from andrea.planning.dialects import count_norms

    return count_norms(count.config)


def _head(count: Count) -> str:
    if count.config.tie_embeddings:
        return f"wte.weight (tied): {count.head:,} parameters counted once"
    return f"lm_head.weight (untied): {count.head:,} parameters of its own"


def _block(count: Count) -> str:
    parts = [f"{_label(kind)} {kind.block:,}" for kind in count.kinds if kind.block]
    return f"{count.block:,} parameters: {', '.join(parts)}"


def _label(kind: Kind) -> str:
    return _KINDS.get(kind.name, kind.name)


def _one(count: Count, width: int) -> Iterator[str]:
    body: Table = []
    for kind in count.kinds:
        if not kind.tensors:
            continue
        share = percent(count.share(kind.parameters))
        body.append((_label(kind), "", "", "", "", f"{kind.parameters:,}", share))
        body += [
            (
                f" {row.name}",
                row.formula,
                " x ".join(map(str, row.shape)),
                f"{row.count:,}",
                f"x {row.copies}" if row.copies > 1 else "",
                f"{row.total:,}",
                percent(count.share(row.total)),
            )
            for row in kind.tensors
        ]
    body.append(("all", "", "", "", "", f"{count.parameters:,}", "100%"))
    columns = ("tensor", "arithmetic", "shape", "one", "blocks", "all", "share")
    # What a narrow terminal can do without: the shape, which is the arithmetic's; then the number
    # of one, which is that of all by the number of blocks.
    yield from _fitting(columns, body, 3, width, [(), (2,), (2, 3)])
    memory, sampling = count.training, count.sampling
    body = [
        (_memory_label(kind), size(memory[kind]), size(sampling[kind]) if sampling[kind] else "")
        for kind in memory
    ]
    yield from _fitting(("memory", "to train", "to sample"), body, 1, width)
    yield from text_lines([("", _batch(count))], width)
    work = count.operations
    body = [
        (
            "MLP" if kind == "mlp" else kind,
            brief(amount),
            brief(3 * amount),
            percent(amount / work.forward),
            f"  {work.formulas[kind]}",
        )
        for kind, amount in work.kinds.items()
    ]
    body.append(("all", brief(work.forward), brief(work.training), "100%", ""))
    header = ("FLOP a token", "forward", "training", "share", "  forward is")
    yield from _fitting(header, body, 1, width, [(), (3,), (3, 4)], last=True)
    yield from text_lines([("", _length(count))], width)


def _batch(count: Count) -> str:
    length = count.config.block_size
    batch = plural(count.batch_size, "sequence")
    return f"to train: with {batch} of {length:,} tokens a batch; to sample: one"


def _length(count: Count) -> str:
    return (
        f"length: {count.operations.length:,}, the whole context; a multiply-add counts two; "
        "training takes three times forward"
    )


def _memory_label(kind: str) -> str:
    return {"parameters": "weights", "total": "all"}.get(kind, kind)


# ---- two models, and what differs


def _changes(both: Comparison) -> Rows:
    told = [
        f"{name} {_value(new)} (was {_value(old)})" for name, (old, new) in both.settings.items()
    ]
    rows = [("changed", ", ".join(told) or "nothing: that is what it has")]
    for name, tell in (("dialect", _dialect), ("norms", _norms), ("output head", _head)):
        old, new = tell(both.before), tell(both.after)
        rows.append((name, old if old == new else f"{new}; was: {old}"))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _two(both: Comparison, name: str, width: int) -> Iterator[str]:
    before, after = both.before, both.after
    body: Table = []
    for old, new in zip(before.kinds, after.kinds, strict=True):
        body.append(
            (
                _label(old),
                f"{old.parameters:,}",
                percent(before.share(old.parameters)),
                f"{new.parameters:,}",
                percent(after.share(new.parameters)),
                *_gain(old.parameters, new.parameters),
            )
        )
    totals = (before.parameters, after.parameters)
    body.append(("all", f"{totals[0]:,}", "100%", f"{totals[1]:,}", "100%", *_gain(*totals)))
    blocks = (before.block, after.block)
    body.append(("one block", f"{blocks[0]:,}", "", f"{blocks[1]:,}", "", *_gain(*blocks)))
    header = ("parameters", name, "share", "changed", "share", "difference", "")
    yield from _fitting(header, body, 1, width, [(), (6,), (2, 4, 6)])
    yield from _tensors(both, name, width)
    body = [
        (
            _memory_label(kind),
            size(before.training[kind]),
            size(after.training[kind]),
            *_gain(before.training[kind], after.training[kind], size),
        )
        for kind in before.training
    ]
    totals = (before.sampling["total"], after.sampling["total"])
    body.append(("to sample", size(totals[0]), size(totals[1]), *_gain(*totals, size)))
    yield from _fitting(("memory to train", name, "changed", "difference", ""), body, 1, width)
    yield from text_lines([("", _batch(after))], width)
    works = [("forward", before.operations.forward, after.operations.forward)]
    works.append(("training", before.operations.training, after.operations.training))
    ways = (before.operations.kinds, after.operations.kinds)
    works[:0] = [(_KINDS.get(kind, kind), ways[0][kind], ways[1][kind]) for kind in ways[0]]
    body = [(label, brief(old), brief(new), *_gain(old, new, brief)) for label, old, new in works]
    yield from _fitting(("FLOP a token", name, "changed", "difference", ""), body, 1, width)
    yield from text_lines([("", _length(after))], width)


def _tensors(both: Comparison, name: str, width: int) -> Iterator[str]:
    """The tensors that differ."""
    old = {row.name: row for row in both.before.tensors}
    new = {row.name: row for row in both.after.tensors}
    # In the order of the changed model, and then what it has no more.
    names = [*new, *(name for name in old if name not in new)]
    body: Table = []
    for tensor in names:
        rows = old.get(tensor), new.get(tensor)
        if rows[0] == rows[1]:
            continue
        totals = [0 if row is None else row.total for row in rows]
        shapes = ["" if row is None else " x ".join([*map(str, row.shape)]) for row in rows]
        row = rows[1] or rows[0]
        formula = "" if row is None else row.formula
        told = [f"{total:,}" if total else "" for total in totals]
        body.append((tensor, formula, *shapes, *told, _gain(*totals)[0]))
    if not body:
        return
    header = (
        "tensor",
        "arithmetic",
        f"{name} shape",
        "changed shape",
        name,
        "changed",
        "difference",
    )
    yield from _fitting(header, body, 4, width, [(), (1,), (1, 2, 3)])
    same = len(names) - len(body)
    if same:
        others = plural(same, "other tensor stays", "other tensors stay")
        yield from text_lines([("", f"{others} as {'it is' if same == 1 else 'they are'}")], width)


def _gain(before: int, after: int, tell: Any = None) -> tuple[str, str]:
    """What is more or less, and by what share."""
    tell = tell or (lambda amount: f"{amount:,}")
    more = after - before
    if not more:
        return "0", ""
    sign = "+" if more > 0 else "-"
    return sign + tell(abs(more)), sign + percent(abs(more) / before) if before else "new"


# ---- tables


def _fitting(
    header: Sequence[str],
    body: Table,
    left: int,
    width: int,
    without: Sequence[tuple[int, ...]] = ((),),
    *,
    last: bool = False,
) -> Iterator[str]:
    """An empty line, and a table without the first columns that leave it no wider than `width`.

    without: places of columns, or those of the last one; `left` counts them all. last: the last
    column is text.
    """
    lines: list[str] = []
    for gone in without:
        kept = [place for place in range(len(header)) if place not in gone]
        rows = [tuple(row[place] for place in kept) for row in (header, *body)]
        if last and len(header) - 1 in kept:
            longest = max(len(row[-1]) for row in rows)
            rows = [(*row[:-1], row[-1].ljust(longest)) for row in rows]
        first = left - sum(place < left for place in gone)
        lines = list(table_lines(rows[0], rows[1:], left=first))
        if max(map(len, lines)) <= width:
            break
    yield ""
    yield from lines
