"""A target from another package whose buffers are no NumPy arrays: every kind of model runs on it, and values
between the parts of a schedule stay there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_models import MODELS, RANDOM, X, gru, matrix_memory, same
from planned import CPU
from tolerance import assert_close

import stepnet as sn
import stepnet.keras
import stepnet.torch
from stepnet.compiler import targets as engines
from stepnet.compiler.net import HOST, Net, Node
from stepnet.compiler.net.totals import total_of
from stepnet.compiler.plan import PIPELINE, BlockCosts, CostModel, FiberCosts, Pipeline, Plan, Schedule
from stepnet.compiler.targets import Call, CalledKernel, Places, PreparedCall, Results, TableLayout
from stepnet.compiler.targets.interpreter import InterpretedNet
from stepnet.compiler.targets.schedule_kernel import Means, in_parts
from stepnet.compiler.values import leaves, transform
from stepnet.compiler.values.entry_points import installed
from stepnet.errors import InputError, LibraryError, RefusedError

Array = np.ndarray
DEVICE: dict[int, Array] = {}
"""The memory of the device, which only its own functions read."""
MOVES: list[str] = []
"""The copies between the host and the device, and the rows that are gathered and scattered there."""
RUNS: list[str] = []
"""The calls of kernels: prepared ones and others."""


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

    put_constant = put

    def get(self, buffer: Handle) -> Array:
        MOVES.append("get")
        return array_of(buffer).copy()

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Handle:
        return Handle(np.zeros(shape, dtype))

    def copy(self, buffer: Handle) -> Handle:
        return Handle(array_of(buffer).copy())

    def contiguous(self, buffer: Handle) -> Handle:
        return Handle(np.asarray(array_of(buffer), order="C"))

    def take(self, buffer: Handle, indices: Array) -> Handle:
        MOVES.append("take")
        return Handle(array_of(buffer)[indices])

    def write(self, buffer: Handle, indices: Array, rows: Handle) -> None:
        MOVES.append("write")
        array_of(buffer)[indices] = array_of(rows)

    def repeat(self, buffer: Handle, counts: Array) -> Handle:
        return Handle(np.repeat(array_of(buffer), counts, axis=0))

    def rows(self, buffer: Handle, count: int) -> Handle:
        return Handle(HOST.rows(array_of(buffer), count))

    def reduce(self, how: str, buffer: Handle, offsets: Array) -> Handle:
        return Handle(HOST.reduce(how, array_of(buffer), offsets))

    def windowed(self, operation: str, buffer: Handle, made: Array, offsets: Array, window: Any) -> Handle:
        return Handle(HOST.windowed(operation, array_of(buffer), made, offsets, window))

    def paired(self, operation: str, first: Handle, second: Handle, pairs: Any, over: str) -> Handle:
        return Handle(HOST.paired(operation, array_of(first), array_of(second), pairs, over))

    def matrix_gradients(self, operands: Any, offsets: Array, reverse: bool) -> Handle:
        raise NotImplementedError  # no gradient is made for this target that needs it


class ToyBound(CalledKernel):
    """The code of one part with its parameters, which runs on the device."""

    def __init__(self, net: Net, parameters: Sequence[Array]) -> None:
        self.net = net
        self.rebind(parameters)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        assert all(type(array) is np.ndarray for array in parameters)
        self.bound = InterpretedNet(self.net, tuple(array.copy() for array in parameters))
        return True

    def __call__(self, call: Call) -> Results:
        RUNS.append("called")
        return self.on(call, call.given)

    def on(self, call: Call, given: Sequence[Any]) -> Results:
        """Runs a call at its positions on other buffers."""
        arrays = [None if buffer is None else array_of(buffer) for buffer in given]
        sequences, initial = len(call.sequences), len(call.sequences) + len(call.initial)
        inside = replace(
            call,
            sequences=arrays[:sequences],
            initial=arrays[sequences:initial],
            statics=arrays[initial:],
        )
        results = self.bound(inside)
        return Results(
            *(
                [buffer_of(array) for array in kind]
                for kind in (results.outputs, results.final, results.totals)
            )
        )

    def prepare(self, call: Call, layout: TableLayout | None = None) -> PreparedCall | None:
        def run(given: Sequence[Any], places: Places | None) -> Results:
            RUNS.append("prepared")
            return self.on(call, given)

        return None if layout is not None else PreparedCall(run, 0)


@dataclass(frozen=True)
class ToyKernel:
    net: Net

    def bind(self, parameters: Sequence[Array]) -> Any:
        return ToyBound(self.net, parameters)


COSTS = CostModel(
    CPU.costs.machine,
    FiberCosts(fewest_units=10**6, long=16, larger=2, large=1024),
    BlockCosts(sizes=(2,), operation=1, small=1, byte=1, stream=1, streams=10, worth=10),
)
"""Costs of the device: no matrix is cut into fibers, and recurrences are trained in blocks of two steps."""


@dataclass(frozen=True)
class ToyTarget:
    """The target: in another package it would be a folder, with `make` as its entry point."""

    name: str = "toy"
    pipeline: Pipeline = PIPELINE[:2]
    costs: CostModel = COSTS
    memory: ToyMemory = ToyMemory()
    runs_gradients: bool = True
    has_same_bits: bool = False
    devices: tuple[str, ...] = ("meta",)

    def refuse(self, schedule: Schedule) -> str | None:
        return next((reason for plan in schedule.plans if (reason := self.refuse_plan(plan))), None)

    def refuse_plan(self, plan: Plan) -> str | None:
        kinds = {node.operation for node in (*plan.net.nodes, *plan.body.nodes)}
        return "it has no log1p" if "log1p" in kinds else None

    def compile(self, schedule: Schedule) -> Any:
        return in_parts(schedule, Means(self.compile_plan, total, memory=self.memory))

    def compile_plan(self, plan: Plan) -> Any:
        return ToyKernel(plan.traced)


def total(node: Node, operands: Sequence[Any]) -> Any:
    return Handle(np.asarray(total_of(node, list(map(array_of, operands)))))


PACKAGE = """
def make():
    from tests.compiler.targets import test_toy_target
    return test_toy_target.ToyTarget()

