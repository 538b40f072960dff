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

from stepnet.torch.patches.transformers.delta_rule import torch_chunk_gated_delta_rule
from stepnet.torch.patches.transformers.mamba import mamba2_chunk_scan
from stepnet.torch.patches.transformers.scan import LENGTHS
from stepnet.torch.patches.transformers.xlstm import mlstm

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
        return torch_chunk_gated_delta_rule(q, k, v, g, beta, 64, state, True, not by_key)

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
