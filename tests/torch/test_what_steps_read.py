"""A `Recurrence` and a graph of a module follow the attributes, variables and hooks that their steps read, or
refuse to go on; and nothing depends on how many rows there are.
"""

import copy
import pickle
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from constants import Constants
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, StepError
from tests.torch.layer_cases import assert_same, numbers

EXAMPLE = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
X = numbers(5, 2, 3)
FACTOR = 2.0


class Inner(torch.nn.Module):
    """A module in a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.power = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.power


class Cell(torch.nn.Module):
    """A cell that reads numbers, arrays and functions of many kinds."""

    shift = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(3, 3).double()
        self.inner, self.drop = Inner(), torch.nn.Dropout(0.0)
        self.scale, self.deep = 0.5, {"a": [1.0]}
        self.table, self.array = torch.ones(3, dtype=torch.float64), np.ones(3)
        self.function: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
        self.gate = torch.nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        total = self.weight(x) * self.table + h * self.scale * self.deep["a"][0] + self.shift
        return self.inner(self.function(total)) * FACTOR * torch.from_numpy(self.array) + self.gate(h)


gate = torch.nn.Linear(3, 3)
"""A variable with the name of an attribute."""


def looped(cell: Any, x: torch.Tensor) -> torch.Tensor:
    """The cell called step by step."""
    h, outputs = torch.zeros(x.shape[1], 3, dtype=x.dtype), []
    for one in x:
        h = cell(one, h)
        outputs.append(h)
    return torch.stack(outputs)


def assert_as_looped(rnn: stepnet.torch.Recurrence, cell: Any) -> None:
    """Outputs and gradients, with gradients and without them."""
    results = []
    for run in (lambda x: rnn(x)[0], lambda x: looped(cell, x)):
        x = X.clone().requires_grad_()
        cell.zero_grad()
        outputs = run(x)
        outputs.square().sum().backward()
        results.append({"y": outputs, "dx": x.grad, "dw": cell.weight.weight.grad.clone()})
    with torch.no_grad():
        results[0]["plain"], results[1]["plain"] = rnn(X)[0], looped(cell, X)
    assert_same(*results)


def module_factor(cell: Cell) -> None:
    global FACTOR
    FACTOR = 3.0


def doubled(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    return output * 2


CHANGES: dict[str, Callable[[Cell], Any]] = {
    "a float": lambda cell: setattr(cell, "scale", 0.25),
    "an int for a float": lambda cell: setattr(cell, "scale", 1),
    "in a dict and a list": lambda cell: cell.deep["a"].__setitem__(0, 0.25),
    "of an inner module": lambda cell: setattr(cell.inner, "power", 0.5),
    "another inner module": lambda cell: setattr(cell, "inner", torch.nn.Tanh()),
    "a constant tensor": lambda cell: setattr(cell, "table", torch.full((3,), 2.0, dtype=torch.float64)),
    "a constant tensor in place": lambda cell: cell.table.mul_(2),
    "a constant array in place": lambda cell: cell.array.__setitem__(1, 2.0),
    "a function": lambda cell: setattr(cell, "function", torch.sin),
    "a class attribute": lambda cell: setattr(Cell, "shift", 0.25),
    "a global": module_factor,
    "a hook": lambda cell: cell.inner.register_forward_hook(doubled),
    "a hook ahead": lambda cell: cell.weight.register_forward_pre_hook(
        lambda module, inputs: (inputs[0] * 2,)
    ),
}


@pytest.mark.long(every=4)
@pytest.mark.parametrize("change", CHANGES)
def test_a_recurrence_follows_what_its_step_reads(change: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cell, "shift", 0.0)
    monkeypatch.setitem(globals(), "FACTOR", FACTOR)
    torch.manual_seed(0)
    cell = Cell()
    rnn = stepnet.torch.Recurrence(cell, EXAMPLE)
    assert_as_looped(rnn, cell)
    CHANGES[change](cell)
    assert_as_looped(rnn, cell)
    again = copy.deepcopy(rnn)
    assert_as_looped(again, again.cell)


def test_a_step_is_traced_again_only_where_something_changes():
    calls = SimpleQueue[int]()  # an object that is not looked into

    class Counted(Cell):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            calls.put(1)
            return super().forward(x, h)

    cell = Counted()
    rnn = stepnet.torch.Recurrence(cell, EXAMPLE)
    rnn(X)
    known = calls.qsize()
    for scale in (0.5, 0.25, 0.5, 0.25):
        cell.scale = scale
        rnn(X)
        with torch.no_grad():
            cell.weight.weight.mul_(1.5)
            rnn(X)
    assert calls.qsize() == known + 1


def test_a_function_follows_its_variables():
    scale = 0.5
    params = {"w": torch.ones(3, dtype=torch.float64)}

    def step(x: torch.Tensor, h: torch.Tensor, params: Any) -> Any:
        h = torch.tanh(x * params["w"] + h * scale)
        return h, h

    rnn = stepnet.torch.Recurrence(step, (*EXAMPLE, params))
    for value in (0.5, 0.125):
        scale = value
        own = looped(lambda x, h: step(x, h, params)[0], X)
        assert_same({"y": rnn(X)[0]}, {"y": own})


GENERATOR = torch.Generator()
HOOKED = torch.nn.modules.module


@pytest.mark.parametrize("ahead", [False, True])
def test_hooks_of_all_modules_are_followed(ahead: bool):
    def halved(module: Any, inputs: Any, output: Any) -> Any:
        return output / 2 if isinstance(module, Inner) else None

    def halved_ahead(module: Any, inputs: Any) -> Any:
        return (inputs[0] / 2,) if isinstance(module, Inner) else None

    cell = Cell()
    rnn = stepnet.torch.Recurrence(cell, EXAMPLE)
    model = Scaled().eval()
    graph, x = stepnet.torch.graph(model, torch.zeros(2, 3, 4)), np.ones((2, 3, 4), "float32")
    assert_as_looped(rnn, cell)
    assert np.array_equal(graph(x), x / 2)
    if ahead:
        hook = HOOKED.register_module_forward_pre_hook(halved_ahead)
    else:
        hook = HOOKED.register_module_forward_hook(halved)
    try:
        assert_as_looped(rnn, cell)
        with pytest.raises(
            InputError, match=r"_global_forward_.*hooks\[.*has changed since the graph was made"
        ):
            graph(x)
    finally:
        hook.remove()
    assert_as_looped(rnn, cell)
    assert np.array_equal(graph(x), x / 2)


def test_the_dtype_of_new_tensors_is_followed():
    def step(x: torch.Tensor, h: torch.Tensor, params: Any) -> Any:
        h = x * torch.full((), 0.1).double() + h
        return h, h

    rnn = stepnet.torch.Recurrence(step, EXAMPLE)
    first = rnn(X)[0]
    torch.set_default_dtype(torch.float64)
    try:
        assert_same({"y": rnn(X)[0]}, {"y": looped(lambda x, h: step(x, h, None)[0], X)})
        assert not torch.equal(rnn(X)[0], first)
    finally:
        torch.set_default_dtype(torch.float32)


def test_constants_are_read_in_traces_and_transforms():
    cell = Cell()
    rnn = stepnet.torch.Recurrence(cell, EXAMPLE)
    found = torch.func.grad(lambda x: rnn(x)[0].square().sum())(X)
    right = torch.func.grad(lambda x: looped(cell, x).square().sum())(X)
    assert_same({"dx": found}, {"dx": right})
    recorded = (
        torch.compile(rnn, backend="aot_eager"),
        torch.export.export(rnn, (X,), strict=False).module(),
        make_fx(rnn)(X),
    )
    for one in recorded:
        assert_same({"y": one(X + 1)[0]}, {"y": looped(cell, X + 1)})


def trained(rnn: Any, cell: Any, change: Callable[[], Any]) -> dict[str, Any]:
    """The outputs and gradients of a run, whose cell changes before backward."""
    x = X.clone().requires_grad_()
    cell.zero_grad()
    outputs = rnn(x)
    change()
    outputs.square().sum().backward()
    return {"y": outputs, "dx": x.grad, "dw": cell.weight.weight.grad.clone()}


@pytest.mark.parametrize("backend", ["aot_eager", None])
def test_gradients_are_of_the_step_that_ran_forward(backend: str | None):
    cell = Cell()
    rnn = stepnet.torch.Recurrence(cell, EXAMPLE)
    compiled = torch.compile(rnn, backend=backend) if backend else rnn
    for before, after in ((0.5, 0.25), (0.25, 3.0)):

        def change(value: float = after) -> None:
            cell.scale = value

        cell.scale = before
        right = trained(lambda x: looped(cell, x), cell, lambda: None)
        assert_same(trained(lambda x: compiled(x)[0], cell, change), right)


def test_a_compiled_step_that_is_gone_by_backward_is_refused(constants: Constants):
    rnn = stepnet.torch.Recurrence(Cell(), EXAMPLE)
    outputs = torch.compile(rnn, backend="aot_eager")(X.clone().requires_grad_())[0]
    constants("stepnet.torch.operator", FORWARDS=WeakValueDictionary[int, Any]())
    with pytest.raises(InputError, match="call backward before its attributes change"):
        outputs.sum().backward()


def test_parameters_that_are_reached_another_way_are_refused():
    class Listed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.weights = [self.weight]

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return x * self.weights[0] + h

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [torch.nn.Linear(3, 3, dtype=torch.float64)]

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x) + h

    for cell, name in ((Listed(), r"self.weights\[0\]"), (Hidden(), r"self.layers\[0\].weight")):
        with pytest.raises(InputError, match=f"the step uses {name}, which requires a gradient"):
            stepnet.torch.Recurrence(cell, EXAMPLE)


def test_a_variable_that_is_read_has_the_name_in_the_code():
    scale = torch.ones(3, requires_grad=True)

    class Gated(Cell):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return super().forward(x, h) + gate(h.float()).double()

    class Scaled(Cell):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return super().forward(x, h) * scale

    for cell, name in ((Gated(), "gate.weight"), (Scaled(), "scale")):
        with pytest.raises(InputError, match=f"^the step uses {name}, which requires a gradient"):
            stepnet.torch.Recurrence(cell, EXAMPLE)


def test_a_step_that_changes_what_it_reads_is_refused():
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.kept = 0, None

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x + h * self.steps

    for make in (stepnet.torch.Recurrence, stepnet.torch.trace):
        with pytest.raises(
            StepError, match=r"the step changes `self.steps` as it runs, .* or take the step's"
        ):
            make(Counting(), EXAMPLE)


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.shape[0] == 1,
        lambda x: x.shape[0] > 1,
        lambda x: len(x) < 2,
        lambda x: x.numel() == 3,
        lambda x: max(x.shape[0], 1) == 1,
        lambda x: x.shape == (1, 3),
        lambda x: 1 in x.shape,
        lambda x: not x.size(0) - 1,
    ],
)
def test_a_branch_on_the_number_of_rows_is_refused(asks: Callable[[Any], bool]):
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return x * 2 + h if asks(x) else x + h

    for make in (stepnet.torch.Recurrence, stepnet.torch.trace):
        with pytest.raises(StepError, match="its operations depend on the number of rows") as error:
            make(Doubling(), EXAMPLE)
        assert "lambda x: " in str(error.value) or "asks(x)" in str(error.value)


@pytest.mark.parametrize(("axis", "name"), [(0, "sequences"), (1, "steps")])
def test_a_branch_on_the_number_of_sequences_or_steps_is_refused(axis: int, name: str):
    class Doubling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[axis] == 1 else x

    with pytest.raises(StepError, match=f"its operations depend on the number of {name}"):
        stepnet.torch.graph(Doubling(), torch.zeros(2, 4, 3))


def test_sizes_of_rows_that_are_equal_are_no_branch():
    class Checked(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            assert x.shape[0] == h.shape[0]
            return x + h

    x = numbers(4, 1, 3)
    rnn = stepnet.torch.Recurrence(Checked(), EXAMPLE)
    assert_same({"y": rnn(x)[0]}, {"y": x.cumsum(0)})


# ---- graphs ------------------------------------------------------------------------------------------------


class Scaled(torch.nn.Module):
    """A model that reads an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.drop = 0.5, torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) * self.scale


