"""Hugging Face's GPT-2: folders for `GPT2LMHeadModel` and `AutoTokenizer`, written and read.

GPT-2 keeps its linear weights as [in, out] there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.config import ModelConfig
from andrea.errors import CheckpointError, ConfigError, TokenizerError
from andrea.planning.sizes import each_tensor
from andrea.runs.tensorfile import Tensor, write_tensor_file
from andrea.tokenizers import Tokenizer

from .gpt2 import as_gpt2
from .new_folder import new_folder, write_json
from .safetensors_file import INDEX, SINGLE, SafetensorsFolder, read_json
from .tokenizer_json import from_tokenizer_json, marker_of, to_tokenizer_json
from .weights import LazyTensor, Weights

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
_TRUNK = "transformer."
_HEAD = "lm_head.weight"


def stored_name(name: str, trunk: str = _TRUNK) -> str:
    """A tensor's name in the library's files: the head is beside the trunk."""
    return name if name == _HEAD else trunk + name


def is_transposed(name: str) -> bool:
    """Whether GPT-2 keeps this tensor of ours the other way round: the blocks' linear weights."""
    return name.startswith("h.") and name.endswith(".weight") and ".ln_" not in name


# ---- what the architecture can express

# key of config.json -> the one value that Andrea has, and what means the same
_FIXED: dict[str, tuple[Any, ...]] = {
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
# Andrea's name of an activation -> the library's, the first as it is written
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh"),
    "gelu_erf": ("gelu",),
    "relu": ("relu",),
    "relu2": ("relu2",),
}
_HOLDER = "a GPT-2 of Hugging Face"


def config_json(config: ModelConfig, end_of_document: int) -> dict[str, Any]:
    """The config.json of a model that `as_gpt2` allows with these activations and any MLP."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.block_size,
        "n_ctx": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": None if config.mlp_dim == 4 * config.n_embd else config.mlp_dim,
        "activation_function": _ACTIVATIONS[config.activation][0],
        **{key: values[0] for key, values in _FIXED.items()},
        "tie_word_embeddings": config.tie_embeddings,
        "reorder_and_upcast_attn": False,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "initializer_range": config.init_std,
        "bos_token_id": end_of_document,
        "eos_token_id": end_of_document,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def config_of(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model that a config.json describes.

    Raises:
        CheckpointError: it is of another architecture, or of a kind of GPT-2 that Andrea lacks.
        ConfigError: the sizes contradict each other.
    """
    if values.get("model_type") != "gpt2":
        raise CheckpointError(
            f"{path} is of the architecture {values.get('model_type')!r:.40}: Andrea reads 'gpt2'"
        )
    for key, known in _FIXED.items():
        # 1e-05 and 0.00001 are one number; True is no 1.
        value = values.get(key, known[0])
        if not any(type(value) is type(one) and value == one for one in known):
            raise CheckpointError(
                f"{path} has {key} {value!r:.40}, Andrea's models have {known[0]!r}"
            )
    sizes = {
        "vocab_size": values.get("vocab_size"),
        "block_size": values.get("n_positions", values.get("n_ctx")),
        **{name: values.get(name) for name in ("n_layer", "n_head", "n_embd")},
    }
    missing = next((name for name, size in sizes.items() if size is None), None)
    if missing is not None:
        raise CheckpointError(f"{path} does not say {missing.replace('block_size', 'n_positions')}")
    return ModelConfig.from_dict({**sizes, **_dialect(values, path)})


