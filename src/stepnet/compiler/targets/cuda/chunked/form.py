"""Chunks: how a block runs several steps at once of a step whose memory is a matrix (`plan/matrix_rule.py`).

A block has one head of one sequence, and all or some of its values. Its shared memory holds, for the steps of
a chunk and in float32:

    vectors    of the reads [reads, steps, keys], and of the writes [writes, steps, keys]
    matrix     [keys, values], which stays from chunk to chunk
    read       [reads, steps, values], what is read of the matrix
    written    [writes, steps, values]
    values     [early values, steps, values]
    numbers    [early numbers, steps]
    inner      [reads, writes, steps, steps], the products of the vectors, decayed; 0 for those not earlier
    decay      [steps], or [steps, keys] or [steps, values]
    ahead      [values]: the product of the decays of all steps, if each value decays by itself
    decays     [spans + 1, spans + 1], column s: the product of the decays from span s on, until each span;
               for each key, if each decays by itself. Then a span has 16 steps (`key_decays.py`), else one
    beyond     [1]: not 0 if something written is NaN, infinite or close to it

Rows are a few numbers longer, so that the lanes of a warp read from different banks. Some have two places,
which chunks have in turn (`turned`): outputs read numbers while the next ones are loaded. Where few threads
solve what is written, others may load the next chunk meanwhile (`ahead`), with its decays.
"""

from collections.abc import Sequence
from math import ceil

from stepnet.compiler.plan.matrix_rule import MatrixRead, MatrixRule, MatrixWrite, is_plain, matrix_rule
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.targets.cuda.arrays.product_shares import TENSOR_WAYS
from stepnet.compiler.targets.cuda.chunked.decay_form import begins_of
from stepnet.compiler.targets.cuda.chunked.sizes import FIRST, TILE_ROWS, without_chunks
from stepnet.compiler.targets.cuda.device import LANES, DeviceFacts
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
SOLVED = 8
"""The steps that are solved together, whose reads a thread has in registers."""
MOST_TILES = 8
"""The products of tensor cores that a warp computes together: of one or two left operands with others."""


