"""OpenVINO: a model of GRUSequence or LSTMSequence operators."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work, imported, streamed

# The operator's order of gates, as places in ours: zrn of rzn, figo of ifgo; and its states.
GATES = {"gru": (1, 0, 2), "lstm": (1, 0, 2, 3)}
STATES = {"gru": 1, "lstm": 2}


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Imports OpenVINO, and returns its version."""
    return {"openvino": imported("openvino", "make bench-peers").__version__}


def request_of(work: Work, stream: bool) -> Any:
    """Compiles the model of the case; returns a request to run it. Without a hint of float32, it takes
    bfloat16 if the processor has it.
    """
    work.needs(GATES, "OpenVINO")
    if work.dtype != "float32":
        raise Refused("OpenVINO's recurrences are float32")
    openvino = imported("openvino", "make bench-peers")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": work.threads,
    }
    return openvino.Core().compile_model(model(work, stream), "CPU", settings).create_infer_request()


def prepare(work: Work) -> Prepared:
    """Compiles a model for the case, batch before time: returns the timed call and its conversion."""
    request, X = request_of(work, stream=False), work.padded(time_major=False)

    def run() -> Any:
        """Runs the compiled model on the padded inputs, to be timed."""
        return request.infer({0: X}, share_inputs=True, share_outputs=True)

    def outputs(result: Any) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return work.end_to_end(np.array(result[0]), time_major=False)

    return Prepared(run, outputs)


def prepare_stream(work: Work) -> Prepared:
    """Compiles a model of one step, which is fed its own states: returns a stream's timed run."""
    if not work.is_one:
        raise Refused("a stream is of one layer")
    request, count = request_of(work, stream=True), STATES[work.cell]

    def begin() -> Callable[[Array], Array]:
        """Starts a stream from zeros; returns the function of its step."""
        states = [np.zeros((work.batch, 1, work.hidden), np.float32) for _ in range(count)]

        def step(x: Array) -> Array:
            """Runs one step of the stream, to be timed, and keeps the states."""
            nonlocal states
            given = dict(enumerate([x, *states]))
            found = request.infer(given, share_inputs=True, share_outputs=False)
            states = [found[place] for place in range(count)]
            return states[0]

        return step

    return streamed(work, begin, lambda x: np.ascontiguousarray(x[:, None]))


def ordered(array: Array, order: tuple[int, ...]) -> Array:
    """Reorders the gates in an array [..., gates hidden]; order: the old place of each."""
    return np.concatenate([np.split(array, len(order), axis=-1)[gate] for gate in order], axis=-1)


def weights_of(work: Work, p: dict[str, Array]) -> list[Array]:
    """Returns the weights p of one direction in the operator's layout: W, R and the bias."""
    order, H = GATES[work.cell], work.hidden
    b, d = p["b"], p.get("d", np.zeros_like(p["b"]))
    if work.cell == "gru":  # the candidate's two biases stay apart, the gates' are added
        gates = np.concatenate([(b + d)[: 2 * H], b[2 * H :]])
        bias = np.concatenate([ordered(gates, order), d[2 * H :]])
    else:
        bias = ordered(b + d, order)
    return [ordered(p["W"], order).T, ordered(p["R"], order).T, bias]


def model(work: Work, stream: bool) -> Any:
    """Makes the model: X [batch, time, inputs] -> Y [batch, time, outputs]. Shapes and lengths are constants.
    For a stream: X of one step, and the old states -> the new ones.
    """
    openvino = imported("openvino", "make bench-peers")
    operators = imported("openvino.opset13", "make bench-peers")
    directions = work.case.get("directions", 1)
    direction = "bidirectional" if directions > 1 else "forward"
    lengths = np.ones(work.batch, np.int32) if stream else work.lengths.astype(np.int32)
    shape = [work.batch, directions, work.hidden]
    X = operators.parameter([work.batch, int(lengths.max()), work.inputs], np.float32, name="X")
    count = STATES[work.cell]
    states = (
        [operators.parameter(shape, np.float32, name=f"state{place}") for place in range(count)]
        if stream
        else [operators.constant(np.zeros(shape, np.float32))] * count
    )
    x, made = X, []
    for both in work.recurrences:
        arrays = (np.stack(each) for each in zip(*(weights_of(work, p) for p in both), strict=True))
        constants = [operators.constant(np.ascontiguousarray(array)) for array in (lengths, *arrays)]
        if work.cell == "gru":
            node = operators.gru_sequence(
                x, *states, *constants, hidden_size=work.hidden, direction=direction, linear_before_reset=True
            )
        else:
            node = operators.lstm_sequence(x, *states, *constants, work.hidden, direction)
        made = [node.output(place + 1) for place in range(count)]
        # [batch, directions, time, hidden] -> [batch, time, directions hidden]
        turned = operators.transpose(node.output(0), operators.constant(np.array([0, 2, 1, 3], np.int64)))
        x = operators.reshape(turned, operators.constant(np.array([0, 0, -1], np.int64)), special_zero=True)
    if stream:
        return openvino.Model(made, [X, *states], work.cell)
    return openvino.Model([x.output(0)], [X], work.cell)
