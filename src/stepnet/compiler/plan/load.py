"""Estimates of the time of a recurrence, from the bytes and operations of its steps and the machine's rates.

A step of `rows` sequences multiplies rows by parameters. That takes as long as the multiply-adds, or as long
as reading the parameters, or as the operations from a memory to its next value, which wait for each other,
whichever is longest:

    few rows, parameters far away     |== reading ==============|
                                      |== computing ==|
    many rows                         |== reading ==|
                                      |== computing ====================|
    few units                         |== computing ==|
                                      |== operations that wait for each other ==|

Work before and after the loop is done on the rows of many steps at once, so only its computing counts. The
estimates decide how a call runs, and do not affect its results.
"""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from stepnet.compiler.net.ir import Net
from stepnet.compiler.values.records import dataclass


def overlapped(computing: float, reading: float, exponent: float) -> float:
    """Estimates the seconds of work that computes and reads memory at the same time, from the seconds of each
    alone: the longer, and more if both are about equal.

    exponent: the exponent of the norm which combines them, `Machine.overlap`.

    >>> overlapped(1.0, 0.1, 4) < 1.001, 1.1 < overlapped(1.0, 1.0, 4) < 1.2
    (True, True)
    """
    return (computing**exponent + reading**exponent) ** (1 / exponent)


@dataclass(frozen=True)
class Machine:
    """Measured facts of a machine, for one of its threads. Times are in seconds, and rates per second.

    caches: bytes of the caches of the first, second and third level. All cores share the third.
    reads: the rates at which bytes of parameters are read from each of these, and from memory.
    rate: bytes of parameters times rows that are multiplied, in tiles of many rows.
    flops: elementwise operations.
    cycle: the time of a cycle: a quarter of a multiply-add that waits for the one before.
    step: the time of a step besides its work.
    sequence: the time for each sequence besides its steps: to find its place, and to begin and end it.
    barrier: the time until two threads have waited for each other, and read what the other wrote before.
    handover: the time to hand work to a thread that is awake, and to wait for it.
    exchange: bytes that a thread reads which another one has just written, beyond the first cache line, whose
        way is part of a barrier.
    uneven: by how much of its time a thread is late whose part of the work is fixed, because another process
        has some of its processor, or, in a virtual machine, of its core. It is no rate of the machine: it
        is what else runs there, now or later. `stepnet tune`, which leaves out calls that others disturb,
        does not measure it.
    block: the time of a block of a wavefront besides its steps.
    room: the fraction of a cache that parameters may fill without loss.
    lost: the further fraction by which parameters must exceed this until almost all are evicted between
        steps.
    kept: the fraction of the cache with parameters that are never evicted, as the next step reads them first.
    common: the fraction of the third-level cache that threads with sequences of their own share, each of
        which reads all parameters.
    overlap: the exponent of the norm that combines the times of computing and of reading, which overlap.
    lanes: the largest number of sequences that a thread runs at the same time.
    worth: several threads are used if they take less than this fraction of one thread's time, as other
        processes may need the processors.
    block_sizes: the numbers of steps that a block of a wavefront may have. With fewer, layers wait less at
        both ends, but begin more blocks.
    """

    caches: tuple[int, int, int]
    reads: tuple[float, float, float, float]
    rate: float
    flops: float
    cycle: float
    step: float
    sequence: float
    barrier: float
    handover: float
    exchange: float
    uneven: float
    block: float
    room: float
    lost: float
    kept: float
    common: float
    overlap: float
    lanes: int
    worth: float
    block_sizes: tuple[int, ...]

    def places(self, size: float, threads: int = 1, others: float = 0.0, sets: int = 1) -> list[float]:
        """Estimates where a step finds `size` bytes of parameters on this machine: the fraction that is still
        in each cache from the step before, and the fraction in memory.

        threads: so many threads each read as much, of other parameters, and share the cache of the third
            level. others: the bytes of other parameters that the thread reads in between. sets: so many
            threads each read the same parameters, each at another time, as they have sequences of their own.
        """
        third = self.caches[2] / threads * (self.common / sets if sets > 1 else 1.0)
        places, left, between = list[float](), 1.0, size + others
        for level, room in enumerate((*self.caches[:2], third)):
            # If a cache is slightly too small, most parameters are evicted before the next step, as other
            # values need room too. Steps read large parameters forwards and backwards in turn, and find some.
            held = min(1.0, max(0.0, (self.room + self.lost) - between / room) / self.lost)
            held = left * (max(held, min(1.0, self.kept * room / between)) if level and size else held)
            places, left = [*places, held], left - held
        return [*places, left]

    def reading(self, size: float, threads: int = 1, others: float = 0.0, sets: int = 1) -> float:
        """Estimates the seconds that each step takes on this machine to read `size` bytes of parameters, each
        fraction at the rate of the place where it is. threads, others, sets: as for `places`.
        """
        places = self.places(size, threads, others, sets)
        return sum(held * size / rate for held, rate in zip(places, self.reads, strict=True))

    def fetching(self, size: float, others: float, sets: int) -> float:
        """Estimates the seconds in which a block of steps begins to read `size` bytes of parameters from the
        memory of this machine, while nothing is computed. others, sets: as for `places`.
        """
        return self.places(size, 1, others, sets)[-1] * size / self.reads[-1]


