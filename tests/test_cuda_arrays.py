"""Arrays of a GPU's memory, both ways: the engine's as CuPy's, and callers' as batches.

What needs no driver runs everywhere CuPy is, or against a stand-in for it; what needs a device runs
where the library has one, real or simulated.
"""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import andrea
from andrea import ArgumentError, DeviceError, DTypeError, StateError
from andrea._library import check, ffi, lib
from andrea.arrays import gpu_view, token_array
from andrea.device_arrays import current_stream, device_array

CONFIG = andrea.ModelConfig(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=8)
INPUTS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)
TARGETS = np.array([[2, 3, 4, 5], [6, 7, -1, 9]], np.int32)


class Interface:
    """An array that lies at an address, as libraries of arrays on GPUs describe theirs."""

    def __init__(self, array: np.ndarray[Any, Any], address: int = 0, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "typestr": array.dtype.str,
            "shape": array.shape,
            "data": (address or array.ctypes.data, False),
            "strides": None,
            "stream": None,
            **changes,
        }


# ---- the engine's memory as CuPy's arrays


class FakeCupy:
    """The four names of CuPy that a view is made of; they note what they were given."""

    class ndarray:
        def __init__(self, shape: Any, dtype: Any, memptr: Any) -> None:
            self.shape, self.dtype, self.memptr = shape, dtype, memptr

    def __init__(self, stream: int = 0) -> None:
        self.dtype = np.dtype
        self.cuda = SimpleNamespace(
            UnownedMemory=lambda address, size, owner, device_id: SimpleNamespace(
                address=address, size=size, owner=owner, device_id=device_id
            ),
            MemoryPointer=lambda memory, offset: SimpleNamespace(mem=memory, offset=offset),
            get_current_stream=lambda: SimpleNamespace(ptr=stream),
        )


class Owner:
    """Something that can be seen to die."""


def test_a_view_is_made_of_memory_with_an_owner_and_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(stream=77))
    owner = Owner()
    array = gpu_view(owner, 4096, (3, 5), np.float32, 2)
    memory = array.memptr.mem
    assert (array.shape, array.dtype, array.memptr.offset) == ((3, 5), np.float32, 0)
    assert (memory.address, memory.size, memory.device_id) == (4096, 60, 2)
    assert memory.owner is owner
    assert current_stream() == 77


def test_a_cupy_array_needs_no_driver_and_keeps_its_owner() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    owner = Owner()
    died = weakref.ref(owner)
    array = gpu_view(owner, 4096, (3, 5), np.float32, 0)
    row, flat = array[1], array.reshape(-1)
    assert isinstance(array, cupy.ndarray) and array.flags.c_contiguous
    assert (array.shape, array.dtype, array.strides) == ((3, 5), np.float32, (20, 4))
    assert (array.data.ptr, row.data.ptr, flat.nbytes) == (4096, 4116, 60)
    del owner, array, row
    gc.collect()
    assert died() is not None  # flat still uses the memory
    del flat
    gc.collect()
    assert died() is None


def test_a_cupy_array_of_bfloat16() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = gpu_view(Owner(), 4096, (2, 3, 4), ml_dtypes.bfloat16, 0)
    assert (array.dtype, array.nbytes) == (np.dtype(ml_dtypes.bfloat16), 48)


def test_without_cupy_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r'pip install "andrea\[cuda\]".*read\(\) and write\(\)'):
        gpu_view(Owner(), 4096, (1,), np.float32, 0)
    assert current_stream() is None


