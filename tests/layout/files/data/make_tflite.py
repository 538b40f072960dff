"""Makes the TensorFlow Lite models of this folder, and what TensorFlow's interpreter makes of an input.

Needs stepnet, and TensorFlow 2.16 or later with tf_keras, which the tests do not: python make_tflite.py
"""

import os
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from stepnet.layout.files.tflite import file as tflite
from stepnet.layout.files.tflite.write import write

FOLDER = Path(__file__).parent
BATCH, TIME, FEATURES, CELLS, OUTPUTS = 2, 5, 3, 4, 2
LSTM = {
    **{f"input_to_{gate}_weights": (CELLS, FEATURES) for gate in ("input", "forget", "cell", "output")},
    **{f"recurrent_to_{gate}_weights": (CELLS, CELLS) for gate in ("input", "forget", "cell", "output")},
    **{f"cell_to_{gate}_weights": (CELLS,) for gate in ("input", "forget", "output")},
    **{f"{gate}_gate_bias": (CELLS,) for gate in ("input", "forget", "cell", "output")},
    "projection_weights": (OUTPUTS, CELLS),
    "projection_bias": (OUTPUTS,),
}
NORMS = {f"{gate}_layer_norm_coefficients": (CELLS,) for gate in ("input", "forget", "cell", "output")}
RNN = {"input_weights": (CELLS, FEATURES), "recurrent_weights": (CELLS, CELLS), "bias": (CELLS,)}
PROJECTED = ("projection_weights", "projection_bias")
PEEPHOLES = tuple(name for name in LSTM if name.startswith("cell_to"))
COUPLED = ("input_to_input_weights", "recurrent_to_input_weights", "cell_to_input_weights", "input_gate_bias")


