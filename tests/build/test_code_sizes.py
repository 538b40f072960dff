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
from tests.build.frame_models import MODELS, Numbers

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
    assert (source.sizes.code_bytes, source.sizes.stack_bytes) == (None, None)
    assert source.header is not None
    assert "Bytes of code and stack depend on the compiler" in " ".join(source.header.read_text().split())
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
