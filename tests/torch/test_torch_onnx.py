"""torch.onnx.export(dynamo=True): files with the operators of ONNX, whose results onnxruntime compares."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch.utils._pytree import tree_leaves

import stepnet.torch
from stepnet.errors import InputError
from stepnet.torch import ready
from tests.torch.layer_cases import assert_same, packed
from tests.torch.torch_tools import causes

pytestmark = pytest.mark.filterwarnings("ignore")  # those of PyTorch about its own exporter

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRU": ("GRU", {"batch_first": True}),
    "LSTM": ("LSTM", {"num_layers": 2, "bidirectional": True}),
    "RNN": ("RNN", {"nonlinearity": "relu", "bias": False}),
    "projected": ("LSTM", {"proj_size": 2, "bidirectional": True, "batch_first": True}),
}


class Counting(torch.nn.Module):
    """A cell that reads the index of the step and a static, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.LSTMCell(3, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Any, state: Any, index: Any, statics: Any) -> Any:
        h, c = self.inner(x * statics, state)
        return h * self.scale + index[:, None], (h, c)


def counting() -> Any:
    state = torch.zeros(1, 4), torch.zeros(1, 4)
    example = torch.zeros(1, 3), state
    return stepnet.torch.Recurrence(Counting(), example, statics=torch.zeros(1, 3), reverse=True)


def export(module: Any, given: tuple[Any, ...], axes: tuple[Any, ...], path: Path) -> list[str]:
    """Writes a module; returns the operators of the file."""
    program: Any = torch.onnx.export(module, given, path, dynamo=True, verbose=False, dynamic_shapes=axes)
    assert program is not None
    return [node.op_type for node in onnx.load(path).graph.node]


def check(module: Any, path: Path, *calls: tuple[Any, ...]) -> None:
    """Compares what onnxruntime computes by a file with what the module does."""
    session: Any = InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    for given in calls:
        arrays = [one.numpy() for one in tree_leaves(given)]
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        right = tree_leaves(module(*given))
        pairs = zip(found, right, strict=True)
        for place, (one, other) in enumerate(pairs):
            assert_same({str(place): torch.from_numpy(one)}, {str(place): other})


@pytest.mark.long(every=3)
@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_operators_of_onnx(case: str, with_states: bool, tmp_path: Path):
    kind, options = LAYERS[case]
    torch.manual_seed(0)
    theirs, module = (getattr(room, kind)(3, 4, **options) for room in (torch.nn, stepnet.torch))
    theirs.load_state_dict(module.state_dict())
    rows = 0 if module.batch_first else 1
    time, batch = torch.export.Dim("time"), torch.export.Dim("batch")

    def given(steps: int, count: int) -> tuple[Any, ...]:
        x = torch.randn((count, steps, 3) if module.batch_first else (steps, count, 3))
        if not with_states:
            return (x,)
        recurrences = module.num_layers * (2 if module.bidirectional else 1)
        h = torch.randn(recurrences, count, module.proj_size or 4)
        return x, (h, torch.randn(recurrences, count, 4)) if kind == "LSTM" else h

    states = ({1: batch}, {1: batch}) if kind == "LSTM" else {1: batch}
    axes = {rows: batch, 1 - rows: time}, *([states] if with_states else [])
    path = tmp_path / "layer.onnx"
    operators = export(module, given(5, 2), axes, path)
    expected = {"projected": "Scan"}.get(case, kind)
    count = {"LSTM": 2, "projected": 2}.get(case, 1)  # layers; directions
    assert [one for one in operators if one in ("GRU", "LSTM", "RNN", "Scan", "Loop")] == [expected] * count
    check(theirs, path, given(5, 2), given(1, 3), given(17, 1))


def test_cells_are_operators_of_onnx(tmp_path: Path):
    cell, batch = stepnet.torch.LSTMCell(3, 4), torch.export.Dim("batch")
    given = torch.randn(2, 3), (torch.randn(2, 4), torch.randn(2, 4))
    axes = {0: batch}, ({0: batch}, {0: batch})
    assert "LSTM" in export(cell, given, axes, tmp_path / "cell.onnx")
    check(cell, tmp_path / "cell.onnx", given, (given[0][:1], (given[1][0][:1], given[1][1][:1])))


