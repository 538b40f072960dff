"""Makes fixed_steps_FORMAT.tar.xz: models of a fixed number of steps with numbers computed of it.

    python make_fixed_steps.py tflite      in an environment with TensorFlow
    python make_fixed_steps.py openvino    in one with OpenVINO
    python make_fixed_steps.py paddle      in one with PaddlePaddle

needs an environment of its own for each, which the tests do not. A model is saved for `STEPS` steps, and run
for these and, made anew for them, for `OTHERS`: `arrays.npz` has NAME/13 and NAME/5, and the inputs x/13 and
x/5. Without an argument it is a table of models, which the tests make with Keras and PyTorch too.
"""

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

HERE = Path(__file__).parent
STEPS, OTHERS, FEATURES = 13, 5, 4
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(0, 0.5, (FEATURES, 3)).astype("float32")
WIDE = RANDOM.normal(0, 0.5, (FEATURES, 2 * STEPS)).astype("float32")


class Tflite:
    """The operations of TensorFlow."""

    endings = (".tflite",)

    def __init__(self) -> None:
        import tensorflow as tf

        self.tf = tf
        for name in ("abs", "exp", "floor", "maximum", "minimum", "sigmoid", "where", "concat", "reshape"):
            setattr(self, name, getattr(tf, name))
        self.sum, self.mean = tf.reduce_sum, tf.reduce_mean
        self.softmax = lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x, [0, 2, 1])), [0, 2, 1])
        self.clip, self.power, self.matmul = tf.clip_by_value, tf.pow, tf.matmul
        self.const = lambda array: tf.constant(array, tf.float32)
        self.tile = lambda x, count: tf.tile(x, [1, count])
        self.pad = lambda x, count: tf.pad(x, [[0, 0], [0, count], [0, 0]])

    def saved(self, made: Callable[[Any], Any], steps: int, path: Path) -> Callable[[Any], Any]:
        tf = self.tf
        run = tf.function(made, input_signature=[tf.TensorSpec((1, steps, FEATURES), tf.float32)])
        data = tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()]).convert()
        path.with_suffix(".tflite").write_bytes(data)
        reader = tf.lite.Interpreter(model_content=data)
        reader.allocate_tensors()

        def called(x: Any) -> Any:
            reader.set_tensor(reader.get_input_details()[0]["index"], x)
            reader.invoke()
            return reader.get_tensor(reader.get_output_details()[0]["index"])

        return called


