"""The linker of WebAssembly: an object of LLVM becomes a module that imports nothing.

memory   | stack, which grows down to 0 | data, by alignment | from `heap`: the caller's own

A stack that grows too large reaches an address below 0, which traps. The module exports its memory, as
"memory", the functions that are asked for, and as globals the addresses of data that are asked for and of
what is free ("heap").
"""

from collections.abc import Callable, Collection, Mapping
from math import ceil

from stepnet.compiler.targets.frame.machine import wasm_format as form
from stepnet.compiler.targets.frame.machine.wasm_format import PADDED, section, signed, unsigned, vector
from stepnet.compiler.targets.frame.machine.wasm_objects import (
    DATA_SYMBOL,
    FUNCTION_INDEX,
    FUNCTION_SYMBOL,
    GLOBAL_INDEX,
    GLOBAL_SYMBOL,
    MEMORY_I32,
    MEMORY_LEB,
    MEMORY_SLEB,
    WasmObject,
    WasmRelocation,
)
from stepnet.errors import FileError, NetError

PAGE = 65536
STACK = 4096
"""The bytes of the stack: frame programs keep in memory only what registers do not hold."""
STACK_POINTER, HEAP = "__stack_pointer", "heap"
ZEROS = ".bss"
"""The beginning of the names of segments whose bytes are zeros, which a module leaves out."""


def wasm_module(data: bytes, exports: Collection[str]) -> bytes:
    """Links an object to a module. exports: the functions and data that the module exports.

    Raises `FileError` for a damaged object, `NetError` for one that calls functions of other objects or lacks
    an export.
    """
    linked = WasmObject.of(data)
    defined = {symbol.name: symbol for symbol in linked.symbols if symbol.is_defined}
    missing = [
        symbol.name for symbol in linked.symbols if not symbol.is_defined and symbol.name != STACK_POINTER
    ]
    if missing:
        raise NetError(f"the code of a model calls {', '.join(missing)}, which it lacks")
    if lacking := sorted(set(exports) - set(defined)):
        raise NetError(f"the code of a model lacks {', '.join(lacking)}")
    begins, end = segment_addresses(linked)
    code = relocated(linked, form.CODE, linked.code, begins)
    payload = data_payload(linked, begins)
    rows, globals_list = list[bytes](), [b"\x7f\x01" + constant(STACK)]
    rows.append(form.text("memory") + bytes([form.OF_MEMORY]) + unsigned(0))
    for name in exports:
        symbol = defined[name]
        if symbol.kind == FUNCTION_SYMBOL:
            rows.append(form.text(name) + bytes([form.OF_FUNCTION]) + unsigned(symbol.number))
        else:
            rows.append(exported_address(name, begins[symbol.number] + symbol.offset, globals_list))
    rows.append(exported_address(HEAP, end, globals_list))
    return form.MAGIC + b"".join(
        section(number, body)
        for number, body in (
            (form.TYPE, linked.types),
            (form.FUNCTION, vector(map(unsigned, linked.functions))),
            (form.MEMORY, vector([b"\0" + unsigned(ceil(end / PAGE))])),
            (form.GLOBAL, vector(globals_list)),
            (form.EXPORT, vector(rows)),
            (form.CODE, code),
            (form.DATA, payload),
        )
    )


def exported_address(name: str, address: int, globals_list: list[bytes]) -> bytes:
    """Adds a constant global with an address; returns its row of the exports."""
    globals_list.append(bytes([form.I32, 0]) + constant(address))
    return form.text(name) + bytes([form.OF_GLOBAL]) + unsigned(len(globals_list) - 1)


def constant(value: int) -> bytes:
    """Writes the expression of a constant of 32 bits."""
    return bytes([form.I32_CONST]) + signed(value) + bytes([form.END])


def segment_addresses(linked: WasmObject) -> tuple[list[int], int]:
    """Places the segments after the stack; returns the address of each, and of the free memory behind them,
    aligned to 16 bytes.
    """
    begins, end = list[int](), STACK
    for segment in linked.segments:
        end += -end % segment.alignment
        begins.append(end)
        end += len(segment.data)
    if end > 2**31:
        raise NetError(f"a WebAssembly module has {end} bytes of data, more than 2 GiB")
    return begins, end + -end % 16


def data_payload(linked: WasmObject, begins: list[int]) -> bytes:
    """Writes the section of data: the segments at their addresses, those of zeros left out."""
    end = max((segment.begin + len(segment.data) for segment in linked.segments), default=0)
    body = bytearray(end)
    for segment in linked.segments:
        body[segment.begin : segment.begin + len(segment.data)] = segment.data
    whole = relocated(linked, form.DATA, bytes(body), begins)
    return vector(
        b"\0" + constant(begin) + unsigned(len(segment.data)) + whole[segment.begin :][: len(segment.data)]
        for segment, begin in zip(linked.segments, begins, strict=True)
        if not segment.name.startswith(ZEROS)
    )


def relocated(linked: WasmObject, number: int, payload: bytes, begins: list[int]) -> bytes:
    """Fills indices and addresses into a section. begins: the addresses of the segments."""
    body = bytearray(payload)
    for relocation in linked.relocations.get(number, ()):
        value = WRITTEN[relocation.kind](value_of(relocation, begins))
        if relocation.offset + len(value) > len(body):
            raise FileError(
                f"a WebAssembly object has a relocation at byte {relocation.offset} of {len(body)}"
            )
        body[relocation.offset : relocation.offset + len(value)] = value
    return bytes(body)


def value_of(relocation: WasmRelocation, begins: list[int]) -> int:
    """Returns the index or the address that a relocation puts into its place; raises `FileError` where the
    symbol is of another kind than the relocation.
    """
    symbol = relocation.symbol
    if symbol.kind != SYMBOL_KINDS[relocation.kind]:
        raise FileError(
            f"a WebAssembly object has a relocation of another kind than its symbol {symbol.name}"
        )
    return (
        begins[symbol.number] + symbol.offset + relocation.addend
        if symbol.kind == DATA_SYMBOL
        else symbol.number
    )


SYMBOL_KINDS: Mapping[int, int] = {
    FUNCTION_INDEX: FUNCTION_SYMBOL,
    GLOBAL_INDEX: GLOBAL_SYMBOL,
    MEMORY_LEB: DATA_SYMBOL,
    MEMORY_SLEB: DATA_SYMBOL,
    MEMORY_I32: DATA_SYMBOL,
}
WRITTEN: Mapping[int, Callable[[int], bytes]] = {
    FUNCTION_INDEX: lambda value: unsigned(value, PADDED),
    GLOBAL_INDEX: lambda value: unsigned(value, PADDED),
    MEMORY_LEB: lambda value: unsigned(value, PADDED),
    MEMORY_SLEB: lambda value: signed(value, PADDED),
    MEMORY_I32: lambda value: value.to_bytes(4, "little"),
}
"""The function that writes each kind of relocation, with a fixed number of bytes."""
