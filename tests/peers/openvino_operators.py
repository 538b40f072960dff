"""The results of OpenVINO for its sequence operators."""

import numpy as np
import openvino
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from openvino import opset13 as opset

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def from_operator(layout, both, biases, **options):
    cell = layout.partition(".")[2].partition("_")[0]
    ways, gates, x = 2 if both else 1, GATES[cell], random(ROWS, STEPS, INPUTS)
    arrays = {
        "W": random(ways, gates * HIDDEN, INPUTS),
        "R": random(ways, gates * HIDDEN, HIDDEN),
        "B": random(ways, biases * HIDDEN),
    }
    given = opset.parameter([ROWS, STEPS, INPUTS], np.float32)
    zeros = opset.constant(np.zeros((ROWS, ways, HIDDEN), "float32"))
    states = [zeros, zeros] if cell == "lstm" else [zeros]
    lengths = opset.constant(np.full(ROWS, STEPS, "int32"))
    build = {"rnn": opset.rnn_sequence, "gru": opset.gru_sequence, "lstm": opset.lstm_sequence}[cell]
    weights = [opset.constant(arrays[name]) for name in "WRB"]
    direction = "bidirectional" if both else "forward"
    node = build(given, *states, lengths, *weights, HIDDEN, direction, **options)
    model = openvino.Model([node.output(0)], [given])
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    found = openvino.compile_model(model, "CPU", hints)([x])[0]  # [rows, directions, steps, hidden]
    outputs = found.transpose(0, 2, 1, 3).reshape(ROWS, STEPS, ways * HIDDEN)
    return case(layout, arrays, x, outputs)


if __name__ == "__main__":
    save(
        [
            from_operator("openvino.rnn", False, 1),
            from_operator("openvino.gru", False, 4, linear_before_reset=True),
            from_operator("openvino.gru", True, 4, linear_before_reset=True),
            from_operator("openvino.gru_reset_before", False, 3),
            from_operator("openvino.lstm", False, 4),
            from_operator("openvino.lstm", True, 4),
        ],
        {"openvino": openvino.__version__},
    )
