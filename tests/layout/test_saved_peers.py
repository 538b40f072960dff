"""Every layout that a framework was asked about: its weights run here give what they gave there.

`make test-peers` asks the frameworks again, which have environments of their own.
"""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

from stepnet.errors import ConversionError
from stepnet.layout import convert, layers, record, records
from stepnet.layout.files.model import among
from tests.peers.case import HIDDEN, STEPS, load
from tests.peers.environments import SCRIPTS, saved

EVERY = 7
CASES: Any = [
    pytest.param(case, id=f"{script} {place} {case['layout']}")
    for script in SCRIPTS
    for place, case in enumerate(load(saved(script))[0])
]


def weights(case: dict[str, Any]) -> Any:
    """The arrays of a case by its layout's names, found among those of the framework.

    Only where a layer's own name tells it from others, and it is not among the arrays', the layout is said.
    """
    layout = case["layout"]
    named = any(record(layout).mark in name for name in case["arrays"])
    said = None if named else layout
    (module,) = among("a case", case["arrays"], layout.split(".")[:1], said).modules
    assert layout in module.layouts
    return module.arrays


def check(case: dict[str, Any], engine: str = "auto") -> None:
    """Asserts that the weights of a case give its outputs."""
    made = layers(weights(case), case["layout"], sizes=case["sizes"], semantics=case["semantics"])
    assert_close(
        made(case["inputs"], engine=engine)[0], case["outputs"], length=STEPS, width=HIDDEN, dtype="float32"
    )


@pytest.mark.parametrize("case", CASES)
def test_weights_give_what_they_gave_in_the_framework(case: dict[str, Any]):
    check(case, engine="interpret")  # what a layout means is the same on every engine


@pytest.mark.long(every=18)
@pytest.mark.parametrize("case", CASES)
def test_and_so_they_do_as_machine_code(case: dict[str, Any]):
    check(case)


@pytest.mark.long(every=8)
@pytest.mark.parametrize("place", range(len(CASES)))
def test_and_so_do_they_converted_to_other_layouts(place: int):
    case: Any = CASES[place].values[0]
    targets = list(records().values())[place % EVERY :: EVERY]  # all of them, over all cases of a cell
    own, arrays = record(case["layout"]), weights(case)
    for target in dict.fromkeys([own.name, *(target.name for target in targets)]):
        options: Any = {"sizes": case["sizes"], "semantics": case["semantics"]}
        try:
            done = convert(arrays, case["layout"], target, **options)
        except ConversionError:
            assert target != own.name, "a layout is its own"
            continue
        report = done.report
        made = layers(
            done.arrays, target, sizes=report.target_sizes, semantics=report.open_fields, dtype="f8"
        )
        outputs = made(case["inputs"].astype("float64"), engine="interpret")[0]
        assert_close(outputs, case["outputs"], length=STEPS, width=HIDDEN, dtype="float32")


def test_most_are_converted_to_others_of_their_cell():
    """Each refusal has reasons that are true: see `layout/test_convert.py`."""
    made: list[bool] = []
    for place, case in enumerate(one.values[0] for one in CASES):
        cell, arrays = record(case["layout"]).cell, weights(case)
        for target in [one for one in records().values() if one.cell == cell][place % EVERY :: EVERY]:
            try:
                convert(arrays, case["layout"], target, sizes=case["sizes"], semantics=case["semantics"])
            except ConversionError:
                made.append(False)
            else:
                made.append(True)
    assert len(made) > 400
    assert sum(made) > len(made) / 2


@pytest.mark.long(every=2)
@pytest.mark.parametrize("case", CASES)
def test_wrong_weights_are_seen(case: dict[str, Any]):
    negative = {name: -array for name, array in weights(case).items()}
    with pytest.raises(AssertionError, match=r"where .* is allowed"):
        check({**case, "arrays": negative}, engine="interpret")  # nothing is compiled to see that


def test_what_the_evidence_says_was_run():
    said = {record.name for record in records().values() if record.evidence.run}
    asked = {case.values[0]["layout"] for case in CASES}
    known = {name for name in said if not name.startswith(("stepnet.", "tflite."))}  # with their files
    assert known == asked | same_arrays(asked) & known, sorted(known ^ asked)


def same_arrays(names: set[str]) -> set[str]:
    """Layouts that say the same as one of these."""
    found = [records()[name] for name in names]
    return {one.name for one in records().values() if any(one.same_as(other) for other in found)}


def test_cases_are_hard():
    for case in CASES:
        for name, array in case.values[0]["arrays"].items():
            assert np.abs(array).min() > 0, name
