"""How fast this machine trains and decodes with Andrea, beside its limits and its peers.

Peers are PyTorch and, for decoding, llama.cpp, where they are installed. Each measurement is a
fresh process, and they alternate: limits, Andrea, PyTorch, limits, Andrea, PyTorch, ... One that
other processes disturbed is repeated. Told are medians of the rounds, and ratios and shares of a
limit that were taken round by round.

    python benchmarks/speed.py --torch-python PATH --json FILE
    python benchmarks/speed.py --device cuda --torch-python PATH --json FILE
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from bench import LIMITS, Bench, limits_summary, say
from decoding import compare_decoding, decoding_lines
from machine import machine, machine_line
from processes import INSTRUCTION_SETS, ChildError, Launcher
from rounds import in_turn
from shapes import DIALECTS, SHAPES, Shape, in_dialects, shape_of
from tables import figure, others, table, write_json
from training import compare_training, training_lines

WHAT = ("limits", "train", "decode")
DECODED = "andrea-120m"
GPU_TOKENS = (8192, 16384, 32768, 65536)


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--what", default=",".join(WHAT), help="parts, with commas between (default: all three)"
    )
    parser.add_argument(
        "--shape",
        nargs="+",
        metavar="SHAPE",
        help=f"{', '.join(SHAPES)}, or V256,T128,L4,d128,h4,B16 "
        f"(default: all four are trained, {DECODED} decodes)",
    )
    parser.add_argument(
        "--dialect",
        nargs="+",
        choices=tuple(DIALECTS),
        default=["gpt2"],
        help="what the blocks are made of (default: gpt2, in which alone llama.cpp decodes)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of all engines (default: cpu)"
    )
    parser.add_argument(
        "--tokens",
        type=lambda text: [int(part) for part in text.split(",")],
        metavar="N,N,...",
        help="of a training step, instead of the shapes' own batches; on a GPU the default is "
        f"{','.join(map(str, GPU_TOKENS))}, and {DECODED} alone is trained",
    )
    parser.add_argument(
        "--precision", nargs="+", choices=("fp32", "bf16"), help="Andrea's (default: all it has)"
    )
    parser.add_argument(
        "--torch-precision",
        nargs="+",
        choices=("fp32", "bf16"),
        default=("fp32", "bf16"),
        help="those PyTorch is tried in (default: both)",
    )
    parser.add_argument("--threads", type=int, help="of every engine (default: Andrea's choice)")
    parser.add_argument(
        "--scaling", action="store_true", help="train with Andrea on 1 thread as well, in turn"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument(
        "--torch-python", default=sys.executable, help="a Python that has the peers (default: this)"
    )
    parser.add_argument("--torch-preload", help="a library to preload there, such as tcmalloc")
    parser.add_argument("--torch-clips", action="store_true", help="PyTorch clips gradients too")
    parser.add_argument("--no-peers", action="store_true", help="measure Andrea alone")
    parser.add_argument("--isa", choices=INSTRUCTION_SETS, help="limit all engines to these")
    parser.add_argument(
        "--disturbed", type=float, default=0.05, help="share of the cores that others may use"
    )
    parser.add_argument("--attempts", type=int, default=3, help="of a disturbed measurement")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and stop")
    arguments = parser.parse_args(command_line)
    arguments.what = arguments.what.split(",")
    if not set(arguments.what) <= set(WHAT):
        parser.error(f"--what: parts are {', '.join(WHAT)}")
    if min(arguments.rounds, arguments.attempts, arguments.threads or 1) < 1:
        parser.error("--rounds, --attempts and --threads begin with 1")
    on_gpu = arguments.device != "cpu"
    if on_gpu and (arguments.isa or arguments.scaling):
        parser.error("--device cuda: --isa and --scaling are for the CPU")
    try:
        named = {
            name: shape_of(name) for name in arguments.shape or ([DECODED] if on_gpu else SHAPES)
        }
    except ValueError as error:
        parser.error(f"--shape: {error}")
    decoded = named if arguments.shape else {DECODED: SHAPES[DECODED]}
    tokens = arguments.tokens or (GPU_TOKENS if on_gpu and not arguments.shape else ())
    try:
        if tokens:
            named = {f"{n}, {t} tokens": named[n].with_tokens(t) for n in named for t in tokens}
    except ValueError as error:
        parser.error(f"--tokens: {error}")
    named, decoded = (in_dialects(shapes, arguments.dialect) for shapes in (named, decoded))
    arguments.trained = named if "train" in arguments.what else {}
    arguments.decoded = decoded if "decode" in arguments.what else {}
    return arguments


def plan_lines(arguments: argparse.Namespace) -> list[str]:
    peers = "alone" if arguments.no_peers else f"and the peers of {arguments.torch_python}"
    lines = [f"{arguments.rounds} rounds of {arguments.seconds:g} s an engine: Andrea {peers}"]
    if "limits" in arguments.what:
        on_cpu = arguments.device == "cpu"
        lines.append(f"limits: products and reading, {'at 1 thread and all' if on_cpu else 'cuda'}")
    for task, shapes in (("train", arguments.trained), ("decode", arguments.decoded)):
        lines += [f"{task}: {name} ({shape})" for name, shape in shapes.items()]
    return lines


def bench_of(arguments: argparse.Namespace) -> tuple[Bench, dict[str, Any]]:
    """The settings of the run, and the versions of the engines that are there."""
    launcher = Launcher(arguments.torch_python, arguments.isa, arguments.torch_preload)
    describe = {"task": "describe", "device": arguments.device}
    versions = {"andrea": launcher.run("andrea", describe)}
    for kind in () if arguments.no_peers else ("torch", "llama.cpp"):
        try:
            versions[kind] = launcher.run(kind, describe)
        except ChildError as error:
            say(f"{kind} is not measured: {error}")
    own = versions["andrea"]
    bench = Bench(
        launcher=launcher,
        device=arguments.device,
        threads=arguments.threads or own["threads"],
        precisions=tuple(arguments.precision or own["precisions"]),
        available=tuple(own["precisions"]),
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        disturbed_share=arguments.disturbed,
        attempts=arguments.attempts,
        clips=arguments.torch_clips,
        torch_precisions=tuple(arguments.torch_precision),
        scaling=arguments.scaling,
        with_torch="torch" in versions,
        # No variable limits its instructions, and this one runs on the CPU.
        with_llama=arguments.device == "cpu"
        and "llama.cpp" in versions
        and arguments.isa in (None, versions["llama.cpp"]["isa"]),
    )
    return bench, versions


def compare_limits(bench: Bench) -> dict[str, Any]:
    say("limits")
    rounds = in_turn([LIMITS], bench.rounds, lambda _: bench.limits(), say)
    return {**limits_summary(rounds), "rounds": rounds}


def limits_lines(told: dict[str, Any]) -> list[str]:
    counts = list(told["bandwidth"])
    rows = [
        (f"products {precision}, GFLOP/s", *(figure(by_threads[count] / 1e9) for count in counts))
        for precision, by_threads in told["flops"].items()
    ]
    rows.append(("reading, GB/s", *(figure(told["bandwidth"][count] / 1e9) for count in counts)))
    lines = table(("limits; threads:", *counts), rows)
    return [*lines, f"others used at most {others(told)} of the cores"]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    bench, versions = bench_of(arguments)
    told: dict[str, Any] = {"machine": machine(), "engines": versions}
    told["settings"] = {
        "device": bench.device,
        "threads": bench.threads,
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "isa": arguments.isa,
        "torch_preload": arguments.torch_preload,
        "torch_clips": bench.clips,
        "torch_precisions": bench.torch_precisions,
        "disturbed_share": bench.disturbed_share,
        "attempts": bench.attempts,
    }
    own = versions["andrea"]
    kernels = own["isa"] if bench.device == "cpu" else f"{bench.device}: {own['gpu']}"
    lines = [machine_line(told["machine"]), f"Andrea {own['version']}, {kernels}"]
    lines += [f"{kind} {one['version']}" for kind, one in versions.items() if kind != "andrea"]
    print("\n".join(lines))

    def part(key: str, figures: dict[str, Any], lines: list[str]) -> None:
        """Shown and written as soon as they are there: a run is long."""
        told.setdefault(key, []).append(figures)
        print("\n" + "\n".join(lines), flush=True)
        if arguments.json:
            write_json(arguments.json, told)

    if "limits" in arguments.what:
        figures = compare_limits(bench)
        part("limits", figures, limits_lines(figures))
    trained: dict[str, Shape] = arguments.trained
    for name, shape in trained.items():
        figures = compare_training(bench, name, shape)
        part("training", figures, training_lines(figures, bench.threads))
    decoded: dict[str, Shape] = arguments.decoded
    for name, shape in decoded.items():
        figures = compare_decoding(bench, name, shape)
        part("decoding", figures, decoding_lines(figures, bench.threads))
    return told


def main() -> None:
    arguments = arguments_of()
    if arguments.plan:
        print("\n".join(plan_lines(arguments)))
        return
    try:
        run(arguments)
    except ChildError as error:
        # Of an error of Andrea's the text is what counts; it names the device.
        text = re.sub(r"^andrea\.errors\.\w+: ", "", str(error))
        sys.exit(text if text != str(error) else f"a measurement failed: {text}")


if __name__ == "__main__":
    main()
