"""Groups of operations at pairs of steps that run as one: which these are, and their numbers and bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import STEPS, Builder, Extent, LevelSizes, Net, PairPlaces, Type, interpret, widened
from stepnet.compiler.plan import Across, Part, Schedule
from stepnet.compiler.targets import planning_for
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.running.pairs import PairsTask
from stepnet.ragged import Positions, offsets_of

Array = np.ndarray
PROCESSORS = available_processors()
HEADS, SIZE, FEATURES = 3, 19, 37
LENGTHS = [3, 0, 45, 1, 18]


class Operations:
    """Builder of a net with queries, keys and values [heads, size], and functions of their products."""

    def __init__(self, dtype: str, causal: bool, keys: str = "steps") -> None:
        self.builder, self.dtype, self.causal, self.keys = Builder(), dtype, causal, ("rows", keys)
        self.query, self.key = self.input((HEADS, SIZE)), self.input((HEADS, SIZE), self.keys)
        self.value = self.input((HEADS, FEATURES), self.keys)
        self.products = self.scores(self.query, self.key)
        self.pairs = self.builder.type_of(self.products).extent

    def input(self, shape: tuple[int, ...], extent: Extent = STEPS) -> int:
        return self.builder.input(Type(extent, shape, self.dtype), f"x{len(self.builder.nodes)}")

    def add(self, operation: str, *operands: Any, **attributes: Any) -> int:
        """Adds a node; operands are nodes, or arrays and floats for constants."""
        numbers = [
            own if isinstance(own, int) else self.builder.constant(np.asarray(own, self.dtype))
            for own in operands
        ]
        return self.builder.add(operation, *numbers, **attributes)

    def scores(self, query: int, key: int) -> int:
        return self.add("scores", query, key, causal=self.causal)

    def reduced(self, number: int, how: str) -> int:
        return self.add("reduce", number, how=how)

    def expanded(self, number: int) -> int:
        return self.add("expand", number, extent=self.pairs)

    def mixed(self, weights: int) -> int:
        return self.add("mix", weights, self.value, over="keys")

    def exponentials(self, products: int) -> int:
        return self.add("exp", self.add("subtract", products, self.expanded(self.reduced(products, "max"))))

    def mean(self, weights: int) -> int:
        """The mean of the values by these weights, where a query without keys has zeros."""
        total = self.reduced(weights, "sum")
        total = self.add("where", self.add("equal", total, 0.0), 1.0, total)
        return self.add("divide", self.mixed(weights), self.add("reshape", total, shape=(HEADS, 1), rank=1))


def softmax(own: Operations) -> int:
    return own.mean(own.exponentials(own.products))


def softmax_of_weights(own: Operations) -> int:
    weights = own.exponentials(own.products)
    return own.mixed(own.add("divide", weights, own.expanded(own.reduced(weights, "sum"))))


def squares(own: Operations) -> int:
    kept = own.add("maximum", own.products, 0.0)
    return own.mixed(own.add("multiply", kept, kept))


def slopes(own: Operations) -> int:
    """Products with distances of steps, times a number for each head."""
    distances = own.scores(own.input((1, 2)), own.input((1, 2), own.keys))
    return own.mean(
        own.exponentials(own.add("add", own.products, own.add("multiply", distances, [1.0, 0.5, 2.0])))
    )


def masked(own: Operations) -> int:
    kept = own.add("greater", own.scores(own.input((1, 1)), own.input((1, 1), own.keys)), 0.0)
    products = own.add("where", kept, own.products, -1e30)
    return own.mean(own.add("where", kept, own.exponentials(products), 0.0))


def biased(own: Operations) -> int:
    """Values of queries at their pairs, the mean over these, and a sum of two sums."""
    products = own.add("tanh", own.add("add", own.products, own.expanded(own.input((HEADS,)))))
    centred = own.add("subtract", products, own.expanded(own.reduced(products, "mean")))
    return own.add("add", own.mixed(centred), own.mixed(products))


FUNCTIONS: dict[str, Callable[[Operations], int]] = {
    function.__name__: function for function in (softmax, softmax_of_weights, squares, slopes, masked, biased)
}


def net_of(function: Callable[[Operations], int], dtype: str, causal: bool, keys: str = "steps") -> Net:
    own = Operations(dtype, causal, keys)
    return own.builder.net([function(own)])


def part_of(net: Net) -> Part:
    """The only part of the schedule of a net."""
    (part,) = Schedule(net, planning_for("llvm")).parts
    return part


def pairs_of(lengths: list[int], more: int, causal: bool) -> PairPlaces:
    counts = np.array(lengths, np.int64)
    return PairPlaces.of(offsets_of(counts), offsets_of(counts + more), causal)


def arrays_of(net: Net, pairs: PairPlaces) -> dict[int, Array]:
    """Random inputs of a net, and its constants, by node."""
    random, arrays = np.random.default_rng(0), dict[int, Array]()
    for number, node in enumerate(net.nodes):
        if node.operation == "input":
            count = int((pairs.queries if node.type.extent == STEPS else pairs.keys)[-1])
            drawn = random.standard_normal((count, *node.type.shape)) / 4
            arrays[number] = drawn.astype(node.type.dtype)
        elif node.operation == "constant":
            arrays[number] = node.attributes["value"].value
    return arrays


def result_of(net: Net, pairs: PairPlaces, arrays: dict[int, Array], processor: Processor) -> Array:
    """The result of the only part of a net's schedule, in an array that held other bits before."""
    across = Across.of(net, part_of(net))
    task = PairsTask(across, [Positions.end_to_end(offsets) for offsets in pairs], processor)
    found = task.result_of(*(arrays[number] for number in part_of(net).reads))
    found.view(np.uint8)[...] = 99
    task()
    return found