def composed(
    operator: int, options: Any, inputs: list[Any], shape: tuple[int, ...], outputs: int = 1
) -> bytes:
    """A model of one operator. Inputs: None for one left out, "x", the shape of a state, or numbers."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.subgraphs = 3, [schema.BufferT()], [graph]
    graph.tensors, graph.inputs, graph.outputs = [], [0], [1]
    operation, code = schema.OperatorT(), schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    code.version, model.operatorCodes, graph.operators = 2, [code], [operation]

    def tensor(name: str, size: Any, array: Any = None, state: bool = False) -> int:
        made = schema.TensorT()
        made.name, made.shape, made.isVariable, made.buffer = name, list(size), state, 0
        if array is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(array.astype(np.float32).tobytes(), np.uint8)
            made.buffer = len(model.buffers)
            model.buffers.append(buffer)
        graph.tensors.append(made)
        return len(graph.tensors) - 1

    tensor("x", shape)
    operation.outputs = [tensor(f"y{index}", ()) for index in range(outputs)]
    operation.inputs = []
    for place, given in enumerate(inputs):
        if given is None:
            operation.inputs.append(-1)
        elif isinstance(given, str):
            operation.inputs.append(0)
        elif isinstance(given, tuple):
            operation.inputs.append(tensor(f"state{place}", given, state=True))
        else:
            operation.inputs.append(tensor(f"weight{place}", given.shape, given))
    operation.builtinOptions = options
    operation.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def drawn(shapes: dict[str, tuple[int, ...]], without: tuple[str, ...] = (), seed: int = 0) -> list[Any]:
    """Numbers for all inputs of those shapes."""
    rng = np.random.default_rng(seed)
    return [None if name in without else 0.8 * rng.standard_normal(shape) for name, shape in shapes.items()]


def options(kind: str, **values: Any) -> Any:
    made = getattr(schema, f"{kind}OptionsT")()
    made.fusedActivationFunction = schema.ActivationFunctionType.TANH
    for name, value in values.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def compositions() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Models of one operator each, by the name of their files, with the shapes of their inputs."""
    operators, x = schema.BuiltinOperator, (BATCH, TIME, FEATURES)
    by_time, step = (TIME, BATCH, FEATURES), (BATCH, FEATURES)
    cells, outputs = (BATCH, CELLS), (BATCH, OUTPUTS)
    small = {
        name: (CELLS, OUTPUTS) if name.startswith("recurrent") else shape for name, shape in LSTM.items()
    }
    relu = schema.ActivationFunctionType.RELU6
    return {
        "sequence_lstm": (
            composed(
                operators.UNIDIRECTIONAL_SEQUENCE_LSTM,
                options("UnidirectionalSequenceLSTM", cellClip=0.9, projClip=0.7, timeMajor=True),
                ["x", *drawn(small), outputs, cells, *drawn(NORMS, seed=2)],
                by_time,
            ),
            by_time,
        ),
        "coupled_lstm": (
            composed(
                operators.UNIDIRECTIONAL_SEQUENCE_LSTM,
                options("UnidirectionalSequenceLSTM"),
                ["x", *drawn(LSTM, (*COUPLED, *PROJECTED)), cells, cells, *[None] * 4],
                x,
            ),
            x,
        ),
        "step_lstm": (
            composed(
                operators.LSTM,
                options("LSTM", cellClip=0.5),
                ["x", *drawn(LSTM, (*PEEPHOLES, *PROJECTED)), cells, cells],
                step,
            ),
            step,
        ),
        "basic_lstm": (
            composed(
                operators.LSTM,
                options("LSTM", kernelType=schema.LSTMKernelType.BASIC),
                [
                    "x",
                    cells,
                    *drawn({"weights": (4 * CELLS, FEATURES + CELLS), "biases": (4 * CELLS,)}),
                    cells,
                ],
                step,
                outputs=4,
            ),
            step,
        ),
        "both_lstm": (
            composed(
                operators.BIDIRECTIONAL_SEQUENCE_LSTM,
                options("BidirectionalSequenceLSTM", mergeOutputs=True, timeMajor=True, cellClip=1.5),
                [
                    "x",
                    *drawn(small),
                    *drawn(small, (*PEEPHOLES, "projection_bias"), seed=1),
                    outputs,
                    cells,
                    outputs,
                    cells,
                    *[None] * 9,
                ],
                by_time,
            ),
            by_time,
        ),
        "sequence_rnn": (
            composed(
                operators.UNIDIRECTIONAL_SEQUENCE_RNN,
                options("SequenceRNN", fusedActivationFunction=relu),
                ["x", *drawn(RNN), cells],
                x,
            ),
            x,
        ),
        "step_rnn": (composed(operators.RNN, options("RNN"), ["x", *drawn(RNN), cells], step), step),
        "both_rnn": (
            composed(
                operators.BIDIRECTIONAL_SEQUENCE_RNN,
                options("BidirectionalSequenceRNN", mergeOutputs=True, timeMajor=True),
                ["x", *drawn(RNN), cells, *drawn(RNN, seed=1), cells, None, None, None],
                by_time,
            ),
            by_time,
        ),
    }


def converted(make: Any, halves: bool = False) -> bytes:
    """A Keras model of TIME steps, as TensorFlow's converter writes it."""
    tf.keras.utils.set_random_seed(0)
    x = tf.keras.Input((TIME, FEATURES), batch_size=1)
    model = tf.keras.Model(x, make(tf.keras.layers, x))
    rng = np.random.default_rng(0)
    model.set_weights([0.8 * rng.standard_normal(array.shape) for array in model.get_weights()])
    shape = tf.TensorSpec((1, TIME, FEATURES), tf.float32)
    function = tf.function(lambda given: model(given)).get_concrete_function(shape)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], model)
    if halves:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def conversions() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """The converter's models of Keras' layers, by the name of their files, with the shape of the input."""
    x = (1, TIME, FEATURES)
    return {
        "keras_lstm": (converted(lambda layers, x: layers.LSTM(4, return_sequences=True)(x)), x),
        "keras_backwards": (
            converted(lambda layers, x: layers.LSTM(4, return_sequences=True, go_backwards=True)(x)),
            x,
        ),
        "keras_halves": (
            converted(lambda layers, x: layers.LSTM(24, return_sequences=True)(x), halves=True),
            x,
        ),
        "keras_head": (
            converted(
                lambda layers, x: layers.Softmax()(
                    layers.Dense(2)(
                        layers.LSTM(3, return_sequences=True)(
                            layers.Dense(4, activation="relu")(layers.LSTM(4, return_sequences=True)(x))
                        )
                    )
                )
            ),
            x,
        ),
        "keras_joined": (
            converted(
                lambda layers, x: layers.LSTM(3, return_sequences=True)(
                    layers.Concatenate()([x, layers.LSTM(4, return_sequences=True)(x)])
                )
            ),
            x,
        ),
        "keras_stack": (
            converted(
                lambda layers, x: layers.LSTM(2, return_sequences=True)(
                    layers.Bidirectional(layers.LSTM(3, return_sequences=True))(
                        layers.LSTM(4, return_sequences=True)(x)
                    )
                )
            ),
            x,
        ),
    }


