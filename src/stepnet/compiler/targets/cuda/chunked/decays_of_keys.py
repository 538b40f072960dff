"""Writes the kernel of the gradient of the decays of a matrix whose keys decay by themselves
(`chunked/decay_form.py`).
"""

from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I64, integer
from stepnet.compiler.targets.cuda.chunked.decay_parts import DecayPartWriter, Head
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ONE, ZERO

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
        self.load(own, chunk, "xrpw")
        self.meet()
        self.multiply_pairs()
        self.multiply_ends(self.kept_at(own, chunk))
        self.meet()
        with self.code.over_threads(self.form.keys) as key:
            self.find_gradients(key)
            self.scale("p", key, range(self.form.steps)[::-1])
        self.meet()
        self.change("p", "w", is_back=False)
        self.write_gradients(own, chunk)
        self.meet()

    def write_gradients(self, own: Head, chunk: Value) -> None:
        """Writes the gradients of a chunk to their array."""
        code, form = self.code, self.form
        with code.over_threads(form.steps * form.keys) as index:
            step, key = code.divided(index, form.keys)
            at = code.add(code.mul(chunk, integer(form.steps)), step)
            with code.when(code.icmp_signed("<", at, own.count)):
                there = code.add(code.mul(self.entry(own, at), code.word("heads")), own.head)
                there = code.add(code.multiplied(there, form.keys), key)
                value = self.arrays.read("ahead", (step, form.key_row), (key, 1))
                code.write_element(DTYPE, value, code.pointer("target"), there)

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
        """Writes the products of all pairs of cotangents and of what was written."""
        form = self.form

        def store(row: Value, column: Value, value: Value, place: int) -> None:
            """Writes the store of a product."""
            self.arrays.write(value, "pairs", (self.row(place, row), form.pair_row), (column, 1))

        for place, numbers in enumerate(product(range(form.reads), range(form.writes))):
            sides = partial(self.pair_sides, "r", "w", form.value_row, numbers)
            keep = partial(store, place=place)
            self.tiles.write(form.steps, form.steps, form.values, sides, keep)

    def read(self, name: str, number: int, step: int, key: Value) -> Value:
        """Writes a load of a number of a vector of keys."""
        return self.arrays.read(name, (self.row(number, integer(step)), self.form.key_row), (key, 1))

    def find_gradients(self, key: Value) -> None:
        """Writes the gradients of the decays of a key over the terms ahead. It goes over the steps, and has
        for each later step that reads, and for the end, the sum of what was written before, with which later
        decays are multiplied.
        """
        code, form, steps = self.code, self.form, self.form.steps
        sums = [self.read("ahead", 0, step, key) for step in range(steps + 1)]
        for step in range(steps):
            # What is read again at each step needs no register between them.
            key = code.function_call("anew", I64, [key])
            decays = [self.arrays.read("decay", (integer(n), form.keys), (key, 1)) for n in range(steps)]
            total = sums[steps]
            for later in reversed(range(step + 1, steps)):
                total = code.fused(decays[later], total, sums[later])
            self.arrays.write(total, "ahead", (integer(step), form.key_row), (key, 1))
            written = [self.read("p", write, step, key) for write in range(form.writes)]
            for later in range(step + 1, steps):
                added: Value = ZERO
                for number in range(form.reads):
                    total = ZERO
                    for write, vector in enumerate(written):
                        row = self.row(number * form.writes + write, integer(later))
                        pair = self.arrays.read("pairs", (row, form.pair_row), (integer(step), 1))
                        total = code.fused(pair, vector, total)
                    added = code.fused(self.read("x", number, later, key), total, added)
                sums[later] = code.fused(decays[step], sums[later], added)
            sums[steps] = code.fused(decays[step], sums[steps], self.read("behind", 0, step, key))
