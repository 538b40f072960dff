"""Every row of the table of ATen operations: what a recurrence makes of it is what PyTorch gives."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stepnet as sn
import stepnet.torch.step
from stepnet.torch import trace
from stepnet.torch.aten import ATEN
from tests.torch.torch_cases import GROUPS, PARAMETERS, SHAPES, Case
from tests.torch.torch_loop import LENGTHS, agree, agree_at_the_end, drawn, numbers, ragged, rows, stepped

ROWS = sys.modules[type(ATEN["tanh.default"]).__module__]
DTYPES = {"k": torch.int64, "t": torch.bool}


def step_of(cases: dict[str, Case]) -> Callable[..., Any]:
    """The step that gives what every case gives, of its inputs, of a memory in place of b, and parameters."""

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        o = SimpleNamespace(**x, b=h, **params)
        return {name: case(o) for name, case in cases.items()}, torch.tanh(h + 0.5 * x["a"])

    return step


X = {
    name: numbers((1, *shape), 1, DTYPES.get(name, torch.float64))
    for name, shape in SHAPES.items()
    if name != "b"
}
PARAMS = {name: numbers(shape, place) for place, (name, shape) in enumerate(PARAMETERS.items())}


@pytest.fixture(scope="module")
def traced() -> tuple[dict[str, sn.RNN], set[str], set[str]]:
    """The recurrence of each group, the rows that they used, and those whose rule on features they used."""
    used, on_features = set[str](), set[str]()
    apply = ROWS.on_features

    class Noting(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            used.add(name)
            return super().__getitem__(name)

    def noting(call: Any, row: Any) -> Any:
        on_features.add(call.name)
        return apply(call, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ROWS, "on_features", noting)
        patch.setattr(stepnet.torch.step, "ATEN", Noting(ATEN))
        example = X, numbers((1, 4), 2), PARAMS
        return {name: trace(step_of(cases), example) for name, cases in GROUPS.items()}, used, on_features


def test_every_row_of_the_table_is_used_by_an_operation_here(traced: Any) -> None:
    _, used, on_features = traced
    of_models = {name for name in ATEN if name.startswith("stepnet.")}
    of_models |= {"_unsafe_view.default", "scatter.src"}
    assert {*ATEN} - used - of_models == set()
    assert {name for name, row in ATEN.items() if row.rule} - on_features == set()


@pytest.mark.long(each=True)
@pytest.mark.parametrize("group", GROUPS)
def test_every_operation_is_what_pytorch_gives(traced: Any, group: str, engine: str) -> None:
    rnn, step = traced[0][group], step_of(GROUPS[group])
    sequences = [drawn(X, length, length) for length in LENGTHS]
    initial = numbers((len(LENGTHS), 4), 3)
    expected, finals = stepped(step, sequences, rows(initial), PARAMS)
    outputs, final = rnn(ragged(sequences), initial.numpy(), engine=engine)
    agree(outputs, expected)
    agree_at_the_end(final, finals)
