"""Modules of PyTorch on tensors that an engine takes where they lie: on the emulated device, whose memory is
that of this process, so that tensors of the CPU lie on it. The same code runs for tensors on a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
import stepnet.torch
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine, DeviceCode, EmulatedDevice
from stepnet.errors import InputError, RefusedError
from stepnet.torch import places
from stepnet.torch.cudnn import reason_for_cudnn
from stepnet.torch.sequences import run_or

Array = np.ndarray
PackedSequence = torch.nn.utils.rnn.PackedSequence
COPIES: list[str] = []
"""The copies between the host and the device."""
KERNELS: list[str] = []
"""The kernels that ran."""


class CountedDevice(EmulatedDevice):
    """The emulated device, with a record of copies and kernels."""

    def write(self, address: int, array: Array) -> None:
        COPIES.append(f"write {array.dtype}")
        super().write(address, array)

    def read(self, address: int, array: Array) -> None:
        COPIES.append(f"read {array.dtype}")
        super().read(address, array)

    def launch(self, code: DeviceCode, blocks: int, words: Any) -> None:
        KERNELS.append(code.name)
        super().launch(code, blocks, words)


DEVICE = CountedDevice()


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine "placed", which takes tensors of the CPU where they lie."""
    monkeypatch.setitem(
        targets.ENGINES, "placed", lambda: CudaEngine(DEVICE, name="placed", devices=("cpu",))
    )  # type: ignore[arg-type]
    COPIES.clear()
    KERNELS.clear()
    yield
    targets.engine.cache_clear()
    places.kept_place.cache_clear()


def flat(results: Any) -> list[torch.Tensor]:
    """The tensors of some results, those of a PackedSequence without its positions."""
    if isinstance(results, PackedSequence):
        return [results.data]
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for part in results for tensor in flat(part)]


def answers(module: Any, call: Callable[[Any], Any], x: torch.Tensor) -> list[Array]:
    """Values with and without gradients, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    own = flat(call(x))
    loss: Any = sum(
        (tensor * torch.linspace(-1, 1, tensor.numel()).view(tensor.shape)).sum() for tensor in own
    )
    loss.backward()
    with torch.no_grad():
        plain = flat(call(x))
    grads: list[Any] = [x.grad, *(parameter.grad for parameter in module.parameters())]
    return [tensor.detach().numpy() for tensor in (*own, *plain, *grads)]


def check_same(ours: Any, theirs: Any, call: Callable[[Any, Any], Any], x: torch.Tensor) -> None:
    """Compares a module on the device with another that has its parameters. After the first calls nothing is
    copied but the integers of positions.
    """
    answers(ours, lambda x: call(ours, x), x)
    COPIES.clear()
    found = answers(ours, lambda x: call(ours, x), x)
    assert KERNELS
    assert set(COPIES) <= {"write int64"}
    expected = answers(theirs, lambda x: call(theirs, x), x)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 5, 64)


def packed_of(x: torch.Tensor) -> Any:
    """The sequences [time, 4, features] as a PackedSequence of lengths 3, 5, 1, 2 in this order."""
    return torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 1, 2]), enforce_sorted=False)


def on_padded(module: Any, x: Any) -> Any:
    return module(x)


def on_packed(module: Any, x: Any) -> Any:
    return module(packed_of(x))


LAYERS = {
    "GRU": ("GRU", {}, on_padded),
    "packed GRU": ("GRU", {"num_layers": 2, "bidirectional": True}, on_packed),
    "LSTM": ("LSTM", {"num_layers": 2, "batch_first": True}, on_padded),
    "packed LSTM": ("LSTM", {"bidirectional": True, "proj_size": 2}, on_packed),
    "RNN": ("RNN", {"nonlinearity": "relu", "bias": False}, on_padded),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_those_of_torch_nn_do(name: str) -> None:
    kind, options, call = LAYERS[name]
    torch.manual_seed(1)
    theirs = getattr(torch.nn, kind)(3, 4, **options)
    ours = getattr(stepnet.torch, kind)(3, 4, engine="placed", **options)
    ours.load_state_dict(theirs.state_dict())
    check_same(ours, theirs, call, torch.randn(5, 4, 3))


def test_a_recurrence_of_a_cell_computes_what_the_layer_does() -> None:
    torch.manual_seed(2)
    theirs, cell = torch.nn.GRU(3, 4), torch.nn.GRUCell(3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in theirs.state_dict().items()})
    example = torch.zeros(1, 3), torch.zeros(1, 4)
    ours = stepnet.torch.Recurrence(cell, example, engine="placed")
    check_same(ours, theirs, lambda module, x: module(packed_of(x))[0], torch.randn(5, 4, 3))


def decay(**options: Any) -> Any:
    """A Scan of a gated decay: elementwise operations alone."""

    def step(x: Any, h: Any, a: Any) -> Any:
        following = h / (1 + np.exp(-a)) + x
        return np.tanh(following), following

    return stepnet.torch.Scan(sn.RNN(step, np.linspace(-1, 1, 3).astype("f4"), memory=3), **options)


class DecayLoop(torch.nn.Module):
    """The gated decay as a loop of PyTorch's operations, over [batch, time, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x: torch.Tensor) -> Any:
        h, outputs = torch.zeros_like(x[:, 0]), list[torch.Tensor]()
        for each in x.unbind(1):
            h = torch.sigmoid(self.a) * h + each
            outputs.append(torch.tanh(h))
        return torch.stack(outputs, 1), h


