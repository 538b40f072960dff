"""Who is speaking, told at each frame: a model trained by several processes, each on its part of each batch.

Run it from the root of the repository:

    .venv/bin/torchrun --nproc-per-node 2 examples/data_parallel.py [--layer LSTM] [--save FILE]

Without torchrun it is one process, and prints the same losses but for rounding. The utterances are ragged:
two processes with as many utterances have different numbers of frames, and so different weights in the mean.

    L = 1/N sum of the losses of all N frames of a batch        what one process minimises
    L_r = W/N sum of the losses of the frames of process r      what each of W processes minimises
    1/W sum over r of the gradient of L_r = gradient of L       what DistributedDataParallel makes of these

The mean over the frames of each process instead would give a frame of a process with few of them more weight.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from speaker_classifier import FEATURES, SPEAKERS, read
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import stepnet.torch
import stepnet.torch.ready

LAYERS: dict[str, Any] = {
    "GRU": stepnet.torch.GRU,
    "LSTM": stepnet.torch.LSTM,
    "MinimalGatedUnit": stepnet.torch.ready.MinimalGatedUnit,
    "torch.nn.GRU": nn.GRU,
    "torch.nn.LSTM": nn.LSTM,
}
EPOCHS, BATCH, HIDDEN, LEARNING_RATE = 20, 30, 64, 1e-2


class SpeakerTagger(nn.Module):
    """A recurrence and a head that gives one logit per speaker for each frame.

    layer: the class of the recurrence, of stepnet.torch or of torch.nn.
    """

    def __init__(
        self, utterances: list[Tensor], layer: Any = stepnet.torch.GRU, hidden: int = HIDDEN
    ) -> None:
        super().__init__()
        self.deviation, self.mean = torch.std_mean(torch.cat(utterances), dim=0)
        self.rnn = layer(FEATURES, hidden)
        self.head = nn.Linear(hidden, SPEAKERS)

    def forward(self, utterances: PackedSequence) -> Tensor:
        """Logits [frames, speakers], in the order of the packed frames."""
        frames = (utterances.data - self.mean) / self.deviation
        outputs, _ = self.rnn(utterances._replace(data=frames))
        return self.head(outputs.data)


def batches(count: int, size: int, epoch: int) -> tuple[Tensor, ...]:
    """The places of the utterances of each batch: the same in all processes, and sizes differ by 1 at most.

    So each process has a part of every batch, and none waits for another that has fewer batches.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order.tensor_split(max(1, count // size))


def part(batch: Tensor, utterances: list[Tensor]) -> Tensor:
    """This process's utterances of a batch. They are dealt by length, so that all have as much to do."""
    lengths = torch.tensor([len(utterances[place]) for place in batch])
    order = lengths.argsort(descending=True, stable=True)
    return batch[order][dist.get_rank() :: dist.get_world_size()]


def packed(utterances: list[Tensor], speakers: Tensor, places: Tensor) -> tuple[PackedSequence, Tensor]:
    """Some utterances, and the speaker of each of their frames in the same order."""
    chosen = [utterances[place] for place in places]
    each = [speakers[place].expand(len(utterances[place])) for place in places]
    return pack_sequence(chosen, enforce_sorted=False), pack_sequence(each, enforce_sorted=False).data


def loss_of(model: nn.Module, frames: PackedSequence, speakers: Tensor, count: int) -> Tensor:
    """This process's share of the loss of a batch: the sum over its frames, times W/N.

    count: N, the frames of the whole batch. Each process knows it, as all draw the same batches.
    """
    total = nn.functional.cross_entropy(model(frames), speakers, reduction="sum")
    return total * dist.get_world_size() / count


@dataclass(frozen=True)
class Trained:
    """A trained model, the loss and the seconds of each epoch, and the share of test frames told right."""

    model: SpeakerTagger
    losses: list[float]
    seconds: list[float]
    right: float


@torch.inference_mode()
def accuracy(model: nn.Module, utterances: list[Tensor], speakers: Tensor) -> float:
    """The share of frames told right by all processes, each of which reads a part."""
    frames, targets = packed(utterances, speakers, part(torch.arange(len(utterances)), utterances))
    right = (model(frames).argmax(dim=1) == targets).sum()
    counts = torch.stack([right, torch.tensor(len(targets))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(layer: str = "GRU", epochs: int = EPOCHS, batch: int = BATCH, hidden: int = HIDDEN) -> Trained:
    """Trains with all processes of the group; each of them calls this, and gets the same.

    The group is there already. A batch is that of all processes.
    """
    (utterances, speakers), test = read("train"), read("test")
    if batch < dist.get_world_size():
        raise SystemExit(f"a batch has {dist.get_world_size()} utterances or more: one for each process")
    torch.manual_seed(0)
    model = SpeakerTagger(utterances, LAYERS[layer], hidden)
    parallel = DistributedDataParallel(model)  # which sends the parameters of process 0 to all
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, seconds = list[float](), list[float]()
    for epoch in range(epochs):
        begun, total = time.perf_counter(), torch.zeros(())
        cut = batches(len(utterances), batch, epoch)
        for places in cut:
            mine, count = part(places, utterances), sum(len(utterances[place]) for place in places)
            loss = loss_of(parallel, *packed(utterances, speakers, mine), count)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(
                model.parameters(), 1.0
            )  # of gradients that are the same in all processes
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        losses.append(float(total) / len(cut) / dist.get_world_size())
        seconds.append(time.perf_counter() - begun)
    return Trained(model, losses, seconds, accuracy(model, *test))


def join() -> None:
    """Makes this process one of torchrun's group, or a group of its own without torchrun."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


def main(arguments: list[str] | None = None) -> None:
    """Trains; process 0 prints the losses and the accuracy, and saves the parameters."""
    parser = argparse.ArgumentParser(
        description="Train a tagger of speakers, in as many processes as there are."
    )
    parser.add_argument("--layer", choices=LAYERS, default="GRU")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="the utterances of a batch, of all processes"
    )
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--save", type=Path, help="where to write the state_dict")
    options = parser.parse_args(arguments)
    join()
    trained = train(options.layer, options.epochs, options.batch, options.hidden)
    if dist.get_rank() == 0:
        for epoch, (loss, seconds) in enumerate(zip(trained.losses, trained.seconds, strict=True), 1):
            print(f"epoch {epoch:3}  loss {loss:.4f}  {seconds:.3f} s")
        counted = f"{dist.get_world_size()} process" + "es" * (dist.get_world_size() > 1)
        print(f"{trained.right:.1%} of the test frames right, by {counted}")
        if options.save:
            torch.save(trained.model.state_dict(), options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
