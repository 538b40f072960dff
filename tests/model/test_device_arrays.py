"""Arrays on a device in calls of models: taken where they lie, on the emulated device."""

import ctypes
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import fake_device
from tolerance import assert_close
from watched_device import WatchedDevice, bits

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import RECORDED, CudaEngine, DeviceArray, put
from stepnet.errors import InputError
from stepnet.model.gradients.differentiable import ModelNet
from stepnet.ragged import Positions

Array = np.ndarray
DEVICE = WatchedDevice()
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(3, 5, 4)).astype("f4")


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine "placed", whose device is emulated."""
    made = CudaEngine(DEVICE, name="placed", devices=("cpu",))
    monkeypatch.setitem(targets.ENGINES, "placed", lambda: made)  # type: ignore[arg-type]
    yield
    targets.engine.cache_clear()


def decay() -> sn.RNN:
    """A step of a few elementwise operations."""

    def step(x: Any, h: Any, a: Any) -> Any:
        following = h / (1 + np.exp(-a)) + x
        return np.tanh(following), following

    return sn.RNN(step, RANDOM.normal(size=4).astype("f4"), memory=4, inputs=4)


def test_results_of_arrays_on_a_device_stay_there() -> None:
    rnn, on_device = decay(), put(DEVICE, X)
    lengths = [5, 0, 2]
    outputs, final = rnn(on_device, lengths=lengths, engine="placed")
    assert isinstance(outputs, DeviceArray)
    for one, other in zip((outputs, final), rnn(X, lengths=lengths, engine="interpret"), strict=True):
        assert_close(one.numpy(), other, 4, 16)
    again = rnn(on_device, final, engine="placed")  # from memories on the device, without a copy to the host
    assert all(isinstance(one, DeviceArray) for one in again)
    expected = rnn(X, final.numpy(), engine="interpret")
    for one, other in zip(again, expected, strict=True):
        assert_close(one.numpy(), other, 4, 16)


@pytest.mark.parametrize("last_only", [False, True])
def test_calls_that_come_again_are_found_prepared(last_only: bool) -> None:
    rnn, lengths = decay(), [5, 0, 2]
    read, count = rnn.gradient_reading, 0

    def counted(call: Any) -> Any:
        """Reads the arguments of a call, and counts it."""
        nonlocal count
        count += 1
        return read(call)

    vars(rnn)["gradient_reading"] = counted
    initial = RANDOM.normal(size=(3, 4)).astype("f4")
    for _ in range(4):
        for given in (None, lengths, [1, 2, 5]):
            placed = put(DEVICE, X), put(DEVICE, initial)
            made = rnn(*placed, lengths=given, last_only=last_only, engine="placed")
            right = rnn(X, initial, lengths=given, last_only=last_only, engine="interpret")
            for one, other in zip(made, right, strict=True):
                assert_close(one.numpy(), other, 5, 4)
    assert count == 3 * 2  # the first call of a form, and the second, which is prepared
    assert rnn(Foreign(X), engine="placed")[1].shape == (3, 4)  # without memories: another form
    with pytest.raises(InputError, match="masked"):
        rnn(put(DEVICE, X), masked="never", engine="placed")
    with pytest.raises(InputError, match="memory"):
        rnn(put(DEVICE, X), put(DEVICE, initial[:, :2]), engine="placed")


def test_numpy_arrays_give_numpy_arrays() -> None:
    rnn = decay()
    assert all(type(array) is np.ndarray for array in rnn(X, engine="placed"))


def test_other_libraries_take_results_by_dlpack() -> None:
    torch = pytest.importorskip("torch")
    outputs, _ = decay()(put(DEVICE, X), engine="placed")
    expected = outputs.numpy()
    for taken in (np.from_dlpack(outputs), torch.from_dlpack(outputs)):
        assert np.array_equal(taken, expected)
    tensor = torch.from_dlpack(outputs)
    assert tensor.data_ptr() == outputs.address  # where it lies
    address = int(outputs.address)
    del outputs, taken
    assert address in DEVICE.memory  # which the tensor holds
    del tensor
    assert address not in DEVICE.memory


def test_an_unused_capsule_gives_its_memory_back() -> None:
    array = put(DEVICE, X)
    address, capsule = int(array.address), array.__dlpack__()
    del array
    assert address in DEVICE.memory
    del capsule
    assert address not in DEVICE.memory


def test_an_unused_capsule_may_be_dropped_while_an_error_is_raised() -> None:
    """As where a library takes it and refuses the array: then no code in Python may run."""
    array = put(DEVICE, X)
    address = int(array.address)
    with pytest.raises(ZeroDivisionError):
        str(array.__dlpack__(), 1 / 0)  # type: ignore[call-overload]
    del array
    assert address not in DEVICE.memory


class Foreign:
    """An array of another library on the device, which has the CUDA array interface."""

    def __init__(self, array: Array, strides: Any = None) -> None:
        self.array = array
        self.facts = {"shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False)}
        self.facts |= {"version": 3, "strides": strides}

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.facts

    def __dlpack_device__(self) -> tuple[int, int]:
        return DEVICE.place


def test_arrays_of_other_libraries_are_taken_where_they_lie() -> None:
    rnn = decay()
    outputs, final = rnn(Foreign(X), engine="placed")
    for one, other in zip((outputs, final), rnn(X, engine="interpret"), strict=True):
        assert_close(one.numpy(), other, 4, 16)


class Exporter:
    """An array of another library, which has DLPack alone. Its class has the CUDA array interface, as that
    of JAX's arrays has, but numbers of bfloat16, which that lacks, do not.
    """

    def __init__(self, array: Any, place: tuple[int, int] = DEVICE.place) -> None:
        self.array, self.place, self.options = array, place, list[Any]()

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("no such dtype there")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **options: Any) -> Any:
        self.options.append(options)
        return self.array.__dlpack__() if self.place == DEVICE.place else self.array


class Divided(Exporter):
    """An array in parts on two devices, which its library does not export."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("only for arrays on one device")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "bool"])