def of_steps(net: Net, arrays: dict[int, Array], steps: slice) -> dict[int, Array]:
    """Some steps of the inputs, and the constants."""
    return {number: array[steps] if number in net.inputs else array for number, array in arrays.items()}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "pairs", [(False, "steps", 0), (True, "steps", 0), (False, "steps[+2/1]", 2)], ids=str
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_of_the_interpreter(
    processor: Processor, name: str, dtype: str, pairs: tuple[bool, str, int]
):
    causal, keys, more = pairs
    net, places = net_of(FUNCTIONS[name], dtype, causal, keys), pairs_of(LENGTHS, more, causal)
    arrays = arrays_of(net, places)
    sizes = LevelSizes(len(LENGTHS), (places.queries,), derived={keys: places.keys})
    inputs = [arrays[number].astype(np.float64) for number in net.inputs]
    (right,) = interpret(widened(net), inputs, sizes)
    assert_close(result_of(net, places, arrays, processor), right, max(LENGTHS), 10 * FEATURES)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_depend_on_no_threads_and_no_other_sequences(name: str, constants: Constants):
    net, whole = net_of(FUNCTIONS[name], "float32", True), pairs_of(LENGTHS, 0, True)
    arrays = arrays_of(net, whole)
    expected = result_of(net, whole, arrays, PROCESSORS[0])
    constants("stepnet.compiler.targets.cpu.running.pairs", SHARED_BYTES=0)
    sn.set_threads(3)
    assert_same_bits(result_of(net, whole, arrays, PROCESSORS[0]), expected)
    for length, first in zip(LENGTHS, whole.queries, strict=False):
        own = of_steps(net, arrays, slice(first, first + length))
        found = result_of(net, pairs_of([length], 0, True), own, PROCESSORS[0])
        assert_same_bits(found, expected[first : first + length])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_later_steps_are_not_read_by_causal_attention(name: str):
    net, pairs = net_of(FUNCTIONS[name], "float32", True), pairs_of([21], 0, True)
    arrays = arrays_of(net, pairs)
    expected = result_of(net, pairs, arrays, PROCESSORS[0])
    for number in net.inputs:
        arrays[number][13:] = np.nan
    assert_same_bits(result_of(net, pairs, arrays, PROCESSORS[0])[:13], expected[:13])


def two_results(own: Operations) -> int:
    """The sum over pairs, beside its parts that others read."""
    made = softmax(own)
    return own.add("multiply", own.add("cumsum", made, axis=-1), own.mixed(own.products))


def test_what_is_read_elsewhere_runs_alone():
    """Values at pairs that two sums read without a common result are stored."""
    net = net_of(two_results, "float32", False)
    parts = Schedule(net, planning_for("llvm")).parts
    assert all(part.body is None for part in parts)
    others = Schedule(net_of(softmax, "float32", False), planning_for("interpret")).parts
    assert all(part.body is None for part in others)
