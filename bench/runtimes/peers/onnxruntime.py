"""onnxruntime: a model of GRU or LSTM operators, made with the onnx package, its weights stored in it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported, streamed

# The operator's order of gates, as places in ours: zrn of rzn, iofg of ifgo; and its states.
GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
STATES = {"gru": ("h",), "lstm": ("h", "c")}
OPERATORS, FORMAT = 14, 8


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Imports onnxruntime and the package that makes its model, and returns their versions."""
    remedy = "pip install stepnet[onnx]"
    runtime, onnx = imported("onnxruntime", remedy), imported("onnx", remedy)
    return {"onnxruntime": runtime.__version__, "onnx": onnx.__version__}


def session(work: Work, stream: bool) -> Any:
    """Makes an onnxruntime session for the case's ONNX model; stream: a model of one step."""
    work.needs(GATES, "ONNX")
    if work.dtype != "float32":
        raise Refused("onnxruntime has no float64 recurrence")
    runtime = imported("onnxruntime", "")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = work.threads, 1
    return runtime.InferenceSession(model(work, stream), settings, providers=["CPUExecutionProvider"])


def prepare(work: Work) -> Prepared:
    """Makes an onnxruntime session for the case, without copies: returns the timed call, and conversion."""
    if work.options.get("bound"):
        raise Refused("its inputs are bound as they are without this form")
    made, runtime = session(work, stream=False), imported("onnxruntime", "")
    inputs = {"X": runtime.OrtValue.ortvalue_from_numpy(work.padded(time_major=True))}
    if work.ragged:
        inputs["lengths"] = runtime.OrtValue.ortvalue_from_numpy(work.lengths.astype(np.int32))

    def outputs(result: list[Any]) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return work.end_to_end(result[0].numpy(), time_major=True)

    return Prepared(lambda: made.run_with_ort_values(["Y"], inputs), outputs)


def prepare_stream(work: Work) -> Prepared:
    """Makes an onnxruntime session of one step, with bound memory or not: returns a stream's timed run."""
    if not work.is_one:
        raise Refused("a stream is of one layer")
    made = session(work, stream=True)
    begin = bound_steps if work.options.get("bound") else fed_steps
    return streamed(work, lambda: begin(work, made), lambda x: np.ascontiguousarray(x[None]))


def zeros(work: Work) -> dict[str, Array]:
    """Returns the cell's memories before the first step, by name: zeros [1, batch, hidden]."""
    return {name: np.zeros((1, work.batch, work.hidden), np.float32) for name in STATES[work.cell]}


def fed_steps(work: Work, made: Any) -> Callable[[Array], Array]:
    """Returns a step by `run`, in which each new state is fed to the next step."""
    run, names = made.run, [f"new_{name}" for name in STATES[work.cell]]
    fed: dict[str, Array] = zeros(work)

    def gru(x: Array) -> Array:
        """Runs a step of a GRU by onnxruntime, to be timed; returns the new state."""
        fed["X"] = x
        (fed["h"],) = run(names, fed)
        return fed["h"]

    def lstm(x: Array) -> Array:
        """Runs a step of an LSTM by onnxruntime, to be timed; returns the new h."""
        fed["X"] = x
        fed["h"], fed["c"] = run(names, fed)
        return fed["h"]

    return gru if work.cell == "gru" else lstm


def bound_steps(work: Work, made: Any) -> Callable[[Array], Array]:
    """Returns a step on bound memory: of two bindings, each one's new state is the other's old one."""
    share = imported("onnxruntime", "").OrtValue.ortvalue_from_numpy
    place = np.zeros((1, work.batch, work.inputs), np.float32)
    memory = [zeros(work), zeros(work)]

    def bound(old: dict[str, Array], new: dict[str, Array]) -> Any:
        """Returns a binding that reads the input and the states `old`, and writes the states `new`."""
        binding = made.io_binding()
        binding.bind_ortvalue_input("X", share(place))
        for name in STATES[work.cell]:
            binding.bind_ortvalue_input(name, share(old[name]))
            binding.bind_ortvalue_output(f"new_{name}", share(new[name]))
        return binding

    run, bindings = made.run_with_iobinding, [bound(*memory), bound(*reversed(memory))]
    results, turn = [memory[1]["h"], memory[0]["h"]], 1

    def step(x: Array) -> Array:
        """Copies the input to bound memory, and runs the next binding, to be timed; returns the output."""
        nonlocal turn
        turn = 1 - turn
        place[...] = x
        run(bindings[turn])
        return results[turn]

    return step


