"""The peer: LSTMs of CMSIS-NN, built from its own sources with the same compiler.

Its layers are those of TensorFlow Lite for microcontrollers: int8 weights with a scale for each matrix of a
gate, sums before the gates in int16 with 12 digits behind the point, cells in int16, and inputs and outputs
in int8 or int16. `peer_programs` computes these integers from parameters in float32, with symmetric scales,
which spare it the offsets.
"""

from collections.abc import Sequence
from math import frexp
from pathlib import Path

import numpy as np

from bench.devices.layers import INPUTS, LARGEST, Layer, codes, samples, table
from bench.devices.programs import Programs, programs
from stepnet.errors import InputError

HERE = Path(__file__).parent
GATES = "ifgo"
CELL_POWER = -11
SUMS = 2.0**-12
FORMS = {
    "": (),
    "single rounding": ("-DCMSIS_NN_USE_SINGLE_ROUNDING",),
    "assembly": ("-DCMSIS_NN_USE_REQUANTIZE_INLINE_ASSEMBLY",),
}
"""The ways in which it rounds, each with its options."""
SOURCES = (
    "LSTMFunctions/arm_lstm_unidirectional_{}",
    "NNSupportFunctions/arm_nn_lstm_step_{}",
    "NNSupportFunctions/arm_nntables",
    "ActivationFunctions/arm_nn_activation_s16",
    "BasicMathFunctions/arm_elementwise_mul_s16",
    "BasicMathFunctions/arm_elementwise_mul_acc_s16",
)
MORE_SOURCES = {
    "int8": (
        "NNSupportFunctions/arm_nn_lstm_calculate_gate_s8_s16",
        "NNSupportFunctions/arm_nn_vec_mat_mul_result_acc_s8_s16",
        "BasicMathFunctions/arm_elementwise_mul_s16_s8",
    ),
    "int16": (
        "NNSupportFunctions/arm_nn_lstm_calculate_gate_s16",
        "NNSupportFunctions/arm_nn_vec_mat_mul_result_acc_s16",
        "BasicMathFunctions/arm_elementwise_mul_s16_batch_offset",
    ),
}


def forms_of(core: str) -> list[str]:
    """Returns the ways in which it rounds on a core: its assembly needs long products."""
    return [form for form in FORMS if form != "assembly" or core != "cortex-m0plus"]


def short(dtype: str) -> str:
    """Returns its name of a dtype: s8 for int8."""
    return dtype.replace("int", "s")


def sources(folder: Path, dtype: str) -> list[Path]:
    """Returns its files that make an LSTM; raises `InputError` if the folder has not all of them."""
    rows = [row.format(short(dtype)) for row in (*SOURCES, *MORE_SOURCES[dtype])]
    files = [folder / "Source" / f"{row}.c" for row in rows]
    lacking = [file for file in (folder / "Include" / "arm_nnfunctions.h", *files) if not file.is_file()]
    if lacking:
        raise InputError(
            f"{folder} is not a folder with the sources of CMSIS-NN 7 or later: it has no "
            f"{lacking[0].relative_to(folder)}; give that of a checkout of github.com/ARM-software/CMSIS-NN"
        )
    return files


def multiplier(name: str, number: float) -> str:
    """Returns a positive number as its multiplier of 31 bits and its shift, as constants in C."""
    part, power = frexp(number)
    whole = min(round(part * 2**31), 2**31 - 1)
    return f"enum {{ {name}_multiplier = {whole}, {name}_shift = {power} }};\n"


def hidden_scale(dtype: str) -> float:
    """Returns the scale of outputs, which are between -1 and 1."""
    return 1 / (LARGEST[dtype] + 1)


def header(layer: Layer) -> str:
    """Returns the integers of a layer as C: frames, weights, biases, multipliers; and their scales."""
    dtype, units, parameters = layer.activations, layer.units, layer.parameters()
    given = samples()
    x_scale = float(np.abs(given).max() / LARGEST[dtype])
    scales = {"input": x_scale, "hidden": hidden_scale(dtype)}
    text = f"typedef {dtype}_t TAKEN;\n" + table("frames", codes(given[0], x_scale, dtype))
    text += f"#define LSTM arm_lstm_unidirectional_{short(dtype)}\n#define CELL_POWER ({CELL_POWER})\n"
    text += f"#define UNITS {units}\n#define INPUTS {INPUTS}\n"
    text += f"#define x_scale {x_scale!r}\n#define y_scale {hidden_scale(dtype)!r}\n"
    text += multiplier("forget_to_cell", 2.0**-15)
    text += multiplier("input_to_cell", 2.0 ** (-30 - CELL_POWER))
    text += multiplier("output", 2.0**-30 / hidden_scale(dtype))
    bias = (parameters["b"] + parameters["d"]).astype(float)
    for at, gate in enumerate(GATES):
        own = slice(at * units, (at + 1) * units)
        for kind, matrix in (("input", parameters["W"]), ("hidden", parameters["R"])):
            weights = matrix[:, own].T
            scale = float(np.abs(weights).max() / 127)
            added = bias[own] / (scale * x_scale) if kind == "input" else np.zeros(units)
            sums = np.rint(added).astype("int32" if dtype == "int8" else "int64")
            text += f"#define {gate}_{kind}_scale {scale!r}\n"
            text += multiplier(f"{gate}_{kind}", scale * scales[kind] / SUMS)
            text += table(f"{gate}_{kind}", codes(weights, scale, "int8"))
            text += table(f"{gate}_{kind}_bias", sums)
    return text


def peer_programs(
    layer: Layer, core: str, folder: Path, cmsis: Path, form: str, options: Sequence[str]
) -> Programs:
    """Returns programs that run an LSTM on a core, in a folder. cmsis: the folder with its
    sources. form: one of FORMS.
    """
    (folder / "frames.h").write_text(header(layer))
    files = [HERE / "cmsis.c", *sources(cmsis, layer.activations)]
    own = [*options, *FORMS[form], f"-I{folder}", f"-I{cmsis / 'Include'}"]
    return programs(folder, core, files, own, hidden_scale(layer.activations))
