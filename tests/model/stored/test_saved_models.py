"""A model that was saved and loaded gives the same bits, in all that a model does."""

from pathlib import Path
from typing import Any

import pytest
from same_bits import assert_same_bits

import stepnet as sn
from tests.model.stored.saved_models import CASES


def again(model: sn.Model, folder: Path, name: str = "m") -> Any:
    """The model after it was saved and loaded."""
    path = folder / f"{name}.stepnet"
    model.save(path, force=True)
    return sn.load(path)


@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_the_same_bits(name: str, tmp_path: Path):
    case = CASES[name]()
    expected = case.call(case.model)
    loaded = again(case.model, tmp_path)
    assert type(loaded) is type(case.model)
    assert_same_bits(case.call(loaded), expected)
    if name != "one_layer_twice":  # whose latest program is that of the second layer
        assert str(loaded.net) == str(case.model.net)
    assert str(loaded.report) == str(case.model.report)
    twice = again(loaded, tmp_path, "twice")
    assert (tmp_path / "twice.stepnet").read_bytes() == (tmp_path / "m.stepnet").read_bytes()
    assert_same_bits(case.call(twice), expected)