@dataclass(frozen=True)
class FiberCosts:
    """Sizes from which it pays to cut the matrices of a step into fibers (`fibers.py`).

    fewest_units: with fewer units than this, vectors run along the reduced axis.
    long: the fiber length from which vectors may run along a fiber instead of across units.
    larger, large: a matrix outside the memories has fibers only if it is more than `larger` times as large as
        the values that it is computed from, and has at least `large` elements.
    """

    fewest_units: int
    long: int
    larger: int
    large: int


@dataclass(frozen=True)
class MatrixSizes:
    """The sizes of a matrix that is a memory.

    keys, values: of a head. reads, writes: the vectors that read it, and that are written to it, at a step.
    has_decay: whether it decays. by_key: whether each key decays by itself.
    """

    keys: int
    values: int
    reads: int
    writes: int
    has_decay: bool
    by_key: bool = False


FitsChunks = Callable[[MatrixSizes], str]
"""A function that returns why a matrix of some sizes is not trained in chunks of steps; "" if it is."""


@dataclass(frozen=True)
class BlockCosts:
    """Costs of training recurrences in blocks of steps (`compiler/grad/blocks.py`).

    sizes: the numbers of steps that a block may have.
    operation: an operation on one number of a matrix, the unit of the other costs.
    small: an operation on one number of a vector.
    byte: a byte of a memory that is saved and read again.
    stream: for each number of a matrix, a sum over the matrix, or a term of it, which does not fit in
        registers.
    streams: the number of sums over a matrix, and of its terms, that fit in registers; a gradient has twice
        as many.
    worth: blocks are used if they cost less than this fraction of single steps.
    chunks: of the kernels that the engine has for chunks of steps, which go before blocks; None for an engine
        without such kernels.
    """

    sizes: tuple[int, ...]
    operation: float
    small: float
    byte: float
    stream: float
    streams: int
    worth: float
    chunks: FitsChunks | None = None


@dataclass(frozen=True)
class CostModel:
    """Costs by which nets are planned for an engine. Each engine gives its own.

    machine: the rates of the processor on which they were measured.
    fibers: the sizes from which matrices are cut into fibers.
    blocks: the costs of training in blocks of steps.
    find_pairs: finds the operations at pairs of steps that run as one part (`FindPairs` of `groups.py`); None
        if each is a part.
    inner: whether one plan runs a step that has sequences of its own. If not, such a step runs part by part.
    chunks: tells why a matrix that is a memory does not run in chunks of steps, for which other memories are
        divided from it; None if none does.
    accumulates: whether sums over steps are added up step by step as their terms are computed; else all steps
        of them are stored, and added up beside each other.
    """

    machine: Machine
    fibers: FiberCosts
    blocks: BlockCosts
    find_pairs: Callable[[Net], Any] | None = None
    inner: bool = True
    chunks: FitsChunks | None = None
    accumulates: bool = True


