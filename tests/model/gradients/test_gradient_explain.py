"""Gradients explained: golden texts, costs by hand, and memory as it is measured."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from random_gradients import plain
from turns import in_turns
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.net import CONST, ROWS, STEPS
from stepnet.compiler.plan import CallSize
from stepnet.compiler.targets.cpu.machine import memory
from stepnet.errors import InputError
from stepnet.explain.plan import explain
from stepnet.model.gradients.explained import AGAIN, BACKWARD, FORWARD, GradientExplanation
from tests.explain.test_explain import gru
from tests.model.gradients.test_gradients import STEPS as KINDS_OF_STEPS
from tests.model.gradients.test_gradients import documents, nested, with_inner_parameters

Array = np.ndarray
INPUTS, HIDDEN = 3, 4

GRU = """\
gradients of params, inputs, initial, statics
  engine      llvm
  checkpoint  none: values of every step are saved
  blocks      1 step: no memory is a matrix

saved: 80 B per step
  h               f32[4]          16 B per step
  sigmoid         f32[4]          16 B per step
  sigmoid         f32[4]          16 B per step
  tanh            f32[4]          16 B per step
  part of matmul  f32[4]          16 B per step

work
  forward
    per step      392 flop, 400 B of weights, 204 B of values
    once          8 flop, 64 B of weights, 32 B of values
  backward
    per step      412 flop, 352 B of weights, 600 B of values
    per sequence  0 flop, 96 B of values
    once          0 flop, 432 B of values

memory beyond arguments and results
  between forward and backward  80 B per step
  besides, in the backward pass 96 B per step

for 16 sequences of 100 steps
  forward   627.2 kflop
  backward  659.2 kflop
  memory    128.0 kB between them, 281.6 kB at most
"""

GRU_IN_PIECES = """\
gradients of params
  engine      llvm
  checkpoint  memories ahead of every sqrt(steps) steps
  blocks      1 step: a gradient with checkpoint= runs step by step

saved: 80 B per step, of one piece at a time
  h               f32[4]          16 B per step
  sigmoid         f32[4]          16 B per step
  sigmoid         f32[4]          16 B per step
  tanh            f32[4]          16 B per step
  part of matmul  f32[4]          16 B per step

work
  forward
    per step      392 flop, 400 B of weights, 140 B of values
    once          8 flop, 64 B of weights, 32 B of values
  forward again
    per step      392 flop, 400 B of weights, 204 B of values
    once          8 flop, 64 B of weights, 32 B of values
  backward
    per step      340 flop, 208 B of weights, 540 B of values
    per sequence  0 flop, 96 B of values
    once          0 flop, 432 B of values

memory beyond arguments and results
  between forward and backward  16 B per sequence and piece
  besides, in the backward pass 16 B per sequence, 432 B once
  besides, of one piece         204 B per step

for 16 sequences of 100 steps
  forward   627.2 kflop
  backward  1.2 Mflop
  memory    2.3 kB between them, 35.6 kB at most
"""

LSTM_VALUES = """\
  h            f32[4]          16 B per step
  c            f32[4]          16 B per step
  sigmoid      f32[4]          16 B per step
  sigmoid      f32[4]          16 B per step
  tanh         f32[4]          16 B per step
  sigmoid      f32[4]          16 B per step
  tanh         f32[4]          16 B per step
"""

LSTMS = f"""\
gradients of params, inputs, initial, statics
  engine      llvm
  checkpoint  none: values of every step are saved
  blocks      1 step: no memory is a matrix

saved: 480 B per step
{LSTM_VALUES}{LSTM_VALUES}  concatenate  f32[8]          32 B per step
{LSTM_VALUES}{LSTM_VALUES}
work
  forward
    per step      2.6 kflop, 2.7 kB of weights, 1.3 kB of values
    once          64 flop, 512 B of weights, 256 B of values
  backward
    per step      2.8 kflop, 2.4 kB of weights, 2.6 kB of values
    per sequence  0 flop, 256 B of values
    once          0 flop, 2.7 kB of values

memory beyond arguments and results
  between forward and backward  480 B per step
  besides, in the backward pass 216 B per step

for 16 sequences of 100 steps
  forward   4.2 Mflop
  backward  4.5 Mflop
  memory    768.0 kB between them, 1.1 MB at most
