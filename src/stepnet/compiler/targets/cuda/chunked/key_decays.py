"""Writes the decays of a chunk of steps (`chunked/loop.py`): their products, and where each key has its own.

Decays of heads are factors of results. Those of keys are factors within sums over keys, so they are taken
into operands: a chunk has spans of 16 steps, and in each of them

    within     x_t p_s (a_s+1 .. a_t-1) for the steps s before t of the same span: a thread has p_s at some
               keys, and goes over the later steps, with a product of decays for each key
    scaled     x_t by the decays from the span's first step on, p_s by those until its last one

after which products of other spans lack only the decays of the spans between them, one for each key. No decay
is divided by, so they may be 0, and what is multiplied is not larger than what steps one by one have.
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import integer
from stepnet.compiler.targets.cuda.chunked.load import ChunkLoadWriter
from stepnet.compiler.targets.cuda.chunked.moves import multiply_decays
from stepnet.compiler.targets.cuda.chunked.tiles import ONE, ZERO, Scale
from stepnet.compiler.targets.cuda.device import LANES
from stepnet.compiler.targets.cuda.functions import FOUR
from stepnet.compiler.targets.cuda.tensor.costs import SCHEDULERS

Value = ir.Value
AT_ONCE = 4
"""The keys that a thread reads from shared memory by one instruction."""


class ChunkDecayWriter(ChunkLoadWriter):
    """Writer of the decays of a chunk."""

    def decay_between(self, first: Value, last: Value, key: Value | None = None) -> Value:
        """Writes the product of the decays of the spans from `first` on, until before span `last`. key: where
        each has its own.
        """
        form = self.chunk
        if not form.has_products:
            return ONE
        of_key = [] if key is None or not self.rule.by_key else [(key, 1)]
        row = form.decay_row * form.decay_keys
        return self.arrays.read("decays", (last, row), (first, form.decay_keys), *of_key)

    def span_of(self, step: Value) -> Value:
        """Writes the span of a step."""
        return self.code.divided(step, self.chunk.span)[0]

    def span_behind(self, step: Value) -> Value:
        """Writes the first span behind that of a step."""
        return self.code.summed(self.span_of(step), integer(1))

    def decayed(self, result: Value, first: Value, last: Value) -> Value:
        """Writes a sum over keys times the decays between two spans, where these are of heads."""
        return result if self.rule.by_key else self.code.fmul(result, self.decay_between(first, last))

    def decay_of_keys(self, first: Value, last: Value) -> Scale | None:
        """Returns the writer of the decays between two spans for a term of a sum over keys; None where these
        are of heads.
        """
        return (lambda _, key: self.decay_between(first, last, key)) if self.rule.by_key else None

    def multiply_decays(self) -> None:
        """Writes the products of decays; for keys a thread for the spans from each one on, and for a key."""
        code, form = self.code, self.chunk
        if not self.rule.by_key:
            multiply_decays(code, self.arrays, form.steps, form.decay_row, code.thread, form.threads)
            return
        row = form.decay_row * form.keys
        with code.over_threads(row) as index:
            first, key = code.divided(index, form.keys)

            def turn(place: Value, product: list[Value]) -> list[Value]:
                """Writes the product until before a span, and takes the decays of the span into it."""
                is_later = code.icmp_signed(">=", place, first)
                total, begin = product[0], code.multiplied(place, form.span)
                self.arrays.write(total, "decays", (place, row), (index, 1))
                for step in range(form.span):
                    at = code.smaller(code.summed(begin, integer(step)), integer(form.steps - 1))
                    total = code.fmul(total, self.decay_at(at, key))
                return [code.select(is_later, total, product[0])]

            code.carry(0, form.decay_row, [ONE], turn)

    # ---- where each key has its own

    def decay_at(self, step: Value, key: Value) -> Value:
        """Writes the decay of a step."""
        return self.arrays.read("decay", (step, self.chunk.decay_step), (key, 1))

    def begin_inner(self) -> None:
        """Writes zeros for all inner products: those of steps that are not earlier stay."""
        with self.code.over_threads(self.chunk.inner) as index:
            self.arrays.write(ZERO, "inner", (index, 1))

    def multiply_within(self) -> None:
        """Writes the inner products of steps of the same span: some lanes have a step that writes, and each
        some keys.
        """
        code, form = self.code, self.chunk
        lanes, span, reads = form.lanes, form.span, range(len(form.reads))
        places, together = range(form.keys // (AT_ONCE * lanes)), LANES // lanes
        with code.over_threads(form.writes * form.steps * lanes) as index:
            number, lane = code.divided(index, lanes)
            write, number = code.divided(number, form.steps)
            block, own = code.divided(number, span)
            # Each scheduler has warps of early and of late steps.
            shift = code.multiplied(block, max(span // SCHEDULERS, together))
            own = code.and_(code.add(own, shift), integer(span - 1))
            begin = code.multiplied(block, span)
            number = code.add(code.multiplied(write, form.steps), code.add(begin, own))
            keys = [code.multiplied(code.add(lane, integer(lanes * n)), AT_ONCE) for n in places]
            # All lanes of a warp go over the same steps.
            first = code.add(code.multiplied(code.divided(own, together)[0], together), integer(1))

            def numbers(array: str, row: Value, key: Value) -> list[Value]:
                """Writes a load of the numbers of some keys."""
                four = code.read(FOUR, self.arrays.at(array, (row, form.key_row), (key, 1)), 16)
                return [code.extract_element(four, integer(n)) for n in range(AT_ONCE)]

            def turn(further: Value, decayed: list[Value]) -> list[Value]:
                """Writes the products of a later step, and decays the vector that was written."""
                place = code.add(first, further)
                step, is_later = code.add(begin, place), code.icmp_signed(">", place, own)
                for read in reads:
                    total: Value = ZERO
                    for n, key in enumerate(keys):
                        for m, x in enumerate(numbers("vectors", self.row_of(read, step), key)):
                            total = code.fused(x, decayed[AT_ONCE * n + m], total)
                    total = self.over_group(total, lanes)
                    with code.when(code.and_(is_later, code.icmp_signed("==", lane, integer(0)))):
                        row = code.summed(integer(read * form.writes * form.steps), number)
                        self.arrays.write(total, "inner", (row, form.step_row), (step, 1))
                decays = [each for key in keys for each in numbers("decay", step, key)]
                return [
                    code.select(is_later, code.fmul(x, decay), x)
                    for x, decay in zip(decayed, decays, strict=True)
                ]

            row = self.row_of(form.first_write, number)
            vector = [each for key in keys for each in numbers("vectors", row, key)]
            code.carry(0, code.sub(integer(span), first), vector, turn, turns=1)

    def over_group(self, value: Value, lanes: int) -> Value:
        """Writes the sum of the values of some neighbouring lanes, which the first of them has then."""
        while lanes := lanes // 2:
            value = self.code.fadd(value, self.code.from_lane(value, lanes))
        return value

    def scale_vectors(self) -> None:
        """Writes over the vectors those times the decays of their span: of reads from its first step on, of
        writes until its last one.
        """
        code, form = self.code, self.chunk
        reads, writes = range(len(form.reads)), range(form.first_write, form.vectors)
        with code.over_threads(form.steps // form.span * form.keys) as index:
            block, key = code.divided(index, form.keys)
            begin = code.multiplied(block, form.span)

            def scale(places: range, step: Value, by: Value) -> Value:
                """Writes the vectors of a step, decayed; returns the decays with that of the step."""
                for place in places:
                    at = (self.row_of(place, step), form.key_row), (key, 1)
                    self.arrays.write(code.fmul(self.arrays.read("vectors", *at), by), "vectors", *at)
                return code.fmul(by, self.decay_at(step, key))

            def turn(place: Value, before: list[Value]) -> list[Value]:
                """Writes both for a step from each end."""
                ahead = code.add(begin, place)
                behind = code.sub(code.add(begin, integer(form.span - 1)), place)
                return [scale(reads, ahead, before[0]), scale(writes, behind, before[1])]

            code.carry(0, form.span, [ONE, ONE], turn)
