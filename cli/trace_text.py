"""The answer of `andrea trace` as lines of text: a block step by step, then all blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from .info_text import table_lines, text_lines
from .screen.display import Rows
from .screen.formats import plural

if TYPE_CHECKING:
    from andrea.lessons.trace import MLP, Attention, Norm

    from .trace import Findings

Lines = Iterator[tuple[str, bool]]
_GAP = "  "
_SHADES, _ASCII_SHADES = " ░▒▓█", " .:*#"
# So many tokens a head or a prediction are named, where they have room.
_MOST_NAMED = 8
# Lines of the text's tokens.
_MOST_LINES = 8
# Characters for one number of a vector.
_NUMBER = 9


def trace_lines(findings: Findings, width: int) -> Lines:
    """The lines that show the findings, with whether each is a title; none longer than `width`
    where that is possible."""
    yield from _told(text_lines(_about(findings), width))
    yield from _told(_text(findings, width))
    yield from _block(findings, width)
    yield from _all_blocks(findings, width)
    yield from _lens(findings, width)
    if findings.start is not None:
        yield from _start(findings, width)


def _told(lines: Iterator[str]) -> Lines:
    for line in lines:
        yield line, False


def _title(text: str) -> Lines:
    yield "", False
    yield text, True


def _about(findings: Findings) -> Rows:
    from andrea.planning.dialects import describe_dialect

    about, config = findings.about, findings.config
    if "run" in about:
        what = about["run"] + (f", step {about['step']:,}" if about["step"] is not None else "")
        rows = [("run", what), *(("damaged", line) for line in about["damaged"])]
    else:
        rows = [("model", f"{about['untrained']}, untrained, from seed {about['seed']}")]
    sizes = f"{plural(config.n_layer, 'block')}, {plural(config.n_head, 'head')}, width "
    sizes += f"{config.n_embd:,}, MLP {config.mlp_dim:,} wide, {config.vocab_size:,} tokens"
    return [
        *rows,
        ("sizes", sizes),
        ("dialect", describe_dialect(config) or "GPT-2's"),
        ("engine", f"{about['device']}, {about['precision']}; what it doesn't keep is derived"),
    ]


# ---- the text


def _text(findings: Findings, width: int) -> Iterator[str]:
    """Each token with its place, so that one finds the one to follow."""
    from andrea.lessons.trace_tokens import signs

    labels, place = findings.labels, findings.trace.position
    cells = [f"{index} {label}" for index, label in enumerate(labels)]
    lines = _filled(cells, width - 9)
    # Of a long text, what is around the token.
    at = next(number for number, line in enumerate(lines) if cells[place] in line)
    first = max(min(at - _MOST_LINES // 2, len(lines) - _MOST_LINES), 0)
    chosen = lines[first : first + _MOST_LINES]
    for number, line in enumerate(chosen):
        yield ("text     " if number == 0 else " " * 9) + _GAP.join(line)
    if len(chosen) < len(lines):
        count = sum(map(len, chosen))
        yield " " * 9 + f"({count} of {plural(len(cells), 'token')}; --json has all)"
    shown = signs(labels, ascii_only=findings.ascii_only)
    if shown:
        yield " " * 9 + f"({shown})"
    after = labels[place + 1] if place + 1 < len(labels) else None
    follows = f"{after} follows" if after is not None else "the text ends with it"
    yield f"token    {place} {labels[place]}; {follows}"


def _filled(cells: Sequence[str], width: int) -> list[list[str]]:
    """Cells in lines that they fill, with a gap between any two; a line has one at least."""
    lines: list[list[str]] = []
    room = 0
    for cell in cells:
        needed = cell_len(cell) + len(_GAP)
        if not lines or needed > room:
            lines.append([cell])
            room = width - cell_len(cell)
        else:
            lines[-1].append(cell)
            room -= needed
    return lines


def _first_line(cells: Sequence[str], width: int) -> str:
    return _GAP.join(_filled(cells, width)[0])


# ---- one block


def _block(findings: Findings, width: int) -> Lines:
    from andrea.lessons.trace_pictures import degrees

    trace, config = findings.trace, findings.config
    attention, mlp = trace.attention, trace.mlp
    label = findings.labels[trace.position]
    yield from _title(f"Token {trace.position} {label} through block {trace.block}")
    yield from _step("stream before", _vector(trace.before, width))
    yield from _sublayer_norm(findings, attention.norm, "pre", width)
    read = f"{config.n_embd:,} -> 3 x {config.n_embd:,}: a query, key and value of "
    yield from _step("c_attn", f"{read}{config.head_dim} numbers for each head", width)
    yield from _told(_heads(findings, attention, width))
    yield from _told(_shades(findings, attention, width))
    norms = findings.norms
    place = trace.block, trace.position
    angle = float(degrees(norms.attention_cosine[place]))
    yield from _delta(findings, "attention", attention, norms.stream[place], angle, width)
    yield from _sublayer_norm(findings, attention.norm, "post", width)
    yield from _step("stream between", _vector(trace.middle, width))
    yield from _sublayer_norm(findings, mlp.norm, "pre", width)
    yield from _step("c_fc", _expansion(findings), width)
    yield from _step(config.activation, _gates(mlp, config.activation), width)
    angle = float(degrees(norms.mlp_cosine[place]))
    yield from _delta(findings, "mlp", mlp, norms.middle[place], angle, width)
    yield from _sublayer_norm(findings, mlp.norm, "post", width)
    yield from _step("stream after", _vector(trace.after, width))


def _step(name: str, text: str, width: int = 0) -> Lines:
    for line in text_lines([(name.ljust(14), text)], width or 10_000):
        yield line, False


def _vector(row: Any, width: int) -> str:
    """A row's length, and as many of its numbers as the line has room for."""
    start = f"length {number(_length(row))}: "
    # 16 of the name; room for the dots.
    shown = row[: max(2, (width - 16 - 16 - 4) // _NUMBER)]
    largest = float(np.abs(shown).max())
    # All with as many decimals, so that one sees which are large.
    decimals = 0 if largest >= 1000 else 2 - math.floor(math.log10(max(largest, 1e-3)))
    kind = ".1e" if 0 < largest < 1e-3 else f".{decimals}f"
    numbers = "".join(f"{value:{_NUMBER}{kind}}" for value in shown)
    return f"{start:16}{numbers}{' ...' if len(row) > len(shown) else ''}"


def _sublayer_norm(findings: Findings, norm: Norm | None, position: str, width: int) -> Lines:
    """The norm, where it stands before or after a sublayer."""
    config = findings.config
    if norm is None or config.norm_position != position:
        return
    learned = " x gain" if config.norm_affine else ""
    if norm.mean is None:
        how = f"mean square {number(norm.variance)}; x / sqrt(that + 1e-5){learned}"
    else:
        learned += " + bias" if config.norm_affine else ""
        how = f"mean {number(norm.mean)}, variance {number(norm.variance)}; "
        how += f"(x - mean) / sqrt(variance + 1e-5){learned}"
    yield from _step(norm.name.rpartition(".")[2], how, width)
    yield from _step("", _vector(norm.normed, width))


def _heads(findings: Findings, attention: Attention, width: int) -> Iterator[str]:
    """Each head: the lengths of its vectors and of what it adds, and whom it looks at."""
    labels = findings.labels
    header = ("head", "|query|", "|key|", "|value|", "|adds|", "looks at")
    body = [
        (
            str(head),
            *(
                number(_length(vector[head]))
                for vector in (attention.query, attention.key, attention.value, attention.parts)
            ),
            "",
        )
        for head in range(len(attention.weights))
    ]
    lines = [f"  {line}" for line in table_lines(header, body, left=1)]
    yield lines[0]
    start = len(lines[0]) - len(header[-1])
    for line, weights in zip(lines[1:], attention.weights, strict=True):
        order = np.argsort(-weights, kind="stable")[:_MOST_NAMED]
        # Over many tokens all weights are small.
        largest = weights[order[0]]
        digits = 0 if largest >= 0.1 else 1 if largest >= 0.01 else 2
        cells = [f"{place} {labels[place]} {weights[place]:.{digits}%}" for place in order]
        yield line.ljust(start) + _first_line(cells, max(width - start, 16))


def _shades(findings: Findings, attention: Attention, width: int) -> Iterator[str]:
    """The weights as shades below the tokens' texts, the last ones where not all have room."""
    shades = _ASCII_SHADES if findings.ascii_only else _SHADES
    labels = findings.labels[: attention.weights.shape[-1]]
    start = 11
    columns = [max(cell_len(label), 1) + 1 for label in labels]
    first = len(labels) - 1
    used = columns[first]
    while first > 0 and used + columns[first - 1] <= width - start:
        first -= 1
        used += columns[first]
    line = "".join(
        label + " " * (column - cell_len(label))
        for label, column in zip(labels[first:], columns[first:], strict=True)
    )
    yield ""
    yield f"  {'head':7}  {line}".rstrip()
    for head, weights in enumerate(attention.weights):
        most = float(weights.max())
        cells = (
            shades[min(int(weight / most * len(shades)), len(shades) - 1)] * (column - 1) + " "
            for weight, column in zip(weights[first:], columns[first:], strict=True)
        )
        before = f"{weights[:first].sum():.0%} <" if first else ""
        yield f"  {head:<3}{before:>5} {''.join(cells)}".rstrip()
    note = f"  shades {shades[1:]}: weight, in fifths of the head's largest"
    if first:
        note += f"; <: to tokens 0 to {first - 1}"
    yield note
    yield ""


def _delta(
    findings: Findings, name: str, part: Attention | MLP, before: float, angle: float, width: int
) -> Lines:
    """What a sublayer puts out, against the stream it is added to."""
    delta = _length(part.delta)
    sign = "+ " if findings.config.residual else "= "
    yield from _step(f"{sign}{name}", _vector(part.delta, width))
    told = f"{_ratio(delta, before)} the stream's length, at {angle:.0f} degrees to it"
    if not findings.config.residual:
        told += "; it takes the stream's place"
    yield from _step("", told, width)


def _ratio(part: float, whole: float) -> str:
    if not whole:
        return "not to be measured by"
    share = part / whole
    return f"{share:.1f} times" if share >= 2 else f"{share:.0%} of" if share >= 0.01 else "<1% of"


def _expansion(findings: Findings) -> str:
    config = findings.config
    text = f"{config.n_embd:,} -> {config.hidden_dim:,} numbers"
    if config.is_gated:
        return f"{text}: {config.mlp_dim:,} units and as many gates"
    return f"{text}, {config.mlp_dim / config.n_embd:.3g} for each of the stream's"


def _gates(mlp: MLP, activation: str) -> str:
    units = len(mlp.gate)
    is_open = round(mlp.open_share * units)
    text = f"lets {is_open:,} of {units:,} units through, {mlp.open_share:.0%}: those whose "
    if activation in ("relu", "relu2"):
        return text + "number is above 0"
    gate = {"swiglu": "sigmoid(gate)"}.get(activation, "Phi(x)")
    opening = {"swiglu": "gate"}.get(activation, "number")
    return (
        f"{text}{opening} is above 0, so that {gate} is over 1/2; its mean is {mlp.mean_gate:.2f}"
    )


# ---- all blocks


def _all_blocks(findings: Findings, width: int) -> Lines:
    from andrea.lessons.trace_pictures import degrees

    norms, trace = findings.norms, findings.trace
    place = trace.position
    yield from _title(f"All blocks at token {place} {findings.labels[place]}: lengths and angles")
    header = ("block", "stream", "attention", "angle", "MLP", "angle", "change", "turn")
    body = []
    for block in range(len(norms.middle)):
        at = block, place
        body.append(
            (
                f"{block} <" if block == trace.block else str(block),
                number(norms.stream[at]),
                number(norms.attention[at]),
                f"{degrees(norms.attention_cosine[at]):.0f}",
                number(norms.mlp[at]),
                f"{degrees(norms.mlp_cosine[at]):.0f}",
                f"{norms.change[at]:.0%}",
                f"{degrees(norms.kept[at]):.0f}",
            )
        )
    body.append(("end", number(norms.stream[-1, place]), "", "", "", "", "", ""))
    yield from _told(table_lines(header, body, left=1))
    text = "angle: degrees between what is added and the stream it is added to. change: length of "
    text += "(after - before) against before; turn: degrees between them"
    yield from _told(text_lines([("", text)], width))


def _lens(findings: Findings, width: int) -> Lines:
    from andrea.lessons.trace_start import mean_loss

    lens, row = findings.lens, findings.lens_row
    guess = math.log(findings.config.vocab_size)
    target = int(lens.targets[row])
    ending = "final norm and head" if findings.config.final_norm else "head"
    yield from _title(f"If the model stopped after so many blocks: its {ending} applied")
    means = mean_loss(lens)
    known = int((lens.targets >= 0).sum())
    header = ["blocks"]
    columns: list[list[str]] = [[str(depth) for depth in range(len(lens.tokens))]]
    if target >= 0:
        header += ["p(next)", "rank", "loss"]
        columns.append([_share(share) for share in lens.target_probability[:, row]])
        columns.append([str(rank + 1) for rank in lens.target_rank[:, row]])
        columns.append([f"{loss:.2f}" for loss in lens.loss[:, row]])
    header.append("entropy")
    columns.append([f"{entropy:.2f}" for entropy in lens.entropy[:, row]])
    if known:
        header.append("mean loss")
        columns.append([f"{mean:.2f}" for mean in means])
    lines = list(table_lines(header, list(zip(*columns, strict=True)), left=0))
    yield f"{lines[0]}{_GAP}likeliest next", False
    room = max(width - len(lines[0]) - len(_GAP), 16)
    for line, tokens, shares in zip(
        lines[1:], lens.tokens[:, row], lens.probabilities[:, row], strict=True
    ):
        cells = [
            f"{findings.name_of(int(token))} {_share(share)}"
            for token, share in zip(tokens, shares, strict=True)
        ]
        yield f"{line}{_GAP}{_first_line(cells, room)}", False
    text = f"nats; a guess among {findings.config.vocab_size:,} tokens: {guess:.2f}"
    if target >= 0:
        text += f". next: {findings.name_of(target)}"
    if known:
        text += f". mean loss: over {plural(known, 'token')} of the text"
    yield from _told(text_lines([("", text)], width))


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"


# ---- an untrained model


def _start(findings: Findings, width: int) -> Lines:
    from andrea.lessons.trace_start import NEAR_IDENTITY, NEAR_UNIFORM

    start = findings.start
    assert start is not None
    near, blocks = int(start.near_identity.sum()), len(start.change)
    least, most = int(start.change.argmin()), int(start.change.argmax())
    verdict = "yes" if near == blocks else "in part" if near else "no"
    text = f"{verdict}: {near:,} of {plural(blocks, 'block')}, by the bound that a block changes "
    text += f"the stream by less than {NEAR_IDENTITY:.0%} of its length. Change, a mean over the "
    text += f"tokens: {start.change[most]:.0%} in block {most}"
    if blocks > 1:
        text += f", the largest, to {start.change[least]:.0%} in block {least}"
    share = start.entropy[-1] / start.uniform
    verdict = "yes" if start.near_uniform else "no"
    uniform = f"{verdict}: by the bound that their entropy is {NEAR_UNIFORM:.0%} or more of "
    uniform += f"ln {findings.config.vocab_size:,} = {start.uniform:.3f} nats. After all blocks it "
    uniform += f"is {start.entropy[-1]:.3f}, {share:.1%}, a mean over the tokens"
    yield from _title("At the start")
    rows = [("blocks near the identity", text), ("predictions near uniform", uniform)]
    yield from _told(text_lines(rows, width))


def number(value: float) -> str:
    """A number in three digits, however large or small."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def _length(row: Any) -> float:
    return float(np.linalg.norm(row))
