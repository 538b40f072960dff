"""Kernels that move rows: by indices, and windows of neighbouring rows.

    moved       rows of one array to rows of another; from one row to all; to all rows of a target in order
    windows     for each window its rows, and zeros beyond the sequence
    plus        integers with a number added
    owners      the sequence of each entry, from the offsets of sequences

A row is moved as words of up to 16 bytes. Neighbouring threads move neighbouring words: `1 << shift` threads
share a row, so a block of 256 threads takes up to 256 rows at a time.
"""

from collections.abc import Generator
from contextlib import contextmanager

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, I16, I32, I64
from stepnet.compiler.targets.cuda.arrays.memory import THREADS
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.writer import KernelWriter

WORDS = {1: I8, 2: I16, 4: I32, 8: I64, 16: ir.VectorType(I64, 2)}


@contextmanager
def over_rows(writer: KernelWriter, count: ir.Value) -> Generator[tuple[ir.Value, ir.Value, ir.Value]]:
    """Writes a loop over rows, each for the threads that share it; yields (row, place of the thread among
    them, their number). The kernel has an argument `shift`; `1 << shift` threads share a row.
    """
    shift = writer.word("shift")
    sharing = writer.shl(writer.number(1), shift)
    place = writer.and_(writer.thread, writer.sub(sharing, writer.number(1)))
    together = writer.lshr(writer.threads, shift)
    first = writer.add(writer.mul(writer.block_index, together), writer.lshr(writer.thread, shift))
    with writer.loop(first, count, writer.mul(writer.blocks, together)) as row:
        yield row, place, sharing


def moved(word: int, to_places: bool, from_places: bool) -> DeviceCode:
    """Writes the kernel that moves rows.

    word: the bytes of a word. to_places, from_places: whether row i goes to row to[i] instead of i, and
    comes from row origins[i] instead of i; `stride`, words from row to row of the source, is 0 for one row.
    """
    arguments = ["target", "source", "places", "origins", "count", "words", "stride", "shift"]
    writer = KernelWriter(f"moves of rows by {word} bytes", arguments)
    words, stride, type_ = writer.word("words"), writer.word("stride"), WORDS[word]
    with over_rows(writer, writer.word("count")) as (row, place, sharing):
        target = writer.read_number(writer.pointer("places"), row) if to_places else row
        source = writer.read_number(writer.pointer("origins"), row) if from_places else row
        size = writer.number(word)
        to = writer.at(writer.pointer("target"), writer.mul(writer.mul(target, words), size))
        origin = writer.at(writer.pointer("source"), writer.mul(writer.mul(source, stride), size))
        with writer.loop(place, words, sharing) as index:
            offset = writer.mul(index, size)
            writer.write(writer.read(type_, writer.at(origin, offset), word), writer.at(to, offset), word)
    return writer.finished(THREADS)


def plus() -> DeviceCode:
    """Writes the kernel that adds a number to integers.

    Its arguments: int64 `made` [count], `integers` [count], `count`, `number`.
    """
    writer = KernelWriter("integers plus a number", ["made", "integers", "count", "number"])
    with writer.over_all(writer.word("count")) as place:
        integer = writer.read_number(writer.pointer("integers"), place)
        writer.write_number(writer.add(integer, writer.word("number")), writer.pointer("made"), place)
    return writer.finished(THREADS)


def owners() -> DeviceCode:
    """Writes the kernel that finds the sequence of each entry: the last one that begins at or before it, and
    so never an empty one.

    Its arguments: int64 `made` [count], `offsets` [sequences + 1], `sequences`, `count`.
    """
    writer = KernelWriter("sequences of entries", ["made", "offsets", "sequences", "count"])
    offsets, one = writer.pointer("offsets"), writer.number(1)
    with writer.over_all(writer.word("count")) as entry:
        before, head, body, after = writer.block, *(writer.append_basic_block(name) for name in "hba")
        writer.branch(head)
        writer.position_at_end(head)
        low, high = writer.phi(I64), writer.phi(I64)
        low.add_incoming(writer.number(0), before)
        high.add_incoming(writer.word("sequences"), before)
        distance = writer.sub(high, low)
        writer.cbranch(writer.icmp_signed(">", distance, one), body, after)
        writer.position_at_end(body)
        middle = writer.add(low, writer.lshr(distance, one))
        is_behind = writer.icmp_signed("<=", writer.read_number(offsets, middle), entry)
        low.add_incoming(writer.select(is_behind, middle, low), body)
        high.add_incoming(writer.select(is_behind, high, middle), body)
        writer.branch(head)
        writer.position_at_end(after)
        writer.write_number(low, writer.pointer("made"), entry)
    return writer.finished(THREADS)


WINDOW_WORDS = ("target", "source", "owner", "windows", "steps", "befores", "count", "size", "dilation")
"""The first arguments of kernels of windows.

target, source: the arrays. owner: int64 [count], the sequence of each entry of the target.
windows, steps: int64, the offsets of both. befores: int64, the steps of zeros ahead of each sequence.
count: the entries of the target. size, dilation: those of the window.
"""


def windows(word: int) -> DeviceCode:
    """Writes the kernel that copies windows of rows. word: the bytes of a word."""
    writer = KernelWriter(f"windows by {word} bytes", [*WINDOW_WORDS, "stride", "words", "shift"])
    words, size, type_, bytes_ = writer.word("words"), writer.word("size"), WORDS[word], writer.number(word)
    zero = ir.Constant(type_, [0, 0] if word == 16 else 0)
    with over_rows(writer, writer.word("count")) as (window, place, sharing):
        sequence = writer.read_number(writer.pointer("owner"), window)
        begin = writer.read_number(writer.pointer("steps"), sequence)
        end = writer.read_number(writer.pointer("steps"), writer.add(sequence, writer.number(1)))
        number = writer.sub(window, writer.read_number(writer.pointer("windows"), sequence))
        ahead = writer.read_number(writer.pointer("befores"), sequence)
        first = writer.sub(writer.add(begin, writer.mul(number, writer.word("stride"))), ahead)
        with writer.loop(writer.number(0), size) as entry:
            step = writer.add(first, writer.mul(entry, writer.word("dilation")))
            inside = writer.and_(writer.icmp_signed(">=", step, begin), writer.icmp_signed("<", step, end))
            made = writer.mul(writer.add(writer.mul(window, size), entry), words)
            to = writer.at(writer.pointer("target"), writer.mul(made, bytes_))
            with writer.if_else(inside) as (then, otherwise):
                with then:
                    origin = writer.at(writer.pointer("source"), writer.mul(writer.mul(step, words), bytes_))
                    with writer.loop(place, words, sharing) as index:
                        offset = writer.mul(index, bytes_)
                        value = writer.read(type_, writer.at(origin, offset), word)
                        writer.write(value, writer.at(to, offset), word)
                with otherwise, writer.loop(place, words, sharing) as index:
                    writer.write(zero, writer.at(to, writer.mul(index, bytes_)), word)
    return writer.finished(THREADS)
