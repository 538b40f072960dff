"""The tables of numbers that a post on the parameters of Keras and cuDNN prints, of a GRU and an LSTM of 2
inputs and 3 hidden units, as TensorFlow held them and as cuDNN was given them; and what the design of
Paddle's oneDNN GRU says of its reorders.

The post calls the first block of Keras' GRU r and the second i, and of its LSTM the third o and the fourth c.
By its equations, in which i keeps the old memory, they are z (its i) and then r; TensorFlow has c before o.
Its numbers are right, and are what is compared here.
"""

from typing import Any

import numpy as np
import pytest
from index_maps import index_map
from seeds import PRINTED

from stepnet.layout import Sizes, convert, record

TABLES = {cell: (*both["keras"].values(), both["cudnn"]["weight_space"]) for cell, both in PRINTED.items()}
BLOCKS = {  # of cuDNN's vector, in the order of the table's colours, and how many numbers each has
    "gru": "W_r 6 W_z 6 W_n 6 R_r 9 R_z 9 R_n 9 b_r 3 b_z 3 b_n 3 d_r 3 d_z 3 d_n 3",
    "lstm": "W_i 6 W_f 6 W_g 6 W_o 6 R_i 9 R_f 9 R_g 9 R_o 9 b_i 3 b_f 3 b_g 3 b_o 3 d_i 3 d_f 3 d_g 3 d_o 3",
}
DTYPES = ("float32", "float64")


def numbers(text: str, dtype: str, rows: int = 0) -> np.ndarray:
    found = np.array(text.split(), dtype)
    return found.reshape(rows, -1) if rows else found


def printed(array: np.ndarray) -> list[str]:
    """Numbers as the post prints them."""
    return [f"{number:.6f}" for number in array.ravel()]


def keras(cell: str, dtype: str) -> dict[str, np.ndarray]:
    kernel, recurrent, bias, _ = TABLES[cell]
    return {
        "kernel": numbers(kernel, dtype, 2),
        "recurrent_kernel": numbers(recurrent, dtype, 3),
        "bias": numbers(bias, dtype, 2 if cell == "gru" else 0),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", TABLES)
def test_keras_to_cudnn(cell: str, dtype: str):
    done = convert(keras(cell, dtype), f"keras.{cell}", f"cudnn.{cell}")
    vector = done.arrays["weight_space"]
    assert printed(vector) == TABLES[cell][3].split()
    assert np.array_equal(vector, numbers(TABLES[cell][3], dtype))
    assert done.report.exact


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", TABLES)
def test_cudnn_to_keras(cell: str, dtype: str):
    vector = numbers(TABLES[cell][3], dtype)
    sizes = {"inputs": 2, "hidden": 3}
    done = convert({"weight_space": vector}, f"cudnn.{cell}", f"keras.{cell}", sizes=sizes)
    right = keras(cell, dtype)
    assert list(done.arrays) == list(right)
    for name, text in zip(right, TABLES[cell], strict=False):
        assert done.arrays[name].shape == right[name].shape
        assert printed(done.arrays[name]) == text.split()
        assert np.array_equal(done.arrays[name], right[name])
    assert done.report.exact


@pytest.mark.parametrize("cell", TABLES)
def test_the_blocks_of_the_vector_are_those_of_the_colours(cell: str):
    named = np.empty(len(TABLES[cell][3].split()), object)
    for block, (_, places) in index_map(record(f"cudnn.{cell}"), Sizes(inputs=2, hidden=3)).items():
        named[places] = str(block)
    words = BLOCKS[cell].split()
    pairs = zip(words[::2], words[1::2], strict=True)
    assert named.tolist() == [name for name, count in pairs for _ in range(int(count))]


# ---- Paddle's fusion_gru and oneDNN's gru ------------------------------------------------------------------

INPUTS, HIDDEN = 4, 3


def paddle() -> dict[str, np.ndarray]:
    """Every number another one."""
    counted = np.arange(1, 3 * HIDDEN * (INPUTS + HIDDEN + 1) + 1, dtype="float32")
    x, h, b = np.split(counted, [3 * HIDDEN * INPUTS, 3 * HIDDEN * (INPUTS + HIDDEN)])
    return {"WeightX": x.reshape(INPUTS, -1), "WeightH": h.reshape(HIDDEN, -1), "Bias": b.reshape(1, -1)}


def onednn(arrays: dict[str, np.ndarray], sign: int) -> dict[str, np.ndarray]:
    """The weights by the design: WeightX and Bias lie as they are, WeightH is [OC, 2 OC] and [OC, OC], which
    become [OC, 3, OC], and the part of the update gate, the first, is multiplied by the sign.
    """
    gates, candidate = np.split(arrays["WeightH"].ravel(), [2 * HIDDEN * HIDDEN])
    middle = gates.reshape(HIDDEN, 2, HIDDEN), candidate.reshape(HIDDEN, 1, HIDDEN)
    turned = np.array([sign, 1, 1], "float32")[:, None]
    return {
        "weights_layer": arrays["WeightX"].reshape(1, 1, INPUTS, 3, HIDDEN) * turned,
        "weights_iter": np.concatenate(middle, 1).reshape(1, 1, HIDDEN, 3, HIDDEN) * turned,
        "bias": arrays["Bias"].reshape(1, 1, 3, HIDDEN) * turned,
    }


@pytest.mark.parametrize(("update", "sign"), [("keep", 1), ("write", -1)])
def test_paddle_to_onednn_and_back(update: str, sign: int):
    """origin_mode is true where z keeps the old memory, which is all that oneDNN has."""
    given: Any = {"update": update}
    done = convert(paddle(), "paddle.fusion_gru", "onednn.gru", semantics=given)
    right = onednn(paddle(), sign)
    assert done.arrays.keys() == right.keys()
    for name, array in right.items():
        assert done.arrays[name].shape == array.shape
        assert np.array_equal(done.arrays[name], array)
    assert done.report.exact
    assert ("negated" in {step.kind for step in done.report.steps}) == (sign < 0)
    again = convert(done.arrays, "onednn.gru", "paddle.fusion_gru", semantics={"target": given})
    assert all(np.array_equal(again.arrays[name], array) for name, array in paddle().items())
    assert again.report.settings["origin_mode"] is (update == "keep")


def test_a_bias_that_paddle_leaves_out_is_zeros_for_onednn():
    arrays = paddle()
    del arrays["Bias"]
    done = convert(arrays, "paddle.fusion_gru", "onednn.gru", semantics={"update": "keep"})
    assert np.array_equal(done.arrays["bias"], np.zeros((1, 1, 3, HIDDEN), "float32"))
    right = onednn(paddle(), 1)
    assert np.array_equal(done.arrays["weights_iter"], right["weights_iter"])
