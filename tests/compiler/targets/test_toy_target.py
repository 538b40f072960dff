"""A target from another package whose buffers are no NumPy arrays: every kind of model runs on it, and values
between the parts of a schedule stay there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
import stepnet.torch
from stepnet.compiler import targets as engines
from stepnet.compiler.net import HOST, Net, Node
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.plan import Plan, Schedule
from stepnet.compiler.targets import Call, Results
from stepnet.compiler.targets.interpreter import InterpretedNet
from stepnet.compiler.targets.schedule_kernel import Means, in_parts
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, LibraryError, RefusedError

Array = np.ndarray
DEVICE: dict[int, Array] = {}
"""The memory of the device, which only its own functions read."""
MOVES: list[str] = []


class Handle:
    """A buffer of the device. Any use as an array raises."""

    __slots__ = ("number",)

    def __init__(self, array: Array) -> None:
        self.number = len(DEVICE)
        DEVICE[self.number] = array

    def refuse(self, *arguments: Any) -> Any:
        raise AssertionError("a buffer of the device was used as an array on the host")

    __array__ = __len__ = __iter__ = __getitem__ = __setitem__ = __add__ = __mul__ = __eq__ = refuse
    __hash__ = None  # type: ignore[assignment]


def buffer_of(array: Array) -> Any:
    return Handle(array)


def array_of(buffer: Any) -> Array:
    assert type(buffer) is Handle, f"a {type(buffer).__name__} is no buffer of the device"
    return DEVICE[buffer.number]


@dataclass(frozen=True)
class ToyMemory:
    """Memory of the device: a copy in, a copy out, and the moves of rows there."""

    def put(self, array: Array) -> Handle:
        MOVES.append("put")
        return Handle(np.array(array))

    def get(self, buffer: Handle) -> Array:
        MOVES.append("get")
        return array_of(buffer).copy()

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Handle:
        return Handle(np.zeros(shape, dtype))

    def copy(self, buffer: Handle) -> Handle:
        return Handle(array_of(buffer).copy())

    def contiguous(self, buffer: Handle) -> Handle:
        return Handle(np.ascontiguousarray(array_of(buffer)))

    def take(self, buffer: Handle, indices: Array) -> Handle:
        return Handle(array_of(buffer)[indices])

    def write(self, buffer: Handle, indices: Array, rows: Handle) -> None:
        array_of(buffer)[indices] = array_of(rows)

    def repeat(self, buffer: Handle, counts: Array) -> Handle:
        return Handle(np.repeat(array_of(buffer), counts, axis=0))

    def rows(self, buffer: Handle, count: int) -> Handle:
        return Handle(HOST.rows(array_of(buffer), count))

    def reduce(self, how: str, buffer: Handle, offsets: Array) -> Handle:
        return Handle(HOST.reduce(how, array_of(buffer), offsets))

    def windowed(self, operation: str, buffer: Handle, offsets: Array, window: Any) -> Handle:
        return Handle(HOST.windowed(operation, array_of(buffer), offsets, window))


@dataclass(frozen=True)
class ToyBound:
    """The code of one part with its parameters, which runs on the device."""

    bound: InterpretedNet

    def __call__(self, call: Call) -> Results:
        inside = replace(
            call,
            sequences=[array_of(buffer) for buffer in call.sequences],
            initial=[None if buffer is None else array_of(buffer) for buffer in call.initial],
            statics=[array_of(buffer) for buffer in call.statics],
        )
        results = self.bound(inside)
        return Results(
            *(
                [buffer_of(array) for array in kind]
                for kind in (results.outputs, results.final, results.totals)
            )
        )

    def rebind(self, parameters: Sequence[Array]) -> bool:
        return False

    def release(self) -> None:
        pass


@dataclass(frozen=True)
class ToyKernel:
    net: Net

    def bind(self, parameters: Sequence[Array]) -> Any:
        assert all(type(array) is np.ndarray for array in parameters)
        return ToyBound(InterpretedNet(self.net, tuple(parameters)))


@dataclass(frozen=True)
class ToyTarget:
    """The target: in another package it would be a folder, with `make` as its entry point."""

    name: str = "toy"

    def refuse(self, schedule: Schedule) -> str | None:
        return next((reason for plan in schedule.plans if (reason := self.refuse_plan(plan))), None)

    def refuse_plan(self, plan: Plan) -> str | None:
        kinds = {node.operation for node in (*plan.net.nodes, *plan.body.nodes)}
        return "it has no log1p" if "log1p" in kinds else None

    def compile(self, schedule: Schedule) -> Any:
        return in_parts(schedule, Means(self.compile_plan, total, memory=ToyMemory()))

    def compile_plan(self, plan: Plan) -> Any:
        return ToyKernel(plan.traced)


def total(node: Node, operands: Sequence[Any]) -> Any:
    return Handle(np.asarray(total_of(node, list(map(array_of, operands)))))


PACKAGE = """
def make():
    from tests.compiler.targets import test_toy_target
    return test_toy_target.ToyTarget()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed package with the target as its entry point."""
    folder = tmp_path / "toy_target-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-target\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[stepnet.targets]\ntoy = toy_package:make\nbroken = toy_package:nothing\nllvm = toy_package:make\n"
    )
    (tmp_path / "toy_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    engines.installed.cache_clear()
    DEVICE.clear()
    yield "toy"
    engines.installed.cache_clear()
    engines.engine.cache_clear()


RANDOM = np.random.default_rng(0)


def gru(inputs: int, hidden: int = 4, **options: Any) -> sn.RNN:
    return rnn_of("gru", inputs, hidden, **options)


def ragged(*lengths: int, features: int = 3) -> sn.Ragged:
    return sn.Ragged.from_list([RANDOM.normal(size=(n, features)).astype("f4") for n in lengths])


def same(made: Any, right: Any, length: int = 8) -> None:
    for ours, theirs in zip(leaves(made), leaves(right), strict=True):
        ours, theirs = getattr(ours, "values", ours), getattr(theirs, "values", theirs)
        assert type(ours) is np.ndarray
        assert_close(ours, theirs, length, 16)


X = ragged(3, 0, 5, 1)


def flat() -> Callable[[str], Any]:
    rnn = gru(3)
    return lambda engine: rnn(X, engine=engine)


def padded_and_masked() -> Callable[[str], Any]:
    rnn, x = gru(3, reverse=True), RANDOM.normal(size=(2, 5, 3)).astype("f4")
    mask = RANDOM.random((2, 5)) < 0.7
    return lambda engine: (rnn(x, lengths=[5, 2], engine=engine), rnn(x, mask=mask, engine=engine))


def last_outputs() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])
    return lambda engine: layers(X, last_only=True, engine=engine)


def layered() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True), "sum"), gru(4)])
    return lambda engine: layers(X, engine=engine)


def nested() -> Callable[[str], Any]:
    words = gru(3)

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        _, last = words(x, initial="zeros")
        return last + h, h + sn.reduce(x, "sum").sum(axis=-1, keepdims=True)

    rnn = sn.RNN(step, memory=1)
    documents = sn.Ragged.from_list([[RANDOM.normal(size=(n, 3)).astype("f4") for n in (2, 3)], []])
    return lambda engine: rnn(documents, engine=engine)


def inner_needs_the_memory() -> Callable[[str], Any]:
    words = gru(3)

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        outputs, h = words(x, initial=h)
        return outputs, h

    rnn = sn.RNN(step, memory=4)
    documents = sn.Ragged.from_list(
        [[RANDOM.normal(size=(n, 3)).astype("f4") for n in (2, 3)], [np.ones((1, 3), "f4")]]
    )
    return lambda engine: rnn(documents, engine=engine)


def attention() -> Callable[[str], Any]:
    def step(x: Any, h: Any, params: Any, statics: Any) -> tuple[Any, Any]:
        scores = (statics * sn.expand(h, statics)).sum(axis=-1)
        weights = np.exp(scores - sn.expand(sn.reduce(scores, "max"), scores))
        context = sn.reduce(weights[..., None] * statics, "sum")
        return context, np.tanh(x + context)

    rnn = sn.RNN(step, memory=3)
    keys = ragged(2, 1, 4, 3)
    return lambda engine: rnn(X, statics=keys, engine=engine)


def graph() -> Callable[[str], Any]:
    rnn = gru(3)

    def model(x: Any, params: Any) -> Any:
        h, _ = rnn(x)
        weights = sn.softmax_over_steps(h @ params["v"])
        return sn.reduce(weights[:, None] * h, "sum") @ params["W"], h

    params = {"v": RANDOM.normal(size=4).astype("f4"), "W": RANDOM.normal(size=(4, 2)).astype("f4")}
    made = sn.Graph(model, params)
    return lambda engine: made(X, engine=engine)


def gradient() -> Callable[[str], Any]:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])

    def run(engine: str) -> Any:
        (outputs, final), backward = sn.vjp(layers)(X, engine=engine)
        gradients = backward(outputs, final)
        return outputs, final, gradients.params, gradients.inputs, gradients.initial

    return run


def training() -> Callable[[str], Any]:
    rnn = gru(3)
    run = sn.value_and_grad(lambda outputs, target: ((outputs - target) ** 2).sum(axis=-1), rnn)
    target = RANDOM.normal(size=(len(X.values), 4)).astype("f4")
    return lambda engine: run(X, X.with_values(target), engine=engine)[1].params


def stream() -> Callable[[str], Any]:
    layers = sn.Stack([gru(3), gru(4)])
    x = RANDOM.normal(size=(4, 2, 3)).astype("f4")

    def run(engine: str) -> Any:
        steps = layers.stream(rows=2, engine=engine)
        return [steps.step(each) for each in x]

    return run


MODELS = [
    flat,
    padded_and_masked,
    last_outputs,
    layered,
    nested,
    inner_needs_the_memory,
    attention,
    graph,
    gradient,
    training,
    stream,
]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_kind_of_model_runs_on_buffers_of_the_device(make: Callable[[], Any], toy: str) -> None:
    run = make()
    same(run(toy), run("interpret"))
    assert DEVICE


def test_values_between_parts_stay_on_the_device(toy: str) -> None:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])
    layers(X, engine=toy)
    MOVES.clear()
    layers(X, engine=toy)
    # The sequences and three memories go in; the outputs and three memories come out.
    assert sorted(MOVES) == ["get"] * 4 + ["put"] * 4


def test_layers_of_pytorch(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    ours = stepnet.torch.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    monkeypatch.setattr(engines, "AUTO", (toy,))
    made: list[list[Array]] = []
    for layer in (ours, theirs):
        x = torch.linspace(-1, 1, 2 * 5 * 3).reshape(2, 5, 3).requires_grad_()
        layer.zero_grad()
        outputs, last = layer(x)
        (outputs.square().sum() + last.sum()).backward()
        assert x.grad is not None
        grads: list[Any] = [parameter.grad for parameter in layer.parameters()]
        made.append([tensor.detach().numpy() for tensor in (outputs, last, x.grad, *grads)])
    for one, other in zip(*made, strict=True):
        assert_close(one, other, 5, 16)
    assert DEVICE


def test_it_refuses_with_its_reason(toy: str) -> None:
    rnn = sn.RNN(lambda x, h, p: (np.log1p(x * x + h), h), memory=3)
    with pytest.raises(RefusedError, match="toy: it has no log1p"):
        rnn(X, engine=toy)
    same(rnn(X, engine=(toy, "llvm")), rnn(X, engine="llvm"))


def test_names_of_installed_targets(toy: str) -> None:
    assert engines.engine_names() == ("llvm", "onednn", "interpret", "toy", "broken")
    with pytest.raises(InputError, match=r"no engine is called 'tpu'.*, toy, broken, or 'auto'"):
        gru(3)(X, engine="tpu")
    with pytest.raises(LibraryError, match="the engine 'broken' cannot be imported from toy_package:nothing"):
        gru(3)(X, engine="broken")
    assert engines.engine_named("llvm").name == "llvm"


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("how", ["sum", "max", "first", "last"])
@pytest.mark.parametrize("offsets", [[0, 2, 3], [0, 0, 3]], ids=["filled", "one empty"])
def test_reductions_in_host_memory_have_the_dtype_of_the_values(
    offsets: list[int], how: str, dtype: str
) -> None:
    values = np.ones((3, 2), dtype)
    assert HOST.reduce(how, values, np.array(offsets)).dtype == dtype
