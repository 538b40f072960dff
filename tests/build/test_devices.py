"""Packages for devices: in emulation, their machine code has the bits of NumPy's operations on each frame."""

import ctypes
import json
import platform
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_overloads

import numpy as np
import pytest
from zoo import rnn_of

from stepnet.build import Build, DeviceBuild, build
from stepnet.compiler.targets.frame import FrameProgram, FrameRun
from stepnet.compiler.targets.frame.machine import DEVICES, MachineProgram, compiled_text, module_of
from stepnet.errors import InputError, RefusedError
from tests.build.frame_models import MODELS, Numbers, frames_of

Array = np.ndarray
MAIN = Path(__file__).with_name("device_main.c")
ZIG = shutil.which("zig") or (
    Path(spec.origin).parent / "zig" if (spec := find_spec("ziglang")) and spec.origin else None
)
HALF = 4
C_TYPES = {"float32": "float", "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t"}
SCRIPT = """ENTRY(_start)
MEMORY {{ ROM (rx) : ORIGIN = {rom}, LENGTH = 512K RAM (rw) : ORIGIN = {ram}, LENGTH = 256K }}
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) }} >ROM
  .ARM.exidx : {{ *(.ARM.exidx*) }} >ROM
  .data : {{ *(.data*) }} >RAM
  .bss : {{ *(.bss*) *(COMMON) }} >RAM
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
}}
"""


@dataclass(frozen=True)
class Emulation:
    """An emulator that runs code of a platform here. zig: the target and options of the linker. command:
    the emulator's. memory: the first addresses of ROM and RAM of a machine without a system.
    """

    zig: str
    command: str
    memory: tuple[str, str] | None = None


def board(machine: str, core: str, *memory: str, abi: str = "eabihf") -> Emulation:
    """A board with a Cortex-M."""
    emulator = f"qemu-system-arm -M {machine} -nographic -semihosting-config enable=on,target=native -kernel"
    return Emulation(f"thumb-freestanding-{abi} -mcpu={core}", emulator, (memory[0], memory[1]))


EMULATIONS = {
    "cortex-m0plus": board("mps2-an385", "cortex_m0plus", "0", "0x20000000", abi="eabi"),
    "cortex-m4f": board("mps2-an386", "cortex_m4", "0", "0x20000000"),
    "cortex-m33": board("mps2-an505", "cortex_m33", "0x10000000", "0x38000000"),
    "cortex-m55": board("mps3-an547", "cortex_m55", "0", "0x20000000"),
    "armv7": Emulation("arm-linux-musleabihf -nostdlib", "qemu-arm"),
    "riscv64": Emulation("riscv64-linux-musl -nostdlib", "qemu-riscv64 -cpu rv64,v=true,vlen=128"),
    "riscv64-plain": Emulation("riscv64-linux-musl -nostdlib", "qemu-riscv64"),
    "riscv32": Emulation("riscv32-linux-musl -nostdlib -mcpu=baseline_rv32-d -mabi=ilp32f", "qemu-riscv32"),
}
WITHOUT = {
    "cortex-m0plus": set(MODELS) - {"quantized", "swapped"},  # products of float32 are refused
    "riscv32": {
        "operations"
    },  # its float64 is computed by the library of a compiler, which is not linked here
}
CASES = [(target, name) for target in EMULATIONS for name in MODELS if name not in WITHOUT.get(target, ())]
FLOATS = [name for name, row in DEVICES.items() if row.has_float]


