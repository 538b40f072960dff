"""The demo: its figures are right, it runs without torch, and its ten lines are PyTorch's GRU."""

import inspect
import json
import sys

import numpy as np
import pytest
import torch
from command_line import stepnet
from constants import Constants
from tolerance import assert_close, tolerance

import stepnet as sn
from stepnet.cli import demo

FRAMES, INPUTS, HIDDEN = 29, 12, 64  # the longest utterance's


@pytest.fixture(autouse=True)
def short_race(constants: Constants) -> None:
    constants(demo, ROUNDS=(2, 3), WARM=0, COUNTED=2, RACE_SECONDS=0.0)


def figures(*arguments: str) -> dict:
    code, stdout, stderr = stepnet("demo", "--json", *arguments)
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("engine", ["llvm", "interpret"])
def test_figures(engine: str):
    found = figures("--engine", engine)
    assert (found["utterances"], found["frames"]) == (370, 5687)
    head = float(np.abs(demo.load().weights["head.weight"]).sum(axis=1).max())
    for way in ("from_file", "from_equations"):
        assert found[way]["right"] == 364
        assert found[way]["same_predictions"] == 370
        most = tolerance("float32", FRAMES, INPUTS + HIDDEN)
        assert found[way]["states_difference"] <= most
        assert found[way]["logits_difference"] <= most * head
    assert list(found["speeds"]) == [*demo.OURS, "torch, packed", "torch, padded"]
    for speed in found["speeds"].values():
        assert speed["milliseconds_quartile_1"] <= speed["milliseconds"] <= speed["milliseconds_quartile_3"]
        assert speed["utterances_per_second"] * speed["milliseconds"] == pytest.approx(370_000)


def test_what_a_person_sees(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, stdout, _ = stepnet("demo")
    assert code == 0
    assert stdout.count("364 of 370 speakers told right (98.38%)") == 2
    assert "h = (1 - z) * n + z * h" in stdout
    assert "torch, padded" in stdout
    assert all(len(line) <= 80 for line in stdout.splitlines())


def test_without_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert list(figures()["speeds"]) == list(demo.OURS)
    assert "torch is not installed" in stepnet("demo")[1]


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert stepnet("demo") == (
        1,
        "",
        'stepnet: Parquet files need pyarrow: pip install "stepnet[arrow]"\n',
    )


def test_utterances_are_neither_copied_nor_padded():
    data = demo.load()
    assert data.utterances.total == 5687
    assert not data.utterances.values.flags.owndata
    assert not data.utterances.values.flags.writeable  # it is Arrow's own memory


def test_contenders_agree():
    data = demo.load()
    by_hand = sn.RNN(demo.gru, data.recurrent, memory=HIDDEN)
    logits = [np.asarray(run()) for run in demo.contenders(by_hand, by_hand, data, "auto").values()]
    width = (INPUTS + HIDDEN) * HIDDEN
    for one in logits:
        assert_close(one, data.recorded["logits"], FRAMES, width)


def test_ten_lines_are_the_gru_of_torch():
    assert len(inspect.getsource(demo.gru).splitlines()) == 11  # the docstring is one
    gru = torch.nn.GRUCell(INPUTS, HIDDEN).double()
    weights = {f"{name}_l0": value.detach().numpy() for name, value in gru.named_parameters()}
    x, h = np.random.default_rng(0).standard_normal((2, 3, HIDDEN))
    expected = gru(torch.tensor(x[:, :INPUTS]), torch.tensor(h)).detach().numpy()
    assert_close(demo.gru(x[:, :INPUTS], h, weights)[0], expected, 1, INPUTS + HIDDEN)


def test_torch_keeps_its_threads(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(demo, "threads", lambda: before + 1)
    figures()
    assert torch.get_num_threads() == before