def test_andrea_alone_imports_no_cupy() -> None:
    import subprocess

    code = (
        "import sys, numpy, andrea; "
        "m = andrea.GPT(andrea.ModelConfig(5, 4, 1, 1, 4), device='cpu'); "
        "m.parameters(); m.train_step([[1, 2]], [[2, 3]], learning_rate=0.1); "
        "print('cupy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# ---- callers' arrays


def test_an_array_of_a_gpu_is_described() -> None:
    for stream, meant in ((None, None), (1, 0), (2, 2), (4711, 4711)):
        value = Interface(INPUTS, 512, stream=stream)
        found = device_array("inputs", value, ndim=2)
        assert found is not None and found.owner is value
        assert (found.address, found.shape, found.stream) == (512, (2, 4), meant)
    old = Interface(INPUTS, 512, version=2)
    del old.__cuda_array_interface__["stream"]
    found = device_array("inputs", old, ndim=2)
    assert found is not None and found.stream == 0  # it doesn't say: the default one
    contiguous = Interface(INPUTS, strides=(16, 4))
    assert device_array("inputs", contiguous, ndim=2) is not None
    one_row = Interface(INPUTS[:1], strides=(999, 4))
    assert device_array("inputs", one_row, ndim=2) is not None


WRONG = {
    "an old interface": ({"version": 1}, ArgumentError, "version 1"),
    "int64": ({"typestr": "<i8"}, DTypeError, "int32.*<i8"),
    "big-endian": ({"typestr": ">i4"}, DTypeError, "int32"),
    "floats": ({"typestr": "<f4"}, DTypeError, "int32"),
    "one dimension": ({"shape": (8,)}, ArgumentError, "2 dimensions"),
    "nothing": ({"shape": (2, 0)}, ArgumentError, "empty"),
    "columns first": ({"strides": (4, 8)}, ArgumentError, "contiguous"),
    "every second column": ({"strides": (32, 8)}, ArgumentError, "contiguous"),
    "a mask": ({"mask": object()}, ArgumentError, "contiguous"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_kernel_could_not_read_is_refused(case: str) -> None:
    changes, error, text = WRONG[case]
    with pytest.raises(error, match=text) as caught:
        device_array("inputs", Interface(INPUTS, **changes), ndim=2)
    assert "\n" not in str(caught.value)


class Dlpack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any], device: int) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **settings: Any) -> Any:
        if self.device != 1:
            raise BufferError("not on the host")
        return self.array.__dlpack__(**settings)


def test_dlpack_of_a_gpu_goes_through_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    taken = Interface(INPUTS, 512)
    cupy.from_dlpack = lambda value: taken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    found = device_array("inputs", Dlpack(INPUTS, 2), ndim=2)
    assert found is not None and (found.address, found.owner) == (512, taken)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy"):
        device_array("inputs", Dlpack(INPUTS, 2), ndim=2)


def test_dlpack_of_the_host_is_an_array_like_any_other() -> None:
    assert device_array("inputs", Dlpack(INPUTS, 1), ndim=2) is None
    array = token_array("inputs", Dlpack(INPUTS, 1), ndim=2)
    assert array.ctypes.data == INPUTS.ctypes.data
    with pytest.raises(ArgumentError, match="DLPack"):
        token_array("inputs", Dlpack(INPUTS, 10), ndim=2)
    model = andrea.GPT(CONFIG, device="cpu", precision="fp32")
    loss = model.forward(INPUTS, TARGETS)
    assert model.forward(Dlpack(INPUTS, 1), Dlpack(TARGETS, 1)) == loss


def test_a_model_on_the_cpu_takes_nothing_of_a_gpu() -> None:
    model = andrea.GPT(CONFIG, device="cpu")
    for inputs, targets in ((Interface(INPUTS), TARGETS), (INPUTS, Interface(TARGETS))):
        with pytest.raises(DeviceError, match=r"is on a GPU.*\.get\(\)"):
            model.forward(inputs, targets)
        with pytest.raises(DeviceError, match=r"is on a GPU"):
            model.train_step(inputs, targets, learning_rate=0.1)
    with pytest.raises(DeviceError, match=r"tokens is on a GPU"):
        model.logits(Interface(INPUTS))


# ---- on a device, real or simulated


def device_names() -> list[Any]:
    gpu = [pytest.param("cuda", marks=pytest.mark.gpu)]
    return ["cpu", *(gpu if andrea.cuda_info().usable else [])]


