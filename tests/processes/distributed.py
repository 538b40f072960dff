"""Two processes train together as one trains alone: DistributedDataParallel, where each holds all parameters,
also on tensors that the engine of an emulated GPU takes where they lie, and FSDP (fully_shard), where each
holds half of every one, also in bfloat16, of a model made on "meta". They are forked or begun anew.
"""

import copy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import stepnet.torch
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine, EmulatedDevice


class Emulated(EmulatedDevice):
    """The emulated GPU. What it frees PyTorch may get, in whose memory the arrays of calls lie."""

    launches = 0

    def launch(self, code: Any, blocks: int, words: Any) -> None:
        self.launches += 1
        self.freed.clear()
        super().launch(code, blocks, words)


ON_GPU: Any = {"placed": lambda: CudaEngine(Emulated(), name="placed", devices=("cpu",))}


def layer_of(package: Any, kind: str) -> Any:
    torch.manual_seed(0)
    return getattr(package, kind)(3, 4, num_layers=2, dtype=torch.float64)


def model_of(package: Any, kind: str) -> Any:
    return torch.nn.ModuleDict(
        {"rnn": layer_of(package, kind), "head": torch.nn.Linear(4, 2, dtype=torch.float64)}
    )


def whole(one: torch.Tensor) -> torch.Tensor:
    return (one.full_tensor() if hasattr(one, "full_tensor") else one).detach()  # type: ignore[operator]


def trained_replicas(layer: Any, rank: int, steps: int) -> dict[str, torch.Tensor]:
    """The parameters after some steps, each on batches of this process's own."""
    model = torch.nn.parallel.DistributedDataParallel(layer)
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


def trained_in_bfloat16(model: Any, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters that FSDP's policy gives, without FSDP: those in use are rounded to bfloat16, each half
    of a batch has its gradients, and their mean in float32 changes the parameters.
    """
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for x in batches:
        optimiser.zero_grad()
        for half in x.chunk(2, 1):
            rounded = copy.deepcopy(model).bfloat16()
            rounded.zero_grad()
            outputs, _ = rounded["rnn"](half.bfloat16())
            rounded["head"](outputs).square().mean().backward()
            for one, other in zip(model.parameters(), rounded.parameters(), strict=True):
                mean = other.grad.float() / 2
                one.grad = mean if one.grad is None else one.grad + mean
        optimiser.step()
    return {name: whole(one) for name, one in model.named_parameters()}


def check_bfloat16(kind: str, mesh: Any, batches: list[torch.Tensor], rank: int) -> None:
    """A model that is made on "meta", sharded, filled, and trained in bfloat16."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    right = model_of(stepnet.torch, kind).float()
    with torch.device("meta"):
        model = model_of(stepnet.torch, kind).float()
    for part in model.values():
        fully_shard(part, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    set_model_state_dict(model, right.state_dict(), options=StateDictOptions(full_state_dict=True))
    found = trained(model, [one[:, 3 * rank : 3 * rank + 3].float() for one in batches])
    assert_near(found, trained_in_bfloat16(right, [one.float() for one in batches]), 1e-6)


def work(rank: int, steps: int, meeting: str) -> None:
    cast("Any", targets.ENGINES).update(ON_GPU)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nothing here changes
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    layers = [layer_of(package, "LSTM") for package in (stepnet.torch, torch.nn, stepnet.torch)]
    ours, theirs = (trained_replicas(layer, rank, steps) for layer in layers[:2])
    assert_near(ours, theirs, 1e-12)
    layers[2].engine = "placed"
    assert_near(trained_replicas(layers[2], rank, steps), theirs, 1e-12)
    assert targets.engine_named("placed").device.launches  # type: ignore[attr-defined]
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
        check_bfloat16(kind, mesh, batches[:3], rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    steps, method = int(sys.argv[1]), sys.argv[2]
    if method == "fork":  # with what the parent compiled
        for kind in ("GRU", "LSTM"):
            trained(model_of(stepnet.torch, kind), [torch.ones(4, 3, 3, dtype=torch.float64)])
    with tempfile.TemporaryDirectory() as folder:
        given = steps, str(Path(folder) / "meeting")
        torch.multiprocessing.start_processes(work, given, nprocs=2, start_method=method)
