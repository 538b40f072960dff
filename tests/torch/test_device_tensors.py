"""Modules of PyTorch on tensors that an engine takes where they lie: on the emulated device, whose memory is
that of this process, so that tensors of the CPU lie on it. The same code runs for tensors on a GPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch.utils import _python_dispatch as dispatch

import stepnet as sn
import stepnet.torch
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine
from stepnet.errors import InputError, RefusedError
from stepnet.torch.cudnn import KNOWN, reason_for_cudnn
from stepnet.torch.sequences import KEEP_STATES, check_capture, run_or
from tests.torch.placed import (
    COPIES,
    DEVICE,
    KERNELS,
    answers,
    check_same,
    flat,
    on_packed,
    on_padded,
    packed_of,
    placed,
    places,
)

__all__ = ["placed"]  # a fixture
pytestmark = pytest.mark.usefixtures("placed")

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


def attention(decays: int = 1) -> Any:
    """A Scan of a decaying linear attention with 16 keys and values, and its own scale of keys."""

    def step(x: Any, S: Any, scale: Any) -> Any:
        q, k, v, g = x[:, :16], x[:, 16:32] * scale, x[:, 32:48], x[:, 48 : 48 + decays]
        S = np.exp(g)[:, :, None] * S + k[:, :, None] * v[:, None, :]
        return (S * q[:, :, None]).sum(1), S

    scale = np.linspace(0.1, 0.3, 16).astype("f4")
    return stepnet.torch.Scan(sn.RNN(step, scale, memory=(16, 16)), engine="placed")


class AttentionCell(torch.nn.Module):
    """A step of the same in PyTorch's operations."""

    def __init__(self, decays: int) -> None:
        super().__init__()
        self.scale, self.decays = torch.nn.Parameter(torch.linspace(0.1, 0.3, 16)), decays

    def forward(self, x: torch.Tensor, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, g = x.split((16, 16, 16, self.decays), -1)
        S = g.exp()[:, :, None] * S + (k * self.scale)[:, :, None] * v[:, None, :]
        return (S * q[:, :, None]).sum(1), S


def recurrence(decays: int) -> Any:
    """A Recurrence of that cell."""
    example = torch.zeros(1, 48 + decays), torch.zeros(1, 16, 16)
    return stepnet.torch.Recurrence(AttentionCell(decays), example, batch_first=True, engine="placed")


class AttentionLoop(AttentionCell):
    """A loop of the cell over [batch, time, features]."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        S, outputs = torch.zeros(len(x), 16, 16), list[torch.Tensor]()
        for each in x.unbind(1):
            output, S = super().forward(each, S)
            outputs.append(output)
        return torch.stack(outputs, 1), S


@pytest.mark.parametrize("decays", [1, 16])
@pytest.mark.parametrize("make", [attention, recurrence])
def test_gradients_of_a_matrix_run_in_chunks(make: Any, decays: int) -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 20, 48 + decays) / 4
    ours = make(decays)
    found, right = (answers(module, module, x) for module in (ours, AttentionLoop(decays)))
    for one, other in zip(found, right, strict=True):
        assert_close(one, other, 20, 256)
    assert "gradients of a matrix" in KERNELS
    COPIES.clear()
    answers(ours, ours, x)
    assert not COPIES, "zeros for memories that are not given are made on the device"


@pytest.mark.parametrize("decays", [1, 16])
def test_the_second_derivative_of_a_matrix_is_that_of_a_loop(decays: int) -> None:
    torch.manual_seed(5)
    x = (torch.randn(2, 4, 48 + decays) / 4).requires_grad_()
    found = list[torch.Tensor]()
    for module in (attention(decays), AttentionLoop(decays)):
        outputs, last = module(x)
        (slope,) = torch.autograd.grad(outputs.square().sum() + last.sum(), x, create_graph=True)
        found += torch.autograd.grad(slope.square().sum(), x)
    one, other = (each.numpy() for each in found)
    assert_close(one, other, 4, 256)


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


class Casts(dispatch.TorchDispatchMode):
    """Records the sizes of tensors that PyTorch casts."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = list[int]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._to_copy.default:
            self.sizes.append(args[0].numel())
        return function(*args, **(kwargs or {}))


def test_sequences_in_half_precision_are_read_and_written_in_place() -> None:
    torch.manual_seed(1)
    module = stepnet.torch.GRU(3, 4, engine="placed", dtype=torch.float16)
    theirs = torch.nn.GRU(3, 4)
    theirs.load_state_dict(module.state_dict())
    x, cotangent = torch.randn(5, 2, 3).half().requires_grad_(), torch.randn(5, 2, 4).half()
    with Casts() as casts:
        outputs, _ = module(x)
        outputs.backward(cotangent)
    assert not [size for size in casts.sizes if size >= 5 * 2 * 3]
    y = x.detach().float().requires_grad_()
    theirs(y)[0].backward(cotangent.float())
    pairs = [(x, y), *zip(module.parameters(), theirs.parameters(), strict=True)]
    for one, other in pairs:
        assert one.grad is not None
        assert one.grad.dtype == torch.float16
        assert other.grad is not None
        assert_close(one.grad.numpy(), other.grad.numpy(), 5, 4)


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


PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
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
    number = getattr(torch, dtype)
    assert reason_for_cudnn(layer, number, has_lengths=False) == CUDNN[case]
    assert not reason_for_cudnn(layer, number, has_lengths=True)
    both = getattr(torch.nn, kind)(3, units, dtype=getattr(torch, dtype), bidirectional=True)
    assert not reason_for_cudnn(both, number, has_lengths=False)


def test_the_page_lists_the_table() -> None:
    page = PAGE.read_text("utf-8")
    rows = [f"| {kind} | {kind.measured} |" for kind in KNOWN]
    start = page.index("| stays with cuDNN | measured |")
    assert page[start:].splitlines()[2 : 3 + len(rows)] == [*rows, ""]


def test_a_checkpoint_is_refused() -> None:
    layer = stepnet.torch.GRU(3, 4, engine="placed", checkpoint=2)
    with pytest.raises(RefusedError, match="checkpoint= is for the CPU, and the tensors are on cpu"):
        layer(torch.ones(5, 2, 3))


# ---- autocast ----------------------------------------------------------------------------------------------


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast as on a GPU, where layers and cells run in its dtype, as torch.nn's do in cuDNN."""
    monkeypatch.setitem(KEEP_STATES, "cpu", frozenset())


LOWERED_KINDS = {
    "GRU": (stepnet.torch.GRU, 3, torch.bfloat16),
    "LSTM": (stepnet.torch.LSTM, 3, torch.float16),
    "RNNCell": (stepnet.torch.RNNCell, 2, torch.bfloat16),
}


@pytest.mark.parametrize("name", LOWERED_KINDS)
def test_under_autocast_they_run_in_its_dtype(lowered: None, name: str) -> None:
    make, axes, dtype = LOWERED_KINDS[name]
    torch.manual_seed(1)
    module = make(3, 4, engine="placed")
    x = torch.randn(5, 2, 3)[:, 0] if axes == 2 else torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype):
        found = flat(module(x))
    assert KERNELS
    assert {tensor.dtype for tensor in found} == {dtype}
    sum(tensor.float().sum() for tensor in found).backward()  # type: ignore[union-attr]
    lower = make(3, 4, engine="placed", dtype=dtype)
    lower.load_state_dict(module.state_dict())
    right = flat(lower(x.to(dtype)))
    sum(tensor.float().sum() for tensor in right).backward()  # type: ignore[union-attr]
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(module.parameters(), lower.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        assert_close(one.grad.numpy(), other.grad.float().numpy(), 5, 4)  # the one is cast from the other


def test_float64_stays_as_autocast_leaves_it(lowered: None) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = stepnet.torch.GRU(3, 4, dtype=torch.float64)(torch.ones(5, 2, 3, dtype=torch.float64))
    assert outputs.dtype == torch.float64


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


def test_lengths_on_a_gpu_are_not_read_while_a_graph_is_captured() -> None:
    check_capture("the lengths of sequences", False)
    with pytest.raises(InputError, match=r"the lengths of sequences are on the GPU, .* torch\.cuda\.graph"):
        check_capture("the lengths of sequences", True)


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
