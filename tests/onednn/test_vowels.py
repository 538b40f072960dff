"""Recorded speech in fewer bits: speakers are recognised as often as in float32, or nearly so."""

from typing import Any

import numpy as np
import pytest
import torch
from command_line import DATA
from pyarrow import parquet

import stepnet as sn
from stepnet import onednn
from stepnet.cli.demo import load
from stepnet.compiler.targets.onednn import OneDnnLibrary

MOST = 0.006
"""The largest difference of the shares: 2 of 370 utterances."""


def utterances(split: str) -> tuple[sn.Ragged, np.ndarray]:
    """The utterances of a split, and their speakers from 0 on."""
    table = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", split)])
    return sn.Ragged.from_arrow(table["frames"]), table["speaker"].to_numpy().astype("i8") - 1


@pytest.fixture(scope="module")
def trained() -> tuple[dict[str, np.ndarray], torch.nn.Linear]:
    """An LSTM of PyTorch's, trained for a few seconds, and its head."""
    torch.manual_seed(0)
    x, speakers = utterances("train")
    lstm: Any = torch.nn.LSTM(12, 32, batch_first=True)
    head = torch.nn.Linear(32, 9)
    padded, lengths = x.to_padded()
    inputs, rows = torch.tensor(padded), torch.arange(len(lengths))
    last = torch.tensor(lengths) - 1
    optimiser = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.02)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(head(lstm(inputs)[0][rows, last]), torch.tensor(speakers))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: p.detach().numpy() for name, p in lstm.named_parameters()}, head


def accuracy(layer: onednn.Layer, head: torch.nn.Linear) -> float:
    """The share of the test's utterances that are recognised."""
    x, speakers = utterances("test")
    final = layer(x, cell="none")[1]["h"]
    with torch.no_grad():
        return float((head(torch.tensor(final)).argmax(1).numpy() == speakers).mean())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_an_lstm(dnnl: OneDnnLibrary, dtype: str, trained: tuple[dict[str, np.ndarray], torch.nn.Linear]):
    if reason := dnnl.lacks(dtype):
        pytest.skip(reason)
    weights, head = trained
    layer = onednn.layer(weights, "torch.lstm")
    calibration = layer.calibrate([utterances("train")[0]]) if dtype == "int8" else None
    whole, low = accuracy(layer, head), accuracy(layer.in_dtype(dtype, calibration), head)
    assert whole > 0.9
    assert abs(whole - low) <= MOST


def test_the_gru_of_the_demo_in_bfloat16(dnnl: OneDnnLibrary):
    if reason := dnnl.lacks("bfloat16"):
        pytest.skip(reason)
    data = load()
    layer = onednn.layer(data.recurrent, "torch.gru")
    right = [
        float((data.logits(each(data.utterances)[1]).argmax(axis=1) + 1 == data.speakers).mean())
        for each in (layer, layer.in_dtype("bfloat16"))
    ]
    assert right[0] > 0.9
    assert abs(right[0] - right[1]) <= MOST
