"""Instructions on Cortex-M: counted exactly in QEMU, and what `python -m bench.devices` refuses."""

from pathlib import Path

import numpy as np
import pytest

from bench.devices.cmsis import header, multiplier, sources
from bench.devices.counting import (
    CORES,
    Counted,
    by_function,
    check_tools,
    counted,
    counts_of,
    functions_of,
    linked,
    missing,
    more,
    said_in,
)
from bench.devices.interpreter import files_of
from bench.devices.layers import Layer, own_programs, table
from bench.devices.lstm import Row, checked_peer, one_of
from bench.devices.programs import Measured, measured, sections
from stepnet.errors import InputError

needs_tools = pytest.mark.skipif(bool(missing()), reason=f"there is no {', '.join(missing())}")
LOOP = """
#include "board.h"
int main(void)
{
    unsigned times = TIMES;
    __asm__ volatile(".syntax unified\\n1: subs %0, #1\\n nop\\n bne 1b" : "+r"(times) : : "cc");
    say("left", times);
    say("left", 0xABCDEF01U);
    return STATUS;
}
"""


def looping(folder: Path, core: str, times: int, status: int = 0) -> Path:
    """A program with a loop of three instructions."""
    (folder / "loop.c").write_text(LOOP)
    options = ["-O2", f"-DTIMES={times}", f"-DSTATUS={status}"]
    return linked(folder, f"loop{times}", CORES[core], [folder / "loop.c"], options)


@needs_tools
@pytest.mark.long(every=4)
@pytest.mark.parametrize("core", CORES)
def test_counts_are_exact(core: str, tmp_path: Path):
    programs = [looping(tmp_path, core, times) for times in (100, 240)]
    short, long = (counted(program, CORES[core]) for program in programs)
    assert long.instructions - short.instructions == sum(more(long, short).values()) == 3 * 140
    assert by_function(more(long, short), functions_of(programs[1])) == {"main": 3 * 140}
    assert long.said == {"left": [0, 0xABCDEF01]}


@needs_tools
def test_programs_that_fail_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"loop5\.elf ended with 7 in qemu-system-arm"):
        counted(looping(tmp_path, "cortex-m4f", 5, 7), CORES["cortex-m4f"])
    (tmp_path / "wrong.c").write_text("int main(void) { return nothing; }")
    with pytest.raises(InputError, match=r"(?s)arm-none-eabi-gcc failed with 1: .*nothing"):
        linked(tmp_path, "wrong", CORES["cortex-m33"], [tmp_path / "wrong.c"])


@needs_tools
def test_a_step_of_a_layer_is_measured_and_compared_with_float32(tmp_path: Path):
    layer = Layer("gru", 8, "int16")
    made = own_programs(layer, "cortex-m4f", tmp_path, False, ["-O2"])
    takes = measured(made, layer.last())
    own = sum(count for name, count in takes.functions.items() if name.startswith(("m_", "sigmoid", "tanh")))
    assert takes.instructions == own > 12 * 24 + 8 * 24  # one for each product at least
    assert takes.flash > 12 * 24 + 8 * 24
    assert 8 * 2 < takes.ram < 1000
    assert 0 < takes.stack < 1000
    with pytest.raises(InputError, match=r"is no such layer: its outputs differ by .* from float32"):
        measured(made, layer.last() + 0.2)


def test_files_and_lines_are_parsed():
    assert counts_of("10 2\nfe ff\n") == {0x10: 2, 0xFE: 255}
    assert said_in("y 00000010\nnoise 1\ny ffffffff\nstack 00000020\n") == {
        "y": [16, 2**32 - 1],
        "stack": [32],
    }
    assert sections("   text data bss dec hex filename\n 100 20 3 123 7b m.elf\n") == (120, 23)
    assert by_function({8: 1, 16: 2, 18: 4, 30: 8}, {16: "a", 20: "b"}) == {"?": 1, "a": 6, "b": 8}
    assert more(Counted({1: 5, 2: 3, 3: 1}, {}), Counted({1: 2, 2: 3}, {})) == {1: 3, 3: 1}


def test_tables_in_c():
    assert table("a", np.array([1, -2], "i1")) == "static const int8_t a[2] = {1, -2};\n"
    assert (
        table("a", np.array([[1, 2], [3, 4]], "i2")) == "static const int16_t a[2][2] = {{1, 2}, {3, 4}};\n"
    )


@pytest.mark.parametrize("number", [0.3, 2.0**-15, 1.0, 5e-4, 1 - 2.0**-40])
def test_multipliers_of_the_peer_are_the_numbers(number: float):
    text = multiplier("m", number).removeprefix("enum { m_multiplier = ").removesuffix(" };\n")
    whole, power = map(int, text.split(", m_shift = "))
    assert 2**30 <= whole < 2**31
    assert whole * 2.0 ** (power - 31) == pytest.approx(number, rel=1e-9)


def test_the_header_of_the_peer_has_all_gates():
    text = header(Layer("lstm", 4, "int16"))
    for gate in "ifgo":
        assert f"int8_t {gate}_input[4][12]" in text
        assert f"int8_t {gate}_hidden[4][4]" in text
        assert f"int64_t {gate}_input_bias[4]" in text
    assert "int16_t frames[" in text
    assert "arm_lstm_unidirectional_s16" in text


def test_what_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="counting needs no-such-compiler: install them"):
        check_tools(["no-such-compiler"])
    with pytest.raises(
        InputError, match=r"sources of CMSIS-NN 7 or later: it has no Include/arm_nnfunctions\.h"
    ):
        sources(tmp_path, "int8")
    with pytest.raises(
        InputError, match=r"tflite-micro after its make third_party_downloads .*has no tensorflow"
    ):
        files_of(tmp_path)
    for cmsis, alone in ((None, False), (tmp_path, True)):
        with pytest.raises(InputError, match=r"give --cmsis FOLDER.*or --alone"):
            checked_peer(cmsis, alone)
    with pytest.raises(InputError, match=r"--core is one of cortex-m0plus.*, not z80"):
        one_of(["z80"], [*CORES], "core")
    assert one_of(None, ["a", "b"], "cell") == ["a", "b"]


def test_rows_show_the_fewest_own_instructions_beside_the_peer():
    takes = {name: Measured(count, {}, 10, 20, 30) for name, count in (("package", 200.0), ("C", 250.0))}
    row = Row("cortex-m4f", Layer("lstm", 32, "int8"), takes | {"CMSIS-NN": Measured(300.0, {}, 1, 2, 3)})
    assert row.ratio == 1.5
    assert row.shown("instructions") == {
        "core": "cortex-m4f",
        "cell": "lstm",
        "units": 32,
        "activations": "int8",
        "package": "200",
        "C": "250",
        "CMSIS-NN": "300",
        "ratio": "1.50",
    }
    alone = Row("cortex-m4f", Layer("gru", 32, "int8"), takes)
    assert alone.ratio is None
    assert alone.shown("ram")["CMSIS-NN"] == ""
