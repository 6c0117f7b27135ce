"""Times each op of a training step against its own limit: FLOPs or bytes, whichever is more.

Peak and bandwidth are measured around each op, since clocks drift; bandwidth with a buffer of the
op's own size, so that what stays in a cache is held against the cache. Weights are packed inside
each call of a linear op on a CPU here, but once a step in training: such an op's share is a lower
bound. On a GPU calls are queued in batches, and what a batch takes is divided by its calls.

    python benchmarks/ops.py --shape andrea-12m --precision fp32
    python benchmarks/ops.py --device cuda --shape andrea-120m --tokens 32768 --precision bf16
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disturbance import CoreWatch, Measurement, undisturbed
from machine import machine, machine_line
from processes import INSTRUCTION_SETS
from shapes import DIALECTS, ELEMENT_BYTES, SHAPES, Shape, shape_of
from tables import figure, others, percent, table, write_json
from timing import time_calls

if TYPE_CHECKING:
    from engine_ops import EngineOps
    from machine_limits import ProductRate
    from op_cases import OpCase

_SMALLEST_READ = 1 << 16  # bytes: below, waking the threads is what would be timed


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", default="andrea-12m", help=f"{', '.join(SHAPES)}, or V256,T128,L4,d128,h4,B16"
    )
    parser.add_argument(
        "--dialect",
        choices=tuple(DIALECTS),
        default="gpt2",
        help="what the blocks are made of (default: gpt2)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--tokens", type=int, help="of a step: as many sequences as that takes")
    parser.add_argument("--precision", choices=tuple(ELEMENT_BYTES), default="fp32")
    parser.add_argument("--threads", type=int, help="default: Andrea's choice")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each op")
    parser.add_argument("--only", default="", help="ops whose name has this (a regular expression)")
    parser.add_argument("--isa", choices=INSTRUCTION_SETS, help="use this instruction set")
    parser.add_argument(
        "--disturbed", type=float, default=0.05, help="share of the cores that others may use"
    )
    parser.add_argument("--attempts", type=int, default=3, help="of a disturbed measurement")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plan", action="store_true", help="say what would be timed, and stop")
    arguments = parser.parse_args(command_line)
    if min(arguments.attempts, arguments.threads or 1) < 1:
        parser.error("--attempts and --threads begin with 1")
    try:
        arguments.shape_sizes = replace(shape_of(arguments.shape), dialect=arguments.dialect)
    except ValueError as error:
        parser.error(f"--shape: {error}")
    if arguments.tokens is not None:
        try:
            arguments.shape_sizes = arguments.shape_sizes.with_tokens(arguments.tokens)
        except ValueError as error:
            parser.error(f"--tokens: {error}")
    return arguments


def time_op(device: EngineOps, case: OpCase, peak: ProductRate, seconds: float) -> Measurement:
    """The median call, and the limits just before and after the calls."""
    from machine_limits import ReadBandwidth, beyond_the_caches

    run = case.prepare(device)
    size = min(max(_SMALLEST_READ, int(case.bytes)), beyond_the_caches(device.device))
    reading = ReadBandwidth(device, size)
    run()
    watch = CoreWatch()
    peaks, bandwidths = [peak.measure()], [reading.measure()]
    before = device.launches()
    times = time_calls(run, device.synchronize if device.is_gpu else None, seconds)
    launches = (device.launches() - before) / times.calls
    peaks.append(peak.measure())
    bandwidths.append(reading.measure())
    share = watch.others_share()
    device.release()
    by_flops = case.flops / statistics.mean(peaks)
    by_bytes = case.bytes / statistics.mean(bandwidths)
    median = statistics.median(times.seconds)
    return {
        "seconds": median,
        "calls_timed": times.calls,
        "launches": launches,
        "limit_seconds": max(by_flops, by_bytes),
        "share_of_limit": max(by_flops, by_bytes) / median,
        "bound_by": "FLOPs" if by_flops >= by_bytes else "bytes",
        "flops": case.flops,
        "bytes": case.bytes,
        "peak_flops": statistics.mean(peaks),
        "bandwidth": statistics.mean(bandwidths),
        "calls_of_a_step": case.calls,
        "others_share": share,
    }


def time_ops(arguments: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    if arguments.isa:
        os.environ["MICROGPT_ISA"] = arguments.isa  # read when the library is loaded, below
    from engine_ops import EngineOps
    from machine_limits import ProductRate
    from op_cases import op_cases

    import andrea

    if arguments.threads:
        andrea.set_num_threads(arguments.threads)
    device = EngineOps(arguments.precision, arguments.device)
    peak = ProductRate(arguments.precision, arguments.device)
    weight_bytes = device.element_bytes if device.is_gpu else 4
    measured: dict[str, Measurement] = {}
    for case in op_cases(shape, device.element_bytes, weight_bytes):
        if re.search(arguments.only, case.name):
            measured[case.name] = undisturbed(
                partial(time_op, device, case, peak, arguments.seconds),
                arguments.disturbed,
                arguments.attempts,
            )
    device.close()
    peak.close()
    return {
        "machine": machine(),
        "engine": andrea.engine_info(),
        "device": arguments.device,
        "shape": shape.to_dict(),
        "precision": arguments.precision,
        "threads": andrea.get_num_threads(),
        "ops": measured,
    }


def op_lines(told: dict[str, Any]) -> list[str]:
    """The figures for a reader, and their sum over a training step."""
    rows: list[tuple[str, ...]] = []
    step = limit = 0.0
    for name, one in told["ops"].items():
        calls = one["calls_of_a_step"]
        step += calls * one["seconds"]
        limit += calls * one["limit_seconds"]
        rows.append(
            (
                name,
                str(calls or "-"),
                figure(1e3 * one["seconds"]),
                figure(1e3 * one["limit_seconds"]),
                percent(one["share_of_limit"]),
                one["bound_by"],
                figure(1e3 * calls * one["seconds"]) if calls else "-",
                others({**one, "disturbed_rounds": int(one["disturbed"])}),
            )
        )
    heads = ("op", "a step", "ms", "limit ms", "share", "bound by", "ms a step", "others")
    lines = table(heads, rows)
    if step:
        share = percent(limit / step)
        lines.append(f"all ops of a step: {figure(1e3 * step)} ms, {share} of their limits' speed")
    return lines


def main() -> None:
    arguments = arguments_of()
    shape: Shape = arguments.shape_sizes
    dialect = "" if shape.dialect == "gpt2" else f"{shape.dialect}, "
    name = f", {arguments.shape}" if arguments.shape in SHAPES else ""
    head = f"ops{name}: {shape}, {dialect}{arguments.device}, {arguments.precision}"
    if arguments.plan:
        print(f"{head}; {arguments.seconds:g} s an op")
        return
    import andrea

    try:
        told = time_ops(arguments, shape)
    except (andrea.DeviceError, andrea.OutOfMemoryError) as error:
        sys.exit(
            f"{arguments.device}: {error}" if arguments.device not in str(error) else str(error)
        )
    engine = told["engine"]
    print(machine_line(told["machine"]))
    print(f"{head}; {told['threads']} threads, Andrea {engine['version']}, {engine['isa']}\n")
    print("\n".join(op_lines(told)))
    if arguments.json:
        write_json(arguments.json, told)


if __name__ == "__main__":
    main()
