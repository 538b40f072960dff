"""Products at pairs of steps, and sums over pairs, in machine code: the numbers of plain loops."""

from typing import Any

import numpy as np
import pytest
from constants import Constants
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import HOST, STEPS, Builder, PairPlaces, Type
from stepnet.compiler.plan import Across
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.targets.cpu.running.pairs import PairsTask
from stepnet.ragged import Positions, offsets_of

Array = np.ndarray
PROCESSORS = available_processors()
LENGTHS = ([3, 0, 1, 5], [], [0], [9, 2], [37])
KEYS = {"the same": None, "others": 2}
SHAPES = ((1, 1), (2, 3), (1, 16), (3, 37), (2, 0))
HOW = ("scores", "keys", "queries")


def pairs_of(lengths: list[int], more: int | None, causal: bool) -> PairPlaces:
    """The pairs of sequences with themselves, or with keys that are `more` steps longer."""
    counts = np.array(lengths, np.int64)
    keys = counts if more is None else counts + more
    return PairPlaces.of(offsets_of(counts), offsets_of(keys), causal)


def across_of(how: str, shape: tuple[int, ...], dtype: str, causal: bool, more: int | None) -> Across:
    keys = STEPS if more is None else ("rows", "steps[+2/1]")
    at = Type((*STEPS, keys[-1] + ("<" if causal else "*")), shape[:-1], dtype)
    query, key = (Type(extent, shape, dtype) for extent in (STEPS, keys))
    types = (query, key) if how == "scores" else (at, key if how == "keys" else query)
    builder = Builder()
    inputs = [builder.input(type_, f"value{place}") for place, type_ in enumerate(types)]
    settings: dict[str, Any] = {"causal": causal} if how == "scores" else {"over": how}
    result = builder.add("scores" if how == "scores" else "mix", *inputs, **settings)
    return Across("pairs", "pairs", types[0], builder.type_of(result), body=builder.net([result]))


def operands_of(how: str, pairs: PairPlaces, shape: tuple[int, ...], dtype: str) -> tuple[Array, Array]:
    random = np.random.default_rng(sum(shape))
    counts = {"queries": pairs.queries[-1], "keys": pairs.keys[-1], "pairs": pairs.offsets[-1]}
    shapes = {"queries": shape, "keys": shape, "pairs": shape[:-1]}
    read = {"scores": ("queries", "keys"), "keys": ("pairs", "keys"), "queries": ("pairs", "queries")}[how]
    first, second = (random.standard_normal((counts[name], *shapes[name])).astype(dtype) for name in read)
    return first, second


def by_loops(how: str, pairs: PairPlaces, first: Array, second: Array) -> Array:
    """The operation number by number, in float64."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    made = np.zeros((pairs.offsets[-1], *first.shape[1:-1]))
    if how != "scores":
        made = np.zeros(((pairs.queries if how == "keys" else pairs.keys)[-1], *second.shape[1:]))
    for row, begin in enumerate(pairs.queries[:-1]):
        for query in range(begin, pairs.queries[row + 1]):
            for number, pair in enumerate(range(*pairs.offsets[query : query + 2])):
                key = pairs.keys[row] + number
                if how == "scores":
                    made[pair] = (first[query] * second[key]).sum(-1)
                elif how == "keys":
                    made[query] += first[pair][..., None] * second[key]
                else:
                    made[key] += first[pair][..., None] * second[query]
    return made


def task_of(across: Across, pairs: PairPlaces, processor: Processor) -> PairsTask:
    return PairsTask(across, [Positions.end_to_end(offsets) for offsets in pairs], processor)


def result_of(task: PairsTask, *operands: Array) -> Array:
    """The result in an array that held other bits before."""
    found = task.result_of(*operands)
    found.view(np.uint8)[...] = 99
    task()
    return found


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("more", [*KEYS.values()], ids=[*KEYS])
def test_numbers_are_those_of_loops(
    processor: Processor, how: str, dtype: str, causal: bool, shape: tuple[int, ...], more: int | None
):
    across = across_of(how, shape, dtype, causal, more)
    for lengths in LENGTHS:
        pairs = pairs_of(lengths, more, causal)
        operands = operands_of(how, pairs, shape, dtype)
        right = by_loops(how, pairs, *operands)
        found = result_of(task_of(across, pairs, processor), *operands)
        assert_close(found, right, 11, 37)
        over = "" if how == "scores" else how
        assert_close(HOST.paired("mix" if over else "scores", *operands, pairs, over), right, 11, 37)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("how", HOW)
def test_bits_depend_on_no_threads_and_no_other_sequences(how: str, constants: Constants):
    lengths, shape = [3, 0, 40, 1, 1, 7], (2, 19)
    across, whole = across_of(how, shape, "float32", True, None), pairs_of(lengths, None, True)
    operands = operands_of(how, whole, shape, "float32")
    expected = result_of(task_of(across, whole, PROCESSORS[0]), *operands)
    constants("stepnet.compiler.targets.cpu.running.pairs", SHARED_BYTES=0)
    sn.set_threads(3)
    task = task_of(across, whole, PROCESSORS[0])
    assert len(task.arguments) > 1
    assert_same_bits(result_of(task, *operands), expected)
    of_pairs = whole.offsets[whole.queries]
    offsets: dict[str, Any] = {
        "scores": (whole.queries, whole.keys, of_pairs),
        "keys": (of_pairs, whole.keys, whole.queries),
        "queries": (of_pairs, whole.queries, whole.keys),
    }
    for row, length in enumerate(lengths):
        first, second, made = (own[row : row + 2] for own in offsets[how])
        alone = task_of(across, pairs_of([length], None, True), PROCESSORS[0])
        own = result_of(alone, operands[0][slice(*first)], operands[1][slice(*second)])
        assert_same_bits(own, expected[slice(*made)])
