"""TensorFlow Lite models: what inputs of operators mean, what is written, and hostile files.

The models in data/ were made by TensorFlow, see data/make_tflite.py, and are run here by the equations.
"""

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants
from containers import refusal
from saved_arrays import saved_arrays
from tolerance import assert_close
from zoo import sigmoid

from stepnet.errors import FileError, InputError, LayoutError
from stepnet.layout import layers, records
from stepnet.layout.files import LayoutChoice, convert_file
from stepnet.layout.files import read as read_model
from stepnet.layout.files.tflite import file as tflite
from stepnet.layout.files.tflite.flatbuffer import Fields, Number, build
from stepnet.layout.files.tflite.modules import preceding_name
from stepnet.layout.files.tflite.node import TfliteNode
from stepnet.layout.files.tflite.write import write

DATA = Path(__file__).parent / "data"
SEEN = saved_arrays(DATA / "tflite_outputs.npz")
MODELS = sorted({name.partition("/")[0] for name in SEEN})
ROWS = [name for name in MODELS if name != "keras_joined"]  # whose second layer takes x beside the first
Array = np.ndarray


def read(path: Path) -> tuple[TfliteNode, ...]:
    """The recurrent operators of a model."""
    return tflite.read(path).nodes


# ---- the equations, after tensorflow/lite/kernels/lstm_eval.cc and kernel_utils.cc


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "TANH": np.tanh,
}


def clipped(x: Array, limit: float) -> Array:
    return np.clip(x, -limit, limit) if limit else x


def lstm(x: Array, arrays: dict[str, Array], options: Any) -> Array:
    """The outputs of an LSTM for x [time, batch, features]."""
    activation = ACTIVATIONS[options["fused_activation_function"]]
    h = np.zeros((x.shape[1], arrays["recurrent_to_cell_weights"].shape[1]))
    c = np.zeros((x.shape[1], arrays["recurrent_to_cell_weights"].shape[0]))

    def gate(name: str, x: Array, memory: Array) -> Array:
        total = x @ arrays[f"input_to_{name}_weights"].T + h @ arrays[f"recurrent_to_{name}_weights"].T
        if f"cell_to_{name}_weights" in arrays:
            total = total + memory * arrays[f"cell_to_{name}_weights"]
        if f"{name}_layer_norm_coefficients" in arrays:
            away = total - total.mean(1, keepdims=True)
            total = away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-8)
            total = total * arrays[f"{name}_layer_norm_coefficients"]
        return total + arrays[f"{name}_gate_bias"]

    outputs: list[Array] = []
    for step in x:
        f = sigmoid(gate("forget", step, c))
        i = sigmoid(gate("input", step, c)) if "input_to_input_weights" in arrays else 1 - f
        c = clipped(f * c + i * activation(gate("cell", step, c)), options["cell_clip"])
        h = sigmoid(gate("output", step, c)) * activation(c)
        if "projection_weights" in arrays:
            projected = h @ arrays["projection_weights"].T + arrays.get("projection_bias", 0)
            h = clipped(projected, options["proj_clip"])
        outputs.append(h)
    return np.stack(outputs)


