"""One measurement in a process of its own: `python child.py REQUEST`, both in and out as JSON.

Andrea, PyTorch and llama.cpp are imported by the request that asks for them and by no other, so
that memory and starting time are those of one engine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from disturbance import Measurement
from measurement import measure_decoding, measure_training
from shapes import Shape


def describe(engine: str) -> Measurement:
    """What there is to measure: versions, precisions, threads."""
    if engine == "torch":
        import torch

        return {"version": str(torch.__version__)}
    if engine == "llama.cpp":
        import gguf  # noqa: F401
        import llama_cpp

        return {"version": f"llama-cpp-python {llama_cpp.__version__}"}
    from machine_limits import available_precisions

    import andrea

    return {
        **andrea.engine_info(),
        "instruction_sets": andrea.available_instruction_sets(),
        "precisions": available_precisions(),
    }


def limits(request: dict[str, Any]) -> Measurement:
    from machine_limits import machine_limits

    return machine_limits(request["precisions"], request["threads"])


def train(request: dict[str, Any]) -> Measurement:
    shape = Shape(**request["shape"])
    precision, threads = request["precision"], request["threads"]
    if request["engine"] == "torch":
        import torch_gpt

        step = torch_gpt.training_step(shape, precision, request["mode"], request["clips"], threads)
    else:
        import andrea_engine

        step = andrea_engine.training_step(shape, precision, threads)
    return measure_training(step, shape, request["seconds"], request["started"])


def decode(request: dict[str, Any]) -> Measurement:
    shape = Shape(**request["shape"])
    what = (shape, request["precision"], request["threads"])
    if request["engine"] == "torch":
        import torch_decoding

        return measure_decoding(torch_decoding.DecodedSequence(*what), shape, request["seconds"])
    if request["engine"] == "llama.cpp":
        import llama_decoding

        return measure_decoding(llama_decoding.DecodedSequence(*what), shape, request["seconds"])
    import andrea_engine

    return measure_decoding(andrea_engine.DecodedSequence(*what), shape, request["seconds"])


def main() -> None:
    request = json.loads(sys.argv[1])
    task = request["task"]
    if task == "describe":
        result = describe(request["engine"])
    else:
        result = {"limits": limits, "train": train, "decode": decode}[task](request)
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
