"""Who is speaking? A classifier of Japanese Vowels, trained from scratch with the layers of `stepnet.torch`.

270 utterances of 7 to 26 frames train a GRU and a linear head; 370 others of 7 to 29 frames test them. An
utterance is as long as it is: `pack_sequence` puts them end to end, and nothing is padded.

Run it from the root of the repository (well under a minute on two processors):

    .venv/bin/python examples/speaker_classifier.py [--epochs N] [--plot FILE]

`--plot` draws the learning curve, and needs matplotlib.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import stepnet.torch

DATA = Path(__file__).resolve().parents[1] / "src" / "stepnet" / "cli" / "data" / "japanese_vowels.parquet"
FEATURES, HIDDEN, SPEAKERS = 12, 64, 9
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 40, 30, 1e-2, 1e-2
NOISE, DROPOUT, SMOOTHING = 0.8, 0.5, 0.1


class SpeakerClassifier(nn.Module):
    """A GRU whose last state of each utterance a linear head turns into one logit per speaker.

    layers: whose GRU it is, that of stepnet.torch or of torch.nn.
    """

    def __init__(self, utterances: list[Tensor], layers: Any = stepnet.torch) -> None:
        super().__init__()
        self.deviation, self.mean = torch.std_mean(torch.cat(utterances), dim=0)
        self.gru = layers.GRU(FEATURES, HIDDEN)
        self.head = nn.Linear(HIDDEN, SPEAKERS)

    def forward(self, utterances: list[Tensor]) -> Tensor:
        """Logits [utterances, speakers] for utterances of any lengths, each [frames, features]."""
        packed = pack_sequence(utterances, enforce_sorted=False)
        frames = (packed.data - self.mean) / self.deviation
        if self.training:
            frames = frames + NOISE * torch.randn_like(frames)
        _, last = self.gru(packed._replace(data=frames))
        return self.head(nn.functional.dropout(last[0], DROPOUT, self.training))


def read(split: str) -> tuple[list[Tensor], Tensor]:
    """The utterances of one split, each [frames, features], and their speakers counted from 0."""
    rows = parquet.read_table(DATA, filters=[("split", "==", split)])
    utterances = [torch.tensor(frames, dtype=torch.float32) for frames in rows["frames"].to_pylist()]
    return utterances, torch.tensor(rows["speaker"].to_pylist()) - 1


@torch.inference_mode()
def accuracy(model: SpeakerClassifier, utterances: list[Tensor], speakers: Tensor) -> float:
    """The share of utterances told right."""
    return float((model.eval()(utterances).argmax(dim=1) == speakers).float().mean())


def train(
    layers: Any = stepnet.torch, epochs: int = EPOCHS
) -> tuple[SpeakerClassifier, list[float], list[float]]:
    """A trained classifier, the mean loss of each epoch, and the accuracy on the test utterances after it."""
    (utterances, speakers), test = read("train"), read("test")
    torch.manual_seed(0)
    model = SpeakerClassifier(utterances, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    losses, right = list[float](), list[float]()
    with Progress() as progress:
        task = progress.add_task("training", total=epochs)
        for _ in range(epochs):
            batches = torch.randperm(len(utterances)).split(BATCH)
            total = 0.0
            for batch in batches:
                logits = model.train()([utterances[row] for row in batch])
                loss = nn.functional.cross_entropy(logits, speakers[batch], label_smoothing=SMOOTHING)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                total += loss.item()
            schedule.step()
            losses.append(total / len(batches))
            right.append(accuracy(model, *test))
            progress.update(task, advance=1, description=f"loss {losses[-1]:.3f}, {right[-1]:.1%} right")
    return model, losses, right


def plot(losses: list[float], right: list[float], file: Path) -> None:
    """Draws the learning curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    left, other = figure.subplots(1, 2)
    for axes, values, title in ((left, losses, "loss, training"), (other, right, "accuracy, test")):
        axes.plot(range(1, len(values) + 1), values)
        axes.set(title=title, xlabel="epoch")
        axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description="Train the speaker classifier with stepnet.torch.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--plot", type=Path, help="a picture of the learning curve; needs matplotlib")
    options = parser.parse_args(arguments)
    _, losses, right = train(epochs=options.epochs)
    print(f"{right[-1]:.1%} of 370 test utterances right after {options.epochs} epochs")
    if options.plot:
        plot(losses, right, options.plot)


if __name__ == "__main__":
    main()
