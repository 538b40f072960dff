"""The processor that STEPNET_CPU chooses: the code that is generated, what says so, and refusals."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from command_line import stepnet
from same_bits import assert_same_bits
from zoo import rnn_of

from stepnet.compiler.targets.cpu import (
    NAMED,
    VARIABLE,
    LlvmEngine,
    Processor,
    available_processors,
    chosen_processor,
    host_processor,
    supported_processors,
    up_to,
)
from stepnet.compiler.targets.cpu.library.platforms import platform_named
from stepnet.errors import InputError

V4, V3, ARM = NAMED["x86-64-v4"], NAMED["x86-64-v3"], NAMED["aarch64"]
WIDE, HALF, BASE = (
    Processor("avx512", "znver5", "+avx512bf16", 64, 32),
    Processor("avx2", "haswell", "", 32, 16),
    Processor("generic", "x86-64", "", 16, 16),
)
NEON = Processor("neon", "", "+neon,+dotprod", 16, 24)
SVE = Processor("sve", "", "+neon,+dotprod,+sve", 32, 32)
CHOICES = [
    ("", (WIDE, HALF, BASE), (WIDE, HALF, BASE)),
    ("native", (WIDE, HALF, BASE), (WIDE, HALF, BASE)),
    ("x86-64-v4", (WIDE, HALF, BASE), (V4, HALF, BASE)),
    ("x86-64-v3", (WIDE, HALF, BASE), (V3, BASE)),
    ("generic", (WIDE, HALF, BASE), (BASE,)),
    ("x86-64-v3", (HALF, BASE), (V3, BASE)),
    ("generic", (ARM,), (ARM,)),
    ("", (SVE, NEON, ARM), (SVE, NEON, ARM)),
    ("native", (NEON, ARM), (NEON, ARM)),
    ("aarch64", (SVE, NEON, ARM), (ARM,)),
    ("aarch64", (ARM,), (ARM,)),
]
REFUSED = [
    (
        "skylake",
        (WIDE, HALF, BASE),
        "which is no name of a processor",
        "native, x86-64-v4, x86-64-v3, generic",
    ),
    ("x86-64-v4", (HALF, BASE), "which this processor cannot run", "native, x86-64-v3, generic"),
    (
        "aarch64",
        (WIDE, HALF, BASE),
        "which this processor cannot run",
        "native, x86-64-v4, x86-64-v3, generic",
    ),
    ("x86-64-v3", (ARM,), "which this processor cannot run", "native, aarch64, generic"),
]


@pytest.mark.parametrize(("name", "supported", "chosen"), CHOICES)
def test_a_name_is_a_target_and_the_narrower_ones(
    name: str, supported: tuple[Processor, ...], chosen: tuple[Processor, ...]
) -> None:
    assert up_to(name, supported) == chosen


@pytest.mark.parametrize(("name", "supported", "why", "names"), REFUSED)
def test_refusals_name_the_choices(name: str, supported: tuple[Processor, ...], why: str, names: str) -> None:
    message = (
        f"the environment variable STEPNET_CPU is '{name}', {why}: set it to one of {names}, or unset it"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        up_to(name, supported)


# ---- a process with the variable ---------------------------------------------------------------------------


def forget() -> None:
    """The variable is read once per process; this has it read again."""
    chosen_processor.cache_clear()
    host_processor.cache_clear()
    available_processors.cache_clear()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def choose(name: str) -> None:
        monkeypatch.setenv(VARIABLE, name)
        forget()

    yield choose
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ("x86-64-v4", "x86-64-v3")
        if NAMED[name].name in {t.name for t in supported_processors()}
    ]
    + ["generic"],
)
def test_calls_run_the_code_of_the_chosen_processor(name: str, chosen: Callable[[str], None]) -> None:
    processor = up_to(name, supported_processors())[0]
    x = np.random.default_rng(0).normal(size=(3, 20, 8)).astype("f4")
    chosen(name)
    assert host_processor() == processor
    rnn = rnn_of("gru", 8, 33)
    made, _ = rnn(x)
    reading = rnn.read(x, None, None, None, False)
    schedule = reading.running.schedule_for("llvm")
    bound = LlvmEngine(processor).compile(schedule).bind(reading.running.params)
    assert_same_bits(made.reshape(-1, 33), bound(reading.call).arrays[0])
    (plan,) = schedule.plans
    assert LlvmEngine().key(plan) == LlvmEngine(processor).key(plan)


def test_machine_code_without_fused_multiply_adds_rounds_products(chosen: Callable[[str], None]) -> None:
    """The bits show which code ran."""
    if not supported_processors()[-1].is_x86:
        pytest.skip("every processor here has fused multiply-add")
    x = np.random.default_rng(0).normal(size=(3, 20, 8)).astype("f4")
    made = dict[str, np.ndarray]()
    for name in ("native", "generic"):
        chosen(name)
        made[name], _ = rnn_of("gru", 8, 33)(x)
    assert host_processor().has_fused is False
    assert (made["native"] != made["generic"]).any()


def test_doctor_and_explain_show_it(chosen: Callable[[str], None], works: None) -> None:
    chosen("generic")
    line = f"code for    {supported_processors()[-1]}: STEPNET_CPU is generic"
    assert f"  {line}\n  llvm        chosen\n" in str(rnn_of("gru", 8, 33).explain())
    code, said, _ = stepnet("doctor")
    assert code == 0
    assert f"{line.replace('for    ', 'for      ')}\n" in said
    assert "also runs" not in said


def test_a_wrong_name_is_an_error_of_the_call(chosen: Callable[[str], None]) -> None:
    chosen("pentium")
    with pytest.raises(InputError, match="STEPNET_CPU is 'pentium', which is no name of a processor"):
        rnn_of("gru", 8, 33)(np.zeros((1, 2, 8), "f4"))


def test_libraries_are_built_for_the_chosen_processor(chosen: Callable[[str], None]) -> None:
    chosen("generic")
    assert platform_named("native").code == platform_named("generic").code == supported_processors()[-1]
    if "avx512" in {processor.name for processor in supported_processors()}:
        chosen("x86-64-v4")
        assert platform_named("native").needs == platform_named("x86-64-v4").needs