class Value:
    """A value of OpenVINO with the operators of Python."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def __getitem__(self, index: Any) -> "Value":
        import openvino.opset14 as op

        own = index[1]
        bounds = [[own.start or 0], [2**31 - 1 if own.stop is None else own.stop], [own.step or 1], [1]]
        return Value(op.slice(self.node, *(op.constant(np.array(each, "int64")) for each in bounds)))


def of_openvino(name: str) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        import openvino.opset14 as op

        a, b = (
            each.node if isinstance(each, Value) else op.constant(np.asarray(each, "float32"))
            for each in (a, b)
        )
        return Value(getattr(op, name)(a, b))

    return run


for own, name in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide"),
                  ("pow", "power"), ("gt", "greater")):  # fmt: skip
    setattr(Value, f"__{own}__", of_openvino(name))
    setattr(Value, f"__r{own}__", lambda a, b, name=name: of_openvino(name)(b, a))


class Openvino:
    """The operations of OpenVINO."""

    endings = (".xml", ".bin")

    def __init__(self) -> None:
        import openvino as ov
        from openvino import opset14 as op

        self.ov, self.op = ov, op
        whole = lambda *numbers: op.constant(np.array(numbers, "int64"))  # noqa: E731
        unary = lambda name: lambda x: Value(getattr(op, name)(x.node))  # noqa: E731
        for name in ("abs", "exp", "floor", "sigmoid"):
            setattr(self, name, unary(name))
        self.maximum, self.minimum = of_openvino("maximum"), of_openvino("minimum")
        self.power, self.matmul = (
            of_openvino("power"),
            lambda a, b: Value(op.matmul(a.node, b.node, False, False)),
        )
        self.sum = lambda x, axis: Value(op.reduce_sum(x.node, whole(axis)))
        self.mean = lambda x, axis: Value(op.reduce_mean(x.node, whole(axis)))
        self.softmax = lambda x: Value(op.softmax(x.node, 1))
        self.clip = lambda x, low, high: Value(op.clamp(x.node, low, high))
        self.const = lambda array: Value(op.constant(np.asarray(array, "float32")))
        self.where = lambda c, a, b: Value(op.select(*(each.node for each in (c, a, b))))
        self.concat = lambda values, axis: Value(op.concat([each.node for each in values], axis))
        self.reshape = lambda x, shape: Value(op.reshape(x.node, whole(*shape), False))
        self.tile = lambda x, count: Value(op.tile(x.node, whole(1, count)))
        self.pad = lambda x, count: Value(
            op.pad(x.node, whole(0, 0, 0), whole(0, count, 0), "constant", op.constant(np.float32(0)))
        )

    def saved(self, made: Callable[[Any], Any], steps: int, path: Path) -> Callable[[Any], Any]:
        x = self.op.parameter([1, steps, FEATURES], np.float32, name="x")
        model = self.ov.Model([made(Value(x)).node], [x], "m")
        self.ov.save_model(model, path.with_suffix(".xml"), compress_to_fp16=False)
        compiled = self.ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda array: compiled(array)[0]


class Paddle:
    """The operations of PaddlePaddle."""

    endings = (".json", ".pdiparams")

    def __init__(self) -> None:
        import paddle

        self.paddle = paddle
        for name in ("abs", "exp", "floor", "maximum", "minimum", "where", "concat", "matmul"):
            setattr(self, name, getattr(paddle, name))
        self.sum, self.mean, self.power, self.clip = paddle.sum, paddle.mean, paddle.pow, paddle.clip
        self.sigmoid = paddle.nn.functional.sigmoid
        self.softmax = lambda x: paddle.nn.functional.softmax(x, 1)
        self.const = lambda array: paddle.to_tensor(np.asarray(array, "float32"))
        self.reshape = paddle.reshape
        self.tile = lambda x, count: paddle.expand(x.unsqueeze(1), [-1, count, -1]).flatten(1)
        self.pad = lambda x, count: paddle.nn.functional.pad(x, [0, count], data_format="NLC")

    def saved(self, made: Callable[[Any], Any], steps: int, path: Path) -> Callable[[Any], Any]:
        paddle = self.paddle

        class Layer(paddle.nn.Layer):
            def forward(self, x: Any) -> Any:
                return made(x)

        layer = Layer()
        layer.eval()
        spec = [paddle.static.InputSpec([None, steps, FEATURES], "float32", "x")]
        paddle.jit.save(layer, str(path.with_suffix("")), input_spec=spec)
        return lambda array: made(paddle.to_tensor(array)).numpy()


Case = Callable[[Any, Any, int], Any]
COMPUTED: dict[str, Case] = {
    "quotient": lambda f, x, n: f.sum(x, 1) / float(n),
    "factor": lambda f, x, n: f.sum(x, 1) * (1 / n),
    "root": lambda f, x, n: f.sum(x, 1) / n**0.5,
    "inverse root": lambda f, x, n: f.sum(x, 1) * n**-0.5,
    "power": lambda f, x, n: f.power(f.abs(f.sum(x, 1)) + 1.0, f.const(1 / n)),
    "added": lambda f, x, n: f.mean(x, 1) + float(n),
    "subtracted": lambda f, x, n: f.mean(x, 1) - float(n),
    "subtracted from": lambda f, x, n: float(n) - f.mean(x, 1),
    "at least": lambda f, x, n: f.maximum(f.sum(x, 1), f.const(n / 10)),
    "at most": lambda f, x, n: f.minimum(f.sum(x, 1), f.const(1 / n)),
    "logarithm": lambda f, x, n: f.mean(x, 1) * float(np.log(n)),
    "one less": lambda f, x, n: f.sum(x, 1) / float(n - 1),
    "half": lambda f, x, n: f.sum(x, 1) / float(n // 2),
    "twice": lambda f, x, n: f.mean(x, 1) * float(2 * n),
    "ratio": lambda f, x, n: f.mean(x, 1) * (n / (n + 1)),
    "at each step": lambda f, x, n: x / float(n),
    "of each feature": lambda f, x, n: x + f.const(np.full(FEATURES, n)),
    "of each step": lambda f, x, n: x * f.const(np.full((n, 1), 1 / n)),
    "later half": lambda f, x, n: x[:, n // 2 :],
    "earlier half": lambda f, x, n: x[:, : n // 2],
    "mean of a half": lambda f, x, n: f.mean(x[:, n // 2 :], 1),
    "all but the first": lambda f, x, n: f.mean(x[:, 2:n], 1),
    "strided": lambda f, x, n: f.sum(x[:, :: n // 2], 1),
    "up to sixteen": lambda f, x, n: f.mean(f.pad(x, 16 - n), 1),
    "copies": lambda f, x, n: f.tile(f.mean(x, 1), n),
    "sum of copies": lambda f, x, n: f.sum(f.tile(f.mean(x, 1), n), 1),
    "last alone": lambda f, x, n: f.sum(x * f.const((np.arange(n) == n - 1)[:, None]), 1),
    "positions": lambda f, x, n: x + f.const(np.arange(n)[:, None] / n),
    "decay": lambda f, x, n: f.sum(x * f.const(0.9 ** np.arange(n)[::-1][:, None]), 1),
    "temperature": lambda f, x, n: f.softmax(x / float(n)),
    "limits": lambda f, x, n: f.clip(4.0 * f.sum(x, 1), -n / 10, n / 10),
    "exponential": lambda f, x, n: f.exp(f.mean(x, 1) * (-1 / n)),
    "threshold": lambda f, x, n: f.where(
        f.sum(x, 1) > n / 10, f.const(np.ones((1, FEATURES))) * f.sum(x, 1), f.mean(x, 1)
    ),
    "floor": lambda f, x, n: f.floor(f.sum(x, 1) * 9.0 / float(n)),
    "beside": lambda f, x, n: f.concat([f.mean(x, 1), f.mean(x, 1) * 0.0 + float(n)], 1),
    "variance": lambda f, x, n: f.sum(f.power(x, f.const(2.0)), 1) / float(n - 1),
    "as many": lambda f, x, n: f.sum(
        f.reshape(f.matmul(f.mean(x, 1), f.const(WIDE[:, : 2 * n])), [-1, n, 2]), 1
    ),
    "equal weights": lambda f, x, n: f.matmul(f.mean(x, 1), f.const(np.full((FEATURES, 3), 1 / n))),
    "nested": lambda f, x, n: f.sigmoid(f.sum(f.sigmoid(x / float(n)), 1) * n**-0.5) * float(n),
}
"""Functions of the operations, an input and the number of steps, with a number that was computed of that."""
FREE: dict[str, Case] = {
    "weights": lambda f, x, n: f.sigmoid(f.matmul(f.mean(x, 1), f.const(W))),
    "sums": lambda f, x, n: f.sum(x, 1) + f.mean(x, 1),
    "gate": lambda f, x, n: (1.0 - f.sigmoid(x)) * f.power(x, f.const(2.0)),
    "weights of each feature": lambda f, x, n: x * f.const(W[:, 0]) + f.const(W[:, 1]),
    "softmax": lambda f, x, n: f.softmax(x),
}
"""Functions without such a number."""


def main() -> None:
    name = sys.argv[1]
    made = {"tflite": Tflite, "openvino": Openvino, "paddle": Paddle}[name]()
    arrays = {f"x/{n}": RANDOM.normal(size=(1, n, FEATURES)).astype("float32") for n in (STEPS, OTHERS)}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for title, case in {**COMPUTED, **FREE}.items():
            for n in (OTHERS, STEPS):  # the files are those of the last
                try:
                    run = made.saved(
                        lambda x, n=n, case=case: case(made, x, n), n, place / title.replace(" ", "_")
                    )
                    arrays[f"{title}/{n}"] = np.asarray(run(arrays[f"x/{n}"]))
                except Exception as error:  # what the framework does not convert
                    print(f"{title} of {n}: {str(error)[:300]}")
        np.savez(place / "arrays.npz", **arrays)
        with tarfile.open(HERE / f"fixed_steps_{name}.tar.xz", "w:xz") as archive:
            for path in sorted(place.iterdir()):
                if path.suffix in (*made.endings, ".npz"):
                    archive.add(path, path.name)


if __name__ == "__main__":
    main()
