"""The result of lowering: the driver's program, and the work once per sequence or call around it."""

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import Load
from stepnet.compiler.targets.cpu.lower.driven import CallLoops
from stepnet.compiler.targets.cpu.lower.loops import Loop
from stepnet.compiler.targets.cpu.machine.records import Field
from stepnet.compiler.targets.cpu.products.constants import Constants
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class RowWork:
    """Work that is done once per sequence, before its first step or after its last; or once for all rows,
    after all steps.

    net: the net whose nodes are computed.
    inputs: the arrays that are copied in, by word (the index of the array's pointer), and the field of each.
    loops: the loops of each phase.
    outputs: the arrays that are copied out, by word, and the field of each.
    record: the record of its values.
    """

    net: Net
    inputs: tuple[tuple[int, Field], ...]
    loops: list[list[Loop]]
    outputs: tuple[tuple[int, Field], ...] = ()
    record: str = "sequence"


@dataclass(frozen=True)
class StepResult:
    """Result per step of a lowered plan.

    kind, argument: the kind of its array, and the index of the array's pointer among the call's arguments.
    number: its number in the net.
    field: the field through which it is written in place; None if it is copied.
    """

    kind: str
    argument: int
    number: int
    field: Field | None


@dataclass(frozen=True)
class Lowered:
    """Lowered plan: the loops of a call, the constants, and the work once per sequence or for all rows.

    sequence, ended: the work before the first step of a sequence, and after its last; None if there is none.
    totals: the functions of totals, after all steps of all rows; None if there are none.
    arguments: the indices of the arrays' pointers among the call's arguments, by kind of array.
    required_arguments: those whose arrays must be present.
    load: the flops and bytes of the steps, for the time estimate.
    """

    program: CallLoops
    constants: Constants
    sequence: RowWork | None
    ended: RowWork | None
    totals: RowWork | None
    arguments: dict[str, list[int]]
    required_arguments: frozenset[int]
    load: Load
