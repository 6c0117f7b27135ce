"""Dialects as models: their configurations in C, what they keep and take, threads and decoders."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import andrea
from andrea._library import cuda_info, ffi, lib
from andrea.memory import native_config
from dialect_pair import TOLERANCE, dialect_pair
from dialects import DIALECTS, SWITCHES, config_of
from gpu import require_gpu
from parity_pair import GPUS, PRECISIONS, Kind, Pair, name_of, new_engine, random_batch
from reference import bfloat16, gpt, ops
from reference.compare import assert_close
from reference.ops import Array

every_dialect = pytest.mark.parametrize("name", DIALECTS)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


# ---- configurations


def told(config: Any) -> dict[str, Any]:
    """What mg_model_config says of a new model of a native configuration."""
    model = ffi.new("mg_model **")
    assert lib.mg_model_create(config, b"cpu", b"fp32", 0, model) == lib.MG_OK, last_error()
    found = ffi.new("mg_config *")
    found.struct_size = ffi.sizeof("mg_config")
    assert lib.mg_model_config(model[0], found) == lib.MG_OK
    lib.mg_model_free(model[0])
    return {name: getattr(found, name) for name, _ in ffi.typeof("mg_config").fields}


def last_error() -> str:
    return str(ffi.string(lib.mg_last_error()).decode())


def written(config: andrea.ModelConfig) -> dict[str, Any]:
    """A configuration as mg_model_config is to tell it."""
    native = native_config(config)
    return {name: getattr(native, name) for name, _ in ffi.typeof("mg_config").fields}


@every_dialect
def test_a_model_tells_its_configuration(name: str) -> None:
    config = config_of({**DIALECTS[name], "scaled_init": False, "init_std": 0.5})
    assert told(native_config(config)) == written(config)


def test_what_is_left_0_is_gpt_2s() -> None:
    native = ffi.new("mg_config *")
    native.struct_size = ffi.sizeof("mg_config")
    sizes = dict(vocab_size=9, block_size=5, n_layer=1, n_head=2, n_embd=6)
    for name, value in sizes.items():
        setattr(native, name, value)
    assert told(native) == written(andrea.ModelConfig(**sizes))


@pytest.mark.parametrize(("n_embd", "mlp_dim"), [(2, 64), (24, 64), (26, 128), (192, 512)])
def test_the_usual_width_of_a_gated_mlp(n_embd: int, mlp_dim: int) -> None:
    """8/3 n_embd, in whole 64s, in Python and in the engine."""
    config = andrea.ModelConfig(9, 5, 1, 2, n_embd, activation="swiglu")
    assert config.mlp_dim == mlp_dim
    native = native_config(config)
    native.mlp_dim = 0
    assert told(native)["mlp_dim"] == mlp_dim


SWITCH_NAMES = [name for name, values in SWITCHES.items() if set(values) == {True, False}]
NO_NORM = {"norm_position": 2, "final_norm": lib.MG_OFF}
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: 3}, f"{name} is 3 but must be 0") for name in [*SWITCH_NAMES, "scaled_init"]),
    *(({name: -1}, f"{name} is -1 but must be 0") for name in [*SWITCH_NAMES, "scaled_init"]),
    *(
        ({name: number}, f"{name} is {number} but must be 0 to {len(values) - 1}")
        for name, values in andrea.config.CHOICES.items()
        for number in (-1, len(values))
    ),
    ({"mlp_dim": -1}, "mlp_dim is -1 but must be at least 1"),
    ({"mlp_dim": 2**31 - 1, "n_layer": 2**16}, "too large"),
    *(({"init_std": value}, "init_std is") for value in (-0.1, 101.0, np.nan, np.inf)),
    ({**NO_NORM, "norm": 1}, "norm is rmsnorm, but the model has no norm"),
    ({**NO_NORM, "norm_affine": lib.MG_OFF}, "norm_affine is off, but the model has no norm"),
    ({"struct_size": 8}, "struct_size is 8 but"),
]


@pytest.mark.parametrize(("values", "text"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_wrong_configurations_are_refused_in_one_line(values: dict[str, Any], text: str) -> None:
    native = native_config(config_of({}))
    for name, value in values.items():
        setattr(native, name, value)
    model, plan = ffi.new("mg_model **"), ffi.new("mg_memory_plan *")
    for status in (
        lib.mg_model_create(native, b"cpu", b"fp32", 0, model),
        lib.mg_plan_memory(native, b"cpu", b"fp32", 1, 1, 1, plan),
    ):
        assert status == lib.MG_ERROR_ARGUMENT
        assert text in last_error() and "\n" not in last_error()


def test_a_norm_in_one_place_is_enough() -> None:
    for place in ({"final_norm": True}, {"final_norm": False, "embedding_norm": True}):
        dialect = {"norm_position": "none", "norm": "rmsnorm", "norm_affine": False, **place}
        assert told(native_config(config_of(dialect)))["norm"] == 1


@every_dialect
def test_matrices_decay_and_nothing_else(name: str) -> None:
    model = ffi.new("mg_model **")
    config = native_config(config_of(DIALECTS[name]))
    assert lib.mg_model_create(config, b"cpu", b"fp32", 0, model) == lib.MG_OK
    tensor, decay = ffi.new("mg_tensor *"), {}
    for index in range(lib.mg_model_tensor_count(model[0])):
        assert lib.mg_model_tensor(model[0], index, tensor) == lib.MG_OK
        decay[ffi.string(tensor.name).decode()] = bool(tensor.decays)
    lib.mg_model_free(model[0])
    shapes = gpt.parameter_shapes(config_of(DIALECTS[name]))
    assert decay == {name: len(shape) == 2 for name, shape in shapes.items()}


# ---- what a forward keeps


def expected_activations(both: Pair, tokens: Array) -> dict[str, Array]:
    """Everything by the engine's names, from what the reference gives each layer."""
    config = both.config
    layers = gpt.layer_inputs(both.parameters, config, tokens)
    found: dict[str, Array] = {}

    def statistics(norm: str) -> None:
        x = layers[norm]
        if config.norm == "layernorm":
            _, found[f"{norm}.mean"], found[f"{norm}.rstd"] = ops.layer_norm_forward(x)
        else:
            _, found[f"{norm}.rstd"] = ops.rms_norm_forward(x)

    if config.embedding_norm:
        found["ln_emb.input"] = layers["ln_emb"]
        statistics("ln_emb")
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        for stream, norm, first, outputs in (
            (
                "input",
                f"{h}.ln_1",
                f"{h}.attn.c_attn",
                {"attn.c_attn": f"{h}.qkv", "attn.heads": f"{h}.attn.c_proj"},
            ),
            ("middle", f"{h}.ln_2", f"{h}.mlp.c_fc", {"mlp.c_fc": f"{h}.hidden"}),
        ):
            found[f"{h}.{stream}"] = layers[norm if config.norm_position == "pre" else first]
            if config.norm_position == "pre":
                statistics(norm)
            for output, layer_input in outputs.items():
                found[f"{h}.{output}"] = layers[layer_input]
            if config.norm_position == "post":
                found[f"{norm}.input"] = layers[norm]
                statistics(norm)
    if config.final_norm:
        found["ln_f.input"] = layers["ln_f"]
        statistics("ln_f")
    else:
        found["head.stream"] = layers["head"]
    found["ln_f" if config.final_norm else "head.input"] = layers["head"]
    return found


