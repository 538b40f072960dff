"""onnxruntime: a model of one GRU or LSTM operator, made with the onnx package, its weights stored in it."""

from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported

# The operator's order of gates, as places in ours: zrn of rzn, iofg of ifgo.
GATES = {"gru": ("GRU", (1, 0, 2)), "lstm": ("LSTM", (0, 3, 1, 2))}
OPERATORS, FORMAT = 14, 8


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The versions of onnxruntime and of the package that makes its model."""
    remedy = "pip install stepnet[onnx]"
    runtime, onnx = imported("onnxruntime", remedy), imported("onnx", remedy)
    return {"onnxruntime": runtime.__version__, "onnx": onnx.__version__}


def prepare(work: Work) -> Prepared:
    """A session over the model, time before batch; inputs and outputs are not copied."""
    if work.cell not in GATES:
        raise Refused(f"ONNX has no operator for a {work.cell} cell")
    if work.dtype != "float32":
        raise Refused("onnxruntime has no float64 recurrence")
    runtime = imported("onnxruntime", "")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = work.threads, 1
    session = runtime.InferenceSession(model(work), settings, providers=["CPUExecutionProvider"])
    inputs = {"X": runtime.OrtValue.ortvalue_from_numpy(work.padded(time_major=True))}
    if work.ragged:
        lengths = work.arrays["lengths"].astype(np.int32)
        inputs["lengths"] = runtime.OrtValue.ortvalue_from_numpy(lengths)

    def outputs(result: list[Any]) -> Array:
        return work.end_to_end(result[0].numpy()[:, 0], time_major=True)

    return Prepared(lambda: session.run_with_ort_values(["Y"], inputs), outputs)


def model(work: Work) -> bytes:
    """The model: X [time, batch, inputs], lengths [batch] where ragged -> Y [time, 1, batch, hidden]."""
    onnx = imported("onnx", "")
    helper, number = onnx.helper, onnx.TensorProto
    operator, order = GATES[work.cell]

    def ordered(array: Array) -> Array:
        return np.concatenate([np.split(array, len(order), axis=-1)[gate] for gate in order], axis=-1)

    p = work.weights
    b, d = ordered(p["b"]), ordered(p.get("d", np.zeros_like(p["b"])))
    stored = {"W": ordered(p["W"]).T[None], "R": ordered(p["R"]).T[None], "B": np.concatenate([b, d])[None]}
    lengths = [helper.make_tensor_value_info("lengths", number.INT32, ["batch"])] if work.ragged else []
    node = helper.make_node(
        operator,
        ["X", "W", "R", "B", *(value.name for value in lengths)],
        ["Y"],
        hidden_size=work.hidden,
        **({"linear_before_reset": 1} if work.cell == "gru" else {}),
    )
    X = helper.make_tensor_value_info("X", number.FLOAT, ["time", "batch", work.inputs])
    Y = helper.make_tensor_value_info("Y", number.FLOAT, ["time", 1, "batch", work.hidden])
    weights = [onnx.numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in stored.items()]
    graph = helper.make_graph([node], work.cell, [X, *lengths], [Y], weights)
    opset = helper.make_opsetid("", OPERATORS)
    return helper.make_model(graph, opset_imports=[opset], ir_version=FORMAT).SerializeToString()
