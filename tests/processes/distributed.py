"""Two processes train together as one trains alone: DistributedDataParallel, where each holds all parameters,
and FSDP (fully_shard), where each holds half of every one. They are forked or begun anew.
"""

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.fsdp import fully_shard

import stepnet.torch


def layer_of(package: Any, kind: str) -> Any:
    torch.manual_seed(0)
    return getattr(package, kind)(3, 4, num_layers=2, dtype=torch.float64)


def model_of(package: Any, kind: str) -> Any:
    return torch.nn.ModuleDict(
        {"rnn": layer_of(package, kind), "head": torch.nn.Linear(4, 2, dtype=torch.float64)}
    )


def whole(one: torch.Tensor) -> torch.Tensor:
    return (one.full_tensor() if hasattr(one, "full_tensor") else one).detach()  # type: ignore[operator]


def trained_replicas(package: Any, rank: int, steps: int) -> dict[str, torch.Tensor]:
    """The parameters after some steps, each on batches of this process's own."""
    model = torch.nn.parallel.DistributedDataParallel(layer_of(package, "LSTM"))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        torch.manual_seed(2 * step + rank)
        optimiser.zero_grad()
        model(torch.randn(4, 5, 3, dtype=torch.float64))[0].square().sum().backward()
        optimiser.step()
    return {name: whole(one) for name, one in model.named_parameters()}


def trained(model: Any, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters after a step on each batch."""
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for x in batches:
        optimiser.zero_grad()
        outputs, _ = model["rnn"](x)
        with torch.no_grad():
            assert torch.allclose(model["rnn"](x)[0], outputs)
        model["head"](outputs).square().mean().backward()
        optimiser.step()
    return {name: whole(one) for name, one in model.named_parameters()}


def assert_near(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor], most: float) -> None:
    assert found.keys() == right.keys()
    for name, one in found.items():
        assert torch.allclose(one, right[name], atol=most), (name, (one - right[name]).abs().max())


def work(rank: int, steps: int, meeting: str) -> None:
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nothing here changes
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    assert_near(*(trained_replicas(package, rank, steps) for package in (stepnet.torch, torch.nn)), 1e-12)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    batches = [torch.randn(4, 6, 3, dtype=torch.float64) for _ in range(steps)]
    for one in batches:
        torch.distributed.broadcast(one, 0)
    for kind in ("GRU", "LSTM"):
        model = model_of(stepnet.torch, kind)
        for part in model.values():
            fully_shard(part, mesh=mesh)
        found = trained(model, [one[:, 3 * rank : 3 * rank + 3] for one in batches])
        assert_near(found, trained(model_of(torch.nn, kind), batches), 1e-9)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    steps, method = int(sys.argv[1]), sys.argv[2]
    if method == "fork":  # with what the parent compiled
        for kind in ("GRU", "LSTM"):
            trained(model_of(stepnet.torch, kind), [torch.ones(4, 3, 3, dtype=torch.float64)])
    with tempfile.TemporaryDirectory() as folder:
        given = steps, str(Path(folder) / "meeting")
        torch.multiprocessing.start_processes(work, given, nprocs=2, start_method=method)
