"""FSDP (fully_shard): two processes that hold half of each parameter train as one that holds all."""

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


def model_of(package: Any, kind: str) -> Any:
    torch.manual_seed(0)
    layer = getattr(package, kind)(3, 4, num_layers=2, dtype=torch.float64)
    return torch.nn.ModuleDict({"rnn": layer, "head": torch.nn.Linear(4, 2, dtype=torch.float64)})


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
    return {
        name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach()
        for name, one in model.named_parameters()
    }


def work(rank: int, steps: int, meeting: str) -> None:
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nothing here changes
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    batches = [torch.randn(4, 6, 3, dtype=torch.float64) for _ in range(steps)]
    for one in batches:
        torch.distributed.broadcast(one, 0)
    for kind in ("GRU", "LSTM"):
        model = model_of(stepnet.torch, kind)
        for part in model.values():
            fully_shard(part, mesh=mesh)
        found = trained(model, [one[:, 3 * rank : 3 * rank + 3] for one in batches])
        right = trained(model_of(torch.nn, kind), batches)
        assert found.keys() == right.keys()
        for name, one in found.items():
            assert torch.allclose(one, right[name], atol=1e-9), (name, (one - right[name]).abs().max())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (int(sys.argv[1]), str(Path(folder) / "meeting")), nprocs=2)