def test_a_scan_computes_what_a_loop_does() -> None:
    check_same(decay(engine="placed"), DecayLoop(), on_padded, torch.randn(4, 5, 3))


def test_second_derivatives_are_right() -> None:
    torch.manual_seed(3)
    layer = stepnet.torch.RNN(2, 2, engine="placed").double()
    x = torch.randn(3, 1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], (x,), fast_mode=True)
    assert KERNELS


def test_later_calls_follow_parameters_that_change() -> None:
    layer, theirs = stepnet.torch.RNN(3, 4, engine="placed"), torch.nn.RNN(3, 4)
    x = torch.randn(5, 2, 3)
    with torch.no_grad():
        for scale in (1.0, 0.5, 2.0, -1.0):
            for parameter in layer.parameters():
                parameter.data.mul_(scale)  # in a way that PyTorch does not count
            theirs.load_state_dict(layer.state_dict())
            assert_close(layer(x)[0].numpy(), theirs(x)[0].numpy(), 5, 16)


def test_results_are_tensors_that_may_be_changed_in_place() -> None:
    layer = stepnet.torch.RNN(3, 4, engine="placed")
    x = torch.randn(5, 2, 3)
    outputs, h = layer(x)
    outputs.mul_(2).sum().backward()  # outputs are no views, which autograd would refuse
    assert not h._is_view()
    before = h.detach().clone()
    layer(x)
    assert torch.equal(h, before)


def test_memory_is_given_back() -> None:
    layer, x = stepnet.torch.RNN(3, 4, engine="placed"), torch.randn(5, 2, 3)
    for _ in range(3):
        layer(x)[0].sum().backward()
    held = len(DEVICE.memory)
    for _ in range(5):
        layer(x)[0].sum().backward()
    assert len(DEVICE.memory) == held


# ---- what PyTorch's own operations run ---------------------------------------------------------------------


class Elsewhere:
    """A device of PyTorch's type "cuda", to decide what would run there."""

    type = "cuda"


def refuse() -> Any:
    raise RefusedError("no engine runs this net\n  cuda: it has no log1p")


def test_what_the_engine_of_a_device_refuses_runs_by_pytorch_and_repr_says_so() -> None:
    layer = stepnet.torch.GRU(3, 4)
    assert run_or(layer, Elsewhere, "", refuse, lambda: "theirs") == "theirs"
    assert repr(layer) == "GRU(3, 4, run by PyTorch: cuda: it has no log1p)"
    assert run_or(layer, Elsewhere, "cuDNN is as fast", refuse, lambda: "theirs") == "theirs"
    assert repr(layer) == "GRU(3, 4, run by PyTorch: cuDNN is as fast)"
    assert run_or(layer, Elsewhere, "", lambda: "ours", refuse) == "ours"
    assert repr(layer) == "GRU(3, 4)"
    layer.engine = "cuda"  # an engine that was asked for has no substitute
    with pytest.raises(RefusedError):
        run_or(layer, Elsewhere, "cuDNN is as fast", refuse, lambda: "theirs")


