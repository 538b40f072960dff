"""A library for aarch64 run on any machine: by the emulator of the package `unicorn`.

It does what a loader does, and stands in for the few functions of the system's library.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from stepnet.compiler.targets.cpu.machine.elf import HEADER, RELOCATION, SECTION, SYMBOL

PROGRAM_BYTES, LOAD = 56, 1
BASE, SYSTEM, HEAP, STACK = 0x1000_0000, 0x2000_0000, 0x3000_0000, 0x7000_0000
HEAP_BYTES, STACK_BYTES, PAGE = 0x1000_0000, 0x10_0000, 4096
RETURN = b"\xc0\x03\x5f\xd6"


class Emulated:
    """A loaded library."""

    def __init__(self, data: bytes) -> None:
        unicorn, arm64_const = (import_module(name) for name in ("unicorn", "unicorn.arm64_const"))
        self.registers: list[int] = [getattr(arm64_const, f"UC_ARM64_REG_X{n}") for n in range(8)]
        self.link, self.stack = arm64_const.UC_ARM64_REG_X30, arm64_const.UC_ARM64_REG_SP
        self.machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.top = HEAP
        for begin, size in ((BASE, 2**26), (SYSTEM, 2**16), (HEAP, HEAP_BYTES), (STACK, STACK_BYTES)):
            self.machine.mem_map(begin, size)
        self.machine.reg_write(arm64_const.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector instructions are allowed
        self.machine.mem_write(SYSTEM, RETURN * (2**16 // 4))
        self.names = self.loaded(data)
        hook = unicorn.UC_HOOK_CODE
        self.machine.hook_add(hook, self.system, begin=SYSTEM, end=SYSTEM + 2**16 - 8)

    def loaded(self, data: bytes) -> dict[str, int]:
        """Puts segments and the addresses of the system's functions into memory; gives those of its own."""
        *_, programs, sections, _, _, _, count, _, rows, _ = HEADER.unpack_from(data)
        for place in range(programs, programs + PROGRAM_BYTES * count, PROGRAM_BYTES):
            kind = int.from_bytes(data[place : place + 4], "little")
            begin, address, _, size = (
                int.from_bytes(data[place + at : place + at + 8], "little") for at in (8, 16, 24, 32)
            )
            if kind == LOAD:
                self.machine.mem_write(BASE + address, data[begin : begin + size])
        tables = [SECTION.unpack_from(data, sections + SECTION.size * n) for n in range(rows)]
        (symbols,) = (row for row in tables if row[1] == 11)
        (relocations,) = (row for row in tables if row[1] == 4)
        strings = tables[symbols[6]][4]
        names = list[str]()
        own = dict[str, int]()
        for place in range(symbols[4], symbols[4] + symbols[5], SYMBOL.size):
            name, _, _, section, value, _ = SYMBOL.unpack_from(data, place)
            start = strings + name
            names.append(data[start : data.index(b"\0", start)].decode())
            if section:
                own[names[-1]] = BASE + value
        self.functions = {SYSTEM + 16 * number: name for number, name in enumerate(names)}
        for place in range(relocations[4], relocations[4] + relocations[5], RELOCATION.size):
            slot, _, number, _ = RELOCATION.unpack_from(data, place)
            self.machine.mem_write(BASE + slot, (SYSTEM + 16 * number).to_bytes(8, "little"))
        return own

    def system(self, machine: Any, address: int, *_: Any) -> None:
        """One of the system's functions is called."""
        name = self.functions.get(address)
        if name is None:
            return
        a, b, c = (int(machine.reg_read(register)) for register in self.registers[:3])
        does: dict[str, Callable[[], Any]] = {
            "aligned_alloc": lambda: machine.reg_write(self.registers[0], self.memory(b)),
            "free": lambda: None,
            "memset": lambda: machine.mem_write(a, bytes([b & 255]) * c),
            "memcpy": lambda: machine.mem_write(a, bytes(machine.mem_read(b, c))),
            "qsort": lambda: machine.mem_write(a, longest_first(bytes(machine.mem_read(a, 16 * b)))),
        }
        does[name]()

    def memory(self, size: int) -> int:
        """The address of new memory."""
        where = self.top
        self.top += -(-max(size, 1) // PAGE) * PAGE
        assert self.top <= HEAP + HEAP_BYTES
        return where

    def put(self, array: Any) -> int:
        """The address of a copy of an array."""
        where = self.memory(array.nbytes)
        self.machine.mem_write(where, np.ascontiguousarray(array).tobytes())
        return where

    def read(self, where: int, like: Any) -> Any:
        """The array at an address, of a shape and dtype."""
        return np.frombuffer(bytes(self.machine.mem_read(where, like.nbytes)), like.dtype).reshape(like.shape)

    def call(self, name: str, *arguments: int) -> int:
        """Calls a function; returns its result."""
        self.machine.reg_write(self.stack, STACK + STACK_BYTES - 4096)
        for register, argument in zip(self.registers, arguments, strict=False):
            self.machine.reg_write(register, argument)
        end = SYSTEM + 2**16 - 4
        self.machine.reg_write(self.link, end)
        self.machine.emu_start(self.names[name], end)
        return int(self.machine.reg_read(self.registers[0])) & 0xFFFFFFFF


def longest_first(data: bytes) -> bytes:
    """Pairs of a length and a number, sorted as the library's own comparison says."""
    pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
    return pairs[np.lexsort((pairs[:, 1], -pairs[:, 0]))].tobytes()
