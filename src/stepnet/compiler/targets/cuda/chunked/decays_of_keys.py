"""Writes the kernel of the gradients of a matrix whose keys decay by themselves
(`chunked/decay_form.py`).
"""

from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I64, integer
from stepnet.compiler.targets.cuda.chunked.decay_parts import DecayPartWriter, Head
from stepnet.compiler.targets.cuda.chunked.tiles import ONE

Value = ir.Value


class KeyDecayWriter(DecayPartWriter):
    """Writer of the kernel for decays of keys."""

    def take_decays(self) -> None:
        """Writes the vectors of reads decayed, of the steps before each."""
        with self.code.over_threads(self.form.keys) as key:
            self.scale("x", key, range(self.form.steps))

    def scale_of_step(self, is_back: bool) -> None:
        """Returns no factor: vectors are decayed by then."""

    def whole_decay(self, key: Value) -> Value:
        """Writes the product of the decays of all steps of a chunk."""
        return self.arrays.read("decays", (key, 1))

    def chunk(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the second pass."""
        code, form = self.code, self.form
        self.load(own, chunk, "xrpw")
        self.fetch(own, code.add(chunk, integer(1)), "xrpw")
        self.meet()
        self.multiply_pairs()
        self.multiply_ends(self.kept_at(own, chunk))
        self.meet()
        with code.over_threads(form.keys) as key:
            self.find_gradients(key)
            self.scale("p", key, range(form.steps)[::-1])
        with code.over_threads(2 * form.keys) as thread:
            is_other = code.icmp_signed(">=", thread, integer(form.keys))
            with code.when(is_other):
                self.find_gradients_of_writes(code.sub(thread, integer(form.keys)))
        self.meet()
        self.change("p", "w", is_back=False)
        self.write_gradients(own, chunk)
        self.meet()

    def multiply_ends(self, kept: Value) -> None:
        """Writes the products of vectors of values with both matrices, and <S, dS> of each key."""
        form = self.form
        counts = form.reads, form.writes
        for of_writes, number in [(kind, n) for kind in (False, True) for n in range(counts[kind])]:
            name = "behind" if of_writes else "ahead"

            def store(
                row: Value, column: Value, value: Value, name: str = name, number: int = number
            ) -> None:
                """Writes the store of a product."""
                self.arrays.write(value, name, (self.row(number, row), form.key_row), (column, 1))

            term = self.end_term(of_writes, number, kept, store)
            self.tiles.write_terms(form.steps, form.keys, [term], follows=True)
        self.multiply_both(kept, form.reads * form.steps)

    def write_gradients(self, own: Head, chunk: Value) -> None:
        """Writes the gradients of a chunk to their array."""
        code, form = self.code, self.form
        reads, vectors = form.reads, form.reads + form.writes
        for place in range(vectors + 1):
            name, number = (
                ("ahead", place) if place < reads else ("made", (place - reads + 1) % (form.writes + 1))
            )
            with code.over_threads(form.steps * form.keys) as index:
                step, key = code.divided(index, form.keys)
                value = self.arrays.read(name, (self.row(number, step), form.key_row), (key, 1))
                self.keep_result(own, chunk, step, place, key, value)

    def scale(self, name: str, key: Value, steps: range) -> None:
        """Writes over vectors those times the decays of the steps before each, in an order of steps; keeps
        the product of all.
        """
        code, form = self.code, self.form
        product: Value = ONE
        for step in steps:
            for number in range(self.counts()[name]):
                at = (self.row(number, integer(step)), form.key_row), (key, 1)
                self.arrays.write(code.fmul(self.arrays.read(name, *at), product), name, *at)
            product = code.fmul(product, self.arrays.read("decay", (integer(step), form.keys), (key, 1)))
        self.arrays.write(product, "decays", (key, 1))

    def multiply_pairs(self) -> None:
        """Writes the products of all pairs of cotangents and written vectors."""
        form = self.form

        def store(row: Value, column: Value, value: Value, place: int) -> None:
            """Writes the store of a product."""
            self.arrays.write(value, "pairs", (self.row(place, row), form.pair_row), (column, 1))

        for place, numbers in enumerate(product(range(form.reads), range(form.writes))):
            sides = partial(self.pair_sides, "r", "w", form.value_row, numbers)
            keep = partial(store, place=place)
            self.tiles.write(form.steps, form.steps, form.values, sides, keep, follows=True)

    def read(self, name: str, number: int, step: int, key: Value) -> Value:
        """Writes a load of a number of a vector of keys."""
        return self.arrays.read(name, (self.row(number, integer(step)), self.form.key_row), (key, 1))

    def keep(self, value: Value, name: str, number: int, step: int, key: Value) -> None:
        """Writes the store of a number of a vector of keys."""
        self.arrays.write(value, name, (self.row(number, integer(step)), self.form.key_row), (key, 1))

    def decay(self, step: int, key: Value) -> Value:
        """Writes a load of the decay of a step."""
        return self.arrays.read("decay", (integer(step), self.form.keys), (key, 1))

    def pair(self, read: int, write: int, later: int, earlier: int) -> Value:
        """Writes a load of a product of a cotangent and a written vector."""
        row = self.row(read * self.form.writes + write, integer(later))
        return self.arrays.read("pairs", (row, self.form.pair_row), (integer(earlier), 1))

    def find_gradients(self, key: Value) -> None:
        """Writes the gradients of the decays of a key, and of the vectors of reads over the terms ahead.

        It goes over the steps, and has for each later step that reads, and for the end, the sum of what was
        written before, with which later decays are multiplied.
        """
        code, form, steps = self.code, self.form, self.form.steps
        reads = range(form.reads)
        sums = [[self.read("ahead", read, step, key) for step in range(steps)] for read in reads]
        end = self.read("ahead", form.reads, 0, key)
        for step in range(steps):
            # What is read again at each step needs no register between them.
            key = code.function_call("anew", I64, [key])
            for read in reads:
                self.keep(sums[read][step], "ahead", read, step, key)
            decays, total = [self.decay(n, key) for n in range(steps)], end
            for later in reversed(range(step + 1, steps)):
                total = code.fmul(decays[later], total)
                for read in reads:
                    total = code.fused(self.read("x", read, later, key), sums[read][later], total)
            self.keep(total, "made", 0, step, key)
            written = [self.read("p", write, step, key) for write in range(form.writes)]
            for read, later in product(reads, range(step + 1, steps)):
                total = code.fmul(decays[step], sums[read][later])
                for write, vector in enumerate(written):
                    total = code.fused(self.pair(read, write, later, step), vector, total)
                sums[read][later] = total
            end = code.fmul(decays[step], end)
            for write, vector in enumerate(written):
                end = code.fused(self.read("behind", write, step, key), vector, end)

    def find_gradients_of_writes(self, key: Value) -> None:
        """Writes the gradients of a key of the vectors of writes: the sums of the reads behind each step,
        with which the decays before it are multiplied.
        """
        code, form, steps = self.code, self.form, self.form.steps
        for step in range(steps):
            key = code.function_call("anew", I64, [key])
            totals = [self.read("behind", write, step, key) for write in range(form.writes)]
            for later in reversed(range(step + 1, steps)):
                decay, vectors = (
                    self.decay(later, key),
                    [self.read("x", n, later, key) for n in range(form.reads)],
                )
                for write, total in enumerate(totals):
                    made = code.fmul(decay, total)
                    for read, vector in enumerate(vectors):
                        made = code.fused(self.pair(read, write, later, step), vector, made)
                    totals[write] = made
            for write, total in enumerate(totals):
                self.keep(total, "made", 1 + write, step, key)
