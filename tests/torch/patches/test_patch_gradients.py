"""Gradients of the functions that stand in for transformers': against finite differences, and values with
gradients beside those without.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode

from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine
from stepnet.torch.patches.transformers.mamba import mamba2_chunk_scan
from stepnet.torch.patches.transformers.patch import FUNCTIONS, is_elsewhere, refusal, without_kernel
from stepnet.torch.patches.transformers.scan import LENGTHS, on_engine
from stepnet.torch.patches.transformers.xlstm import mlstm
from tests.torch.placed import DEVICE, KERNELS, placed

__all__ = ["placed"]  # a fixture
ROWS, STEPS = 2, 3


def normal(*shape: int, seed: int) -> torch.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(values).requires_grad_()


def mamba2() -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Two heads that share B and C; some step sizes are at their limit."""
    shapes = ((ROWS, STEPS, 2, 3), (ROWS, STEPS, 2), (2,), (ROWS, STEPS, 1, 2), (ROWS, STEPS, 1, 2))
    shapes += ((2,), (2,), (ROWS, 2, 3, 2))

    def run(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, bias: Any, state: Any) -> Any:
        options = {"dt_softplus": True, "dt_limit": (0.0, 1.2), "return_final_states": True}
        return mamba2_chunk_scan(x, dt, A, B, C, 64, D, bias, state, **options)

    return run, [normal(*shape, seed=place) for place, shape in enumerate(shapes)]


def delta(by_key: bool) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Two heads of values that share queries and keys, which are normed; Kimi's share none."""
    shared = 2 if by_key else 1
    decay = (ROWS, STEPS, 2, 2) if by_key else (ROWS, STEPS, 2)
    shapes = ((ROWS, STEPS, shared, 2),) * 2 + ((ROWS, STEPS, 2, 3), decay, (ROWS, STEPS, 2), (ROWS, 2, 2, 3))

    def run(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> Any:
        return FUNCTIONS["torch_chunk_gated_delta_rule"].ours(q, k, v, g, beta, 64, state, True, not by_key)

    return run, [normal(*shape, seed=place) for place, shape in enumerate(shapes)]


def xlstm() -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Two heads of the mLSTM. eps is so large that the exponents count."""
    layer = SimpleNamespace(config=SimpleNamespace(eps=0.3, mode="inference"))
    shapes = ((ROWS, STEPS, 2, 2),) * 2 + ((ROWS, STEPS, 2, 3),) + ((ROWS, STEPS, 2),) * 2
    shapes += ((ROWS, 2, 2, 3), (ROWS, 2, 2), (ROWS, 2, 1))

    def run(*tensors: Any) -> Any:
        outputs, states = mlstm(layer, *(x.transpose(1, 2) for x in tensors[:5]), *tensors[5:])
        return outputs.transpose(1, 2), *states

    return run, [normal(*shape, seed=place) for place, shape in enumerate(shapes)]


CASES = {
    "mamba2": mamba2,
    "gated delta rule": lambda: delta(False),
    "kimi": lambda: delta(True),
    "mlstm": xlstm,
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each
def test_gradients_are_those_of_finite_differences(case: Any):
    assert torch.autograd.gradcheck(*case())


@pytest.mark.long(every=4)
@each
def test_gradients_of_gradients_are_those_of_finite_differences(case: Any):
    assert torch.autograd.gradgradcheck(*case())


@each
def test_values_are_the_same_with_gradients_and_without(case: Any):
    run, tensors = case()
    with torch.no_grad():
        expected = run(*tensors)
    for own, other in zip(run(*tensors), expected, strict=True):
        assert own.requires_grad
        assert_close(own.detach().numpy(), other.numpy(), length=STEPS, width=4)


@torch.no_grad()
@each
def test_single_steps_are_those_of_a_sequence(case: Any):
    run, tensors = case()
    rows = [place for place, x in enumerate(tensors) if x.shape[:2] == (ROWS, STEPS)]
    states = slice(len(tensors) - (3 if case is xlstm else 1), len(tensors))
    right, now = run(*tensors), list(tensors)
    for time in range(STEPS):
        for place in rows:
            now[place] = tensors[place][:, time : time + 1]
        output, *now[states] = run(*now)
        assert_close(output.numpy(), right[0][:, time : time + 1].numpy(), length=STEPS, width=4)
    for own, other in zip(now[states], right[1:], strict=True):
        assert_close(own.numpy(), other.numpy(), length=STEPS, width=4)


@each
def test_steps_behind_the_lengths_give_no_gradients(case: Any):
    run, tensors = case()
    token = LENGTHS.set(np.array([STEPS, 1]))
    try:
        output, *_ = run(*tensors)
    finally:
        LENGTHS.reset(token)
    gradient, *_ = torch.autograd.grad(output.sum(), tensors[0])
    assert not output[1, 1:].any()
    assert not gradient[1, 1:].any()
    assert gradient[0].any()


def test_nothing_of_the_size_of_the_matrices_of_all_steps_is_saved():
    run, tensors = mamba2()
    saved = list[int]()

    def packed(tensor: Any) -> Any:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        run(*tensors)
    matrices = STEPS * tensors[-1].numel()
    assert saved
    assert max(saved) < matrices


# ---- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("placed")
@pytest.mark.parametrize("case", [mamba2, lambda: delta(False)])
def test_gradients_on_tensors_where_they_lie_are_those_of_finite_differences(case: Any):
    run, inputs = case()
    here = run(*inputs)
    with on_engine("placed"):
        there = run(*inputs)
        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert KERNELS
    for one, other in zip(there, here, strict=True):
        assert_close(one.detach().numpy(), other.detach().numpy(), STEPS, 8)


@pytest.mark.usefixtures("placed")
def test_on_a_gpu_that_the_engine_takes_stepnet_runs(monkeypatch: pytest.MonkeyPatch):
    whole = without_kernel(lambda x: "the kernel of the whole layer")
    with FakeTensorMode():
        there, nowhere = torch.empty(2, device="cuda"), torch.empty(2, device="meta")
    assert is_elsewhere((there,), {})
    assert "are on cuda: stepnet runs this layer on the CPU and on GPUs" in str(refusal([there]))
    for table in (targets.VARIANTS, targets.ENGINES):
        monkeypatch.setitem(table, "cuda", lambda *words: CudaEngine(DEVICE))  # type: ignore[arg-type]
    targets.engine.cache_clear()
    assert not is_elsewhere((there,), {"x": torch.ones(2)})
    assert refusal([there]) is None
    assert is_elsewhere((nowhere,), {})
    assert whole(there) == "the kernel of the whole layer"
    assert whole(torch.ones(2)) is None
