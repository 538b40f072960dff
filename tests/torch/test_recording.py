"""Graphs that PyTorch records hold the operator of recurrences, or are refused: no results as constants."""

import gc
import io
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch import ready
from tests.torch.layer_cases import assert_same, numbers

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

OPERATOR = torch.ops.stepnet.recurrence.default
X, OTHER, LONGER = numbers(5, 2, 3), numbers(5, 2, 3) + 1, numbers(7, 4, 3)


def recurrence() -> Any:
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), (torch.zeros(1, 3), torch.zeros(1, 4))).double()


MODULES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "GRU": (lambda: stepnet.torch.GRU(3, 4, dtype=torch.float64), lambda x: x),
    "LSTM": (lambda: stepnet.torch.LSTM(3, 4, num_layers=2, dtype=torch.float64), lambda x: x),
    "GRUCell": (lambda: stepnet.torch.GRUCell(3, 4, dtype=torch.float64), lambda x: x[0]),
    "Recurrence": (recurrence, lambda x: x),
    "ready": (lambda: ready.MinimalGatedUnit(3, 4).double(), lambda x: x),
}


def scan() -> stepnet.torch.Scan:
    def step(x: Any, h: Any, params: Any) -> Any:
        h = np.tanh(x @ params + h)
        return h, h

    return stepnet.torch.Scan(sn.RNN(step, np.ones((3, 3)), memory=3))


def first(results: Any) -> torch.Tensor:
    return results[0] if isinstance(results, tuple) else results


