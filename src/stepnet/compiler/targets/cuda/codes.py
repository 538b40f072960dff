"""The codes of a plan: kernels and products of its stages, the kernel of its loop, and what they read and
fill.

    sequence    values per row       DeviceStage, ProductCode, ...    ahead of the loop
    before      values per step      DeviceStage, ProductCode, ...    ahead of the loop, for all steps at once
    loop        the step             LoopCode                       one launch for all steps
    after       values per step      DeviceStage, ProductCode, ...    behind the loop, for all steps at once
    ended       values per row       DeviceStage, ProductCode, ...    behind the loop
"""

from collections.abc import Iterable

from stepnet.compiler.disk.data import Serializer
from stepnet.compiler.net.types import CONST, ROWS
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.values.records import dataclass

STAGE_WORDS = "count", "row_of", "index_of", "first_steps", "scratch", "errors"
"""The first arguments of a stage's kernel.

count: the entries: rows of the batch, or all steps of the arrays, gaps included.
row_of: int64 [count], the row of each step, -1 in a gap between sequences; 0 if the entries are rows.
index_of: int64 [count], the number of each step in its sequence; 0 if no node is an `index`.
first_steps: int64 [rows], the steps that each sequence did in earlier calls; 0 (no array) for zeros.
scratch: `DeviceStage.scratch` bytes for each block that is launched.
errors: see LOOP_WORDS.
"""

LOOP_WORDS = "turns", "lanes", "steps", "reverse", "first_steps", "scratch", "errors"
"""The first arguments of a loop's kernel.

turns: int64 [groups + 1], the first turn of each group of blocks, and the number of all turns.
lanes: int64 [turns, group_rows, LANE_WORDS], what each lane of a group does in each turn.
steps: int64, step t of a sequence lies `steps[t]` entries after its start; 0 (no array) for t entries.
reverse: 1 if each sequence runs from its last step to its first, else 0.
first_steps: int64 [rows], the steps that each sequence did in earlier calls; 0 (no array) for zeros.
scratch: `LoopCode.scratch` bytes for each group of sequences; the first `LoopCode.zeros` of each are zero.
errors: int64 [4], zeros at first: [1, node, value, row] of an index outside its table, of any one that is.
"""

LANE_WORDS = "row", "start", "time", "before", "count", "ends", "steps"
"""The words on a lane in a turn of its group, in which it runs some steps of one sequence.

row: the sequence, 0 in a lane that is idle.
start: the entry from which its steps are found, 0 if it runs none.
time: the first step that it runs, as `steps` counts them, from which it goes back if `reverse`; 0 if none.
before: the steps of the sequence in earlier turns; 0 where it begins, with its initial memories. 1 if idle.
count: its steps in this turn. steps: the most steps of a lane in this turn.
ends: 1 if the sequence ends in this turn, so that its memories are final, else 0.
"""


ENDING_WORDS = "taken", "places"
"""The last arguments of the kernel of a loop whose sequences a flag ends.

taken: int64 [rows], the steps of each sequence, which the kernel fills; zeros at first.
places: int64 [rows], the entry of the first step of each in the outputs, where its steps lie one after
    the other.
"""


@dataclass(frozen=True)
class DeviceStage:
    """A kernel that computes values of one extent for all entries.

    Its arguments are `STAGE_WORDS`, then the arrays of `reads`, then those of `writes`.

    reads: the nodes whose arrays it reads: inputs, constants, and values of earlier codes. A value per row
        may be read at steps.
    writes: the nodes whose arrays [count, features...] it fills.
    rows: the entries that a block takes at a time. scratch: the bytes of main memory for each block.
    """

    code: DeviceCode
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    rows: int = 1
    scratch: int = 0


@dataclass(frozen=True)
class ProductCode:
    """A product of all entries with constants, which the library of products computes.

    The value of `node` is the sum of lefts[i] @ rights[i], all [count, k] and [k, n] after reshaping.
    is_rounded: whether both sides are rounded to bfloat16.
    stored: the dtypes of 16 bits in which the numbers of the lefts and of the rights are known to be; None
        for none.
    """

    node: int
    lefts: tuple[int, ...]
    rights: tuple[int, ...]
    is_rounded: bool = False
    stored: tuple[str | None, str | None] = (None, None)


STAGES = Serializer(DeviceCode, DeviceStage, ProductCode)
"""The form of the codes of stages on disk."""


@dataclass(frozen=True)
class LoopCode:
    """A kernel that runs all steps of a recurrence.

    Its arguments are `LOOP_WORDS`, then arrays in the order of the body's operands by kind: sequences
    [total, features...], initial memories [rows, features...] (0 for zeros), other operands (statics [rows,
    features...] and constants); then those of its results by kind: outputs [total, features...] and final
    memories [rows, features...] (0 for a result that nothing reads).

    schedule: a description for people, such as "2 blocks of 128 threads for 8 sequences".
    group_rows: the lanes of a group of blocks, each of which runs a sequence at a time.
    scratch: the bytes of main memory for each group. zeros: how many of them are zero at first.
    whole: the number that the steps of a turn are rounded up to a multiple of.
    together: the steps that are computed together, so that bits depend on where a sequence is divided.
    aligned: the bytes to which the arrays are aligned that it reads, and those that it fills.
    """

    code: DeviceCode
    schedule: str
    group_rows: int
    scratch: int = 0
    zeros: int = 0
    whole: int = 1
    together: int = 1
    aligned: int = 1


def read_after_loop(plan: Plan, codes: Iterable[DeviceStage | ProductCode]) -> list[int]:
    """Lists the values per step that the work after a plan's loop reads, or that are results; by node.

    codes: of the stages after the loop.
    """
    net = plan.net
    read = {*net.results, *(n for number in (*plan.reduced, *plan.total) for n in net.nodes[number].inputs)}
    for code in codes:
        read |= {*(code.lefts if isinstance(code, ProductCode) else code.reads)}
    return sorted(n for n in read if net.type_of(n).extent not in (CONST, ROWS))
