"""The work of threads between two barriers of a shared step: no thread reads what another one writes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_steps import RandomStep, random_steps

import stepnet as sn
from stepnet.compiler.targets.cpu import NAMED, host_processor
from stepnet.compiler.targets.cpu.lower.loops import CopyLoop, FiberLoop, Loop, ScanLoop, UnitLoop
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.cpu.machine.records import Field

Array = np.ndarray


@dataclass(frozen=True)
class Access:
    """The bytes of each row that a loop reads or writes; threads share it by row, or by unit of a size."""

    record: str
    begin: int
    end: int
    share: Any


def share(loop: Loop) -> Any:
    if isinstance(loop, FiberLoop):
        return "groups of units", id(loop)
    return ("units", loop.size) if isinstance(loop, UnitLoop) and loop.products else "rows"


def fields(value: Any, skip: str) -> Iterator[Field]:
    """The fields in a loop, but for those of one of its attributes."""
    if isinstance(value, Field):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from fields(part, skip)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            if name != skip:
                yield from fields(getattr(value, name), skip)


def written(loop: Loop) -> list[Field]:
    if isinstance(loop, FiberLoop):
        return [
            field for stores in (*(turn.stores for turn in loop.passes), loop.stores) for _, field in stores
        ]
    if isinstance(loop, UnitLoop):
        return [field for _, field in loop.stores]
    return [getattr(loop, "target", None) or field for field in getattr(loop, "targets", [None])]


def read(loop: Loop) -> list[Field]:
    if isinstance(loop, FiberLoop):
        return [*fields(loop.passes, "stores"), *fields(loop.units, "")]
    if isinstance(loop, UnitLoop):
        operands = [operand for _, operands in loop.nodes for operand in operands]
        operands += [operand for operand, _ in loop.stores]
        return [*fields(loop.products, ""), *fields(operands, "")]
    return [*fields(loop, "target" if hasattr(loop, "target") else "targets")]


def accesses(loop: Loop, fields_: list[Field]) -> list[Access]:
    return [Access(f.record, f.offset, f.offset + f.bytes, share(loop)) for f in fields_]


def torn(phase: list[Loop]) -> list[tuple[Access, Access]]:
    """Fields that one loop of a phase writes and that another reads, which may run on other threads."""
    writes = [access for loop in phase for access in accesses(loop, written(loop))]
    reads = [access for loop in phase for access in accesses(loop, read(loop))]
    return [
        (a, b)
        for a, b in product(writes, reads)
        if a.record == b.record and a.begin < b.end and b.begin < a.end and a.share != b.share
    ]


def assert_whole(rnn: sn.RNN) -> None:
    for plan in rnn.schedule.plans:
        program = lowered(plan, host_processor()).program
        for phase in (*program.before, *program.loop, *program.after):
            assert isinstance(phase, list)  # no step here has inner sequences
            assert not torn(phase)


@pytest.mark.long(examples=30)
@settings(max_examples=150)
@given(step=random_steps(), reverse=st.booleans())
def test_no_thread_reads_what_another_writes_in_one_phase(step: RandomStep, reverse: bool) -> None:
    assert_whole(step.rnn("float32", reverse))


def test_a_quotient_of_a_sum_beside_a_product_of_its_size() -> None:
    def step(x: Any, h: Any, params: Any) -> Any:
        centre = np.mean(x, axis=1, keepdims=True)
        h = np.tanh(h + centre + x @ params)
        return h, h

    assert_whole(sn.RNN(step, np.ones((4, 1), "float32"), memory=1, inputs=4))


def test_fibers_beside_a_product_of_as_many_units() -> None:
    """The sum over fibers is shared in another way than the product that is added to it."""

    def step(x: Any, memory: Any, params: Any) -> Any:
        S = 0.5 * memory["S"] + x[:, :, None] * memory["h"][:, None, :]
        h = np.tanh(memory["h"] @ params + S.sum(1))
        return h, {"S": S, "h": h}

    params = np.ones((16, 16), "float32")
    assert_whole(sn.RNN(step, params, memory={"S": (4, 16), "h": 16}, inputs=4))


def test_the_check_sees_a_phase_that_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepnet.compiler.plan.phases.torn_nodes", lambda fibers, phase: set())
    with pytest.raises(AssertionError):
        test_a_quotient_of_a_sum_beside_a_product_of_its_size()
    with pytest.raises(AssertionError):
        test_fibers_beside_a_product_of_as_many_units()


def test_a_value_whose_elements_lie_in_order_is_read_where_it_is() -> None:
    """Only other elements, such as those of a transposed value, are copied in a phase before."""

    def kinds(view: Callable[[Any], Any]) -> list[type]:
        def step(x: Any, h: Any, p: Any) -> Any:
            h = np.tanh(h + x)
            return np.cumsum(view(h), axis=-1), h

        rnn = sn.RNN(step, memory=(4, 3), inputs=sn.Spec((4, 3), "float32"))
        program = lowered(rnn.plan, host_processor()).program
        phases = *program.before, *program.loop, *program.after
        return [type(loop) for phase in phases if isinstance(phase, list) for loop in phase]

    assert ScanLoop in kinds(lambda h: h)
    assert CopyLoop not in kinds(lambda h: h)
    assert CopyLoop in kinds(lambda h: np.swapaxes(h, -1, -2))


@pytest.mark.parametrize(
    ("processor", "units", "width"),
    [("x86-64-v4", 8, 8), ("x86-64-v4", 9, 16), ("x86-64-v3", 4, 8), ("aarch64", 2, 4)],
)
def test_few_units_have_short_vectors_where_those_of_the_processor_take_longer(
    processor: str, units: int, width: int
):
    """Also below more inputs, of which nothing is computed unit by unit."""
    rnn = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(32, units, seed=0))
    assert lowered(rnn.plan, NAMED[processor]).program.width == width
