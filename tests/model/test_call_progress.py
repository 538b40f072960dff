"""The progress of long calls: the text, and that it changes none of their results."""

import io
import threading
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from constants import Constants
from rich.console import Console
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.native.watching import watching
from stepnet.compiler.targets.cpu.running import prepared_chain
from stepnet.errors import InputError
from stepnet.explain.bars import call_bar

Array = np.ndarray
LENGTHS = np.array([900, 40, 0, 900, 333, 1000])


@pytest.fixture(autouse=True)
def short_slices(constants: Constants) -> None:
    """Machine code pauses behind every block."""
    constants(prepared_chain, SLICE=1e-9)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Generator[int]:
    sn.set_threads(request.param)
    yield request.param
    sn.set_threads(None)


def gru(inputs: int = 4, hidden: int = 16, reverse: bool = False) -> sn.RNN:
    return rnn_of("gru", inputs, hidden, seed=2, reverse=reverse)


def batch() -> Array:
    return np.random.default_rng(0).normal(size=(len(LENGTHS), 1000, 4)).astype("f4")


def assert_rises(seen: list[sn.Progress], all_steps: int, all_sequences: int) -> None:
    """Each says at least as much as the one before, and the last one that all is done."""
    assert len(seen) > 3
    for one, following in pairwise(seen):
        assert one.steps <= following.steps
        assert one.sequences <= following.sequences
        assert one.seconds <= following.seconds
        assert not one.is_done or one is seen[-1]
    assert {(one.all_steps, one.all_sequences) for one in seen} == {(all_steps, all_sequences)}
    assert 0 < seen[0].steps < all_steps
    assert (seen[-1].steps, seen[-1].sequences) == (all_steps, all_sequences)


@pytest.mark.usefixtures("threads")
def test_a_call_says_how_far_it_is_and_gives_the_same_bits():
    rnn, x, seen = gru(), batch(), list[sn.Progress]()
    expected = rnn(x, lengths=LENGTHS)
    with sn.progress(seen.append):
        found = rnn(x, lengths=LENGTHS)
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, right)
    assert_rises(seen, int(LENGTHS.sum()), int(np.count_nonzero(LENGTHS)))
    assert any(0 < one.sequences < 5 for one in seen)


def test_sequences_laid_end_to_end_are_counted_one_by_one():
    """One lane: a sequence is done when the steps up to its end are."""
    sn.set_threads(1)
    lengths = np.array([700, 650, 600])
    rnn, seen = gru(), list[sn.Progress]()
    x = np.zeros((3, 700, 4), "f4")
    try:
        with pytest.MonkeyPatch.context() as patch, sn.progress(seen.append):
            patch.setattr("stepnet.compiler.targets.cpu.running.sequence_layout.LANES", 1)
            rnn(x, lengths=lengths)
    finally:
        sn.set_threads(None)
    ends = np.cumsum(lengths)
    assert_rises(seen, 1950, 3)
    assert [one.sequences for one in seen] == [np.count_nonzero(ends <= one.steps) for one in seen]


@pytest.mark.usefixtures("threads")
def test_a_model_of_several_recurrences_counts_the_steps_of_each():
    first, second, third = gru(), gru(16), gru(16)
    model = sn.Graph(lambda x, _: third(second(first(x)[0])[0])[0], inputs=4)
    x, seen, lengths = batch(), list[sn.Progress](), LENGTHS
    expected = model(x, lengths=lengths)
    with sn.progress(seen.append):
        found = model(x, lengths=lengths)
    np.testing.assert_array_equal(found, expected)
    assert_rises(seen, 3 * int(lengths.sum()), int(np.count_nonzero(lengths)))
    fewest = 3 * np.cumsum(
        [0, *np.sort(lengths[lengths > 0])]
    )  # steps of all three until so many sequences are done
    assert all(one.steps >= fewest[one.sequences] for one in seen)


@pytest.mark.usefixtures("threads")
def test_layers_that_do_not_run_in_one_go_are_shown_one_by_one():
    """NumPy computes a maximum of bools between two layers."""
    layers, x, seen = [gru(), gru(16)], batch(), list[sn.Progress]()

    def both(x: Any, _: Any) -> Any:
        y = layers[0](x)[0]
        return layers[1](np.where(sn.expand(sn.reduce(y > 0, "max"), y), y, 0))[0]

    model = sn.Graph(both, inputs=4)
    expected = model(x, lengths=LENGTHS)
    with sn.progress(seen.append):
        found = model(x, lengths=LENGTHS)
    np.testing.assert_array_equal(found, expected)
    (first, second) = [place for place, one in enumerate(seen) if one.is_done]
    assert_rises(seen[: first + 1], int(LENGTHS.sum()), int(np.count_nonzero(LENGTHS)))
    assert_rises(seen[first + 1 : second + 1], int(LENGTHS.sum()), int(np.count_nonzero(LENGTHS)))


