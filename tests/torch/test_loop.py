"""Recurrences on other devices than the CPU: a loop of PyTorch's operations gives what machine code gives.

The loop runs on the CPU here, beside machine code; tensors without numbers, of the device `meta`, show that
others get there.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import stepnet.torch
from stepnet.compiler.values import leaves
from stepnet.torch.sequences import ModuleSequences

LENGTHS = (3, 0, 5, 1, 3)


class Cell(torch.nn.Module):
    """Two memories, statics, and the number of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.W = torch.nn.Parameter(torch.randn(3, 4))
        self.R = torch.nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: Any, state: Any, statics: Any, index: Any) -> Any:
        h, c = state
        c = torch.sigmoid(h) * c + x @ self.W + statics
        h = torch.tanh(c @ self.R + index.unsqueeze(-1) / 8)
        return h * c, (h, c)


def recurrence(**options: Any) -> Any:
    torch.manual_seed(1)
    example = torch.zeros(1, 3), (torch.zeros(1, 4), torch.zeros(1, 4))
    return stepnet.torch.Recurrence(Cell(), example, statics=torch.zeros(1, 4), **options).double()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def dense() -> torch.Tensor:
    return random(5, 4, 3)


def packed() -> PackedSequence:
    return pack_sequence([random(n, 3) for n in LENGTHS if n], enforce_sorted=False)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(n, 3).double() for n in LENGTHS], layout=torch.jagged)


def results(module: Any, by_loop: bool, value: Any, states: Any, statics: Any) -> list[torch.Tensor]:
    """Outputs and last states, in the order in which rows stand in the data."""
    given = ModuleSequences.of(value, module.batch_first)
    if by_loop:
        return module.looped(given, states, [statics])
    return module.results(given, states, [statics])


@pytest.mark.long(every=5)
@pytest.mark.parametrize("make", [dense, packed, nested])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_the_loop_gives_what_machine_code_gives(make: Any, reverse: bool, begun: bool) -> None:
    module = recurrence(reverse=reverse)
    value = make()
    rows = ModuleSequences.of(value, False).rows
    states, statics = [random(rows, 4) for _ in range(2)] if begun else [], random(rows, 4)
    given = [statics, *states, *module.parameters()]
    found: list[list[Any]] = []
    for by_loop in (True, False):
        made = results(module, by_loop, value, states, statics)
        weights = [torch.cos(torch.arange(one.numel(), dtype=one.dtype)).reshape(one.shape) for one in made]
        total = sum((one * weight).sum() for one, weight in zip(made, weights, strict=True))
        found.append([*made, *torch.autograd.grad(total, given)])  # type: ignore[arg-type]
    assert len(found[0]) == 3 + len(given)
    for ours, right in zip(*found, strict=True):
        assert np.abs(right.detach().numpy()).max() > 0
        assert_close(ours.detach().numpy(), right.detach().numpy(), length=12, width=8)


def test_a_function_runs_with_its_own_parameters() -> None:
    params = {"W": torch.randn(3, 3)}
    module: Any = stepnet.torch.Recurrence(
        lambda x, h, p: (h, torch.tanh(x @ p["W"] + h)), (torch.zeros(1, 3), torch.zeros(1, 3), params)
    )
    given = ModuleSequences.of(torch.randn(4, 2, 3), False)
    for ours, right in zip(module.looped(given, [], []), module.results(given, [], []), strict=True):
        assert_close(ours.detach().numpy(), right.detach().numpy(), length=4, width=3)
    assert_close(np.zeros((2, 3)), module.looped(given, [], [])[0][0].detach().numpy())  # the first memory


@pytest.mark.parametrize(("steps", "rows"), [(0, 2), (3, 0), (0, 0)])
def test_empty_batches(steps: int, rows: int) -> None:
    module = recurrence()
    given = ModuleSequences.of(torch.zeros(steps, rows, 3, dtype=torch.float64), False)
    states = [torch.full((rows, 4), 2.0, dtype=torch.float64) for _ in range(2)]
    statics = [torch.zeros(rows, 4, dtype=torch.float64)]
    for ours, right in zip(
        module.looped(given, states, statics), module.results(given, states, statics), strict=True
    ):
        assert ours.shape == right.shape
        assert torch.equal(ours, right)


def test_other_devices_get_there() -> None:
    module = recurrence(batch_first=True).to("meta")
    outputs, last = module(
        torch.zeros(2, 5, 3, dtype=torch.float64, device="meta"),
        statics=torch.zeros(2, 4, dtype=torch.float64, device="meta"),
    )
    assert [one.device.type for one in (outputs, *leaves(last))] == ["meta"] * 3
    assert [tuple(one.shape) for one in (outputs, *last)] == [(2, 5, 4), (2, 4), (2, 4)]
    outputs.sum().backward()
    assert all(one.grad.device.type == "meta" for one in module.parameters())
