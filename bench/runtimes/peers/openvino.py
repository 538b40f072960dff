"""OpenVINO: a model of one GRUSequence or LSTMSequence."""

from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported

# The operator's order of gates, as places in ours: zrn of rzn, figo of ifgo.
GATES = {"gru": (1, 0, 2), "lstm": (1, 0, 2, 3)}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version."""
    return {"openvino": imported("openvino", "make bench-peers").__version__}


def prepare(work: Work) -> Prepared:
    """A compiled model, batch before time. Not told to use float32, it takes bfloat16 where there is such."""
    if work.cell not in GATES:
        raise Refused(f"OpenVINO has no operator for a {work.cell} cell")
    if work.dtype != "float32":
        raise Refused("OpenVINO's recurrences are float32")
    openvino = imported("openvino", "make bench-peers")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": work.threads,
    }
    compiled = openvino.Core().compile_model(model(work), "CPU", settings)
    request = compiled.create_infer_request()
    X = work.padded(time_major=False)

    def run() -> Any:
        return request.infer({0: X}, share_inputs=True, share_outputs=True)

    def outputs(result: Any) -> Array:
        return work.end_to_end(np.array(result[0])[:, 0], time_major=False)

    return Prepared(run, outputs)


def model(work: Work) -> Any:
    """The model: X [batch, time, inputs] -> Y [batch, 1, time, hidden]. Shapes and lengths are constants."""
    openvino = imported("openvino", "make bench-peers")
    operators = imported("openvino.opset13", "make bench-peers")
    order = GATES[work.cell]

    def ordered(array: Array) -> Array:
        return np.concatenate([np.split(array, len(order), axis=-1)[gate] for gate in order], axis=-1)

    p = work.weights
    b, d = p["b"], p.get("d", np.zeros_like(p["b"]))
    if work.cell == "gru":  # the candidate's two biases stay apart, the gates' are added
        H = work.hidden
        bias = np.concatenate([ordered(np.concatenate([(b + d)[: 2 * H], b[2 * H :]])), d[2 * H :]])
    else:
        bias = ordered(b + d)
    lengths = work.arrays["lengths"]
    X = operators.parameter([len(lengths), int(lengths.max()), work.inputs], np.float32, name="X")
    start = operators.constant(np.zeros((len(lengths), 1, work.hidden), np.float32))
    constants = [
        operators.constant(np.ascontiguousarray(array))
        for array in (lengths.astype(np.int32), ordered(p["W"]).T[None], ordered(p["R"]).T[None], bias[None])
    ]
    if work.cell == "gru":
        node = operators.gru_sequence(
            X, start, *constants, hidden_size=work.hidden, direction="forward", linear_before_reset=True
        )
    else:
        node = operators.lstm_sequence(X, start, start, *constants, work.hidden, "forward")
    return openvino.Model([node.output(0)], [X], work.cell)
