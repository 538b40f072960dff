"""Who is speaking? A recurrence over utterances whose step runs a recurrence over frames.

The 370 test utterances of Japanese Vowels are grouped by their nine speakers: a `Ragged` of two levels, of
speakers of utterances of frames. The inner recurrence is the GRU that ships with stepnet, trained in PyTorch
on other utterances; it hears one utterance. The outer one believes: its memory is the logarithm of the
probability of each speaker, and every utterance changes it by Bayes' rule. So the longer someone is listened
to, the more often it is right, which shows where a single utterance tells little: in noise.

Run it from the root of the repository (a few seconds):

    .venv/bin/python examples/hierarchy.py
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.cli.demo import load
from stepnet.layout import from_torch

Array = np.ndarray
SPEAKERS, SESSION, NOISE = 9, 8, 2.5


def classifier(weights: Mapping[str, Array]) -> sn.RNN:
    """The hierarchical classifier: the beliefs after each utterance, for speakers of utterances of frames."""
    frames = from_torch(weights, prefix="gru")
    head = {"W": weights["head.weight"].T, "b": weights["head.bias"]}

    def step(utterance: Any, belief: Any, params: dict[str, Array]) -> tuple[Any, Any]:
        _, heard = frames(utterance, initial="zeros")
        belief = log_softmax(belief + heard @ params["W"] + params["b"])
        return belief, belief

    return sn.RNN(step, head, memory=SPEAKERS)


def log_softmax(x: Any) -> Any:
    """The logarithms of the softmax over the features."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def grouped(utterances: sn.Ragged, speakers: Array, most: int | None = None) -> tuple[sn.Ragged, Array]:
    """Groups of utterances that follow one another and are by one speaker, at most so many in each, and who
    speaks in each, from 0. Grouping is a matter of offsets: the frames stay where they are.
    """
    counts = np.unique(speakers, return_counts=True)[1]  # utterances come speaker by speaker
    sizes = [[count] if most is None else sessions(count, most) for count in counts.tolist()]
    outer = np.cumsum([0, *(size for of_one in sizes for size in of_one)])
    return sn.Ragged(utterances.values, (outer, *utterances.offsets)), speakers[outer[:-1]] - 1


def sessions(count: int, most: int) -> list[int]:
    """The number of utterances of each session, at most so many."""
    return [min(most, count - begun) for begun in range(0, count, most)]


def in_noise(utterances: sn.Ragged, times: float) -> sn.Ragged:
    """The utterances in noise that varies so many times as much as they do, feature by feature."""
    values = np.asarray(utterances.values)
    noise = np.random.default_rng(0).standard_normal(values.shape, values.dtype)
    return utterances.with_values(values + np.float32(times) * values.std(axis=0) * noise)


def told_right(beliefs: sn.Ragged, right: Array) -> sn.Ragged:
    """For each utterance of each group whether the speaker is told right once it was heard."""
    spoken = np.repeat(right, beliefs.lengths)
    return beliefs.with_values(np.asarray(beliefs.values).argmax(axis=-1) == spoken)


def shares(right: sn.Ragged) -> list[float]:
    """After one utterance, two and so on: the share of groups told right, of those that have so many."""
    groups = right.to_list()
    return [
        float(np.mean([group[heard] for group in groups if heard < len(group)]))
        for heard in range(int(right.lengths.max()))
    ]


def main() -> None:
    """Listens to the nine speakers, then to sessions of a few utterances, as they are and in noise."""
    data = load()
    rnn = classifier(data.weights)

    people, right = grouped(data.utterances, data.speakers)
    beliefs, final = rnn(people)
    few, many = people.lengths.min(), people.lengths.max()
    told = int((final.argmax(axis=-1) == right).sum())
    alone = int((beliefs.values[people.offsets[0][:-1]].argmax(axis=-1) == right).sum())
    print(f"{len(right)} speakers, {len(data.utterances)} utterances, {few} to {many} by each")
    print(
        f"told right after the first utterance: {alone} of {len(right)}; after all: {told} of {len(right)}\n"
    )

    parts, right = grouped(data.utterances, data.speakers, SESSION)
    noisy, _ = grouped(in_noise(data.utterances, NOISE), data.speakers, SESSION)
    clear, blurred = (shares(told_right(rnn(given)[0], right)) for given in (parts, noisy))
    print(f"{len(right)} sessions of up to {SESSION} utterances, told right after")
    print(f"  {'utterances':>10}{'as they are':>14}{f'in noise, {NOISE:g}x':>16}")
    for heard, (one, other) in enumerate(zip(clear, blurred, strict=True), 1):
        print(f"  {heard:>10}{one:>14.1%}{other:>16.1%}")


if __name__ == "__main__":
    main()
