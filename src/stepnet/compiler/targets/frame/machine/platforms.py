"""The platforms of frame programs, a row each: browsers, phones, microcontrollers and desktops."""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Literal

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.frame.program import FrameProgram, products_of
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError

WASM, ELF, MACH_O, COFF = "wasm", "elf", "mach-o", "coff"
"""The formats of objects."""
NPM, CMAKE, ZEPHYR, ARDUINO = "npm", "cmake", "zephyr", "arduino"
"""The kinds of packages."""


@dataclass(frozen=True)
class DevicePlatform:
    """A platform to build for.

    name: the name that the user gives. about: the processors and systems, for headers and messages.
    triple, cpu, features: LLVM's names. format: the format of objects.
    pointer_bytes: the bytes of an address. vector_bytes: those of a vector; 0 without vectors.
    columns: the columns of a matrix that a product computes at once, as the registers hold their sums.
    has_float: whether instructions compute with float32; if not, products are of int8, and the compiler's
        library computes the rest.
    has_long_products: whether an instruction multiplies integers of 32 bits to 64.
    has_half: whether instructions convert float16 to float32.
    flushes: whether vectors take denormal numbers for zeros; such results then differ from other platforms'.
    dot: the intrinsic of LLVM that multiplies eight pairs of 16-bit integers and adds the products in twos;
        "" if vectors have no such instruction, or LLVM finds it.
    layout: how the weights of integer products lie, for instructions that the core has for these; a key of
        `weight_layouts.LAYOUTS`, or "".
    gather: the intrinsic of LLVM that reads elements of a table at a vector of indices; "" for one by one.
    inlined: the most instructions of a routine that is written where it is called.
    packages: the kinds of packages, the first by default.
    plain: the platform for machines without vectors, whose code is built beside.
    boards: the folder of a library of Arduino that has the machine code for such boards.
    """

    name: str
    about: str
    triple: str
    cpu: str
    features: str
    format: str
    pointer_bytes: int
    vector_bytes: int
    columns: int = 8
    has_float: bool = True
    has_long_products: bool = True
    has_half: bool = False
    flushes: bool = False
    dot: str = ""
    layout: str = ""
    gather: str = ""
    inlined: int = 40
    packages: tuple[str, ...] = field(default=(CMAKE,))
    plain: str | None = None
    boards: str = ""

    @cached_property
    def processor(self) -> Processor:
        """The processor, for builders of LLVM code."""
        return Processor(self.name, self.cpu, self.features, self.vector_bytes, 16)

    @property
    def relocation(self) -> Literal["pic", "static"]:
        """LLVM's name for how code finds its data: the programs of systems may be placed anywhere."""
        return "static" if "unknown-none" in self.triple or self.format == WASM else "pic"

    @property
    def code_model(self) -> Literal["medium", "small"]:
        """LLVM's name for how far data are: on RISC-V anywhere within 2 GiB of the code."""
        return "medium" if self.triple.startswith("riscv") else "small"

    def lanes(self, itemsize: int) -> int:
        """Returns the number of elements of so many bytes in a vector; 1 without vectors."""
        return max(1, self.vector_bytes // itemsize)


X86_DOT = "llvm.x86.sse2.pmadd.wd"
CORTEX_M = (CMAKE, ZEPHYR, ARDUINO)
THUMB = "thumbv{}-unknown-none-eabi{}".format
APPLE, WINDOWS = (
    "-apple-macosx11.0.0",
    "-pc-windows-gnu",
)  # for all linkers: with "msvc" objects ask for symbols of its C library
ROWS = (
    DevicePlatform(
        "wasm32",
        "browsers and node, with 128-bit SIMD",
        "wasm32-unknown-unknown",
        "generic",
        "+simd128",
        WASM,
        4,
        16,
        columns=32,
        dot="llvm.wasm.dot",
        packages=(NPM,),
        plain="wasm32-plain",
    ),
    DevicePlatform(
        "wasm32-plain",
        "all WebAssembly, without SIMD",
        "wasm32-unknown-unknown",
        "mvp",
        "",
        WASM,
        4,
        0,
        packages=(NPM,),
    ),
    DevicePlatform(
        "cortex-m0plus",
        "Cortex-M0+, with products of int8",
        THUMB("6m", ""),
        "cortex-m0plus",
        "",
        ELF,
        4,
        0,
        columns=4,
        has_float=False,
        has_long_products=False,
        inlined=0,
        layout="columns",
        packages=CORTEX_M,
        boards="cortex-m0plus",
    ),
    DevicePlatform(
        "cortex-m4f",
        "Cortex-M4 with its FPU",
        THUMB("7em", "hf"),
        "cortex-m4",
        "",
        ELF,
        4,
        0,
        has_half=True,
        layout="dsp",
        packages=CORTEX_M,
        boards="cortex-m4/fpv4-sp-d16-hard",
    ),
    DevicePlatform(
        "cortex-m33",
        "Cortex-M33 with its FPU",
        THUMB("8m.main", "hf"),
        "cortex-m33",
        "",
        ELF,
        4,
        0,
        has_half=True,
        layout="dsp",
        packages=CORTEX_M,
        boards="cortex-m33/fpv5-sp-d16-hard",
    ),
    DevicePlatform(
        "cortex-m55",
        "Cortex-M55 with Helium",
        THUMB("8.1m.main", "hf"),
        "cortex-m55",
        "",
        ELF,
        4,
        16,
        has_half=True,
        flushes=True,
        layout="helium",
        gather="llvm.arm.mve.vldr.gather.offset.v4i32.p0.v4i32",
        packages=CORTEX_M,
        boards="cortex-m55/fpv5-d16-hard",
    ),
    DevicePlatform(
        "armv7",
        "32-bit Arm (ARMv7-A) with NEON, hard float",
        "armv7-unknown-linux-gnueabihf",
        "generic",
        "+v7,+neon,+vfp3",
        ELF,
        4,
        16,
        columns=32,
        flushes=True,
    ),
    DevicePlatform(
        "riscv64",
        "64-bit RISC-V (RV64GCV)",
        "riscv64-unknown-linux-gnu",
        "generic-rv64",
        "+m,+a,+f,+d,+c,+v",
        ELF,
        8,
        16,
        columns=32,
    ),
    DevicePlatform(
        "riscv64-plain",
        "64-bit RISC-V (RV64GC)",
        "riscv64-unknown-linux-gnu",
        "generic-rv64",
        "+m,+a,+f,+d,+c",
        ELF,
        8,
        0,
    ),
    DevicePlatform(
        "riscv32",
        "32-bit RISC-V microcontrollers (RV32IMAFC)",
        "riscv32-unknown-none-elf",
        "generic-rv32",
        "+m,+a,+f,+c",
        ELF,
        4,
        0,
    ),
    DevicePlatform(
        "aarch64-macos",
        "Apple silicon, macOS 11",
        f"arm64{APPLE}",
        "apple-m1",
        "",
        MACH_O,
        8,
        16,
        columns=32,
        has_half=True,
    ),
    DevicePlatform(
        "x86_64-macos",
        "Macs with Intel's processors (AVX2), macOS 11",
        f"x86_64{APPLE}",
        "x86-64-v3",
        "",
        MACH_O,
        8,
        32,
        columns=32,
        has_half=True,
        dot=X86_DOT,
    ),
    DevicePlatform(
        "aarch64-windows",
        "Windows on 64-bit Arm",
        f"aarch64{WINDOWS}",
        "generic",
        "",
        COFF,
        8,
        16,
        columns=32,
        has_half=True,
    ),
    DevicePlatform(
        "x86_64-windows",
        "Windows on x86-64 (SSE4.2)",
        f"x86_64{WINDOWS}",
        "x86-64-v2",
        "",
        COFF,
        8,
        16,
        columns=32,
        dot=X86_DOT,
    ),
)
DEVICES: Mapping[str, DevicePlatform] = {row.name: row for row in ROWS}
"""The platforms by their names."""


def check_computes(program: FrameProgram, platform: DevicePlatform) -> None:
    """Raises `RefusedError` for a program with products of floats if a platform has no instructions for them,
    naming the first.
    """
    floats = (loop for loop in products_of(program) if program.by_name[loop.weights].dtype != "int8")
    if not platform.has_float and (product := next(floats, None)) is not None:
        raise RefusedError(
            f"{platform.name} has no instructions for float32, in which the model computes "
            f"`{product.about}`: "
            "build what sn.quantize(model, samples, 'int8') gives, or for cortex-m4f"
        )
