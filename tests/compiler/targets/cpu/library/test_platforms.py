"""Libraries for other processors: the right machine, no instruction beyond it, the same bits."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet.build import Build, build, load
from stepnet.compiler.targets.cpu import LlvmEngine, available_processors
from stepnet.compiler.targets.cpu.library.objects import object_of
from stepnet.compiler.targets.cpu.library.platforms import FIXED, MACHINES, platform_named
from stepnet.compiler.targets.cpu.library.relocations import KINDS, fits
from stepnet.compiler.targets.cpu.machine.elf import HEADER, ObjectFile
from stepnet.errors import FileError, LibraryError, NetError
from tests.build.emulated import Emulated
from tests.build.libraries import given, library_of

MODEL = rnn_of("gru", 8, 16)
ON_X86 = available_processors()[-1].is_x86
HERE = [each.name for each in available_processors()]
WIDE = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3\d)\b")
NARROW = re.compile(r"%[xy]mm")


def instructions(made: Build) -> str:
    """The disassembled machine code of a library."""
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("there is no objdump to read machine code with")
    done = subprocess.run([tool, "-d", str(made.shared)], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("name", FIXED)
def test_every_file_is_for_the_machine(name: str, tmp_path: Path):
    made = build(MODEL, tmp_path, inputs=8, target=name)
    assert isinstance(made, Build)
    number = MACHINES[FIXED[name].machine]
    assert HEADER.unpack_from(made.shared.read_bytes())[2] == number
    archive = made.static.read_bytes()
    begins = [found.start() for found in re.finditer(rb"\x7fELF", archive)]
    assert [HEADER.unpack_from(archive, begin)[2] for begin in begins] == [number] * 3


@pytest.mark.skipif(not ON_X86, reason="the tool here reads other machine code")
def test_no_instruction_is_beyond_the_level(tmp_path: Path):
    """A library's own functions use what all processors of x86-64 have: they say if it is too old."""
    narrow = instructions(build(MODEL, tmp_path / "v3", name="gru", inputs=8, target="x86-64-v3"))
    wide = instructions(build(MODEL, tmp_path / "v4", name="gru", inputs=8, target="x86-64-v4"))
    assert "%ymm" in narrow
    assert not WIDE.search(narrow)
    assert "%zmm" in wide
    assert not re.search(r"\bvp?dp\w+", wide)  # of the extensions VNNI and BF16, which level 4 has not
    own = wide.partition("<gru_new>:")[0].partition("<gru_run>:")[2]
    assert not re.search(r"%[yz]mm|\bv[a-z]+ps\b", own)


@pytest.mark.parametrize(
    ("name", "dtype"), [("x86-64-v3", "float32"), ("x86-64-v4", "float64"), ("generic", "float32")]
)
def test_bits_are_those_of_the_engine_for_the_same_level(name: str, dtype: str, tmp_path: Path):
    code = platform_named(name).code
    if code.name not in HERE:
        pytest.skip(f"this processor does not run {name}")
    model, x = rnn_of("lstm", 8, 16, dtype=dtype), sequences([5, 0, 40, *[3] * 70], 8, dtype=dtype)
    library = library_of(model, tmp_path, inputs=8, target=name)
    reading = model.read(x, None, None, None, False)
    bound = LlvmEngine(code).compile(reading.running.schedule_for("llvm")).bind(reading.running.params)
    made = library(given(library, x))
    assert_same_bits([made["y"].values, made["final_h"], made["final_c"]], bound(reading.call).arrays)


def test_aarch64_gives_the_bits_of_fused_multiply_adds(tmp_path: Path):
    """In an emulator. x86-64-v3 and aarch64 both round a product and a sum once, so the bits are the same."""
    pytest.importorskip(
        "unicorn", reason="neither an emulator (pip install unicorn) nor such a processor is here"
    )
    if "avx2" not in HERE:
        pytest.skip("there is no processor here to compare with")
    x = sequences([5, 0, 9, *[2] * 66], 8)
    made = build(MODEL, tmp_path, name="gru", inputs=8, target="aarch64")
    machine = Emulated(made.shared.read_bytes())
    out = machine.memory(8)
    assert machine.call("gru_new", out) == 0
    context = int.from_bytes(machine.machine.mem_read(out, 8), "little")
    y, h = MODEL(x, engine="llvm")
    initial = np.zeros_like(h)
    arrays = machine.put(x.offsets[0]), machine.put(x.values), machine.put(initial)
    results = machine.memory(y.values.nbytes), machine.memory(h.nbytes)
    assert machine.call("gru_run", context, len(x), *arrays, *results) == 0
    assert_same_bits([machine.read(results[0], y.values), machine.read(results[1], h)], [y.values, h])
    assert machine.call("gru_run", context, len(x), *arrays[:1], 0, 0, *results) == 1