class DeviceMemory:
    """Memory of the device that doesn't belong to a model."""

    def __init__(self) -> None:
        self.backend = ffi.new("mg_backend **")
        check(lib.mg_backend_create(b"cuda", b"fp32", self.backend))
        self.allocated: list[Any] = []

    def put(self, array: np.ndarray[Any, Any], **changes: Any) -> Interface:
        """A copy of the array on the device, as other libraries describe theirs."""
        memory = ffi.new("void **")
        check(lib.mg_backend_allocate(self.backend[0], array.nbytes, memory))
        self.allocated.append(memory[0])
        source = ffi.cast("const void *", array.ctypes.data)
        check(lib.mg_backend_copy_in(self.backend[0], memory[0], source, array.nbytes))
        address = int(ffi.cast("uintptr_t", memory[0]))
        self.get(address, array.shape, array.dtype)  # waits until it is there
        return Interface(array, address, **changes)

    def get(self, address: int, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        """What lies on the device."""
        array = np.empty(shape, dtype)
        target, source = ffi.cast("void *", array.ctypes.data), ffi.cast("const void *", address)
        check(lib.mg_backend_copy_out(self.backend[0], target, source, array.nbytes))
        return array

    def close(self) -> None:
        for memory in self.allocated:
            lib.mg_backend_release(self.backend[0], memory)
        lib.mg_backend_free(self.backend[0])


@pytest.fixture
def gpu() -> Any:
    if not andrea.cuda_info().usable:
        pytest.skip(f"no CUDA device: {andrea.cuda_info().reason}")
    memory = DeviceMemory()
    yield memory
    memory.close()


def cuda_model() -> andrea.GPT:
    return andrea.GPT(CONFIG, device="cuda", precision="fp32", seed=4)


@pytest.mark.gpu
@pytest.mark.parametrize("stream", [None, 1])
def test_batches_on_the_device_train_like_those_of_the_host(gpu: DeviceMemory, stream: Any) -> None:
    inputs, targets = gpu.put(INPUTS, stream=stream), gpu.put(TARGETS, stream=stream)
    ours, theirs = cuda_model(), cuda_model()
    assert ours.forward(inputs, targets) == theirs.forward(INPUTS, TARGETS)
    for _ in range(3):
        loss = ours.train_step(inputs, targets, learning_rate=0.01)
        assert loss == theirs.train_step(INPUTS, TARGETS, learning_rate=0.01)
        assert ours.last_gradient_norm == theirs.last_gradient_norm > 0
    for name, values in theirs.read().items():
        assert ours.read()[name].tobytes() == values.tobytes(), name
    logits = ours.logits(inputs)
    logits = logits if isinstance(logits, np.ndarray) else logits.get()
    assert logits.tobytes() == theirs.logits(INPUTS).tobytes()


@pytest.mark.gpu
def test_a_batch_that_is_still_being_written_is_waited_for(gpu: DeviceMemory) -> None:
    """Its values are queued on another stream: without waiting, the memory holds something else."""
    producer, model = cuda_model(), cuda_model()
    batch = []
    for kind, values in ((lib.MG_MOMENT_1, INPUTS), (lib.MG_MOMENT_2, TARGETS)):
        memory = ffi.new("float **")
        check(lib.mg_model_memory(producer._model, kind, memory))
        bits = ffi.cast("const float *", values.ctypes.data)
        check(lib.mg_model_write(producer._model, kind, 0, values.size, bits))
        address = int(ffi.cast("uintptr_t", memory[0]))
        batch.append(Interface(values, address, stream=producer.stream))
    assert model.forward(*batch) == cuda_model().forward(INPUTS, TARGETS)


@pytest.mark.gpu
def test_wrong_ids_on_the_device_are_told_when_the_loss_is_asked_for(gpu: DeviceMemory) -> None:
    model = cuda_model()
    before = {name: values.tobytes() for name, values in model.read().items()}
    good, targets = gpu.put(INPUTS), gpu.put(TARGETS)
    for wrong in (INPUTS + 9, INPUTS - 3):
        with pytest.raises(ArgumentError, match="vocabulary"):
            model.forward(gpu.put(wrong), targets)
        with pytest.raises(ArgumentError, match="vocabulary"):
            model.train_step(gpu.put(wrong), targets, learning_rate=0.1)
        assert np.isnan(model.last_gradient_norm)
        with pytest.raises(ArgumentError, match="vocabulary"):
            model.logits(gpu.put(wrong))
    with pytest.raises(ArgumentError, match="-1"):
        model.forward_backward(good, gpu.put(np.full_like(TARGETS, -1)))
    model.step(0.1)
    assert model.step_count == 0
    assert {name: values.tobytes() for name, values in model.read().items()} == before
    assert np.isfinite(model.train_step(good, targets, learning_rate=0.1))


@pytest.mark.gpu
def test_one_batch_lies_in_one_place(gpu: DeviceMemory) -> None:
    model = cuda_model()
    with pytest.raises(ArgumentError, match="both"):
        model.forward(gpu.put(INPUTS), TARGETS)
    with pytest.raises(ArgumentError, match="one shape"):
        model.forward(gpu.put(INPUTS), gpu.put(TARGETS[:, :3].copy()))
    with pytest.raises(ArgumentError, match="block_size"):
        model.forward(*[gpu.put(np.zeros((1, 7), np.int32))] * 2)


# ---- views, on any device


class Views:
    """Reads arrays over a model's memory; those of the simulated GPU through a stand-in for CuPy,
    since its memory is closed to the host."""

    def __init__(self, device: str, memory: DeviceMemory | None) -> None:
        self.device, self.memory = device, memory

    def model(self, precision: str) -> andrea.GPT:
        return andrea.GPT(CONFIG, device=self.device, precision=precision, seed=4)

    def read(self, array: Any) -> np.ndarray[Any, Any]:
        if isinstance(array, FakeCupy.ndarray):
            assert self.memory is not None
            return self.memory.get(array.memptr.mem.address, array.shape, array.dtype)
        host: np.ndarray[Any, Any] = array if isinstance(array, np.ndarray) else array.get()
        return host


@pytest.fixture(params=device_names())
def views(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "cpu":
        yield Views("cpu", None)
        return
    if andrea.cuda_info().simulated:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    else:
        pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = DeviceMemory()
    yield Views(request.param, memory)
    memory.close()


def test_views_are_the_models_own_memory(views: Views) -> None:
    model = views.model("fp32")
    model.forward_backward(INPUTS, TARGETS)
    gradients = model.gradients()
    for name, values in model.read("gradients").items():
        assert views.read(gradients[name]).tobytes() == values.tobytes()
    parameters, moments = model.parameters(), model.first_moments()
    model.step(0.01)
    for kind, arrays in (("parameters", parameters), ("first_moments", moments)):
        for name, values in model.read(kind).items():
            assert values.any()
            assert views.read(arrays[name]).tobytes() == values.tobytes(), name
    model.close()
    del model
    gc.collect()
    assert np.isfinite(views.read(parameters["wte.weight"])).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_have_names(views: Views, precision: str) -> None:
    model = views.model(precision)
    with pytest.raises(StateError, match="forward"):
        model.activations()
    loss = model.forward(INPUTS, TARGETS)
    host = {name: views.read(array) for name, array in model.activations().items()}
    assert host["h.0.input"].shape == (2, 4, 8) and host["h.0.attn.c_attn"].shape == (2, 4, 24)
    assert host["h.1.mlp.c_fc"].shape == (2, 4, 32) and host["ln_f.rstd"].shape == (2, 4)
    weights = model.read()
    expected = weights["wte.weight"][INPUTS] + weights["wpe.weight"][:4]
    assert np.allclose(host["h.0.input"], expected, atol=1e-6)
    assert host["losses"].sum() / 7 == pytest.approx(loss, rel=1e-6)
    assert host["h.0.attn.c_attn"].dtype.itemsize == (4 if precision == "fp32" else 2)
    assert host["h.0.middle"].dtype == host["h.1.ln_2.mean"].dtype == np.float32
    model.backward()
    with pytest.raises(StateError, match="forward"):
        model.activations()


def test_views_of_activations_outlive_everything(views: Views) -> None:
    large = np.zeros((8, 6), np.int32)
    model = views.model("fp32")
    model.forward(INPUTS, TARGETS)
    array = model.activations()["h.0.input"]
    before = views.read(array).copy()
    with pytest.raises(StateError, match="alive"):
        model.forward(large, large)
    with pytest.raises(StateError, match="alive"):
        model.logits(large)
    model.forward(INPUTS, TARGETS)  # no larger: the memory stays
    model.close()
    del model
    gc.collect()
    assert (views.read(array) == before).all()
    other = views.model("fp32")
    other.forward(INPUTS, TARGETS)
    other.activations()
    gc.collect()
    other.forward(large, large)  # no view is left


# ---- copies, and work that is queued


@pytest.mark.parametrize("device", device_names())
def test_copies_go_both_ways_on_any_device(device: str) -> None:
    ours = andrea.GPT(CONFIG, device=device, precision="fp32", seed=4)
    theirs = andrea.GPT(CONFIG, device=device, precision="fp32", seed=5)
    ours.train_step(INPUTS, TARGETS, learning_rate=0.01)
    ours.forward_backward(INPUTS, TARGETS)
    for kind in ("parameters", "gradients", "first_moments", "second_moments"):
        values = ours.read(kind)
        assert any(array.any() for array in values.values())
        theirs.write(values, kind)
        for name, array in theirs.read(kind).items():
            assert array.tobytes() == values[name].tobytes()
            assert np.asarray(ours.tensors(kind)[name]).tobytes() == array.tobytes()
    theirs.step_count = ours.step_count
    assert theirs.forward(INPUTS, TARGETS) == ours.forward(INPUTS, TARGETS)
    assert theirs.step(0.01) == ours.step(0.01)
    before = ours.read()
    ours.write({"ln_f.bias": np.ones(8)})
    assert (ours.read()["ln_f.bias"] == 1).all()
    ours.write(before)
    good = np.zeros(8)
    for wrong in ({"ln_f.bias": good, "lm_head": good}, {"ln_f.bias": good, "ln_f.weight": [1.0]}):
        with pytest.raises(ArgumentError):
            ours.write(wrong)
        assert ours.read()["ln_f.bias"].tobytes() == before["ln_f.bias"].tobytes()
    with pytest.raises(ArgumentError, match="first_moments"):
        ours.read("moments")


@pytest.mark.parametrize("device", device_names())
def test_queued_steps_are_the_same_steps(device: str) -> None:
    queued, waiting = (andrea.GPT(CONFIG, device=device, precision="fp32", seed=4) for _ in "ab")
    assert np.isnan(queued.last_gradient_norm)
    for _ in range(4):
        inputs, targets = INPUTS.copy(), TARGETS.copy()
        assert queued.forward_backward(inputs, targets, 0.5, wait=False) is None
        inputs[:] = targets[:] = 0  # the engine has taken them
        assert queued.forward_backward(INPUTS, TARGETS, 0.5, wait=False) is None
        assert queued.step(0.01, wait=False) is None
        loss = waiting.forward_backward(INPUTS, TARGETS, 0.5)
        assert waiting.forward_backward(INPUTS, TARGETS, 0.5) == loss
        norm = waiting.step(0.01)
    assert (queued.loss(), queued.last_gradient_norm) == (loss, norm)
    assert queued.update_loss() == waiting.update_loss() == loss  # half of it twice
    assert queued.step_count == waiting.step_count == 4
    assert queued.forward(INPUTS, TARGETS, wait=False) is None
    assert queued.loss() == waiting.forward(INPUTS, TARGETS)
    queued.backward()
    queued.zero_gradients()
    assert not any(array.any() for array in queued.read("gradients").values())
    queued.synchronize()


@pytest.mark.parametrize("device", device_names())
def test_a_model_names_its_stream(device: str) -> None:
    model = andrea.GPT(CONFIG, device=device)
    assert model.__cuda_stream__() == (0, model.stream)
    assert (model.stream == 0) == (device == "cpu")
    assert model.precision in model.description and "\n" not in model.description


def test_the_cpu_is_no_gpu() -> None:
    info = andrea.cuda_info()
    assert info.usable == bool(info.devices) and (info.usable or info.reason)
    assert "\n" not in info.reason
    if not info.usable:
        with pytest.raises(DeviceError, match="cuda"):
            andrea.GPT(CONFIG, device="cuda")
        assert andrea.GPT(CONFIG).device == "cpu"
