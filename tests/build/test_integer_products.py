"""Products of integers by the instructions of each Cortex-M: in emulation, with the integers of NumPy, for
odd numbers of inputs and columns, several vectors, and the largest and smallest integers.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import rnn_of

import stepnet as sn
from stepnet.build import DeviceBuild, build
from stepnet.compiler.targets.frame import FrameProgram, ProductLoop, SparseProductLoop
from stepnet.compiler.targets.frame.machine import DEVICES, MachineProgram, compiled_text, module_of
from tests.build.frame_sources import in_numpy
from tests.build.integer_models import codes
from tests.build.machines import ARM_GCC, BOARDS, EMULATIONS, Emulation, emulated
from tests.build.test_integers import SANITISED, in_c, needs_compiler

Array = np.ndarray
SIZES = ((35, 7), (7, 3), (7, 1), (1, 5), (11, 3), (3, 12), (3, 17), (17, 13), (35, 600), (600, 3))
"""Inputs and outputs of the products of the model."""
INSTRUCTIONS = {"cortex-m4f": r"\bsmlad\b", "cortex-m33": r"\bsmlad\b", "cortex-m55": r"\bvmlava\.s"}
"""The instructions of the products of each core."""
DSP = ["__ARM_FEATURE_DSP", "__ARM_FEATURE_SIMD32", "__ARM_ARCH_PROFILE='M'"]


def model() -> sn.Graph:
    """A model with products of many sizes: of a whole frame, of the rows of a matrix, of a layer, and of
    columns that are too large to be computed two at a time.
    """
    random = np.random.default_rng(7)
    params = {
        f"W{inputs}_{outputs}": (random.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype("f4")
        for inputs, outputs in SIZES
    }
    params["W35_600"], params["W600_3"] = np.abs(params["W35_600"]), np.full((600, 3), 1 / 600, "f4")
    layer = sn.cells.rnn("lstm", {"W": params.pop("W11_3") @ params["W3_12"], "R": params.pop("W3_12")})

    def function(x: Any, params: Any) -> Any:
        """The model function."""
        whole = x @ params["W35_7"] + 0.25
        rows = np.reshape(x, (*x.shape[:-1], 5, 7)) @ params["W7_3"]
        one = np.tanh(whole @ params["W7_1"]) @ params["W1_5"] - 0.5
        many = np.tanh(x @ params["W35_600"]) @ params["W600_3"]
        memory = layer(np.concatenate([whole, one[..., :4]], -1))[0]
        return rows, one, many, np.tanh(memory @ params["W3_17"]) @ params["W17_13"]

    return sn.Graph(function, params, inputs=35)


def pruned_model() -> sn.Graph:
    """A model with products of blocks of each width, of which a matrix has many, and others few or none."""
    random, params = np.random.default_rng(12), dict[str, Any]()
    for name, (inputs, outputs, width, share) in BLOCKS.items():
        kept = random.random((inputs, outputs // width)) < share
        kept[:, 0] = False
        params[name] = (random.normal(size=(inputs, outputs)) * np.repeat(kept, width, axis=1)).astype("f4")
    layer = rnn_of("gru", 35, 12)

    def function(x: Any, params: Any) -> Any:
        """The model function."""
        rows = np.reshape(layer(x)[0], (*x.shape[:-1], 1, 12)) @ params["few"]
        return x @ params["sixteen"] + 0.25, np.tanh(x @ params["eight"]) @ params["four"], rows

    return sn.Graph(function, params, inputs=35)


BLOCKS = {
    "sixteen": (35, 48, 16, 0.2),
    "eight": (35, 40, 8, 0.2),
    "four": (40, 8, 4, 0.2),
    "few": (12, 96, 16, 0.02),
}
"""For each matrix its inputs and outputs, the columns of a block, and the share of blocks with numbers."""


def built(target: str, activations: str, folder: Path, graph: sn.Graph | None = None) -> DeviceBuild:
    """The model in integers, or another one with 35 inputs, for a target."""
    samples = np.random.default_rng(8).normal(size=(1, 20, 35)).astype("f4")
    small = sn.quantize(graph or model(), [samples], "int8", activations=activations)
    made = build(small, folder, name="m", target=target)
    assert isinstance(made, DeviceBuild)
    return made


def frames_for(program: FrameProgram) -> Array:
    """Frames of all integers that the input has, and of its largest and smallest ones."""
    (end,) = program.of("input")
    least, most = np.iinfo(end.dtype).min, np.iinfo(end.dtype).max
    frames = np.random.default_rng(9).integers(least, most + 1, (9, end.size))
    frames[5], frames[6] = least, most
    frames[7] = np.where(frames[7] < 0, least, most)
    return frames.astype(end.dtype)


def assembly_of(declared: MachineProgram) -> str:
    """The assembly of a program for its platform."""
    return str(compiled_text(str(module_of(declared)), declared.platform, assembly=True))


CASES = [*(("c", board) for board in BOARDS.values()), *((each.platform, each) for each in EMULATIONS)]
"""Targets of builds, and what runs what is built."""


@pytest.mark.long(every=9)
@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize(
    ("target", "emulation"), CASES, ids=[f"{target}-{each.platform}" for target, each in CASES]
)
def test_integers_of_each_core_are_those_of_numpy(
    target: str, emulation: Emulation, activations: str, tmp_path: Path
):
    if (target == "c" or emulation.is_arm) and ARM_GCC is None:
        pytest.skip("there is no arm-none-eabi-gcc")
    if (missing := emulation.missing) is not None:
        pytest.skip(f"there is no {missing}")
    made = built(target, activations, tmp_path)
    sizes = {(loop.inputs, loop.outputs) for loop in made.program.loops if isinstance(loop, ProductLoop)}
    assert sizes == {*SIZES} - {(11, 3)} | {(11, 12)}
    frames = frames_for(made.program)
    right = b"".join(each.tobytes() for each in in_numpy(made.program, frames))
    assert emulated(made, frames, emulation, tmp_path / "wine") == right


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("target", ["c", "core"])
@pytest.mark.parametrize("core", ["cortex-m4f", "cortex-m55", "cortex-m0plus"])
def test_blocks_have_the_integers_of_numpy_on_each_core(
    core: str, target: str, activations: str, tmp_path: Path
):
    if (missing := BOARDS[core].missing) is not None or ARM_GCC is None:
        pytest.skip(f"there is no {missing or 'arm-none-eabi-gcc'}")
    made = built("c" if target == "c" else core, activations, tmp_path, pruned_model())
    sparse = [loop for loop in made.program.loops if isinstance(loop, SparseProductLoop)]
    assert sorted(loop.width for loop in sparse) == [4, 8, 16, 16]
    frames = frames_for(made.program)
    right = b"".join(each.tobytes() for each in in_numpy(made.program, frames))
    assert emulated(made, frames, BOARDS[core]) == right
    if target == "core":
        text = assembly_of(MachineProgram(made.program, "m", "a model", DEVICES[core]))
        own = {"cortex-m4f": r"\bsmlad\b", "cortex-m55": r"\bvldr[bh]\.[su]16\s+q\d, \[r\d+, q\d"}
        assert (re.search(own.get(core, "smlad|vmlava"), text) is not None) == (core in own)


@pytest.mark.parametrize("core", ["cortex-m4f", "cortex-m55"])
def test_products_of_one_size_share_a_function(core: str, tmp_path: Path):
    if (missing := BOARDS[core].missing) is not None:
        pytest.skip(f"there is no {missing}")
    samples = np.random.default_rng(5).normal(size=(1, 20, 16)).astype("f4")
    small = sn.quantize(rnn_of("lstm", 16, 16), [samples], "int8", activations="int8")
    made = build(small, tmp_path, name="m", target=core, inputs=16)
    assert isinstance(made, DeviceBuild)
    declared = MachineProgram(made.program, "m", "an LSTM", DEVICES[core])
    assert len(re.findall(r"^m_product_\d+:", assembly_of(declared), re.M)) == 2  # of inputs, of memories
    frames = frames_for(made.program)
    right = b"".join(each.tobytes() for each in in_numpy(made.program, frames))
    assert emulated(made, frames, BOARDS[core]) == right


@pytest.mark.parametrize("core", BOARDS)
def test_products_have_the_instructions_of_the_core(core: str, tmp_path: Path):
    samples = np.ones((1, 2, 20), "f4")
    small = sn.quantize(rnn_of("gru", 20, 9), [samples], "int8", activations="int8")
    program = build(small, tmp_path, target="c", inputs=20).program
    text = assembly_of(MachineProgram(program, "m", "a GRU", DEVICES[core]))
    assert (re.search(INSTRUCTIONS.get(core, "smlad|vmlava"), text) is not None) == (core in INSTRUCTIONS)


@needs_compiler
@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("graph", [model, pruned_model], ids=["whole", "pruned"])
def test_c_has_the_integers_of_numpy_in_each_layout_of_weights(graph: Any, activations: str, tmp_path: Path):
    made = built("c", activations, tmp_path, graph())
    frames = frames_for(made.program)
    dsp = [f"-I{Path(__file__).parent / 'acle'}", *(f"-D{each}" for each in DSP)]
    expected = in_numpy(made.program, frames)
    for flags in ([], dsp, ["-D__ARM_ARCH_6M__"]):
        own = np.stack(in_c(made, [frames], *SANITISED, *flags))
        right = [each.view("u1").reshape(len(frames), -1) for each in expected]
        np.testing.assert_array_equal(own, np.concatenate(right, axis=1))


@needs_compiler
def test_a_table_of_rows_keeps_its_order_beside_a_product_with_the_same_integers(tmp_path: Path):
    table = np.random.default_rng(10).uniform(-1, 1, (6, 8)).astype("f4")
    table[0] = 1  # the largest of each column: one scale for all, as a table of rows has
    layer = rnn_of("gru", 6, 6)

    def function(x: Any, params: Any) -> Any:
        """The model function: rows of a matrix, and products with it."""
        return params["T"][np.argmax(x, -1)] * 0.5, layer(x)[0] @ params["T"]

    frames = np.random.default_rng(11).normal(size=(20, 6)).astype("f4")
    small = sn.quantize(
        sn.Graph(function, {"T": table}, inputs=6), [frames[None]], "int8", activations="int8"
    )
    made = build(small, tmp_path, name="m", target="c")
    given = codes(made.program, [frames])
    right = np.concatenate([each.view("u1") for each in in_numpy(made.program, given[0])], axis=1)
    np.testing.assert_array_equal(in_c(made, given, *SANITISED, "-D__ARM_ARCH_6M__"), right)
