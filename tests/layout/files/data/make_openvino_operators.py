"""Makes openvino_operators.tar.xz: a model with every operator that stepnet has a row for, and its results.

Needs what the group peer-openvino of pyproject.toml has, in an environment of its own:
python tests/layout/files/data/make_openvino_operators.py

The model is a GRUSequence, and one output for each operator of its outputs y [batch, steps, 5]. An output is
called as the operator is in the .xml; a second use of an operator has a word behind its name.
"""

import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset14 as op

HERE = Path(__file__).parent
FEATURES, HIDDEN, LENGTHS = 4, 5, (7, 3, 1)
RANDOM = np.random.default_rng(0)


def const(value: Any, dtype: Any = None) -> Any:
    return op.constant(np.asarray(value, dtype))


def floats(*shape: int) -> Any:
    return op.constant(RANDOM.normal(0, 0.5, shape).astype("float32"))


def gru(x: Any) -> Any:
    """The outputs of a GRUSequence at every step, [batch, steps, hidden]."""
    shapes = (1, 3 * HIDDEN, FEATURES), (1, 3 * HIDDEN, HIDDEN), (1, 4 * HIDDEN)
    shape = op.shape_of(x)
    batch, steps = (op.gather(shape, const([place]), const(0)) for place in (0, 1))
    state = op.broadcast(const(0, "f4"), op.concat([batch, const([1]), const([HIDDEN])], 0))
    lengths = op.broadcast(steps, batch)
    made = op.gru_sequence(
        x, state, lengths, *(floats(*shape) for shape in shapes), HIDDEN, "forward", linear_before_reset=True
    )
    return op.squeeze(made.output(0), const([1]))


def positive(y: Any) -> Any:
    return op.add(op.abs(y), const(0.1, "f4"))


def split(y: Any) -> Any:
    first, second = op.split(
        op.slice(y, const([0]), const([4]), const([1]), const([2])), const(2), 2
    ).outputs()
    return op.subtract(first, second)


def parts(y: Any) -> Any:
    first, second = op.variadic_split(y, const(2), const([2, -1])).outputs()
    return op.concat([second, first], -1)


def truth(y: Any) -> Any:
    return op.greater(y, const(0, "f4"))


def numbers(condition: Any) -> Any:
    return op.convert(condition, "f32")


