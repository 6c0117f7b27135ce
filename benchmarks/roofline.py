"""What a GPU's limits allow one training step in bf16, op by op, and what this design can reach.

limit: the least time of an op's kernels, each max(FLOPs / peak, bytes / bandwidth), by the GPU's
data sheet. reach: with what the design is made of: products of cuBLASLt at --gemm of the peak,
attention by mma.sync at the share of the peak that instruction has, its exponentials not hidden
behind it, memory at --memory of the bandwidth, and --gap microseconds between kernels. --gemm,
--memory and --gap are assumptions: nothing here is measured but what --measured brings.

MFU = FLOPs that the model's formulas ask for / (time x peak): 6 for each matrix parameter and
6 L T d of causal attention a token (andrea.planning.sizes.flops_per_token). "as PaLM counts" has
12 L T d instead (Chowdhery et al. 2022, appendix B), as if attention saw all positions.

    python benchmarks/roofline.py --shape andrea-120m --tokens 32768 --gpu h200
    python benchmarks/ops.py --device cuda --shape andrea-120m --tokens 32768 --precision bf16 \
        --json ops.json && python benchmarks/roofline.py --measured ops.json
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_step import ATTENTION, PRODUCT, Kernel, cuda_step
from gpus import GPUS, Gpu
from shapes import SHAPES, Shape, shape_of
from tables import figure, percent, table, write_json

DEFAULT_SHAPE, DEFAULT_TOKENS = "andrea-120m", 32768
# Too small to be ops of their own in ops.py.
_NOT_OPS = ("clear dx", "loss of the batch")
_SHORT_NAMES = {"120m": "andrea-120m", "12m": "andrea-12m"}


@dataclass(frozen=True)
class Reached:
    """Shares of the limits that the design is expected to reach, and seconds between kernels."""

    gemm: float
    memory: float
    gap: float


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join((*_SHORT_NAMES, *SHAPES))
    parser.add_argument(
        "--shape", default=DEFAULT_SHAPE, help=f"{names}, or V256,T128,L4,d128,h4,B16"
    )
    parser.add_argument(
        "--tokens", type=int, help=f"of a step (default: {DEFAULT_TOKENS}, or those of --measured)"
    )
    parser.add_argument("--gpu", choices=tuple(GPUS), default="h200")
    parser.add_argument("--gemm", type=float, default=0.7, help="of the peak, by cuBLASLt")
    parser.add_argument("--memory", type=float, default=0.9, help="of the bandwidth")
    parser.add_argument("--gap", type=float, default=1.0, help="microseconds between kernels")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="what ops.py --device cuda --json wrote"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plan", action="store_true", help="say what would be counted, and stop")
    arguments = parser.parse_args(command_line)
    if not (0 < arguments.gemm <= 1 and 0 < arguments.memory <= 1 and arguments.gap >= 0):
        parser.error("--gemm and --memory are shares above 0 up to 1, --gap is not negative")
    arguments.times = None
    at = "--shape: "
    try:
        arguments.sizes = shape_of(_SHORT_NAMES.get(arguments.shape, arguments.shape))
        at = "--measured: "
        if arguments.measured is not None and not arguments.plan:
            arguments.times, arguments.sizes = read_measured(arguments.measured)
        at = "--tokens: "
        if arguments.tokens is not None or arguments.times is None:
            tokens = DEFAULT_TOKENS if arguments.tokens is None else arguments.tokens
            arguments.sizes = arguments.sizes.with_tokens(tokens)
    except ValueError as error:
        parser.error(f"{at}{error}")
    return arguments


def read_measured(path: Path) -> tuple[dict[str, float], Shape]:
    """Seconds of one call by op, and the shape they were measured at.

    Raises:
        ValueError: the file isn't of ops.py on a GPU in bf16.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        on_gpu = told["device"].startswith("cuda") and told["precision"] == "bf16"
        times = {name: float(one["seconds"]) for name, one in told["ops"].items()}
        shape = Shape(**told["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not from ops.py --json: {error!r}") from error
    if not on_gpu:
        raise ValueError(f"{path} is of {told['device']} in {told['precision']}")
    return times, shape


def limit_seconds(kernel: Kernel, gpu: Gpu) -> float:
    """The least time of one call by the data sheet."""
    return max(kernel.flops / gpu.flops, kernel.bytes / gpu.bandwidth)


def reach_seconds(kernel: Kernel, gpu: Gpu, reached: Reached) -> float:
    """The time of one call by what the design is made of, the gap before it included."""
    working = 0.0
    if kernel.kind == PRODUCT:
        working = kernel.flops / (gpu.flops * reached.gemm)
    elif kernel.kind == ATTENTION:
        working = kernel.flops / (gpu.flops * gpu.mma) + kernel.exponentials / gpu.exponentials
    return max(working, kernel.bytes / (gpu.bandwidth * reached.memory)) + reached.gap


def rows_of(kernels: list[Kernel], gpu: Gpu, reached: Reached) -> dict[str, dict[str, Any]]:
    """By op, all of a step: calls, FLOPs, bytes, seconds and what bounds them."""
    rows: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        row = rows.setdefault(
            kernel.op,
            {"calls": kernel.calls, "launches": 0, "flops": 0.0, "needed": 0.0, "bytes": 0.0}
            | {"limit_seconds": 0.0, "reach_seconds": 0.0, "by_flops": 0.0},
        )
        limit = kernel.runs * limit_seconds(kernel, gpu)
        row["launches"] += kernel.runs if kernel.counts else 0
        row["flops"] += kernel.runs * kernel.flops
        row["needed"] += kernel.runs * kernel.needed
        row["bytes"] += kernel.runs * kernel.bytes
        row["limit_seconds"] += limit
        row["reach_seconds"] += kernel.runs * reach_seconds(kernel, gpu, reached)
        if kernel.flops / gpu.flops >= kernel.bytes / gpu.bandwidth:
            row["by_flops"] += limit
    for row in rows.values():
        by_flops = row.pop("by_flops") / row["limit_seconds"]
        row["bound_by"] = "FLOPs" if by_flops > 0.99 else "bytes" if by_flops < 0.01 else "both"
    return rows


def where_it_goes(kernels: list[Kernel], gpu: Gpu) -> dict[str, float]:
    """Seconds of the limits: what the model's formulas ask for, and what comes on top, by cause."""
    asked = "asked for by the model"
    causes = {PRODUCT: "products bound by their operands", ATTENTION: "attention's scores again"}
    parts = {asked: 0.0}
    for kernel in kernels:
        needed = kernel.runs * kernel.needed / gpu.flops
        parts[asked] += needed
        cause = causes.get(kernel.kind, kernel.kind)
        more = kernel.runs * limit_seconds(kernel, gpu) - needed
        parts[cause] = parts.get(cause, 0.0) + more
    return parts


def roofline(
    shape: Shape, gpu: Gpu, reached: Reached, times: dict[str, float] | None
) -> dict[str, Any]:
    """All figures of one step."""
    kernels = cuda_step(shape, gpu.memory)
    rows = rows_of(kernels, gpu, reached)
    if times is not None:
        for op, row in rows.items():
            row["measured_seconds"] = row["calls"] * times[op] if op in times else None
    needed = sum(row["needed"] for row in rows.values())
    # PaLM's formula has attention over all positions: twice the causal half.
    palm = needed + 6.0 * shape.n_layer * shape.block_size * shape.n_embd * shape.tokens
    totals = {
        key: sum(row[key] for row in rows.values()) for key in ("limit_seconds", "reach_seconds")
    }
    measured = [row.get("measured_seconds") for row in rows.values()]
    if times is not None and all(
        one is not None or op in _NOT_OPS for op, one in zip(rows, measured, strict=True)
    ):
        totals["measured_seconds"] = sum(one for one in measured if one is not None)
    return {
        "shape": shape.to_dict(),
        "gpu": asdict(gpu),
        "reached": asdict(reached),
        "ops": rows,
        "launches": sum(row["launches"] for row in rows.values()),
        "flops": sum(row["flops"] for row in rows.values()),
        "needed": needed,
        "bytes": sum(row["bytes"] for row in rows.values()),
        "seconds": totals,
        "mfu": {key: needed / (seconds * gpu.flops) for key, seconds in totals.items()},
        "mfu_as_palm": {key: palm / (seconds * gpu.flops) for key, seconds in totals.items()},
        "where": where_it_goes(kernels, gpu),
    }


def lines_of(told: dict[str, Any]) -> list[str]:
    """The table, its sum, and where the limits' time goes."""
    shape, gpu = Shape(**told["shape"]), Gpu(**told["gpu"])
    seconds = told["seconds"]
    is_measured = any("measured_seconds" in row for row in told["ops"].values())
    heads = ["op", "calls", "GFLOP", "MB", "limit ms", "by", "reach ms"]
    heads += ["ms", "of limit"] if is_measured else ["of all"]
    rows = []
    for op, row in told["ops"].items():
        cells = [
            op,
            str(row["calls"]),
            figure(row["flops"] / 1e9) if row["flops"] else "-",
            figure(row["bytes"] / 1e6),
            f"{1e3 * row['limit_seconds']:.3f}",
            row["bound_by"],
            f"{1e3 * row['reach_seconds']:.3f}",
        ]
        if is_measured:
            measured = row["measured_seconds"]
            cells.append("-" if measured is None else f"{1e3 * measured:.3f}")
            cells.append("-" if measured is None else percent(row["limit_seconds"] / measured))
        else:
            cells.append(f"{100 * row['limit_seconds'] / seconds['limit_seconds']:.1f}%")
        rows.append(cells)
    total = [
        "a step",
        "",
        figure(told["flops"] / 1e9),
        figure(told["bytes"] / 1e6),
    ]
    total += [
        f"{1e3 * seconds['limit_seconds']:.3f}",
        "",
        f"{1e3 * seconds['reach_seconds']:.3f}",
    ]
    if not is_measured:
        total.append("100%")
    else:
        step = seconds.get("measured_seconds")
        total.append("-" if step is None else f"{1e3 * step:.3f}")
        total.append("-" if step is None else percent(seconds["limit_seconds"] / step))
    reached = told["reached"]
    lines = [
        f"one step in bf16: {shape}, {shape.tokens:,} tokens, {told['launches']} launches",
        f"{gpu.name}: {gpu.flops / 1e12:g} TFLOP/s, {gpu.bandwidth / 1e12:g} TB/s",
        f"source: {gpu.source}",
        f"reach: products at {percent(reached['gemm'])} of the peak, attention's at "
        f"{percent(gpu.mma)}, memory at {percent(reached['memory'])}, gaps of "
        f"{1e6 * reached['gap']:g} us",
        "",
        *table(heads, [*rows, total]),
        "",
    ]
    names = {"limit_seconds": "limits", "reach_seconds": "reach", "measured_seconds": "measured"}
    for key, took in seconds.items():
        lines.append(
            f"{names[key]}: {figure(shape.tokens / took)} tokens/s, "
            f"MFU {percent(told['mfu'][key])} ({percent(told['mfu_as_palm'][key])} as PaLM counts)"
        )
    shares = ", ".join(
        f"{cause} {100 * part / seconds['limit_seconds']:.1f}%"
        for cause, part in told["where"].items()
    )
    lines += textwrap.wrap(f"where the limits' time goes: {shares}", 100)
    return lines


def main() -> None:
    arguments = arguments_of()
    shape: Shape = arguments.sizes
    gpu = GPUS[arguments.gpu]
    if arguments.plan:
        print(f"one step in bf16: {shape}, {shape.tokens:,} tokens, on {gpu.name}")
        return
    reached = Reached(arguments.gemm, arguments.memory, 1e-6 * arguments.gap)
    told = roofline(shape, gpu, reached, arguments.times)
    print("\n".join(lines_of(told)))
    if arguments.json:
        write_json(arguments.json, told)


if __name__ == "__main__":
    main()
