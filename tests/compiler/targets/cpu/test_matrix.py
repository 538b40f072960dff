"""Products in int8 by instructions for matrices, Intel's AMX: their bits on a processor that has them, and by
plain code that does what the manual says of each instruction; the instructions, and the permission for them.
"""

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from amx_emulated import EmulatedTiles
from llvmlite import ir
from zoo import normal

import stepnet as sn
from stepnet.compiler.net import Precision
from stepnet.compiler.targets.cpu import (
    I64,
    PAIRS,
    POINTER,
    TILE_WRITERS,
    WIDENED_PAIRS,
    Code,
    LeftOperand,
    LlvmEngine,
    MatrixTiles,
    Processor,
    Tile,
    arithmetic,
    available_processors,
    cover,
    permitted,
    tiles,
    without_amx,
)
from stepnet.compiler.targets.cpu.lower.tiling import Tiling

VECTORS = Processor("avx512", "cascadelake", "-prefer-256-bit,+avx512vnni", 64, 32)
MATRICES = Processor("avx512", "cascadelake", f"{VECTORS.features},+amx-tile,+amx-int8", 64, 32)
SIZES = (3, 17), (130, 65)

emulated = pytest.mark.skipif(
    not available_processors()[0].has("avx512vnni"), reason="this processor has no avx512_vnni"
)


real = pytest.mark.skipif(
    not available_processors()[0].has("amx-int8"), reason="this processor has no AMX that may be used"
)


@pytest.fixture(params=[pytest.param("plain code", marks=emulated), pytest.param("instructions", marks=real)])
def matrices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Processor:
    """A processor with AMX: one whose instructions are calls of plain code, and that of this machine."""
    if request.param == "instructions":
        return available_processors()[0]
    monkeypatch.setitem(TILE_WRITERS, "amx-int8", EmulatedTiles)
    return MATRICES


def outputs_on(processor: Processor, rnn: sn.RNN, x: Any) -> list[np.ndarray]:
    """The outputs of an RNN on a processor, its code compiled here."""
    reading = rnn.read(x, None, None, None)
    program = reading.running
    kernel = LlvmEngine(processor).compile(program.schedule)
    return kernel.bind(program.params)(reading.call).outputs


@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_exact_whatever_the_rows(matrices: Processor, size: tuple[int, int]) -> None:
    """Words of k that fill no tile, unit blocks that fill no tile, and rows beside those of tiles."""
    inputs, outputs = size
    rnn = sn.RNN(lambda x, h, p: (x @ p, h), normal(inputs, outputs), memory=(), inputs=inputs)
    rnn = rnn.in_precision(Precision("int8"))
    for rows in (1, 45):
        x = normal(rows, 1, inputs, seed=rows)
        (made,) = outputs_on(matrices, rnn, x)
        np.testing.assert_array_equal(made, rnn(x, engine="interpret")[0].reshape(made.shape))


def test_a_recurrence_has_the_bits_of_vectors(matrices: Processor) -> None:
    """Sums to which an input and a memory add are the same as by vpdpbusd."""
    rnn = recurrence()
    x = normal(21, 3, 5)
    for made, right in zip(*(outputs_on(each, rnn, x) for each in (matrices, VECTORS)), strict=True):
        np.testing.assert_array_equal(made, right)


def recurrence() -> sn.RNN:
    """A recurrence of 40 units on 5 inputs, its weights in int8."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h, h

    rnn = sn.RNN(step, {"W": normal(5, 40), "R": normal(40, 40)}, memory=40, inputs=5)
    return rnn.in_precision(Precision("int8"))


@real
def test_tile_registers_outlast_signals_other_threads_and_a_fork() -> None:
    """The system saves them for each thread: four compute while signals interrupt, and a child does after."""
    rnn, x, signals = recurrence(), normal(64, 40, 5), list[int]()
    right = outputs_on(without_amx(available_processors()[0]), rnn, x)[0]

    def is_right(_: int = 0) -> bool:
        return np.array_equal(rnn(x)[0].reshape(right.shape), right)

    before = signal.signal(signal.SIGALRM, lambda number, _: signals.append(number))
    try:
        with ThreadPoolExecutor(4) as pool:
            signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
            made = [*pool.map(is_right, range(40)), *(is_right() for _ in range(40))]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert signals
    assert all(made)
    if (child := os.fork()) == 0:
        os._exit(0 if is_right() else 1)
    assert os.waitpid(child, 0)[1] == 0


@emulated
def test_tiles_must_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain code reads the sizes of tiles at run time: with fewer rows it gives other numbers."""

    class FewerRows(EmulatedTiles):
        def configure(self) -> None:
            super().configure()
            for tile in range(4):
                self.code.write(ir.Constant(ir.IntType(8), 15), self.code.at(self.set_sizes, 48 + tile), 1)

    monkeypatch.setitem(TILE_WRITERS, "amx-int8", FewerRows)
    rnn = sn.RNN(lambda x, h, p: (x @ p, h), normal(64, 16), memory=(), inputs=64)
    x = normal(16, 1, 64)
    rnn = rnn.in_precision(Precision("int8"))
    right = rnn(x, engine="interpret")[0].reshape(16, 16)
    made = outputs_on(MATRICES, rnn, x)[0].reshape(16, 16)
    np.testing.assert_array_equal(made[:15], right[:15])
    assert (made[15] != right[15]).all()


