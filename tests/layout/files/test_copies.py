"""Padding by copies of entries in files of TFLite, OpenVINO and Paddle: against what their runtimes give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import unpacked
from same_bits import assert_same_bits

import stepnet as sn
from stepnet.errors import InputError, ModelError
from tests.layout.files.data.make_copies import CASES, LENGTHS, Openvino, Paddle, Tflite

DATA = Path(__file__).parent / "data"
FORMATS: dict[str, Any] = {"tflite": Tflite, "openvino": Openvino, "paddle": Paddle}
READ = [
    (kind, name)
    for kind, made in FORMATS.items()
    for name, (mode, _, _) in CASES.items()
    if mode in made.modes and name not in ("symmetric steps", "wrapped steps")
]
REFUSED = {
    ("tflite", "symmetric steps"): "its mode is 'symmetric', and sequences are padded with copies of their",
    ("openvino", "symmetric steps"): r"its mode is 'symmetric', .* by 'reflect' or 'edge'",
    ("paddle", "wrapped steps"): "its mode is 'wrap', and sequences are padded with copies of their steps",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of what data/make_copies.py made, in a folder for each format."""
    folder = tmp_path_factory.mktemp("copies")
    for kind in FORMATS:
        (folder / kind).mkdir()
        unpacked(DATA / f"copies_{kind}.tar.xz", folder / kind)
    return folder


def path_of(folder: Path, kind: str, name: str) -> Path:
    return folder / kind / f"{name.replace(' ', '_')}{FORMATS[kind].endings[0]}"


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("kind", "name"), READ)
def test_copies_are_those_of_the_runtime(folder: Path, kind: str, name: str):
    graph: Any = sn.load(path_of(folder, kind, name), steps="any" if kind == "tflite" else None)
    with np.load(folder / kind / "arrays.npz") as file:
        arrays = dict(file)
    for length in LENGTHS:
        assert_same_bits(np.asarray(graph(arrays[f"x/{length}"])), arrays[f"{name}/{length}"])


def test_a_number_of_copies_may_follow_from_the_steps_of_the_file(folder: Path):
    graph: Any = sn.load(path_of(folder, "tflite", "reflected steps"))
    graph(np.zeros((1, 9, 4), "float32"))
    with pytest.raises(
        InputError, match=r"was written for 9 steps, .*; the number 2 of Identity \(MIRROR_PAD"
    ):
        graph(np.zeros((1, 5, 4), "float32"))


@pytest.mark.parametrize(("kind", "name"), REFUSED)
def test_modes_of_steps_that_there_are_not_are_named(folder: Path, kind: str, name: str):
    with pytest.raises(ModelError, match=REFUSED[kind, name]):
        sn.load(path_of(folder, kind, name))


def test_a_mode_that_no_operator_has_is_named(folder: Path, tmp_path: Path):
    path = path_of(folder, "openvino", "reflected steps")
    text = path.read_text().replace('pad_mode="reflect"', 'pad_mode="mirror"')
    (tmp_path / path.name).write_text(text)
    (tmp_path / path.with_suffix(".bin").name).write_bytes(path.with_suffix(".bin").read_bytes())
    with pytest.raises(ModelError, match="its mode is 'mirror', not 'reflect' or 'edge' or 'symmetric'"):
        sn.load(tmp_path / path.name)
