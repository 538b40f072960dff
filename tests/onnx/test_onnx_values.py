"""Values of ONNX models where they are easily wrong: as ONNX's specification and onnxruntime have them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import FileError, InputError, ModelError
from tests.onnx.onnx_models import FLOAT, assert_as_theirs, model_of, node, random, read, theirs, value

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed")
stepnet_onnx: Any = pytest.importorskip("stepnet.onnx")
helper: Any = onnx.helper
Array = np.ndarray
HALF, BRAIN, DOUBLE, WHOLE = 10, 16, 11, 7
HUGE = np.array([[[1e6, -1e6, 65519, 65520], [6e-8, 1e-8, np.nan, np.inf]]], "float32")


def model(
    nodes: list[Any], rank: int = 3, kind: int = FLOAT, made: int = 0, opset: int = 17, **arrays: Any
) -> Any:
    """A model of x [batch, time, 4] with an output y."""
    initial = {name: np.asarray(array) for name, array in arrays.items()}
    proto = model_of(
        nodes,
        [value("x", "n", "t", 4, kind=kind)],
        [value("y", *[None] * rank, kind=made or kind)],
        initial,
        max(opset, 17),
    )
    proto.opset_import[0].version = opset
    return proto


# ---- two bytes ---------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [(FLOAT, "float32"), (DOUBLE, "float64"), (WHOLE, "int64")], ids=str
)
def test_a_cast_to_float16_rounds(kind: int, dtype: str, engine: str) -> None:
    x = HUGE if kind == FLOAT else np.array([[[2049, 2051, -70000, 3], [2**40, 5, 7, 1 << 24]]], dtype)
    if kind == DOUBLE:
        x = np.concatenate([x, [[[1 + 2**-11, 1 + 2**-11 + 2**-40, 1 / 3, np.pi]]]], axis=1)
    nodes = [node("Cast", "x", "h", to=HALF), node("Cast", "h", to=FLOAT)]
    (made,) = stepnet_onnx.Backend.run_model(model(nodes, kind=kind, made=FLOAT), {"x": x}, engine=engine)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(made, x.astype("float16").astype("float32"))


def test_a_cast_to_bfloat16_rounds() -> None:
    nodes = [node("Cast", "x", "h", to=BRAIN), node("Cast", "h", to=FLOAT)]
    assert_as_theirs(model(nodes), {"x": random(2, 3, 4)})


def scan_that_rounds() -> Any:
    """A recurrence whose state is rounded to float16 at each step."""
    body = helper.make_graph(
        [
            node("Add", "a b", "c"),
            node("Cast", "c", "h", to=HALF),
            node("Cast", "h", "d", to=FLOAT),
            node("Identity", "d", "e"),
        ],
        "body",
        [value("a", None, 4), value("b", None, 4)],
        [value("d", None, 4), value("e", None, 4)],
    )
    scan = helper.make_node("Scan", ["s", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    inputs = [value("s", "n", 4), value("x", "t", "n", 4)]
    return model_of([scan], inputs, [value("y", None, None, 4)])


def test_a_cast_in_a_step_rounds_there() -> None:
    made = scan_that_rounds()
    fed = {"s": random(2, 4), "x": random(9, 2, 4, seed=1)}
    for engine in ("interpret", "llvm"):
        (y,) = stepnet_onnx.Backend.run_model(made, fed, engine=engine)
        np.testing.assert_array_equal(y, theirs(made, fed)[0])


@pytest.mark.parametrize("ends", [FLOAT, HALF], ids=["float32", "float16"])
@pytest.mark.parametrize("narrow", [HALF, BRAIN], ids=["float16", "bfloat16"])
def test_casts_of_a_model_are_kept_when_it_is_saved(narrow: int, ends: int, tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "a", to=narrow),
        node("Cast", "a", "b", to=FLOAT),
        node("MatMul", "b w", "c"),
        node("Cast", "c", "d", to=narrow),
        node("Cast", "d", to=ends),
    ]
    graph = read(model(nodes, kind=ends, w=random(4, 4)))
    x = (1e3 * random(2, 3, 4)).astype("float32" if ends == FLOAT else "float16")
    right = graph(x)
    for ending in ("stepnet", "onnx"):
        for again in range(2):
            path = tmp_path / f"made{again}.{ending}"
            graph.save(path) if ending == "stepnet" else stepnet_onnx.save(graph, path)
            graph = sn.load(path)
            made = graph(x)
            assert made.dtype == right.dtype
            np.testing.assert_array_equal(made, right)


def test_casts_in_a_recurrence_are_kept_when_it_is_saved(tmp_path: Path) -> None:
    graph = read(scan_that_rounds())
    x, statics = random(2, 9, 4, seed=1), {"s": random(2, 4)}
    graph.save(tmp_path / "made.stepnet")
    made = sn.load(tmp_path / "made.stepnet")(x, statics=statics)
    np.testing.assert_array_equal(made, graph(x, statics=statics))


def test_float16_is_computed_in_float32_and_rounded_at_the_ends() -> None:
    nodes = [node("MatMul", "x w", "p"), node("Tanh", "p", "t"), node("Mul", "t x")]
    proto = model(nodes, kind=HALF, w=random(4, 4).astype("float16"))
    x = random(2, 3, 4, seed=1).astype("float16")
    (made,) = stepnet_onnx.Backend.run_model(proto, {"x": x})
    exact = np.tanh(x.astype("float64") @ random(4, 4).astype("float16")) * x
    assert made.dtype == np.float16
    assert np.abs(made - exact).max() <= np.finfo("float16").eps / 2  # one rounding, of numbers below 1
    assert_close(made, theirs(proto, {"x": x})[0], 1, 4)


# ---- numbers -----------------------------------------------------------------------------------------------

COUNTED = [node("Shape", "x", "s"), node("Gather", "s o", "t"), node("Cast", "t", "f", to=FLOAT)]
"""Nodes that compute the number of steps as a float, f."""
NUMBERS: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "a clip without bounds": ([node("Clip", "x")], {}, 17),
    "an older clip without bounds": ([node("Clip", "x")], {}, 7),
    "infinite slopes": ([node("PRelu", "x s")], {"s": np.array([np.inf, np.nan, -np.inf, 2], "f4")}, 17),
    "backwards from before the first": (
        [node("Slice", "x b e a s")],
        {"b": [-9], "e": [-9], "a": [2], "s": [-1]},
        17,
    ),
    "backwards past the first": (
        [node("Slice", "x b e a s")],
        {"b": [9], "e": [-9], "a": [2], "s": [-3]},
        17,
    ),
    "remainders as in C": ([node("Mod", "x s", fmod=1)], {"s": np.float32(-0.3)}, 17),
    "sums so far": ([node("CumSum", "x a")], {"a": 2}, 17),
    "sums before": ([node("CumSum", "x a", exclusive=1)], {"a": -1}, 17),
    "sums from the end": ([node("CumSum", "x a", exclusive=1, reverse=1)], {"a": 2}, 17),
    "sums of steps": ([node("CumSum", "x a")], {"a": 1}, 17),
    "sums of steps before": ([node("CumSum", "x a", exclusive=1)], {"a": 1}, 17),
    "sums of steps from the end": ([node("CumSum", "x a", reverse=1)], {"a": 1}, 17),
    "padded features": ([node("Pad", "x p v")], {"p": [0, 0, 2, 0, 0, 1], "v": np.float32(7)}, 17),
    "features cut off": ([node("Pad", "x p")], {"p": [0, 0, -1, 0, 0, -2]}, 17),
    "sums padded": ([node("CumSum", "x a", "c"), node("Pad", "c p")], {"a": 1, "p": [0, 0, 0, 0, 0, 1]}, 17),
    "a softmax of two features as one": (
        [node("Reshape", "x f", "r"), node("Softmax", "r", "m", axis=2), node("Reshape", "m b")],
        {"f": [0, 0, 2, 2], "b": [0, 0, 4]},
        11,
    ),
    "a mean by the number of steps": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s o", "t"),
            node("Cast", "t", "f", to=FLOAT),
            node("ReduceSum", "x a", "u"),
            node("Div", "u f"),
        ],
        {"o": 1, "a": [1]},
        17,
    ),
    **{
        f"{compared} with {op} of the number of steps and {number}": (
            [*COUNTED, node(op, order, "g"), node(compared, "x g", "c"), node("Where", "c x h")],
            {"o": 1, "n": np.float32(number), "h": np.float32(0)},
            17,
        )
        for op, number, order, compared in [
            ("Mul", 0.1, "f n", "Greater"),
            ("Mul", 0.1, "n f", "LessOrEqual"),
            ("Sub", 4.5, "f n", "Less"),
            ("Sub", 5.5, "n f", "GreaterOrEqual"),
            ("Div", 2.5, "n f", "Less"),
            ("Max", 5.5, "f n", "Less"),
        ]
    },
    "a choice of the number of steps": (
        [*COUNTED, node("Greater", "x z", "c"), node("Where", "c f z")],
        {"o": 1, "z": np.float32(0)},
        17,
    ),
    "a part of the number of steps less two": (
        [*COUNTED, node("Sub", "f two", "d"), node("Mul", "d half", "e"), node("Mul", "x e")],
        {"o": 1, "two": np.float32(2), "half": np.float32(0.5)},
        17,
    ),
    "steps counted from the end": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s o", "t"),
            node("Range", "z t o", "r"),
            node("Sub", "t r", "d"),
            node("Cast", "d", "f", to=FLOAT),
            node("Unsqueeze", "f a", "g"),
            node("Mul", "x g"),
        ],
        {"o": 1, "z": 0, "a": [1]},
        17,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_as_onnxruntimes(name: str) -> None:
    nodes, arrays, opset = NUMBERS[name]
    x = random(2, 5, 4)
    x[0, 0] = [np.inf, -np.inf, 1, -1] if "clip" in name or "slopes" in name else x[0, 0]
    assert_as_theirs(model(nodes, opset=opset, **arrays), {"x": x})


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_whole_numbers(fmod: int) -> None:
    proto = model([node("Mod", "x s", fmod=fmod)], kind=WHOLE, s=np.array([3, -3, 5, -5]))
    assert_as_theirs(proto, {"x": np.arange(-12, 12).reshape(2, 3, 4)})


def test_a_state_of_whole_numbers_begins_with_a_constant() -> None:
    body = helper.make_graph(
        [node("Add", "a b", "c"), node("Identity", "c", "d")],
        "body",
        [value("a", kind=WHOLE), value("b", None, kind=WHOLE)],
        [value("c", None, kind=WHOLE), value("d", None, kind=WHOLE)],
    )
    nodes = [
        node("Shape", "x", "sizes", start=1),
        node("Expand", "s sizes", "begin"),
        node("Scan", "begin x", "last y", body=body, num_scan_inputs=1),
    ]
    inputs, outputs = [value("x", "t", "n", kind=WHOLE)], [value("y", None, None, kind=WHOLE)]
    made = model_of(nodes, inputs, outputs, {"s": np.array(2**40)})
    fed = {"x": np.arange(4)[:, None]}
    (y,) = stepnet_onnx.Backend.run_model(made, fed)
    np.testing.assert_array_equal(y, 2**40 + np.cumsum(fed["x"], axis=0))


def test_sequences_and_steps_may_be_joined_and_taken_apart_again() -> None:
    nodes = [
        node("Shape", "x", "sizes"),
        node("Reshape", "x rows", "flat"),
        node("MatMul", "flat W", "wide"),
        node("Reshape", "wide sizes"),
    ]
    arrays: dict[str, Any] = {"rows": np.array([-1, 4]), "W": random(4, 4, seed=1)}
    assert_as_theirs(model(nodes, **arrays), {"x": random(2, 3, 4)})


def test_an_output_of_joined_sequences_and_steps_is_refused_by_its_name() -> None:
    nodes = [node("Reshape", "x rows")]
    with pytest.raises(ModelError, match=r"output 'y' is \[sequences x steps, 4\]"):
        assert_as_theirs(model(nodes, 2, rows=np.array([-1, 4])), {"x": random(2, 3, 4)})


def test_a_size_of_a_fraction_is_refused() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "f", to=FLOAT),
        node("Mul", "f half", "d"),
        node("Cast", "d", "e", to=WHOLE),
        node("Expand", "h e"),
    ]
    arrays: Any = {"half": np.array([1, 0.5, 1], "float32"), "h": np.float32(1)}
    with pytest.raises(ModelError, match=r"sequences or of steps and 0\.5, which is no integer"):
        assert_as_theirs(model(nodes, **arrays), {"x": random(2, 6, 4)})


def test_each_head_has_its_own_product_over_the_steps() -> None:
    nodes = [
        node("Reshape", "x heads", "h"),
        node("Transpose", "h", "k", perm=[0, 2, 3, 1]),
        node("Transpose", "h", "v", perm=[0, 2, 1, 3]),
        node("MatMul", "k v"),
    ]
    assert_as_theirs(model(nodes, 4, heads=np.array([0, 0, 2, 2])), {"x": random(2, 5, 4)})


def test_attention_of_several_heads_between_the_steps() -> None:
    nodes = [
        node("Reshape", "x heads", "h"),
        node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "h", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "p"),
        node("Mul", "p scale", "s"),
        node("Softmax", "s", "w", axis=-1),
        node("MatMul", "w q", "m"),
        node("Transpose", "m", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t together"),
    ]
    arrays = {"heads": np.array([0, 0, 2, 2]), "together": np.array([0, 0, 4]), "scale": np.float32(0.7)}
    assert_as_theirs(model(nodes, 3, **arrays), {"x": random(2, 5, 4)})


WITH_ATTENTION: Any = {"opset": 23}


@pytest.mark.parametrize(
    "settings",
    [
        {"q_num_heads": 2, "kv_num_heads": 2},
        {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1, "scale": 0.3},
    ],
)
def test_the_operator_of_attention(settings: dict[str, Any]) -> None:
    narrow = node("Slice", "x zero two last", "k")
    operands = "x k k" if settings["q_num_heads"] == 4 else "x x x"
    arrays: dict[str, Any] = {"zero": [0], "two": [2], "last": [2]}
    made = model([narrow, node("Attention", operands, **settings)], **WITH_ATTENTION, **arrays)
    assert_as_theirs(made, {"x": random(2, 5, 4)})


def test_heads_of_attention_in_an_axis_of_their_own() -> None:
    nodes = [
        node("Reshape", "x heads", "h"),
        node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Attention", "q q q", "m"),
        node("Transpose", "m", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t together"),
    ]
    arrays: dict[str, Any] = {"heads": np.array([0, 0, 2, 2]), "together": np.array([0, 0, 4])}
    assert_as_theirs(model(nodes, **WITH_ATTENTION, **arrays), {"x": random(2, 5, 4)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"softcap": 2.0}, "it has softcap, which is not supported"),
        ({"q_num_heads": 3}, "its 4 features are no multiple of 3 heads"),
    ],
)
def test_other_attention_is_refused(settings: dict[str, Any], words: str) -> None:
    heads: dict[str, Any] = {"q_num_heads": 1, "kv_num_heads": 1}
    made = model([node("Attention", "x x x", **(heads | settings))], **WITH_ATTENTION)
    with pytest.raises(ModelError, match=words):
        stepnet_onnx.Backend.run_model(made, {"x": random(2, 5, 4)})


TURNED = node("Transpose", "x", "t", perm=[0, 2, 1])
WEIGHTS = [TURNED, node("MatMul", "x t", "p"), node("Softmax", "p", "w", axis=-1)]
SPREAD = [node("Shape", "x", "shape"), node("Expand", "ones shape", "c")]
MISFITS: dict[str, list[Any]] = {
    "at pairs of steps, both have the same sequences and features": [
        *(TURNED, node("Slice", "t zero two one", "s"), node("MatMul", "x s")),
    ],
    "weights at pairs of steps are multiplied by values at the keys": [*WEIGHTS, node("MatMul", "w t")],
    "the queries or the keys of attention are constants": [*SPREAD, TURNED, node("MatMul", "c t")],
    "the weights or the values of attention are constants": [*SPREAD, *WEIGHTS, node("MatMul", "w c")],
    r"values at \[steps.*\] meet values at \[keys steps\*\]": [
        *(*WEIGHTS, node("MaxPool", "t", "m", kernel_shape=[2], strides=[2])),
        *(node("ReduceMax", "m", "n", axes=[1]), node("Add", "p n")),
    ],
}


@pytest.mark.parametrize("words", MISFITS)
def test_products_at_pairs_that_do_not_fit_are_refused(words: str) -> None:
    arrays: dict[str, Any] = {"zero": [0], "two": [2], "one": [1], "ones": np.ones(4, "float32")}
    with pytest.raises(ModelError, match=words):
        stepnet_onnx.Backend.run_model(model(MISFITS[words], 3, **arrays), {"x": random(2, 6, 4)})


def test_differences_of_steps_and_their_mean() -> None:
    nodes = [
        *(node("Unsqueeze", "x a", "u"), node("Unsqueeze", "x b", "v"), node("Sub", "u v", "d")),
        *(node("Abs", "d", "e"), node("ReduceMean", "e", "y", axes=[2], keepdims=0)),
    ]
    assert_as_theirs(model(nodes, 3, a=[1], b=[2]), {"x": random(2, 5, 4)})


def test_values_at_pairs_of_steps_are_no_outputs() -> None:
    nodes = [node("Unsqueeze", "x a", "u"), node("Unsqueeze", "x b", "v"), node("Sub", "u v")]
    with pytest.raises(ModelError, match="a value at each pair of steps, of which a model returns none"):
        stepnet_onnx.Backend.run_model(model(nodes, 4, a=[1], b=[2]), {"x": random(2, 2, 4)})


def test_a_sum_over_steps_and_features() -> None:
    nodes = [node("ReduceSum", "x a", "y", keepdims=0)]
    assert_as_theirs(model(nodes, 1, a=np.array([1, 2])), {"x": random(2, 5, 4)})


def test_axes_are_told_by_the_names_of_sizes(tmp_path: Path) -> None:
    inputs = [value("x", "time", "batch", 4), value("s", "batch", 4)]
    onnx.save(model_of([node("Add", "x s")], inputs, [value("y", None, None, 4)]), tmp_path / "m.onnx")
    graph = stepnet_onnx.load(tmp_path / "m.onnx")
    x, s = random(5, 2, 4), random(2, 4, seed=1)
    made = graph(x, statics={"s": s}, time_major=True)
    np.testing.assert_array_equal(made, x + s)


def test_a_constant_beside_the_outputs_of_a_recurrence() -> None:
    rnn = sn.RNN(lambda x, h, params: (h + x, h + x), memory=3)

    def beside(x: Any, params: Any) -> Any:
        return np.concatenate([rnn(x)[0], sn.expand(sn.reduce(x, "first") * 0 + 2, x)], axis=-1)

    x = random(2, 5, 3)
    made = sn.Graph(beside, inputs=sn.Spec(3, "float32"))(x)
    assert_close(made, np.concatenate([x.astype("float64").cumsum(1), np.full((2, 5, 3), 2)], -1), 5, 1)


# ---- inputs of a backend -----------------------------------------------------------------------------------

GIVEN: dict[str, tuple[Any, str]] = {
    "another dtype": (
        {"x": np.zeros((2, 3, 4))},
        "input 'x' is float64 [2, 3, 4]; the model states float32 [?, ?, 4]",
    ),
    "another size": (
        {"x": np.zeros((2, 3, 5), "f4")},
        "input 'x' is float32 [2, 3, 5]; the model states float32 [?, ?, 4]",
    ),
    "another rank": (
        {"x": np.zeros((3, 4), "f4")},
        "input 'x' is float32 [3, 4]; the model states float32 [?, ?, 4]",
    ),
    "no name": ({}, "the model has the inputs x: 'x' missing"),
    "a name too many": (
        {"x": np.zeros((2, 3, 4), "f4"), "z": 1},
        "the model has the inputs x: 'z' is not one of them",
    ),
    "a number for a name": ({0: np.zeros((2, 3, 4), "f4")}, "the model has the inputs x: 'x' missing"),
    "too few": ([], "the model has 1 inputs, x, not 0"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_backend_refuses_other_inputs_than_the_model_states(name: str) -> None:
    given, message = GIVEN[name]
    with pytest.raises(InputError) as error:
        stepnet_onnx.Backend.run_model(model([node("Tanh", "x")]), given)
    assert str(error.value) == message


def test_a_backend_refuses_lists_of_other_lengths() -> None:
    with pytest.raises(InputError, match="input 'x'"):
        stepnet_onnx.Backend.run_model(model([node("Tanh", "x")]), {"x": [[1.0], [2.0, 3.0]]})


@pytest.mark.parametrize(
    ("nodes", "arrays", "words"),
    [
        ([node("Split", "x s", "y z", axis=2)], {"s": [2**40, 4 - 2**40]}, r"sizes .*, and axis 2 has 4"),
        ([node("Split", "x s", "y z", axis=2)], {"s": [7, -3]}, r"sizes \[7, -3\], and axis 2 has 4"),
        ([node("Pad", "x p")], {"p": [0, 0, 0, 0, 0, -(2**40)]}, "cut more off .* than axis 2 has"),
        (
            [node("Expand", "c s", "e"), node("Concat", "x e", axis=2)],
            {"c": np.ones(1, "float32"), "s": [3, 5, 1]},
            r"it joins \[sequences, steps, 4\] and \[3, 5, 1\] along axis 2",
        ),
    ],
    ids=["huge", "negative", "pad", "concat"],
)
def test_sizes_that_do_not_fit_are_refused(nodes: list[Any], arrays: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(model(nodes, **arrays))


def test_a_value_of_two_nodes_is_refused() -> None:
    made = model([node("Tanh", "x", "y")])
    made.graph.node.append(node("Sin", "x", "y"))
    with pytest.raises(FileError, match="two nodes make a value 'y'"):
        read(made)