def test_a_graph_refuses_attributes_that_are_no_longer_those_it_was_made_with():
    model, x = Scaled().eval(), np.ones((2, 3, 4), "float32")
    graph = stepnet.torch.graph(model, torch.zeros(2, 3, 4))
    assert np.array_equal(graph(x), x / 2)
    model.scale = 2.0
    for one in (graph, graph.with_params(graph.params)):
        with pytest.raises(
            InputError, match=r"`self.scale` of Scaled has changed since the graph was made.* make the graph"
        ):
            one(x)
    fresh = pickle.loads(pickle.dumps(graph))
    assert np.array_equal(fresh(x), x * 2)
    model.scale = 0.5
    assert np.array_equal(graph(x), x / 2)


def test_what_runs_a_recurrence_in_a_module_is_nothing_that_the_graph_reads():
    class Own(stepnet.torch.Recurrence):
        """A class of one's own."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cell = torch.nn.GRUCell(3, 4)
            self.rnn = Own(cell, (torch.zeros(1, 3), torch.zeros(1, 4)), batch_first=True)
            self.gru = type("Gru", (torch.nn.GRU,), {})(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gru(self.rnn(x)[0])[0]

    model, x = Layers().eval(), np.ones((2, 3, 3), "float32")
    graph = stepnet.torch.graph(model, torch.zeros(2, 3, 3))
    right = graph(x)
    with torch.no_grad():
        model(torch.from_numpy(x))
    model.train()
    model(torch.from_numpy(x))[0].sum().backward()
    model.gru.flatten_parameters()
    assert np.array_equal(graph(x), right)


def test_a_graph_keeps_to_the_mode_it_was_made_in():
    model, x, half = Scaled().eval(), np.ones((2, 3, 4), "float32"), np.ones((2, 3, 4), "float16")
    graph = stepnet.torch.graph(model, torch.zeros(2, 3, 4))
    model.train()
    assert np.array_equal(graph(x), x / 2)
    with pytest.raises(
        InputError, match="traced again, for inputs of other dtypes or shapes, but it is in another mode"
    ):
        graph(half)
    model.eval()
    assert np.array_equal(graph(half), half / 2)


# ---- random numbers ----------------------------------------------------------------------------------------


class Noisy(torch.nn.Module):
    """A module that draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def forward(self, x: torch.Tensor, h: Any = 0) -> torch.Tensor:
        return x * float(self.random.normal()) + h


