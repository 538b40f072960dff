"""Loops on disk: all that a loop is chosen by is in its key, and what is read is what was written."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants

from bench.gpu.cells import FEATURES, ending
from stepnet.compiler.plan import Plan
from stepnet.compiler.targets.cuda import H100, LOOPS, ChosenLoop, CudaOptions, DeviceFacts, loop_of
from tests.compiler.targets.cuda.tensor_loops import DEVICE, backward_plan, cell_plan

Choice = tuple[Plan, int, DeviceFacts, CudaOptions, int, int | None]
Found = Callable[[Choice], tuple[ChosenLoop, bool]]
UNITS = 8
BASE: Choice = (cell_plan("gru", UNITS), 16, DEVICE, CudaOptions(), 1, None)
CHANGED_FACTS = {
    "name": "NVIDIA H200",
    "capability": (10, 0),
    "multiprocessors": 66,
    "shared": 101376,
    "registers": 32768,
    "cluster": 8,
}


def changed(**values: Any) -> Choice:
    """The base with another value for some of its arguments."""
    names = "plan", "rows", "facts", "options", "share", "flag"
    return tuple(values.get(name, given) for name, given in zip(names, BASE, strict=True))  # type: ignore[return-value]


def other_fibers() -> Plan:
    """The plan of the base with other costs of fibers, which pieces of its step may depend on."""
    planning = BASE[0].planning
    fibers = replace(planning.costs.fibers, long=planning.costs.fibers.long + 1)
    return replace(BASE[0], planning=replace(planning, costs=replace(planning.costs, fibers=fibers)))


CHANGES: dict[str, Callable[[], Choice]] = {
    "another step": lambda: changed(plan=cell_plan("minimal_gated_unit", UNITS)),
    "other units": lambda: changed(plan=cell_plan("gru", UNITS + 1)),
    "another dtype": lambda: changed(plan=cell_plan("gru", UNITS, "bfloat16")),
    "backward": lambda: changed(plan=backward_plan("gru", UNITS)),
    "other costs": lambda: changed(plan=other_fibers()),
    "rows": lambda: changed(rows=18),
    "precision": lambda: changed(options=CudaOptions("tf32")),
    "batch_invariant": lambda: changed(options=CudaOptions(batch_invariant=True)),
    "share": lambda: changed(share=2),
    **{
        f"device: {name}": lambda name=name, value=value: changed(facts=replace(DEVICE, **{name: value}))
        for name, value in CHANGED_FACTS.items()
    },
}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache on disk of this test, with the loop of the base; none is kept in memory."""
    monkeypatch.setenv("STEPNET_CACHE", "1")
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path / "cache"))
    LOOPS.clear()
    loop_of(*BASE)
    yield tmp_path / "cache"
    LOOPS.clear()


def files(cache: Path) -> set[tuple[str, int]]:
    """The files of a cache; one that is written again is another."""
    return {(file.name, file.stat().st_ino) for file in cache.iterdir()}


@pytest.fixture
def found(cache: Path) -> Found:
    """Returns the loop of a choice, as no process has it in memory, and whether it was on disk."""

    def find(choice: Choice) -> tuple[ChosenLoop, bool]:
        LOOPS.clear()
        before = files(cache)
        return loop_of(*choice), files(cache) == before

    return find


def test_what_is_read_is_what_was_written(found: Found):
    for plan in (
        BASE[0],
        cell_plan("gru", 96),
        cell_plan("rg_lru", UNITS),
        cell_plan("gru", UNITS, "float64"),
    ):
        written, _ = found(changed(plan=plan))
        read, is_read = found(changed(plan=plan))
        assert is_read
        assert read == written
        assert read.loop.code.key == written.loop.code.key
        assert "define void" in read.loop.code.text


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_loop_is_chosen_by_is_in_its_key(found: Found, name: str):
    assert found(BASE)[1]
    assert not found(CHANGES[name]())[1]
    assert found(CHANGES[name]())[1]
    assert found(BASE)[1]


def test_every_fact_of_a_device_is_changed():
    assert CHANGED_FACTS.keys() == {field.name for field in fields(DeviceFacts)}


def test_the_flag_that_ends_sequences_is_in_the_key(found: Found):
    reading = ending(UNITS).read(np.ones((1, 3, FEATURES), "f4"), None, None, None)
    (plan,) = reading.running.schedule_for("cuda-emulated").plans
    memories = plan.recurrence.recur.operands_by_kind(plan.recurrence.inputs).memories
    flag = [plan.net.type_of(number).dtype for number in memories].index("bool")
    without, _ = found(changed(plan=plan))
    with_flag, is_read = found(changed(plan=plan, flag=flag))
    assert not is_read
    assert with_flag.loop.code != without.loop.code
    assert found(changed(plan=plan, flag=flag)) == (with_flag, True)


def test_other_names_and_directions_have_the_same_loop(found: Found):
    """Facts that make no difference to the code are not in the key."""
    assert found(changed(plan=replace(BASE[0], traced=cell_plan("lstm", UNITS).traced)))[1]


def test_the_times_of_a_device_are_in_the_key(found: Found):
    with pytest.MonkeyPatch.context() as patch:
        times = {"H100": replace(H100, barrier=2 * H100.barrier)}
        Constants(patch)("stepnet.compiler.targets.cuda.tensor.facts", DEVICES=times)
        assert not found(BASE)[1]
    assert found(BASE)[1]


def test_a_damaged_entry_is_written_again(cache: Path, found: Found):
    expected, _ = found(BASE)
    (file,) = cache.glob("*.gpu")
    contents = bytearray(file.read_bytes())
    for place in (len(contents) // 2, len(contents) - 1):
        damaged = contents.copy()
        damaged[place] ^= 1
        file.write_bytes(damaged)
        again, is_read = found(BASE)
        assert not is_read
        assert again == expected
    file.write_bytes(contents[: len(contents) // 2])
    assert not found(BASE)[1]


def test_a_file_that_others_may_write_is_not_read(cache: Path, found: Found):
    (file,) = cache.glob("*.gpu")
    file.chmod(0o666)
    assert not found(BASE)[1]