@pytest.mark.skipif(not ON_X86, reason="others are not asked what they have")
def test_a_processor_without_the_instructions_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No processor has the instructions of AMD's Bulldozer and AVX-512 both."""
    needs = ("xop", "tbm", "fma4", "avx512f")
    monkeypatch.setitem(FIXED, "x86-64-v3", replace(FIXED["x86-64-v3"], needs=needs))
    with pytest.raises(
        LibraryError, match=r"lacks instructions that the library was built for: (xop|avx512f)$"
    ):
        library_of(MODEL, tmp_path, inputs=8, target="x86-64-v3")


def test_a_module_without_code_is_freed_where_it_failed(monkeypatch: pytest.MonkeyPatch):
    """Freed later, by whichever thread collects garbage then, LLVM's objects end the process."""
    modules, parse, target = list[llvm.ModuleRef](), llvm.parse_assembly, platform_named("x86-64-v3")

    def parsed(*arguments: Any) -> llvm.ModuleRef:
        modules.append(parse(*arguments))
        return modules[-1]

    monkeypatch.setattr(llvm, "parse_assembly", parsed)
    wrong = "define i32 @f() { a: br i1 0, label %b, label %c b: %x = add i32 1, 1 ret i32 1 c: ret i32 %x }"
    with pytest.raises(RuntimeError, match="does not dominate"):
        object_of(wrong, target, target.code, frozenset())
    assert [module.closed for module in modules] == [True]


def test_a_library_for_another_machine_is_not_loaded(tmp_path: Path):
    other = "aarch64" if ON_X86 else "x86-64-v3"
    made = build(MODEL, tmp_path, inputs=8, target=other)
    with pytest.raises(FileError, match="the library is for Linux on"):
        load(made.shared, trust=True)


def test_builds_are_the_same_bytes_again(tmp_path: Path):
    one, other = (build(MODEL, tmp_path / name, inputs=8, target="x86-64-v3") for name in "ab")
    for left, right in ((one.shared, other.shared), (one.static, other.static), (one.header, other.header)):
        assert left.read_bytes() == right.read_bytes()


def test_distances_that_do_not_fit_are_refused():
    assert fits(-1, 32) == 0xFFFFFFFF
    with pytest.raises(NetError, match="2147483648 bytes apart"):
        fits(2**31, 32)


@pytest.mark.parametrize(
    ("kind", "s", "p", "old", "right"),
    [
        (275, 0x5000, 0x1FFC, 0x90000000, 0x90000020),  # adrp x0, four pages on
        (277, 0x12345, 0, 0x91000000, 0x910D1400),  # add x0, x0, #0x345
        (285, 0x12344, 0, 0xBD400000, 0xBD434400),  # ldr s0, [x0, #0x344]
        (286, 0x12340, 0, 0xF9400000, 0xF941A000),  # ldr x0, [x0, #0x340]
        (299, 0x12340, 0, 0x3DC00000, 0x3DC0D000),  # ldr q0, [x0, #0x340]
        (283, 0x1000, 0x1010, 0x94000000, 0x97FFFFFC),  # bl, four instructions back
    ],
)
def test_addresses_in_instructions_of_aarch64(kind: int, s: int, p: int, old: int, right: int):
    assert KINDS[MACHINES["aarch64"]][kind].put(s, p, old) == right


def test_objects_have_known_relocations_alone(tmp_path: Path):
    """Whatever a model computes, its code refers to constants and functions in the ways that are linked."""
    for name, target in FIXED.items():
        made = build(MODEL, tmp_path / name, inputs=8, target=name)
        assert isinstance(made, Build)
        archive = made.static.read_bytes()
        for found in re.finditer(rb"\x7fELF", archive):
            for part in ObjectFile.of(archive[found.start() :]).sections:
                assert {each.kind for each in part.relocations} <= KINDS[MACHINES[target.machine]].keys()


def test_the_layers_of_a_library_share_one_driver_which_programs_do_not_see(tmp_path: Path):
    stack = sn.Stack([rnn_of("gru", 8, 16), rnn_of("lstm", 16, 5)])
    made = build(stack, tmp_path, inputs=8, target="x86-64-v3")
    archive, drivers = made.static.read_bytes(), list[str]()
    for found in re.finditer(rb"\x7fELF", archive):
        symbols = ObjectFile.of(archive[found.start() :]).symbols
        drivers += [each.name for each in symbols if each.name.startswith("driver_")]
        assert not [each for each in symbols if each.name.startswith("driver_") and each.is_global]
    assert sorted(set(drivers)) == sorted(drivers)
    assert "driver_run" in drivers
    assert b"driver_" not in made.shared.read_bytes()
