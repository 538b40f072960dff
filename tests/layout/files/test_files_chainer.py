"""Chainer's NStep links, in files that it saved itself (tests/peers/corpus/chainer_files.py)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import refusal, stepnet
from tolerance import assert_close

from stepnet.layout.files import read, weights
from tests.peers.corpus.specimens import unpack

STACKS = {
    "rnn": ("chainer.nstep_rnn", 2, 1),
    "gru": ("chainer.nstep_gru", 2, 1),
    "lstm": ("chainer.nstep_lstm", 3, 1),
    "both_rnn": ("chainer.nstep_birnn", 2, 2),
    "both_gru": ("chainer.nstep_bigru", 1, 2),
    "both_lstm": ("chainer.nstep_bilstm", 2, 2),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chainer")
    unpack("chainer", folder)
    return folder


@pytest.mark.parametrize("file", ["stacks.npz", "stacks.h5"])
def test_links_compute_what_chainer_did(saved: Path, file: str):
    model = read(saved / file)
    found = {module.name.rstrip("/"): module for module in model.modules}
    sizes = {name: module.solved_sizes() for name, module in found.items()}
    told = {name: (found[name].layout, size.layers, size.directions) for name, size in sizes.items()}
    assert told == STACKS
    assert {*model.rest} == {"head/W", "head/b"}
    with np.load(saved / "numbers.npz") as numbers:
        for name, module in found.items():
            x, wanted = (numbers[f"{file}|{name}|{part}"] for part in ("inputs", "outputs"))
            known = {"candidate_activation": "tanh"} if name.endswith("rnn") else {}
            whole = replace(module, semantics=known)
            assert_close(weights(whole).layers()(x)[0], wanted, length=15, width=8, dtype=np.float32)


def test_both_directions_of_a_square_link_are_asked_for(saved: Path, tmp_path: Path):
    """Two children of the same shapes are two layers of NStepGRU, and two directions of NStepBiGRU."""
    source, out = saved / "square.npz", tmp_path / "out.pt"
    said = refusal("convert", source, "--to", "torch", "-o", out)
    assert "fit chainer.nstep_gru and chainer.nstep_bigru, which shapes do not distinguish" in said
    code, _, _ = stepnet("convert", source, "--from", "chainer.nstep_bigru", "--to", "torch", "-o", out)
    assert code == 0
    assert read(out).modules[0].solved_sizes().directions == 2


def test_a_link_has_one_direction_or_both(saved: Path, tmp_path: Path):
    source, out = saved / "stacks.npz", tmp_path / "out.npz"
    both = ("convert", source, "--module", "both_gru", "-o", out)
    assert "chainer.nstep_gru is of one direction, and here both directions would be" in refusal(
        *both, "--to", "chainer.nstep_gru"
    )
    assert stepnet(*both, "--to", "chainer.nstep_bigru")[0] == 0
    before, after = (
        {name: array.tolist() for name, array in read(path).chosen(module).arrays.items()}
        for path, module in ((source, "both_gru"), (out, ""))
    )
    assert before == after


def test_other_hdf5_files_hold_no_layer_that_is_known(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file["table"] = np.zeros(3)
    said = refusal("show", tmp_path / "table.h5")
    assert "no recurrent layer is here: no array has a name of a layout; the arrays are table (3,)" in said
