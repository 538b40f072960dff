"""Writes the kernel of the gradient of the decays of a matrix (`chunked/decay_form.py`)."""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm
from stepnet.compiler.targets.cuda.chunked.form import THREADS
from stepnet.compiler.targets.cuda.chunked.shared_arrays import SharedArrays
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ONE, ZERO, ChunkSide, TileWriter
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.values.records import dataclass

Value = ir.Value
DECAY_WORDS = "target", "offsets", "scratch", "heads", "reverse", "decays", "initial", "last"
"""The first arguments: the result [steps of all sequences, heads]; int64 [sequences + 1], where each begins;
room for dS behind each chunk; the number of heads; 1 if sequences run from their last step; the decays; S
before the first step and dS behind the last one, [sequences, heads, keys, values], 0 for zeros. The others
are the vectors x, then r of the reads, then p, then w of the writes.
"""


def decay_code(form: DecayForm) -> DeviceCode:
    """Writes the kernel."""
    return DecayWriter(form).written()


@dataclass(frozen=True)
class Head:
    """Work of a block. head: of the sequence. first, count: its first entry, and the number of its steps.
    matrix: the place of the head's matrix among those of all sequences. kept: that of its first chunk's dS.
    """

    head: Value
    first: Value
    count: Value
    matrix: Value
    kept: Value


