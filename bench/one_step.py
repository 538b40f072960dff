"""Functions that benchmarks of single steps share: a cell in the form of each runtime, and its calls.

parameters of stepnet's layout  ->  a node of ONNX        ->  a session, and two bindings that alternate ->
PyTorch's cell ->  a recurrence from symbols to scores
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

import stepnet as sn
from stepnet import cells

Array = np.ndarray
STATES = {"gru": ("h",), "lstm": ("h", "c")}
"""The names of the arrays of each cell's state, the output first."""


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of `theirs` over `ours`, where both are seconds of the same rounds."""
    return median(other / own for own, other in zip(ours, theirs, strict=True))


def in_layout(cell: str, params: Mapping[str, Array], framework: str) -> dict[str, Array]:
    """Converts a cell's parameters from stepnet's layout to that of a framework."""
    return dict(sn.convert(params, f"stepnet.{cell}", f"{framework}.{cell}").arrays)


def symbols(cell: str, params: Mapping[str, Any], hidden: int) -> sn.RNN:
    """Returns a recurrence from symbols to scores of the next: a cell between embedding and dense layer.

    params: "embedding" and "dense", and the cell's own under "cell".
    """
    step_of = cells.CELLS[cell].step

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        """Computes one step: embeds the symbols, runs the cell, and returns the scores and the memory."""
        h, memory = step_of(p["embedding"][x], memory, p["cell"])
        return h @ p["dense"], memory

    names = STATES[cell]
    memory: Any = hidden if len(names) == 1 else dict.fromkeys(names, hidden)
    return sn.RNN(step, dict(params), memory=memory, inputs=sn.Spec((), np.int64))


# ---- onnxruntime -------------------------------------------------------------------------------------------


def node(cell: str, x: str, hidden: int) -> onnx.NodeProto:
    """Makes the ONNX operator for one step of x [1, rows, inputs], from each state to `new_` states."""
    states = STATES[cell]
    options: dict[str, Any] = {"linear_before_reset": 1} if cell == "gru" else {}
    names = [x, "W", "R", "B", "", *states]
    news = ["", *(f"new_{name}" for name in states)]
    return onnx.helper.make_node(cell.upper(), names, news, hidden_size=hidden, **options)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    results: Sequence[Any],
    arrays: Mapping[str, Array],
) -> bytes:
    """Makes the bytes of an ONNX model of nodes, with the arrays that they read."""
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "step", inputs, results, stored)
    opset = onnx.helper.make_opsetid("", 14)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def session(made: bytes, count: int) -> Any:
    """Makes an onnxruntime session of a model's bytes, with `count` threads within an operator."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = count, 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])


def bindings(
    made: Any, memory: Sequence[dict[str, Array]], fixed: Mapping[str, Array]
) -> list[Callable[[], None]]:
    """Returns two calls that alternate on memory that is bound once: the first reads `memory[0]` and writes
    `memory[1]` under `new_` names, and the second the other way round. Both read the arrays in `fixed`.
    """
    share = onnxruntime.OrtValue.ortvalue_from_numpy

    def bound(old: dict[str, Array], new: dict[str, Array]) -> Callable[[], None]:
        """Returns a call that reads the arrays `old` and writes `new`."""
        binding = made.io_binding()
        for name, array in {**fixed, **old}.items():
            binding.bind_ortvalue_input(name, share(array))
        for name, array in new.items():
            binding.bind_ortvalue_output(f"new_{name}", share(array))
        return partial(made.run_with_iobinding, binding)

    return [bound(*memory), bound(*reversed(memory))]


# ---- PyTorch -----------------------------------------------------------------------------------------------


def torch_cell(cell: str, params: Mapping[str, Array], inputs: int, hidden: int) -> Any:
    """Makes PyTorch's cell with parameters in stepnet's layout."""
    made = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[cell](inputs, hidden)
    weights = {name.removesuffix("_l0"): array for name, array in in_layout(cell, params, "torch").items()}
    made.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return made