def test_arrays_are_read_by_dlpack(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(RANDOM.normal(size=(3, 5, 4)) * 3).to(getattr(torch, dtype))

    def step(x: Any, h: Any, p: Any) -> Any:
        h = h + x.astype("float32") * p
        return h, h

    rnn = sn.RNN(step, np.ones(4, "f4"), memory=sn.Spec(4, "float32"))
    outputs, final = rnn(Exporter(x), lengths=[5, 0, 2], engine="placed")
    expected = rnn(np.asarray(x.double()), lengths=[5, 0, 2], engine="interpret")
    for one, other in zip((outputs, final), expected, strict=True):
        assert_close(np.asarray(one.numpy(), "f8"), other, 5, 8, dtype=one.dtype)
    engine = targets.engine("placed")
    assert isinstance(engine, CudaEngine)
    read = engine.array_of(Exporter(x[1:]))
    assert read is not None
    assert (read.address, read.shape, read.dtype) == (x[1:].data_ptr(), (2, 5, 4), dtype)
    held = engine.array_of(Exporter(torch.ones(3)))  # which keeps it
    assert held is not None
    assert held.numpy().tolist() == [1, 1, 1]
    with pytest.raises(InputError, match=r"an array \[4, 5, 3\] on the GPU has gaps"):
        engine.array_of(Exporter(x.transpose(0, 2)))


def test_an_array_of_a_gpu_is_read_where_it_lies() -> None:
    """By the address in a capsule whose device is a GPU, with a driver of Python."""
    gpu, _ = fake_device()
    lent = put(gpu, X)
    foreign = Exporter(lent.__dlpack__(), gpu.place)
    read = CudaEngine(gpu).array_of(foreign)
    assert read is not None
    assert (read.address, read.shape, read.dtype, read.device) == (lent.address, X.shape, "float32", gpu)
    assert foreign.options == [{"stream": 1}]  # the library waits for its own streams
    assert CudaEngine(gpu).array_of(Exporter(None, (2, 1))) is None  # of another GPU


UNREAD = {
    "number 17 of DLPack, of 4 bits": (20, b"\x11\x04\x01"),
    "number 2 of DLPack, of 32 bits": (20, b"\x02\x20\x04"),  # four in a vector
    "it has no memory": (0, bytes(8)),
    "gave no capsule that is still unused: 5": (0, b""),
}
"""Arrays that are not read, by the message: where their facts in DLPack are changed, and to which bytes."""


@pytest.mark.parametrize("message", UNREAD)
def test_arrays_that_cannot_be_read_are_refused(message: str) -> None:
    capsule, (begin, changed) = put(DEVICE, X).__dlpack__(), UNREAD[message]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.memmove(pointer(capsule, b"dltensor") + begin, changed, len(changed))
    lender = SimpleNamespace(__dlpack__=lambda: capsule if changed else 5)
    with pytest.raises(InputError, match=f"of type Exporter, cannot be read where it lies .*{message}"):
        decay()(Exporter(lender), engine="placed")


def test_an_array_at_no_multiple_of_its_elements_is_refused() -> None:
    capsule = put(DEVICE, X).__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.c_uint64.from_address(pointer(capsule, b"dltensor") + 40).value = 2  # its bytes ahead of the array
    lender = SimpleNamespace(__dlpack__=lambda: capsule)
    with pytest.raises(
        InputError, match=r"\[3, 5, 4\] of float32 on the GPU begins at an address .* of 4 bytes"
    ):
        decay()(Exporter(lender), engine="placed")


WRONG = {
    r"type Divided, cannot be read where it lies \(only for arrays on one device\): give a copy": (
        lambda rnn: rnn(Divided(X), engine="placed")
    ),
    "an input, of type Foreign, is on a GPU, and engine='llvm'": lambda rnn: rnn(Foreign(X), engine="llvm"),
    "has gaps between its elements": lambda rnn: rnn(Foreign(X, (4, 80, 16)), engine="placed"),
    "an initial memory, of type ndarray, is on the host": lambda rnn: rnn(
        Foreign(X), np.zeros((3, 4), "f4"), engine="placed"
    ),
    "mask= and begun= are not for arrays on a GPU": lambda rnn: rnn(
        Foreign(X), mask=np.ones((3, 5), bool), engine="placed"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls_say_what_to_do(message: str) -> None:
    with pytest.raises(InputError, match=message):
        WRONG[message](decay())


# ---- recorded calls


def net_of(rnn: sn.RNN) -> tuple[ModelNet, Positions, list[Any]]:
    """The net of a model, positions of three sequences, and its inputs on the device, memories of zeros."""
    net, where = ModelNet.of(rnn), Positions.padded(np.array([5, 2, 4]), 5)
    (params,) = (array for array in [rnn.params] if isinstance(array, np.ndarray))
    return net, where, [put(DEVICE, X.reshape(15, 4)), put(DEVICE, X[:, 0]), put(DEVICE, params)]


def gradients(net: ModelNet, where: Positions, arrays: Sequence[Any], order: int) -> list[Any]:
    """The gradients of some order, by the nets that a framework runs."""
    each: Any = net
    seeds: list[Any] = []
    wanted = tuple(range(len(arrays)))
    for _ in range(order - 1):
        made = each([*arrays, *seeds], where, ("placed",))
        seeds = [*seeds, *(made[place] for place in each.floats)]
        each = each.gradient(wanted)
    passes = each.halves(wanted, ("placed",))
    made = passes.forward([*arrays, *seeds], where)
    cotangents = [made[place] for place in each.floats]
    saved = [made[place] for place in passes.saved]
    return [*made, *passes.backward([*arrays, *seeds], cotangents, saved, where)]


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_with_new_parameters(order: int) -> None:
    net, where, arrays = net_of(decay())
    others = [*arrays[:2], put(DEVICE, RANDOM.normal(size=4).astype("f4"))]
    expected = [bits(gradients(net, where, given, order)) for given in (arrays, others)]
    assert expected[0] != expected[1]
    RECORDED.clear()
    gradients(net, where, arrays, order)
    for given, right in zip((arrays, others, arrays), (*expected, expected[0]), strict=True):
        assert DEVICE.repeats(lambda given=given: gradients(net, where, given, order)) == (right, 1 + order)
