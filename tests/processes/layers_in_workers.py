"""Layers of stepnet.torch in the workers of a DataLoader, forked and begun anew, beside this process.

Arguments: how many rows there are, and how many workers begin anew; 0 for none, each imports PyTorch.
"""

import sys

import torch

import stepnet.torch


class Encoded(torch.utils.data.Dataset):
    """The results of a layer for sequences, in the process that is asked."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(0)
        self.count, self.layer = count, stepnet.torch.GRU(3, 8)
        self.xs = torch.randn(count, 5, 3)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.xs[place].clone().requires_grad_()
        outputs, _ = self.layer(x)
        (gradient,) = torch.autograd.grad(outputs.sum(), x)
        return outputs.detach(), gradient


if __name__ == "__main__":
    data = Encoded(int(sys.argv[1]))
    right = [data[place] for place in range(len(data))]  # what threads run here is there before the fork
    ways = {"fork": 2, "spawn": int(sys.argv[2])}
    for method, workers in ((method, count) for method, count in ways.items() if count):
        loader = torch.utils.data.DataLoader(
            data, num_workers=workers, batch_size=2, multiprocessing_context=method
        )
        found = [row for outputs, gradients in loader for row in zip(outputs, gradients, strict=True)]
        assert len(found) == len(right)
        for one, other in zip(found, right, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), method
