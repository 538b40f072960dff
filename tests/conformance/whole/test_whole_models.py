"""Whole models of the frameworks: a result is the framework's own, or the file is refused with a reason.

Each file is read by `sn.load`, without its framework, and run over single sequences and over a batch.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import StepnetError
from tests.conformance.whole.corpus import EXAMPLES, Arrays, Call, Example, calls, unpack
from tests.conformance.whole.page import PAGE, page
from tests.conformance.whole.refused import REFUSED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of all archives."""
    return tmp_path_factory.mktemp("whole")


def run(model: Any, example: Example, call: Call) -> dict[str, Any]:
    """Runs a model as a user would; returns its outputs by the framework's names, or in their order."""
    sequences = {
        name: sn.Ragged.from_padded(call.inputs[name], call.lengths.get(name)) for name in example.steps
    }
    statics = {name: array for name, array in call.inputs.items() if name not in sequences}
    entry = next(iter(sequences.values())) if len(sequences) == 1 else sequences
    found = model(entry, statics=statics) if statics else model(entry)
    if not isinstance(model, sn.Graph):
        found = found[0]
    if not isinstance(found, Mapping):
        found = {example.outputs[0]: found}
    if set(found) == set(example.outputs):
        return dict(found)
    return dict(zip(example.outputs, found.values(), strict=True))


def check(found: Any, right: np.ndarray, shapes: list[tuple[int, ...]], length: int, width: int) -> None:
    """Asserts that an output is the framework's: row by row, as far as the shape of each says."""
    rows = found.to_list() if isinstance(found, sn.Ragged) else list(np.asarray(found))
    assert len(rows) == len(right)
    for row, wanted, shape in zip(rows, right, shapes, strict=True):
        cut = wanted[tuple(slice(size) for size in shape)]
        assert_close(np.asarray(row), cut, length, width)


def check_call(model: Any, example: Example, call: Call, alone: list[Arrays]) -> None:
    """Asserts that a model gives what the framework gave. alone: the outputs of single sequences, which have
    the shapes of the rows of a padded batch.
    """
    found = run(model, example, call)
    length = max((call.inputs[name].shape[1] for name in example.steps), default=1)
    for name, right in call.outputs.items():
        whole = [right.shape[1:]] * len(right)
        shapes = [one[name].shape[1:] for one in alone] if call.lengths else whole
        check(found[name], right, shapes, length, example.width)


@pytest.mark.long(every=8)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_a_model_gives_what_its_framework_gives_or_is_refused(example: Example, folder: Path):
    place = unpack(example.kind, folder)
    saved = calls(example, place)
    alone = [call.outputs for title, call in saved.items() if title != "padded"]
    if example.title in REFUSED:
        with pytest.raises(StepnetError, match=re.escape(REFUSED[example.title])):
            check_call(sn.load(place / example.file), example, saved["padded"], alone)
        return
    model = sn.load(place / example.file)
    for call in saved.values():
        check_call(model, example, call, alone)


def test_each_refused_model_is_of_the_corpus():
    assert set(REFUSED) <= {example.title for example in EXAMPLES}


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run python -m tests.conformance.whole.page"