@pytest.mark.long(each=True)
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("pre_dispatch", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_make_fx_holds_the_operator(name: str, pre_dispatch: bool, trained: bool, gradients: bool):
    make, of = MODULES[name]
    module = make().requires_grad_(trained)
    with torch.set_grad_enabled(gradients):
        graph = make_fx(lambda x: first(module(x)), pre_dispatch=pre_dispatch)(of(X))
        assert sum(node.target is OPERATOR for node in graph.graph.nodes) == 1
        assert_same({"y": graph(of(OTHER))}, {"y": first(module(of(OTHER)))})


@pytest.mark.long(each=True)
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", ["Recurrence", "ready"])
def test_torch_jit_trace_holds_the_operator(name: str, gradients: bool):
    module = MODULES[name][0]()
    with torch.set_grad_enabled(gradients):
        traced: Any = torch.jit.trace(module, X)
    assert "stepnet::recurrence" in str(traced.inlined_graph)
    results = []
    for run in (traced, module):
        x = LONGER.clone().requires_grad_()
        module.zero_grad()
        y = first(run(x))
        y.square().sum().backward()
        results.append({"y": y, "dx": x.grad} | {n: p.grad for n, p in module.named_parameters()})
    assert_same(*results)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    assert_same({"y": first(loaded(LONGER))}, {"y": first(module(LONGER))})
    del module, traced, run
    gc.collect()
    with pytest.raises(RuntimeError, match=r"a stepnet.torch.Recurrence that is not in this process"):
        loaded(LONGER)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", [*MODULES, "Scan"])
def test_torch_jit_script_is_refused(name: str):
    module = scan() if name == "Scan" else MODULES[name][0]()
    for each in (module, torch.nn.Sequential(torch.nn.Linear(3, 3), module)):
        with pytest.raises(InputError, match=r"torch\.jit\.script cannot compile stepnet.*jit\.trace"):
            torch.jit.script(each)


def test_a_model_is_scripted_after_undo():
    model = torch.nn.Sequential(torch.nn.GRU(3, 4))
    done = stepnet.torch.accelerate(model)
    with pytest.raises(InputError, match="which undo"):
        torch.jit.script(model)
    done.undo()
    scripted: Any = torch.jit.script(model)
    assert_same({"y": scripted(X.float())[0]}, {"y": model(X.float())[0]})


@pytest.mark.parametrize(
    "record",
    [
        lambda module: make_fx(lambda x: module(x)[0])(X),
        lambda module: make_fx(lambda x: module(x)[0], tracing_mode="symbolic", _allow_non_fake_inputs=True)(
            X
        ),
        lambda module: make_fx(lambda x: module(x)[0], pre_dispatch=True)(X),
        lambda module: lambda x: torch.export.export(module, (X,), strict=False).module()(x)[0],
    ],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_scan_is_recorded(record: Callable[[Any], Any], gradients: bool):
    module = scan()
    with torch.set_grad_enabled(gradients):
        assert_same({"y": record(module)(X)}, {"y": module(X)[0]})


def test_a_scan_is_refused():
    with pytest.raises(InputError, match=r"a Scan cannot be recorded in a graph of torch\.jit\.trace"):
        torch.jit.trace(scan(), X)


def in_forward_mode(function: Callable[[Any], Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x))).tangent


FORWARD: dict[str, Callable[[Callable[[Any], Any], torch.Tensor], Any]] = {
    "linearize": lambda f, x: torch.func.linearize(f, x)[1](x),
    "jvp of a graph": lambda f, x: torch.func.jvp(make_fx(f)(x), (x,), (x,)),
    "forward mode of a graph": lambda f, x: in_forward_mode(make_fx(f)(x), x),
    "a graph of forward mode": lambda f, x: make_fx(lambda x: in_forward_mode(f, x))(x),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("name", "way"), [(name, "linearize") for name in MODULES] + [("GRU", way) for way in list(FORWARD)[1:]]
)
def test_forward_mode_of_graphs_is_refused(name: str, way: str, trained: bool):
    make, of = MODULES[name]
    module = make().requires_grad_(trained)
    with pytest.raises(InputError, match=r"linearize makes such a graph: use torch\.func\.jvp"):
        FORWARD[way](lambda x: first(module(x)), of(X))


@pytest.mark.parametrize(
    "make", [scan, lambda: stepnet.torch.GRU(3, 4, dtype=torch.float64, checkpoint="sqrt")]
)
def test_linearize_of_what_no_graph_holds_is_refused(make: Callable[[], Any]):
    module = make()
    with pytest.raises(InputError, match=r"linearize makes such a graph: use torch\.func\.jvp"):
        torch.func.linearize(lambda x: module(x)[0], X)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_parameters_are_inputs_of_a_recorded_graph(mode: Literal["real", "fake", "symbolic"]):
    cell = torch.nn.Linear(3, 3, dtype=torch.float64)
    module = stepnet.torch.Recurrence(
        lambda x, h, p: (h + x @ p["W"],) * 2, (X[0, :1], X[0, :1], {"W": cell.weight})
    )

    def gradient(x: torch.Tensor, h: torch.Tensor, W: torch.Tensor) -> Any:
        y, _ = torch.func.functional_call(module, {"params.W": W}, (x, h))
        return torch.autograd.grad((y * y).sum(), (x, h, W))

    given = [tensor.detach().requires_grad_() for tensor in (LONGER, LONGER[0], cell.weight)]
    graph = make_fx(gradient, tracing_mode=mode)(*given)
    assert_same(*(dict(zip("xhW", run(*given), strict=True)) for run in (graph, gradient)))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = 0.5, torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x) + h * self.scale)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_graph_is_made_of_a_step_whose_attribute_has_just_changed(gradients: bool):
    cell = Scaled()
    module = stepnet.torch.Recurrence(cell, (X[0, :1], X[0, :1]))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.set_grad_enabled(gradients):
        for scale, x in ((2.0, X), (3.0, X[:-1])):  # another length makes another graph
            cell.scale = scale
            y = compiled(x)[0]
            assert_same({"y": y}, {"y": module(x)[0]})


@pytest.mark.parametrize("strict", [True, False])
def test_a_step_whose_attribute_has_just_changed_is_exported(strict: bool):
    cell = Scaled()
    module = stepnet.torch.Recurrence(cell, (X[0, :1], X[0, :1]))
    cell.scale = 2.0
    program = torch.export.export(module, (X,), strict=strict).module()
    assert_same({"y": program(X)[0]}, {"y": module(X)[0]})


def test_a_graph_notices_an_attribute_that_changes_what_it_keeps():
    class Switched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.deep = 0.5, False
            self.inner = torch.nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.inner(x) + h * self.scale)
            return torch.sin(torch.exp(-h)) * torch.tanh(self.inner(h)) if self.deep else h

    cell = Switched()
    module = stepnet.torch.Recurrence(cell, (X[0, :1], X[0, :1]))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for scale in (0.5, 2.0):
        cell.scale = scale
        assert_same({"y": compiled(X)[0]}, {"y": module(X)[0]})
    cell.deep = True
    with pytest.raises(
        InputError, match=r"has changed since its graph was compiled.*compile the module again"
    ):
        compiled(X)
    torch._dynamo.reset()
    assert_same({"y": torch.compile(module, backend="aot_eager")(X)[0]}, {"y": module(X)[0]})
