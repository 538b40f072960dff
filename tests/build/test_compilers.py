"""Source code of one frame by another compiler, and by the rules of MISRA C."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import stepnet as sn
from stepnet.build import build
from tests.build.frame_models import built
from tests.build.frame_sources import COMPILER, SANITISED, compiled, main_of, run_on

CLANG, CPPCHECK = shutil.which("clang"), shutil.which("cppcheck")
EVERYTHING = [
    "-Weverything",
    *(f"-Wno-{name}" for name in ("padded", "declaration-after-statement", "float-equal")),
]
"""All warnings but of gaps in a context, declarations as C99 has them, and `v != v`, which finds NaN."""
FUSING = ["-O2", "-mfma"] if platform.machine() == "x86_64" else ["-O2"]
"""There is an instruction that multiplies and adds, which clang takes by itself where the source lets it."""


@pytest.mark.skipif(CLANG is None, reason="there is no clang")
@pytest.mark.parametrize("name", ["operations", "quantized", "half_tables", "int8", "int16"])
def test_clang_has_no_warnings_and_the_bits_of_numpys_operations(name: str, tmp_path: Path):
    made, given = built(name, tmp_path)
    command = [str(CLANG), "-std=c99", *EVERYTHING, "-Werror", "-fsyntax-only", str(made.source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for flags in ([*SANITISED, "-Wno-missing-prototypes"], FUSING):
        run_on(compiled(made, main_of(made.program), *flags, compiler=CLANG), made, given)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or COMPILER is None,
    reason="this is not x86-64, or there is no C compiler, cc",
)
def test_gcc_fuses_no_multiplication_with_an_addition(tmp_path: Path):
    """GCC 12.1 and 12.2 do in this model, with -ffp-contract=off, too, unless the source forbids it."""
    gru = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=3, hidden=7))
    head = np.ones((7, 7), "f4")
    model = sn.Graph(lambda x, params: sn.sigmoid(gru(x)[0] @ params), head, inputs=3)
    small = sn.quantize(model, [np.ones((1, 2, 3), "f4")], "int8")
    source = build(small, tmp_path, name="m", target="c").source
    command = [str(COMPILER), "-std=c99", "-O3", "-march=x86-64-v4", "-S", "-o", "-", str(source)]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "vmulps" in assembly
    assert not re.search(r"\bvfn?m(add|sub)", assembly)


DOCUMENTED = Path(__file__).parents[2] / "docs" / "devices.md"


@pytest.mark.skipif(CPPCHECK is None, reason="there is no cppcheck")
def test_the_rules_of_misra_that_are_broken_are_those_of_the_page(tmp_path: Path):
    broken = set[str]()
    for name, integers in (("operations", "unix64"), ("bfloat16", "unix64"), ("int8", "arm32-wchar_t4")):
        made, _ = built(name, tmp_path / name)
        options = ["--std=c99", "--addon=misra", f"--platform={integers}", "--enable=style", "--quiet"]
        command = [str(CPPCHECK), *options, str(made.source)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        broken |= set(re.findall(r"\[misra-c2012-([\d.]+)\]", done.stderr))
    table = DOCUMENTED.read_text("utf-8").partition("## MISRA C")[2].partition("\n## ")[0]
    assert broken == set(re.findall(r"^\| (\d+\.\d+) ", table, re.M))
