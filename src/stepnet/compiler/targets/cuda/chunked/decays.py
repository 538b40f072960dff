"""Writes the kernel of the gradient of the decays of a matrix, of heads (`chunked/decay_form.py`)."""

from functools import partial
from itertools import product

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.decay_form import DecayForm
from stepnet.compiler.targets.cuda.chunked.decay_parts import DecayPartWriter, Head
from stepnet.compiler.targets.cuda.chunked.decays_of_keys import KeyDecayWriter
from stepnet.compiler.targets.cuda.chunked.moves import multiply_decays
from stepnet.compiler.targets.cuda.chunked.tiles import DTYPE, ZERO, Scale
from stepnet.compiler.targets.cuda.device import DeviceCode

Value = ir.Value


def decay_code(form: DecayForm) -> DeviceCode:
    """Writes the kernel."""
    return (KeyDecayWriter if form.by_key else DecayWriter)(form).written()


class DecayWriter(DecayPartWriter):
    """Writer of the kernel for decays of heads."""

    def decay_between(self, first: Value, last: Value) -> Value:
        """Writes the product of the decays of the steps from `first` on, until before step `last`."""
        return self.arrays.read("decays", (last, self.form.steps + 1), (first, 1))

    def take_decays(self) -> None:
        """Writes the products of the decays of a chunk."""
        multiply_decays(self.code, self.arrays, self.form.steps, self.form.steps + 1)

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

    def chunk(self, own: Head, chunk: Value) -> None:
        """Writes a chunk of the second pass."""
        code, form = self.code, self.form
        self.load(own, chunk, "xrpw")
        self.meet()
        self.take_decays()
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

    def multiply_pairs(self) -> None:
        """Writes N of all pairs of steps. The same thread has both products of a pair."""
        form = self.form

        def keep(row: Value, column: Value, value: Value) -> None:
            """Writes the store of a product of keys."""
            self.arrays.write(value, "products", (row, form.pair_row), (column, 1))

        def store(row: Value, column: Value, value: Value, is_first: bool) -> None:
            """Writes the store of N, or the addition to it."""
            at = (row, form.pair_row), (self.code.add(column, integer(1)), 1)
            of_keys = self.arrays.read("products", (row, form.pair_row), (column, 1))
            made = self.code.fmul(value, of_keys)
            made = made if is_first else self.code.fadd(self.arrays.read("pairs", *at), made)
            self.arrays.write(made, "pairs", *at)

        for numbers in product(range(form.reads), range(form.writes)):
            of_keys = partial(self.pair_sides, "x", "p", form.key_row, numbers)
            of_values = partial(self.pair_sides, "r", "w", form.value_row, numbers)
            self.tiles.write(form.steps, form.steps, form.keys, of_keys, keep)
            add = partial(store, is_first=numbers == (0, 0))
            self.tiles.write(form.steps, form.steps, form.values, of_values, add)

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
