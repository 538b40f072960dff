"""Poolings over steps in files of TensorFlow Lite, Paddle and ONNX: over a part of the steps, and over all,
whose one step a model takes as a feature. What they compute is known: means of steps.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from containers import unpacked
from tolerance import assert_close

import stepnet as sn
import stepnet.onnx
from stepnet.errors import InputError

DATA = Path(__file__).parent / "data"
STEPS, FEATURES = 13, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what data/make_pools.py made."""
    folder = tmp_path_factory.mktemp("pools")
    unpacked(DATA / "pools.tar.xz", folder)
    return folder


def x_of(steps: int) -> np.ndarray:
    return np.random.default_rng(steps).normal(size=(2, steps, FEATURES)).astype("float32")


@pytest.mark.parametrize("name", ["pairs_open", "pairs_fixed"])
def test_a_pooling_of_tensorflow_is_for_any_number_of_steps(name: str, folder: Path):
    graph = sn.load(folder / f"{name}.tflite")
    for steps in (STEPS, 26, 2):
        x = x_of(steps)
        pairs = x[:, : steps // 2 * 2].reshape(2, steps // 2, 2, FEATURES).mean(2)
        assert_close(np.asarray(graph(x)), pairs, 2)


ALL = {
    "all_fixed.tflite": ("AVERAGE_POOL_2D", (2, 1, FEATURES)),
    "all_fixed.json": ("pool2d", (2, FEATURES)),
}
"""Files with a pooling of all steps: its operator, and the shape of the result."""


@pytest.mark.parametrize("name", ALL)
def test_a_pooling_of_all_steps_is_for_the_steps_of_the_file(name: str, folder: Path):
    operator, shape = ALL[name]
    graph, x = sn.load(folder / name), x_of(STEPS)
    assert_close(np.asarray(graph(x)), x.mean(1).reshape(shape), STEPS)
    with pytest.raises(InputError, match=rf"for 13 steps, and sequence 0 has 26; the number 13 .*{operator}"):
        graph(x_of(26))
    anyway = sn.load(folder / name, steps="any")
    assert_close(np.asarray(anyway(x)), x.mean(1).reshape(shape), STEPS)


def onnx_file(path: Path, nodes: list[onnx.NodeProto], **arrays: np.ndarray) -> Path:
    """Writes a model of an input x [batch, 13, 4] and an output y."""
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        nodes,
        "g",
        [make.make_tensor_value_info("x", number, ["batch", STEPS, FEATURES])],
        [make.make_tensor_value_info("y", number, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("op", ["Squeeze", "Reshape", "Flatten"])
def test_the_one_step_that_a_stride_leaves_is_for_the_steps_of_the_file(op: str, tmp_path: Path):
    node = onnx.helper.make_node
    last = {
        "Squeeze": node("Squeeze", ["p", "last"], ["y"], name="s"),
        "Reshape": node("Reshape", ["p", "shape"], ["y"], name="s"),
        "Flatten": node("Flatten", ["p"], ["y"], name="s"),
    }[op]
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("MaxPool", ["t"], ["p"], kernel_shape=[5], strides=[10]),
        last,
    ]
    path = onnx_file(tmp_path / "m.onnx", nodes, last=np.array([2]), shape=np.array([-1, FEATURES]))
    graph, x = sn.load(path), x_of(STEPS)
    assert_close(np.asarray(graph(x)), x[:, :5].max(1), 5)
    with pytest.raises(InputError, match=rf"sequence 0 has 26; the number 13 of node 's' \({op}\)"):
        graph(x_of(26))
    anyway = sn.load(path, steps="any")
    assert_close(np.asarray(anyway(x_of(14))), x_of(14)[:, :5].max(1), 5)
    for several in (4, 26):
        assert np.isnan(np.asarray(anyway(x_of(several)))).all()


def test_a_size_is_inferred_beside_the_steps_of_the_file(tmp_path: Path):
    node = onnx.helper.make_node
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "heads"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Reshape", ["r", "joined"], ["j"]),
        node("Transpose", ["j"], ["y"], perm=[1, 0, 2]),
    ]
    arrays = {"heads": np.array([STEPS, -1, 2]), "joined": np.array([STEPS, -1, FEATURES])}
    graph = sn.load(onnx_file(tmp_path / "m.onnx", nodes, **arrays))
    for steps in (STEPS, 5):
        assert_close(np.asarray(graph(x_of(steps))), np.maximum(x_of(steps), 0), 1)
