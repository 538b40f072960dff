"""The relocations that LLVM emits for stepnet's code: how each kind encodes an address.

Numbers and formulas are those of the processors' ELF supplements ("System V ABI, AMD64", "ELF for the Arm
64-bit Architecture"). S: the address of the symbol plus the addend. P: the address of the relocated field.
"""

from collections.abc import Callable, Mapping

from stepnet.compiler.targets.cpu.machine.elf import AARCH64, X86_64
from stepnet.compiler.values.records import dataclass
from stepnet.errors import NetError

PAGE = 4096


@dataclass(frozen=True)
class RelocationKind:
    """Encodes one kind of relocation: a field of code or data that holds an address. put: computes the new
    bytes of the field from the target's address, its own, and its old bytes. call: it is for a call, which
    may use a stub. bytes: the size of the field.
    """

    put: Callable[[int, int, int], int]
    call: bool = False
    bytes: int = 4


def fits(value: int, bits: int) -> int:
    """Encodes a distance in bytes as `bits` bits (two's complement); raises `NetError` if it is too large."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise NetError(f"a library's code and data are {value} bytes apart, more than {bits} bits hold")
    return value & ((1 << bits) - 1)


def branch(s: int, p: int, old: int) -> int:
    """Puts the distance to address `s`, in units of 4 bytes, into the AArch64 branch `old` at `p`."""
    return old & ~0x3FFFFFF | fits(s - p, 28) >> 2


def page(s: int, p: int, old: int) -> int:
    """Puts the distance in pages of 4096 bytes from address `p` to `s` into an AArch64 ADRP instruction
    `old`, whose two low bits are stored apart. Returns the new instruction.
    """
    pages = fits((s & -PAGE) - (p & -PAGE), 33) >> 12
    return old & ~0x60FFFFE0 | (pages & 3) << 29 | (pages >> 2) << 5


def low(shift: int) -> Callable[[int, int, int], int]:
    """Makes the function that puts the offset of an address in its page into an AArch64 instruction, in units
    of 2**shift bytes: the size of the data that the instruction loads.
    """

    def put(s: int, p: int, old: int) -> int:
        """Puts the offset of address `s` in its page into the instruction `old`; `NetError` if it is no
        multiple of 2**shift, the size of the data. `p`, the address of the instruction, does not matter.
        """
        if s % (1 << shift):
            raise NetError(f"data of {1 << shift} bytes lie at {s:#x}")
        return old & ~(0xFFF << 10) | (s % PAGE >> shift) << 10

    return put


def distance(s: int, p: int, old: int) -> int:
    """Relocates a 32-bit field at address `p`: returns the distance in bytes to address `s`."""
    return fits(s - p, 32)


KINDS: Mapping[int, Mapping[int, RelocationKind]] = {
    X86_64: {2: RelocationKind(distance), 4: RelocationKind(distance, call=True)},  # R_X86_64_PC32, PLT32
    AARCH64: {
        261: RelocationKind(distance),  # R_AARCH64_PREL32
        275: RelocationKind(page),  # ADR_PREL_PG_HI21
        277: RelocationKind(low(0)),  # ADD_ABS_LO12_NC
        278: RelocationKind(low(0)),  # LDST8_ABS_LO12_NC, and of 16, 32, 64 and 128 bits
        282: RelocationKind(branch, call=True),  # JUMP26
        283: RelocationKind(branch, call=True),  # CALL26
        284: RelocationKind(low(1)),
        285: RelocationKind(low(2)),
        286: RelocationKind(low(3)),
        299: RelocationKind(low(4)),
    },
}
"""The kinds by machine and number; others are refused."""


def stub(machine: int, address: int, slot: int) -> bytes:
    """Makes 16 bytes of code at address `address` that jump to the address stored at address `slot`: calls of
    the C library go there. machine: the number of the processor.
    """
    if machine == X86_64:  # jmp [rip + distance]
        return b"\xff\x25" + fits(slot - address - 6, 32).to_bytes(4, "little") + b"\xcc" * 10
    # adrp x16, slot; ldr x17, [x16, slot]; br x17; nop
    words = page(slot, address, 0x90000010), low(3)(slot, address, 0xF9400211), 0xD61F0220, 0xD503201F
    return b"".join(word.to_bytes(4, "little") for word in words)
