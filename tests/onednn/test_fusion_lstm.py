"""fusion_lstm beside a plain loop in float64, its memory c too, which Paddle's tests on oneDNN leave out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

from stepnet import onednn
from stepnet.errors import InputError, RefusedError
from tests.onednn.oracle import Case, case, lstm

pytestmark = pytest.mark.usefixtures("dnnl")


def run(inputs: Case, cell: str = "last", **settings: Any) -> None:
    """Runs the operator and checks outputs, h and c."""
    right = lstm(inputs, **settings)
    outputs, final = onednn.fusion_lstm(*inputs.lstm_arguments(), cell=cell, **settings)
    longest = max(map(len, inputs.x), default=0)
    width = inputs.inputs + inputs.hidden
    wanted = [(outputs["h"] if cell == "all" else outputs, right.outputs)]
    if cell == "all":
        wanted.append((outputs["c"], right.cells))
    for made, rows in wanted:
        for ours, theirs in zip(made.to_list(), rows, strict=True):
            assert_close(ours, theirs.astype(np.float32), longest, width)
    assert_close(final["h"], right.h.astype(np.float32), longest, width)
    assert ("c" in final) == (cell != "none")
    if "c" in final:
        assert_close(final["c"], right.c.astype(np.float32), longest, width)


PLAIN = {"gates": 4, "biases": 4}
PEEPHOLES = {"gates": 4, "biases": 7}
LENGTHS = [[2, 4, 3], [3], [4, 4, 4], [2, 0, 4], [0, 3, 0], [0], [], [5, 5, 2, 2, 1], [7, 1, 11, 13, 2]]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("biases", [PLAIN, PEEPHOLES], ids=["plain", "peepholes"])
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("cell", ["last", "all", "none"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(biases: dict[str, int], is_reverse: bool, cell: str, lengths: list[int]):
    run(case(lengths, **biases), cell, is_reverse=is_reverse)


@pytest.mark.parametrize("left", [("h0", "c0"), ("h0",), ("c0",), ("bias",), ("h0", "c0", "bias")], ids=str)
@pytest.mark.parametrize("cell", ["last", "all"])
def test_what_is_left_out(left: tuple[str, ...], cell: str):
    run(case([2, 4, 3], **PLAIN).without(*left), cell)


@pytest.mark.parametrize(("inputs", "hidden"), [(36, 8), (8, 8), (17, 15), (3, 16), (1, 1), (13, 31)])
@pytest.mark.parametrize("is_reverse", [False, True])
def test_sizes(inputs: int, hidden: int, is_reverse: bool):
    run(case([2, 4, 3], inputs, hidden, **PLAIN), is_reverse=is_reverse)
    run(case([2, 4, 3], inputs, hidden, **PEEPHOLES), is_reverse=is_reverse)


def test_everything_changes_between_calls():
    whole = case([4, 2, 3, 4, 1, 7], **PLAIN)
    for rows in ([0, 1], [0, 1, 2, 3], [3], [5, 0], [2, 4]):
        part = replace(whole, x=[whole.x[row] for row in rows])
        for scale in (1, -2):
            run(replace(part, h0=scale * whole.h0[rows], c0=scale * whole.c0[rows]))


def test_peepholes_that_are_not_used():
    inputs = case([2, 4], **PEEPHOLES)
    made, _ = onednn.fusion_lstm(*inputs.lstm_arguments(), use_peepholes=False)
    right = lstm(replace(inputs, bias=inputs.bias[:, :20]))
    assert_close(made.to_list()[1], right.outputs[1].astype(np.float32), 4, 8)


@pytest.mark.parametrize("name", ["gate_activation", "cell_activation", "candidate_activation"])
def test_other_activations_run_on_llvm(name: str):
    inputs = case([2, 0, 3], **PLAIN)
    settings: Any = {name: "relu"}
    run(inputs, is_reverse=True, **settings)
    run(inputs, "none", **settings)
    layer = onednn.lstm_layer(inputs.weight_x, inputs.weight_h, inputs.bias, **settings)
    assert layer.engine == "llvm"
    with pytest.raises(RefusedError, match="only oneDNN returns c of each step"):
        layer(inputs.ragged, cell="all")
    with pytest.raises(RefusedError, match="this layer runs on llvm, which has no bfloat16"):
        layer.in_dtype("bfloat16")


def test_wrong_arguments():
    inputs = case([2], **PLAIN)
    with pytest.raises(InputError, match=r"bias has shape \(1, 20\), and must have 35 numbers"):
        onednn.fusion_lstm(*inputs.lstm_arguments(), use_peepholes=True)
    with pytest.raises(InputError, match=r"use_peepholes=True needs a bias of 35 numbers, and it is None"):
        onednn.fusion_lstm(*inputs.without("bias").lstm_arguments(), use_peepholes=True)
    with pytest.raises(InputError, match="c0 has shape"):
        onednn.fusion_lstm(*replace(inputs, c0=np.zeros((2, 5), "f4")).lstm_arguments())
    with pytest.raises(InputError, match="cell is 'last'"):
        onednn.fusion_lstm(*inputs.lstm_arguments(), cell="first")
    gru = case([2])
    layer = onednn.gru_layer(gru.weight_x, gru.weight_h)
    with pytest.raises(InputError, match="c0 is the memory c of an LSTM"):
        layer(gru.ragged, gru.h0, gru.c0)