@pytest.mark.parametrize(
    "make",
    [
        lambda: stepnet.torch.trace(Noisy(), EXAMPLE),
        lambda: stepnet.torch.Recurrence(Noisy(), EXAMPLE),
        lambda: stepnet.torch.graph(Noisy(), {"x": torch.zeros(2, 4, 3)}),
    ],
)
def test_draws_of_numpy_in_a_module_are_refused(make: Callable[[], Any]):
    with pytest.raises(StepError, match=r"draws random numbers from `self.random`, and a trace") as error:
        make()
    assert "return x * float(self.random.normal()) + h" in str(error.value)


OF_PYTORCH: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "generator": (
        lambda x: x + torch.randn(3, generator=GENERATOR),
        "randn is not an operation of a step: ",
    ),
    "gumbel_softmax": (
        lambda x: torch.nn.functional.gumbel_softmax(x),
        "gumbel_softmax is not an operation of a step: ",
    ),
    "exponential_": (
        lambda x: torch.empty_like(x).exponential_(),
        "exponential_ is not an operation of a step: ",
    ),
    "rand": (
        lambda x: x * torch.rand(x.shape, generator=GENERATOR, dtype=x.dtype),
        "rand is not an operation of a step: ",
    ),
}


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_draws_of_pytorch_that_have_no_graph_are_refused(name: str):
    draw, message = OF_PYTORCH[name]

    class Drawing(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: Any = 0) -> torch.Tensor:
            return draw(x) + h

    makes: list[Callable[[], Any]] = [
        lambda: stepnet.torch.trace(Drawing(), EXAMPLE),
        lambda: stepnet.torch.Recurrence(Drawing(), EXAMPLE),
        lambda: stepnet.torch.graph(Drawing(), {"x": torch.zeros(2, 4, 3)}),
    ]
    for make in makes:
        with pytest.raises(StepError, match="random numbers enter a step as an input") as error:
            make()
        assert message in str(error.value)
        assert f"{__file__}:" in str(error.value)
        assert "lambda x: " in str(error.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.is_grad_enabled(),
        lambda: torch.is_inference_mode_enabled(),
        lambda: torch.is_autocast_enabled(),
        lambda: torch.get_num_threads() == 1,
    ],
)
def test_modes_of_pytorch_are_refused_with_the_line(ask: Callable[[], bool]):
    class Asking(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: Any = 0) -> torch.Tensor:
            return x + h if ask() else x - h

        def unused(self) -> bool:
            return torch.is_grad_enabled()

    makes: list[Callable[[], Any]] = [
        lambda: stepnet.torch.trace(Asking(), EXAMPLE),
        lambda: stepnet.torch.Recurrence(Asking(), EXAMPLE),
        lambda: stepnet.torch.graph(Asking(), {"x": torch.zeros(2, 4, 3)}),
    ]
    for make in makes:
        with pytest.raises(
            StepError, match=r"the step calls torch\.\w+\(\), whose result in a trace"
        ) as error:
            make()
        assert "lambda: torch." in str(error.value)