# ---- instructions ------------------------------------------------------------------------------------------


def assembly(write: Callable[[Code, list[ir.Value]], None]) -> list[str]:
    """The instructions of a function of three pointers, by LLVM."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = triple = "x86_64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] * 3), "products")
    code = Code(function.append_basic_block("entry"), MATRICES)
    write(code, list(function.args))
    code.ret(code.number(0))
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=MATRICES.cpu, features=MATRICES.features, opt=3
    )
    text = machine.emit_assembly(llvm.parse_assembly(str(module), llvm.create_context()))
    return [line.strip() for line in text.splitlines()]


def test_the_instructions_of_a_tile() -> None:
    """For 16 words of k: a load of the left side, and a load and a product for each gate."""

    def write(code: Code, arguments: list[ir.Value]) -> None:
        left, packed, target = arguments
        matrix = MatrixTiles(code)
        with matrix.configured(code.number(16)):
            sums = matrix.products(
                LeftOperand((left,), 192), packed, inner=32, units=1, gates=3, width=16, line_bytes=192,
                unit_bytes=0,
            )  # fmt: skip
        for row in sums:
            for value in row[0]:
                code.write(value, target, 4)

    lines = [line for line in assembly(write) if re.match(r"(ld)?t(ile(?!_)|dp)", line)]
    names = [re.sub(r"\s.*", "", line) for line in lines]
    loop = ["tileloadd", *["tileloadd", "tdpbusd"] * 3]
    assert names == [
        "ldtilecfg", *["tilezero"] * 3, *loop, *["tilestored"] * 3, "tilerelease"
    ]  # fmt: skip
    products = [re.sub(r"\s+", " ", line) for line in lines if line.startswith("tdp")]
    assert products == [f"tdpbusd %tmm{right}, %tmm4, %tmm{right - 5}" for right in (5, 6, 7)]


def test_rows_that_fill_no_tile_are_those_of_vectors() -> None:
    shapes = tiles(MATRICES, 3, 16, by_matrix=True)
    assert shapes[0] == Tile(16, 1, by_matrix=True)
    assert shapes[1:] == tiles(MATRICES, 3, 16)
    assert [cover(shapes, rows, 3, 64)[0] for rows in (1, 15, 16, 31, 33)] == [0, 0, 1, 1, 2]


def test_the_unit_of_costs_is_a_row_of_vectors() -> None:
    """Few rows are estimated as without the tiles that they cannot fill, and many rows as faster."""
    costs = [
        Tiling(tiles(MATRICES, 3, 16, by_matrix=by_matrix), 3, 64, 64, 1, True, False, False, 0)
        for by_matrix in (False, True)
    ]
    assert [costs[1].cost(rows) for rows in (1, 8, 15)] == [costs[0].cost(rows) for rows in (1, 8, 15)]
    assert costs[1].cost(16) < costs[0].cost(16) / 2


def test_bfloat16_is_multiplied_by_vectors() -> None:
    """The bits of a row would otherwise depend on the rows beside it. Intel's vdpbf16ps is slow."""
    features = "+avx512bf16,+amx-bf16,+amx-int8"
    intel, other = (Processor("avx512", name, features, 64, 32) for name in ("sapphirerapids", "znver5"))
    assert arithmetic("bfloat16", "float32", 16, other) is PAIRS
    assert arithmetic("bfloat16", "float32", 16, intel) is WIDENED_PAIRS
    assert not arithmetic("stored_int8", "float32", 16, intel).by_matrix
    assert arithmetic("int8", "float32", 16, intel).by_matrix


# ---- permission --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False])
def test_without_permission_the_vectors_remain(given: bool) -> None:
    assert permitted(MATRICES, lambda: given) == (MATRICES if given else VECTORS)
    assert without_amx(MATRICES) == without_amx(VECTORS) == VECTORS


def test_a_processor_without_amx_is_not_asked_for() -> None:
    def asked() -> bool:
        raise AssertionError

    assert permitted(VECTORS, asked) is VECTORS
