"""Code for devices in a program that an emulator runs: machine code, which clang and lld link, and C for a
Cortex-M, which GCC compiles.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepnet.build import DeviceBuild
from stepnet.compiler.targets.frame import FrameProgram
from stepnet.compiler.targets.frame.machine import DEVICES, MachineProgram, compiled_text, module_of
from tests.build.frame_sources import C_TYPES

Array = np.ndarray
MAIN = Path(__file__).with_name("device_main.c")
CLANG, LLD = shutil.which("clang"), shutil.which("ld.lld")
ARM_GCC = shutil.which("arm-none-eabi-gcc")
KERNEL32 = next(iter(sorted(Path("/usr/lib").glob("*/wine/x86_64-windows/kernel32.dll"))), None)
"""The library of wine that a program for Windows asks for its output."""
HALF = 4
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
    """A way to run code of a platform here. platform: its name. command: the emulator's. options: those of
    clang. memory: the first addresses of ROM and RAM of a machine without a system. linux: the triple of a
    Linux that the code is generated for instead, as its own system is missing; the instructions are the same.
    """

    platform: str
    command: str
    options: str = ""
    memory: tuple[str, str] | None = None
    linux: str | None = None

    @property
    def is_arm(self) -> bool:
        """True for 32-bit Arm, for which the library of GCC has what its processors lack."""
        return DEVICES[self.platform].triple.startswith(("thumb", "armv7"))

    @property
    def missing(self) -> str | None:
        """The program or library that is not there, or None."""
        if CLANG is None or LLD is None:
            return "clang and lld"
        emulator = self.command.split()[0]
        if shutil.which(emulator) is None or (self.command == "wine" and KERNEL32 is None):
            return emulator
        return None


def board(platform: str, machine: str, *memory: str) -> Emulation:
    """A board with a Cortex-M."""
    emulator = f"qemu-system-arm -M {machine} -nographic -semihosting-config enable=on,target=native -kernel"
    return Emulation(platform, emulator, f"-mcpu={DEVICES[platform].cpu}", (memory[0], memory[1]))


ARM64, X86_64 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"
EMULATIONS = (
    board("cortex-m0plus", "mps2-an385", "0", "0x20000000"),
    board("cortex-m4f", "mps2-an386", "0", "0x20000000"),
    board("cortex-m33", "mps2-an505", "0x10000000", "0x38000000"),
    board("cortex-m55", "mps3-an547", "0", "0x20000000"),
    Emulation("armv7", "qemu-arm", "-march=armv7-a -mfpu=neon -mfloat-abi=hard"),
    Emulation("riscv64", "qemu-riscv64 -cpu rv64,v=true,vlen=128", "-march=rv64gc -mabi=lp64d"),
    Emulation("riscv64-plain", "qemu-riscv64", "-march=rv64gc -mabi=lp64d"),
    Emulation("riscv32", "qemu-riscv32", "-march=rv32imafc -mabi=ilp32f"),
    Emulation("x86_64-windows", "wine"),
    Emulation("x86_64-windows", "qemu-x86_64 -cpu max", linux=X86_64),
    Emulation("x86_64-macos", "qemu-x86_64 -cpu max", linux=X86_64),
    Emulation("aarch64-windows", "qemu-aarch64", linux=ARM64),
    Emulation("aarch64-macos", "qemu-aarch64", linux=ARM64),
)


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


BOARDS = {each.platform: each for each in EMULATIONS if each.memory is not None}


def linked(made: DeviceBuild, emulation: Emulation) -> Path:
    """A program of the main function and the code of a package, or its source for a board."""
    assert made.header is not None
    folder, row = made.manifest.parent, DEVICES[emulation.platform]
    code = made.static or made.source
    if emulation.linux is not None:
        row = replace(row, triple=emulation.linux, format="elf")
        code = folder / "m.o"
        code.write_bytes(compiled_text(str(module_of(MachineProgram(made.program, "m", "", row))), row))
    options = [*emulation.options.split(), "-O1", "-ffreestanding", "-nostdlib", "-static"]
    options += [f"-I{made.header.parent}", f"-I{folder}"]
    files, library = [str(MAIN), str(code)], list[str]()
    if emulation.memory is not None:
        rom, ram = emulation.memory
        (folder / "memory.ld").write_text(SCRIPT.format(rom=rom, ram=ram))
        options += ["-T", str(folder / "memory.ld")]
    if emulation.command == "wine":
        options += ["-Wl,--entry=_start"]
        files += [str(KERNEL32)]
    if emulation.is_arm and ARM_GCC is not None:
        asked = [ARM_GCC, *emulation.options.split(), "-mthumb", "-print-libgcc-file-name"]
        library = [subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()]
    # The operating system of riscv32 is none, whose clang takes no other linker than that of GCC.
    target = row.triple.replace("unknown-none-elf", "linux-gnu")
    command = [str(CLANG), f"--target={target}", "-fuse-ld=lld"]
    if made.static is None:
        command, library = [str(ARM_GCC), "-mthumb"], ["-lc", *library]
    command += [*options, *files, *library, "-o", str(folder / "m.exe")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "m.exe"


def emulated(made: DeviceBuild, frames: Array, emulation: Emulation, prefix: Path | None = None) -> bytes:
    """The outputs of all frames, by the code of a package in an emulator. prefix: the folder of wine."""
    (made.manifest.parent / "frames.h").write_text(frames_header(made.program, frames))
    run = [*emulation.command.split(), str(linked(made, emulation))]
    around = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(prefix)}
    ended = subprocess.run(run, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, env=around)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if emulation.memory is None:
        return ended.stdout
    return bytes.fromhex((ended.stdout + ended.stderr).decode())