CUDNN = {
    ("GRU", 128, "float32"): "cuDNN is as fast for GRU and RNN in float32 of up to 128 units",
    ("GRU", 129, "float32"): "",
    ("RNN", 64, "float32"): "cuDNN is as fast for GRU and RNN in float32 of up to 128 units",
    ("LSTM", 64, "float32"): "cuDNN is as fast for LSTM in float32 of up to 64 units",
    ("LSTM", 128, "float32"): "",
    ("LSTM", 512, "float16"): "cuDNN is as fast for LSTM in float16",
    ("GRU", 64, "bfloat16"): "",
}


@pytest.mark.parametrize("case", CUDNN, ids=str)
def test_layers_that_stay_with_cudnn(case: tuple[str, int, str]) -> None:
    kind, units, dtype = case
    layer = getattr(torch.nn, kind)(3, units, dtype=getattr(torch, dtype))
    assert reason_for_cudnn(layer, has_lengths=False) == CUDNN[case]
    assert not reason_for_cudnn(layer, has_lengths=True)
    both = getattr(torch.nn, kind)(3, units, dtype=getattr(torch, dtype), bidirectional=True)
    assert not reason_for_cudnn(both, has_lengths=False)


def test_a_checkpoint_is_refused() -> None:
    layer = stepnet.torch.GRU(3, 4, engine="placed", checkpoint=2)
    with pytest.raises(RefusedError, match="checkpoint= is for the CPU, and the tensors are on cpu"):
        layer(torch.ones(5, 2, 3))


# ---- devices -----------------------------------------------------------------------------------------------


def test_tensors_on_two_devices_are_named() -> None:
    layer = stepnet.torch.Recurrence(
        torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4)), engine="placed"
    )
    with pytest.raises(InputError, match="hx is on meta, and input is on cpu: bring all tensors of a call"):
        layer(torch.ones(5, 2, 3), torch.zeros(2, 4, device="meta"))
    with pytest.raises(InputError, match=r"hx of GRU is torch\.float32 on meta"):
        stepnet.torch.GRU(3, 4, engine="placed")(torch.ones(5, 2, 3), torch.zeros(1, 2, 4, device="meta"))
    with pytest.raises(InputError, match=r"initial of a Scan is torch\.float32 on meta"):
        decay(engine="placed")(torch.ones(2, 5, 3), torch.zeros(2, 3, device="meta"))
    place = places.place_on(torch.device("cpu"), "placed")
    with pytest.raises(InputError, match="a tensor is on meta, and the sequences are on cpu"):
        place.arrays([torch.ones(2, device="meta")])


def test_an_engine_may_name_one_of_several_devices() -> None:
    assert targets.engine_named("cuda:3").name == "cuda:3"
    assert targets.engine_at("auto", "meta") is None
    assert targets.engine_at("placed", "cpu") is targets.engine_named("placed")
    assert targets.engine_at("placed", "cpu", 1) is None
    assert targets.engine_at(["llvm", "placed"], "cpu") is targets.engine_named("placed")
    with pytest.raises(InputError, match="no engine is called 'llvm:1'"):
        targets.engine_named("llvm:1")


@pytest.mark.parametrize(
    ("asked", "name"),
    [("auto", "cpu:1"), ("cpu:tf32", "cpu:1:tf32"), ("cpu:1:tf32", "cpu:1:tf32")],
)
def test_an_engine_without_a_number_is_that_of_the_tensors_device(
    monkeypatch: pytest.MonkeyPatch, asked: str, name: str
) -> None:
    def made(*words: str) -> CudaEngine:
        """An engine of the device that its first word says, by default the first one."""
        number = int(words[0]) if words[0].isdecimal() else 0
        return CudaEngine(DEVICE, name=":".join(["cpu", *words]), devices=("cpu",), number=number)

    monkeypatch.setitem(targets.VARIANTS, "cpu", made)  # type: ignore[arg-type]
    found: Any = targets.engine_at(asked, "cpu", 1)
    assert found.name == name
    targets.engine.cache_clear()


def test_engines_of_arrays_on_the_host_get_copies() -> None:
    """A tensor that an engine does not take where it lies is put and got, as before."""
    layer = stepnet.torch.RNN(3, 4, engine="cuda-emulated")
    outputs, _ = layer(torch.ones(5, 2, 3))
    assert outputs.shape == (5, 2, 4)
    assert not KERNELS
