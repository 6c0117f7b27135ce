"""One measurement in a process of its own: `python child.py REQUEST`, both in and out as JSON.

Andrea, PyTorch and llama.cpp are imported by the request that asks for them and by no other, so
that memory and starting time are those of one engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from disturbance import Measurement
from measurement import (
    CachedSequence,
    measure_decoding,
    measure_training,
    peak_megabytes,
    speeds_by_steps,
)
from shapes import Shape


def describe(request: dict[str, Any]) -> Measurement:
    """What there is to measure: versions, precisions, threads.

    Raises:
        RuntimeError: this PyTorch has no such device.
    """
    engine, device = request["engine"], request["device"]
    if engine == "torch":
        import torch

        if device != "cpu" and not torch.cuda.is_available():
            raise RuntimeError(f"PyTorch {torch.__version__} can use no GPU here")
        return {"version": str(torch.__version__)}
    if engine == "llama.cpp":
        import llama_decoding

        return llama_decoding.built()
    from machine_limits import available_precisions

    import andrea
    from andrea._library import cuda_info

    precisions = available_precisions(device)
    gpu = cuda_info()
    return {
        **andrea.engine_info(),
        "gpu": gpu.device_name if device != "cpu" else "",
        "simulated": device != "cpu" and gpu.simulated,
        "instruction_sets": andrea.available_instruction_sets(),
        "precisions": precisions,
    }


def limits(request: dict[str, Any]) -> Measurement:
    from machine_limits import machine_limits

    return machine_limits(request["precisions"], request["threads"], request["device"])


def memory_meter(device: str, bytes_in_use: Callable[[], int]) -> Callable[[], float]:
    """Megabytes that this process took so far: its own on a CPU, of the GPU's memory there.

    The GPU's are what came on top since this call. Nothing that an engine takes there goes back
    before its process ends, so what it has is what it had at most.
    """
    if device == "cpu":
        return peak_megabytes
    before = bytes_in_use()
    return lambda: (bytes_in_use() - before) / (1 << 20)


def train(request: dict[str, Any]) -> Measurement:
    shape = Shape(**request["shape"])
    precision, threads, device = request["precision"], request["threads"], request["device"]
    if request["engine"] == "torch":
        import torch_gpt

        peak = memory_meter(device, torch_gpt.gpu_bytes_in_use)
        step = torch_gpt.training_step(
            shape, precision, request["mode"], request["clips"], threads, device
        )
    else:
        import andrea_engine

        peak = memory_meter(device, andrea_engine.gpu_bytes_in_use)
        step = andrea_engine.training_step(shape, precision, threads, device)
    return measure_training(step, shape, request["seconds"], request["started"], peak)


def decode(request: dict[str, Any]) -> Measurement:
    shape, device = Shape(**request["shape"]), request["device"]
    what = (shape, request["precision"], request["threads"])
    sequence: CachedSequence
    if request["engine"] == "llama.cpp":
        import llama_decoding

        return measure_decoding(llama_decoding.DecodedSequence(*what).speeds, request["seconds"])
    if request["engine"] == "torch":
        import torch_decoding
        import torch_gpt

        peak = memory_meter(device, torch_gpt.gpu_bytes_in_use)
        sequence = torch_decoding.DecodedSequence(*what, device)
    else:
        import andrea_engine

        peak = memory_meter(device, andrea_engine.gpu_bytes_in_use)
        sequence = andrea_engine.DecodedSequence(*what, device)
    return measure_decoding(speeds_by_steps(sequence, shape), request["seconds"], peak)


def main() -> None:
    request = json.loads(sys.argv[1])
    tasks = {"describe": describe, "limits": limits, "train": train, "decode": decode}
    result = tasks[request["task"]](request)
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
