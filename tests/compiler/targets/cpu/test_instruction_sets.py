"""The instructions that multiply weights in few bits, by the features of the processor, in the assembly of a
register tile; and the instruction sets of 64-bit Arm.
"""

import re
from collections import Counter

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from stepnet.compiler.native.arm import arm_features
from stepnet.compiler.targets.cpu import (
    ARM,
    I64,
    NAMED,
    POINTER,
    Code,
    LeftOperand,
    Processor,
    Tile,
    accumulate,
    arithmetic,
    beyond_neon,
)

FEATURES = "+neon,+dotprod,+bf16"
NEON = Processor("neon", "", FEATURES, 16, 24)
SVE = Processor("sve", "", f"{FEATURES},+sve", 32, 32)
WIDE_SVE = Processor("sve", "", "+neon,+sve", 64, 32)
VNNI = Processor("avx512", "cascadelake", "-prefer-256-bit,+avx512vnni,+avx512bf16", 64, 32)
NARROW_VNNI = Processor("avx2", "haswell", "+avxvnni", 32, 16)
TRIPLES = {True: "x86_64-unknown-linux-gnu", False: "aarch64-unknown-linux-gnu"}
ROWS, WORDS = 4, 2
CASES = [
    (VNNI, "int8", {"vpdpbusd": 1}),
    (VNNI, "bfloat16", {"vdpbf16ps": 1}),
    (NARROW_VNNI, "int8", {"vpdpbusd": 1}),
    (NAMED["x86-64-v3"], "int8", {"vpmaddwd": 2}),
    (NEON, "int8", {"sdot v": 1}),
    (NEON, "bfloat16", {"bfmlalt v": 1, "bfmlalb v": 1}),
    (SVE, "int8", {"sdot z": 1}),
    (SVE, "bfloat16", {"bfmlalt z": 1, "bfmlalb z": 1}),
    (SVE, None, {"fmla z": 1}),
    (WIDE_SVE, "int8", {"sdot z": 1}),
    (WIDE_SVE, "bfloat16", {"fmla z": 2}),
    (ARM, "int8", {"mla v": 4}),
    (ARM, "bfloat16", {"fmla v": 2}),
]
"""Processors, encodings, and the instructions for one word of a row and a vector of columns."""


def assembly(processor: Processor, weights: str | None) -> list[str]:
    """The instructions of a tile of 4 rows and a unit block for 2 words of k, as text of LLVM's assembler."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module, width = ir.Module(), processor.vector_bytes // 4
    module.triple = triple = TRIPLES[processor.is_x86]
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] * 3), "tile")
    left, packed, target = function.args
    code = Code(function.append_basic_block("entry"), processor)
    kind = arithmetic(weights, "float32", width, processor)
    sums = accumulate(
        code, Tile(ROWS, 1), LeftOperand((left,), 256), packed, kind, inner=WORDS, gates=1, width=width
    )
    for row, ((value,),) in enumerate(sums):
        code.write(value, code.at(target, row * processor.vector_bytes), 4)
    code.ret(code.number(0))
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=3
    )
    text = machine.emit_assembly(llvm.parse_assembly(str(module), llvm.create_context()))
    return [" ".join(line.split()).removeprefix("{vex} ") for line in text.splitlines()]


@pytest.mark.parametrize(("processor", "weights", "instructions"), CASES)
def test_the_instructions_of_a_processor(
    processor: Processor, weights: str | None, instructions: dict[str, int]
) -> None:
    """For each row and word there are so many, and no other multiplications of vectors."""
    lines = assembly(processor, weights)
    found = Counter(match[0] for line in lines if (match := re.match(MULTIPLICATION, line)))
    if processor.is_x86:
        found = Counter({name.split()[0]: count for name, count in found.items()})
    assert found == {name: ROWS * WORDS * count for name, count in instructions.items()}


MULTIPLICATION = (
    r"(v?f?n?m(la|ul\w*|add\w*) [vz]|(sdot|bfmlal[tb]|bfdot|bfmmla) [vz]|v(pmadd|pmul|pdp|dp|fma)\w+)"
)


@pytest.mark.parametrize("processor", [NEON, SVE])
def test_the_second_products_of_pairs_are_added_first(processor: Processor) -> None:
    """The order of vdpbf16ps, in each sum."""
    sums = dict[str, list[str]]()
    for line in assembly(processor, "bfloat16"):
        if match := re.match(r"(bfmlal[tb]) ([vz]\d+)", line):
            sums.setdefault(match[2], []).append(match[1])
    assert len(sums) == ROWS
    assert all(names == ["bfmlalt", "bfmlalb"] * WORDS for names in sums.values())


def test_registers_of_sve_are_loaded_whole() -> None:
    """A load of weights is one instruction, and a number of the left side is spread by its load."""
    lines = assembly(SVE, None)
    assert sum(line.startswith("ld1rw { z") for line in lines) == ROWS * WORDS
    assert sum(line.startswith("ldr z") for line in lines) == WORDS
    assert not any("[sp" in line for line in lines)


@pytest.mark.parametrize(
    ("features", "sve", "names"),
    [
        ((), 0, []),
        (("dotprod",), 0, ["neon"]),
        (("dotprod", "bf16"), 16, ["neon"]),  # SVE2 of 128 bits: no wider than NEON
        (("dotprod", "bf16"), 32, ["sve", "neon"]),
        ((), 64, ["sve"]),
        ((), 128, []),  # no code is generated for registers of this size
    ],
)
def test_instruction_sets_of_arm(features: tuple[str, ...], sve: int, names: list[str]) -> None:
    usable = beyond_neon(features, sve)
    assert [each.name for each in usable] == names
    for each in usable:
        assert each.vector_bytes == (sve if each.name == "sve" else 16)
        assert all(map(each.has, ("neon", *features)))
        assert str(each) == f"{each.name} (64-bit Arm, {8 * each.vector_bytes}-bit vectors)"


def test_other_systems_than_linux_are_asked_by_llvm() -> None:
    assert arm_features({"dotprod": True, "bf16": False, "neon": True}, "darwin") == ("dotprod",)
