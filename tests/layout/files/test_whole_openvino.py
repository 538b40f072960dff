"""OpenVINO models that are read whole: each operator as OpenVINO computes it, and refusals."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import unpacked
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import FileError, LayoutError, ModelError
from tests.layout.files.tables import rows

DATA = Path(__file__).parent / "data"
LENGTHS, WIDTH = (7, 3, 1), 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what data/make_openvino_operators.py made."""
    folder = tmp_path_factory.mktemp("operators")
    unpacked(DATA / "openvino_operators.tar.xz", folder)
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> tuple[dict[str, Any], Any]:
    """Results of stepnet for each sequence, by the name of the output; and the arrays of OpenVINO."""
    arrays = np.load(folder / "operators.npz")
    graph: Any = sn.load(folder / "operators.xml")
    found = graph(sn.Ragged.from_list([arrays[f"{length}/frames"][0] for length in LENGTHS]))
    return found, arrays


def names() -> list[str]:
    """The outputs of the model, as the script lists them."""
    text = (
        (DATA / "make_openvino_operators.py").read_text("utf-8").partition("] = {\n")[2].partition("\n}")[0]
    )
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('    "')]


def test_every_row_of_the_table_has_an_output():
    assert {name.partition(" ")[0] for name in names()} == rows("openvino")


@pytest.mark.parametrize("name", names())
def test_an_operator_computes_what_openvino_computes(outputs: tuple[dict[str, Any], Any], name: str):
    found, arrays = outputs[0][name], outputs[1]
    each = found.to_list() if isinstance(found, sn.Ragged) else list(found)
    for length, actual in zip(LENGTHS, each, strict=True):
        right = arrays[f"{length}/{name}"].reshape(np.shape(actual))
        assert_close(actual, right, length, WIDTH * 3)


def test_copies_compute_the_same(folder: Path):
    x = np.load(folder / "operators.npz")[f"{LENGTHS[0]}/frames"]
    graph: Any = sn.load(folder / "operators.xml")
    copies = pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)
    for each in copies:
        assert_same_bits(each(x), graph(x))


def edited(folder: Path, target: Path, change: Callable[[str], str]) -> Path:
    """A copy of the model with another .xml."""
    (target / "m.bin").write_bytes((folder / "operators.bin").read_bytes())
    path = target / "m.xml"
    path.write_text(change((folder / "operators.xml").read_text("utf-8")), "utf-8")
    return path


REFUSED: dict[str, tuple[tuple[str, str], str]] = {
    "an attribute": (
        ('alpha="0.6', 'alpha="x'),
        "its alpha is 'x.*', and should be a number\n  at .* \\(Elu\\)",
    ),
    "a mode": (
        ('mode="numpy"', 'mode="explicit"'),
        "its mode 'explicit' is not supported\n  at .* \\(Broadcast",
    ),
    "half precision": (
        ('destination_type="f32"', 'destination_type="f16"'),
        "its destination_type 'f16' is not supported\n  at .* \\(Convert\\)",
    ),
    "a padding": (('auto_pad="same_lower"', 'auto_pad="other"'), "its auto_pad 'other' is not supported"),
    "batch_dims": (('batch_dims="0"', 'batch_dims="1"'), "its batch_dims is not 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_supported_is_refused_with_its_layer(folder: Path, tmp_path: Path, name: str):
    (old, new), words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        sn.load(edited(folder, tmp_path, lambda text: text.replace(old, new)))


def test_a_model_with_another_operator_is_refused_as_before(folder: Path, tmp_path: Path):
    path = edited(folder, tmp_path, lambda text: text.replace('type="Erf"', 'type="Mine"'))
    with pytest.raises(LayoutError, match=r"it has \S+ \(Mine\), which stepnet does not run; say --rec"):
        sn.load(path)


def test_layers_in_a_circle_are_an_error(folder: Path, tmp_path: Path):
    def change(text: str) -> str:
        """Makes the first edge lead from the last layer that has an input."""
        first = text.index("<edge ")
        source = text.rindex('from-layer="')
        layer = text[source:].split('"')[1]
        old = text[first:].split('"')[1]
        return text[:first] + text[first:].replace(f'from-layer="{old}"', f'from-layer="{layer}"', 1)

    with pytest.raises((FileError, ModelError)):
        sn.load(edited(folder, tmp_path, change))
