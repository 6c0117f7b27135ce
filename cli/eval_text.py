"""The answer of `andrea eval` as lines of text: who needs how many bits, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .info_text import table_lines, text_lines
from .screen.display import Rows, sample_lines, wrap
from .screen.formats import plural, size

_HEADER = ("", "bits/byte", "95% interval", "loss", "perplexity")


def eval_lines(facts: dict[str, Any], width: int) -> Iterator[str]:
    """The lines that show the facts, none longer than `width` where that is possible."""
    yield from text_lines(_what(facts), width)
    yield ""
    scores = sorted(facts["scores"].items(), key=lambda item: float(item[1]["bits_per_byte"]))
    yield from table_lines(_HEADER, [_row(name, score) for name, score in scores], left=1)
    yield ""
    yield from text_lines([("verdict", facts["verdict"]), *_notes(facts)], width)
    found = facts["memorised"]
    if found is not None and found["passage"].strip():
        for line in sample_lines(found["passage"]):
            for part in wrap(line, max(width - 4, 8), breaks_words=True):
                yield f"  | {part}".rstrip()


def _what(facts: dict[str, Any]) -> Rows:
    text, measured = facts["text"], facts["measured"]
    run = facts["run"]
    if facts["step"] is not None:
        run += f", step {facts['step']:,}"
    kind = "validation text of " if text["is_validation"] else ""
    amount = f"{size(text['bytes'])}, {plural(text['tokens'], 'token')}"
    passages, every = measured["passages"], measured["of_passages"]
    if passages == every:
        share = f"all of it, {plural(passages, 'passage')}"
    else:
        share = f"{passages:,} of {every:,} passages, spread evenly ({size(measured['bytes'])})"
    context = f"each token after {measured['least_context']:,} to {measured['most_context']:,}"
    rows = [
        ("run", run),
        *(("damaged", line) for line in facts["damaged"]),
        ("text", f"{kind}{text['name']}: {amount}"),
        ("measured", f"{share}; {context} others"),
    ]
    return rows


def _row(name: str, score: dict[str, Any]) -> tuple[str, ...]:
    interval, loss = score["interval"], score["loss"]
    return (
        name,
        f"{score['bits_per_byte']:.3f}",
        "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
        "" if loss is None else f"{loss:.4f}",
        "" if loss is None else _perplexity(score["perplexity"]),
    )


def _perplexity(value: float) -> str:
    return f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"


def _notes(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    measured = facts["measured"]
    counted, training = measured["counted_tokens"], measured["training_tokens"]
    if facts["missing"]:
        yield "left out", f"5-gram, unigram and memorised text: {facts['missing']}"
    elif counted < training:
        yield "5-gram", f"learned from {counted:,} of the {training:,} training tokens"
    if measured["compressed_bytes"] < facts["text"]["bytes"]:
        yield "xz, gzip", f"of the first {size(measured['compressed_bytes'])}"
    found, leaked = facts["memorised"], facts["text"]["leaked"]
    effect = "stand in the training text word for word: the numbers are better than on new text"
    if leaked is not None and leaked >= 0.01:
        yield "leak", f"{leaked:.0%} of the validation text's passages {effect}"
    elif leaked is None and found is not None and found["unseen_known"]:
        every = plural(len(found["unseen"]), "passage")
        yield "leak", f"{found['unseen_known']} of {every} from all over this text {effect}"
    if found is not None:
        yield "memorised", _about(found)


def _about(found: dict[str, Any]) -> str:
    about = (
        f"{plural(len(found['samples']), 'sample')} of the model share up to "
        f"{plural(found['longest'], 'byte')} in a row with the training text"
    )
    if found["unseen_known"]:
        return about
    if found["is_suspicious"]:
        conclusion = "the model has some of it by heart"
    elif found["longest"] > found["longest_unseen"]:
        conclusion = "little more than chance"
    else:
        conclusion = "no more than chance"
    return f"{about}, unseen text of their size up to {found['longest_unseen']:,}: {conclusion}"
