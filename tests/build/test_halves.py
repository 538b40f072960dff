"""Weights in float16 and bfloat16 in source code and on devices: every number is widened to what NumPy says,
sizes count two bytes, and what cannot be is refused.
"""

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import MODEL, refusal, stepnet
from tolerance import assert_close
from zoo import normal, rnn_of

import stepnet as sn
from stepnet.build import DeviceBuild, build
from stepnet.compiler.targets.frame import FrameRun
from stepnet.errors import InputError, RefusedError
from tests.build.frame_models import MODELS, Numbers, frames_of
from tests.build.frame_sources import in_numpy
from tests.build.machines import ARM_GCC, BOARDS, EMULATIONS, Emulation, emulated
from tests.build.test_browsers import HALF, RUN, in_node, needs_node

Array = np.ndarray
DTYPES = {"float16": np.dtype("f2"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
COLUMNS, ROWS = 256, 128
"""The size of a table with half of all numbers, or somewhat more."""
SOME_SMALL = 1e-45
"""A number that neither dtype has, so that the table with it stays in float32."""


def table_of(dtype: str, part: int) -> Array:
    """A half of all finite numbers of a dtype, zeros with both signs and the smallest ones among them."""
    numbers = np.arange(2**16, dtype="u2").view(DTYPES[dtype])
    numbers = numbers[np.isfinite(numbers.astype("f4"))].reshape(-1, COLUMNS)
    return numbers[:ROWS] if part == 0 else numbers[-ROWS:]


def compared(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    """The counts of numbers of a row that differ from the same ones in float32: rows of a table, reciprocals
    of these, which tell the signs of zeros, and products with a one.
    """
    row = np.argmax(x, -1)
    half, whole = params["half"][row], params["whole"][row]
    found = [half == whole, 1 / half == 1 / whole, x @ params["half"] == whole]
    return np.stack([(~each).astype("f4").sum(-1) for each in found], -1), h


def comparing(dtype: str, part: int, folder: Path, target: str) -> DeviceBuild:
    """A program that compares: its input is a one at the place of a row, and zeros."""
    half = table_of(dtype, part)
    whole = np.concatenate([half.astype("f4"), np.full((1, COLUMNS), SOME_SMALL, "f4")])
    model = sn.RNN(compared, {"half": half, "whole": whole}, memory=1, inputs=ROWS)
    made = build(model, folder, name="m", target=target)
    assert isinstance(made, DeviceBuild)
    assert made.program.of("output")[0].bytes == RIGHT[0].nbytes
    kinds = {each.name: each.dtype for each in made.program.of("constant")}
    assert kinds == {"k_half": dtype, "k_half_2": dtype, "k_whole": "float32"}
    return made


TRAPPING = ("-O0", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
FRAMES = np.eye(ROWS, dtype="f4")
RIGHT = np.zeros((ROWS, 3), "f4")
WITH_TABLES = [each for each in EMULATIONS if each.platform != "cortex-m0plus"]


@pytest.mark.long(every=20)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "emulation", WITH_TABLES, ids=[f"{each.platform}-{each.command.split()[0]}" for each in WITH_TABLES]
)
def test_devices_widen_every_number(
    emulation: Emulation, dtype: str, part: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    if (missing := emulation.missing) is not None:
        pytest.skip(f"there is no {missing}")
    made = comparing(dtype, part, tmp_path, emulation.platform)
    assert emulated(made, FRAMES, emulation, tmp_path_factory.mktemp("wine")) == RIGHT.tobytes()


@pytest.mark.skipif(ARM_GCC is None, reason="there is no arm-none-eabi-gcc")
@pytest.mark.long(every=4)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("core", ["cortex-m4f", "cortex-m55"])
def test_source_for_cores_widens_every_number(core: str, part: int, tmp_path: Path):
    if (missing := BOARDS[core].missing) is not None:
        pytest.skip(f"there is no {missing}")
    assert emulated(comparing("float16", part, tmp_path, "c"), FRAMES, BOARDS[core]) == RIGHT.tobytes()


@needs_node
@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [0, 1])
def test_browsers_widen_every_number(dtype: str, part: int, tmp_path: Path):
    comparing(dtype, part, tmp_path, "wasm32")
    (tmp_path / "frames").write_bytes(FRAMES.tobytes())
    results = in_node(tmp_path, RUN.format(array="Float32Array", count=ROWS, half=HALF))
    first, one = [RIGHT[:HALF].tobytes().hex()], [RIGHT[0].tobytes().hex()]
    rows = [first, *([one] * (ROWS - HALF)), first]
    assert results == [rows, rows]  # with vectors and without


def outputs_of(made: DeviceBuild, compiler: str, *flags: str) -> Array:
    """The outputs of all frames by the source, as a compiler makes a library of it."""
    library = made.manifest.with_name("m.so")
    command = [compiler, "-std=c99", "-shared", "-fPIC", *flags, str(made.source), "-o", str(library)]
    subprocess.run(command, check=True)
    code, found = ctypes.CDLL(str(library)), np.ones_like(RIGHT)
    room = np.zeros(made.sizes.ram_bytes // 8 + 1, "i8")
    context, frames, taken = (ctypes.c_void_p(array.ctypes.data) for array in (room, FRAMES, found))
    assert code.m_reset(context) == code.m_block(context, ctypes.c_size_t(ROWS), frames, taken) == 0
    return found


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiler", ["cc", "clang"])
@pytest.mark.parametrize("flags", [TRAPPING, ("-O3", "-D__ARM_NEON")])
def test_source_widens_every_number(dtype: str, compiler: str, flags: tuple[str, ...], tmp_path: Path):
    """Also as it is written for vectors that take denormal numbers for zeros."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    for part in (0, 1):
        made = comparing(dtype, part, tmp_path / str(part), "c")
        np.testing.assert_array_equal(outputs_of(made, compiler, *flags), RIGHT)


def test_source_of_products_alone_has_no_warnings(tmp_path: Path):
    if (clang := shutil.which("clang")) is None:
        pytest.skip("there is no clang")
    model = sn.RNN(lambda x, h, p: (x @ p, h), np.ones((4, 4), "f2"), memory=2, inputs=sn.Spec(4, "float32"))
    source = build(model, tmp_path, target="c").source
    command = [clang, "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- what is asked for, and its sizes


def sizes_of(model: Any, folder: Path, target: str = "c", **options: Any) -> Any:
    """The sizes of a build of a GRU with 3 inputs and 8 units, or of a model that is made of it."""
    made = build(model, folder, target=target, inputs=3, force=True, **options)
    assert isinstance(made, DeviceBuild)
    return made.sizes


def in_float16(model: sn.RNN) -> dict[str, Array]:
    """The parameters of a recurrence, whose matrices are rounded by NumPy."""
    return {
        name: each.astype("f2").astype("f4") if each.ndim > 1 else each for name, each in model.params.items()
    }


WEIGHTS, BIASES = 3 * 24 + 8 * 24, 2 * 24


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["c", "cortex-m4f"])
def test_matrices_take_two_bytes(dtype: str, target: str, tmp_path: Path):
    gru = rnn_of("gru", 3, 8)
    plain, small = (sizes_of(gru, tmp_path, target, dtype=each) for each in (None, dtype))
    assert plain.constant_bytes == 4 * (WEIGHTS + BIASES)
    assert small.constant_bytes == 2 * WEIGHTS + 4 * BIASES
    assert [part.constant_bytes for part in small.parts[:2]] == [2 * 3 * 24 + 4 * 24, 2 * 8 * 24 + 4 * 24]
    assert small.ram_bytes == plain.ram_bytes
    own = {name: each.astype(DTYPES[dtype]) if each.ndim > 1 else each for name, each in gru.params.items()}
    assert sizes_of(sn.cells.rnn("gru", own), tmp_path, target) == small
    header = (tmp_path / "include" / "model.h" if target != "c" else tmp_path / "model.h").read_text()
    assert f"#define MODEL_CONSTANT_BYTES {small.constant_bytes}U" in header


def test_flash_is_counted_in_two_bytes(tmp_path: Path):
    gru = rnn_of("gru", 3, 8)
    needed = 2 * WEIGHTS + 4 * BIASES
    assert sizes_of(gru, tmp_path, dtype="float16", flash=needed).constant_bytes == needed
    with pytest.raises(RefusedError, match=f"the model needs {needed} bytes of flash .* k_R 384"):
        build(gru, tmp_path, target="c", inputs=3, dtype="float16", flash=needed - 1)


def test_a_build_computes_what_the_rounded_model_does(tmp_path: Path):
    gru, x = rnn_of("gru", 3, 8), normal(1, 9, 3)
    programs = [
        build(model, tmp_path, target="c", inputs=3, dtype=dtype, force=True).program
        for model, dtype in (
            (gru, "float16"),
            (sn.quantize(gru, [x], "float16"), None),
            (sn.cells.rnn("gru", in_float16(gru)), None),
        )
    ]
    runs = [FrameRun(program) for program in programs]
    outputs = [np.stack([run.step(frame)[0] for frame in x[0]]) for run in runs]
    assert [run.program.constant_bytes for run in runs] == [2 * WEIGHTS + 4 * BIASES] * 2 + [
        4 * (WEIGHTS + BIASES)
    ]
    for each in outputs[1:]:
        np.testing.assert_array_equal(each, outputs[0])
    assert not np.array_equal(outputs[0], gru(x)[0][0])


def test_models_in_bfloat16_round_inputs_to_the_nearest(tmp_path: Path):
    """Products with ones give the inputs as they are rounded: halfway, near infinity and below 2^-126."""

    def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        """Products with the inputs, and with memories of zeros."""
        return x @ params["ones"] + h @ params["zeros"], h * 0

    model = sn.RNN(step, {"ones": np.eye(8, dtype="f4"), "zeros": np.zeros((4, 8), "f4")}, memory=4, inputs=8)
    small = sn.quantize(model, [normal(2, 5, 8)], "bfloat16")
    run = FrameRun(build(small, tmp_path, target="c").program)
    near = np.array([0x3F80, 0x3F81, 0x0003, 0x7F7E], "u4") << 16
    bits = np.concatenate([near + offset for offset in (0x7FFF, 0x8000, 0x8001, 0)])
    frames = np.concatenate([bits, bits | 0x80000000]).astype("u4").view("f4").reshape(-1, 8)
    for frame in frames:
        right = frame.astype(ml_dtypes.bfloat16).astype("f4")
        np.testing.assert_array_equal(run.step(frame)[0], right)
        np.testing.assert_array_equal(small(frame[None, None], engine="interpret")[0][0, 0], right)
    assert run.program.by_name["k_ones"].dtype == "bfloat16"


def test_models_in_bfloat16_have_the_values_of_the_interpreter(tmp_path: Path):
    model, inputs = MODELS["bfloat16"](Numbers("f4"))
    program = build(model, tmp_path, target="c", inputs=inputs).program
    given = frames_of("bfloat16")
    right = np.asarray(model(given[None], engine="interpret")[0])[0]
    (own,) = in_numpy(program, given)
    assert_close(own, right, len(given), 32)


def test_a_number_that_is_no_float16_stays_in_float32(tmp_path: Path):
    """In other parameters of a quantized model, and in matrices with an infinity."""
    gru, x = rnn_of("gru", 3, 8), normal(1, 4, 3)
    small = sn.quantize(gru, [x], "float16")
    other = dict(small.params)
    other["R"] = other["R"] + np.float32(1e-6)
    assert sizes_of(small.with_params(other), tmp_path).constant_bytes == 2 * 3 * 24 + 4 * (8 * 24 + BIASES)
    other["R"] = np.where(np.eye(8, 24) > 0, np.float32(np.inf), small.params["R"])
    assert sizes_of(small.with_params(other), tmp_path).constant_bytes == 2 * 3 * 24 + 4 * (8 * 24 + BIASES)


def refused(message: str, model: Any, folder: Path, **options: Any) -> None:
    """Checks the message that refuses a build."""
    with pytest.raises((InputError, RefusedError), match=re.escape(message)):
        build(model, folder, **{"inputs": 3, "target": "c", **options})  # type: ignore[arg-type] # wrong ones
    assert not list(folder.iterdir())


def test_what_is_refused(tmp_path: Path):
    gru = rnn_of("gru", 3, 8)
    params = dict(gru.params)
    params["R"] = params["R"].copy()
    params["R"][1, 2] = -70000
    large, samples = sn.cells.rnn("gru", params), [normal(1, 4, 3)]
    message = "R has -70000, and the largest number of float16 is 65504: scale the parameter, or leave it in"
    refused(f"parameter {message}", large, tmp_path, dtype="float16")
    with pytest.raises(InputError, match=re.escape(f"parameter gru.{message}")):
        sn.quantize(large, samples, "float16")
    refused(
        "dtype is that of stored weights: float16 or bfloat16, or None, not 'int8'",
        gru,
        tmp_path,
        dtype="int8",
    )
    refused(
        "dtype is that of weights in source code and devices",
        gru,
        tmp_path,
        dtype="float16",
        target="aarch64",
    )
    small = sn.quantize(gru, samples, "int8")
    refused("the model was quantized, which says how its weights", small, tmp_path, dtype="float16")
    small = sn.quantize(gru, samples, "int8", activations="int8")
    refused("in integers alone has weights of int8: leave out dtype", small, tmp_path, dtype="float16")
    refused(
        "cortex-m0plus has no instructions for float32",
        gru,
        tmp_path,
        dtype="float16",
        target="cortex-m0plus",
    )
    half = rnn_of("gru", 3, 8, dtype="float16")
    refused("it has float16; cast the model to float32", half, tmp_path, inputs=sn.Spec(3, "float16"))


def test_the_command_stores_halves(tmp_path: Path):
    given = ["build", "--recurrent-only", MODEL, "--target", "c", "-o", tmp_path, "--name", "gru", "--json"]
    answers = []
    for added in ([], ["--dtype", "float16"]):
        code, printed, errors = stepnet(*given, "--force", *added)
        assert (code, errors) == (0, "")
        answers.append(json.loads(printed)["sizes"])
    plain, small = answers
    assert small["constant_bytes"] < 0.52 * plain["constant_bytes"]
    assert refusal(*given, "--force", "--dtype", "float64").startswith("dtype is that of stored weights")
