"""The linker of WebAssembly: what it makes of objects, and that damaged ones are refused."""

import random
from functools import cache

import pytest

from stepnet.compiler.targets.frame.machine import DEVICES, compiled_text, wasm_module
from stepnet.errors import FileError, NetError, StepnetError

TEXT = """
target triple = "wasm32-unknown-unknown"
@table = hidden constant [6 x float] zeroinitializer, align 64
@numbers = hidden constant [2 x i32] [i32 7, i32 9], align 4
@room = hidden global [70000 x i8] zeroinitializer, align 16
declare void @elsewhere()
define hidden i32 @help(i32 %i) noinline {
  %p = getelementptr i32, ptr @numbers, i32 %i
  %v = load i32, ptr %p
  ret i32 %v
}
define i32 @first(i32 %i) {
  %v = call i32 @help(i32 %i)
  %w = load i32, ptr @room
  %s = add i32 %v, %w
  ret i32 %s
}
"""
CALLING = TEXT + "define void @second() {\n call void @elsewhere()\n ret void\n}\n"


@cache
def wasm_object(text: str = TEXT) -> bytes:
    """An object of LLVM's text."""
    return compiled_text(text, DEVICES["wasm32"])


def test_a_module_imports_nothing_and_exports_what_is_asked_for():
    module = wasm_module(wasm_object(), ["first", "room"])
    sections, at = [], 8
    while at < len(module):
        number, size, shift, at = module[at], 0, 0, at + 1
        while True:
            byte, at = module[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        sections.append(number)
        at += size
    assert sections == [1, 3, 5, 6, 7, 10, 11]  # none of imports (2), and no other
    assert len(module) < 400  # the 70,000 zeros are not in it
    for name in (b"memory", b"first", b"room", b"heap"):
        assert bytes([len(name)]) + name in module
    assert b"help" not in module


def test_equal_objects_are_linked_to_equal_modules():
    assert wasm_module(wasm_object(), ["first"]) == wasm_module(wasm_object(), ["first"])


def test_what_an_object_lacks_is_an_error():
    with pytest.raises(NetError, match="the code of a model calls elsewhere, which it lacks"):
        wasm_module(wasm_object(CALLING), ["first"])
    with pytest.raises(NetError, match="the code of a model lacks third"):
        wasm_module(wasm_object(), ["first", "third"])


def test_other_files_are_refused():
    for data in (b"", b"\x7fELF", wasm_object()[:4]):
        with pytest.raises(FileError, match="this is not a WebAssembly object"):
            wasm_module(data, [])
    with pytest.raises(FileError, match="has no symbols: this is a module"):
        wasm_module(wasm_module(wasm_object(), ["first"]), ["first"])


def is_linked(data: bytes) -> bool:
    """Returns True if an object is linked; if not, it must be refused."""
    try:
        wasm_module(data, ["first"])
    except StepnetError:
        return False
    return True


def test_an_object_that_is_cut_is_refused():
    whole = wasm_object(TEXT.replace("70000", "100"))
    linked = [size for size in range(len(whole)) if is_linked(whole[:size])]
    # Behind the symbols there are the relocations and the features of the processor: sections of their own.
    assert len(linked) <= 2
    assert is_linked(whole)


def test_a_spoilt_object_is_refused_or_linked():
    whole, order = wasm_object(TEXT.replace("70000", "100")), random.Random(7)
    linked = list[bool]()
    for _ in range(1000):
        data = bytearray(whole)
        data[order.randrange(8, len(data))] = order.randrange(256)
        linked.append(is_linked(bytes(data)))
    assert linked.count(False) > 200