@dataclass(frozen=True)
class Products:
    """Work of products of rows with parameters, in tiles.

    weights: bytes of the parameters.
    blocks: the number of unit blocks.
    grain: the number of unit blocks that threads share as one.
    costs: the cost of 0, 1, ... rows, in rows of a large tile, up to twice the rows of a large tile. More
        rows have further large tiles.
    claimed_rows: the fewest rows at which threads that share the unit blocks claim some of each other; 0 if
        they never do.
    """

    weights: int
    blocks: int
    grain: int
    costs: tuple[float, ...]
    claimed_rows: int = 0

    def cost(self, rows: float) -> float:
        """Returns the cost of multiplying `rows` rows by the parameters. The unit is the cost of one row in a
        tile, a block of many rows that are multiplied together; few rows cost more than their number.
        """
        count, last = ceil(rows), len(self.costs) - 1
        tile_rows = max(1, last // 2)
        further = tile_rows * max(0, ceil((count - last) / tile_rows))
        return self.costs[count - further] + further

    def largest(self, threads: int) -> int:
        """Returns the largest number of unit blocks (blocks of columns of the product) that one thread
        computes if `threads` threads share them. They are shared in groups of `grain` blocks.
        """
        return min(self.blocks, self.grain * ceil(ceil(self.blocks / self.grain) / threads))

    def seconds(self, rows: float, threads: int, seconds_per_byte: float, machine: Machine) -> float:
        """Estimates the seconds in which several threads multiply `rows` rows by the parameters, of which
        each thread reads its share of columns. seconds_per_byte: the time to read a byte of them. machine:
        the rates of the processor.
        """
        thread_bytes = self.weights * self.largest(threads) / self.blocks
        if not rows:
            return 0.0
        return thread_bytes * overlapped(self.cost(rows) / machine.rate, seconds_per_byte, machine.overlap)


@dataclass(frozen=True)
class StageLoad:
    """Work of a stage of a plan on each row, to estimate its time.

    flops: its elementwise operations.
    waits: the number of barriers between threads that share it.
    blocks: the unit blocks of elementwise work that threads share by unit besides, loop by loop.
    exchanged: the bytes of values of which each thread that shares it computes a part, and reads all, right
        after the others have written theirs.
    """

    products: tuple[Products, ...]
    flops: int
    waits: int
    blocks: tuple[int, ...] = ()
    exchanged: int = 0

    @property
    def is_empty(self) -> bool:
        """Tells whether a stage of a plan has no work."""
        return not (self.products or self.flops or self.waits or self.blocks)

    def is_claimed(self, rows: float) -> bool:
        """Tells whether threads of a stage claim each other's products, so that none waits for a slow one."""
        return bool(self.products) and all(0 < each.claimed_rows <= rows for each in self.products)

    @property
    def weights(self) -> int:
        """The bytes of the parameters of all products with matrices in a stage of a plan."""
        return sum(product.weights for product in self.products)

    def thread_bytes(self, threads: int) -> float:
        """Returns the bytes of parameters that each thread of a shared stage reads."""
        return sum(product.weights * product.largest(threads) / product.blocks for product in self.products)

    def is_divided(self, threads: int) -> bool:
        """Tells whether threads that share a stage have a part of its products each, and not one thread all
        of them.
        """
        return self.thread_bytes(threads) < self.weights

    def waiting(self, rows: float, threads: int, machine: Machine) -> float:
        """Estimates the seconds that threads which claim products of a stage wait for the last block that
        one of them has begun: half of its time. machine: the rates of the processor.
        """
        return sum(
            each.weights / each.blocks * each.cost(rows) / machine.rate / 2
            for each in self.products
            if 0 < each.claimed_rows <= rows and each.largest(threads) < each.blocks
        )

    def seconds(
        self, rows: float, threads: int, machine: Machine, others: float = 0.0, sets: int = 1
    ) -> float:
        """Estimates the seconds that the work of a stage (the work before the loop over steps, one step, or
        the work after) takes for some rows at once, which several threads share. machine: the rates of the
        processor. others: the bytes of other parameters that a thread has read since it read these. sets: the
        number of threads that each do as much, on other rows.
        """
        thread_bytes = self.thread_bytes(threads)
        # The thread with most of the products has as much of the elementwise work on them: all of one block.
        share = thread_bytes / self.weights if self.weights else 1 / threads
        reading = machine.reading(thread_bytes, threads, others, sets) / thread_bytes if thread_bytes else 0.0
        seconds = sum(product.seconds(rows, threads, reading, machine) for product in self.products)
        of_others = self.exchanged * rows * (1 - share)
        return seconds + self.flops * rows * share / machine.flops + of_others / machine.exchange


@dataclass(frozen=True)
class InnerStepWork:
    """Work of a step on each word of a row, that is, on each step of an inner sequence, along one axis.

    stage: the work of which one thread computes all words of a row.
    read: the bytes of the values that are read for a word.
    steps: the work of inner recurrences, whose steps all rows take together and threads share.
    """

    stage: StageLoad
    read: int
    steps: StageLoad

    def seconds(self, rows: float, inner_steps: float, threads: int, machine: Machine) -> float:
        """Estimates the seconds of a step's work on rows with `inner_steps` words (steps of sequences inside
        a step) each, which `threads` threads share. machine: the rates of the processor.

        The rows are the same at each step, so their values are read from the cache that holds all of them.
        """
        thread_rows = ceil(rows / threads)
        reading = machine.reading(thread_rows * inner_steps * self.read)
        computing = thread_rows * self.stage.seconds(inner_steps, 1, machine)
        seconds = overlapped(computing, reading, machine.overlap)
        if self.steps.waits:
            step_seconds = self.steps.seconds(rows, threads, machine) + machine.step
            seconds += inner_steps * (step_seconds + self.steps.waits * machine.barrier * (threads - 1))
        return seconds


class CallSize(NamedTuple):
    """Size of a call: the number of sequences that have steps, the steps of the longest sequence, and the
    steps of all.

    inner_steps: for each axis of inner sequences that a step reads, the mean number of words of a row; () if
    unknown. lengths: the steps of each sequence; () if they are not told apart.
    """

    filled: int
    longest: int
    steps: int
    inner_steps: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """The number of sequences. Sequences without steps count if `lengths` are known."""
        return len(self.lengths) or self.filled


PAUSE_BYTES, PAUSE_ROWS, MOST_PAUSE_BYTES = 600 * 2**20, 8, 2400 * 2**20
"""A call pauses only between blocks of steps. So a block reads at most `PAUSE_BYTES` of parameters. The
parameters of the work outside the loop are read once for a block, so blocks of fewer rows than `PAUSE_ROWS`
read up to `MOST_PAUSE_BYTES`.
"""


def most_block_steps(weights: int, lanes: int) -> int:
    """Returns the most steps of a block of a call, by the time until it pauses. weights: the bytes read at a
    step. lanes: the sequences side by side.
    """
    weights = max(1, weights)
    return max(1, PAUSE_BYTES // weights, min(PAUSE_ROWS // lanes, MOST_PAUSE_BYTES // weights))


NEARLY_TWICE = 1.75
"""The factor from which a step of twice as many rows takes nearly twice as long."""
WORDS = 32
"""The assumed number of words per row where a call's words are not known, as in `explain`."""


@dataclass(frozen=True)
class Load:
    """Work of a recurrence, for estimates of time.

    loop: the work at each step of its loop.
    others: the work for each step besides.
    inner_steps: the work on inner sequences, by axis.
    chain: the cycles of the operations from a memory of a step to its next value, each of which waits for the
        one before; 0 for none.
    """

    loop: StageLoad
    others: StageLoad
    inner_steps: tuple[InnerStepWork, ...] = ()
    chain: int = 0

    @property
    def is_plain(self) -> bool:
        """Tells whether all work is besides the loop over the steps."""
        return self.loop.is_empty and not self.inner_steps

    def step_seconds(self, rows: float, together: int, machine: Machine, sets: int = 1) -> float:
        """Estimates the seconds of a step of some rows, without barriers. `together` threads share it, or
        `sets` threads each do one of their own rows.
        """
        step = self.loop.seconds(rows, together, machine, sets=sets) + machine.step
        return overlapped(step, self.chain * machine.cycle, machine.overlap)

    def fewest_rows(self, together: int, most: int, machine: Machine) -> int:
        """Returns the smallest number of rows, a power of two, for which twice the rows take nearly twice the
        time, so that more rows at once gain little; `most` if no smaller number does.
        """
        times = [self.step_seconds(1 << power, together, machine) for power in range(most.bit_length())]
        pairs = pairwise(times)
        return next((1 << at for at, (one, two) in enumerate(pairs) if two > NEARLY_TWICE * one), most)

    def seconds(self, size: CallSize, sets: int, together: int, machine: Machine, block: int = 0) -> float:
        """Estimates the seconds of a call on `sets` threads with sequences of their own, or `together`
        threads that share each step.

        size: the numbers of sequences and steps of the call. machine: the rates of the processor. block: the
            number of steps that run at a time; 0 for as many as there is room for.

        A thread runs up to `machine.lanes` sequences at the same time, its lanes, and each iteration of the
        loop does one step of each. If there is no work in the loop over steps, each thread has rows of its
        own in either case.
        """
        if not size.steps:
            return 0.0
        threads = max(sets, together)
        if self.is_plain:
            rows = size.steps / threads
            return self.others.seconds(rows, 1, machine) + machine.handover * (threads > 1)
        lanes = min(size.filled, machine.lanes * sets)
        iterations = max(size.longest, size.steps / lanes)
        rows = size.steps / iterations / sets
        seconds = ceil(size.filled / sets) * machine.sequence
        seconds += iterations * self.step_seconds(rows, together, machine, sets)
        counts = size.inner_steps or (WORDS,) * len(self.inner_steps)
        for work, inner_steps in zip(self.inner_steps, counts, strict=True):
            seconds += iterations * work.seconds(rows, inner_steps, together, machine)
        blocks = ceil(iterations / (block or most_block_steps(self.loop.weights, ceil(rows))))
        # Between two blocks, and so at each step of a stream, the parameters of the other stage are read.
        of_loop, of_others = self.loop.thread_bytes(together), self.others.thread_bytes(together)
        block_rows = rows * iterations / blocks
        seconds += blocks * self.others.seconds(block_rows, together, machine, of_loop, sets)
        again = self.loop.seconds(rows, together, machine, of_others, sets)
        seconds += blocks * (again - self.loop.seconds(rows, together, machine, sets=sets))
        if sets > 1:
            fetched = machine.fetching(of_loop, of_others, sets) + machine.fetching(of_others, of_loop, sets)
            seconds += blocks * fetched
        if together > 1:
            seconds += iterations * self.loop.waiting(rows, together, machine)
            seconds += (iterations * self.loop.waits + self.others.waits) * machine.barrier * (together - 1)
        if threads > 1 and not (together > 1 and self.loop.is_claimed(rows)):
            seconds *= 1 + machine.uneven
        return seconds + machine.handover * (threads > 1)