"""


def two_directions(inputs: int = INPUTS, hidden: int = HIDDEN) -> sn.Stack:
    """Two layers of LSTMs in both directions, which have run."""
    layers = [
        sn.Bidirectional(rnn_of("lstm", size, hidden), rnn_of("lstm", size, hidden, reverse=True))
        for size in (inputs, 2 * hidden)
    ]
    stack = sn.Stack(layers)
    stack(np.zeros((1, 1, inputs), "float32"), engine="interpret")
    return stack


# ---- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "options", "right"),
    [
        (gru(), {}, GRU),
        (gru(), {"checkpoint": "sqrt", "wrt": "params"}, GRU_IN_PIECES),
        (two_directions(), {}, LSTMS),
    ],
    ids=["gru", "gru in pieces", "lstm"],
)
def test_golden_texts(layer: Any, options: dict[str, Any], right: str) -> None:
    run = sn.vjp(layer)
    text = run.explain(rows=16, steps=100, **options)
    assert text.startswith(right + "\n")
    size = None if "checkpoint" in options else CallSize(16, 100, 1600)
    halves = run.explanation(**options).halves
    plans = [f"{half.title}:\n{explain(half.schedule, size=size)}" for half in halves]
    assert text == right + "\n" + "\n\n".join(plans)


def test_sections_are_named() -> None:
    facts = sn.vjp(two_directions()).explanation(checkpoint=10)
    names = [f"section {place}, {name}" for place in (1, 2, 3) for name in (FORWARD, AGAIN, BACKWARD)]
    assert [half.title for half in facts.halves] == names
    assert "  checkpoint  memories ahead of every 10 steps\n" in sn.vjp(two_directions()).explain(
        checkpoint=10
    )


# ---- by hand -----------------------------------------------------------------------------------------------


def flops(facts: GradientExplanation, *names: str) -> int:
    return facts.costs_of(*names)[STEPS].flops


def test_the_flops_of_a_gru_by_hand() -> None:
    facts = sn.vjp(gru()).explanation()
    products = 2 * 3 * HIDDEN * (INPUTS + HIDDEN)
    functions = 3 * 15 + 11  # two sigmoids and a tanh; eleven additions and the like
    assert flops(facts, FORWARD) == products + functions * HIDDEN
    # Twice the products: for what they are multiplied with, and for parameters. No function is run again.
    assert flops(facts, BACKWARD) == 2 * products + 19 * HIDDEN


def test_the_flops_of_lstms_by_hand() -> None:
    facts, functions = sn.vjp(two_directions()).explanation(), 5 * 15 + 12
    products = [2 * 4 * HIDDEN * (size + HIDDEN) for size in (INPUTS, 2 * HIDDEN)]
    assert flops(facts, FORWARD) == 2 * sum(products) + 4 * functions * HIDDEN
    joined = INPUTS + 2 * HIDDEN  # the cotangents of what both directions read are added
    assert flops(facts, BACKWARD) == 4 * sum(products) + 4 * 23 * HIDDEN + joined


@pytest.mark.parametrize(("name", "streams", "memories"), [("gru", 4, 1), ("lstm", 5, 2)])
def test_what_is_saved_by_hand(name: str, streams: int, memories: int) -> None:
    layer = rnn_of(name, INPUTS, HIDDEN)
    layer(np.zeros((1, 1, INPUTS), "float32"))
    facts = sn.vjp(layer).explanation()
    assert [one.element for one in facts.saved] == ["f32[4]"] * (streams + memories)
    assert facts.memory.kept == {STEPS: 4 * HIDDEN * (streams + memories)}
    pieces = sn.vjp(layer).explanation(checkpoint=7, rows=3, steps=30)
    assert pieces.memory.ahead == 4 * HIDDEN * memories
    assert pieces.sizes is not None
    assert pieces.sizes.between == 3 * 4 * 4 * HIDDEN * memories  # five pieces, the first from the start


def test_the_sums_of_a_batch_by_hand() -> None:
    facts = sn.vjp(gru()).explanation(checkpoint=10, rows=2, steps=50)
    once = facts.costs_of(FORWARD)[CONST].flops
    assert facts.sizes is not None
    assert facts.sizes.forward == 100 * flops(facts, FORWARD) + once
    assert facts.sizes.backward == 100 * flops(facts, AGAIN, BACKWARD) + once
    assert facts.sizes.backward > sn.vjp(gru()).explanation(rows=2, steps=50).sizes.backward  # type: ignore[union-attr]


def test_what_is_not_asked_for_is_not_computed() -> None:
    run = sn.vjp(gru())
    every, params = run.explanation(), run.explanation("params")
    assert flops(every, BACKWARD) - flops(params, BACKWARD) == 2 * 3 * HIDDEN * INPUTS  # dx


# ---- what is held, measured --------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that Python's own count sees, none of which is kept for later calls; one thread."""

    def plainly(size: int, worth_huge: int = 0) -> Array:
        whole = np.zeros(size + memory.PAGE, np.uint8)
        start = -whole.ctypes.data % memory.PAGE
        return whole[start : start + size]

    monkeypatch.setattr(memory, "aligned", plainly)
    for pool in (memory.POOL, memory.WORKSPACES):
        monkeypatch.setattr(pool, "most", 0)
        monkeypatch.setattr(pool, "free", {})
    sn.set_threads(1)
    yield
    sn.set_threads(None)