def forward():
    from tests.compiler.targets import test_toy_target
    return test_toy_target.ToyTarget("forward", runs_gradients=False)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed package with the target as its entry point."""
    folder = tmp_path / "toy_target-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-target\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[stepnet.targets]\ntoy = toy_package:make\nforward = toy_package:forward\n"
        "broken = toy_package:nothing\nllvm = toy_package:make\n"
    )
    (tmp_path / "toy_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    DEVICE.clear()
    yield "toy"
    installed.cache_clear()
    engines.engine.cache_clear()


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
    # The sequences go in, and memories of zeros are made there; the outputs and three memories come out.
    assert sorted(MOVES) == ["get"] * 4 + ["put"]


def bits(results: Any) -> list[bytes]:
    """The bits of all arrays of some results."""
    return [getattr(each, "values", each).tobytes() for each in leaves(results)]


def runs_of_third(call: Callable[[], Any]) -> set[str]:
    """Ways in which the kernels run in the third call, whose results are those of the first, bit for bit."""
    first = bits(call())
    call()
    RUNS.clear()
    MOVES.clear()
    assert bits(call()) == first
    return set(RUNS)


def test_a_prepared_call_of_a_schedule_runs_prepared_kernels_on_the_device(toy: str) -> None:
    layers = sn.Stack([sn.Bidirectional(gru(3), gru(3, reverse=True)), gru(8)])
    x = RANDOM.normal(size=(2, 5, 3)).astype("f4")
    memories = layers(x, engine=toy)[1]
    assert runs_of_third(lambda: layers(x, memories, engine=toy)) == {"prepared"}
    # The sequences and three memories go in; the outputs and three memories come out.
    assert sorted(MOVES) == ["get"] * 4 + ["put"] * 4
    same(layers(x, memories, engine=toy), layers(x, memories, engine="interpret"))


def test_a_prepared_call_of_one_recurrence_runs_on_the_device(toy: str) -> None:
    rnn = gru(3)
    x = RANDOM.normal(size=(2, 5, 3)).astype("f4")
    assert runs_of_third(lambda: rnn(x, engine=toy)) == {"prepared"}
    same(rnn(x, engine=toy), rnn(x, engine="interpret"))


def test_a_prepared_call_selects_last_steps_on_the_device(toy: str) -> None:
    rnn = gru(3)

    def model(x: Any, params: Any) -> Any:
        return sn.reduce(np.tanh(rnn(x)[0]), "last"), sn.reduce(x, "first")

    made, x = sn.Graph(model, None), RANDOM.normal(size=(2, 5, 3)).astype("f4")
    assert runs_of_third(lambda: made(x, engine=toy)) == {"prepared"}
    same(made(x, engine=toy), made(x, engine="interpret"))


def test_gradients_with_other_parameters_are_prepared_on_the_device(toy: str) -> None:
    layers = sn.Stack([gru(3), gru(4)])
    run, x = sn.vjp(layers), RANDOM.normal(size=(2, 5, 3)).astype("f4")

    def call(scale: float, engine: str) -> Any:
        params = transform(lambda array: array * np.float32(scale), layers.params)
        (outputs, _), backward = run(x, params=params, engine=engine)
        return outputs, backward(outputs).params

    assert runs_of_third(lambda: call(1, toy)) == {"prepared"}
    same(call(0.5, toy), call(0.5, "interpret"))
    assert bits(call(0.5, toy)) != bits(call(1, toy))


def padded(model: Any) -> Callable[[str], Any]:
    """Runs a model and its gradient on padded sequences."""
    run, x = sn.vjp(model), RANDOM.normal(size=(2, 5, 3)).astype("f4")

    def call(engine: str) -> Any:
        results, backward = run(x, lengths=[5, 2], engine=engine)
        gradients = backward(results) if isinstance(model, sn.Graph) else backward(*results)
        return results, gradients.inputs, gradients.params

    return call


def test_gaps_between_padded_sequences_stay_in_prepared_calls(toy: str) -> None:
    """Where no part reads them: they are zeros in the outputs, and nothing is moved."""
    for model in (gru(3), sn.Stack([gru(3), gru(4)])):
        call = padded(model)
        assert runs_of_third(lambda call=call: call(toy)) == {"prepared"}
        assert set(MOVES) == {"get", "put"}
        same(call(toy), call("interpret"))


def test_padded_sequences_are_packed_on_the_device(toy: str) -> None:
    """Where parts read all steps: these are gathered and scattered there, in prepared calls too."""
    rnn = gru(3)

    def model(x: Any, params: Any) -> Any:
        h, _ = rnn(x)
        weights = sn.softmax_over_steps(h @ params)
        return sn.reduce(weights[:, None] * h, "sum"), h

    call = padded(sn.Graph(model, RANDOM.normal(size=4).astype("f4")))
    assert runs_of_third(lambda: call(toy)) == {"prepared"}
    assert set(MOVES) == {"get", "put", "take", "write"}
    same(call(toy), call("interpret"))


def test_steps_of_a_stream_are_prepared_on_the_device(toy: str) -> None:
    rnn, x = gru(3), RANDOM.normal(size=(6, 2, 3)).astype("f4")
    on_device, on_host = rnn.stream(rows=2, engine=toy), rnn.stream(rows=2, engine="interpret")
    for each in x:
        RUNS.clear()
        same(on_device.step(each), on_host.step(each))
    assert RUNS == ["prepared"]


# ---- modules of PyTorch ------------------------------------------------------------------------------------


def of_layer(**options: Any) -> Any:
    return stepnet.torch.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True, **options)


def with_projection(**options: Any) -> Any:
    return stepnet.torch.LSTM(3, 4, proj_size=2, checkpoint=2, **options)


def of_cell(**options: Any) -> Any:
    return stepnet.torch.LSTMCell(5, 4, **options)


def of_recurrence(**options: Any) -> Any:
    example = torch.zeros(1, 3), torch.zeros(1, 4)
    return stepnet.torch.Recurrence(torch.nn.GRUCell(3, 4), example, batch_first=True, **options)


def of_scan(**options: Any) -> Any:
    return stepnet.torch.Scan(gru(3), **options)


def ready(**options: Any) -> Any:
    return stepnet.torch.ready.LayerNormLSTM(3, 4, **options)


def accelerated(**options: Any) -> Any:
    model = torch.nn.GRU(3, 4)
    stepnet.torch.accelerate(model, **options)
    return model


MODULES = [of_layer, with_projection, of_cell, of_recurrence, of_scan, ready, accelerated]


def ran_on_device(run: Callable[[], Any], expected: bool) -> Any:
    """Returns the result of a function, which makes buffers of the device if that is expected."""
    before = len(DEVICE)
    answer = run()
    assert (len(DEVICE) > before) is expected
    return answer


def answers(module: Any, call: Any, engine: str) -> list[Array]:
    """Values, with and without gradients, and the gradients of the inputs and parameters of a module."""
    shape = (6, 5) if "Cell" in type(module).__name__ else (2, 5, 3)
    x: Any = torch.linspace(-1, 1, 2 * 5 * 3).reshape(shape)
    x.requires_grad_()
    module.zero_grad()
    own = ran_on_device(lambda: [one for one in leaves(call(x)) if one is not None], engine != "auto")
    loss: Any = sum(tensor.square().sum() for tensor in own)
    ran_on_device(loss.backward, engine != "auto")
    with torch.no_grad():
        plain = ran_on_device(lambda: leaves(call(x)), engine != "auto")
    grads = [parameter.grad for parameter in module.parameters() if parameter.requires_grad]
    return [tensor.detach().numpy() for tensor in (*own, *plain, x.grad, *grads)]


def compared(
    make: Callable[..., Any], toy: str, wrapped: Callable[[Any], Any] = lambda module: module
) -> None:
    found = list[list[Array]]()
    for engine in (toy, "auto"):
        torch.manual_seed(0)
        module = make(engine=engine)
        found.append(answers(module, wrapped(module), engine))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 5, 16)


@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
def test_modules_of_pytorch_run_on_it(make: Callable[..., Any], toy: str) -> None:
    compared(make, toy)


@pytest.mark.parametrize("make", [of_layer, of_cell, of_recurrence], ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore")  # those of torch's compiler about itself
def test_graphs_of_pytorch_run_on_it(make: Callable[..., Any], toy: str) -> None:
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        compared(make, toy, lambda module: torch.compile(module, backend="aot_eager", fullgraph=True))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_graph_keeps_the_engine(toy: str) -> None:
    cell, x = of_cell(engine=toy), torch.ones(2, 5)
    program = torch.export.export(cell, (x,))
    ran_on_device(lambda: program.module()(x), True)
    cell.engine = "tpu"
    with pytest.raises(InputError, match="no engine is called 'tpu'"):
        torch.export.export(cell, (x,))


def test_second_derivatives_run_on_it(toy: str) -> None:
    layer, x = of_layer(engine=toy), torch.ones(2, 5, 3, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    ran_on_device(first.square().sum().backward, True)


def test_accelerations_of_other_libraries_run_on_it(toy: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 4, "num_heads": 2, "head_dim": 4, "n_groups": 1, "state_size": 3, "chunk_size": 2}
    config = transformers.Mamba2Config(num_hidden_layers=1, vocab_size=11, expand=2, conv_kernel=2, **sizes)
    words, found = torch.tensor([[3, 1, 4, 1, 5]]), list[list[Any]]()
    for engine in (toy, "auto"):
        torch.manual_seed(0)
        model = transformers.Mamba2Model(config)
        done = stepnet.torch.accelerate(model, engine=engine)
        assert done.replaced
        outputs = ran_on_device(lambda own=model: own(words).last_hidden_state, engine == toy)
        ran_on_device(outputs.square().sum().backward, engine == toy)
        done.undo()
        assert all("engine" not in vars(module) for module in model.modules())
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        found.append([tensor.detach().numpy() for tensor in (outputs, *grads)])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 5, 16)


def test_devices_are_those_of_the_engines(toy: str) -> None:
    assert engines.devices_of("auto") == {"cpu"}
    assert engines.devices_of(("llvm", toy)) == {"cpu", "meta"}
    x = torch.ones(5, 1, 3, device="meta")
    outputs, _ = stepnet.torch.GRU(3, 4, device="meta")(x)  # that of torch.nn
    assert outputs.device.type == "meta"
    with pytest.raises(InputError, match="has no memory"):  # the toy is asked, and meta has no numbers
        stepnet.torch.GRU(3, 4, device="meta", engine=toy)(x)


# ---- layers of Keras ---------------------------------------------------------------------------------------


def of_keras(kind: str, **options: Any) -> Any:
    return getattr(stepnet.keras, kind)(4, return_sequences=True, return_state=True, **options)


def of_own_cell(**options: Any) -> Any:
    keras: Any = import_module("keras")
    return stepnet.keras.RNN(keras.layers.GRUCell(4, activation=lambda x: 2 * x / (1 + x * x)), **options)


LAYERS = [*(partial(of_keras, kind) for kind in ("SimpleRNN", "LSTM", "GRU")), of_own_cell]


@pytest.mark.parametrize("make", LAYERS, ids=["SimpleRNN", "LSTM", "GRU", "RNN"])
def test_layers_of_keras_run_on_it(make: Callable[..., Any], toy: str) -> None:
    mask = torch.tensor([[True, True, False, True, False], [True] * 5])
    found = list[list[Array]]()
    for engine in (toy, "auto"):
        layer = make(engine=engine)
        layer.build((2, 5, 3))
        layer.set_weights([np.cos(np.arange(one.size).reshape(one.shape)) for one in layer.get_weights()])
        found.append(answers(layer, partial(layer, mask=mask), engine))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 5, 16)


def test_accelerated_layers_of_keras_run_on_it(toy: str) -> None:
    keras: Any = import_module("keras")
    layer, ours, x = keras.layers.GRU(4), stepnet.keras.GRU(4), np.ones((2, 5, 3), "f4")
    with stepnet.keras.accelerate(engine=toy):
        ran_on_device(lambda: layer(x), True)
        ran_on_device(lambda: ours(x), False)
        with stepnet.keras.accelerate():
            ran_on_device(lambda: layer(x), False)
        ran_on_device(lambda: layer(x), True)
    ran_on_device(lambda: layer(x), False)


# ---- refusals and names ------------------------------------------------------------------------------------


def test_nets_are_planned_by_the_passes_and_costs_of_the_target(toy: str) -> None:
    rnn, attention = gru(3), matrix_memory()
    rnn(X)
    assert "before the loop" in rnn.explain("llvm")
    assert "before the loop" not in rnn.explain(toy), "no pass hoists the product with the inputs"
    assert "phase 2" not in attention.explain("llvm")
    assert "phase 2" in attention.explain(toy), "the sums over the matrix are no fibers"
    assert "blocks      2 steps" in sn.vjp(attention).explain(engine=toy)
    assert "blocks      2 steps" not in sn.vjp(attention).explain(engine="llvm")


def test_a_target_with_memory_of_its_own_shares_no_schedule(toy: str) -> None:
    rnn = gru(3)
    model = sn.Graph(lambda x, p: sn.reduce(np.log1p(np.exp(rnn(x)[0])), "sum"), inputs=3)
    same(model(X, engine=(toy, "llvm")), model(X, engine="llvm"))
    assert not DEVICE


def test_it_refuses_with_its_reason(toy: str) -> None:
    rnn = sn.RNN(lambda x, h, p: (np.log1p(x * x + h), h), memory=3)
    with pytest.raises(RefusedError, match="toy: it has no log1p"):
        rnn(X, engine=toy)
    same(rnn(X, engine=(toy, "llvm")), rnn(X, engine="llvm"))


def test_a_target_that_runs_no_gradients_is_not_asked_for_them(toy: str) -> None:
    rnn = gru(3)
    rnn(X, engine="forward")
    assert DEVICE
    DEVICE.clear()
    (made, _), backward = sn.vjp(rnn)(X, engine=("forward", "interpret"))
    (right, _), _ = sn.vjp(rnn)(X, engine="interpret")
    assert_close(backward(made).inputs.values, sn.vjp(rnn)(X)[1](right).inputs.values, 8, 16)
    assert not DEVICE


def test_names_of_installed_targets(toy: str) -> None:
    own = "llvm", "onednn", "interpret", "cuda", "cuda-emulated"
    assert engines.engine_names() == (*own, "toy", "forward", "broken")
    with pytest.raises(InputError, match=r"no engine is called 'tpu'.*, toy, forward, broken, or 'auto'"):
        gru(3)(X, engine="tpu")
    with pytest.raises(LibraryError, match="the engine 'broken' cannot be imported from toy_package:nothing"):
        gru(3)(X, engine="broken")
    assert engines.engine_named("llvm").name == "llvm"


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("how", ["sum", "max", "first", "last"])
@pytest.mark.parametrize("offsets", [[0, 2, 3], [0, 0, 3]], ids=["filled", "one empty"])
def test_reductions_in_host_memory_have_the_dtype_of_the_values(
    offsets: list[int], how: str, dtype: str
) -> None:
    values = np.ones((3, 2), dtype)
    assert HOST.reduce(how, values, np.array(offsets)).dtype == dtype
