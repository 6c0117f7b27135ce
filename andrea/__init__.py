"""Andrea: train GPT-style language models on your own text, with a native engine.

Names are loaded when they are first used, so that `import andrea` and `andrea --help` are quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import DIALECTS, PRESETS, ModelConfig
from .errors import (
    AndreaError,
    ArgumentError,
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeError,
    EngineError,
    LibraryError,
    OutOfMemoryError,
    RunError,
    StateError,
    TokenizerError,
)
from .lazy import on_first_use

if TYPE_CHECKING:
    from ._library import (
        CudaInfo,
        available_instruction_sets,
        cuda_info,
        engine_version,
        get_num_threads,
        instruction_set,
        set_num_threads,
    )
    from .decoder import Decoder
    from .memory import engine_memory
    from .model import GPT
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "_library": (
                "CudaInfo",
                "available_instruction_sets",
                "cuda_info",
                "engine_version",
                "get_num_threads",
                "instruction_set",
                "set_num_threads",
            ),
            "decoder": ("Decoder",),
            "memory": ("engine_memory",),
            "model": ("GPT",),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "DIALECTS",
    "GPT",
    "PRESETS",
    "AndreaError",
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "CudaInfo",
    "DTypeError",
    "DataError",
    "Decoder",
    "DeviceError",
    "EngineError",
    "LibraryError",
    "ModelConfig",
    "OutOfMemoryError",
    "RunError",
    "StateError",
    "TokenizerError",
    "__version__",
    "available_instruction_sets",
    "cuda_info",
    "engine_info",
    "engine_memory",
    "engine_version",
    "get_num_threads",
    "instruction_set",
    "set_num_threads",
]


def engine_info() -> dict[str, Any]:
    """What runs here: native version, instruction set, threads and devices.

    devices: "cpu", and the GPUs that models can be made on. gpu: the first GPU's name. no_gpu: why
    none can be used. Either text is "" where the other is told.

    Raises:
        LibraryError: the native library cannot be loaded.
        DeviceError: MICROGPT_ISA asks for what is not there.
    """
    from . import _library

    cuda = _library.cuda_info()
    return {
        "version": _library.engine_version(),
        "isa": _library.instruction_set(),
        "threads": _library.get_num_threads(),
        "devices": ["cpu", *cuda.devices],
        "gpu": cuda.device_name if cuda.usable else "",
        "no_gpu": "" if cuda.usable else cuda.reason,
    }
