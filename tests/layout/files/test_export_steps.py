"""Programs of torch.export with a fixed number of steps: which of them run over other numbers of steps."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from torch_code import Code

import stepnet as sn
from stepnet.errors import InputError, ModelError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")  # of torch.export
nn = torch.nn
F = nn.functional
STEPS = 13
COMPUTED = {
    "a quotient": (lambda s, x: x.sum(1) / x.size(1), "13 of aten.div.Tensor"),
    "a factor": (lambda s, x: x.sum(1) * (1 / x.size(1)), "0.0769231 of aten.mul.Tensor"),
    "a root": (lambda s, x: x.sum(1) / x.size(1) ** 0.5, "3.60555 of aten.div.Tensor"),
    "a power": (lambda s, x: x.abs().sum(1) ** (1 / x.size(1)), "0.0769231 of aten.pow.Tensor_Scalar"),
    "a mask": (lambda s, x: torch.where(torch.arange(x.size(1))[:, None] == x.size(1) - 1, x, -x), "12 of"),
    "the last half": (lambda s, x: x[:, x.size(1) // 2 :], "6 of aten.slice.Tensor"),
    "zeros up to sixteen steps": (
        lambda s, x: F.conv1d(F.pad(x.transpose(1, 2), (0, 16 - x.size(1))), s.w).mean(2),
        "3 of aten.pad.default",
    ),
    "copies": (lambda s, x: x.mean(1, keepdim=True).repeat(1, 2 * x.size(1), 1), "26 of aten.repeat.default"),
    "a number of its own": (
        lambda s, x: x.sum(1) / torch.tensor(x.size(1)),
        "13 of the constant lifted_tensor_0",
    ),
    "windows of all steps": (
        lambda s, x: F.avg_pool1d(x.transpose(1, 2), x.size(1))[:, :, 0],
        "13 of aten.avg_pool1d.default",
    ),
    "a kernel of all steps": (
        lambda s, x: F.conv1d(x.transpose(1, 2), s.long).transpose(1, 2),
        "13 of aten.conv1d.default",
    ),
    "a vector of as many": (lambda s, x: s.wide(x.mean(1)).view(-1, 13, 2), "13 of aten.view.default"),
}
"""Numbers that Python computes of the number of steps, and what the message says of them."""
FREE = {
    "a layer and a mean": lambda s, x: s.out(s.rnn(x)[0]).mean(1),
    "zeros to begin with": lambda s, x: s.rnn(x, torch.zeros(1, x.size(0), 4))[0][:, -1],
    "settings of layers": lambda s, x: s.norm(
        F.leaky_relu(F.conv1d(x.transpose(1, 2), s.w), 0.2).transpose(1, 2)
    ),
    "one minus": lambda s, x: (1 - x.sigmoid()) * x.tanh() ** 2,
    "steps that are counted": lambda s, x: x + torch.arange(x.size(1))[:, None],
    "a state at each step": lambda s, x: x + x.mean(1, keepdim=True).expand(-1, x.size(1), -1),
    "a state that is repeated": lambda s, x: x + x.mean(1, keepdim=True).repeat(1, x.size(1), 1),
}


def model(forward: Any) -> Any:
    torch.manual_seed(0)
    return Code(
        forward, rnn=nn.GRU(4, 4, batch_first=True), out=nn.Linear(4, 3), norm=nn.LayerNorm(4),
        wide=nn.Linear(4, 26), w=nn.Parameter(torch.randn(4, 4, 1)),
        long=nn.Parameter(torch.randn(4, 4, STEPS)),
    )  # fmt: skip


def saved(path: Path, made: Any) -> Path:
    shapes = {"x": {0: torch.export.Dim("rows")}}
    program = torch.export.export(made.eval(), (torch.randn(3, STEPS, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def x_of(steps: int) -> Any:
    return np.random.default_rng(0).normal(size=(2, steps, 4)).astype("float32")


def check(graph: Any, made: Any, steps: int) -> None:
    with torch.inference_mode():
        assert_close(np.asarray(graph(x_of(steps))), made(torch.tensor(x_of(steps))).numpy(), steps, 10)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_number_that_may_be_computed_is_for_the_steps_of_the_file(name: str, tmp_path: Path):
    forward, words = COMPUTED[name]
    path, made = saved(tmp_path / "m.pt2", model(forward)), model(forward)
    graph = sn.load(path)
    check(graph, made, STEPS)
    said = rf"m.pt2 was written for 13 steps, and sequence 0 has 5; the number {re.escape(words)}"
    with pytest.raises(InputError, match=said + r"(.|\n)* may depend on it: export with dynamic shapes"):
        graph(x_of(5))
    assert sn.load(path, steps="any")(x_of(5)) is not None


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", FREE)
def test_weights_and_settings_are_for_any_number_of_steps(name: str, tmp_path: Path):
    graph, made = sn.load(saved(tmp_path / "m.pt2", model(FREE[name]))), model(FREE[name])
    for steps in (STEPS, 5, 20):
        check(graph, made, steps)


def test_a_saved_model_gives_no_numbers_for_other_steps(tmp_path: Path):
    """A file of stepnet holds the net alone, and no file that a message could name."""
    made = model(lambda s, x: {"steps": s.rnn(x)[0] * 0.5, "mean": x.mean(1) * 0.5})
    sn.load(saved(tmp_path / "m.pt2", made)).save(tmp_path / "m.stepnet")
    again = sn.load(tmp_path / "m.stepnet")
    found = again(sn.Ragged.from_list([*x_of(STEPS), *x_of(5)]))
    with torch.inference_mode():
        wanted = made(torch.tensor(x_of(STEPS)))
    for place in range(2):
        assert_close(found["steps"].to_list()[place], wanted["steps"][place].numpy(), STEPS, 10)
        assert_close(found["mean"][place], wanted["mean"][place].numpy(), STEPS, 10)
        assert np.isnan(found["steps"].to_list()[2 + place]).all()
        assert np.isnan(found["mean"][2 + place]).all()


def test_whole_numbers_have_no_nan(tmp_path: Path):
    path = saved(tmp_path / "m.pt2", model(lambda s, x: (s.rnn(x)[0] * 0.5).argmax(-1)))
    with pytest.raises(ModelError, match=r"written for 13 steps, and its output 'argmax' is int64, without"):
        sn.load(path)
    assert sn.load(path, steps="any")(x_of(5)).shape == (2, 5)


def test_each_sequence_is_checked(tmp_path: Path):
    graph = sn.load(saved(tmp_path / "m.pt2", model(COMPUTED["a root"][0])))
    ones = np.ones((13, 4), "float32")
    for _ in range(4):  # so that calls of three sequences are prepared
        graph(sn.Ragged.from_list([ones] * 3))
        graph(np.stack([ones] * 3))
    for lengths in ((13, 13, 5), (13, 13, 13, 0)):
        last = len(lengths) - 1
        with pytest.raises(InputError, match=f"and sequence {last} has {lengths[-1]};"):
            graph(sn.Ragged.from_list([ones[:length] for length in lengths]))
    with pytest.raises(InputError, match="and sequence 0 has 12;"):
        graph(np.stack([ones[1:]] * 3))
    assert graph(np.stack([ones] * 3).swapaxes(0, 1), time_major=True).shape == (3, 4)


def test_other_words_and_other_files_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="steps='all': there is only 'any'"):
        sn.load(tmp_path / "m.pt2", steps="all")
    with pytest.raises(InputError, match=r"m.npz: --steps any .* is for files of .*PaddlePaddle"):
        sn.load(tmp_path / "m.npz", steps="any")


# ---- ONNX --------------------------------------------------------------------------------------------------


def over_channels(function: Any) -> Any:
    """Returns a function of a module and its channels [sequences, features, steps], as one of its steps."""
    return lambda s, x: function(s, x.transpose(1, 2), x.size(1)).transpose(1, 2)


ONNX_COMPUTED = {
    "a maximum of all steps": (
        over_channels(lambda s, x, steps: F.adaptive_max_pool1d(x, 1)), r"13 of .* \(MaxPool\)"
    ),
    "a mean of all steps": (
        over_channels(lambda s, x, steps: F.avg_pool1d(x, steps)), r"13 of .* \(AveragePool\)"
    ),
    "windows of all steps that are left": (
        over_channels(lambda s, x, steps: F.max_pool1d(F.conv1d(x, s.three), steps - 2)),
        r"11 of .* \(MaxPool\)",
    ),
    "a kernel of all steps": (over_channels(lambda s, x, steps: F.conv1d(x, s.long)), r"13 of .* \(Conv\)"),
    "a variance": (
        over_channels(lambda s, x, steps: F.batch_norm(x, torch.zeros(4), torch.full((4,), float(steps)))),
        r"13 of .* \(BatchNormalization\)",
    ),
    "weights": (
        over_channels(lambda s, x, steps: F.conv1d(x, torch.ones(2, 4, 3) / steps, padding=1)),
        r"0.0769231 of .* \(Conv\)",
    ),
    "a bias": (
        over_channels(lambda s, x, steps: F.conv1d(x, s.three, torch.full((4,), 1 / steps))),
        r"0.0769231 of .* \(Conv\)",
    ),
    "an initial state": (
        lambda s, x: s.rnn(x, torch.full((1, x.size(0), 4), 1 / x.size(1)))[0], r"0.0769231 of .* \(GRU\)"
    ),
}  # fmt: skip
"""Numbers that only layers read, or that are sizes of windows, and what the message says of them."""
ONNX_FREE = {
    "a norm of zeros and ones": over_channels(
        lambda s, x, steps: F.batch_norm(x, torch.zeros(4), torch.ones(4))
    ),
    "a convolution of ones": over_channels(
        lambda s, x, steps: F.conv1d(x, torch.ones(2, 4, 3), torch.zeros(2), padding=1)
    ),
    "a state of ones": lambda s, x: s.rnn(x, torch.ones(1, x.size(0), 4))[0],
    "windows of a few": over_channels(lambda s, x, steps: F.max_pool1d(x, 3, stride=1, padding=1)),
}


def saved_onnx(path: Path, made: Any, steps: int = STEPS) -> Path:
    example = torch.randn(2, steps, 4)
    torch.onnx.export(made.eval(), (example,), path, dynamo=False, input_names=["x"])
    return path


def onnx_model(forward: Any) -> Any:
    made = model(forward)
    made.three = nn.Parameter(torch.randn(4, 4, 3))
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ONNX_COMPUTED)
def test_a_number_that_a_layer_of_onnx_reads_is_for_the_steps_of_the_file(name: str, tmp_path: Path):
    forward, words = ONNX_COMPUTED[name]
    made = onnx_model(forward)
    path = saved_onnx(tmp_path / "m.onnx", made)
    graph = sn.load(path)
    check(graph, made, STEPS)
    with pytest.raises(InputError, match=rf"for 13 steps, and sequence 0 has 20; the number {words}"):
        graph(x_of(20))
    assert sn.load(path, steps="any")(x_of(20)) is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ONNX_FREE)
def test_layers_of_onnx_of_zeros_and_ones_are_for_any_number_of_steps(name: str, tmp_path: Path):
    made = onnx_model(ONNX_FREE[name])
    graph = sn.load(saved_onnx(tmp_path / "m.onnx", made))
    for steps in (STEPS, 5, 20):
        check(graph, made, steps)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_file_for_few_steps_is_for_these_alone(steps: int, tmp_path: Path):
    """Any number that is computed of so few steps may be 0 or 1, as the first step of the later half."""
    made = onnx_model(lambda s, x: s.rnn(x)[0])
    path, words = saved_onnx(tmp_path / "m.onnx", made, steps), "step" if steps == 1 else "steps"
    check(sn.load(path), made, steps)
    check(sn.load(path, steps="any"), made, 5)
    if steps == 4:
        check(sn.load(path), made, 5)
        return
    with pytest.raises(
        InputError,
        match=rf"for {steps} {words}, and sequence 0 has 5; any number in it, even 0 or 1, may de",
    ):
        sn.load(path)(x_of(5))


ONE_LEFT = {
    "squeeze": lambda s, x: F.max_pool1d(x.transpose(1, 2), STEPS).squeeze(-1),
    "squeeze ahead": lambda s, x: F.conv1d(x.transpose(1, 2), s.long).permute(2, 0, 1).squeeze(0),
    "squeeze, softmax": lambda s, x: (
        F.max_pool1d(x.transpose(1, 2), 10).transpose(1, 2).squeeze(1).softmax(1)
    ),
    "flatten": lambda s, x: s.out(F.avg_pool1d(x.transpose(1, 2), STEPS).flatten(1)),
    "reshape": lambda s, x: F.conv1d(x.transpose(1, 2), s.long).reshape(-1, 2, 2),
}
"""Modules that make a feature of the one step which windows leave."""


@pytest.mark.parametrize("name", ONE_LEFT)
def test_the_one_step_that_windows_leave_becomes_a_feature(name: str, tmp_path: Path):
    made = model(ONE_LEFT[name])
    path = saved(tmp_path / "m.pt2", made)
    graph = sn.load(path)
    check(graph, made, STEPS)
    with pytest.raises(InputError, match="was written for 13 steps, and sequence 0 has 26"):
        graph(x_of(26))
    anyway = sn.load(path, steps="any")
    for steps in (5, 26):
        assert np.isnan(np.asarray(anyway(x_of(steps)))).all()