def _dialect(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What of a config.json is not in its sizes."""
    function = values.get("activation_function", "gelu_new")
    activation = next((ours for ours, names in _ACTIVATIONS.items() if function in names), None)
    if activation is None:
        known = ", ".join(name for names in _ACTIVATIONS.values() for name in names)
        raise CheckpointError(
            f"{path} has activation_function {function!r:.40}, Andrea's models have {known}"
        )
    is_tied, inner = values.get("tie_word_embeddings", True), values.get("n_inner")
    if not isinstance(is_tied, bool):
        raise CheckpointError(f"{path} has tie_word_embeddings {is_tied!r:.40}: true or false")
    # 0 is the usual width for ModelConfig, and none at all here.
    if inner is not None and (type(inner) is not int or inner < 1):
        raise CheckpointError(f"{path} has n_inner {inner!r:.40}: the MLP's width is 1 or more")
    found = {"activation": activation, "tie_embeddings": is_tied, "mlp_dim": inner or 0}
    # How the model was initialised: told on, where it is a number that can be meant.
    deviation = values.get("initializer_range")
    with contextlib.suppress(ConfigError):
        ModelConfig(1, 1, 1, 1, 1, init_std=deviation)  # type: ignore[arg-type]
        found["init_std"] = deviation
    return found


# ---- out


def export_hf(weights: Weights, path: Path) -> None:
    """Write a folder that `transformers` loads.

    Raises:
        CheckpointError: there is something at `path`, the weights come without a tokenizer or are
            no GPT-2's, or the disk refuses.
        TokenizerError: the tokenizer can't be written as tokenizer.json.
    """
    weights = as_gpt2(
        weights,
        _HOLDER,
        activation=tuple(_ACTIVATIONS)[1:],
        tie_embeddings=(False,),
        mlp_dim=None,
    )
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise CheckpointError("a Hugging Face folder has a tokenizer, but these weights have none")
    end, marker = tokenizer.beginning_of_document, marker_of(tokenizer)
    with new_folder(path) as folder:
        write_json(folder / CONFIG, config_json(weights.config, end))
        write_json(folder / TOKENIZER, to_tokenizer_json(tokenizer))
        write_json(
            folder / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": weights.config.block_size,
                "bos_token": marker,
                "eos_token": marker,
                "clean_up_tokenization_spaces": False,
                # Without it transformers 4 makes token types too, which a GPT-2 adds as embeddings.
                "model_input_names": ["input_ids", "attention_mask"],
            },
        )
        write_json(
            folder / "generation_config.json",
            {"_from_model_config": True, "bos_token_id": end, "eos_token_id": end},
        )
        write_tensor_file(folder / SINGLE, _hf_tensors(weights), {"format": "pt"})


def _hf_tensors(weights: Weights) -> dict[str, Tensor]:
    return {
        stored_name(name): _transposed(tensor) if is_transposed(name) else tensor
        for name, tensor in weights.parameters.items()
    }


def _transposed(tensor: Tensor) -> LazyTensor:
    def read() -> NDArray[Any]:
        return np.asarray(tensor).T

    return LazyTensor(tensor.shape[::-1], read)


# ---- in


class HFFolder(SafetensorsFolder):
    """A GPT-2 of Hugging Face, open for reading; `weights` are read from it while it is open.

    Raises:
        CheckpointError: a file is missing or damaged, or the model is one that Andrea can't hold.
        TokenizerError: the tokenizer is one that Andrea can't use.
    """

    def __init__(self, folder: Path, *, with_tokenizer: bool = True) -> None:
        """Take the folder, and whether its tokenizer is wanted."""
        values = read_json(folder / CONFIG)
        try:
            config = config_of(values, folder / CONFIG)
        except ConfigError as error:
            raise CheckpointError(f"{folder / CONFIG}: {error}") from error
        super().__init__(folder)
        try:
            tensors = self._tensors(config)
            tokenizer = _tokenizer_of(folder, values, config) if with_tokenizer else None
            self.weights = Weights(config, tensors, tokenizer)
            self._tokenizer = tokenizer
        except BaseException:
            self.close()
            raise

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer.

        Raises:
            TokenizerError: none was wanted.
        """
        if self._tokenizer is None:
            raise TokenizerError(f"{self.folder} was opened without its tokenizer")
        return self._tokenizer

    def _tensors(self, config: ModelConfig) -> dict[str, Tensor]:
        left = set(self.names())
        # The first GPT-2 was saved as the trunk alone.
        trunk = _TRUNK if any(name.startswith(_TRUNK) for name in left) else ""
        tensors: dict[str, Tensor] = {}
        # The first that is missing ends it: a damaged file may claim any number of blocks.
        for name, shape in each_tensor(config):
            stored = stored_name(name, trunk)
            if stored not in left:
                raise CheckpointError(f"{self.folder}: the tensor {stored} is missing")
            left.remove(stored)
            tensor = self.tensor(stored)
            there = shape[::-1] if is_transposed(name) else shape
            if tensor.shape != there:
                raise CheckpointError(
                    f"{self.folder}: {name} is {tensor.shape}, {CONFIG} needs {there}"
                )
            tensors[name] = _transposed(tensor) if is_transposed(name) else tensor
        if _HEAD in left:
            left.remove(_HEAD)
            self._check_head(self.tensor(_HEAD), tensors["wte.weight"])
        self._check_buffers(sorted(left), trunk, config)
        return tensors

    def _check_buffers(self, names: Iterable[str], trunk: str, config: ModelConfig) -> None:
        """Refuse what is neither a parameter nor what older versions of the library saved beside
        them: each block's causal mask, and the number that stands where it is 0."""
        blocks = {f"{trunk}h.{layer}.attn" for layer in range(config.n_layer)}
        length = config.block_size
        for name in names:
            block, _, kind = name.rpartition(".")
            buffer = self.buffer(name)
            if block not in blocks or kind not in ("bias", "masked_bias"):
                raise CheckpointError(f"{self.folder}: {name!r:.80} is no tensor of a GPT-2")
            if kind == "masked_bias":
                if buffer.shape != () or not np.asarray(buffer) <= -9000.0:
                    raise CheckpointError(f"{self.folder}: {name!r:.80} is no mask's number")
            elif buffer.shape != (1, 1, length, length) or not np.array_equal(
                np.asarray(buffer)[0, 0], np.tri(length, dtype=np.float32)
            ):
                raise CheckpointError(f"{self.folder}: {name!r:.80} is no causal mask")

    def _check_head(self, head: Tensor, embedding: Tensor) -> None:
        if head.shape != embedding.shape or not np.array_equal(
            np.asarray(head), np.asarray(embedding)
        ):
            raise CheckpointError(
                f"{self.folder}: {_HEAD} is not the token embedding, "
                f"but {CONFIG} says that the two are tied"
            )


def _tokenizer_of(folder: Path, values: Mapping[str, Any], config: ModelConfig) -> Tokenizer:
    end = values.get("eos_token_id", values.get("bos_token_id"))
    if isinstance(end, list) and end:
        end = end[0]
    if type(end) is not int or not 0 <= end < config.vocab_size:
        end = None
    if (folder / TOKENIZER).exists():
        return from_tokenizer_json(read_json(folder / TOKENIZER), config.vocab_size, end)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return from_tokenizer_json(_of_two_files(folder), config.vocab_size, end)
    raise TokenizerError(f"{folder} holds no {TOKENIZER}; name a tokenizer with --tokenizer")


def _of_two_files(folder: Path) -> dict[str, Any]:
    """What vocab.json and merges.txt, GPT-2's first files, say together."""
    vocabulary = read_json(folder / "vocab.json")
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {folder / 'merges.txt'}: {error}") from error
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    merges = [line for line in lines if line and not line.startswith("#version")]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    marker = "<|endoftext|>"
    specials = [
        {"id": vocabulary[marker], "content": marker, **added, "special": True}
        for _ in range(marker in vocabulary)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def is_hf_folder(path: Path) -> bool:
    """Whether a folder looks like one of Hugging Face's."""
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (SINGLE, INDEX))
