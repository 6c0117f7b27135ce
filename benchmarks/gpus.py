"""What GPUs can do by their makers' data, and shares of it that others have measured."""

from __future__ import annotations

from dataclasses import dataclass

# Exponentials a clock and multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions",
# the same for compute capability 8.0, 8.9 and 9.0.
_EXPONENTIALS_A_CLOCK = 16


@dataclass(frozen=True)
class Gpu:
    """One GPU: bfloat16 products summed in float32, without sparsity.

    flops: operations/s; bandwidth: bytes/s; memory: bytes; clock: boost, 1/s; mma: the share of
    flops that mma.sync reaches, which kernels of our own are made of; source: of the figures.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    multiprocessors: int
    clock: float
    mma: float
    source: str

    @property
    def exponentials(self) -> float:
        """Of the special function units, a second."""
        return _EXPONENTIALS_A_CLOCK * self.multiprocessors * self.clock


# mma.sync on Hopper: 62.9% of the peak on average (Luo et al. 2024, "Benchmarking and Dissecting
# the Nvidia Hopper GPU Architecture", arXiv:2402.13499). Before Hopper there is no other
# instruction.
_HOPPER_MMA = 0.629

GPUS = {
    "h200": Gpu(
        "H200 SXM",
        989.5e12,
        4.8e12,
        141e9,
        132,
        1.83e9,
        _HOPPER_MMA,
        "NVIDIA H200 data sheet (1,979 TFLOP/s with sparsity; 4.8 TB/s)",
    ),
    "h100": Gpu(
        "H100 SXM",
        989.5e12,
        3.35e12,
        80e9,
        132,
        1.83e9,
        _HOPPER_MMA,
        "NVIDIA H100 data sheet (1,979 TFLOP/s with sparsity; 3.35 TB/s)",
    ),
    "a100": Gpu(
        "A100 SXM 80GB",
        312e12,
        2.039e12,
        80e9,
        108,
        1.41e9,
        1.0,
        "NVIDIA A100 data sheet (312 TFLOP/s; 2,039 GB/s)",
    ),
    "l4": Gpu(
        "L4",
        121e12,
        300e9,
        24e9,
        58,
        2.04e9,
        1.0,
        "NVIDIA L4 data sheet (242 TFLOP/s with sparsity; 300 GB/s)",
    ),
    "4090": Gpu(
        "GeForce RTX 4090",
        165.2e12,
        1008e9,
        24e9,
        128,
        2.52e9,
        1.0,
        "NVIDIA Ada GPU architecture white paper (165.2 TFLOP/s, sums in float32; 1,008 GB/s)",
    ),
}