def frames_header(program: FrameProgram, frames: Array) -> str:
    """The frames as tables in C, and room for the outputs of all."""
    data, outputs = frames.tobytes(), program.of("output")
    (given,) = program.of("input")
    places = [f"(const {C_TYPES[given.dtype]} *)raw.bytes + (at) * {given.size}"]
    places += [f"v_{each.name} + (at) * {each.size}" for each in outputs]
    lines = [
        f"#define COUNT {len(frames)}U",
        f"#define HALF {HALF}U",
        f"static const union {{ uint8_t bytes[{len(data)}]; int64_t aligned; }} raw =",
        f"{{{{{', '.join(map(str, data))}}}}};",
        *(f"static {C_TYPES[each.dtype]} v_{each.name}[{each.size * len(frames)}];" for each in outputs),
        f"#define PLACES(at) {', '.join(places)}",
        f"#define PUT_ALL {' '.join(f'put(v_{each.name}, sizeof v_{each.name});' for each in outputs)}",
    ]
    return "\n".join(lines)


def emulated(made: DeviceBuild, frames: Array, emulation: Emulation) -> bytes:
    """The outputs of all frames, by the library of a package in an emulator."""
    assert made.header is not None
    assert made.static is not None
    folder = made.manifest.parent
    (folder / "frames.h").write_text(frames_header(made.program, frames))
    linking = list[str]()
    if emulation.memory is not None:
        rom, ram = emulation.memory
        (folder / "memory.ld").write_text(SCRIPT.format(rom=rom, ram=ram))
        linking = ["-T", str(folder / "memory.ld")]
    options = ["-O1", "-static", "-ffreestanding", "-fno-sanitize=all", "-target"]
    files = [
        f"-I{made.header.parent}",
        f"-I{folder}",
        str(MAIN),
        str(made.static),
        "-o",
        str(folder / "m.elf"),
    ]
    command = [str(ZIG), "cc", *options, *emulation.zig.split(), *linking, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = [*emulation.command.split(), str(folder / "m.elf")]
    ended = subprocess.run(run, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    written = ended.stdout + ended.stderr if emulation.memory else ended.stdout
    return bytes.fromhex(written.decode()) if emulation.memory else written


@pytest.mark.skipif(ZIG is None, reason="there is no linker for other processors: pip install ziglang")
@pytest.mark.long(every=10)
@pytest.mark.parametrize(("target", "name"), CASES)
def test_machine_code_has_the_bits_of_numpy(target: str, name: str, tmp_path: Path):
    emulation = EMULATIONS[target]
    if shutil.which(emulator := emulation.command.split()[0]) is None:
        pytest.skip(f"there is no {emulator}")
    model, inputs = MODELS[name](Numbers("f4"))
    frames = frames_of(name)
    made = build(model, tmp_path, name="m", target=target, inputs=inputs)
    assert isinstance(made, DeviceBuild)
    run = FrameRun(made.program)
    outputs = zip(*(run.step(frame) for frame in frames), strict=True)
    assert emulated(made, frames, emulation) == b"".join(y.tobytes() for each in outputs for y in each)


def as_linux(target: str, program: FrameProgram, folder: Path) -> ctypes.CDLL:
    """The code of a platform with x86-64 as a library of Linux."""
    row = replace(DEVICES[target], triple="x86_64-unknown-linux-gnu", format="elf")
    data = compiled_text(str(module_of(MachineProgram(program, "m", "a model", row))), row)
    (folder / "m.o").write_bytes(data)
    subprocess.run(["cc", "-shared", "-o", folder / "m.so", folder / "m.o"], check=True)
    return ctypes.CDLL(str(folder / "m.so"))


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux" or shutil.which("cc") is None,
    reason="this is not Linux on x86-64, or there is no cc",
)
@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["sound", "quantized", "operations"])
@pytest.mark.parametrize("target", ["x86_64-macos", "x86_64-windows"])
def test_code_for_x86_64_has_the_bits_of_numpy(target: str, name: str, tmp_path: Path):
    if target == "x86_64-macos" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    model, inputs = MODELS[name](Numbers("f4"))
    frames = frames_of(name)
    made = build(model, tmp_path, name="m", target=target, inputs=inputs)
    assert isinstance(made, DeviceBuild)
    library = as_linux(target, made.program, tmp_path)
    context = np.zeros(made.sizes.ram_bytes // 8, np.int64)
    outputs = [np.zeros((len(frames), each.size), each.dtype) for each in made.program.of("output")]
    places = [ctypes.c_void_p(each.ctypes.data) for each in (context, frames, *outputs)]
    assert library.m_reset(places[0]) == 0
    assert library.m_block(places[0], ctypes.c_size_t(len(frames)), *places[1:]) == 0
    run = FrameRun(made.program)
    for index, frame in enumerate(frames):
        for got, wanted in zip(outputs, run.step(frame), strict=True):
            np.testing.assert_array_equal(got[index].view("u1"), wanted.view("u1"))


def assembly(target: str, folder: Path) -> str:
    """The assembly of a GRU for a platform."""
    program = build(rnn_of("gru", 8, 32), folder, target="c", inputs=8).program
    declared = MachineProgram(program, "m", "a GRU", DEVICES[target])
    return compiled_text(str(module_of(declared)), DEVICES[target], assembly=True)


VECTORS = {
    "wasm32": r"f32x4\.mul",
    "cortex-m55": r"vmul\.f32\s+q",
    "armv7": r"vml?[ua]l?\.f32\s+q|vmla\.f32\s+q",
    "riscv64": r"vfmul\.v",
    "aarch64-macos": r"fmul(\.4s|\s+v\d+\.4s)",
    "x86_64-macos": r"vmulps\s.*ymm",
    "aarch64-windows": r"fmul(\.4s|\s+v\d+\.4s)",
    "x86_64-windows": r"mulps\s.*xmm",
}
FUSED = r"\b(v?fn?m(add|sub|ac)|vf[mn]?m[as]|fml[as])"


@pytest.mark.parametrize("target", FLOATS)
def test_code_has_vectors_and_fuses_nothing(target: str, tmp_path: Path):
    text = assembly(target, tmp_path)
    assert re.search(FUSED, text) is None
    assert (re.search(VECTORS.get(target, "f32x4"), text) is not None) == (target in VECTORS)
    assert re.search(r"\b(memcpy|memset|expf|tanhf|malloc)\b", text) is None


def defined(data: bytes) -> dict[str, int]:
    """The symbols of a static library, each with the offset of its member, by the rules of its form."""
    assert data[:8] == b"!<arch>\n"
    name, size = data[8:24].decode().rstrip(), int(data[56:66])
    table = data[68 : 68 + size]
    if name == "/":
        (count,) = struct.unpack_from(">I", table)
        offsets = struct.unpack_from(f">{count}I", table, 4)
        return dict(zip(table[4 + 4 * count :].decode().split("\0"), offsets, strict=False))
    assert (name, table[:12]) == ("#1/12", b"__.SYMDEF\0\0\0")
    (bytes_,) = struct.unpack_from("<I", table, 12)
    rows = struct.iter_unpack("<II", table[16 : 16 + bytes_])
    texts = table[20 + bytes_ :]
    return {texts[at : texts.index(b"\0", at)].decode(): offset for at, offset in rows}


MAGICS = {"elf": b"\x7fELF", "mach-o": b"\xcf\xfa\xed\xfe", "coff": b""}


@pytest.mark.parametrize("target", ["cortex-m4f", "aarch64-macos", "x86_64-windows"])
def test_linkers_find_the_functions_of_archives(target: str, tmp_path: Path):
    made = build(rnn_of("gru", 3, 5), tmp_path, name="words", target=target, inputs=3)
    assert made.static is not None
    data, row = made.static.read_bytes(), DEVICES[target]
    found = defined(data)
    ahead = "_" if row.format == "mach-o" else ""
    assert set(found) == {f"{ahead}words_{each}" for each in ("reset", "step", "block", "save", "restore")}
    (offset,) = set(found.values())
    assert data[offset + 58 : offset + 60] == b"`\n"
    name = data[offset : offset + 16].decode().strip()
    begin = offset + 60 + (int(name.removeprefix("#1/")) if name.startswith("#1/") else 0)
    assert data[begin:].startswith(MAGICS[row.format])
    assert begin % (8 if row.format == "mach-o" else 2) == 0


def test_programs_of_cmake_find_a_package(tmp_path: Path):
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("there is no cmake")
    build(rnn_of("gru", 3, 5), tmp_path / "words", name="words", target="riscv64", inputs=3)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(p NONE)\nfind_package(words CONFIG REQUIRED)\n"
        "get_target_property(place words::words IMPORTED_LOCATION)\nmessage(STATUS ${place})\n"
    )
    command = [
        cmake,
        "-S",
        str(tmp_path),
        "-B",
        str(tmp_path / "b"),
        f"-DCMAKE_PREFIX_PATH={tmp_path / 'words'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"-- {tmp_path}/words/lib/libwords.a" in done.stdout, done.stderr


PLACES = {
    "cmake": ["include/words.h", "lib/libwords.a", "words.json", "wordsConfig.cmake"],
    "zephyr": [
        "CMakeLists.txt",
        "Kconfig",
        "include/words.h",
        "lib/libwords.a",
        "words.json",
        "zephyr/module.yml",
    ],
    "arduino": [
        "examples/words/words.ino",
        "library.properties",
        "src/cortex-m4/fpv4-sp-d16-hard/libwords.a",
        "src/words.h",
        "words.json",
    ],
}


@pytest.mark.parametrize("package", PLACES)
def test_packages_have_the_files_of_their_kind(package: str, tmp_path: Path):
    made = build(rnn_of("gru", 3, 5), tmp_path, name="words", target="cortex-m4f", package=package, inputs=3)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in files) == PLACES[package]
    assert not [path for path in made.others if "@" in path.read_text()]
    assert made.header is not None
    text = made.header.read_text()
    assert "Machine code for Cortex-M4 with its FPU." in text
    assert f"#define WORDS_RAM_BYTES {made.sizes.ram_bytes}U" in text
    assert f"uint64_t words[{made.sizes.ram_bytes // 8}];" in text
    assert json.loads(made.manifest.read_text())["target"] == "cortex-m4f"


