"""Makes copies_FORMAT.tar.xz: models that put copies of entries around steps or features, and their results.

    python make_copies.py tflite      in an environment with TensorFlow
    python make_copies.py openvino    in one with OpenVINO
    python make_copies.py paddle      in one with PaddlePaddle

needs an environment of its own for each, which the tests do not. `arrays.npz` has NAME/9 and NAME/5, and the
inputs x/9 and x/5 [batch, steps, features].
"""

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LENGTHS, FEATURES = (9, 5), 4
CASES: dict[str, tuple[str, tuple[int, int], tuple[int, int]]] = {
    "reflected steps": ("reflect", (2, 1), (0, 0)),
    "reflected ahead": ("reflect", (4, 0), (0, 0)),
    "replicated steps": ("edge", (1, 6), (0, 0)),
    "reflected features": ("reflect", (0, 0), (3, 1)),
    "reflected both": ("reflect", (0, 3), (1, 0)),
    "replicated features": ("edge", (0, 0), (0, 5)),
    "symmetric features": ("symmetric", (0, 0), (2, 4)),
    "wrapped features": ("wrap", (0, 0), (3, 1)),
    "symmetric steps": ("symmetric", (2, 0), (0, 0)),
    "wrapped steps": ("wrap", (0, 2), (0, 0)),
}
"""The mode as `numpy.pad` has it, and the copies at both ends of the steps and of the features."""


class Tflite:
    """TensorFlow Lite, whose files state a number of steps, which the interpreter may change."""

    endings = (".tflite",)
    modes: tuple[str, ...] = ("reflect", "symmetric")

    def saved(self, case: Any, path: Path) -> Callable[[Any], Any]:
        import tensorflow as tf

        mode, steps, features = case
        made = lambda x: tf.pad(tf.abs(x), [[0, 0], steps, features], mode.upper())  # noqa: E731
        run = tf.function(made, input_signature=[tf.TensorSpec((1, LENGTHS[0], FEATURES), tf.float32)])
        data = tf.lite.TFLiteConverter.from_concrete_functions([run.get_concrete_function()]).convert()
        path.with_suffix(".tflite").write_bytes(data)

        def called(x: Any) -> Any:
            reader = tf.lite.Interpreter(model_content=data)
            reader.resize_tensor_input(reader.get_input_details()[0]["index"], x.shape)
            reader.allocate_tensors()
            reader.set_tensor(reader.get_input_details()[0]["index"], x)
            reader.invoke()
            return reader.get_tensor(reader.get_output_details()[0]["index"])

        return called


class Openvino:
    """OpenVINO, with an open number of steps."""

    endings = (".xml", ".bin")
    modes = ("reflect", "edge", "symmetric")

    def saved(self, case: Any, path: Path) -> Callable[[Any], Any]:
        import openvino as ov
        from openvino import opset14 as op

        mode, steps, features = case
        x = op.parameter([1, -1, FEATURES], np.float32, name="x")
        before, after = (op.constant(np.array([0, steps[end], features[end]], "int64")) for end in (0, 1))
        positive = op.abs(x)
        model = ov.Model([op.pad(positive, before, after, mode)], [x], "m")
        ov.save_model(model, path.with_suffix(".xml"), compress_to_fp16=False)
        compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda array: compiled(array)[0]


class Paddle:
    """PaddlePaddle, with an open number of steps: of features ahead of steps, as its modes of padding are."""

    endings = (".json", ".pdiparams")
    modes = ("reflect", "edge", "wrap")

    def saved(self, case: Any, path: Path) -> Callable[[Any], Any]:
        import paddle

        mode, steps, features = case
        own = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]

        class Layer(paddle.nn.Layer):
            def forward(self, x: Any) -> Any:
                # As pictures of one row and one channel, so that both axes are places.
                picture = x.abs().unsqueeze(1)
                pads = [*features, *steps]
                return paddle.nn.functional.pad(picture, pads, mode=own, data_format="NCHW").squeeze(1)

        layer = Layer()
        layer.eval()
        spec = [paddle.static.InputSpec([None, None, FEATURES], "float32", "x")]
        paddle.jit.save(layer, str(path.with_suffix("")), input_spec=spec)
        return lambda array: layer(paddle.to_tensor(array)).numpy()


def main() -> None:
    name, random = sys.argv[1], np.random.default_rng(0)
    made = {"tflite": Tflite, "openvino": Openvino, "paddle": Paddle}[name]()
    arrays = {f"x/{n}": random.normal(size=(1, n, FEATURES)).astype("float32") for n in LENGTHS}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for title, case in CASES.items():
            if case[0] not in made.modes:
                continue
            run = made.saved(case, place / title.replace(" ", "_"))
            for n in LENGTHS:
                arrays[f"{title}/{n}"] = np.asarray(run(arrays[f"x/{n}"]))
        np.savez(place / "arrays.npz", **arrays)
        with tarfile.open(HERE / f"copies_{name}.tar.xz", "w:xz") as archive:
            for path in sorted(place.iterdir()):
                if path.suffix in (*made.endings, ".npz"):
                    archive.add(path, path.name)


if __name__ == "__main__":
    main()
