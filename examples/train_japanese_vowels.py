"""A speaker classifier trained in PyTorch, and what PyTorch itself makes of the test utterances.

Trains a GRU and a linear head on the 270 training utterances of Japanese Vowels, about ten seconds on one
core, and writes two files that `stepnet demo` and the tests read:

    speaker_gru.safetensors          the state dict: gru.weight_ih_l0 ... head.bias
    speaker_gru_outputs.safetensors  PyTorch's logits, last states and all states on the 370 test utterances

Run it from the root of the repository:

    .venv/bin/python examples/train_japanese_vowels.py [--output FOLDER] [--cross-validate]

The settings below were chosen by `--cross-validate`, which sees the training utterances alone.
"""

import argparse
from pathlib import Path

import pyarrow.parquet as parquet
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

DATA = Path(__file__).resolve().parents[1] / "src" / "stepnet" / "cli" / "data"
FEATURES, HIDDEN, SPEAKERS = 12, 64, 9
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 100, 30, 1e-2, 1e-2
NOISE, DROPOUT, SMOOTHING = 0.8, 0.5, 0.1
DESCRIPTION = (
    "stepnet example, speaker classifier for UCI Japanese Vowels (PyTorch nn.GRU, last state, nn.Linear)"
)


class SpeakerClassifier(nn.Module):
    """A GRU whose last state of each utterance a linear head turns into one logit per speaker."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, SPEAKERS)

    def forward(self, utterances: list[Tensor]) -> Tensor:
        """Logits [utterances, speakers] for utterances of any lengths, each [frames, features]."""
        _, last_states = self.gru(pack_sequence(utterances, enforce_sorted=False))
        return self.head(nn.functional.dropout(last_states[0], DROPOUT, self.training))


def read(split: str) -> tuple[list[Tensor], Tensor]:
    """The utterances of one split, each [frames, features], and their speakers counted from 0."""
    rows = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", split)])
    utterances = [torch.tensor(frames, dtype=torch.float32) for frames in rows["frames"].to_pylist()]
    return utterances, torch.tensor(rows["speaker"].to_pylist()) - 1


def train(utterances: list[Tensor], speakers: Tensor) -> SpeakerClassifier:
    """A classifier of utterances as they are, trained for `EPOCHS` on normalised and noisy ones."""
    torch.manual_seed(0)
    model = SpeakerClassifier().train()
    deviation, mean = torch.std_mean(torch.cat(utterances), dim=0)
    normalised = [(frames - mean) / deviation for frames in utterances]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(utterances)).split(BATCH):
            noisy = [normalised[row] + NOISE * torch.randn_like(normalised[row]) for row in batch]
            loss = nn.functional.cross_entropy(model(noisy), speakers[batch], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
    fold_normalisation(model.gru, mean.double(), deviation.double())
    return model.eval()


@torch.no_grad()
def fold_normalisation(gru: nn.GRU, mean: Tensor, deviation: Tensor) -> None:
    """Moves the normalisation into the GRU's weights: the state dict alone is then the model."""
    weight = gru.get_parameter("weight_ih_l0")
    weight.copy_(weight / deviation)
    bias = gru.get_parameter("bias_ih_l0")
    bias.copy_(bias - weight.double() @ mean)


def cross_validate(utterances: list[Tensor], speakers: Tensor, folds: int = 5) -> float:
    """The share of utterances told right by a classifier trained without their fold."""
    hits, rows = 0, torch.arange(len(utterances))
    for fold in range(folds):
        held_out, others = rows[rows % folds == fold], rows[rows % folds != fold]
        model = train([utterances[row] for row in others], speakers[others])
        guesses = model([utterances[row] for row in held_out]).argmax(dim=1)
        hits += int((guesses == speakers[held_out]).sum())
    return hits / len(utterances)


@torch.inference_mode()
def record(model: SpeakerClassifier, utterances: list[Tensor]) -> dict[str, Tensor]:
    """The outputs of PyTorch for each utterance by itself: no batch, no padding."""
    states = [model.gru(frames)[0] for frames in utterances]
    last_states = torch.stack([state[-1] for state in states])
    return {"logits": model.head(last_states), "last_states": last_states, "states": torch.cat(states)}


def main() -> None:
    """Trains, records, saves, and prints the accuracy."""
    parser = argparse.ArgumentParser(description="Train the speaker classifier and record PyTorch's outputs.")
    parser.add_argument("--output", type=Path, default=DATA, help="folder for the two files")
    parser.add_argument("--cross-validate", action="store_true", help="only print the accuracy of five folds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the same sums in the same order every time
    if arguments.cross_validate:
        print(f"five folds of the training utterances: {cross_validate(*read('train')):.2%} correct")
        return
    model = train(*read("train"))
    utterances, speakers = read("test")
    outputs = record(model, utterances)
    arguments.output.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), arguments.output / "speaker_gru.safetensors", {"description": DESCRIPTION})
    recorded = f"what PyTorch {torch.__version__} gave for the test utterances with speaker_gru.safetensors"
    save_file(outputs, arguments.output / "speaker_gru_outputs.safetensors", {"description": recorded})
    hits = int((outputs["logits"].argmax(dim=1) == speakers).sum())
    print(f"{hits} of {len(speakers)} test utterances right ({hits / len(speakers):.2%})")


if __name__ == "__main__":
    main()
