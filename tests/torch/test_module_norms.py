"""Norms over channels and steps in `stepnet.torch.graph`: over each sequence's own, whatever its length, as
PyTorch computes it for a sequence that is alone; and as the same module's file of torch.export gives.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
import stepnet.torch
from stepnet.errors import StepError

CHANNELS = 8
LENGTHS = (7, 1, 4)


class Normed(torch.nn.Module):
    """A norm of [sequences, channels, steps] in a module of [sequences, steps, channels]."""

    def __init__(self, norm: Any, moved: bool = True) -> None:
        super().__init__()
        self.norm, self.moved = norm, moved

    def forward(self, x: Any) -> Any:
        return self.norm(x.transpose(1, 2)).transpose(1, 2) if self.moved else self.norm(x)


def drawn(norm: Any) -> Any:
    """A norm whose parameters and statistics are no zeros and ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + ("var" in name or 0.2))
    return norm


NORMS: dict[str, Any] = {
    "groups": lambda: Normed(drawn(torch.nn.GroupNorm(4, CHANNELS))),
    "one group": lambda: Normed(drawn(torch.nn.GroupNorm(1, CHANNELS, eps=1e-3))),
    "groups without parameters": lambda: Normed(torch.nn.GroupNorm(2, CHANNELS, affine=False)),
    "instances": lambda: Normed(drawn(torch.nn.InstanceNorm1d(CHANNELS, affine=True))),
    "instances without parameters": lambda: Normed(torch.nn.InstanceNorm1d(CHANNELS, eps=1e-2)),
    "instances that keep statistics": lambda: Normed(
        drawn(torch.nn.InstanceNorm1d(CHANNELS, affine=True, track_running_stats=True))
    ),
    "batches": lambda: Normed(drawn(torch.nn.BatchNorm1d(CHANNELS))),
    "layers": lambda: Normed(drawn(torch.nn.LayerNorm(CHANNELS)), moved=False),
    "roots of squares": lambda: Normed(drawn(torch.nn.RMSNorm(CHANNELS)), moved=False),
}
IN_FILES = ("groups", "instances", "instances that keep statistics", "batches")


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_over_each_sequence(name: str) -> None:
    module = NORMS[name]().eval()
    graph = stepnet.torch.graph(module, torch.zeros(2, 5, CHANNELS))
    random = np.random.default_rng(0)
    sequences = [random.normal(size=(length, CHANNELS)).astype("float32") for length in LENGTHS]
    # A norm over the steps of a single step of a channel is refused by PyTorch.
    for own, found in zip(sequences, graph(sn.Ragged.from_list(sequences)).to_list(), strict=True):
        if len(own) > 1 or "instances" not in name or "keep" in name:
            exact = module.double()(torch.tensor(own, dtype=torch.float64)[None])[0]
            assert_close(found, exact.detach().numpy(), len(own), CHANNELS)


@pytest.mark.parametrize("name", IN_FILES)
def test_a_file_of_the_same_norm_gives_the_same(name: str, tmp_path: Path) -> None:
    module, sizes = NORMS[name]().eval(), torch.export.Dim
    x = torch.randn(3, 6, CHANNELS, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(module, (x,), dynamic_shapes=({0: sizes("rows"), 1: sizes("steps")},))
    torch.export.save(program, tmp_path / "norm.pt2")
    found = sn.load(tmp_path / "norm.pt2")(x.numpy())
    assert_close(found, stepnet.torch.graph(module, x)(x.numpy()), 6, CHANNELS)


def test_a_norm_that_would_change_its_statistics_is_refused() -> None:
    module = Normed(torch.nn.InstanceNorm1d(CHANNELS, track_running_stats=True)).train()
    with pytest.raises(StepError, match=r"changes its running statistics: call .eval\(\)"):
        stepnet.torch.graph(module, torch.zeros(2, 5, CHANNELS))


def test_a_norm_trains() -> None:
    graph = stepnet.torch.graph(NORMS["groups"]().eval(), torch.zeros(2, 5, CHANNELS))
    x = np.random.default_rng(0).normal(size=(2, 5, CHANNELS)).astype("float32")
    module, tensor = NORMS["groups"]().eval(), torch.tensor(x, requires_grad=True)
    outputs, back = sn.vjp(graph)(x)
    weight = np.random.default_rng(1).normal(size=outputs.shape).astype("float32")
    module(tensor).backward(torch.tensor(weight))
    assert tensor.grad is not None
    assert_close(back(weight).inputs, tensor.grad.numpy(), 5, CHANNELS)
