"""Modules under torch.autocast on the CPU: the dtypes of torch.nn's, and their numbers up to rounding."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import pytest
from tolerance import distance, tolerance

torch: Any = pytest.importorskip("torch")
stepnet_torch: Any = pytest.importorskip("stepnet.torch")
FEATURES, UNITS, ROWS, STEPS = 5, 8, 3, 4
LOWER = torch.bfloat16
KINDS = "GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"
DTYPES = {"float32": torch.float32, "bfloat16": LOWER}
GIVEN = [("float32", None), ("float32", "bfloat16"), ("bfloat16", None), ("bfloat16", "float32")]
"""The dtypes of the input and of the states; None for no states."""


def flat(results: Any) -> list[Any]:
    return [results] if isinstance(results, torch.Tensor) else [one for part in results for one in flat(part)]


def arguments(kind: str, x: str, state: str | None) -> list[Any]:
    """The input and the states of a layer or a cell, of these dtypes."""
    lead = (ROWS,) if kind.endswith("Cell") else (STEPS, ROWS)
    given = [torch.randn(*lead, FEATURES).to(DTYPES[x])]
    if state is not None:
        shape = (ROWS, UNITS) if kind.endswith("Cell") else (1, ROWS, UNITS)
        h, c = (torch.randn(shape).to(DTYPES[state]) for _ in range(2))
        given.append((h, c) if kind.startswith("LSTM") else h)
    return given


def is_near(ours: Any, theirs: Any) -> bool:
    """Tells whether tensors agree as far as products that are rounded to the dtype of autocast can."""
    numbers = (tensor.detach().float().numpy() for tensor in (ours, theirs))
    return distance(*numbers) <= tolerance(ml_dtypes.bfloat16, STEPS, UNITS, roundings=1)


def assert_as(ours: Callable[..., Any], theirs: Callable[..., Any], *given: Any) -> None:
    """Asserts that a call gives what another one does under autocast."""
    with torch.autocast("cpu", LOWER):
        found, right = flat(ours(*given)), flat(theirs(*given))
    for one, other in zip(found, right, strict=True):
        assert one.dtype == other.dtype
        assert is_near(one, other)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("x", "state"), GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_cells_give_what_those_of_torch_do(kind: str, x: str, state: str | None) -> None:
    torch.manual_seed(2)
    theirs = getattr(torch.nn, kind)(FEATURES, UNITS)
    ours = getattr(stepnet_torch, kind)(FEATURES, UNITS)
    ours.load_state_dict(theirs.state_dict())
    assert_as(ours, theirs, *arguments(kind, x, state))


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_gradients_are_in_the_dtype_of_the_parameters(kind: str) -> None:
    torch.manual_seed(3)
    modules = [getattr(library, kind)(FEATURES, UNITS) for library in (torch.nn, stepnet_torch)]
    modules[1].load_state_dict(modules[0].state_dict())
    given = arguments(kind, "float32", None)
    for module in modules:
        with torch.autocast("cpu", LOWER):
            results = flat(module(*given))
        sum(tensor.float().square().sum() for tensor in results).backward()  # type: ignore[union-attr]
    for one, other in zip(modules[1].parameters(), modules[0].parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        assert is_near(one.grad, other.grad)


def test_float64_stays() -> None:
    layer, x = stepnet_torch.LSTM(FEATURES, UNITS).double(), torch.randn(STEPS, ROWS, FEATURES).double()
    right = layer(x)[0]
    with torch.autocast("cpu", LOWER):
        assert torch.equal(layer(x)[0], right)


class Gated(torch.nn.Module):
    """A cell whose state is promoted, with an output of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Linear(FEATURES + UNITS, 2 * UNITS)
        self.out = torch.nn.Linear(UNITS, 2)

    def forward(self, x: Any, h: Any) -> tuple[Any, Any]:
        gate, new = self.both(torch.cat([x, h], -1)).chunk(2, -1)
        h = torch.sigmoid(gate) * h + torch.tanh(new)
        return self.out(h), h


class Lower(torch.nn.Module):
    """A cell all of whose results are those of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(FEATURES + UNITS, UNITS)

    def forward(self, x: Any, h: Any) -> tuple[Any, Any]:
        h = self.cell(torch.cat([x, h], -1))
        return h, h


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("x", "state"), GIVEN)
@pytest.mark.parametrize("kind", [Gated, Lower])
def test_recurrences_give_what_the_loop_of_the_step_does(kind: Any, x: str, state: str | None) -> None:
    torch.manual_seed(4)
    cell = kind()
    example = torch.zeros(1, FEATURES), torch.zeros(1, UNITS)
    module = stepnet_torch.Recurrence(cell, example)
    data = torch.randn(STEPS, ROWS, FEATURES).to(DTYPES[x])
    h = None if state is None else torch.randn(ROWS, UNITS).to(DTYPES[state])

    def loop(data: Any, state: Any = None) -> Any:
        """The step, called in a loop of Python."""
        h = data.new_zeros(ROWS, UNITS) if state is None else state
        outputs = list[Any]()
        for x in data:
            y, h = cell(x, h)
            outputs.append(y)
        return torch.stack(outputs), h

    assert_as(module, loop, data, *([] if h is None else [h]))
    assert torch.equal(*(flat(module(data.float()))[0] for _ in range(2)))


@pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself
def test_graphs_give_what_calls_do() -> None:
    module = stepnet_torch.Recurrence(Lower(), (torch.zeros(1, FEATURES), torch.zeros(1, UNITS)))
    x = torch.randn(STEPS, ROWS, FEATURES)
    torch.compiler.reset()
    made = torch.compile(module, backend="eager", fullgraph=True)
    with torch.autocast("cpu", LOWER):
        for one, other in zip(flat(made(x)), flat(module(x)), strict=True):
            assert one.dtype == LOWER
            assert torch.equal(one, other)
