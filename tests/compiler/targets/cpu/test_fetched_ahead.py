"""Tiles fetch the parameters of the tiles that follow, each a part, where these are in a far cache; and the
memory of their own elementwise work, a part with each of the packed words that they multiply. If a unit block
exceeds a near cache, they multiply and fetch it in sections of k."""

import ctypes
import re
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.cpu import I64, POINTER, Code, FetchList, Tile, host_processor
from stepnet.compiler.targets.cpu.compile.generate import llvm_module
from stepnet.compiler.targets.cpu.emit.tile_place import Following, TilePlace, fetched_ahead
from stepnet.compiler.targets.cpu.lower.program import lowered

Array = np.ndarray
LINE, UNROLLED, SECTION = 64, 4, 2
DEEP, UNITS = 3072, 32
"""The elements that are summed, and the units, of a recurrence whose products have sections."""


class RecordingCode(Code):
    """Writes the addresses of prefetches to memory instead."""

    log: ir.Value
    level: int

    def prefetch(self, pointer: ir.Value, is_written: bool = False, level: int = 1) -> None:
        assert level == self.level
        assert not is_written
        count = self.read_number(self.log, self.number(0))
        place = self.at(self.log, self.mul(self.add(count, self.number(1)), self.number(8)))
        self.write(self.ptrtoint(pointer, I64), place, 8)
        self.write(self.add(count, self.number(1)), self.log, 8)


def recorded(write: Callable[[RecordingCode, ir.Value], None], level: int, pointer: int, most: int) -> Array:
    """The addresses that a function of machine code fetches into the cache `level`.

    write: writes the code. pointer: what the function gets. most: at least as many as it fetches.
    """
    module, processor = ir.Module(), host_processor()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, POINTER]), "fetch")
    code = RecordingCode(function.append_basic_block("entry"), processor)
    given, code.log = function.args
    code.level = level
    write(code, given)
    code.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(processor.cpu, processor.features, opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    log = np.zeros(1 + most, np.int64)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("fetch"))
    run(pointer, log.ctypes.data)
    return log[1 : 1 + log[0]]