def test_types_name_every_target(tmp_path: Path):
    devices, libraries, _ = (get_args(each.__annotations__["target"]) for each in get_overloads(build))
    assert devices == ("c", *DEVICES)
    every = ", ".join((*libraries, *devices))
    refused(InputError, f"target is one of {every}, not 'riscv128'", "riscv128", tmp_path)


@pytest.mark.parametrize(
    ("target", "kind"), [("x86-64-v3", Build), ("c", DeviceBuild), ("riscv32", DeviceBuild)]
)
def test_builds_for_devices_are_values_of_their_own(target: str, kind: type, tmp_path: Path):
    assert type(build(rnn_of("gru", 3, 5), tmp_path, target=target, inputs=3)) is kind


def refused(error: type[Exception], message: str, target: str, folder: Path, **options: object) -> None:
    """Checks the message that refuses a build."""
    with pytest.raises(error, match=re.escape(message)):
        build(rnn_of("gru", 3, 5), folder, target=target, inputs=3, **options)  # type: ignore[arg-type] # wrong ones


def test_wrong_arguments_are_refused(tmp_path: Path):
    refused(
        InputError, "package for armv7 is one of cmake, not 'zephyr'", "armv7", tmp_path, package="zephyr"
    )
    refused(InputError, "is in no package", "c", tmp_path, package="npm")
    refused(InputError, "package is the kind of package for a device", "aarch64", tmp_path, package="npm")
    refused(InputError, "has its weights inside", "riscv32", tmp_path, weights="beside")
    refused(InputError, "riscv64-plain, riscv32, aarch64-macos", "riscv128", tmp_path)
    refused(RefusedError, "cortex-m0plus has no instructions for float32", "cortex-m0plus", tmp_path)
    refused(RefusedError, "bytes of RAM, and there are 64", "cortex-m4f", tmp_path, ram=64)