def by_steps(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """An operation over [batch, features, steps], its result turned back."""
    order = const([0, 2, 1])
    return lambda y: op.transpose(function(op.transpose(y, order)), order)


TWO = np.float32([0.3, -0.2, 0.1, 0.5, -0.4])
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "Abs": op.abs,
    "Add": lambda y: op.add(y, const(TWO)),
    "Atan": op.atan,
    "AvgPool": by_steps(lambda y: op.avg_pool(y, [1], [1], [1], [3], False)),
    "AvgPool own": by_steps(lambda y: op.avg_pool(y, [1], [1], [1], [3], True)),
    "Broadcast": lambda y: op.add(y, op.broadcast(const([0.5], "f4"), op.shape_of(y))),
    "Ceiling": lambda y: op.ceiling(op.multiply(y, const(4, "f4"))),
    "Clamp": lambda y: op.clamp(y, -0.2, 0.3),
    "Concat": lambda y: op.concat([y, y], 2),
    "Convert": lambda y: numbers(truth(y)),
    "ConvertLike": lambda y: op.convert_like(truth(y), y),
    "Convolution": by_steps(lambda y: op.convolution(y, floats(3, HIDDEN, 3), [1], [2], [2], [2])),
    "Convolution same": by_steps(
        lambda y: op.convolution(y, floats(3, HIDDEN, 4), [1], [0], [0], [1], "same_lower")
    ),
    "Convolution rows": lambda y: op.squeeze(
        op.convolution(op.unsqueeze(y, const(1)), floats(1, 1, 3, 2), [1, 1], [1, 0], [1, 1], [1, 1]),
        const(1),
    ),
    "ConvolutionBackpropData": by_steps(
        lambda y: op.convolution_backprop_data(y, floats(HIDDEN, 3, 4), [1], pads_begin=[1], pads_end=[2])
    ),
    "Cos": op.cos,
    "Cosh": op.cosh,
    "CumSum": lambda y: op.cum_sum(y, const(2), exclusive=True, reverse=True),
    "CumSum steps": lambda y: op.cum_sum(y, const(1)),
    "Divide": lambda y: op.divide(y, positive(y)),
    "Divide steps": lambda y: op.divide(
        op.reduce_sum(y, const([1])), op.convert(op.gather(op.shape_of(y), const([1]), const(0)), "f32")
    ),
    "Elu": lambda y: op.elu(y, 0.7),
    "Equal": lambda y: numbers(op.equal(op.floor(y), const(0, "f4"))),
    "Erf": op.erf,
    "Exp": op.exp,
    "Floor": lambda y: op.floor(op.multiply(y, const(4, "f4"))),
    "FloorMod": lambda y: op.floor_mod(y, const(0.3, "f4")),
    "Gather": lambda y: op.gather(y, const([3, 0]), const(2)),
    "Gather step": lambda y: op.gather(y, const(-1), const(1)),
    "Gelu": lambda y: op.gelu(y, "erf"),
    "Gelu tanh": lambda y: op.gelu(y, "tanh"),
    "Greater": lambda y: numbers(op.greater(y, const(0.1, "f4"))),
    "GreaterEqual": lambda y: numbers(op.greater_equal(y, const(0.1, "f4"))),
    "GroupConvolution": by_steps(
        lambda y: op.group_convolution(
            op.slice(y, const([0]), const([4]), const([1]), const([1])),
            floats(2, 3, 2, 3),
            [1],
            [1],
            [1],
            [1],
        )
    ),
    "HSigmoid": lambda y: op.hsigmoid(op.multiply(y, const(6, "f4"))),
    "HSwish": lambda y: op.hswish(op.multiply(y, const(6, "f4"))),
    "HardSigmoid": lambda y: op.hard_sigmoid(y, const(0.7, "f4"), const(0.4, "f4")),
    "Less": lambda y: numbers(op.less(y, const(0.1, "f4"))),
    "LessEqual": lambda y: numbers(op.less_equal(y, const(0.1, "f4"))),
    "Log": lambda y: op.log(positive(y)),
    "LogSoftmax": lambda y: op.log_softmax(y, -1),
    "LogicalAnd": lambda y: numbers(op.logical_and(truth(y), truth(op.cos(y)))),
    "LogicalNot": lambda y: numbers(op.logical_not(truth(y))),
    "LogicalOr": lambda y: numbers(op.logical_or(truth(y), truth(op.sin(y)))),
    "LogicalXor": lambda y: numbers(op.logical_xor(truth(y), truth(op.cos(y)))),
    "MatMul": lambda y: op.matmul(y, floats(HIDDEN, 3), False, False),
    "MatMul transposed": lambda y: op.matmul(y, floats(3, HIDDEN), False, True),
    "MVN": lambda y: op.mvn(y, const([2]), True, 1e-3, "inside_sqrt"),
    "MVN outside": lambda y: op.mvn(y, const([2]), True, 1e-3, "outside_sqrt"),
    "MaxPool": by_steps(lambda y: op.max_pool(y, [1], [1], [1], [1], [3]).output(0)),
    "Maximum": lambda y: op.maximum(y, const(TWO)),
    "Minimum": lambda y: op.minimum(y, const(TWO)),
    "Mod": lambda y: op.mod(y, const(0.3, "f4")),
    "Multiply": lambda y: op.multiply(y, const(TWO)),
    "Negative": op.negative,
    "NotEqual": lambda y: numbers(op.not_equal(op.floor(y), const(0, "f4"))),
    "Pad": lambda y: op.pad(y, const([0, 2, 0]), const([0, 1, 1]), "constant", const(0, "f4")),
    "PReLU": lambda y: op.prelu(y, const(TWO[0])),
    "Power": lambda y: op.power(positive(y), const(1.5, "f4")),
    "ReLU": op.relu,
    "ReduceMax": lambda y: op.reduce_max(y, const([2]), True),
    "ReduceMax steps": lambda y: op.reduce_max(y, const([1])),
    "ReduceMean": lambda y: op.reduce_mean(y, const([1, 2])),
    "ReduceMin": lambda y: op.reduce_min(y, const([-1])),
    "ReduceSum": lambda y: op.reduce_sum(y, const([1]), True),
    "Reshape": lambda y: op.reshape(y, const([0, 0, 5, 1]), True),
    "Select": lambda y: op.select(truth(y), y, const(TWO)),
    "Selu": lambda y: op.selu(y, const(1.6, "f4"), const(1.1, "f4")),
    "ShapeOf": lambda y: op.reshape(y, op.concat([op.shape_of(y), const([1])], 0), False),
    "Sigmoid": op.sigmoid,
    "Sign": op.sign,
    "Sin": op.sin,
    "Sinh": op.sinh,
    "Slice": lambda y: op.slice(y, const([1]), const([5]), const([2]), const([2])),
    "Slice step": lambda y: op.slice(y, const([0]), const([1]), const([1]), const([1])),
    "SoftMax": lambda y: op.softmax(y, 2),
    "SoftMax steps": lambda y: op.softmax(y, 1),
    "SoftPlus": op.softplus,
    "Split": split,
    "Sqrt": lambda y: op.sqrt(positive(y)),
    "SquaredDifference": lambda y: op.squared_difference(y, const(TWO)),
    "Squeeze": lambda y: op.squeeze(op.unsqueeze(y, const([2])), const([2])),
    "Subtract": lambda y: op.subtract(const(TWO), y),
    "Swish": op.swish,
    "Swish of beta": lambda y: op.swish(y, const(1.7, "f4")),
    "Tan": op.tan,
    "StridedSlice": lambda y: op.strided_slice(
        y, const([0, 0, 1]), const([0, 0, 4]), const([1, 1, 2]), [1, 1, 0], [1, 1, 0]
    ),
    "Tanh": op.tanh,
    "Tile": lambda y: op.tile(y, const([1, 1, 2])),
    "Transpose": lambda y: op.transpose(y, const([1, 0, 2])),
    "Unsqueeze": lambda y: op.unsqueeze(y, const([-1])),
    "VariadicSplit": parts,
}


def main() -> None:
    x = op.parameter([-1, -1, FEATURES], np.float32, name="frames")
    y = gru(x)
    made = {name: function(y) for name, function in OPERATORS.items()}
    results = []
    for name, node in made.items():
        same = op.add(node, const(0, "f4"))  # a node of its own, which no pass joins with others
        same.set_friendly_name(name)
        results.append(op.result(same))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "operators.xml"
        ov.save_model(ov.Model(results, [x], "operators"), path, compress_to_fp16=False)
        compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        arrays: dict[str, np.ndarray] = {}
        for length in LENGTHS:
            given = RANDOM.normal(size=(1, length, FEATURES)).astype("float32")
            arrays[f"{length}/frames"] = given
            for name, array in zip(made, compiled([given]).values(), strict=True):
                arrays[f"{length}/{name}"] = np.array(array)
        np.savez(Path(folder) / "operators.npz", **arrays)
        with tarfile.open(HERE / "openvino_operators.tar.xz", "w:xz") as packed:
            for each in sorted(Path(folder).iterdir()):
                packed.add(each, each.name)


if __name__ == "__main__":
    main()