def test_a_recurrence_is_a_scan_of_onnx(tmp_path: Path):
    module, path = counting(), tmp_path / "recurrence.onnx"
    time, batch = torch.export.Dim("time"), torch.export.Dim("batch")

    def given(steps: int, count: int) -> tuple[Any, ...]:
        state = torch.randn(count, 4), torch.randn(count, 4)
        return torch.randn(steps, count, 3), state, torch.randn(count, 3)

    axes = {0: time, 1: batch}, ({0: batch}, {0: batch}), {0: batch}, {}
    assert export(module, given(5, 2), axes[:3], path).count("Scan") == 1
    check(module, path, given(5, 2), given(1, 3), given(17, 1))


class Words(torch.nn.Module):
    """A cell that reads words, and has memories of integers and of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = torch.nn.Embedding(11, 3), torch.nn.GRUCell(3, 4)

    def forward(self, word: Any, memory: dict[str, Any]) -> Any:
        h = self.inner(self.table(word), memory["h"])
        count, ended = memory["count"] * 3 + word, memory["ended"] | (word == 0)
        h = torch.where(ended[:, None], memory["h"], h)
        return (h, count), {"h": h, "count": count, "ended": ended}


def words() -> Any:
    torch.manual_seed(0)
    memory = {
        "h": torch.zeros(1, 4),
        "count": torch.zeros(1, dtype=torch.int64),
        "ended": torch.zeros(1, dtype=torch.bool),
    }
    return stepnet.torch.Recurrence(Words(), (torch.zeros(1, dtype=torch.int64), memory))


def some_words(steps: int, count: int) -> Any:
    return torch.randint(0, 11, (steps, count), generator=torch.Generator().manual_seed(steps))


def test_memories_of_any_dtype_are_in_a_scan_of_onnx(tmp_path: Path):
    axes = ({0: torch.export.Dim("time"), 1: torch.export.Dim("batch")},)
    module = words()
    assert export(module, (some_words(5, 2),), axes, tmp_path / "words.onnx").count("Scan") == 1
    check(module, tmp_path / "words.onnx", (some_words(5, 2),), (some_words(41, 3),))


def test_memories_of_any_dtype_are_trained_without_the_operator():
    module, x = words(), some_words(5, 2)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("time")},))
    plain = program.run_decompositions(stepnet.torch.decompositions()).module()
    x = some_words(50, 2)

    def results_and_gradients(each: Any) -> dict[str, Any]:
        results = tree_leaves(each(x))
        gradients = torch.autograd.grad(results[0].square().sum(), list(each.parameters()))
        return {str(place): tensor for place, tensor in enumerate([*results, *gradients])}

    assert_same(results_and_gradients(plain), results_and_gradients(module))


def test_half_precision_runs_without_the_operator():
    module, x = ready.MinimalGatedUnit(3, 4).bfloat16(), torch.randn(5, 2, 3).bfloat16()
    program = torch.export.export(module, (x,))
    found = tree_leaves(program.run_decompositions(stepnet.torch.decompositions()).module()(x))
    for one, other in zip(found, tree_leaves(module(x)), strict=True):
        torch.testing.assert_close(one, other, atol=5 * torch.finfo(x.dtype).eps, rtol=0)


def test_the_mode_of_a_recurrence_is_that_of_the_export(tmp_path: Path):
    module, x = ready.ZoneoutGRU(3, 4, zoneout=0.25).eval(), torch.randn(5, 2, 3)
    export(module, (x,), ({0: torch.export.Dim("time")},), tmp_path / "eval.onnx")
    assert not module.training
    check(module, tmp_path / "eval.onnx", (x,), (torch.randn(9, 2, 3),))


class Packing(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(packed(x, None))[1]


def test_packed_sequences_are_refused():
    model = Packing(stepnet.torch.GRU(3, 4))
    with pytest.raises(Exception, match="") as raised:  # noqa: PT011 - of torch.onnx, with stepnet's as its cause
        torch.onnx.export(model, (torch.randn(4, 3, 3),), dynamo=True, verbose=False)
    assert "a PackedSequence or a nested tensor cannot be exported" in causes(raised.value)


def test_a_scan_is_refused():
    from tests.torch.torch_tools import scan

    with pytest.raises(Exception, match="") as raised:  # noqa: PT011
        torch.onnx.export(scan(), (torch.randn(4, 3, 3),), dynamo=True, verbose=False)
    assert "write the step with PyTorch, as a stepnet.torch.Recurrence" in causes(raised.value)


def test_a_recurrence_needs_dynamo(tmp_path: Path):
    with pytest.raises(InputError, match=r"give dynamo=True, which makes it a Scan of ONNX"):
        torch.onnx.export(
            ready.MinimalGatedUnit(3, 4), (torch.randn(4, 3, 3),), tmp_path / "m.onnx", dynamo=False
        )
