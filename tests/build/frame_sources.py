"""Programs in C of models that are built as source code: compiled with strict warnings, and run on frames."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from stepnet.build import DeviceBuild
from stepnet.compiler.targets.frame import FrameProgram, FrameRun
from tests.build.frame_models import FRAMES

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, cc")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
SANITISED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "uint8_t",
    "int16": "int16_t",
    "int8": "int8_t",
}
MAIN = """
#include "m.h"
#include <stdio.h>
{tables}
static m_context one, other;
static uint8_t saved[M_SAVED_BYTES];
static void check(int got, int wanted)
{{
    if (got != wanted) printf("%d is not %d\\n", got, wanted);
}}
int main(void)
{{
    /* The first half by single frames; the second in another context, as a block. */
    check(m_step(&one, {first}), M_NOT_RESET);
    check(m_reset(NULL), M_NULL);
    check(m_reset(&one), M_OK);
    for (size_t at = 0U; at < {half}U; at++) check(m_step(&one, {at}), M_OK);
    check(m_save(&one, saved), M_OK);
    saved[M_SAVED_BYTES - 5U] ^= 4U;
    check(m_restore(&other, saved), M_SAVED_BYTES > 8U ? M_DAMAGED : M_OTHER_MODEL);
    saved[M_SAVED_BYTES - 5U] ^= 4U;
    saved[0] ^= 2U;
    check(m_restore(&other, saved), M_OTHER_MODEL);
    saved[0] ^= 2U;
    check(m_step(&other, {first}), M_NOT_RESET);
    check(m_restore(&other, saved), M_OK);
    check(m_block(&other, {rest}U, {later}), M_OK);
    {written}
    return 0;
}}
"""


def main_of(program: FrameProgram) -> str:
    """A program in C that runs frames of its standard input, and writes the outputs of all."""
    inputs, outputs = program.of("input"), program.of("output")
    names = [(each.name, f"M_{each.name.upper()}_SIZE") for each in (*inputs, *outputs)]
    tables = [
        f"static {C_TYPES[each.dtype]} v_{each.name}[{each.size * FRAMES}];" for each in (*inputs, *outputs)
    ]

    def places(index: str) -> str:
        """The arguments of the frame with an index."""
        return ", ".join(f"&v_{name}[{index} * {size}]" for name, size in names)

    reading = [
        f"if (fread(v_{each.name}, sizeof v_{each.name}, 1, stdin) != 1U) return 1;" for each in inputs
    ]
    writing = [f"fwrite(v_{each.name}, sizeof v_{each.name}, 1, stdout);" for each in outputs]
    text = MAIN.format(
        tables="\n".join(tables),
        first=places("0U"),
        at=places("at"),
        later=places(f"{FRAMES // 2}U"),
        half=FRAMES // 2,
        rest=FRAMES - FRAMES // 2,
        written="\n    ".join(writing),
    )
    return text.replace("int main(void)\n{", "int main(void)\n{\n    " + "\n    ".join(reading), 1)


def compiled(made: DeviceBuild, main: str, *flags: str, compiler: str | None = COMPILER) -> Path:
    """A program of a main function and a source."""
    folder = made.manifest.parent
    (folder / "main.c").write_text(main)
    command = [str(compiler), *STRICT, *flags, str(folder / "main.c"), str(made.source)]
    done = subprocess.run([*command, "-lm", "-o", str(folder / "main")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "main"


def outputs_of(program: FrameProgram, output: bytes) -> list[np.ndarray]:
    """The outputs of all frames that a program in C has written."""
    arrays, at = list[np.ndarray](), 0
    for each in program.of("output"):
        count = FRAMES * each.bytes
        dtype = np.dtype("u1" if each.dtype == "bool" else each.dtype)
        arrays.append(np.frombuffer(output[at : at + count], dtype).reshape(FRAMES, each.size))
        at += count
    assert at == len(output), output[at:]
    return arrays


def in_numpy(program: FrameProgram, given: np.ndarray) -> list[np.ndarray]:
    """The outputs of all frames by NumPy's operations."""
    run = FrameRun(program)
    return [np.stack(each) for each in zip(*(run.step(frame) for frame in given), strict=True)]


def run_on(main: Path, made: DeviceBuild, given: np.ndarray) -> None:
    """Runs a program of `main_of` on frames; its outputs have the bits of NumPy's operations."""
    done = subprocess.run([str(main)], input=given.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = outputs_of(made.program, done.stdout)
    for own, right in zip(outputs, in_numpy(made.program, given), strict=True):
        np.testing.assert_array_equal(own.view("u1"), right.view("u1"))