class DecayWriter:
    """Writer of the kernel."""

    def __init__(self, form: DecayForm) -> None:
        """Begins the kernel."""
        self.form = form
        names = [f"{name}{n}" for name, many in self.counts().items() for n in range(many)]
        self.code = PlaceWriter("gradient of decays", [*DECAY_WORDS, *names])
        self.arrays = SharedArrays(self.code, form.places)
        self.tiles = TileWriter(self.code, form.way)

    def counts(self) -> dict[str, int]:
        """Returns how many vectors of each kind a step has."""
        return {"x": self.form.reads, "r": self.form.reads, "p": self.form.writes, "w": self.form.writes}

    # ---- places

    def decay_between(self, first: Value, last: Value) -> Value:
        """Writes the product of the decays of the steps from `first` on, until before step `last`."""
        return self.arrays.read("decays", (last, self.form.steps + 1), (first, 1))

    def row(self, number: int, step: Value) -> Value:
        """Writes the row of a step in the array of vectors number `number`."""
        return self.code.summed(integer(number * self.form.steps), step)

    # ---- the kernel

    def meet(self) -> None:
        """Writes a meeting of all threads."""
        self.code.barrier()

    def written(self) -> DeviceCode:
        """Writes the kernel."""
        code, form = self.code, self.form
        heads, steps = code.word("heads"), integer(form.steps)
        sequence = code.sdiv(code.block_index, heads)
        head = code.sub(code.block_index, code.mul(sequence, heads))
        first, end = (
            code.read_number(code.pointer("offsets"), code.add(sequence, integer(n))) for n in (0, 1)
        )
        chunk = code.add(code.sdiv(first, steps), sequence)
        size = integer(form.keys * form.values)
        kept = code.mul(code.add(code.mul(chunk, heads), head), size)
        own = Head(head, first, code.sub(end, first), code.mul(code.block_index, size), kept)
        chunks = code.sdiv(code.add(own.count, integer(form.steps - 1)), steps)
        self.move_matrix("last", own.matrix)
        with code.loop(integer(0), chunks) as place:
            self.behind(own, code.sub(code.sub(chunks, place), integer(1)))
        self.move_matrix("initial", own.matrix)
        with code.loop(integer(0), chunks) as number:
            self.chunk(own, number)
        return code.finished(THREADS, form.shared)

    def kept_at(self, own: Head, chunk: Value) -> Value:
        """Writes the place of the dS behind a chunk."""
        code, size = self.code, self.form.keys * self.form.values
        return code.add(own.kept, code.mul(code.mul(chunk, code.word("heads")), integer(size)))

    def move_matrix(self, array: str, first: Value, out: bool = False) -> None:
        """Writes loads of the matrix to shared memory, or with `out` stores of it. first: its place in an
        array.
        """
        code, form = self.code, self.form
        with code.over_threads(form.keys * form.values) as index:
            key, value = code.divided(index, form.values)
            there, here = code.add(first, index), ((key, form.value_row), (value, 1))
            if out:
                code.write_element(DTYPE, self.arrays.read("matrix", *here), code.pointer(array), there)
            else:

                def read(there: Value = there) -> list[Value]:
                    """Writes a load of the element that is given."""
                    return [code.read_element(DTYPE, code.pointer(array), there)]

                is_given = code.icmp_signed("!=", code.word(array), integer(0))
                self.arrays.write(code.either(is_given, read, [ZERO])[0], "matrix", *here)

    def entry(self, own: Head, step: Value) -> Value:
        """Writes the entry of a step of the sequence, in the order in which it runs."""
        code = self.code
        back = code.sub(code.sub(own.count, integer(1)), step)
        is_back = code.icmp_signed("!=", code.word("reverse"), integer(0))
        return code.add(own.first, code.select(is_back, back, step))

    def load(self, own: Head, chunk: Value, names: str) -> None:
        """Writes loads of the vectors of a chunk, 0 behind the last step, and the products of its decays, for
        which the threads meet once more.
        """
        code, form = self.code, self.form
        begin = code.mul(chunk, integer(form.steps))

        def place(step: Value) -> tuple[Value, Value]:
            """Writes whether there is a step of the chunk, and its number among those of all heads."""
            at = code.add(begin, step)
            is_real = code.icmp_signed("<", at, own.count)
            entry = self.entry(own, code.smaller(at, code.sub(own.count, integer(1))))
            return is_real, code.add(code.mul(entry, code.word("heads")), own.head)

        for name in names:
            width, row = (form.keys, form.key_row) if name in "xp" else (form.values, form.value_row)
            for number in range(self.counts()[name]):
                with code.over_threads(form.steps * width) as index:
                    step, feature = code.divided(index, width)
                    is_real, there = place(step)
                    at = code.add(code.multiplied(there, width), feature)
                    value = code.read_element(DTYPE, code.pointer(f"{name}{number}"), at)
                    value = code.select(is_real, value, ZERO)
                    self.arrays.write(value, name, (self.row(number, step), row), (feature, 1))
        with code.over_threads(form.steps) as step:
            is_real, there = place(step)
            value = code.read_element(DTYPE, code.pointer("decays"), there)
            self.arrays.write(code.select(is_real, value, ONE), "decay", (step, 1))
        self.meet()
        with code.over_threads(form.steps + 1) as first:

            def turn(step: Value, product: list[Value]) -> list[Value]:
                """Writes the product until before a step, and takes the decay of the step into it."""
                self.arrays.write(product[0], "decays", (step, form.steps + 1), (first, 1))
                decay = self.arrays.read("decay", (code.smaller(step, integer(form.steps - 1)), 1))
                is_later = code.icmp_signed(">=", step, first)
                return [code.select(is_later, code.fmul(product[0], decay), product[0])]

            code.carry(0, form.steps + 1, [ONE], turn)

    def behind(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the first pass: keeps dS behind it, and makes that ahead of it."""
        self.move_matrix("scratch", self.kept_at(own, chunk), out=True)
        self.load(own, chunk, "xr")
        self.meet()
        self.change("x", "r", is_back=True)
        self.meet()

    def chunk(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the second pass."""
        code, form = self.code, self.form
        self.load(own, chunk, "xrpw")
        self.multiply_pairs()
        self.multiply_ends(self.kept_at(own, chunk))
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
            at = code.add(code.mul(chunk, integer(form.steps)), step)
            with code.when(code.icmp_signed("<", at, own.count)):
                there = code.add(code.mul(self.entry(own, at), code.word("heads")), own.head)
                code.write_element(DTYPE, total, code.pointer("target"), there)

    def change(self, left: str, right: str, is_back: bool) -> None:
        """Writes the matrix at the other end of the chunk: decayed, with all outer products added to it.

        is_back: whether that is ahead of the chunk, and not behind it.
        """
        code, form = self.code, self.form
        steps = integer(form.steps)

        def scale(k: Value) -> Value:
            """Writes the decay between a step and the end."""
            step = code.divided(k, form.steps)[1]
            if is_back:
                return self.decay_between(integer(0), step)
            return self.decay_between(code.add(step, integer(1)), steps)

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the vectors of keys, and those of values."""
            a, b = self.arrays.at(left, (row, 1)), self.arrays.at(right, (column, 1))
            return ChunkSide(a, 4, 4 * form.key_row, scale), ChunkSide(b, 4, 4 * form.value_row)

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes an element of the matrix."""
            at = (row, form.value_row), (column, 1)
            before = code.fmul(self.arrays.read("matrix", *at), self.decay_between(integer(0), steps))
            self.arrays.write(code.fadd(before, value), "matrix", *at)

        self.tiles.write(form.keys, form.values, self.counts()[left] * form.steps, sides, store)

    def multiply_pairs(self) -> None:
        """Writes N of all pairs of steps. The same thread has both products of a pair."""
        code, form = self.code, self.form
        for read in range(form.reads):
            for write in range(form.writes):

                def sides(
                    row: Value,
                    column: Value,
                    a: str,
                    b: str,
                    width: int,
                    read: int = read,
                    write: int = write,
                ) -> tuple[ChunkSide, ChunkSide]:
                    """Writes vectors of reads, and of writes."""
                    left = self.arrays.at(a, (self.row(read, row), width))
                    right = self.arrays.at(b, (self.row(write, column), width))
                    return ChunkSide(left, 4 * width, 4), ChunkSide(right, 4 * width, 4)

                def of_keys(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
                    """Writes vectors of keys."""
                    return sides(row, column, "x", "p", form.key_row)

                def of_values(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
                    """Writes vectors of values."""
                    return sides(row, column, "r", "w", form.value_row)

                def keep(row: Value, column: Value, value: Value) -> None:
                    """Writes the store of a product of keys."""
                    self.arrays.write(value, "products", (row, form.pair_row), (column, 1))

                def store(
                    row: Value, column: Value, value: Value, is_first: bool = read + write == 0
                ) -> None:
                    """Writes the store of N, or the addition to it."""
                    at = (row, form.pair_row), (code.add(column, integer(1)), 1)
                    made = code.fmul(value, self.arrays.read("products", (row, form.pair_row), (column, 1)))
                    self.arrays.write(
                        made if is_first else code.fadd(self.arrays.read("pairs", *at), made), "pairs", *at
                    )

                self.tiles.write(form.steps, form.steps, form.keys, of_keys, keep)
                self.tiles.write(form.steps, form.steps, form.values, of_values, store)

    def multiply_ends(self, kept: Value) -> None:
        """Writes the terms of N(u, -1), N(C, s) and N(C, -1), for each key.

        kept: the place of dS behind the chunk, in `scratch`.
        """
        code, form = self.code, self.form
        after = code.element(DTYPE, code.pointer("scratch"), kept)
        first = self.arrays.at("matrix")
        ends = ("r", first, form.value_row, "x", "ahead"), ("w", after, form.values, "p", "behind")
        for values, matrix, width, keys, target in ends:
            for number in range(self.counts()[keys]):

                def sides(
                    row: Value,
                    column: Value,
                    a: str = values,
                    b: Value = matrix,
                    width: int = width,
                    number: int = number,
                ) -> tuple[ChunkSide, ChunkSide]:
                    """Writes vectors of values, and the matrix."""
                    left = self.arrays.at(a, (self.row(number, row), form.value_row))
                    right = code.at(b, code.multiplied(column, 4 * width))
                    return ChunkSide(left, 4 * form.value_row, 4), ChunkSide(right, 4 * width, 4)

                def store(
                    row: Value,
                    column: Value,
                    value: Value,
                    a: str = keys,
                    to: str = target,
                    number: int = number,
                ) -> None:
                    """Writes a term, or the addition to it."""
                    at = (row, form.key_row), (column, 1)
                    factor = self.arrays.read(a, (self.row(number, row), form.key_row), (column, 1))
                    made = code.fmul(value, factor)
                    self.arrays.write(code.fadd(self.arrays.read(to, *at), made) if number else made, to, *at)

                self.tiles.write(form.steps, form.keys, form.values, sides, store)
        with code.over_threads(form.keys) as key:

            def add(value: Value, total: list[Value]) -> list[Value]:
                """Writes the sum over values of both matrices' products."""
                at = code.add(code.multiplied(key, form.values), value)
                own = self.arrays.read("matrix", (key, form.value_row), (value, 1))
                return [code.fused(own, code.read_element(DTYPE, after, at), total[0])]

            (total,) = code.carry(0, form.values, [ZERO], add)
            self.arrays.write(total, "ahead", (integer(form.steps), form.key_row), (key, 1))

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