@every_precision
@every_dialect
def test_activations_have_names(name: str, precision: str) -> None:
    with dialect_pair(Kind("cpu", precision), name) as both:
        tokens, targets = random_batch(both.config, (3, 7))
        expected = expected_activations(both, tokens)
        logits = gpt.logits(both.parameters, both.config, tokens)
        expected["losses"] = ops.cross_entropy_losses(logits, targets)
        both.engine.forward(tokens, targets)
        found = both.engine.activations()
        assert list(found) == list(expected)
        for activation, values in found.items():
            if values.dtype != np.float32:  # ml_dtypes' bfloat16, or its bits
                values = bfloat16.from_bits(values.view(np.uint16))
            # A norm's mean after another norm is 0 but for rounding: compared by the stream's size.
            beside = 1.0 if activation.endswith(".mean") else 0.0
            assert_close(
                f"{activation}, kept",
                values + beside,
                expected[activation] + beside,
                TOLERANCE[precision],
            )


# ---- memory


class _Books(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    _fields_ = [(name, ctypes.c_size_t) for name in (*_names, "fordblks", "keepcost")]


def allocated_bytes() -> int:
    """What malloc has given out: small blocks, and those that are mappings of their own."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        pytest.skip("no mallinfo2: this C library doesn't tell what it has allocated")
    mallinfo2.restype = _Books
    books = mallinfo2()
    return int(books.uordblks + books.hblkhd)


def use_model(model: andrea.GPT, use: str, tokens: Array) -> andrea.Decoder | None:
    """What memory is planned for; the decoder is to be kept until its memory was counted."""
    if use == "decoding":
        decoder = model.decoder(len(tokens))
        # Past the context: half of it is read again.
        for feed in (tokens, tokens[:, :1], tokens[:, :1]):
            decoder.feed(feed)
        return decoder
    for _ in range(3):
        if use == "forward":
            model.forward(tokens, tokens)
        else:
            model.train_step(tokens, tokens, learning_rate=1e-3)
    return None


USES = ("training", "forward", "decoding")


@every_precision
@every_dialect
@pytest.mark.parametrize("use", USES)
def test_memory_is_what_was_planned(use: str, name: str, precision: str) -> None:
    """To the buffers' last bytes."""
    config = config_of(DIALECTS[name], (300, 64, 3, 4, 64))
    check_memory(config, use, precision, B=8, T=64)


@every_precision
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (1, 17), (17, 1)])
def test_memory_for_few_rows_is_what_was_planned(
    shape: tuple[int, int], use: str, precision: str
) -> None:
    """Up to 16 rows, and beyond, the CPU multiplies in different ways; the head may be first."""
    check_memory(config_of({}, (3000, 64, 2, 2, 32)), use, precision, *shape)