def basic(x: Array, arrays: dict[str, Array]) -> Array:
    """The outputs of an LSTM whose gates lie side by side, as TensorFlow 1 has them: i g f o."""
    h = c = np.zeros((x.shape[1], len(arrays["biases"]) // 4))
    outputs: list[Array] = []
    for step in x:
        i, g, f, o = np.split(np.concatenate([step, h], 1) @ arrays["weights"].T + arrays["biases"], 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


def rnn(x: Array, arrays: dict[str, Array], options: Any) -> Array:
    h = np.zeros((x.shape[1], len(arrays["bias"])))
    outputs: list[Array] = []
    for step in x:
        total = step @ arrays["input_weights"].T + h @ arrays["recurrent_weights"].T + arrays["bias"]
        h = ACTIVATIONS[options["fused_activation_function"]](total)
        outputs.append(h)
    return np.stack(outputs)


def one_way(node: TfliteNode, x: Array, way: str = "") -> Array:
    """The outputs of an operator in one direction, in the order of the steps that it takes."""
    arrays = {
        name.removeprefix(way): array.astype(np.float64)
        for name, array in node.arrays.items()
        if name.startswith(way)
    }
    if node.options.get("kernel_type") == "BASIC":
        return basic(x, arrays)
    return (lstm if "LSTM" in node.op else rnn)(x, arrays, node.options)


def outputs_of(node: TfliteNode, x: Array) -> Array:
    """The outputs of an operator for x [time, batch, features], step by step in the order of x."""
    if node.op.startswith("BIDIRECTIONAL"):
        return np.concatenate([one_way(node, x, "fw_"), one_way(node, x[::-1], "bw_")[::-1]], 2)
    return one_way(node, x[::-1])[::-1] if node.reverse else one_way(node, x)


def model(nodes: tuple[TfliteNode, ...], x: Array) -> Array:
    """The outputs of the last operator of a model, fed as each one says; time first."""
    found: dict[str, Array] = {}
    for node in nodes:
        fed = [found[name] for name in node.after] or [x]
        found[node.name] = outputs_of(node, np.concatenate(fed, 2))
    return found[nodes[-1].name]


# ---- what is read


@pytest.mark.parametrize("name", ROWS)
def test_arrays_mean_what_the_interpreter_makes_of_them(name: str):
    nodes = read(DATA / f"{name}.tflite")
    x, y = SEEN[f"{name}/x"], SEEN[f"{name}/y"]
    time_first = nodes[0].options.get(
        "time_major", True
    )  # of an operator of one step, steps were put in front
    given = x if time_first else x.swapaxes(0, 1)
    made = model(nodes, given.astype(np.float64))
    if name == "keras_backwards":  # Keras leaves such outputs in the order they were made
        made = made[::-1]
    assert_close(made if time_first else made.swapaxes(0, 1), y, len(given), 16, np.float32)


LAYOUTS = {
    "basic_lstm": "tflite.basic_lstm",
    "both_rnn": "tflite.rnn",
    "coupled_lstm": "tflite.lstm_coupled",
    "keras_halves": "tflite.lstm",
    "keras_lstm": "tflite.lstm",
    "step_lstm": "tflite.lstm",
    "step_rnn": "tflite.rnn",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_mean_what_the_interpreter_makes_of_them(name: str):
    (module,) = read_model(DATA / f"{name}.tflite").modules
    assert module.layout == LAYOUTS[name]
    layer = layers(module.arrays, module.layout, semantics=module.semantics, dtype="float64")
    x, y = SEEN[f"{name}/x"], SEEN[f"{name}/y"]
    (node,) = read(DATA / f"{name}.tflite")
    time_first = node.options.get("time_major", True)
    outputs, _ = layer(x.swapaxes(0, 1) if time_first else x, engine="interpret")
    length = len(x) if time_first else x.shape[1]
    assert_close(outputs.swapaxes(0, 1) if time_first else outputs, y, length, 16, np.float32)


def test_what_the_evidence_says_was_run():
    run = {name for name, record in records().items() if name.startswith("tflite.") and record.evidence.run}
    assert run == set(LAYOUTS.values())


def test_what_the_converter_makes_of_keras():
    (one,) = read(DATA / "keras_lstm.tflite")
    assert one.op == "UNIDIRECTIONAL_SEQUENCE_LSTM"
    assert one.options == {
        "fused_activation_function": "TANH",
        "cell_clip": 10.0,
        "proj_clip": 0.0,
        "time_major": False,
        "asymmetric_quantize_inputs": False,
        "diagonal_recurrent_tensors": False,
    }
    assert (one.reverse, one.after, one.inputs) == (False, (), ("serving_default_given:0",))
    assert all(a.dtype == np.float32 and a.flags.writeable and a.flags.owndata for a in one.arrays.values())
    (back,) = read(DATA / "keras_backwards.tflite")
    assert back.reverse
    assert back.inputs[-1] == "serving_default_given:0"
    first, *pair, last = read(DATA / "keras_stack.tflite")
    assert sorted(node.reverse for node in pair) == [False, True]
    assert [node.after for node in pair] == [(first.name,)] * 2
    assert last.after == tuple(node.name for node in sorted(pair, key=lambda node: node.reverse))
    assert (first.reverse, last.reverse) == (False, False)


def test_halves_are_widened_exactly():
    (node,) = read(DATA / "keras_halves.tflite")
    for array in node.arrays.values():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, array.astype(np.float16).astype(np.float32))


# ---- models composed by hand

CELLS, FEATURES = 4, 3
LSTM: dict[int, Any] = {
    **dict.fromkeys(range(1, 5), (CELLS, FEATURES)),
    **dict.fromkeys(range(5, 9), (CELLS, CELLS)),
    **dict.fromkeys(range(12, 16), (CELLS,)),
}
RNN: dict[int, Any] = {1: (CELLS, FEATURES), 2: (CELLS, CELLS), 3: (CELLS,)}


def tensor(shape: tuple[int, ...], kind: int = 0, buffer: int = 0, name: str = "") -> Fields:
    return {0: np.array(shape, "<i4"), 1: Number("b", kind), 2: Number("I", buffer), 3: name}


def composed(
    operator: int = 35,
    shapes: dict[int, Any] = RNN,
    options: tuple[int, Fields] = (31, {1: Number("b", 4)}),
    change: Callable[[list[Any], list[Any], dict[int, Any]], None] = lambda *_: None,
    outputs: Sequence[int] = (1,),
) -> bytes:
    """A model of one operator, whose tensors, buffers and operator may be changed before it is written.

    outputs: the tensor that the operator makes; of several, the operator is there as often.
    """
    tensors: list[Any] = [tensor((1, 5, FEATURES), name="x"), tensor((1, 5, CELLS), name="y")]
    buffers: list[Any] = [{}]
    inputs = [0] + [-1] * max(shapes, default=0)
    for place, shape in shapes.items():
        inputs[place] = len(tensors)
        tensors.append(tensor(shape, 0, len(buffers), f"weight{place}"))
        buffers.append({0: np.ones(shape, "<f4").ravel().view("u1")})
    made: dict[int, Any] = {
        0: Number("I", 0),
        1: np.array(inputs, "<i4"),
        3: Number("B", options[0]),
        4: options[1],
    }
    change(tensors, buffers, made)
    operators = [{**made, 2: np.array([output], "<i4")} for output in outputs]
    graph = {0: tensors, 1: np.array([0], "<i4"), 2: np.array([1], "<i4"), 3: operators}
    codes = [{0: Number("b", operator), 3: Number("i", operator)}]
    return bytes(build({0: Number("I", 3), 1: codes, 2: [graph], 4: buffers}, b"TFL3"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.tflite"


def raised(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return refusal(read, path)


def test_options_left_out_are_the_defaults_of_the_schema(path: Path):
    both = {1: (4, 3), 2: (4, 4), 3: (4,), 5: (2, 3), 6: (2, 2), 7: (2,)}
    path.write_bytes(composed(46, both, (70, {})))
    (node,) = read(path)
    assert node.op == "BIDIRECTIONAL_SEQUENCE_RNN"
    assert node.options == {
        "time_major": False,
        "fused_activation_function": "NONE",
        "merge_outputs": False,
        "asymmetric_quantize_inputs": False,
    }
    assert {name: array.shape for name, array in node.arrays.items()} == {
        "fw_input_weights": (4, 3),
        "fw_recurrent_weights": (4, 4),
        "fw_bias": (4,),
        "bw_input_weights": (2, 3),
        "bw_recurrent_weights": (2, 2),
        "bw_bias": (2,),
    }
    path.write_bytes(composed(52, {**LSTM, **{place + 17: shape for place, shape in LSTM.items()}}, (69, {})))
    assert read(path)[0].options["time_major"] is True


def test_numbers_may_lie_behind_the_tables(path: Path):
    weights = np.arange(12, dtype="<f4")
    start = len(composed(change=lambda t, b, o: b.__setitem__(1, {1: Number("Q", 2), 2: Number("Q", 48)})))

    def change(tensors: Any, buffers: Any, operator: Any) -> None:
        buffers[1] = {1: Number("Q", start), 2: Number("Q", 48)}

    path.write_bytes(composed(change=change) + weights.tobytes())
    np.testing.assert_array_equal(read(path)[0].arrays["input_weights"], weights.reshape(4, 3))
    assert "has 47 bytes of numbers" in raised(path, composed(change=change) + weights.tobytes()[:-1])


def test_quantized_weights_are_refused(path: Path):
    for kind, name in ((9, "INT8"), (3, "UINT8"), (17, "INT4")):

        def change(tensors: Any, buffers: Any, operator: Any, kind: int = kind) -> None:
            tensors[2] = tensor((CELLS, FEATURES), kind, 1)
            buffers[1] = {0: np.ones(12, "u1")}

        assert raised(path, composed(change=change)) == (
            f"UNIDIRECTIONAL_SEQUENCE_RNN 'y': its input_weights is quantized ({name}); read the model it was"
            " quantized from"
        )


def test_weights_that_are_none_are_refused(path: Path):
    def changed(place: int, made: Fields, buffer: Any = None) -> str:
        def change(tensors: Any, buffers: Any, operator: Any) -> None:
            tensors[2 + place] = made
            buffers[1] = buffers[1] if buffer is None else {0: buffer}

        return raised(path, composed(change=change))

    where = "UNIDIRECTIONAL_SEQUENCE_RNN 'y'"
    none = f"{where}: its input_weights is no constant of float32 or float16"
    assert changed(0, tensor((CELLS, FEATURES))) == none
    assert changed(0, tensor((CELLS, FEATURES), 2, 1)) == none
    assert changed(0, tensor((CELLS, FEATURES), 5, 1)) == none
    sparse: Any = {**tensor((CELLS, FEATURES), 0, 1), 6: {}}
    assert changed(0, sparse) == f"{where}: its input_weights is sparse; convert the model without that"
    assert "tensor 'w' of shape (4, 4) has 48 bytes of numbers" in changed(0, tensor((4, 4), 0, 1, "w"))
    assert "has 48 bytes of numbers" in changed(0, tensor((-4, -3), 0, 1))
    assert "has 48 bytes of numbers" in changed(0, tensor((4, 3) + (1,) * 20, 0, 1))
    assert "has 48 bytes of numbers" in changed(0, tensor((1 << 30, 1 << 30), 0, 1))
    assert "it names buffer 99 of 4" in changed(0, tensor((4, 3), 0, 99))


def test_operators_that_are_none_are_refused(path: Path):
    def reason(operator: int, shapes: dict[int, Any], options: Any, **more: Any) -> str:
        return raised(path, composed(operator, shapes, options, **more)).partition("'y'")[2].lstrip(": ")

    plain: Any = (71, {})
    assert reason(44, {**LSTM, 6: (5, 4)}, plain) == (
        "is not read: its recurrent_to_forget_weights is of (5, 4), and other weights say that cell is 4"
    )
    without = {place: shape for place, shape in LSTM.items() if place != 13}
    assert reason(44, without, plain) == "is not read: it has no forget_gate_bias"
    coupled = {place: shape for place, shape in LSTM.items() if place != 1}
    assert reason(44, coupled, plain) == (
        "is not read: of input_to_input_weights, recurrent_to_input_weights, input_gate_bias it has only some"
    )
    projected = {place: (4, 2) if 5 <= place <= 8 else shape for place, shape in LSTM.items()}
    assert reason(44, projected, plain) == (
        "is not read: it gives 2 numbers out of 4 cells and has no projection_weights"
    )
    assert reason(44, {**LSTM, 12: (4, 1)}, plain) == (
        "is not read: its input_gate_bias is of (4, 1), and not of (cell)"
    )
    assert reason(44, LSTM, (71, {5: Number("?", True)})) == (
        "is not read: its recurrent weights are diagonals, for which stepnet has no layout"
    )
    assert reason(44, LSTM, (14, {})) == "has the options of another operator"
    assert reason(44, LSTM, (71, {0: Number("b", 9)})) == (
        "has the fused_activation_function 9, and known are 0 to 5"
    )
    both = {**LSTM, **{place + 17: shape for place, shape in LSTM.items()}, 39: (1, 5, 3)}
    assert reason(52, both, (69, {})) == "has a second input, for which stepnet has no layout"
    assert reason(16, {2: (16, 4), 3: (16,)}, (14, {3: Number("b", 1)})) == (
        "is not read: its weights are of (16, 4), and not of (4*cell, input+cell)"
    )


def test_a_model_without_recurrent_operators_has_none(path: Path):
    path.write_bytes(composed(9, {}, (8, {})))
    assert read(path) == ()


# ---- hostile files


@pytest.mark.parametrize(
    "data", [b"", b"TFL3", b"\0" * 100, random.Random(0).randbytes(1000), b"PK\3\4" * 50]
)
def test_what_is_no_model_is_refused(path: Path, data: bytes):
    assert raised(path, data) == "this is not a complete .tflite file (it does not say TFL3)"


def test_places_outside_the_file_are_refused(path: Path):
    for start in (5, 9, 1 << 20, (1 << 32) - 1):
        message = raised(path, struct.pack("<I4s", start, b"TFL3") + b"\xff" * 8)
        assert message.startswith("the file is cut off or broken: it points to ")
    data = bytearray(composed())
    data[:4] = struct.pack("<I", len(data) - 4)
    assert "the file is cut off or broken" in raised(path, bytes(data))


def test_parts_are_counted(path: Path, constants: Constants):
    """Lists may point to one table as often as they like; a small file then is a huge model."""
    constants("stepnet.layout.files.tflite.flatbuffer", TABLES=20)
    assert raised(path, composed(outputs=[1] * 21)) == "a list of 21 tables is more than 20"
    constants(tflite, PARTS=20)
    assert raised(path, composed(outputs=[1] * 20)) == "the model has more than 20 tensors and operators"
    path.write_bytes(composed(outputs=[1] * 14))
    assert [node.name for node in read(path)] == ["y"]


def test_weights_that_are_used_often_fill_no_memory(path: Path):
    def change(tensors: Any, buffers: Any, operator: Any) -> None:
        tensors += [tensor((1, 5, 512), name=f"y{index}") for index in range(100)]

    shapes: dict[int, Any] = {1: (512, 512), 2: (512, 512), 3: (512,)}
    data = composed(35, shapes, change=change, outputs=range(5, 105))
    assert raised(path, data).endswith(
        "of memory, far more than the file has; --most BYTES ahead of the command (Python: most=BYTES) "
        "allows more"
    )


def chained(path: Path, *operators: tuple[int, list[int], list[int], int, Fields]) -> tuple[TfliteNode, ...]:
    """The layers read from a model of these operators: code, inputs, outputs, kind of options, options.

    Tensors 0 to 9 have no numbers; 10 to 12 are the weights of an RNN of 4 cells for 4 numbers; 13 is axis 1.
    """
    shapes = [(1, 5, 4)] * 10 + [(4, 4), (4, 4), (4,)]
    tensors = [tensor(shape, 0, max(0, i - 9), f"t{i}") for i, shape in enumerate(shapes)]
    tensors.append(tensor((1,), 2, 4, "axis"))
    buffers: list[Fields] = [{}, *({0: np.ones(4 * n, "<f4").view("u1")} for n in (4, 4, 1))]
    buffers.append({0: np.array([1], "<i4").view("u1")})
    made: list[Fields] = [
        {
            0: Number("I", index),
            1: np.array(inputs, "<i4"),
            2: np.array(outputs, "<i4"),
            3: Number("B", kind),
            4: options,
        }
        for index, (_, inputs, outputs, kind, options) in enumerate(operators)
    ]
    codes = [{3: Number("i", code)} for code, *_ in operators]
    graph = {0: tensors, 1: np.array([0], "<i4"), 2: np.array([1], "<i4"), 3: made}
    path.write_bytes(build({0: Number("I", 3), 1: codes, 2: [graph], 4: buffers}, b"TFL3"))
    return read(path)


def test_operators_follow_where_all_outputs_lie_side_by_side(path: Path):
    def second(joined: list[int]) -> tuple[str, ...]:
        both = (46, [0, 10, 11, 12, -1, 10, 11, 12, -1], [1, 2], 70, {})
        join = (2, joined, [3], 10, {0: Number("i", 2)})
        return chained(path, both, join, (35, [3, 10, 11, 12, -1], [4], 31, {}))[1].after

    assert second([1, 2]) == ("t1",)
    assert second([2, 1]) == ()
    assert second([1]) == ()
    assert second([1, 2, 2]) == ()
    assert second([1, 2, 0]) == ()


def test_an_operator_that_takes_more_than_another_gives_does_not_follow_it(tmp_path: Path):
    source, out = DATA / "keras_joined.tflite", tmp_path / "out.onnx"
    first, second = read_model(source).modules
    assert (first.follows, second.follows) == ("", "")
    for stack in (False, True):
        with pytest.raises(LayoutError, match="the file says that it takes something else, or more"):
            convert_file(source, "onnx", out, choice=LayoutChoice(stack=stack))


def test_an_operator_between_two_is_named_but_where_its_tensor_is_called_as_a_recurrent_one():
    node = read(DATA / "keras_head.tflite")[1]
    assert preceding_name(node, {"tfl.unidirectional_sequence_lstm"}) == node.over == node.inputs[-1]
    assert preceding_name(node, {node.over}) == ""


def test_operators_that_feed_each_other_end(path: Path):
    turn = (105, [1, 13], [1], 81, {})
    join = (2, [3] * 60, [3], 10, {0: Number("i", 2)})
    layers = [(35, [fed, 10, 11, 12, -1], [made], 31, {}) for fed, made in ((1, 2), (3, 4), (5, 5))]
    assert [node.after for node in chained(path, turn, join, *layers)] == [()] * 3


# ---- the writer


def test_what_is_written_is_what_the_interpreter_ran(path: Path):
    """The file in data/ is one that stepnet wrote and TensorFlow ran: written again it is the same."""
    nodes = read(DATA / "written.tflite")
    assert [node.op for node in nodes] == [
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "BIDIRECTIONAL_SEQUENCE_RNN",
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        "BIDIRECTIONAL_SEQUENCE_LSTM",
    ]
    assert [node.after for node in nodes] == [(), *((node.name,) for node in nodes[:-1])]
    assert [node.reverse for node in nodes] == [True, False, False, False]
    write(path, nodes, batch=2)
    assert path.read_bytes() == (DATA / "written.tflite").read_bytes()


@pytest.mark.parametrize("name", ["written", "keras_lstm"])
def test_what_is_written_runs(path: Path, name: str):
    tensorflow = pytest.importorskip("tensorflow")
    x = SEEN[f"{name}/x"]
    write(path, read(DATA / f"{name}.tflite"), batch=len(x))
    interpreter = tensorflow.lite.Interpreter(str(path))
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    made = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert_close(made, SEEN[f"{name}/y"], x.shape[1], 16)


def test_a_file_that_is_there_stays_unless_forced(path: Path):
    nodes = read(DATA / "keras_lstm.tflite")
    path.write_text("mine")
    with pytest.raises(FileError, match="the file is there already"):
        write(path, nodes)
    assert path.read_text() == "mine"
    write(path, nodes, force=True)
    (back,) = read(path)
    assert (back.name, back.op, back.options) == (nodes[0].name, nodes[0].op, nodes[0].options)
    for name, array in nodes[0].arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_operators_that_do_not_fit_are_not_written(path: Path):
    def reason(*nodes: TfliteNode) -> str:
        with pytest.raises(InputError) as caught:
            write(path, nodes)
        assert not path.exists()
        return str(caught.value).partition("cannot be written: ")[2] or str(caught.value)

    def ones(**more: Any) -> dict[str, Array]:
        shapes = {"input_weights": (4, 3), "recurrent_weights": (4, 4), "bias": (4,)}
        return {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | more

    op = "UNIDIRECTIONAL_SEQUENCE_RNN"
    one = TfliteNode("one", op, ones(), {})
    assert "at least one, and each its own" in reason()
    assert "at least one, and each its own" in reason(one, one)
    assert (
        reason(one, TfliteNode("two", op, ones(), {})) == "operator 'two' takes 3 numbers, and 4 come to it"
    )
    assert reason(TfliteNode("one", "RNN", ones(), {})).startswith("only UNIDIRECTIONAL_SEQUENCE_RNN, ")
    assert reason(TfliteNode("one", op, ones(bias=np.ones(4)), {})) == (
        "its bias holds float64, and not float32; cast it"
    )
    assert reason(TfliteNode("one", op, ones(bias=np.ones(5, np.float32)), {})) == (
        "its bias is of (5,), and other weights say that cell is 4"
    )
    assert reason(TfliteNode("one", op, ones(), {"clip": 1})) == (
        "it has an option 'clip', and the schema has time_major, fused_activation_function,"
        " asymmetric_quantize_inputs"
    )
    assert reason(TfliteNode("one", op, ones(), {"fused_activation_function": "SINE"})) == (
        "its activation is 'SINE', and not one of NONE, RELU, RELU_N1_TO_1, RELU6, TANH, SIGN_BIT"
    )


def test_operators_that_are_not_converted_are_in_the_account(tmp_path: Path):
    source, out = DATA / "keras_head.tflite", tmp_path / "out.tflite"
    model = read_model(source)
    assert [name.rpartition(" ")[2] for name in model.layers] == [
        "(FULLY_CONNECTED)",
        "(FULLY_CONNECTED)",
        "(SOFTMAX)",
    ]
    with pytest.raises(LayoutError, match=r"it takes .*dense_1.* instead: "):
        convert_file(source, "tflite", out, choice=LayoutChoice(stack=True))
    done = convert_file(
        source, "keras", tmp_path / "out.npz", choice=LayoutChoice(semantics={"cell_clip": 0})
    )
    assert [name for name in done.account.layers if "SOFTMAX" in name] == [
        "StatefulPartitionedCall:0 (SOFTMAX)"
    ]