@pytest.mark.usefixtures("threads")
def test_a_graph_says_how_far_it_is_in_frozen_calls_too():
    ahead, back = gru(), gru(reverse=True)
    graph, x = sn.Graph(lambda x, _: sn.Bidirectional(ahead, back)(x)[0], inputs=4), batch()
    expected = graph(x)
    for _ in range(4):
        seen = list[sn.Progress]()
        with sn.progress(seen.append):
            np.testing.assert_array_equal(graph(x), expected)
        assert len(seen) > 3
        assert seen[-1].is_done


def test_short_calls_and_calls_outside_say_nothing(constants: Constants):
    rnn, x, seen = gru(), batch(), list[sn.Progress]()
    with sn.progress(seen.append):
        pass
    rnn(x)
    assert watching() is None
    constants(prepared_chain, SLICE=60.0)
    with sn.progress(seen.append):
        rnn(x[:, :400])
    assert seen == []


def test_other_threads_are_not_watched():
    rnn, x, seen = gru(), batch(), list[sn.Progress]()
    with sn.progress(seen.append):
        thread = threading.Thread(target=rnn, args=(x,))
        thread.start()
        thread.join()
    assert seen == []


def test_the_innermost_watches():
    rnn, x, outer, inner = gru(), batch(), list[sn.Progress](), list[sn.Progress]()
    with sn.progress(outer.append):
        with sn.progress(inner.append):
            rnn(x)
        assert inner
        assert not outer
        rnn(x)
    assert outer


@pytest.mark.usefixtures("threads")
def test_what_the_callback_raises_ends_the_call_and_the_next_one_is_right():
    rnn, x = gru(), batch()
    expected = rnn(x)[0]
    rnn(x)

    def stop(now: sn.Progress) -> None:
        raise ZeroDivisionError(now.steps)

    for _ in range(3):
        with pytest.raises(ZeroDivisionError), sn.progress(stop):
            rnn(x)
        np.testing.assert_array_equal(rnn(x)[0], expected)


@pytest.mark.usefixtures("threads")
def test_the_callback_may_call_the_same_recurrence():
    rnn, x = gru(), batch()
    expected, inner = rnn(x)[0], rnn(x[:2, :300])[0]
    rnn(x)
    seen: list[bool] = []

    def call(_: sn.Progress) -> None:
        with sn.progress(lambda _: None):
            seen.append(np.array_equal(rnn(x[:2, :300])[0], inner) and np.array_equal(rnn(x)[0], expected))

    with sn.progress(call):
        np.testing.assert_array_equal(rnn(x)[0], expected)
    assert len(seen) > 3
    assert all(seen)


@pytest.mark.parametrize("wrong", [3, "bar", [print]])
def test_a_callback_that_is_no_function(wrong: object):
    with (
        pytest.raises(InputError, match="the callback of progress is a function of one argument, or None"),
        sn.progress(wrong),  # pyright: ignore[reportArgumentType]
    ):
        pass


def test_the_bar_shows_steps_sequences_and_times():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120, color_system=None)
    with call_bar(console) as show:
        show(sn.Progress(300, 1200, 2, 8, 1.5))
        show(sn.Progress(1200, 1200, 8, 8, 6.0))
        show(sn.Progress(10, 40, 0, 2, 0.5))
    text = output.getvalue()
    assert "25% 300 of 1,200 steps, 2 of 8 sequences, 200 steps/s, 4.5 s left" in text
    assert "100% 1,200 of 1,200 steps, 8 of 8 sequences, 200 steps/s, 6.0 s in all" in text
    assert "25% 10 of 40 steps" in text
    assert text.count("\n") >= 2  # the second call has a line of its own


def test_the_bar_is_on_the_standard_error_output(capsys: pytest.CaptureFixture[str]):
    rnn, x = gru(), batch()
    with sn.progress():
        rnn(x)
    shown = capsys.readouterr()
    assert "6,000 of 6,000 steps, 6 of 6 sequences" in shown.err
    assert shown.out == ""
    with sn.progress():
        rnn(x[:, :2])
    assert capsys.readouterr().err == ""
