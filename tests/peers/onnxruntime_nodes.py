"""The results of onnxruntime for the operators RNN, GRU and LSTM."""

import onnxruntime
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def from_node(op, both, semantics=None, peepholes=False, **attributes):
    ways, gates, x = 2 if both else 1, GATES[op], random(ROWS, STEPS, INPUTS)
    arrays = {
        "W": random(ways, gates * HIDDEN, INPUTS),
        "R": random(ways, gates * HIDDEN, HIDDEN),
        "B": random(ways, 2 * gates * HIDDEN),
    }
    names = ["x", "W", "R", "B"]
    if peepholes:
        arrays["P"] = random(ways, 3 * HIDDEN)
        names += ["", "", "", "P"]
    direction = "bidirectional" if both else "forward"
    node = helper.make_node(op, names, ["y"], hidden_size=HIDDEN, direction=direction, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, ROWS, INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.transpose(1, 0, 2)})  # [steps, directions, rows, hidden]
    outputs = found.transpose(2, 0, 1, 3).reshape(ROWS, STEPS, ways * HIDDEN)
    return case("onnx." + op.lower(), arrays, x, outputs, semantics)


if __name__ == "__main__":
    relu = ["Relu"]
    save(
        [
            from_node("RNN", False),
            from_node("RNN", True),
            from_node("RNN", False, {"candidate_activation": "relu"}, activations=relu),
            from_node("GRU", False, {"reset": "after"}, linear_before_reset=1),
            from_node("GRU", True, {"reset": "before"}, linear_before_reset=0),
            from_node("LSTM", False),
            from_node("LSTM", True, peepholes=True),
            from_node(
                "LSTM",
                False,
                {"gate_activation": "hard_sigmoid_fifth"},
                activations=["HardSigmoid", "Tanh", "Tanh"],
                activation_alpha=[0.2],
                activation_beta=[0.5],
            ),
            from_node("GRU", False, {"reset": "after", "clip": 0.5}, linear_before_reset=1, clip=0.5),
            from_node("LSTM", False, {"clip": 0.5}, clip=0.5),
        ],
        {"onnxruntime": onnxruntime.__version__},
    )
