"""Writes the kernel of the gradients of a matrix whose heads decay (`chunked/decay_form.py`)."""

from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm
from stepnet.compiler.targets.cuda.chunked.decay_parts import DecayPartWriter, Head
from stepnet.compiler.targets.cuda.chunked.decays_of_keys import KeyDecayWriter
from stepnet.compiler.targets.cuda.chunked.form import THREADS
from stepnet.compiler.targets.cuda.chunked.moves import multiply_decays
from stepnet.compiler.targets.cuda.chunked.tiles import (
    DTYPE,
    ONE,
    ZERO,
    ChunkSide,
    Scale,
    Store,
    TileTerm,
    are_within,
)
from stepnet.compiler.targets.cuda.device import DeviceCode

Value = ir.Value


def not_yet(row: Value, column: Value, value: Value) -> None:
    """Writes nothing: other terms are added to the value."""


def decay_code(form: DecayForm) -> DeviceCode:
    """Writes the kernel."""
    return (KeyDecayWriter if form.by_key else DecayWriter)(form).written()


class DecayWriter(DecayPartWriter):
    """Writer of the kernel for decays of heads.

    within: whether all numbers of keys of a chunk are finite. half: which note is that of the chunk.
    """

    within: Value | None = None
    half: Value = integer(0)

    def decay_between(self, first: Value, last: Value) -> Value:
        """Writes the product of the decays of the steps from `first` on, until before step `last`."""
        return self.arrays.read("decays", (last, self.form.steps + 1), (first, 1))

    def take_decays(self) -> None:
        """Writes the products of the decays of a chunk."""
        steps, code = self.form.steps, self.code
        multiply_decays(code, self.arrays, steps, steps + 1, code.thread, THREADS)

    def scale_of_step(self, is_back: bool) -> Scale:
        """Returns the writer of the decays between a step and the end, or with `is_back` the beginning."""

        def scale(_: Value, k: Value) -> Value:
            """Writes the decay."""
            step = self.code.divided(k, self.form.steps)[1]
            if is_back:
                return self.decay_between(integer(0), step)
            return self.decay_between(self.code.add(step, integer(1)), integer(self.form.steps))

        return scale

    def whole_decay(self, key: Value) -> Value:
        """Writes the product of the decays of all steps of a chunk."""
        return self.decay_between(integer(0), integer(self.form.steps))

    def load(self, own: Head, chunk: Value, names: str) -> None:
        """Writes loads of a chunk; in the second pass also a note if a number of keys is NaN, infinite or
        close to it, for products with 0.
        """
        code = self.code
        self.within, self.half = None, code.and_(chunk, integer(1))
        super().load(own, chunk, names)
        if "p" in names:
            assert self.within is not None
            self.arrays.write(ZERO, "beyond", (code.sub(integer(1), self.half), 1))
            with code.when(code.not_(self.within)):
                self.arrays.write(ONE, "beyond", (self.half, 1))

    def number_of(
        self, array: str, width: int, behind: Value, feature: Value, at: tuple[Value, Value]
    ) -> Value:
        """Writes a load of a number of a vector, or of a decay; `behind` behind the last step."""
        value = super().number_of(array, width, behind, feature, at)
        if array[0] in "xp":
            is_within = are_within(self.code, [value])
            self.within = is_within if self.within is None else self.code.and_(self.within, is_within)
        return value

    def chunk(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the second pass."""
        code, form = self.code, self.form
        self.load(own, chunk, "xrpw")
        self.fetch(own, code.add(chunk, integer(1)), "xrpw")
        self.meet()
        self.take_decays()
        self.multiply_keys()
        self.meet()
        self.multiply_pairs()
        self.meet()
        self.multiply_vectors(own, chunk)
        self.meet()
        self.sum_ends()
        self.change("p", "w", is_back=False)
        self.meet()
        self.between()
        self.meet()
        with code.over_threads(form.steps) as step:

            def add(behind: Value, total: list[Value]) -> list[Value]:
                """Writes the sum with the terms of a step that is read behind."""
                is_behind = code.icmp_signed(">", behind, step)
                own = self.arrays.read("pairs", (behind, form.pair_row), (code.add(step, integer(1)), 1))
                return [code.fadd(total[0], code.select(is_behind, own, ZERO))]

            (total,) = code.carry(0, form.steps + 1, [ZERO], add)
            is_real, there = self.result_at(own, chunk, step)
            with code.when(is_real):
                vectors = code.mul(code.word("heads"), integer((form.reads + form.writes) * form.keys))
                there = code.add(code.add(there, vectors), own.head)
                code.write_element(DTYPE, total, code.pointer("target"), there)

    # ---- products of vectors

    def inner_at(
        self, read: int, write: int, earlier: Value, later: Value
    ) -> tuple[tuple[Value, int], tuple[Value, int]]:
        """Writes the place of an inner product of a read and a write."""
        row = integer((read * self.form.writes + write) * self.form.steps)
        return (self.code.summed(row, earlier), self.form.inner_row), (later, 1)

    def multiply_keys(self) -> None:
        """Writes the products of vectors of keys of all pairs of steps."""
        form = self.form
        for read, write in product(range(form.reads), range(form.writes)):

            def keep(row: Value, column: Value, value: Value, read: int = read, write: int = write) -> None:
                """Writes the store of a product."""
                self.arrays.write(value, "inner", *self.inner_at(read, write, column, row))

            sides = partial(self.pair_sides, "x", "p", form.key_row, (read, write))
            self.tiles.write(form.steps, form.steps, form.keys, sides, keep, follows=True)

    def multiply_pairs(self) -> None:
        """Writes N of all pairs of steps, and the inner products of vectors of values, decayed. The same
        thread has all terms of a pair.
        """
        code, form = self.code, self.form
        for read, write in product(range(form.reads), range(form.writes)):

            def store(row: Value, column: Value, value: Value, read: int = read, write: int = write) -> None:
                """Writes the store of N, or the addition to it, and of an inner product, or 0."""
                at, behind = self.inner_at(read, write, column, row), code.add(column, integer(1))
                place = (row, form.pair_row), (behind, 1)
                made = code.fmul(value, self.arrays.read("inner", *at))
                is_first = read == write == 0
                self.arrays.write(
                    made if is_first else code.fadd(self.arrays.read("pairs", *place), made), "pairs", *place
                )
                decayed = code.fmul(value, self.decay_between(behind, row))
                is_later = code.icmp_signed(">", row, column)
                self.arrays.write(code.select(is_later, decayed, ZERO), "inner", *at)

            sides = partial(self.pair_sides, "r", "w", form.value_row, (read, write))
            self.tiles.write(form.steps, form.steps, form.values, sides, store)

    def multiply_vectors(self, own: Head, chunk: Value) -> None:
        """Writes the gradients of the vectors to their array; and the terms of N(u, -1), N(C, s) and
        N(C, -1), for each key.

        Products take later steps, or earlier ones, times 0. Where a number of keys is NaN, a thread adds up
        those that are meant.
        """
        code, form = self.code, self.form
        kept = self.kept_at(own, chunk)
        is_beyond = code.fcmp_unordered("!=", self.arrays.read("beyond", (self.half, 1)), ZERO)
        depth = code.select(is_beyond, integer(0), integer(form.steps))
        counts = form.reads, form.writes
        for of_writes, number in [(kind, n) for kind in (False, True) for n in range(counts[kind])]:

            def ended(row: Value, column: Value, value: Value,
                      of_writes: bool = of_writes, number: int = number) -> Value:  # fmt: skip
                """Writes a term of N, or the addition to it; returns the term of the gradient, decayed."""
                name, to = ("p", "behind") if of_writes else ("x", "ahead")
                at = (row, form.key_row), (column, 1)
                factor = self.arrays.read(name, (self.row(number, row), form.key_row), (column, 1))
                made = code.fmul(value, factor)
                self.arrays.write(code.fadd(self.arrays.read(to, *at), made) if number else made, to, *at)
                first, last = (integer(0), row)
                if of_writes:
                    first, last = code.add(row, integer(1)), integer(form.steps)
                return code.fmul(value, self.decay_between(first, last))

            def shown(row: Value, column: Value, value: Value,
                      of_writes: bool = of_writes, number: int = number) -> None:  # fmt: skip
                """Writes a number of a gradient to its array."""

                def one_by_one() -> list[Value]:
                    """Writes the addition of all terms that are meant."""
                    return [self.added(of_writes, number, row, column, value)]

                (whole,) = code.either(is_beyond, one_by_one, [value])
                place = form.reads + number if of_writes else number
                self.keep_result(own, chunk, row, place, column, whole)

            count = counts[not of_writes]
            stores: list[Store] = [*[not_yet] * (count - 1), shown]
            others = [self.inner_term(of_writes, number, n, depth, stores[n]) for n in range(count)]
            self.tiles.write_terms(
                form.steps, form.keys, [self.end_term(of_writes, number, kept, ended), *others]
            )
        self.multiply_both(kept, form.steps)

    def inner_term(self, of_writes: bool, number: int, other: int, depth: Value, store: Store) -> TileTerm:
        """Writes the inner products of a read, or of a write, and those of the other kind, times the others'
        vectors of keys.
        """
        form = self.form
        read, write = (other, number) if of_writes else (number, other)

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes inner products, and vectors."""
            steps = (row, integer(0)) if of_writes else (integer(0), row)
            left = self.arrays.at("inner", *self.inner_at(read, write, *steps))
            here = self.row(other, integer(0)), form.key_row
            right = self.arrays.at("x" if of_writes else "p", here, (column, 1))
            strides = (4 * form.inner_row, 4) if of_writes else (4, 4 * form.inner_row)
            return ChunkSide(left, *strides), ChunkSide(right, 4, 4 * form.key_row)

        return TileTerm(depth, sides, store)

    def added(self, of_writes: bool, number: int, step: Value, key: Value, first: Value) -> Value:
        """Writes a gradient at a step and a key as its first term and those of all later steps, of a write,
        or all earlier ones, of a read.
        """
        code, form = self.code, self.form
        start, stop = integer(0), step
        if of_writes:
            start, stop = code.add(step, integer(1)), integer(form.steps)

        def add(further: Value, total: list[Value]) -> list[Value]:
            """Writes the addition of the terms of a step."""
            there = code.add(start, further)
            for other in range(form.reads if of_writes else form.writes):
                read, write = (other, number) if of_writes else (number, other)
                steps = (step, there) if of_writes else (there, step)
                inner = self.arrays.read("inner", *self.inner_at(read, write, *steps))
                at = (self.row(other, there), form.key_row), (key, 1)
                total = [code.fused(inner, self.arrays.read("x" if of_writes else "p", *at), total[0])]
            return total

        return code.carry(0, code.sub(stop, start), [first], add, turns=1)[0]

    def sum_ends(self) -> None:
        """Writes N(u, -1), N(C, s) and N(C, -1): a thread has one, which it sums over keys."""
        code, form = self.code, self.form
        last = integer(form.steps)

        def total(array: str, row: Value) -> Value:
            """Writes the sum of a row."""

            def add(key: Value, sums: list[Value]) -> list[Value]:
                """Writes the sum with a term."""
                return [code.fadd(sums[0], self.arrays.read(array, (row, form.key_row), (key, 1)))]

            return code.carry(0, form.keys, [ZERO], add)[0]

        with code.over_threads(2 * form.steps + 1) as number:
            is_ahead = code.icmp_signed("<=", number, last)
            with code.when(is_ahead):
                self.arrays.write(total("ahead", number), "pairs", (number, form.pair_row))
            with code.when(code.not_(is_ahead)):
                step = code.sub(number, integer(form.steps + 1))
                column = code.add(step, integer(1))
                self.arrays.write(total("behind", step), "pairs", (last, form.pair_row), (column, 1))

    def between(self) -> None:
        """Writes over N the terms of the gradients of all decays: a thread has what is read at one place, and
        goes over the decays before it, with the sum of what was written before each.
        """
        code, form = self.code, self.form
        with code.over_threads(form.steps + 1) as behind:

            def turn(step: Value, sums: list[Value]) -> list[Value]:
                """Writes the term of a decay, and takes what its step writes into the sum."""
                at = (behind, form.pair_row), (code.add(step, integer(1)), 1)
                written = self.arrays.read("pairs", *at)
                decayed = self.decay_between(code.add(step, integer(1)), behind)
                self.arrays.write(code.fmul(decayed, sums[0]), "pairs", *at)
                return [code.fused(self.arrays.read("decay", (step, 1)), sums[0], written)]

            code.carry(0, behind, [self.arrays.read("pairs", (behind, form.pair_row))], turn)