def check_memory(config: andrea.ModelConfig, use: str, precision: str, B: int, T: int) -> None:
    tokens = np.random.default_rng(3).integers(0, config.vocab_size, (B, T), np.int32)
    # What is made once, and stays, before anything is counted.
    use_model(andrea.GPT(config_of({}), device="cpu"), use, tokens[:1, :3] % 13)
    planned = andrea.engine_memory(config, B, T, use=use, device="cpu", precision=precision)
    gc.collect()
    before = allocated_bytes()
    model = andrea.GPT(config, device="cpu", precision=precision)
    decoder = use_model(model, use, tokens)
    # A decoder in Python has logits of its own.
    ours = 4 * B * config.vocab_size if decoder is not None else 0
    assert abs(allocated_bytes() - before - ours - planned["total"]) < 1 << 15
    model.close()
    del decoder


def test_memory_that_is_not_to_be_told() -> None:
    with pytest.raises(andrea.ArgumentError, match="got 'sampling'"):
        andrea.engine_memory(config_of({}), 1, use="sampling")
    # A place for each position of the context of each sequence, however few are read at once.
    wide = andrea.ModelConfig(9, 2**31 - 1, 9, 1, 64)
    with pytest.raises(andrea.ArgumentError, match="too many"):
        andrea.engine_memory(wide, 2**31 - 1, 1, use="decoding")
    plan = ffi.new("mg_memory_plan *")
    for use in (-1, 3):
        native = native_config(config_of({}))
        status = lib.mg_plan_memory(native, b"cpu", b"fp32", 1, 1, use, plan)
        assert status == lib.MG_ERROR_ARGUMENT and last_error() == f"plan_memory: no use is {use}"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", GPUS, ids=name_of)
