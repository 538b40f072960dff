"""DistributedDataParallel: two processes train a layer of ours as they train that of torch.nn."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

import stepnet.torch


def trained(kind: type[torch.nn.LSTM], rank: int, steps: int) -> list[torch.Tensor]:
    """The parameters after some steps, each on batches of this process's own."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(kind(3, 4, 2, dtype=torch.float64))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        torch.manual_seed(2 * step + rank)
        optimiser.zero_grad()
        model(torch.randn(4, 5, 3, dtype=torch.float64))[0].square().sum().backward()
        optimiser.step()
    return [one.detach() for one in model.parameters()]


def work(rank: int, steps: int, meeting: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    found, right = (trained(kind, rank, steps) for kind in (stepnet.torch.LSTM, torch.nn.LSTM))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, right, strict=True))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (int(sys.argv[1]), str(Path(folder) / "meeting")), nprocs=2)
