"""The answers of `andrea info` as lines of text: aligned columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .screen.display import Rows, row_lines
from .screen.formats import count, duration, plural, size
from .texts import TextRequest

_GAP = "  "
_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def info_lines(facts: dict[str, Any], width: int) -> Iterator[str]:
    """The lines that show the facts, none longer than `width` where that is possible."""
    if "presets" in facts:
        yield from _overview(facts, width)
        return
    if "run" in facts:
        yield from text_lines(_run_rows(facts["run"]), width)
        yield ""
    yield from _model(facts, width)


def _overview(facts: dict[str, Any], width: int) -> Iterator[str]:
    machine = facts["machine"]
    free = machine["memory_available"]
    yield from text_lines(
        [
            ("andrea", f"{machine['andrea']}, engine {machine['engine']}"),
            ("devices", ", ".join(machine["devices"])),
            ("gpu", machine["gpu"] or f"none: {machine['no_gpu']}"),
            (
                "instructions",
                f"{machine['instruction_set']} (of {', '.join(machine['instruction_sets'])})",
            ),
            ("threads", str(machine["threads"])),
            ("memory", f"{size(free)} available" if free else "unknown"),
        ],
        width,
    )
    yield ""
    header = ("preset", "layers", "heads", "width", "context", "vocabulary", "parameters", "memory")
    body = []
    for preset in facts["presets"]:
        config = preset["config"]
        body.append(
            (
                preset["name"],
                str(config["n_layer"]),
                str(config["n_head"]),
                str(config["n_embd"]),
                str(config["block_size"]),
                "from text" if preset["vocab_size_from_text"] else str(config["vocab_size"]),
                f"{preset['parameters']:,}",
                size(preset["training_memory"]),
            )
        )
    yield from table_lines(header, body, left=1)
    yield ""
    yield "memory: training one sequence at a time. More: andrea info andrea-12m"


def _run_rows(run: dict[str, Any]) -> Rows:
    state, losses, record = run["state"] or {}, run["losses"], run["record"]
    rows = [("run", run["path"]), ("checkpoint", size(run["checkpoint_bytes"]))]
    training = run["training"]
    if training is None:
        held = f"weights and moments of step {state['step']:,}" if state else "weights only"
        rows.append(("state", f"{held}: can be sampled from, not continued"))
    else:
        if training["steps"]:
            rows.append(("step", f"{state.get('step', 0):,} of {training['steps']:,}"))
        else:
            spent = f"{duration(state.get('elapsed', 0))} of {duration(training['seconds'])}"
            rows.append(("step", f"{state.get('step', 0):,}, {spent}"))
        told = []
        if losses.get("training") is not None:
            told.append(f"training {losses['training']:.4f}")
        if losses.get("validation") is not None:
            told.append(f"validation {losses['validation']:.4f}")
        if losses.get("bits_per_byte") is not None:
            told.append(f"{losses['bits_per_byte']:.3f} bits/byte")
        if state.get("best_loss") is not None:
            told.append(f"best validation {state['best_loss']:.4f} at step {state['best_step']:,}")
        if told:
            rows.append(("loss", ", ".join(told)))
        batch = plural(training["batch_size"], "sequence")
        if training["accumulate"] > 1:
            batch = f"{training['accumulate']} x {batch}"
        rows.append(
            (
                "training",
                f"{batch} a step, learning rate {training['learning_rate']:g}, "
                f"warm-up {plural(training['warmup'], 'step')}, "
                f"weight decay {training['weight_decay']:g}, seed {training['seed']}",
            )
        )
    rows.append(("tokenizer", run["tokenizer"]))
    if "sources" in record:
        text = TextRequest.from_record(record).describe()
        if "num_bytes" in record:
            text += f": {plural(record['documents'], 'document')}, {size(record['num_bytes'])}, "
            text += f"{record['train_tokens']:,} + {record['validation_tokens']:,} tokens"
        rows.append(("data", text))
    return rows


def _model(facts: dict[str, Any], width: int) -> Iterator[str]:
    config, dialect = facts["config"], facts["dialect"]
    sizes = ", ".join(f"{name} {config[name]:,}" for name in _SIZES)
    yield from text_lines(
        [
            (facts.get("preset", "model"), f"{sizes}, mlp_dim {dialect['mlp_dim']:,}"),
            ("dialect", dialect["description"] or "GPT-2's"),
            ("norms", facts["norms"]["places"]),
        ],
        width,
    )
    yield ""
    body = [
        (
            row["name"],
            " x ".join(str(length) for length in row["shape"]),
            row["formula"],
            f"{row['count']:,}",
            f"x {row['copies']}" if row["copies"] > 1 else "",
            f"{row['total']:,}",
        )
        for row in facts["table"]
    ]
    body.append(("all", "", "", "", "", f"{facts['parameters']:,}"))
    header = ("tensor", "shape", "arithmetic", "one", "blocks", "all")
    lines = list(table_lines(header, body, left=3))
    if max(map(len, lines)) > width:
        # The arithmetic gives the shape; it is what a narrow terminal can do without.
        narrow = [row[:1] + row[2:] for row in body]
        lines = list(table_lines(header[:1] + header[2:], narrow, left=2))
    yield from lines
    yield ""
    head = f"{config['vocab_size'] * config['n_embd']:,} parameters"
    if dialect["tie_embeddings"]:
        head = f"is wte.weight (tied): {head} counted once"
    else:
        head = f"is lm_head.weight (untied): {head} of its own"
    training, sampling = facts["memory"]["training"], facts["memory"]["sampling"]
    batch = plural(facts["batch_size"], "sequence")
    flops = facts["flops_per_token"]
    yield from text_lines(
        [
            ("output head", head),
            ("to train", f"{size(training['total'])} with {batch} a batch: {_parts(training)}"),
            ("to sample", f"{size(sampling['total'])}: {_parts(sampling)}"),
            (
                "per token",
                f"{count(flops['forward'])} FLOP forward, {count(flops['training'])} FLOP training "
                f"({flops['formula']})",
            ),
        ],
        width,
    )


def _parts(memory: dict[str, int]) -> str:
    return ", ".join(
        f"{kind} {size(amount)}" for kind, amount in memory.items() if amount and kind != "total"
    )


def text_lines(rows: Rows, width: int) -> Iterator[str]:
    """Names and what there is to say about them, in two columns."""
    for name, parts in row_lines(rows, width):
        for number, part in enumerate(parts):
            yield (name if number == 0 else " " * len(name)) + part


def table_lines(header: Sequence[str], body: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Aligned columns: the first `left` ones to the left, the others, numbers, to the right."""
    rows = [header, *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield _GAP.join(cells).rstrip()
