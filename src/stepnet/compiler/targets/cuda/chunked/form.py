"""Chunks: how a block runs several steps at once of a step whose memory is a matrix (`plan/matrix_rule.py`).

A block has one head of one sequence, and all or some of its values. Its shared memory holds, for the steps of
a chunk and in float32:

    vectors    of the reads [reads, steps, keys], and of the writes [writes, steps, keys]
    matrix     [keys, values], which stays from chunk to chunk
    read       [reads, steps, values], what is read of the matrix
    written    [writes, steps, values]
    values     [early values, steps, values], and numbers [early numbers, steps]
    inner      [reads, writes, steps, steps], the products of the vectors, decayed; 0 for steps that are later
    decays     [steps + 1, steps + 1], column s: the product of the decays from step s on, until each step
    beyond     one number: not 0 if something written is NaN, infinite or close to it

Rows are a few numbers longer, so that the lanes of a warp read from different banks.
"""

from collections.abc import Sequence
from math import ceil

from stepnet.compiler.plan.matrix_rule import MatrixRead, MatrixRule, matrix_rule
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.arrays.product_shares import TENSOR_WAYS
from stepnet.compiler.targets.cuda.chunked.decay_form import begins_of
from stepnet.compiler.targets.cuda.chunked.sizes import FIRST, TILE_ROWS, without_chunks
from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.entries.elements import uniform
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

THREADS, WARPS = 512, 16
TILE_COLUMNS = 8
"""The columns of a product of tensor cores."""
STEPS = 64, 32, 16
"""The steps that a chunk may have."""
MOST_SOLVED = 4
"""The most reads on which what is written may depend; of each, a thread has some steps in registers."""
MOST_TILES = 8
"""The products of tensor cores that a warp computes together: of one or two left operands with others."""


@dataclass(frozen=True)
class ChunkForm:
    """Step, and how its chunks are run.

    steps: of a chunk. columns: the values of a head that a block has. way: how float32 is multiplied, a key
    of `TENSOR_WAYS`.
    """

    rule: MatrixRule
    steps: int
    columns: int
    way: str

    @property
    def heads(self) -> int:
        """The heads of the matrix."""
        return self.rule.sizes[0]

    @property
    def keys(self) -> int:
        """The keys of a head."""
        return self.rule.sizes[1]

    @property
    def parts(self) -> int:
        """The blocks that share a head."""
        return self.rule.sizes[2] // self.columns

    @property
    def blocks(self) -> int:
        """The blocks of a sequence."""
        return self.heads * self.parts

    @computed_once
    def reads(self) -> tuple[MatrixRead, ...]:
        """The reads, first those on which what is written depends."""
        solved = self.rule.solved
        others = [place for place in range(len(self.rule.reads)) if place not in solved]
        return tuple(self.rule.reads[place] for place in (*solved, *others))

    @property
    def solved(self) -> int:
        """The number of reads on which what is written depends."""
        return len(self.rule.solved)

    @computed_once
    def first_write(self) -> int:
        """The place of the first write's vector: behind those of the reads, unless the first reads have the
        same ones, as those of a delta rule.
        """
        count = self.writes
        is_shared = (
            self.rule.alike[:count] == tuple(self.rule.solved[:count]) and len(self.rule.alike) == count
        )
        return 0 if is_shared else len(self.reads)

    @property
    def vectors(self) -> int:
        """The number of vectors of a step."""
        return max(len(self.reads), self.first_write + self.writes)

    @property
    def writes(self) -> int:
        """The number of outer products of a step."""
        return len(self.rule.writes)

    @computed_once
    def wide(self) -> tuple[int, ...]:
        """The early values that have a number for each value of a head, by node."""
        heads, _, values = self.rule.sizes
        return tuple(n for n in self.stored if self.rule.body.type_of(n).size == heads * values)

    @computed_once
    def narrow(self) -> tuple[int, ...]:
        """The early values that have one number for each head, or for all, by node."""
        return tuple(n for n in self.stored if n not in self.wide)

    @property
    def stored(self) -> list[int]:
        """The early values that are no constants."""
        return [n for n in self.rule.early if uniform(self.rule.body.nodes[n]) is None]

    # ---- shared memory, in numbers of 4 bytes

    @property
    def key_row(self) -> int:
        """The length of a row of vectors."""
        return self.keys + 4

    @property
    def value_row(self) -> int:
        """The length of a row of the matrix, and of what is read and written."""
        return self.columns + 8

    @property
    def step_row(self) -> int:
        """The length of a row of inner products."""
        return self.steps + 8

    @property
    def decay_row(self) -> int:
        """The length of a row of products of decays."""
        return self.steps + 1

    @computed_once
    def places(self) -> dict[str, int]:
        """The first bytes of all arrays in shared memory, and under "end" that behind them."""
        reads, writes, steps = len(self.reads), self.writes, self.steps
        sizes = {
            "vectors": self.vectors * steps * self.key_row,
            "matrix": self.keys * self.value_row,
            "read": reads * steps * self.value_row,
            "written": writes * steps * self.value_row,
            "values": len(self.wide) * steps * self.value_row,
            "inner": reads * writes * steps * self.step_row,
            "numbers": len(self.narrow) * steps,
            "decay": steps,
            "decays": (steps + 1) * self.decay_row,
            "beyond": 1,
        }
        return begins_of(sizes)

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.places["end"]


def chunk_forms(plan: Plan, facts: DeviceFacts, way: str) -> list[ChunkForm] | str:
    """Returns the ways in which a plan's loop can run in chunks on a device, or why there are none."""
    rule = matrix_rule(plan.recurrence.recur)
    if isinstance(rule, str):
        return rule
    _, keys, values = rule.sizes
    if refused := without_chunks(keys, values):
        return refused
    if len(rule.solved) > MOST_SOLVED:
        return f"{len(rule.solved)} values of a step depend on one another"
    assert way in TENSOR_WAYS
    forms = [
        form
        for steps in STEPS
        for columns in columns_of(values)
        if (form := ChunkForm(rule, steps, columns, way)).shared <= facts.shared
    ]
    return forms or f"chunks take more than {facts.shared:,} bytes of shared memory"


def columns_of(values: int) -> Sequence[int]:
    """Returns the numbers of a head's values that a block may have, most first."""
    return [values // parts for parts in (1, 2, 4, 8, 16) if values % (parts * FIRST) == 0
            and values // parts <= THREADS]  # fmt: skip


def tiles_together(rows: int, columns: int) -> tuple[int, int]:
    """Returns how many products of tensor cores below and beside each other a warp computes together, so that
    all warps have some and operands are read seldom.
    """
    down, across = rows // TILE_ROWS, columns // TILE_COLUMNS
    options = [
        (below, beside)
        for below in (1, 2)
        for beside in range(1, MOST_TILES + 1)
        if down % below == 0 and across % beside == 0 and below * beside <= MOST_TILES
    ]

    def cost(option: tuple[int, int]) -> float:
        """Returns the operands that the busiest warp reads; a left one has twice as many registers."""
        below, beside = option
        tasks = ceil(down // below * (across // beside) / WARPS)
        return tasks * (2 * below + beside + below * beside / 2)

    return min(options, key=cost)
