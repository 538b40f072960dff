"""The shipped data is what its README says, and PyTorch gives the recorded outputs again."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

DATA = Path(__file__).resolve().parents[2] / "src" / "stepnet" / "cli" / "data"
HIDDEN = 64
UNIT_ROUNDOFF = 2.0**-24  # of float32


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return parquet.read_table(DATA / "japanese_vowels.parquet")


@pytest.fixture(scope="module")
def test_utterances(table: pa.Table) -> tuple[list[np.ndarray], np.ndarray]:
    rows = [row for row in table.to_pylist() if row["split"] == "test"]
    utterances = [np.array(row["frames"], np.float32) for row in rows]
    return utterances, np.array([row["speaker"] for row in rows])


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return load_file(DATA / "speaker_gru.safetensors")


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    return load_file(DATA / "speaker_gru_outputs.safetensors")


def test_columns(table: pa.Table):
    assert table.schema.names == ["split", "speaker", "frames"]
    assert table.schema.field("frames").type.value_type == pa.list_(pa.float32(), 12)
    assert all(column.null_count == 0 for column in table.columns)


@pytest.mark.parametrize(
    ("split", "rows", "shortest", "longest"), [("train", 270, 7, 26), ("test", 370, 7, 29)]
)
def test_splits(table: pa.Table, split: str, rows: int, shortest: int, longest: int):
    chosen = [row for row in table.to_pylist() if row["split"] == split]
    lengths = [len(row["frames"]) for row in chosen]
    assert (len(chosen), min(lengths), max(lengths)) == (rows, shortest, longest)
    speakers = Counter(row["speaker"] for row in chosen)
    assert set(speakers) == set(range(1, 10))
    assert split == "test" or set(speakers.values()) == {30}
    assert all(np.isfinite(row["frames"]).all() for row in chosen)


def test_there_are_no_other_rows(table: pa.Table):
    assert table.num_rows == 640


def test_state_dict(weights: dict[str, np.ndarray]):
    assert {name: value.shape for name, value in weights.items()} == {
        "gru.weight_ih_l0": (3 * HIDDEN, 12),
        "gru.weight_hh_l0": (3 * HIDDEN, HIDDEN),
        "gru.bias_ih_l0": (3 * HIDDEN,),
        "gru.bias_hh_l0": (3 * HIDDEN,),
        "head.weight": (9, HIDDEN),
        "head.bias": (9,),
    }
    assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize("name", ["speaker_gru", "speaker_gru_outputs"])
def test_files_say_what_they_are(name: str):
    with safe_open(DATA / f"{name}.safetensors", "np") as file:
        assert "PyTorch" in file.metadata()["description"]


def test_recorded_shapes(
    recorded: dict[str, np.ndarray], test_utterances: tuple[list[np.ndarray], np.ndarray]
):
    utterances, _ = test_utterances
    ends = np.cumsum([len(frames) for frames in utterances])
    assert {name: value.shape for name, value in recorded.items()} == {
        "logits": (370, 9),
        "last_states": (370, HIDDEN),
        "states": (ends[-1], HIDDEN),
    }
    assert all(value.dtype == np.float32 for value in recorded.values())
    np.testing.assert_array_equal(recorded["states"][ends - 1], recorded["last_states"])


def test_accuracy_is_what_the_readme_says(
    recorded: dict[str, np.ndarray], test_utterances: tuple[list[np.ndarray], np.ndarray]
):
    _, speakers = test_utterances
    hits = int((recorded["logits"].argmax(axis=1) + 1 == speakers).sum())
    assert hits >= 0.96 * len(speakers)
    sentence = f"{hits} of the {len(speakers)} test utterances right ({hits / len(speakers):.2%})"
    assert sentence in " ".join((DATA / "README.md").read_text("utf-8").split())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_gives_the_recorded_outputs(
    dtype: torch.dtype,
    weights: dict[str, np.ndarray],
    recorded: dict[str, np.ndarray],
    test_utterances: tuple[list[np.ndarray], np.ndarray],
):
    utterances, _ = test_utterances
    model = torch.nn.ModuleDict({"gru": torch.nn.GRU(12, HIDDEN), "head": torch.nn.Linear(HIDDEN, 9)}).to(
        dtype
    )
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    with torch.inference_mode():
        states = [model["gru"](torch.from_numpy(frames).to(dtype))[0] for frames in utterances]
        last_states = torch.stack([state[-1] for state in states])
        logits = model["head"](last_states)
    # A state is at most 1, and each step adds the rounding of sums over 12 + 64 products.
    tolerance = UNIT_ROUNDOFF * (12 + HIDDEN + max(map(len, utterances)))
    np.testing.assert_allclose(recorded["states"], torch.cat(states), rtol=0, atol=tolerance)
    np.testing.assert_allclose(recorded["last_states"], last_states, rtol=0, atol=tolerance)
    head = np.abs(weights["head.weight"]).sum(axis=1).max()
    np.testing.assert_allclose(recorded["logits"], logits, rtol=0, atol=tolerance * head)
