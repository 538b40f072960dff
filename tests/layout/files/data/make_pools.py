"""Makes pools.tar.xz: models with one pooling over steps, of which the tests know what they compute.

    python make_pools.py tflite FOLDER      in an environment with TensorFlow
    python make_pools.py paddle FOLDER      in one with PaddlePaddle
    python make_pools.py pack FOLDER

TensorFlow writes the axis of size one around its poolings as RESHAPE where the number of steps is fixed, and
as SQUEEZE where it is open.
"""

import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

STEPS, FEATURES = 13, 4


def tflite(folder: Path) -> None:
    import keras
    import tensorflow as tf

    for name, size, steps in (
        ("pairs_open", 2, None),
        ("pairs_fixed", 2, STEPS),
        ("all_fixed", STEPS, STEPS),
    ):
        x = keras.Input((steps, FEATURES), name="x")
        model = keras.Model(x, keras.layers.AveragePooling1D(size)(x))
        with TemporaryDirectory() as saved:
            model.export(saved)
            data = tf.lite.TFLiteConverter.from_saved_model(saved).convert()
        (folder / f"{name}.tflite").write_bytes(data)


def paddle(folder: Path) -> None:
    import paddle

    class Pool(paddle.nn.Layer):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return paddle.nn.functional.avg_pool1d(x.transpose([0, 2, 1]), x.shape[1]).squeeze(-1)

    spec = [paddle.static.InputSpec([None, STEPS, FEATURES], "float32", "x")]
    paddle.jit.save(Pool(), str(folder / "all_fixed"), input_spec=spec)


def pack(folder: Path) -> None:
    with tarfile.open(Path(__file__).parent / "pools.tar.xz", "w:xz") as archive:
        for path in sorted(folder.iterdir()):
            if path.suffix in (".tflite", ".json"):
                archive.add(path, path.name)


if __name__ == "__main__":
    {"tflite": tflite, "paddle": paddle, "pack": pack}[sys.argv[1]](Path(sys.argv[2]))