def fetched(tile: Tile, words: int, unit_bytes: int, block: int, parts: int) -> list[int]:
    """The bytes, from the first parameter on, at which all tiles of a unit block fetch lines."""
    turns = tile.gate_groups

    def write(code: RecordingCode, packed: ir.Value) -> None:
        with (
            code.loop(code.number(0), code.number(parts)) as part,
            code.loop(code.number(0), code.number(turns)) as turn,
        ):
            section = code.number(SECTION) if tile.sections > 1 else None
            following = Following(code.number(block), part, code.number(parts), section)
            place = TilePlace(part, code.number(0), turn if turns > 1 else None, following)
            ahead = fetched_ahead(code, packed, unit_bytes, words, tile, place)
            assert ahead is not None
            with code.loop(code.number(0), code.number(words), UNROLLED) as first:
                ahead.fetch(code, first, UNROLLED)
                ahead.fetch_first(code, first)

    addresses = recorded(write, 2, 2**40, 2 * parts * turns * words)
    return [int(address) - 2**40 for address in addresses]


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize(("entries", "words"), [(1, 64), (70, 64), (64, 64), (300, 8)])
def test_each_listed_address_is_fetched_during_the_products(entries: int, words: int, turns: int) -> None:
    """In their order, and no more of them at a time than there need be."""
    given = 2**40 + 64 * np.arange(entries)

    def write(code: RecordingCode, pointer: ir.Value) -> None:
        with code.loop(code.number(0), code.number(turns)) as turn:
            listed = FetchList(pointer, entries, turns * words, code.mul(turn, code.number(words)))
            with code.loop(code.number(0), code.number(words), 4) as first:
                listed.fetch(code, first, 4)

    found = recorded(write, 1, given.ctypes.data, turns * words * (entries + 1))
    assert list(dict.fromkeys(found.tolist())) == given.tolist()
    assert len(found) < entries + -(-entries // (turns * words // 4))


@pytest.mark.parametrize(
    ("tile", "gates", "parts"),
    [
        (Tile(8, 1), 3, 2),
        (Tile(8, 1), 3, 4),
        (Tile(8, 1), 3, 16),
        (Tile(8, 1, 2), 4, 2),
        (Tile(4, 2), 3, 8),
        (Tile(3, 1), 4, 32),
        (Tile(8, 1, sections=4), 3, 4),
        (Tile(8, 1, 2, sections=4), 4, 2),
    ],
)
def test_all_parameters_of_the_next_tile_are_fetched(tile: Tile, gates: int, parts: int):
    """Each tile fetches a part, one line with the products of a few words of k if there are many tiles."""
    words, block = 64, 5
    unit_bytes = tile.sections * words * gates * LINE
    places = fetched(tile, words, unit_bytes, block, parts)
    begin, end = block * unit_bytes, (block + tile.units) * unit_bytes
    if tile.sections > 1:
        begin += SECTION * words * gates * LINE
        end = begin + words * gates * LINE
    assert min(places) == begin
    assert max(places) < end
    # Parts are rounded down to whole bytes of a word, so that the last lines may be left to the processor.
    lines = {place // LINE for place in places}
    most = parts * tile.gate_groups * words // LINE + 1
    assert len(lines) >= (end - begin) // LINE - most
    each = tile.units * gates * LINE // (parts * tile.gate_groups)
    times = parts * tile.gate_groups * words // (UNROLLED if UNROLLED * each <= LINE else 1)
    assert len(places) == times * (2 if each > LINE else 1)


def test_a_tile_fetches_two_lines_for_each_word_at_most():
    """The processor itself fetches the third of three."""
    words, gates = 64, 3
    places = fetched(Tile(8, 1), words, words * gates * LINE, 0, 1)
    lines = np.arange(words * gates).reshape(words, gates)
    assert sorted(places) == (LINE * lines[:, :2]).ravel().tolist()


@pytest.mark.parametrize(("units", "fetches"), [(64, False), (256, True)])
def test_only_large_parameters_are_fetched(units: int, fetches: bool):
    gru = cells.rnn("gru", cells.CELLS["gru"].parameters(units, units, seed=0))
    processor = host_processor()
    text = str(llvm_module(lowered(gru.plan, processor), processor))
    assert (re.search(r"llvm\.prefetch.*i32 0, i32 2, i32 1", text) is not None) == fetches


def test_threads_that_share_steps_fetch_the_values_that_others_computed():
    """The values of all units, ahead of the products; inputs, which no thread computes, are left alone."""
    gru = cells.rnn("gru", cells.CELLS["gru"].parameters(64, 64, seed=0))
    processor = host_processor()
    program = lowered(gru.plan, processor)
    assert (program.load.loop.exchanged, program.load.others.exchanged) == (4 * 64, 0)
    assert re.search(r"llvm\.prefetch.*i32 0, i32 3, i32 1", str(llvm_module(program, processor)))


def deep_step(x: Array, h: Array, params: dict[str, Array]) -> tuple[Array, Array]:
    """A memory of which each step drops the first numbers and appends the new ones."""
    z, n, o = (np.tanh(x @ params[f"W{name}"] + h @ params[f"R{name}"]) for name in "zno")
    new = z * n + (1 - z) * o
    return new, np.concatenate([h[..., UNITS:], new], axis=-1)


def test_sections_of_k_give_the_bits_of_single_rows_and_are_right():
    """Rows in one group of tiles and in two, and such as need tiles of few rows, which have no sections."""
    random = np.random.default_rng(5)
    params = {name + gate: random.normal(0, 0.02, (DEEP, UNITS)) for name in "WR" for gate in "zno"}
    rnn, wide = (
        sn.RNN(
            deep_step, {name: value.astype(dtype) for name, value in params.items()}, memory=DEEP, inputs=DEEP
        )
        for dtype in ("float32", "float64")
    )
    processor = host_processor()
    if processor.registers == 32:
        # Of a kind of tile: its shape, the mask and shift of one unit block, its narrow kind, its sections.
        kinds = re.findall(
            r"i64 8, i64 1, i64 -1, i64 63, i64 \d+, i64 (\d+)",
            str(llvm_module(lowered(rnn.plan, processor), processor)),
        )
        assert set(kinds) == {"24"}
    x = random.normal(size=(77, 2, DEEP)).astype("f4")
    single = np.concatenate([rnn(row[None], engine="llvm")[0] for row in x])
    for rows in (8, 13, 77):
        np.testing.assert_array_equal(rnn(x[:rows], engine="llvm")[0], single[:rows])
    expected = wide(x.astype("f8"), engine="interpret")[0]
    np.testing.assert_allclose(single, expected, rtol=0, atol=2e-5)