def test_a_mode_of_pytorch_that_is_asked_for_elsewhere_is_no_matter():
    class Unasked(Cell):
        def unused(self) -> bool:
            return torch.is_grad_enabled()

    cell = Unasked()
    assert_as_looped(stepnet.torch.Recurrence(cell, EXAMPLE), cell)


@pytest.mark.parametrize("name", ["rand_like", "bernoulli", "randn_like"])
def test_draws_of_pytorch_are_refused(name: str):
    class Drawing(torch.nn.Module):
        def forward(self, x: torch.Tensor, h: Any) -> torch.Tensor:
            return x * getattr(torch, name)(x) + h

    with pytest.raises(StepError, match="random numbers enter a step as an input") as error:
        stepnet.torch.Recurrence(Drawing(), EXAMPLE)
    assert "getattr(torch, name)" in str(error.value)


# ---- cells of stepnet in a step ----------------------------------------------------------------------------


def test_cells_of_stepnet_are_traced_in_a_step_as_those_of_pytorch():
    class Outer(torch.nn.Module):
        def __init__(self, kind: Any) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.cell = kind(3, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.cell(x, h)

    ours, theirs = Outer(stepnet.torch.GRUCell), Outer(torch.nn.GRUCell)
    rnn = stepnet.torch.Recurrence(ours, EXAMPLE)
    assert_same({"y": rnn(X)[0]}, {"y": looped(theirs, X)})


def test_a_scan_in_a_step_or_a_model_is_refused():
    scan = stepnet.torch.Scan(sn.RNN(lambda x, h, p: (x + h, x + h), memory=3))

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scan = scan

        def forward(self, x: torch.Tensor, h: Any = 0) -> torch.Tensor:
            return self.scan(x)[0] + h

    with pytest.raises(InputError, match="a Scan cannot be used in a step or a model: call its recurrence"):
        stepnet.torch.graph(Outer(), {"x": torch.zeros(2, 4, 3)})
