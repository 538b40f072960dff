"""Instructions and memory of an int8 LSTM on Cortex-M by the interpreter of TensorFlow Lite.

    make -f tensorflow/lite/micro/tools/make/Makefile OPTIMIZED_KERNEL_DIR=cmsis_nn third_party_downloads
    python -m bench.devices interpreter --tflm tflite-micro          its folder, after the line above in it

It is built by GCC as a release, with -Os and for CMSIS-NN -O3, and with one operation, of int8 alone.
RAM is what it used of its arena without the inputs and outputs, and its variables.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench.devices.cmsis import FORMS, header, hidden_scale, sources
from bench.devices.counting import CORES, GCC, Core, check_tools, counted, output_of
from bench.devices.layers import INPUTS, Layer, own_programs
from bench.devices.programs import STEPS, Measured, measured, programs
from bench.rows import write_rows
from stepnet.errors import InputError

HERE = Path(__file__).parent
DOWNLOADS = "tensorflow/lite/micro/tools/make/downloads"
INCLUDED = (".", *(f"{DOWNLOADS}/{name}" for name in ("flatbuffers/include", "gemmlowp", "ruy", "cmsis_nn")))
FLAGS = (
    *("-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics", "-fno-unwind-tables"),
    *("-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections", "-w", "-Os"),
    *("-DTF_LITE_STATIC_MEMORY", "-DTF_LITE_STRIP_ERROR_STRINGS", "-DNDEBUG", "-DCMSIS_NN"),
)
"""The options of its own makefile for a release."""
FILES = (
    "tensorflow/compiler/mlir/lite/*/*.cc",
    "tensorflow/compiler/mlir/lite/core/api/error_reporter.cc",
    "tensorflow/lite/core/api/*.cc",
    "tensorflow/lite/core/c/common.cc",
    "tensorflow/lite/kernels/kernel_util.cc",
    "tensorflow/lite/kernels/internal/*.cc",
    "tensorflow/lite/micro/*.cc",
    "tensorflow/lite/micro/arena_allocator/*.cc",
    "tensorflow/lite/micro/memory_planner/*.cc",
    "tensorflow/lite/micro/tflite_bridge/*.cc",
    "tensorflow/lite/micro/kernels/cmsis_nn/unidirectional_sequence_lstm.cc",
    "tensorflow/lite/micro/kernels/lstm_eval*.cc",
    "tensorflow/lite/micro/kernels/micro_tensor_utils.cc",
    "tensorflow/lite/micro/kernels/kernel_util.cc",
    "tensorflow/lite/micro/kernels/fully_connected_common.cc",
)
LEFT_OUT = "test", "mock", "fake", "recording"


def files_of(tflm: Path) -> list[Path]:
    """Returns its files that an LSTM needs, and more; raises `InputError` if the folder is not whole."""
    lacking = [row for row in INCLUDED if not (tflm / row).is_dir()]
    lacking += [row for row in FILES if not any(tflm.glob(row))]
    if lacking:
        raise InputError(
            f"{tflm} is not a folder of github.com/tensorflow/tflite-micro after its make "
            f"third_party_downloads with OPTIMIZED_KERNEL_DIR=cmsis_nn: it has no {lacking[0]}"
        )
    found = (file for row in FILES for file in tflm.glob(row))
    return [file for file in found if not any(part in file.name for part in LEFT_OUT)]


def library(tflm: Path, core: Core, folder: Path, rounding: Sequence[str]) -> Path:
    """Returns it as a static library for a core, in a folder."""
    cmsis = tflm / DOWNLOADS / "cmsis_nn"
    more = [*sources(cmsis, "int8"), *cmsis.glob("Source/NNSupportFunctions/../**/arm_vector_sum_s8*.c")]
    more += sources(cmsis, "int16")
    options = [*core.options, *rounding, *(f"-I{tflm / row}" for row in INCLUDED)]
    options.append(f"-I{cmsis / 'Include'}")
    files = dict.fromkeys(files_of(tflm), FLAGS)
    files |= dict.fromkeys(more, ("-ffunction-sections", "-fdata-sections", "-O3"))

    def compiled(file: Path, flags: Sequence[str]) -> Path:
        """Returns the object of a file."""
        made = folder / f"{len(file.parts)}_{file.parent.name}_{file.name}.o"
        output_of([GCC, *options, *flags, "-c", file, "-o", made])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compiled, files, files.values())]
    made = folder / "libtflm.a"
    output_of(["arm-none-eabi-ar", "rc", made, *objects])
    return made


def model(tflm: Path, folder: Path, steps: int) -> str:
    """Returns the model of frames.h in a folder, as an array of bytes in C."""
    writer, included = folder / "writer", [f"-I{tflm / row}" for row in INCLUDED]
    output_of(
        [
            "g++",
            "-std=c++17",
            "-w",
            f"-DSTEPS={steps}",
            f"-I{folder}",
            *included,
            HERE / "interpreter_model.cc",
            "-o",
            writer,
        ]
    )
    output_of([writer, folder / "model"])
    data = (folder / "model").read_bytes()
    return f"alignas(16) static const unsigned char model[] = {{{', '.join(map(str, data))}}};\n"


def interpreted(layer: Layer, core: str, tflm: Path, code: Path, folder: Path) -> Measured:
    """Returns what an LSTM takes. code: the static library."""
    (folder / "frames.h").write_text(header(layer))
    for steps in (STEPS, 2 * STEPS):
        (folder / f"model_{steps}.h").write_text(model(tflm, folder, steps))
    (folder / "model.h").write_text(
        f'#if STEPS == {STEPS}\n#include "model_{STEPS}.h"\n#else\n#include "model_{2 * STEPS}.h"\n#endif\n'
    )
    options = [*FLAGS, *(f"-I{tflm / row}" for row in INCLUDED), f"-I{folder}", "--specs=nano.specs"]
    options += ["--specs=nosys.specs", "-Wl,--defsym=end=stack_top"]
    made = programs(folder, core, [HERE / "interpreter.cc", code], options, hidden_scale("int8"))
    takes = measured(made, layer.last())
    (arena,) = counted(made.short, CORES[core]).said["arena"]
    return replace(takes, ram=takes.ram + arena - STEPS * (INPUTS + layer.units))


def command(
    tflm: Annotated[Path, typer.Option(help="A folder of tflite-micro with its downloads.")],
    core: Annotated[str, typer.Option(help=f"One of {', '.join(CORES)}.")] = "cortex-m4f",
    units: Annotated[list[int] | None, typer.Option(help="32, 64 and 128 by default.", min=1)] = None,
) -> None:
    """Print what an int8 LSTM takes by TensorFlow Lite's interpreter, beside the package for a core."""
    check_tools()
    if core not in CORES:
        raise InputError(f"--core is one of {', '.join(CORES)}, not {core}")
    files_of(tflm)
    rounding, found = FORMS["" if core == "cortex-m0plus" else "assembly"], list[dict[str, object]]()
    with TemporaryDirectory() as text:
        folder = Path(text)
        code = library(tflm, CORES[core], folder, rounding)
        for size in units or (32, 64, 128):
            layer, place = Layer("lstm", size, "int8"), folder / str(size)
            place.mkdir()
            own = measured(own_programs(layer, core, place, False, ["-O3"]), layer.last())
            other = interpreted(layer, core, tflm, code, place)
            for name, takes in (("package", own), ("TFLM", other)):
                numbers = {"instructions": round(takes.instructions), "flash": takes.flash, "ram": takes.ram}
                found.append({"units": size, "by": name, **numbers, "stack": takes.stack})
    write_rows(found, False, f"an int8 LSTM on {core}: instructions per step, bytes")