@pytest.mark.parametrize(
    ("name", "use"),
    [
        (name, use)
        for name in DIALECTS
        for use in (USES if name[:2] == "9 " else USES[:1])
        if name[:2] in ("1 ", "2 ", "9 ")
    ],
)
def test_memory_of_a_gpu_is_what_was_planned(name: str, use: str, kind: Kind) -> None:
    """Without residual connections, without norms, with gates and norms after the layers."""
    config = config_of(DIALECTS[name], (130, 16, 2, 2, 32))
    before = free_memory()
    planned = andrea.engine_memory(
        config, 4, use=use, device=kind.device, precision=kind.precision
    )["total"]
    model = new_engine(config, kind)
    decoder = use_model(model, use, np.random.default_rng(3).integers(0, 130, (4, 16), np.int32))
    taken = before - free_memory()
    # A GPU gives memory out in pieces of megabytes, the simulator by the byte.
    pieces = (1 << 13) if cuda_info().simulated else (16 << 20)
    assert taken - pieces < planned < taken + pieces
    model.close()
    del decoder


def free_memory() -> int:
    require_gpu()
    return int(cuda_info().memory_free)


# ---- threads


@pytest.fixture
def default_threads() -> Iterator[None]:
    yield
    andrea.set_num_threads(0)


@every_precision
@every_dialect
@pytest.mark.usefixtures("default_threads")
def test_training_gives_the_same_bits_with_any_number_of_threads(name: str, precision: str) -> None:
    states = set()
    for threads in (1, 2, 3):
        andrea.set_num_threads(threads)
        model = andrea.GPT(config_of(DIALECTS[name]), device="cpu", precision=precision, seed=2)
        losses = []
        for step in range(3):
            tokens, targets = random_batch(model.config, (9, 8), seed=step)
            losses.append(model.train_step(tokens, targets, learning_rate=1e-2))
        decoded = model.decoder().feed([[1, 2, 3]])
        state = [*losses, *model.parameters().values(), *model.second_moments().values(), decoded]
        states.add(hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in state)).hexdigest())
    assert len(states) == 1


# ---- decoders


def test_one_sequence_is_forgotten_and_the_others_go_on() -> None:
    model = ffi.new("mg_model **")
    config = native_config(config_of(DIALECTS["0 layernorm pre gelu"]))
    assert lib.mg_model_create(config, b"cpu", b"fp32", 3, model) == lib.MG_OK
    vocab_size = int(config.vocab_size)

    def new_decoder() -> Any:
        decoder = ffi.new("mg_decoder **")
        assert lib.mg_decoder_create(model[0], 2, decoder) == lib.MG_OK
        return ffi.gc(decoder[0], lib.mg_decoder_free)

    def feed(decoder: Any, *tokens: list[int]) -> Array:
        logits = np.zeros((2, vocab_size), np.float32)
        counts = ffi.new("int32_t[]", [len(new) for new in tokens])
        flat = ffi.new("int32_t[]", [*itertools.chain(*tokens), 0])
        pointer = ffi.cast("float *", ffi.from_buffer(logits))
        assert lib.mg_decoder_feed(decoder, flat, counts, pointer) == lib.MG_OK
        return logits

    decoder, other = new_decoder(), new_decoder()
    feed(decoder, [1, 2, 3], [4, 5])
    feed(other, [], [4, 5])
    assert lib.mg_decoder_forget(decoder, 0) == lib.MG_OK
    assert [lib.mg_decoder_length(decoder, s) for s in range(2)] == [0, 2]
    assert feed(decoder, [7, 8, 9], [6]).tobytes() == feed(other, [7, 8, 9], [6]).tobytes()
    assert lib.mg_decoder_forget(decoder, 1) == lib.MG_OK
    assert lib.mg_decoder_forget(decoder, 1) == lib.MG_OK
    for sequence in (-1, 2):
        assert lib.mg_decoder_forget(decoder, sequence) == lib.MG_ERROR_ARGUMENT
        assert f"sequence is {sequence} but there are 2" in last_error()
    assert lib.mg_decoder_forget(ffi.NULL, 0) == lib.MG_ERROR_ARGUMENT
    assert [lib.mg_decoder_length(decoder, s) for s in range(2)] == [3, 0]
    lib.mg_model_free(model[0])
