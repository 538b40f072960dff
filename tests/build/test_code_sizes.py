"""Bytes of code and of stack: against the tools of a compiler, and against a stack that was painted."""

import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepnet.build import build
from stepnet.compiler.targets.frame.machine import (
    DEVICES,
    MachineProgram,
    compiled_text,
    module_of,
    sizes_of_code,
    taken_by,
)
from stepnet.errors import RefusedError
from tests.build.frame_models import MODELS, Numbers, built

COMPILER = shutil.which("cc")
NAMES = ("gru", "sound", "operations", "turned")
MAIN = """
#define _XOPEN_SOURCE 700
#include "m.h"
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
static m_context context;
static unsigned char painted[1 << 20];
static ucontext_t main_context, own;
static double room[{count}][256];
typedef int function(m_context *{types});
static int nothing(m_context *context{types}) {{ (void)context; return 0; }}
static function *volatile run;
static void call(void) {{ run(&context{arguments}); }}
static size_t used(function *chosen)
{{
    size_t at = 0;
    memset(painted, 0xA5, sizeof painted);
    getcontext(&own);
    own.uc_stack.ss_sp = painted;
    own.uc_stack.ss_size = sizeof painted;
    own.uc_link = &main_context;
    run = chosen;
    makecontext(&own, call, 0);
    swapcontext(&main_context, &own);
    while (painted[at] == 0xA5) at++;
    return sizeof painted - at;
}}
int main(void)
{{
    m_reset(&context);
    printf("%zu %zu", used(nothing), used((function *)m_step));
    return 0;
}}
"""
"""A program that runs a frame on a stack of its own, and looks how much of it was written."""


def program_of(name: str, folder: Path, **options: Any) -> Any:
    """A model of the table as source code."""
    model, inputs = MODELS[name](Numbers("f4"))
    return build(model, folder, name="m", target="c", inputs=inputs, **options).program


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, cc")
@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="this is not Linux on x86-64"
)
@pytest.mark.parametrize("name", NAMES)
def test_a_frame_takes_no_more_stack_than_is_said(name: str, tmp_path: Path):
    row = replace(DEVICES["x86_64-windows"], triple="x86_64-unknown-linux-gnu", format="elf")
    declared = MachineProgram(program_of(name, tmp_path), "m", "a model", row)
    data = compiled_text(str(module_of(declared)), row)
    (tmp_path / "m.o").write_bytes(data)
    (tmp_path / "m.h").write_text(declared.header())
    kinds = ["const void" if each.kind == "input" else "void" for each in declared.ends]
    text = MAIN.format(
        count=len(kinds),
        types="".join(f", {kind} *a{place}" for place, kind in enumerate(kinds)),
        arguments="".join(f", room[{place}]" for place in range(len(kinds))),
    )
    (tmp_path / "main.c").write_text(text)
    files = [str(tmp_path / name) for name in ("main.c", "m.o", "main")]
    subprocess.run([str(COMPILER), "-O1", "-w", *files[:2], "-o", files[2]], check=True)
    printed = subprocess.run([files[2]], capture_output=True, check=True).stdout
    before, after = map(int, printed.split())
    said = sizes_of_code(declared, data)
    assert said.stack_bytes is not None
    written = after - before + 8  # the return address, which both have
    assert written <= said.stack_bytes <= written + 128


