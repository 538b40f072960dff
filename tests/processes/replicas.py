"""Two processes, each with its part of a ragged batch: their gradients are those that one process has of the
whole batch, by PyTorch's own operations. Before that they train the example.

Arguments: a file for the losses of the example, and with "long" all kinds of modules and of replicas.
torchrun starts the two, each of which imports PyTorch; without it they are forks of this process.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import data_parallel as example
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.multiprocessing
from tolerance import assert_close
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_sequence, pad_sequence, unpack_sequence

import stepnet as sn
import stepnet.torch
from stepnet.compiler.targets.threads import threads_limit

FEATURES, HIDDEN, CLASSES = 3, 4, 5
LENGTHS = 5, 1, 7, 2, 2, 9, 4
MINE = ((0, 1, 2, 3, 4), (5, 6))  # 17 steps of 5 sequences, and 13 of 2
TARGETS = torch.tensor([0, 3, 1, 4, 2, 2, 0])
Rows = tuple[int, ...]


class Cell(nn.Module):
    """A step that no library has."""

    def __init__(self) -> None:
        super().__init__()
        self.of_both = nn.Linear(FEATURES + HIDDEN, HIDDEN)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.5 * h + torch.tanh(self.of_both(torch.cat([x, h], -1)))
        return h, h


class Looped(nn.Module):
    """The same as a loop over the steps of each sequence: what the gradients are to be."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, packed: Any) -> Any:
        outputs = list[Tensor]()
        for steps in unpack_sequence(packed):
            h = steps.new_zeros(1, HIDDEN)
            outputs.append(torch.cat([h := self.cell(x[None], h)[0] for x in steps]))
        return pack_sequence(outputs, enforce_sorted=False), None


def step_of_numpy(x: Any, h: Any, params: Any) -> Any:
    h = 0.5 * h + np.tanh(np.concatenate([x, h], -1) @ params["W"] + params["b"])
    return h, h


class Scanned(nn.Module):
    """The same step, written with NumPy's functions, over padded sequences."""

    def __init__(self) -> None:
        super().__init__()
        linear = Cell().of_both
        params = {"W": linear.weight.T.detach().numpy(), "b": linear.bias.detach().numpy()}
        self.scan = stepnet.torch.Scan(sn.RNN(step_of_numpy, params, memory=HIDDEN))

    def forward(self, packed: Any) -> Any:
        rows = unpack_sequence(packed)
        counts = torch.tensor([len(row) for row in rows])
        outputs, _ = self.scan(pad_sequence(rows, batch_first=True), lengths=counts)
        pairs = zip(outputs, counts, strict=True)
        return pack_sequence([row[:count] for row, count in pairs], enforce_sorted=False), None


def recurrence() -> nn.Module:
    return stepnet.torch.Recurrence(Cell(), (torch.zeros(1, FEATURES), torch.zeros(1, HIDDEN)))


def layer(package: Any, name: str) -> nn.Module:
    return getattr(package, name)(FEATURES, HIDDEN, num_layers=2)


def accelerated() -> nn.Module:
    made = layer(torch.nn, "LSTM")
    stepnet.torch.accelerate(made)
    return made


def with_checkpoint() -> nn.Module:
    made: Any = layer(stepnet.torch, "GRU")
    made.checkpoint = "sqrt"
    return made


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "GRU": (partial(layer, stepnet.torch, "GRU"), partial(layer, torch.nn, "GRU")),
    "accelerated LSTM": (accelerated, partial(layer, torch.nn, "LSTM")),
    "GRU, checkpoint": (with_checkpoint, partial(layer, torch.nn, "GRU")),
    "Recurrence": (recurrence, Looped),
    "Scan": (Scanned, Looped),
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4},
}


class Model(nn.Module):
    """A recurrence and a head whose logits of all steps of a sequence are summed."""

    def __init__(self, rnn: Callable[[], nn.Module], unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = rnn()
        self.head = nn.Linear(HIDDEN, CLASSES)
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, rows: Rows) -> Tensor:
        """The loss of some sequences: 1/N of the sum over their steps, where N counts those of all."""
        random = np.random.default_rng(1)
        all_ = [torch.from_numpy(random.normal(size=(count, FEATURES))) for count in LENGTHS]
        packed = pack_sequence([all_[row] for row in rows], enforce_sorted=False)
        targets = [TARGETS[row].expand(LENGTHS[row]) for row in rows]
        goal = pack_sequence(targets, enforce_sorted=False).data
        logits = self.head(self.rnn(packed)[0].data)
        return nn.functional.cross_entropy(logits, goal, reduction="sum") / sum(LENGTHS)


def gradients(model: Any) -> list[Tensor]:
    """The gradients of all parameters that have one."""
    found = [one.grad for one in model.parameters() if one.grad is not None]
    return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found]


def right(theirs: Callable[[], nn.Module]) -> list[Tensor]:
    """The gradients of one process, which has all sequences."""
    model = Model(theirs)
    model(tuple(range(len(LENGTHS)))).backward()
    return gradients(model)


def assert_gradients(model: Any, theirs: Callable[[], nn.Module], name: str) -> None:
    found, expected = gradients(model), right(theirs)
    assert len(found) == len(expected), name
    for one, other in zip(found, expected, strict=True):
        turned = one.T if one.ndim == 2 and one.shape != other.shape else one  # W of a Scan is x @ W
        assert_close(turned.numpy(), other.numpy(), sum(LENGTHS), HIDDEN)