def written() -> bytes:
    """A file of stepnet's writer: every sequence operator, the first backwards."""
    path = FOLDER / "written.tflite"

    def node(op: str, shapes: dict[str, Any], reverse: bool = False, **options: Any) -> tflite.TfliteNode:
        rng = np.random.default_rng(len(shapes))
        arrays = {name: 0.8 * rng.standard_normal(shape) for name, shape in shapes.items()}
        given = {name: array.astype(np.float32) for name, array in arrays.items()}
        return tflite.TfliteNode(op.lower(), op, given, options, reverse=reverse)

    def both(shapes: dict[str, Any], features: int) -> dict[str, Any]:
        taken = {
            name: (shape[0], features) if name.startswith("input_") and len(shape) > 1 else shape
            for name, shape in shapes.items()
        }
        return {f"{way}_{name}": shape for way in ("fw", "bw") for name, shape in taken.items()}

    plain = {name: shape for name, shape in LSTM.items() if name not in (*PEEPHOLES, *PROJECTED)}
    projected = {
        name: (CELLS, OUTPUTS) if name.startswith("recurrent") else shape for name, shape in LSTM.items()
    }
    taking = {**RNN, "input_weights": (CELLS, 2 * CELLS)}
    nodes = [
        node("UNIDIRECTIONAL_SEQUENCE_LSTM", projected, reverse=True, cell_clip=0.9),
        node("BIDIRECTIONAL_SEQUENCE_RNN", both(RNN, OUTPUTS), fused_activation_function="RELU6"),
        node("UNIDIRECTIONAL_SEQUENCE_RNN", taking),
        node("BIDIRECTIONAL_SEQUENCE_LSTM", both(plain, CELLS)),
    ]
    write(path, nodes, force=True, batch=BATCH, time=1)
    return path.read_bytes()


def run(data: bytes, x: np.ndarray, steps: bool) -> np.ndarray:
    """The interpreter's results for an input, from states of zeros; of each step, for an operator of one."""
    interpreter = tf.lite.Interpreter(
        model_content=data,
        experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    given, made = (
        details[0]["index"] for details in (interpreter.get_input_details(), interpreter.get_output_details())
    )
    interpreter.resize_tensor_input(given, x[0].shape if steps else x.shape)
    interpreter.allocate_tensors()
    outputs: list[np.ndarray] = []
    for part in x if steps else [x]:
        interpreter.set_tensor(given, part)
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(made))
    return np.stack(outputs) if steps else outputs[0]


def main() -> None:
    """Writes the files."""
    models = {**compositions(), **conversions(), "written": (written(), (BATCH, TIME, FEATURES))}
    found: dict[str, np.ndarray] = {}
    for name, (data, shape) in models.items():
        (FOLDER / f"{name}.tflite").write_bytes(data)
        steps = name.startswith(("step", "basic"))
        x = np.random.default_rng(7).standard_normal((TIME, *shape) if steps else shape).astype(np.float32)
        found[f"{name}/x"], found[f"{name}/y"] = x, run(data, x, steps)
        print(name, len(data), found[f"{name}/y"].shape)
    np.savez(FOLDER / "tflite_outputs.npz", **found)


if __name__ == "__main__":
    main()