@dataclass(frozen=True)
class ChunkForm:
    """Step, and how its chunks are run.

    steps: the number of steps of a chunk. columns: the values of a head that a block has. way: how float32 is
    multiplied, a key of `TENSOR_WAYS`. threads: the number of threads of a block, on which bits do not
    depend. outputs: of the step, by node. ahead: whether the next chunk is loaded while this one is solved.
    """

    rule: MatrixRule
    steps: int
    columns: int
    way: str
    threads: int = THREADS
    outputs: tuple[int, ...] = ()
    ahead: bool = False

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
        """The number of reads that are known step by step: those on which what is written depends, or all
        where each value has its own decays.
        """
        return len(self.reads) if self.rule.by_value else len(self.rule.solved)

    @computed_once
    def first_write(self) -> int:
        """The place of the first write's vector: behind the vectors of the reads, or among them if the first
        reads have the same vectors, as in a delta rule. Where each key decays by itself it is behind them, as
        both take other decays.
        """
        if self.rule.by_key:
            return len(self.reads)
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
        """The stored values that have a number for each value of a head, by node."""
        return tuple(n for n in self.stored if self.is_wide(n))

    @computed_once
    def narrow(self) -> tuple[int, ...]:
        """The stored values that have one number for each head, or for all, by node."""
        return tuple(n for n in self.stored if not self.is_wide(n))

    def is_wide(self, number: int) -> bool:
        """Tells whether an early value has a number for each value of a head."""
        return self.rule.body.type_of(number).size == self.rule.value_count

    @property
    def early(self) -> list[int]:
        """The early values that are no constants."""
        return [n for n in self.rule.early if uniform(self.rule.body.nodes[n]) is None]

    @property
    def wide_count(self) -> int:
        """The number of early values that have a number for each value of a head."""
        return sum(map(self.is_wide, self.early))

    @computed_once
    def stored(self) -> list[int]:
        """The early values that are read when all are loaded. What is written without reads, it is then."""
        return [n for n in self.early if self.solved or n in self.shown]

    @computed_once
    def shown(self) -> frozenset[int]:
        """The nodes that outputs are made of, down to those that are read, written or early."""
        found, left, nodes = set[int](), [*self.outputs], self.rule.body.nodes
        known = {*(read.number for read in self.reads), *self.rule.early}
        known |= {n for each in self.rule.writes for n in self.views_of(each)}
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                left += [] if number in known else nodes[number].inputs
        return frozenset(found)

    def views_of(self, write: MatrixWrite) -> list[int]:
        """Returns a value that is written as it is, and those that it shows, in the same order of elements;
        none for a product, nor where each value decays by itself: what was written is decayed in its place.
        """
        found, nodes = [*write.values[:1]], self.rule.body.nodes
        while found and nodes[found[-1]].is_view and found[-1] not in self.rule.early:
            found.append(nodes[found[-1]].inputs[0])
        return [] if len(write.values) > 1 or self.rule.by_value else found

    # ---- shared memory, in numbers of 4 bytes

    @property
    def key_row(self) -> int:
        """The length of a row of vectors."""
        return self.keys + 8

    @property
    def matrix_row(self) -> int:
        """The length of a row of the matrix."""
        return self.columns + 4

    @property
    def value_row(self) -> int:
        """The length of a row of the vectors that are read and written."""
        return self.columns + 8

    @property
    def step_row(self) -> int:
        """The length of a row of inner products."""
        return self.steps + 8

    @property
    def span(self) -> int:
        """The steps of a span: between these, there are products of decays."""
        return TILE_ROWS if self.rule.by_key else 1

    @property
    def later(self) -> int:
        """The steps whose inner products are those of matrices: not those of the first span."""
        return self.steps - self.span if self.rule.by_key else self.steps

    @property
    def decay_keys(self) -> int:
        """The decays of a step."""
        return self.keys if self.rule.by_key else 1

    @property
    def decay_step(self) -> int:
        """The length of a row of decays."""
        return self.key_row if self.rule.by_key else self.value_row if self.rule.by_value else 1

    @property
    def has_products(self) -> bool:
        """Tells whether products of decays are factors of products of matrices; not those of values."""
        return bool(self.rule.decay) and not self.rule.by_value

    @property
    def decay_row(self) -> int:
        """The number of products of decays until before a span, for each key."""
        return self.steps // self.span + 1

    @property
    def lanes(self) -> int:
        """The lanes that share the inner products of a step with the later ones of its span: each has some
        keys, four side by side. They are as many with fewer threads, which so have the same bits.
        """
        most = max(4, min(THREADS // (self.steps * self.writes), LANES))
        return next(lanes for lanes in (32, 16, 8, 4) if lanes <= most and self.keys % (4 * lanes) == 0)

    @property
    def inner(self) -> int:
        """The length of the inner products of all vectors."""
        return len(self.reads) * self.writes * self.steps * self.step_row

    @property
    def solving(self) -> int:
        """The lanes that share a value in the solution, each with the values that half of the earlier steps
        wrote. They do not depend on how blocks share a head, so bits do not.
        """
        return 2 if self.rule.sizes[2] <= THREADS // 8 else 1

    @property
    def loaders(self) -> int:
        """The first thread that loads the next chunk: behind the warps that solve this one, and one more."""
        return LANES * (ceil(self.solving * self.columns / LANES) + 1) if self.ahead else 0

    @property
    def multiplies_ahead(self) -> bool:
        """Tells whether the products of the next chunk's decays are computed with its loads."""
        return self.ahead and self.has_products and not self.rule.by_key

    @property
    def turned(self) -> frozenset[str]:
        """The arrays that have two places, which chunks have in turn."""
        loaded = {"vectors", "values", "decay", "read"} if self.ahead else set[str]()
        return frozenset({"numbers", "beyond", *loaded, *(["decays"] if self.multiplies_ahead else [])})

    @computed_once
    def places(self) -> dict[str, int]:
        """The first bytes of all arrays in shared memory, and under "end" that behind them."""
        return begins_of({name: size * (1 + (name in self.turned)) for name, size in self.sizes.items()})

    @computed_once
    def sizes(self) -> dict[str, int]:
        """The numbers of all arrays, of one place."""
        reads, writes, steps = len(self.reads), self.writes, self.steps
        return {
            "vectors": self.vectors * steps * self.key_row,
            "matrix": self.keys * self.matrix_row,
            "read": reads * steps * self.value_row,
            "written": writes * steps * self.value_row,
            "values": len(self.wide) * steps * self.value_row,
            "inner": self.inner,
            "numbers": len(self.narrow) * steps,
            "decay": steps * self.decay_step,
            "decays": self.decay_row * self.decay_row * self.decay_keys if self.has_products else 0,
            "ahead": self.columns if self.rule.by_value else 0,
            "beyond": 1,
        }

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.places["end"]


def chunk_forms(plan: Plan, facts: DeviceFacts, way: str) -> list[ChunkForm] | str:
    """Returns the ways in which a plan's loop can run in chunks on a device, or why there are none."""
    rule = matrix_rule(plan.recurrence.recur)
    if isinstance(rule, str):
        return rule
    if not is_plain(rule.body):
        return "it has products, tables, scans or joined values"
    _, keys, values = rule.sizes
    if refused := without_chunks(keys, values):
        return refused
    if (count := len(rule.reads if rule.by_value else rule.solved)) > MOST_SOLVED:
        return f"{count} values of a step depend on one another"
    assert way in TENSOR_WAYS
    outputs = tuple(plan.recurrence.recur.outputs)
    forms = [
        form
        for steps in STEPS
        for columns in columns_of(values)
        for threads in (THREADS, THREADS // 2)
        for ahead in (False, True)
        if (form := ChunkForm(rule, steps, columns, way, threads, outputs, ahead)).shared <= facts.shared
        and max(columns, form.loaders) <= threads - (LANES if ahead else 0)
        and (form.solved or not ahead)
    ]
    return forms or f"chunks take more than {facts.shared:,} bytes of shared memory"


def columns_of(values: int) -> Sequence[int]:
    """Returns the numbers of a head's values that a block may have, most first."""
    return [values // parts for parts in (1, 2, 4, 8, 16) if values % (parts * FIRST) == 0
            and values // parts <= THREADS]  # fmt: skip


def tiles_together(rows: int, columns: int, warps: int = WARPS, most: int = MOST_TILES) -> tuple[int, int]:
    """Returns the numbers of products of tensor cores, below and beside each other, that a warp computes
    together, so that all warps have some and operands are read seldom. most: beside each other.
    """
    down, across = rows // TILE_ROWS, columns // TILE_COLUMNS
    options = [
        (below, beside)
        for below in (1, 2)
        for beside in range(1, most + 1)
        if down % below == 0 and across % beside == 0 and below * beside <= MOST_TILES
    ]

    def cost(option: tuple[int, int]) -> float:
        """Returns the operands that the busiest warp reads; a left one has twice as many registers."""
        below, beside = option
        tasks = ceil(down // below * (across // beside) / warps)
        return tasks * (2 * below + beside + below * beside / 2)

    return min(options, key=cost)
