"""Graphs of torch.compile and torch.export on a GPU: stepnet's operators on fake tensors of type "cuda",
which need no GPU, and the implementation of the operators on the emulated device.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode

import stepnet as sn
import stepnet.torch
from stepnet.compiler import targets
from stepnet.compiler.targets.cuda import CudaEngine
from stepnet.errors import InputError
from tests.torch.placed import DEVICE, KERNELS, answers, check_same, on_packed, placed
from tests.torch.test_device_tensors import attention

__all__ = ["placed"]  # a fixture
pytestmark = [pytest.mark.usefixtures("placed"), pytest.mark.filterwarnings("ignore")]  # torch.compile's own


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine of a GPU that is not there, and torch.compile that takes recurrent modules in."""

    def made(*words: str) -> CudaEngine:
        return CudaEngine(DEVICE, name="cuda")

    for table in (targets.ENGINES, targets.VARIANTS):
        monkeypatch.setitem(table, "cuda", made)  # type: ignore[arg-type]
    targets.engine.cache_clear()
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def of_cell(**options: Any) -> Any:
    example = torch.zeros(1, 3), torch.zeros(1, 4)
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), example, **options)


OURS = "stepnet::recurrence"
GRAPHS: dict[str, tuple[Any, str]] = {
    "GRU": (lambda: stepnet.torch.GRU(3, 200), OURS),
    "a GRU that stays with cuDNN": (lambda: stepnet.torch.GRU(3, 4), "aten::gru.input"),
    "one whose engine is named": (lambda: stepnet.torch.GRU(3, 4, engine="cuda"), OURS),
    "LSTM of two directions": (lambda: stepnet.torch.LSTM(3, 4, bidirectional=True), OURS),
    "one with a checkpoint": (lambda: stepnet.torch.GRU(3, 200, checkpoint=2), "aten::gru.input"),
    "Recurrence": (of_cell, OURS),
    "cell whose engine is named": (lambda: stepnet.torch.GRUCell(3, 4, engine="cuda"), OURS),
}


def moved(module: Any) -> Any:
    """A module whose parameters are fake tensors on the GPU; autograd has none for them without a GPU."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            fake = torch.empty(parameter.shape, device="cuda")
            part._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
        if isinstance(part, torch.nn.RNNBase):
            part._init_flat_weights()
    return module


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_tensors_on_a_gpu_have_the_operator(name: str) -> None:
    make, operator = GRAPHS[name]
    module = make()
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(*([2, 3] if "cell" in name else [5, 2, 3]), device="cuda")
        program = torch.export.export(moved(module), (x,), strict=False)
    [results] = (node.all_input_nodes for node in program.graph.nodes if node.op == "output")
    names = [node.target.name() for node in program.graph.nodes if hasattr(node.target, "name")]
    assert operator in names
    assert (operator == OURS) == (OURS in names)
    assert {node.meta["val"].device.type for node in results} == {"cuda"}


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="aot_eager", fullgraph=True)


def test_the_graph_of_a_layer_runs_on_tensors_where_they_lie() -> None:
    ours, theirs = stepnet.torch.RNN(3, 4, engine="placed"), torch.nn.RNN(3, 4)
    ours.load_state_dict(theirs.state_dict())
    graph = compiled(ours)
    x = torch.randn(5, 4, 3)
    check_same(ours, theirs, lambda module, x: on_packed(graph if module is ours else module, x), x)


def test_the_graph_of_a_recurrence_runs_on_tensors_where_they_lie() -> None:
    theirs, ours = torch.nn.GRU(3, 4), of_cell(engine="placed")
    ours.cell.load_state_dict({name[:-3]: value for name, value in theirs.state_dict().items()})
    graph = compiled(ours)
    x = torch.randn(5, 4, 3)
    check_same(ours, theirs, lambda module, x: (graph if module is ours else module)(x)[0], x)


def test_the_graph_of_a_matrix_has_the_gradients_of_chunks() -> None:
    """The kernels, and so the bits, are those of the module itself."""
    module = attention()
    x = torch.randn(2, 20, 49) / 4
    found = answers(compiled(module), compiled(module), x)
    assert "gradients of a matrix" in KERNELS
    for one, other in zip(found, answers(module, module, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_saves_what_the_engine_of_its_tensors_saves() -> None:
    """A step that runs in chunks on a GPU stores no matrix there."""
    module = stepnet.torch.Scan(attention().rnn)
    program = torch.export.export(module, (torch.zeros(2, 20, 49),), strict=False)
    [call] = (node for node in program.graph.nodes if str(node.target) == "stepnet.recurrence.default")
    key, form, places, wanted, inputs = call.args
    counts = list[int]()
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            given = [torch.empty(each.meta["val"].shape, device=device) for each in inputs]
            made = torch.ops.stepnet.recurrence(key, form, given[: len(places)], wanted, given)
        counts.append(sum(each.numel() for each in made))
    assert counts[1] < 2 * 20 * 16 * 16 < counts[0]


def scan(**options: Any) -> Any:
    """A Scan of two inputs, of which one output alone has an entry for each step."""

    def step(x: Any, h: Any, p: Any) -> Any:
        following = np.tanh(x["a"] @ p["W"] + h * x["b"])
        return {"y": 2 * following}, following

    weights = {"W": np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)}
    return stepnet.torch.Scan(sn.RNN(step, weights, memory=4), **options)


def inputs_of_scan(device: str = "cpu") -> dict[str, torch.Tensor]:
    return {"b": torch.ones(2, 5, 4, device=device), "a": torch.ones(2, 5, 3, device=device)}


def test_a_scan_on_a_gpu_is_an_operator() -> None:
    module = scan()
    with FakeTensorMode(), torch.no_grad():
        for name, parameter in module.params.items():
            fake = torch.empty(parameter.shape, device="cuda")
            module.params[name] = torch.nn.Parameter(fake, requires_grad=False)
        program = torch.export.export(module, (inputs_of_scan("cuda"),), strict=False)
    assert OURS in [node.target.name() for node in program.graph.nodes if hasattr(node.target, "name")]


@pytest.mark.parametrize(("engine", "lengths"), [("auto", None), ("placed", [5, 3])])
def test_the_graph_of_a_scan_gives_its_results(engine: str, lengths: Any) -> None:
    module, x = scan(engine=engine), inputs_of_scan()
    x["a"].requires_grad_()
    results = list[Any]()
    for call in (module, compiled(module)):
        outputs, last = call(x, torch.ones(2, 4), lengths=lengths)
        kept = x["a"], module.params["W"]
        results.append([outputs["y"], last, *torch.autograd.grad(outputs["y"].sum() + last.sum(), kept)])
    for one, other in zip(*results, strict=True):
        assert_close(one.detach().numpy(), other.detach().numpy(), 5, 4)


def test_lengths_that_do_not_fit_are_refused_when_the_graph_runs() -> None:
    with pytest.raises(InputError, match=r"lengths are \[5, 6\] for 2 sequences of up to 5 steps"):
        compiled(scan())(inputs_of_scan(), lengths=torch.tensor([5, 6]))
