"""Modules become object code side by side, the same as one by one."""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from llvmlite.binding import ffi

import stepnet as sn
from stepnet.compiler.targets.cpu import I32, I64, POINTER, Code, host_processor
from stepnet.compiler.targets.cpu.machine import object_code, room
from stepnet.compiler.targets.cpu.machine.unlocked import emit_object
from stepnet.compiler.targets.cpu.products.pack_code import write_pack

PROCESSOR = host_processor()


def modules() -> list[ir.Module]:
    return [
        write_pack(PROCESSOR, itemsize, width, None) for itemsize, width in ((4, 4), (8, 2), (2, 8), (4, 2))
    ]


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads make object code."""
    monkeypatch.setattr(object_code, "processors", lambda: 2)


@pytest.fixture
def beside(two_processors: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two threads, each of which waits for the other before its first module; the thread of each module."""
    meeting, threads, original = threading.Barrier(2), list[int](), object_code.emit

    def emit(text: str, machine: llvm.TargetMachine) -> bytes:
        here = threading.get_ident()
        if here not in threads:
            threads.append(here)
            meeting.wait(20)
        threads.append(here)
        return original(text, machine)

    monkeypatch.setattr(object_code, "emit", emit)
    return threads


def test_side_by_side_is_as_one_by_one(beside: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    together = object_code.object_codes(modules(), PROCESSOR)
    assert len(set(beside)) == 2
    monkeypatch.undo()
    assert together == [object_code.object_code(module, PROCESSOR) for module in modules()]


def test_an_error_beside_is_that_of_the_caller(beside: list[int]) -> None:
    wrong = ir.Module("wrong")
    ir.Function(wrong, ir.FunctionType(ir.VoidType(), []), "no_end").append_basic_block("entry")
    for order in ([wrong, *modules()], [*modules(), wrong]):
        with pytest.raises(RuntimeError, match="expected instruction"):
            object_code.object_codes(order, PROCESSOR)
        beside.clear()


def test_without_a_thread_to_spare_they_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    right = object_code.object_codes(modules(), PROCESSOR)
    monkeypatch.setattr(threading.Thread, "start", none)
    assert object_code.emit_all(list(map(str, modules())), PROCESSOR) == [code.data for code in right]


def little(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Makes the system refuse to map more than so many bytes."""
    original = room.mapped

    def mapped(size: int) -> Any:
        if size > most:
            raise MemoryError
        return original(size)

    monkeypatch.setattr(room, "mapped", mapped)


@pytest.mark.usefixtures("two_processors")
def test_without_memory_for_a_thread_they_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = object_code.object_codes(modules(), PROCESSOR)
    monkeypatch.setattr(threading.Thread, "run", lambda _: pytest.fail("a thread has begun"))
    little(monkeypatch, 2 * room.BASE_BYTES)
    assert object_code.emit_all(list(map(str, modules())), PROCESSOR) == [code.data for code in right]


def test_without_memory_for_a_text_llvm_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    text = str(modules()[0])
    needed = room.BASE_BYTES + room.TEXT_FACTOR * len(text)
    machine = object_code.target_machine(PROCESSOR, 0)
    with monkeypatch.context() as limited:
        little(limited, needed - 1)
        limited.setattr(object_code.llvm, "parse_assembly", lambda *_: pytest.fail("LLVM was called"))
        with pytest.raises(MemoryError, match=f"^compiling takes {needed >> 20} MB more memory"):
            object_code.emit(text, machine)
    little(monkeypatch, needed)
    assert object_code.emit(text, machine)
    with room.reserve(1), pytest.raises(MemoryError, match="raise its limit"):
        object_code.emit(text, machine)


def test_code_is_generated_while_another_thread_has_llvmlites_lock() -> None:
    """The other thread has the lock for a whole module: without that, no two modules compile side by side."""
    machine, text = object_code.target_machine(PROCESSOR, 0), str(modules()[0])
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ffi.lib._lock:  # pyright: ignore[reportPrivateUsage]
            held.set()
            done.wait(20)

    other = threading.Thread(target=hold)
    with llvm.parse_assembly(text, llvm.create_context()) as parsed:
        other.start()
        assert held.wait(20)
        data = emit_object(machine, parsed)
        released = done.is_set() or not other.is_alive()
        done.set()
        other.join()
    assert not released
    assert data == object_code.emit(text, machine)


@pytest.mark.usefixtures("two_processors")
def test_the_first_is_compiled_while_the_second_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    done, original = threading.Event(), object_code.emit

    def emit(text: str, machine: llvm.TargetMachine) -> bytes:
        data = original(text, machine)
        done.set()
        return data

    def written() -> Iterator[ir.Module]:
        first, *others = modules()
        yield first
        assert done.wait(20)
        yield from others

    monkeypatch.setattr(object_code, "emit", emit)
    together = object_code.object_codes(written(), PROCESSOR)
    assert together == [object_code.object_code(module, PROCESSOR) for module in modules()]


@pytest.mark.usefixtures("two_processors")
def test_an_error_of_what_writes_is_that_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the error arrives no thread is still with LLVM, and the interpreter's turns are as before."""
    before, begun, ended = sys.getswitchinterval(), threading.Event(), list[bytes]()
    original = object_code.emit

    def emit(text: str, machine: llvm.TargetMachine) -> bytes:
        begun.set()
        time.sleep(0.1)
        ended.append(original(text, machine))
        return ended[-1]

    def written() -> Iterator[ir.Module]:
        yield modules()[0]
        assert begun.wait(20)
        assert sys.getswitchinterval() <= object_code.SWITCH_INTERVAL
        raise LookupError("no more")

    monkeypatch.setattr(object_code, "emit", emit)
    with pytest.raises(LookupError, match="no more"):
        object_code.object_codes(written(), PROCESSOR)
    assert sys.getswitchinterval() == before
    assert len(ended) == 1


def test_places_are_written_once_in_each_block() -> None:
    module = ir.Module("places")
    function = ir.Function(module, ir.FunctionType(I64, [POINTER, I64]), "f")
    code = Code(function.append_basic_block("entry"), PROCESSOR)
    pointer, number = function.args

    def place() -> ir.Value:
        return code.at(pointer, code.mul(code.add(number, code.number(1)), code.number(8)))

    first = place()
    assert place() is first
    assert code.add(number, code.number(0)) is number
    assert code.mul(number, code.number(1)) is number
    with code.loop(code.number(0), number):
        inside = place()
        assert inside is not first
        assert place() is inside
    assert place() not in (first, inside)  # which would be legal for the first: blocks are looked at alone
    code.ret(code.read(I64, place()))
    assert str(module).count("getelementptr") == 3
    llvm.parse_assembly(str(module), llvm.create_context()).verify()


def every_line(code: ir.IRBuilder, function: ir.Function) -> None:
    """Writes each of the instructions that `Code` writes as text, through methods of llvmlite's builder."""
    pointer, number, other = function.args
    numbers = ir.VectorType(ir.FloatType(), 4)
    for name in ["add", "sub", "mul", "sdiv", "srem", "and_", "or_", "xor", "shl", "lshr", "ashr"]:
        code.store(getattr(code, name)(number, other), pointer)
    for sign in ["==", "!=", "<", "<=", ">", ">="]:
        is_so = code.and_(code.icmp_signed(sign, number, other), code.icmp_unsigned(sign, other, number))  # type: ignore
        code.store(code.select(is_so, number, other), pointer, align=8)
    vector = code.load(pointer, typ=numbers)
    vector = code.insert_element(vector, ir.Constant(ir.FloatType(), 0.5), ir.Constant(I32, 2))
    order = ir.Constant(ir.VectorType(I32, 8), [7, 0, 1, 2, 3, 4, 5, 6])
    code.store(code.shuffle_vector(vector, vector, order), pointer, align=4)
    for name in ["fadd", "fsub", "fmul", "fdiv"]:
        code.store(getattr(code, name)(vector, vector), pointer)
    words = code.load(pointer, typ=ir.VectorType(I64, 2))
    code.store(code.select(code.icmp_signed("<", words, words), words, words), pointer)
    before = code.block
    code.branch(after := code.append_basic_block("after"))
    code.position_at_end(after)
    phi = code.phi(I64)
    phi.add_incoming(number, before)
    phi.add_incoming(phi, after)
    code.cbranch(code.icmp_unsigned("==", phi, number), after, last := code.append_basic_block("last"))
    code.position_at_end(last)
    code.ret(phi)


def test_lines_are_the_instructions_of_llvmlite() -> None:
    texts = list[str]()
    for kind in (ir.IRBuilder, lambda block: Code(block, PROCESSOR)):
        module = ir.Module("lines")
        function = ir.Function(module, ir.FunctionType(I64, [POINTER, I64, I64]), "f")
        every_line(kind(function.append_basic_block("entry")), function)
        with llvm.parse_assembly(str(module), llvm.create_context()) as parsed:
            parsed.verify()
            read = str(parsed).replace('"', "")
        names = dict.fromkeys(re.findall(r"%[\w.]+", read))
        places = {name: f"%{place}" for place, name in enumerate(names)}
        texts.append(re.sub(r"%[\w.]+", lambda found, places=places: places[found[0]], read))
    assert texts[0].count("=") > 40
    assert texts[0] == texts[1]


def two_layers(first: int, second: int) -> sn.Stack:
    rnn, parameters = sn.cells.rnn, sn.cells.CELLS["lstm"].parameters
    return sn.Stack(
        [rnn("lstm", parameters(first, second, seed=0)), rnn("lstm", parameters(second, 5, seed=1))]
    )


def test_new_plans_of_a_model_are_compiled_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, original = list[int](), object_code.object_codes

    def counted(modules: Iterable[ir.Module], processor: Any) -> Any:
        written = list(modules)
        counts.append(len(written))
        return original(written, processor)

    monkeypatch.setattr(object_code, "object_codes", counted)
    two_layers(11, 13)(np.zeros((2, 3, 11), "float32"))
    assert counts[0] >= 2
    assert sum(counts) == counts[0]
    two_layers(11, 13)(np.zeros((2, 3, 11), "float32"))
    assert len(counts) == 1
