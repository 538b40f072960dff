"""Writes the parts that all kernels of gradients of a matrix have (`chunked/decay_form.py`): loads, both
matrices of a chunk, their products with vectors, and stores.
"""

from functools import partial

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer, load_vector
from stepnet.compiler.targets.cuda.chunked.decay_form import ALIGNED, DecayForm
from stepnet.compiler.targets.cuda.chunked.form import THREADS
from stepnet.compiler.targets.cuda.chunked.moves import TOGETHER, ChunkMoves
from stepnet.compiler.targets.cuda.chunked.shared_arrays import SharedArrays
from stepnet.compiler.targets.cuda.chunked.tiles import (
    DTYPE,
    ONE,
    ZERO,
    ChunkSide,
    Scale,
    Store,
    TileTerm,
    TileWriter,
)
from stepnet.compiler.targets.cuda.device import LANES, DeviceCode
from stepnet.compiler.targets.cuda.entries.places import PlaceWriter
from stepnet.compiler.targets.cuda.functions import FOUR
from stepnet.compiler.values.records import dataclass

Value = ir.Value
LINE = 32
"""The numbers of a line of the second cache."""
DECAY_WORDS = "target", "offsets", "scratch", "heads", "reverse", "decays", "initial", "last"
"""The first arguments: the result [steps of all sequences, gradients]; int64 [sequences + 1], where each of
these begins; room for dS behind each chunk; the number of heads; 1 if sequences run from their last step; the
decays; S before the first step and dS behind the last one, [sequences, heads, keys, values], 0 for zeros. The
others are the vectors x, then r of the reads, then p, then w of the writes.
"""


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


