"""Packages for devices: in emulation, their machine code has the bits of NumPy's operations on each frame."""

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import get_args, get_overloads

import numpy as np
import pytest
from zoo import rnn_of

from stepnet.build import Build, DeviceBuild, build
from stepnet.compiler.targets.frame.machine import DEVICES, MachineProgram, compiled_text, module_of
from stepnet.errors import InputError, RefusedError
from tests.build.frame_models import MODELS, built
from tests.build.frame_sources import in_numpy
from tests.build.machines import ARM_GCC, EMULATIONS, Emulation, emulated

Array = np.ndarray
MAIN = Path(__file__).with_name("device_main.c")
FLOATS = [name for name, row in DEVICES.items() if row.has_float]


LIBRARY = {"operations", "turned", "divided"}
"""Models with float64 or divisions of int64, which a compiler's library computes on processors of 32 bits."""
WITHIN = {
    "armv7": {"int8", "int16"},
    "cortex-m0plus": {"quantized", "pruned_int8", "swapped", "int8", "int16"},
}
"""Models with divisions of integers or floats, which it computes on these."""
WITHOUT = {
    "cortex-m0plus": set(MODELS) - {"quantized", "pruned_int8", "swapped"},  # products of float32 are refused
    "riscv32": LIBRARY,  # there is no such library here
}
CASES = [
    pytest.param(each, name, id=f"{each.platform}-{each.command.split()[0]}-{name}")
    for each in EMULATIONS
    for name in (*MODELS, "int8", "int16")
    if name not in WITHOUT.get(each.platform, ())
]


@pytest.fixture(scope="session")
def wine_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the files of wine, which it makes at its first start."""
    return tmp_path_factory.mktemp("wine")


@pytest.mark.long(every=10)
@pytest.mark.parametrize(("emulation", "name"), CASES)
def test_machine_code_has_the_bits_of_numpy(
    emulation: Emulation, name: str, tmp_path: Path, wine_prefix: Path
):
    if (missing := emulation.missing) is not None:
        pytest.skip(f"there is no {missing}")
    if emulation.is_arm and ARM_GCC is None and name in LIBRARY | WITHIN.get(emulation.platform, set()):
        pytest.skip("there is no arm-none-eabi-gcc, whose library has what this processor lacks")
    made, frames = built(name, tmp_path, emulation.platform)
    right = b"".join(each.tobytes() for each in in_numpy(made.program, frames))
    assert emulated(made, frames, emulation, wine_prefix) == right


DARWIN = "darwin -arch {} -platform_version macos 11.0 11.0 -dylib -all_load m.a -o m.out".format
LINKS = {
    "aarch64-macos": DARWIN("arm64"),
    "x86_64-macos": DARWIN("x86_64"),
    "aarch64-windows": "link -dll -noentry -machine:arm64 -wholearchive:m.a -export:m_restore -out:m.out",
}
"""The flavours of lld, and their options."""


@pytest.mark.skipif((LLD := shutil.which("lld")) is None, reason="there is no lld")
@pytest.mark.parametrize("target", LINKS)
def test_linkers_make_libraries_of_the_code(target: str, tmp_path: Path):
    made, _ = built("operations", tmp_path, target)
    assert made.static is not None
    made.static.rename(tmp_path / "m.a")
    command = [str(LLD), "-flavor", *LINKS[target].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"m_restore" in (tmp_path / "m.out").read_bytes()


def test_code_for_windows_has_no_addresses_of_32_bits(tmp_path: Path):
    made, _ = built("operations", tmp_path, "x86_64-windows")
    assert made.static is not None
    data = made.static.read_bytes()[max(defined(made.static.read_bytes()).values()) + 60 :]
    kinds = set[int]()
    for number in range(struct.unpack_from("<H", data, 2)[0]):
        at, _, count = struct.unpack_from("<IIH", data, 20 + 40 * number + 24)
        kinds |= {kind for _, _, kind in struct.iter_unpack("<IIH", data[at : at + 10 * count])}
    assert kinds == {4}  # IMAGE_REL_AMD64_REL32: programs lie above 4 GiB


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