def ordered(array: Array, order: tuple[int, ...]) -> Array:
    """Reorders the gates in an array [..., gates hidden]; order: the old place of each."""
    return np.concatenate([np.split(array, len(order), axis=-1)[gate] for gate in order], axis=-1)


def stored(work: Work, both: list[dict[str, Array]]) -> dict[str, Array]:
    """Returns the weights of one layer in the operator's layout: W, R and B, [directions, ...].

    both: the weights of each direction.
    """
    order = GATES[work.cell]

    def bias(p: dict[str, Array]) -> Array:
        """Returns both biases of a direction, in the operator's order of gates, in one vector."""
        return np.concatenate([ordered(b, order) for b in (p["b"], p.get("d", np.zeros_like(p["b"])))])

    return {
        "W": np.stack([ordered(p["W"], order).T for p in both]),
        "R": np.stack([ordered(p["R"], order).T for p in both]),
        "B": np.stack([bias(p) for p in both]),
    }


def model(work: Work, stream: bool) -> bytes:
    """Makes the bytes of the ONNX model: X [time, batch, inputs], lengths [batch] if ragged -> Y [time,
    batch, outputs]. For a stream: X of one step, and the old state -> the new state, the output being part of
    it.
    """
    onnx = imported("onnx", "")
    helper, number = onnx.helper, onnx.TensorProto
    directions, layers = work.case.get("directions", 1), work.recurrences
    old = list(STATES[work.cell]) if stream else []
    lengths = ["lengths"] if work.ragged and not stream else []
    nodes: list[Any] = []
    weights = [onnx.numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat")]
    x = "X"
    for place, both in enumerate(layers):
        arrays = {f"{name}{place}": array for name, array in stored(work, both).items()}
        weights += [onnx.numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in arrays.items()]
        nodes.append(
            helper.make_node(
                work.cell.upper(),
                [x, *arrays, lengths[0] if lengths else "", *old],
                ["", *(f"new_{name}" for name in old)] if stream else [f"Y{place}"],
                hidden_size=work.hidden,
                direction="bidirectional" if directions > 1 else "forward",
                **({"linear_before_reset": 1} if work.cell == "gru" else {}),
            )
        )
        if not stream:  # [time, directions, batch, hidden] -> [time, batch, directions hidden]
            x = "Y" if place + 1 == len(layers) else f"X{place + 1}"
            nodes.append(helper.make_node("Transpose", [f"Y{place}"], [f"T{place}"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"T{place}", "flat"], [x]))

    def value(name: str, *shape: int | str) -> Any:
        """Describes a float32 input or output of the ONNX model."""
        return helper.make_tensor_value_info(name, number.FLOAT, list(shape))

    given = [value("X", 1 if stream else "time", work.batch, work.inputs)]
    given += [helper.make_tensor_value_info(name, number.INT32, ["batch"]) for name in lengths]
    given += [value(name, 1, work.batch, work.hidden) for name in old]
    made = [value(f"new_{name}", 1, work.batch, work.hidden) for name in old]
    made = made or [value("Y", "time", work.batch, work.hidden * directions)]
    graph = helper.make_graph(nodes, work.cell, given, made, weights)
    opset = helper.make_opsetid("", OPERATORS)
    return helper.make_model(graph, opset_imports=[opset], ir_version=FORMAT).SerializeToString()