def backward(model: Any, rows: Rows) -> None:
    """Adds this process's share of the gradients; DistributedDataParallel and FSDP average the shares."""
    (model(rows) * dist.get_world_size()).backward()


def check_replicas(name: str) -> None:
    """DistributedDataParallel in all ways, twice over, and with gradients of two batches added up."""
    ours, theirs = MODULES[name]
    mine = MINE[dist.get_rank()]
    for way, options in WAYS.items():
        parallel = DistributedDataParallel(Model(ours, unused=way == "unused"), **options)
        for _ in range(2):
            parallel.zero_grad()
            backward(parallel, mine)
        assert_gradients(parallel, theirs, f"{name} {way}")
        if way != "static":  # which PyTorch refuses for torch.nn's layers too
            parallel.zero_grad()
            for rows, context in ((mine[:1], parallel.no_sync()), (mine[1:], nullcontext())):
                with context:
                    backward(parallel, rows)
            assert_gradients(parallel, theirs, f"{name} {way}, in two parts")


def check_shards(name: str, folder: Path) -> None:
    """FSDP's fully_shard, and a checkpoint of its shards that a whole model reads."""
    ours, theirs = MODULES[name]
    model: Any = Model(ours)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    backward(model, MINE[dist.get_rank()])
    assert_gradients(model, theirs, name)
    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    whole = Model(ours)
    with torch.no_grad():
        for one in whole.parameters():
            one.zero_()
    state = {"model": whole.state_dict()}
    torch.distributed.checkpoint.load(state, checkpoint_id=folder)
    whole.load_state_dict(state["model"])
    for one, other in zip(whole.parameters(), Model(ours).parameters(), strict=True):
        assert torch.equal(one, other), name


def check_uneven() -> None:
    """A process whose batches end first, by join(), and an optimiser whose state is shared out."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ours, theirs = MODULES["GRU"]
    made = list[list[Tensor]]()
    for rnn in (ours, theirs):
        parallel = DistributedDataParallel(Model(rnn))
        optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, lr=0.1)
        with parallel.join():
            for row in MINE[dist.get_rank()]:
                parallel.zero_grad()
                parallel((row,)).backward()
        optimizer.step()
        made.append([one.detach() for one in parallel.parameters()])
    for one, other in zip(*made, strict=True):
        assert_close(one.numpy(), other.numpy(), sum(LENGTHS), HIDDEN)


def check_example() -> None:
    """The gradients of a batch of the example."""
    utterances, speakers = example.read("train")
    utterances = [one.double() for one in utterances]
    batch, *_ = example.batches(len(utterances), 31, epoch=0)
    made = list[Any]()
    for rnn in (stepnet.torch.GRU, nn.GRU):
        torch.manual_seed(0)
        made.append(example.SpeakerTagger(utterances, rnn, hidden=8))
    parallel = DistributedDataParallel(made[0])
    mine = example.part(batch, utterances)
    frames, targets = example.packed(utterances, speakers, batch)
    example.loss_of(parallel, *example.packed(utterances, speakers, mine), len(targets)).backward()
    nn.functional.cross_entropy(made[1](frames), targets).backward()
    for one, other in zip(*map(gradients, made), strict=True):
        assert_close(one.numpy(), other.numpy(), len(targets), 8)
    counts = torch.zeros(2, dtype=torch.int64)
    counts[dist.get_rank()] = sum(len(utterances[place]) for place in mine)
    dist.all_reduce(counts)
    assert int(counts.sum()) == len(targets)
    assert 0 < int(counts[0] - counts[1]) < 30, counts  # dealt by length, and no utterance has 30 frames


def main(losses: Path, long: bool, **group: Any) -> None:
    """Checks of one of the two processes. group: the two, where torchrun does not say which they are."""
    # PyTorch says it of its own layers, whose outputs nobody changes here either.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    dist.init_process_group("gloo", **group)
    assert threads_limit().count == torch.get_num_threads() == 1, threads_limit()
    trained = example.train(epochs=1, hidden=8)
    if dist.get_rank() == 0:
        losses.write_text(json.dumps({"losses": trained.losses, "right": trained.right}))
    torch.set_default_dtype(torch.float64)
    check_example()
    for name in MODULES if long else ["GRU"]:
        if long:
            check_replicas(name)
        check_shards(name, losses.parent / name)
    if long:
        check_uneven()
    gc.collect()  # FSDP's cycles hold process groups: one that outlives the interpreter ends the process
    dist.barrier()
    dist.destroy_process_group()


def in_a_fork(rank: int, losses: Path, long: bool) -> None:
    """Checks of a fork, which meets the other one in a file."""
    meeting = f"file://{losses.with_name('meeting')}"
    main(losses, long, init_method=meeting, rank=rank, world_size=2)


if __name__ == "__main__":
    given = Path(sys.argv[1]).resolve(), "long" in sys.argv[2:]
    if "RANK" in os.environ:
        main(*given)
    else:
        torch.multiprocessing.start_processes(in_a_fork, given, nprocs=2, start_method="fork")