ARM = ("arm-none-eabi-gcc", "-mthumb")
COMPILERS = {
    "gcc": ("gcc",),
    "clang": ("clang",),
    "cortex-m0plus": (*ARM, "-mcpu=cortex-m0plus", "-mfloat-abi=soft"),
    "cortex-m4f": (*ARM, "-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    "cortex-m55": (*ARM, "-mcpu=cortex-m55", "-mfloat-abi=hard"),
}
"""Compilers that write what each function takes of the stack, by a name of what they compile for."""


@pytest.mark.long(every=5)
@pytest.mark.parametrize("name", ["lstm", "operations", "turned", "int8"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_source_takes_no_more_stack_than_is_said_at_any_level(compiler: str, name: str, tmp_path: Path):
    if shutil.which(COMPILERS[compiler][0]) is None:
        pytest.skip(f"there is no {COMPILERS[compiler][0]}")
    made, _ = built(name, tmp_path)
    assert made.source is not None
    assert made.sizes.stack_bytes is not None
    text = made.source.read_text()
    bodies = dict(re.findall(r"^(?:static (?:inline )?)?\w+ (\w+)\((.*?)^\}", text, flags=re.M | re.S))
    calls = {each: {*re.findall(r"\w+", body)} & {*bodies} - {each} for each, body in bodies.items()}
    for level in ("-O0", "-O1", "-O2", "-O3"):
        command = [*COMPILERS[compiler], "-std=c99", level, "-fstack-usage", "-c", str(made.source)]
        subprocess.run([*command, "-o", str(tmp_path / "m.o")], check=True)
        rows = (line.split("\t") for line in (tmp_path / "m.su").read_text().splitlines())
        taken = {place.rpartition(":")[2].partition(".")[0]: int(size) for place, size, _ in rows}

        def deepest(function: str, taken: dict[str, int] = taken) -> int:
            """The bytes of a function, and of the calls in it that take the most."""
            return taken.get(function, 0) + max(map(deepest, calls[function]), default=0)

        assert 0 < deepest("m_block") <= made.sizes.stack_bytes, level
        assert level != "-O0" or made.sizes.stack_bytes < 5 * deepest("m_block")


def test_functions_of_browsers_take_their_locals(tmp_path: Path):
    model, inputs = MODELS["gru"](Numbers("f4"))
    taken = [
        build(model, tmp_path / each, name="m", target=each, inputs=inputs).sizes.stack_bytes
        for each in ("wasm32", "wasm32-plain")
    ]
    assert taken[0] is not None
    assert taken[1] is not None
    assert taken[0] > taken[1] > 3 * 64  # a vector takes more than a number


@pytest.mark.skipif(shutil.which("size") is None, reason="there is no size of binutils")
@pytest.mark.parametrize("target", ["cortex-m4f", "riscv32", "armv7"])
def test_code_has_the_size_that_binutils_say(target: str, tmp_path: Path):
    declared = MachineProgram(program_of("operations", tmp_path), "m", "a model", DEVICES[target])
    data = compiled_text(str(module_of(declared)), declared.platform)
    (tmp_path / "m.o").write_bytes(data)
    listed = subprocess.run(
        ["size", str(tmp_path / "m.o")], capture_output=True, text=True, check=True
    ).stdout
    whole = int(listed.splitlines()[1].split()[0])
    constants = declared.program.constant_bytes
    code = sizes_of_code(declared, data).code_bytes
    assert code is not None
    assert whole - constants - 64 <= code <= whole - constants


def test_sizes_of_code_are_in_the_header_the_manifest_and_the_limits(tmp_path: Path):
    model, inputs = MODELS["gru"](Numbers("f4"))
    made = build(model, tmp_path, name="m", target="cortex-m4f", inputs=inputs)
    code, constants = made.sizes.code_bytes, made.sizes.constant_bytes
    assert code is not None
    assert made.header is not None
    defined = dict(re.findall(r"#define M_(\w+)_BYTES (\d+)U", made.header.read_text()))
    assert defined["CODE"] == str(code)
    assert defined["STACK"] == str(made.sizes.stack_bytes)
    assert json.loads(made.manifest.read_text())["sizes"]["code_bytes"] == code
    limit = code + constants - 1
    both = rf"\({constants} of constants, {code} of code\)"
    message = f"needs {limit + 1} bytes of flash {both}, and there are {limit}"
    with pytest.raises(RefusedError, match=message):
        build(model, tmp_path, name="m", target="cortex-m4f", inputs=inputs, flash=limit, force=True)
    build(model, tmp_path, name="m", target="cortex-m4f", inputs=inputs, flash=limit + 1, force=True)
    source = build(model, tmp_path / "c", name="m", target="c", inputs=inputs)
    assert source.sizes.code_bytes is None
    assert source.header is not None
    text = source.header.read_text()
    assert f"#define M_STACK_BYTES {source.sizes.stack_bytes}U" in text
    assert "Bytes of code depend on the compiler" in text
    with pytest.raises(RefusedError, match="bytes of flash for constants alone, and there are 100"):
        build(model, tmp_path / "d", name="m", target="c", inputs=inputs, flash=100)


@pytest.mark.parametrize(
    ("instruction", "taken"),
    [
        ("push\t{r4, r5, lr}", 12),
        ("vpush\t{d8, d9}", 16),
        ("sub\tsp, sp, #1, lsl #12", None),
        ("str\tx30, [sp, #-16]!", 16),
        ("addi\tsp, sp, -400", 400),
        ("addi\tsp, sp, 400", 0),
        ("add\tr0, sp, #8", 0),
        ("andq\t$-32, %rsp", None),
        ("sub\tsp, sp, t0", None),
        ("add\tsp, sp, a1", 0),
        ("stp\tx29, x30, [sp, #16]", 0),
    ],
)
def test_stack_of_instructions(instruction: str, taken: int | None):
    assert taken_by(instruction) == taken