class DecayPartWriter:
    """Writer of the common parts. The classes for decays of heads and of keys have the others."""

    def __init__(self, form: DecayForm) -> None:
        """Begins the kernel."""
        self.form = form
        names = [f"{name}{n}" for name, many in self.counts().items() for n in range(many)]
        self.code = PlaceWriter("gradients of a matrix", [*DECAY_WORDS, *names])
        self.arrays = SharedArrays(self.code, form.places)
        self.tiles = TileWriter(self.code, form.way, is_anew=True)

    def counts(self) -> dict[str, int]:
        """Returns the number of vectors of each kind in a step."""
        return {"x": self.form.reads, "r": self.form.reads, "p": self.form.writes, "w": self.form.writes}

    # ---- what differs

    def take_decays(self) -> None:
        """Writes the products of a chunk's decays that the change of a matrix needs."""
        raise NotImplementedError

    def scale_of_step(self, is_back: bool) -> Scale | None:
        """Returns the writer of the decays between a step and the end of the chunk to which it changes the
        matrix, or with `is_back` its beginning; None where vectors have them.
        """
        raise NotImplementedError

    def whole_decay(self, key: Value) -> Value:
        """Writes the product of the decays of all steps of a chunk."""
        raise NotImplementedError

    def chunk(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the second pass."""
        raise NotImplementedError

    # ---- places

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
        self.begin_matrix("last", own.matrix)
        self.meet()
        with code.loop(integer(0), chunks) as place:
            self.behind(own, code.sub(code.sub(chunks, place), integer(1)))
        self.begin_matrix("initial", own.matrix)
        with code.loop(integer(0), chunks) as number:
            self.chunk(own, number)
        return code.finished(THREADS, form.shared)

    def kept_at(self, own: Head, chunk: Value) -> Value:
        """Writes the place of the dS behind a chunk."""
        code, size = self.code, self.form.keys * self.form.values
        return code.add(own.kept, code.mul(code.mul(chunk, code.word("heads")), integer(size)))

    def begin_matrix(self, array: str, first: Value) -> None:
        """Writes loads of the matrix to shared memory; 0 if it is not given. first: its place in an array."""
        code, form = self.code, self.form
        with code.over_threads(form.keys * form.values) as index:
            key, value = code.divided(index, form.values)

            def read() -> list[Value]:
                """Writes a load of the element that is given."""
                return [code.read_element(DTYPE, code.pointer(array), code.add(first, index))]

            is_given = code.icmp_signed("!=", code.word(array), integer(0))
            element = code.either(is_given, read, [ZERO])[0]
            self.arrays.write(element, "matrix", (key, form.value_row), (value, 1))

    def keep_matrix(self, first: Value) -> None:
        """Writes stores of the matrix to `scratch`. first: its place there."""
        code, form = self.code, self.form
        with code.over_threads(form.keys * form.values // TOGETHER) as piece:
            key, part = code.divided(piece, form.values // TOGETHER)
            at = self.arrays.at("matrix", (key, form.value_row), (part, TOGETHER))
            there = code.add(first, code.multiplied(piece, TOGETHER))
            code.write(
                code.read(FOUR, at, ALIGNED), code.element(DTYPE, code.pointer("scratch"), there), ALIGNED
            )

    def entry(self, own: Head, step: Value) -> Value:
        """Writes the entry of a step of the sequence, in the order in which it runs."""
        code = self.code
        back = code.sub(code.sub(own.count, integer(1)), step)
        is_back = code.icmp_signed("!=", code.word("reverse"), integer(0))
        return code.add(own.first, code.select(is_back, back, step))

    def load(self, own: Head, chunk: Value, names: str) -> None:
        """Writes loads of the vectors of a chunk, 0 behind the last step, and of its decays."""
        code, form = self.code, self.form
        begin = code.mul(chunk, integer(form.steps))

        def place(step: Value) -> tuple[Value, Value]:
            """Writes whether there is a step of the chunk, and its number among those of all heads."""
            at = code.add(begin, step)
            is_real = code.icmp_signed("<", at, own.count)
            entry = self.entry(own, code.smaller(at, code.sub(own.count, integer(1))))
            return is_real, code.add(code.mul(entry, code.word("heads")), own.head)

        moves = ChunkMoves(code, self.arrays, THREADS, place)
        for name in names:
            width, row = (form.keys, form.key_row) if name in "xp" else (form.values, form.value_row)
            for number in range(self.counts()[name]):
                element = partial(self.number_of, f"{name}{number}", width, ZERO)
                moves.read(form.steps, width, name, number * form.steps, row, element)
        if form.by_key:
            element = partial(self.number_of, "decays", form.keys, ONE)
            moves.read(form.steps, form.keys, "decay", 0, form.keys, element)
        else:
            with code.over_threads(form.steps) as step:
                decay = self.number_of("decays", 1, ONE, integer(0), place(step))
                self.arrays.write(decay, "decay", (step, 1))
        if form.has_after and "p" in names:
            kept = self.kept_at(own, chunk)
            of_matrix = ChunkMoves(code, self.arrays, THREADS, lambda key: key)

            def of_after(value: Value, key: Value) -> Value:
                """Writes a load of a number of dS."""
                at = code.summed(code.multiplied(key, form.values), value)
                place = code.element(DTYPE, code.pointer("scratch"), code.add(kept, at))
                return load_vector(code, DTYPE, 1, place, code.alignment(value, 4, ALIGNED))

            of_matrix.read(form.keys, form.values, "after", 0, form.value_row, of_after)
            of_matrix.write()
        moves.write()

    def fetch(self, own: Head, chunk: Value, names: str) -> None:
        """Writes that the vectors of another chunk, if there is one, come into the second cache; and dS if
        those of the writes are among them. Each warp has an array.
        """
        code, form = self.code, self.form
        warp, lane = code.divided(code.thread, LANES)
        begin = code.mul(chunk, integer(form.steps))
        arrays = [(f"{name}{n}", form.keys if name in "xp" else form.values)
                  for name in names for n in range(self.counts()[name])]  # fmt: skip
        arrays += [("decays", form.keys)] if form.by_key else []

        def bring(array: str, first: Value) -> None:
            """Writes the instruction for a number of an array."""
            code.function_call("prefetch", ir.VoidType(), [code.element(DTYPE, code.pointer(array), first)])

        for number, (array, width) in enumerate(arrays):
            pieces = -(-width // LINE)
            with (
                code.when(code.icmp_signed("==", warp, integer(number))),
                code.loop(lane, integer(form.steps * pieces), LANES) as index,
            ):
                step, piece = code.divided(index, pieces)
                at = code.add(begin, step)
                is_real = code.and_(
                    code.icmp_signed("<", at, own.count), code.icmp_signed(">=", at, integer(0))
                )
                with code.when(is_real):
                    there = code.add(code.mul(self.entry(own, at), code.word("heads")), own.head)
                    bring(array, code.add(code.multiplied(there, width), code.multiplied(piece, LINE)))
        is_real = code.icmp_signed("<", begin, own.count)
        if "p" in names:
            with code.when(is_real), code.over_threads(form.keys * form.values // LINE) as line:
                bring("scratch", code.add(self.kept_at(own, chunk), code.multiplied(line, LINE)))

    def number_of(
        self, array: str, width: int, behind: Value, feature: Value, at: tuple[Value, Value]
    ) -> Value:
        """Writes a load of a number of a vector, or of a decay; `behind` behind the last step."""
        code, (is_real, there) = self.code, at
        place = code.element(DTYPE, code.pointer(array), code.summed(code.multiplied(there, width), feature))
        aligned = code.alignment(feature, 4, ALIGNED) if width > 1 else 4
        return code.select(is_real, load_vector(code, DTYPE, 1, place, aligned), behind)

    def behind(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the first pass: keeps dS behind it, and makes that ahead of it."""
        self.keep_matrix(self.kept_at(own, chunk))
        self.load(own, chunk, "xr")
        self.fetch(own, self.code.sub(chunk, integer(1)), "xr")
        self.meet()
        self.take_decays()
        self.meet()
        self.change("x", "r", is_back=True)
        self.meet()

    def change(self, left: str, right: str, is_back: bool) -> None:
        """Writes the matrix at the other end of the chunk: decayed, with all outer products added to it.

        is_back: whether that is ahead of the chunk, and not behind it.
        """
        code, form = self.code, self.form

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes the vectors of keys, and those of values."""
            a, b = self.arrays.at(left, (row, 1)), self.arrays.at(right, (column, 1))
            return ChunkSide(a, 4, 4 * form.key_row, self.scale_of_step(is_back)), ChunkSide(
                b, 4, 4 * form.value_row
            )

        def store(row: Value, column: Value, value: Value) -> None:
            """Writes an element of the matrix."""
            at = (row, form.value_row), (column, 1)
            before = code.fmul(self.arrays.read("matrix", *at), self.whole_decay(row))
            self.arrays.write(code.fadd(before, value), "matrix", *at)

        self.tiles.write(form.keys, form.values, self.counts()[left] * form.steps, sides, store)

    def pair_sides(
        self, a: str, b: str, width: int, numbers: tuple[int, int], row: Value, column: Value
    ) -> tuple[ChunkSide, ChunkSide]:
        """Writes the sides of products of vectors of reads, and of writes, whose numbers are given."""
        left = self.arrays.at(a, (self.row(numbers[0], row), width))
        right = self.arrays.at(b, (self.row(numbers[1], column), width))
        return ChunkSide(left, 4 * width, 4), ChunkSide(right, 4 * width, 4)

    def end_term(self, of_writes: bool, number: int, kept: Value, store: Store) -> TileTerm:
        """Writes the products of vectors of values with the matrix at an end of the chunk: of a read with S
        ahead of it; of a write with dS behind it, which lies at `kept` in `scratch`.
        """
        code, form = self.code, self.form
        name, width = ("w" if of_writes else "r"), form.value_row
        matrix = self.arrays.at("after" if of_writes else "matrix")
        if of_writes and not form.has_after:
            matrix, width = self.behind_matrix(kept), form.values

        def sides(row: Value, column: Value) -> tuple[ChunkSide, ChunkSide]:
            """Writes vectors of values, and the matrix."""
            left = self.arrays.at(name, (self.row(number, row), form.value_row))
            right = code.at(matrix, code.multiplied(column, 4 * width))
            return ChunkSide(left, 4 * form.value_row, 4), ChunkSide(right, 4 * width, 4)

        return TileTerm(form.values, sides, store)

    def behind_matrix(self, kept: Value) -> Value:
        """Writes the address of dS behind a chunk."""
        return self.code.element(DTYPE, self.code.pointer("scratch"), kept)

    def multiply_both(self, kept: Value, row: int) -> None:
        """Writes the sums over values of both matrices' products, for each key: a row of `ahead`."""
        code, form = self.code, self.form
        after = self.behind_matrix(kept)
        with code.over_threads(form.keys) as key:

            def add(value: Value, total: list[Value]) -> list[Value]:
                """Writes the sum over values of both matrices' products."""
                at = (key, form.value_row), (value, 1)
                if form.has_after:
                    other = self.arrays.read("after", *at)
                else:
                    there = code.add(code.multiplied(key, form.values), value)
                    other = code.read_element(DTYPE, after, there)
                return [code.fused(self.arrays.read("matrix", *at), other, total[0])]

            (total,) = code.carry(0, form.values, [ZERO], add)
            self.arrays.write(total, "ahead", (integer(row), form.key_row), (key, 1))

    def result_at(self, own: Head, chunk: Value, step: Value) -> tuple[Value, Value]:
        """Writes whether there is a step of a chunk, and the place of its entry in the result."""
        code, form = self.code, self.form
        at = code.add(code.mul(chunk, integer(form.steps)), step)
        there = code.mul(self.entry(own, at), code.word("heads"))
        return code.icmp_signed("<", at, own.count), code.multiplied(there, form.gradients)

    def keep_result(self, own: Head, chunk: Value, step: Value, place: int, key: Value, value: Value) -> None:
        """Writes the store of a number of a result of keys at a step. place: of the result among all."""
        code, keys = self.code, self.form.keys
        is_real, there = self.result_at(own, chunk, step)
        with code.when(is_real):
            first = code.mul(code.word("heads"), integer(place * keys))
            index = code.add(code.add(there, first), code.add(code.multiplied(own.head, keys), key))
            code.write_element(DTYPE, value, code.pointer("target"), index)
