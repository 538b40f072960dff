"""The hierarchical example: what it computes, against the same model written as loops in torch, and what it
prints.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close

import stepnet as sn
from stepnet.cli.demo import Speakers, load

Array = np.ndarray
FRAMES, WIDTH = 29, 12 + 64  # of the longest utterance; products summed for each gate


def example() -> Any:
    """The example as a module."""
    file = Path(__file__).resolve().parents[2] / "examples" / "hierarchy.py"
    spec = spec_from_file_location("hierarchy", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hierarchy = example()


@pytest.fixture(scope="module")
def data() -> Speakers:
    return load()


def last_states(cell: torch.nn.GRUCell, utterances: list[Array]) -> torch.Tensor:
    """The state after each utterance: frame by frame, of all utterances that have such a frame at a time."""
    h = torch.zeros(len(utterances), 64, dtype=torch.float64)
    for frame in range(max(map(len, utterances), default=0)):
        there = [place for place, utterance in enumerate(utterances) if len(utterance) > frame]
        frames = np.stack([utterances[place][frame] for place in there])
        h[there] = cell(torch.from_numpy(frames.astype("float64")), h[there])
    return h


@torch.inference_mode()
def by_loops(weights: dict[str, Array], groups: list[list[Array]]) -> tuple[list[Array], Array]:
    """The beliefs after each utterance of each group, and the last ones: frame by frame in float64."""
    cell, head = torch.nn.GRUCell(12, 64).double(), torch.nn.Linear(64, 9).double()
    named = {name: torch.from_numpy(weight.astype("float64")) for name, weight in weights.items()}
    cell.load_state_dict({name: named[f"gru.{name}_l0"] for name in cell.state_dict()})
    head.load_state_dict({name: named[f"head.{name}"] for name in head.state_dict()})
    beliefs, final = [], []
    for group in groups:
        belief, found = torch.zeros(9, dtype=torch.float64), []
        for h in last_states(cell, group):
            belief = torch.log_softmax(belief + head(h), 0)
            found.append(belief)
        beliefs.append(np.array([one.numpy() for one in found]).reshape(-1, 9))
        final.append(belief.numpy())
    return beliefs, np.array(final)


@pytest.fixture(scope="module")
def heard(data: Speakers) -> tuple[list[Array], Array]:
    """The probabilities of the nine speakers, by loops in torch."""
    return by_loops(data.weights, hierarchy.grouped(data.utterances, data.speakers)[0].to_list())


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_is_that_of_loops_in_torch(
    data: Speakers, heard: tuple[list[Array], Array], engine: str, dtype: str
):
    weights = {name: weight.astype(dtype) for name, weight in data.weights.items()}
    people, _ = hierarchy.grouped(data.utterances, data.speakers)
    given = people.with_values(np.asarray(people.values).astype(dtype))
    beliefs, final = hierarchy.classifier(weights)(given, engine=engine)
    assert beliefs.values.dtype == final.dtype == dtype
    length = FRAMES + int(people.lengths.max())
    for found, right in zip(beliefs.to_list(), heard[0], strict=True):
        assert_close(found, right, length, WIDTH)
    assert_close(final, heard[1], length, WIDTH)


def test_groups_of_any_sizes(data: Speakers, engine: str):
    # speakers of no, one and three utterances, of no, one and more frames
    frames = np.asarray(data.utterances.values)[:10]
    groups = sn.Ragged(frames, (np.array([0, 0, 1, 4, 5]), np.array([0, 4, 4, 9, 10, 10])))
    beliefs, final = hierarchy.classifier(data.weights)(groups, engine=engine)
    right, last = by_loops(data.weights, groups.to_list())
    assert_close(beliefs.values, np.concatenate(right), 9, WIDTH)
    assert_close(final, last, 9, WIDTH)


def test_grouping_leaves_the_frames_where_they_are(data: Speakers):
    for most in (None, 8):
        groups, right = hierarchy.grouped(data.utterances, data.speakers, most)
        assert groups.values is data.utterances.values
        assert groups.lengths.sum() == len(data.utterances)
        np.testing.assert_array_equal(np.repeat(right, groups.lengths) + 1, data.speakers)
        assert len(right) == (9 if most is None else 49)
        assert most is None or groups.lengths.max() == most


def test_sessions_are_full_but_for_the_last():
    assert [hierarchy.sessions(count, 8) for count in (20, 16, 3)] == [[8, 8, 4], [8, 8], [3]]


def test_beliefs_of_any_size_stay_numbers():
    found = hierarchy.log_softmax(np.array([[1000.0, 0.0, -1000.0], [-5000.0, -5000.0, -9000.0]]))
    half = np.log(0.5)
    assert_close(found, np.array([[0, -1000, -2000], [half, half, half - 4000]]), 1, 3)


def test_the_inner_recurrence_is_lifted(data: Speakers):
    rnn = hierarchy.classifier(data.weights)
    rnn(hierarchy.grouped(data.utterances, data.speakers)[0])
    kinds = [part.kind for part in rnn.schedule.parts]
    assert kinds.count("recurrence") == 2
    assert "loop" not in kinds


def share(data: Speakers, utterances: sn.Ragged) -> list[str]:
    """The expected lines: after each number of utterances, the share of sessions told right."""
    groups, right = hierarchy.grouped(utterances, data.speakers, hierarchy.SESSION)
    beliefs, _ = by_loops(data.weights, groups.to_list())
    found = []
    for heard in range(hierarchy.SESSION):
        told = [b[heard].argmax() == r for b, r in zip(beliefs, right, strict=True) if heard < len(b)]
        found.append(f"{sum(told) / len(told):.1%}")
    return found


def test_what_it_prints(data: Speakers, heard: tuple[list[Array], Array], capsys: pytest.CaptureFixture[str]):
    hierarchy.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "9 speakers, 370 utterances, 24 to 88 by each"
    right = np.arange(9)
    first = sum(int(b[0].argmax() == r) for b, r in zip(heard[0], right, strict=True))
    last = int((heard[1].argmax(axis=1) == right).sum())
    assert (first, last) == (8, 9)
    assert lines[1] == "told right after the first utterance: 8 of 9; after all: 9 of 9"
    clear = share(data, data.utterances)
    noisy = share(data, hierarchy.in_noise(data.utterances, hierarchy.NOISE))
    expected = [[str(n), one, other] for n, (one, other) in enumerate(zip(clear, noisy, strict=True), 1)]
    assert [line.split() for line in lines[-hierarchy.SESSION :]] == expected


def test_noise_takes_longer_to_hear_through(data: Speakers):
    groups = [
        hierarchy.grouped(utterances, data.speakers, hierarchy.SESSION)
        for utterances in (data.utterances, hierarchy.in_noise(data.utterances, hierarchy.NOISE))
    ]
    rnn = hierarchy.classifier(data.weights)
    clear, noisy = (hierarchy.shares(hierarchy.told_right(rnn(one)[0], right)) for one, right in groups)
    assert clear[0] > 0.95
    assert clear[1:] == [1.0] * 7
    assert noisy[0] < noisy[1] < noisy[2] < noisy[3]
    assert noisy[0] < 0.65
    assert noisy[-1] > 0.95