def nbytes(*structures: Any) -> int:
    return sum(array.nbytes for structure in structures for array in plain(structure))


WORK = 4_500_000
"""The bytes that three programs work in at most: blocks of steps, packed parameters, operands of sums."""


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("name", "checkpoint"), in_turns(["gru", "lstm", "layers"], [None, "sqrt", 500]))
@pytest.mark.usefixtures("counted")
def test_memory_is_what_is_measured(name: str, checkpoint: Any) -> None:
    width, rows, steps = 32, 8, 2000
    layer = two_directions(width, width) if name == "layers" else rnn_of(name, width, width)
    x = np.random.default_rng(0).normal(size=(rows, steps, width)).astype("float32")
    run = sn.vjp(layer)

    def once() -> Any:
        (outputs, final), backward = run(x, checkpoint=checkpoint)
        cotangents = np.ones_like(outputs), final
        backward(*cotangents)
        return cotangents

    once()
    cotangents = once()  # what is compiled, and what calls of a form prepare, is there now
    gc.collect()
    tracemalloc.start()
    try:
        (outputs, final), backward = run(x, checkpoint=checkpoint)
        between = tracemalloc.get_traced_memory()[0] - nbytes(outputs, final)
        tracemalloc.reset_peak()
        gradients = backward(*cotangents)
        most = tracemalloc.get_traced_memory()[1] - nbytes(outputs, final, vars(gradients))
    finally:
        tracemalloc.stop()
    sizes = run.explanation(checkpoint=checkpoint, rows=rows, steps=steps).sizes
    assert sizes is not None
    # Large memory is taken in classes of sizes, an eighth apart at most.
    assert 0.95 * sizes.between < between < 1.125 * sizes.between + 0.1e6
    assert 0.95 * sizes.most < most < 1.125 * sizes.most + WORK * (4 if name == "layers" else 1)


# ---- whatever has a gradient -------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("name", ["attention", "embeddings", "statics and index", "a counter"])
def test_any_step_is_explained(name: str, checkpoint: Any) -> None:
    make, options = KINDS_OF_STEPS[name]
    layer = make("float32")
    layer(options["sequences"], statics=options.get("statics"), engine="interpret")
    facts = sn.vjp(layer).explanation(checkpoint=checkpoint, rows=2, steps=10)
    assert facts.sizes is not None
    assert min(facts.sizes.forward, facts.sizes.backward) > 0
    assert facts.sizes.most > facts.sizes.between > 0
    text = sn.vjp(layer).explain(checkpoint=checkpoint)
    assert ("per entry of rows/static" in text) == (name == "attention")


@pytest.mark.parametrize("make", [partial(nested, enters=False), with_inner_parameters])
def test_nested_recurrences_are_explained(make: Callable[[str], sn.RNN]) -> None:
    layer = make("float32")
    layer(documents().with_values(documents().values.astype("float32")), engine="interpret")
    for checkpoint in (None, 2):
        text = sn.vjp(layer).explain(checkpoint=checkpoint)
        assert "per entry of rows/steps/words" in text
        assert "per step" in text


def test_the_engine_is_the_one_asked_for() -> None:
    assert sn.vjp(gru()).explanation(engine="interpret").engine == "interpret"


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("rows and steps go together", {"rows": 3}),
        ("rows is how many there are, not -1", {"rows": -1, "steps": 2}),
        ("steps is how many there are of each, not 2.5", {"rows": 1, "steps": 2.5}),
        ("checkpoint is None, 'sqrt' or", {"checkpoint": 0}),
        ("wrt is some of", {"wrt": "weights"}),
        ("wrt is some of", {"wrt": 3}),
    ],
)
def test_what_is_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=message):
        sn.vjp(gru()).explain(**options)


def test_inputs_are_to_be_known() -> None:
    rnn = sn.RNN(lambda x, h, p: (h, h), memory=3)
    with pytest.raises(InputError, match="the inputs are not known yet"):
        sn.vjp(rnn).explain()
    with pytest.raises(InputError, match="layer 0: the inputs are not known yet"):
        sn.vjp(sn.Stack([rnn])).explain()
    assert ROWS in sn.vjp(two_directions()).explanation().costs_of(BACKWARD)


def test_gradients_of_nothing_are_explained() -> None:
    rnn = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(3, 4))
    assert sn.vjp(rnn).explain(()).startswith("gradients of nothing")
