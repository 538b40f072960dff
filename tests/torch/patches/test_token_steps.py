"""Steps of whole layers of transformers: in place on the states of a cache, with parameters of 16 bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import stepnet
from stepnet.torch.patches.transformers.scan import ScanKey
from stepnet.torch.patches.transformers.single import Single, borrowed
from stepnet.torch.patches.transformers.table import MIXERS
from tests.support.tolerance import assert_close

WIDTH, CHANNELS, STATES, RANK = 256, 512, 16, 16
HEADS, KEY, SHARED = 4, 32, 2
QKV = 2 * SHARED * KEY + HEADS * KEY
LAYERS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]]] = {
    "mamba": (
        MIXERS["MambaMixer"].step(),
        ((CHANNELS, 4), (CHANNELS, STATES)),
        {
            "in_proj": (2 * CHANNELS, WIDTH),
            "conv": (CHANNELS, 1, 4),
            "x_proj": (RANK + 2 * STATES, CHANNELS),
            "dt_proj": (CHANNELS, RANK),
            "dt_bias": (CHANNELS,),
            "A_log": (CHANNELS, STATES),
            "D": (CHANNELS,),
            "out_proj": (WIDTH, CHANNELS),
        },
    ),
    "delta": (
        MIXERS["Qwen3_5GatedDeltaNet"].step(SHARED, 1e-5, "silu"),
        ((QKV, 4), (HEADS, KEY, KEY)),
        {
            "in_proj": (QKV, WIDTH),
            "gate": (HEADS * KEY, WIDTH),
            "decay": (HEADS, WIDTH),
            "rate": (HEADS, WIDTH),
            "conv": (QKV, 1, 4),
            "A_log": (HEADS,),
            "dt_bias": (HEADS,),
            "norm": (KEY,),
            "out_proj": (WIDTH, HEADS * KEY),
        },
    ),
}


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads of other tests, again."""
    yield
    stepnet.set_threads(None)


def key_of(layer: str, dtype: str) -> ScanKey:
    """The key of a layer with parameters of a dtype."""
    step, memories, shapes = LAYERS[layer]
    params = tuple((name, shape, dtype) for name, shape in shapes.items())
    return ScanKey(step, (("x", (WIDTH,), "float32"),), memories, params, "float32")


def parameters(layer: str, dtype: str) -> list[Any]:
    torch.manual_seed(0)
    return [(torch.randn(shape) / 16).to(getattr(torch, dtype)) for shape in LAYERS[layer][2].values()]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("layer", LAYERS)
def test_states_in_place_have_the_bits_of_copied_ones(layer: str, count: int, threads: None) -> None:
    stepnet.set_threads(count)
    net, params = key_of(layer, "bfloat16").net(), parameters(layer, "bfloat16")
    states = [torch.randn(2, *shape) for shape in LAYERS[layer][1]]
    before = [state.clone() for state in states]
    copied, in_place = Single(net, 2, params), Single(net, 2, params)
    copied.bind("auto")
    in_place.bind("auto", states)
    for _ in range(5):
        x = torch.randn(2, 1, WIDTH)
        copied((x, *before))
        output, *before = (result.clone() for result in copied.results)
        in_place((x, *states))
        assert in_place.results[1:] == [None, None]
        assert torch.equal(output, in_place.results[0])
        assert all(map(torch.equal, before, states))


@pytest.mark.parametrize("layer", LAYERS)
def test_parameters_of_16_bits_give_what_they_give_in_float64(layer: str) -> None:
    results = list[list[np.ndarray]]()
    for dtype in ("bfloat16", "float64"):
        params = [tensor.to(getattr(torch, dtype)) for tensor in parameters(layer, "bfloat16")]
        step, memories, shapes = LAYERS[layer]
        wide = "float64" if dtype == "float64" else "float32"
        named = tuple((name, shape, dtype) for name, shape in shapes.items())
        single = Single(ScanKey(step, (("x", (WIDTH,), wide),), memories, named, wide).net(), 1, params)
        single.bind("interpret" if dtype == "float64" else "auto")
        single((torch.ones(1, 1, WIDTH) / 8, *(torch.ones(1, *shape) / 4 for shape in memories)))
        results.append([tensor.numpy().copy() for tensor in single.results])
    for ours, exact in zip(*results, strict=True):
        assert_close(ours, exact, width=2 * CHANNELS)


def test_states_of_another_dtype_or_with_gaps_are_copied() -> None:
    net, params = key_of("mamba", "float32").net(), parameters("mamba", "float32")
    window, h = (torch.randn(1, *shape) for shape in LAYERS["mamba"][1])
    apart = torch.randn(1, STATES, CHANNELS).mT
    single = Single(net, 1, params)
    for states, copied in (([window.bfloat16(), h], [True, False]), ([window, apart], [False, True])):
        single.bind("interpret", states)
        assert [result is not None for result in single.results[1:]] == copied


def test_a_prepared_step_does_not_keep_states_alive() -> None:
    net, params = key_of("mamba", "float32").net(), parameters("mamba", "float32")
    states = [torch.randn(1, *shape) for shape in LAYERS["mamba"][1]]
    before = [uses(state) for state in states]
    single = Single(net, 1, params)
    single.bind("interpret", states)
    single((torch.zeros(1, 1, WIDTH), *states))
    assert [uses(state) for state in states] == before


def uses(tensor: Any) -> int:
    """The number of tensors and arrays that keep the memory of a tensor."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


def test_an_array_that_borrows_a_tensor() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = borrowed(tensor, "float32")
    assert array is not None
    array[1, 2] = 7
    assert tensor[1, 2] == 7
    assert borrowed(tensor, "float64") is None
    assert borrowed(tensor.T, "float32") is None
