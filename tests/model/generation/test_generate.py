"""Sequences written by a recurrence: against plain loops, and beams against every sequence there is."""

import itertools
import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
SYMBOLS, HIDDEN = 5, 4


def weights(seed: int = 0, symbols: int = SYMBOLS, dtype: Any = "float64") -> dict[str, Array]:
    """A language model's: an embedding, a recurrence and a dense layer behind it."""
    random = np.random.default_rng(seed)
    shapes = {"E": (symbols, 3), "W": (3, HIDDEN), "R": (HIDDEN, HIDDEN), "V": (HIDDEN, symbols)}
    return {name: random.normal(size=shape).astype(dtype) * 1.5 for name, shape in shapes.items()}


def embedded(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"])
    return h @ p["V"], h


def model(params: Any) -> sn.RNN:
    return sn.RNN(embedded, params, memory=HIDDEN, inputs=sn.Spec((), np.int64))


def in_a_graph(params: Any) -> sn.Graph:
    """The same model as a graph: the embedding before the recurrence, and the dense layer behind it."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h, h

    def outputs(x: Any, p: Any) -> Any:
        layer = sn.RNN(step, {name: p[name] for name in "WR"}, memory=HIDDEN)
        return layer(p["E"][x])[0] @ p["V"]

    return sn.Graph(outputs, params, inputs=sn.Spec((), np.int64))


def probabilities(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def loop(params: Any, said: list[int], most: int, stops: tuple[int, ...], choose: Any) -> list[int]:
    """The sequence after one start, by a loop."""
    h, written = np.zeros((1, HIDDEN)), list[int]()
    for symbol in said[:-1]:
        _, h = embedded(np.array([symbol]), h, params)
    symbol = said[-1]
    while len(written) < most and (not written or written[-1] not in stops):
        scores, h = embedded(np.array([symbol]), h, params)
        symbol = choose(scores[0])
        written.append(int(symbol))
    return written


said = st.lists(st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=3), max_size=4)


def lists(found: Any) -> list[list[int]]:
    return [one.tolist() for one in found.to_list()]


def ragged(starts: list[list[int]]) -> sn.Ragged:
    return sn.Ragged.from_list([np.array(one, np.int64) for one in starts], dtype=np.int64, features=())


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(st.integers(0, 3), said, st.integers(1, 6), st.sampled_from([(), (0,), (1, 3), (4, 0, 2)]))
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
@pytest.mark.parametrize("make", [model, in_a_graph])
def test_the_best_symbol_is_fed_back(
    make: Any, engine: str, seed: int, starts: list[list[int]], most: int, stops: tuple[int, ...]
) -> None:
    params = weights(seed)
    found = sn.generate(make(params), ragged(starts), stop=stops, max_steps=most, engine=engine)
    expected = [loop(params, one, most, stops, np.argmax) for one in starts]
    assert lists(found) == expected
    assert found.dtype == np.int64


def test_sequences_end_with_their_stop_symbol_or_at_the_most() -> None:
    found = sn.generate(model(weights(2)), np.arange(SYMBOLS), stop=2, max_steps=5, engine="interpret")
    assert sorted(set(found.lengths.tolist())) == [2, 4, 5]
    for one in found.to_list():
        assert (one[:-1] != 2).all()
        assert len(one) == 5 or one[-1] == 2


@pytest.mark.parametrize("make", [model, in_a_graph])
def test_no_start_at_all(make: Any, engine: str) -> None:
    found = sn.generate(make(weights()), [], max_steps=5, engine=engine)
    assert (len(found), found.values.shape, found.dtype) == (0, (0,), np.int64)
    sequences, logs = sn.beam_search(make(weights()), [], beams=3, max_steps=5, engine=engine)
    assert (len(sequences), sequences.levels, len(logs), logs.levels) == (0, 2, 0, 1)


def test_graphs_of_other_parts_generate() -> None:
    """Without a recurrence, with a causal convolution, and from a memory that a static begins."""
    follows = np.eye(4, dtype="f4")[[1, 2, 3, 0]]
    chain = sn.Graph(lambda x, p: p[x], follows, inputs=sn.Spec((), "int64"))
    wide = sn.Graph(lambda x, p: sn.conv1d(x, p[:, :, None] * [0, 0, 1]), follows.T.copy(), inputs=4)
    for graph in (chain, wide):
        for scores in (None, lambda scores: scores):
            assert lists(sn.generate(graph, [0, 2], stop=3, max_steps=4, scores=scores)) == [[1, 2, 3], [3]]
    total = sn.RNN(lambda x, h, p: (h, h), memory=4)
    held = sn.Graph(lambda x, p, statics: total(x, initial=statics)[0], inputs=4, statics=4)
    still = np.array([[0, 0, 1, 0], [0, 1, 0, 0]], "f4")
    assert lists(sn.generate(held, [0, 0], stop=1, max_steps=3, statics=still)) == [[2, 2, 2], [1]]
    begun = sn.generate(held, [0, 0], stop=1, max_steps=3, statics=still, initial=still[::-1].copy())
    assert lists(begun) == [[1], [2, 2, 2]]


def test_a_graph_that_needs_later_steps_does_not_generate() -> None:
    graph = sn.Graph(lambda x, p: sn.reduce(p[x], "mean"), np.eye(4, dtype="f4"), inputs=sn.Spec((), "int64"))
    message = "symbols follow one another: this model has no stream: it takes the mean over all steps"
    for call in (sn.generate, lambda *given_, **options: sn.beam_search(*given_, beams=2, **options)):
        with pytest.raises(InputError, match=message):
            call(graph, [0], max_steps=3)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("how", ["one-hot", "table", "function", "spec", "structure"])
def test_ways_to_feed(how: str, engine: str) -> None:
    """All are the embedding inside the step."""
    params = weights(1)
    expected = lists(sn.generate(model(params), [0, 3, 1], max_steps=6, stop=4, engine=engine))

    def of_vectors(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h @ p["V"], h

    whole = params | {"W": params["E"] @ params["W"]}
    rnn, feed = {
        "one-hot": (sn.RNN(of_vectors, whole, memory=HIDDEN, inputs=SYMBOLS), None),
        "spec": (sn.RNN(of_vectors, whole, memory=HIDDEN, inputs=sn.Spec(SYMBOLS, "float64")), None),
        "table": (sn.RNN(of_vectors, params, memory=HIDDEN), params["E"]),
        "function": (sn.RNN(of_vectors, params, memory=HIDDEN), lambda symbols: params["E"][symbols]),
        "structure": (
            sn.RNN(lambda x, h, p: embedded(x["id"] - x["more"], h, p), params, memory=HIDDEN),
            lambda symbols: {"id": symbols + 1, "more": np.ones_like(symbols)},
        ),
    }[how]
    found = sn.generate(rnn, [0, 3, 1], feed=feed, max_steps=6, stop=4, engine=engine)
    assert lists(found) == expected


def test_scores_of_the_output(engine: str) -> None:
    params = weights(1)
    plain = sn.generate(model(params), [0, 3], max_steps=6, engine=engine)
    rnn = sn.RNN(
        lambda x, h, p: ({"h": embedded(x, h, p)[1]}, embedded(x, h, p)[1]),
        params,
        memory=HIDDEN,
        inputs=sn.Spec((), np.int64),
    )
    found = sn.generate(rnn, [0, 3], scores=lambda out: out["h"] @ params["V"], max_steps=6, engine=engine)
    assert found.equal(plain)


def test_initial_memories_statics_and_the_index_go_along(engine: str) -> None:
    """Sequences end at different steps, and each goes on with what is its own."""

    def step(x: Any, h: Any, p: Any, statics: Any, index: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + statics["bias"])
        return h @ p["V"] + sn.one_hot(index % 4, SYMBOLS, np.float64), h

    params, random = weights(1), np.random.default_rng(4)
    initial, bias = random.normal(size=(6, HIDDEN)), random.normal(size=(6, HIDDEN))
    starts = [[0], [3, 1], [1, 1, 2], [0], [4], [2, 2]]
    statics = {"bias": sn.Spec(HIDDEN)}
    rnn = sn.RNN(step, params, memory=HIDDEN, inputs=sn.Spec((), np.int64), statics=statics)
    found = sn.generate(
        rnn, ragged(starts), stop=3, max_steps=7, initial=initial, statics={"bias": bias}, engine=engine
    )
    assert len(set(found.lengths.tolist())) >= 3
    for place, start in enumerate(starts):
        h, given_, written = initial[place : place + 1], list(start), list[int]()
        for index in range(len(start) + 6):
            scores, h = step(np.array([given_[index]]), h, params, {"bias": bias[place]}, np.array([index]))
            if index + 1 >= len(start):
                written.append(int(scores.argmax()))
                given_.append(written[-1])
                if written[-1] == 3:
                    break
        assert lists(found)[place] == written


def test_a_stack_is_its_layers(engine: str) -> None:
    """The index goes on in every layer, and each has statics of its own."""

    def lower(x: Any, h: Any, p: Any, index: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + np.sqrt(index.astype(np.float64))[:, None] / 4)
        return h, h

    def upper(x: Any, h: Any, p: Any, statics: Any) -> Any:
        h = np.tanh(x @ p["R"] + h + statics)
        return h @ p["V"], h

    one, other = weights(1), weights(2)
    stack = sn.Stack(
        [
            sn.RNN(lower, one, memory=HIDDEN, inputs=sn.Spec((), np.int64)),
            sn.RNN(upper, other, memory=HIDDEN),
        ]
    )
    starts = [[0], [3, 1], [1, 1, 2]]
    bias = np.random.default_rng(5).normal(size=(3, HIDDEN))
    found = sn.generate(stack, ragged(starts), max_steps=6, stop=0, statics=(None, bias), engine=engine)
    for place, start in enumerate(starts):
        below, above = np.zeros((1, HIDDEN)), np.zeros((1, HIDDEN))
        given_ = list(start)
        for index in range(len(start) + 5):
            out, below = lower(np.array([given_[index]]), below, one, np.array([index]))
            scores, above = upper(out, above, other, bias[place])
            if index + 1 >= len(start):
                given_.append(int(scores.argmax()))
                if given_[-1] == 0:
                    break
        assert lists(found)[place] == given_[len(start) :]


# ---- samplers


@pytest.mark.parametrize("engine", ["interpret"])
def test_a_sampler_gets_scores_and_numbers_of_each_sequence(engine: str) -> None:
    seen: list[Array] = []

    def sampler(scores: Array, random: Array) -> Array:
        assert scores.shape == (len(random), SYMBOLS)
        seen.append(random)
        return (random * SYMBOLS).astype(int)

    found = sn.generate(model(weights()), [0] * 9, sampler=sampler, seed=7, max_steps=4, engine=engine)
    for step, random in enumerate(seen):
        expected = [
            sn.masks.uniform([1], seed=7, per="step", identities=[place], before=step).values[0]
            for place in range(9)
        ]
        assert random.tolist() == expected
        assert found.values.reshape(9, 4)[:, step].tolist() == [int(one * SYMBOLS) for one in expected]


def test_a_drawn_sequence_is_the_same_in_any_batch(engine: str) -> None:
    rnn, sampler = model(weights()), sn.sampling(temperature=1.5)
    starts = np.arange(12) % SYMBOLS
    every = sn.generate(rnn, starts, sampler=sampler, seed=3, stop=2, max_steps=20, engine=engine)
    again = sn.generate(rnn, starts, sampler=sampler, seed=3, stop=2, max_steps=20, engine=engine)
    other = sn.generate(rnn, starts, sampler=sampler, seed=4, stop=2, max_steps=20, engine=engine)
    assert again.equal(every)
    assert not other.equal(every)
    picked = [7, 2, 11]
    some = sn.generate(
        rnn, starts[picked], sampler=sampler, seed=3, stop=2, max_steps=20, identities=picked, engine=engine
    )
    assert some.equal(every.take(picked))


def test_sampling_draws_by_the_probabilities() -> None:
    """Counts within five standard deviations of those of each option, written out by hand."""
    scores = np.array([1.0, 3.0, -np.inf, 2.0, 0.5])
    cases: list[tuple[dict[str, Any], Array]] = [
        ({}, np.exp(scores)),
        ({"temperature": 0.5}, np.exp(2 * scores)),
        ({"top_k": 2}, np.exp(scores) * [0, 1, 0, 1, 0]),
        ({"top_k": 9}, np.exp(scores)),
        ({"top_p": 0.5}, np.array([0, 1, 0, 0, 0])),
        ({"top_p": 0.7}, np.exp(scores) * [0, 1, 0, 1, 0]),
        ({"top_p": 1.0, "temperature": 2.0}, np.exp(scores / 2)),
        ({"top_k": 3, "top_p": 0.95}, np.exp(scores) * [1, 1, 0, 1, 0]),
    ]
    count = 20000
    random = sn.masks.uniform([count], seed=1, per="step").values
    for options, expected in cases:
        drawn = sn.sampling(**options)(np.tile(scores, (count, 1)), random)
        chances = expected / expected.sum()
        found = np.bincount(drawn, minlength=5) / count
        assert (abs(found - chances) <= 5 * np.sqrt(chances * (1 - chances) / count)).all(), options


def test_sampling_with_the_smallest_and_largest_numbers() -> None:
    scores, random = np.log([[0.25, 0.5, 0.25]] * 4), np.array([0, 0.5 - 2**-53, 0.5, 1 - 2**-53])
    assert sn.sampling()(scores, random).tolist() == [1, 1, 0, 2]
    assert sn.sampling(top_k=2)(np.zeros((2, 3)), random[[0, 3]]).tolist() == [0, 1], "equals in their order"


@pytest.mark.long(each=True)
@pytest.mark.parametrize("size", [1.0, 1e300])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 2, "top_p": 1.0}])
def test_no_temperature_is_too_low_for_the_scores(size: float, options: dict[str, Any]) -> None:
    """Scores are divided by it: by 1e-308 they would be infinite."""
    params = {**weights(), "V": weights()["V"] * size}
    sampler = sn.sampling(1e-308, **options)
    best = sn.generate(model(params), [0, 1, 2], max_steps=6)
    for engine in ("interpret", "llvm"):
        drawn = sn.generate(model(params), [0, 1, 2], max_steps=6, sampler=sampler, engine=engine)
        assert lists(drawn) == lists(best), engine


def test_scores_of_unsigned_numbers_are_ranked() -> None:
    scores = np.array([[0, 30, 60], [90, 0, 30]], "uint8")
    assert sn.sampling(top_k=1)(scores, np.array([0.5, 0.5])).tolist() == [2, 0]


def test_drawn_sequences_have_the_probabilities_of_the_model() -> None:
    """All sequences of two symbols, by the products of their probabilities."""
    params, count = weights(1, 3), 6000
    found = sn.generate(
        model(params), np.zeros(count, int), sampler=sn.sampling(), max_steps=2, seed=2, engine="interpret"
    )
    pairs = np.bincount(found.values.reshape(count, 2) @ [3, 1], minlength=9) / count
    first, h = embedded(np.array([0]), np.zeros((1, HIDDEN)), params)
    chances = np.concatenate(
        [
            probabilities(first[0])[symbol] * probabilities(embedded(np.array([symbol]), h, params)[0][0])
            for symbol in range(3)
        ]
    )
    assert (abs(pairs - chances) <= 5 * np.sqrt(chances * (1 - chances) / count)).all()


# ---- beams


def log_of(params: Any, said: list[int], written: tuple[int, ...]) -> float:
    """The log-probability of a sequence behind a start, by a loop."""
    h, total = np.zeros((1, HIDDEN)), 0.0
    for place, symbol in enumerate([*said, *written][:-1]):
        scores, h = embedded(np.array([symbol]), h, params)
        if place + 1 >= len(said):
            total += np.log(probabilities(scores[0])[written[place + 1 - len(said)]])
    return total


def every_sequence(symbols: int, most: int, stops: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All sequences that end with a stop symbol, or are as long as may be."""
    return [
        one
        for length in range(1, most + 1)
        for one in itertools.product(range(symbols), repeat=length)
        if not set(one[:-1]) & set(stops) and (one[-1] in stops or length == most)
    ]


def assert_beams(found: Any, expected: list[list[tuple[float, tuple[int, ...]]]], most: int) -> None:
    """Asserts the sequences and their logs, in order; `expected` per start."""
    sequences, logs = found
    assert (sequences.levels, logs.levels, logs.dtype) == (2, 1, np.float64)
    for place, wanted in enumerate(expected):
        assert list(map(tuple, lists(sequences[place]))) == [one for _, one in wanted]
        assert_close(logs[place], [log for log, _ in wanted], most, HIDDEN)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("stops", [(), (0,), (2, 1)])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_wide_beams_find_the_best_of_all_sequences(
    stops: tuple[int, ...], penalty: float, engine: str
) -> None:
    starts, most = [[0], [2, 1], [1, 1, 0]], 4
    for seed in range(3):
        params = weights(seed, 3)
        found = sn.beam_search(
            model(params),
            ragged(starts),
            beams=81,
            max_steps=most,
            stop=stops,
            length_penalty=penalty,
            engine=engine,
        )
        expected = []
        for start in starts:
            every = [(log_of(params, start, one), one) for one in every_sequence(3, most, stops)]
            expected.append(sorted(every, key=lambda one: -one[0] / len(one[1]) ** penalty))
        assert_beams(found, expected, most)


def narrow(
    params: Any, start: list[int], beams: int, most: int, stops: tuple[int, ...], penalty: float
) -> list[tuple[float, tuple[int, ...]]]:
    """The search in plain Python, which never ends early."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[tuple[float, tuple[int, ...]]] = []
    for step in range(most):
        longer = [
            (log_of(params, start, (*one, symbol)), (*one, symbol))
            for _, one in live
            for symbol in range(SYMBOLS)
        ]
        longer.sort(key=lambda one: -one[0])
        found += [one for one in longer if one[1][-1] in stops]
        live = [one for one in longer if one[1][-1] not in stops][:beams]
        found += live if step + 1 == most else []
    found.sort(key=lambda one: -one[0] / len(one[1]) ** penalty)
    return found[:beams]


@pytest.mark.long(examples=5)
@settings(max_examples=15)
@given(
    st.integers(0, 20),
    said,
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([(), (0,), (1, 3)]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
def test_narrow_beams_are_the_search_written_out(
    engine: str,
    seed: int,
    starts: list[list[int]],
    beams: int,
    most: int,
    stops: tuple[int, ...],
    penalty: float,
) -> None:
    params = weights(seed)
    found = sn.beam_search(
        model(params),
        ragged(starts),
        beams=beams,
        max_steps=most,
        stop=stops,
        length_penalty=penalty,
        engine=engine,
    )
    assert_beams(found, [narrow(params, one, beams, most, stops, penalty) for one in starts], most)
    assert len(found[0]) == len(found[1]) == len(starts)


def test_one_beam_without_a_stop_is_the_best_symbol_each_time(engine: str) -> None:
    params = weights(1)
    sequences, logs = sn.beam_search(model(params), [0, 3, 1], beams=1, max_steps=6, engine=engine)
    greedy = sn.generate(model(params), [0, 3, 1], max_steps=6, engine=engine)
    assert sequences.inner().equal(greedy)
    assert logs.lengths.tolist() == [1, 1, 1]


def test_a_search_ends_when_nothing_can_be_better() -> None:
    """A model that stops with probability 0.9 has its two best after two steps, or three of 1000."""
    fed: list[list[int]] = []
    rnn = sn.RNN(lambda x, h, p: (p + 0 * h, h), np.log([0.1, 0.9]), memory=1)

    def feed(symbols: Array) -> Array:
        fed.append(symbols.tolist())
        return np.ones((len(symbols), 2))

    sequences, logs = sn.beam_search(rnn, [0], beams=2, max_steps=1000, stop=1, feed=feed, engine="interpret")
    assert lists(sequences[0]) == [[1], [0, 1]]
    assert_close(logs[0], np.log([0.9, 0.09]))
    assert fed == [[0], [0]]


def test_a_longer_sequence_may_be_better_for_its_length() -> None:
    """The search goes on though the sequence that has stopped is likelier than what is left."""
    rnn = sn.RNN(lambda x, h, p: (p + 0 * h, h), np.log([0.4, 0.6]), memory=1, inputs=2)
    ranked = {0.0: [1], 2.0: [0, 0, 1]}
    for penalty, best in ranked.items():
        sequences, logs = sn.beam_search(
            rnn, [0], beams=1, max_steps=3, stop=1, length_penalty=penalty, engine="interpret"
        )
        assert lists(sequences[0]) == [best]
        assert_close(logs[0], [np.log([0.4, 0.6])[best].sum()])


def test_impossible_symbols_are_never_written(engine: str) -> None:
    follows = np.array([[-np.inf, 1.0, -np.inf], [-np.inf, -np.inf, 1.0], [1.0, -np.inf, -np.inf]])
    rnn = sn.RNN(
        lambda x, h, p: (p[x], h + 1), follows, memory=sn.Spec((), np.int64), inputs=sn.Spec((), np.int64)
    )
    sequences, logs = sn.beam_search(rnn, [0, 1], beams=4, max_steps=3, engine=engine)
    assert [lists(each) for each in sequences] == [[[1, 2, 0]], [[2, 0, 1]]]
    assert logs.values.tolist() == [0, 0]


def test_beams_go_along_with_memories_and_statics(engine: str) -> None:
    """Each start alone gives what all together give."""

    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + statics)
        return h @ p["V"], h

    random, params = np.random.default_rng(4), weights(1)
    initial, bias = random.normal(size=(3, HIDDEN)), random.normal(size=(3, HIDDEN))
    rnn = sn.RNN(step, params, memory=HIDDEN, inputs=sn.Spec((), np.int64), statics=HIDDEN)
    options: Any = {"beams": 3, "max_steps": 5, "stop": 2, "engine": engine}
    sequences, logs = sn.beam_search(rnn, [0, 0, 0], initial=initial, statics=bias, **options)
    assert not np.array_equal(logs[0], logs[1])
    for place in range(3):
        rows = slice(place, place + 1)
        one, log = sn.beam_search(rnn, [0], initial=initial[rows], statics=bias[rows], **options)
        assert sequences[rows].equal(one)
        assert logs[rows].equal(log)


# ---- what is refused

RNN = model(weights())
NARROW = sn.RNN(lambda x, h, p: (x, h), memory=1, inputs=3)
OTHER = sn.RNN(lambda x, h, p: ({"a": x, "b": h}, h), memory=1, inputs=3)
NONE = sn.RNN(lambda x, h, p: (x * np.nan, h), memory=1, inputs=3)
BACKWARD = sn.RNN(lambda x, h, p: (x, h), memory=1, inputs=3, reverse=True)
ENDING = sn.RNN(lambda x, h, p: (x, h), memory=1, inputs=3, until=lambda output, memory: memory[:, 0] > 0)
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (RNN, {"max_steps": None}, "max_steps= is missing: a sequence that never stops has to end somewhere"),
    (RNN, {"max_steps": 0}, "max_steps is the most symbols of a sequence, 1 or more, not 0"),
    (RNN, {"max_steps": 2.5}, "max_steps is the most symbols of a sequence, 1 or more, not 2.5"),
    (RNN, {"stop": 5}, "stop is 5, and there are scores of 5 symbols"),
    (RNN, {"stop": -1}, "stop[0] is -1, and must not be negative"),
    (RNN, {"stop": "end"}, "stop is whole numbers, one or a list of them, not <U3[]"),
    (RNN, {"stop": 2.0}, "stop is whole numbers, one or a list of them, not float64[]"),
    (RNN, {"start": [0.5]}, "start is whole numbers from 0: one symbol per sequence [batch], or a Ragged or"),
    (RNN, {"start": 3}, "not int64[]"),
    (RNN, {"start": [1, -1]}, "start has the symbol -1, and symbols are whole numbers from 0"),
    (RNN, {"start": ragged([[1], [0, -3]])}, "start has the symbol -3, and symbols are whole numbers from 0"),
    (RNN, {"start": sn.Ragged.from_list([np.zeros((2, 5))])}, "not Ragged(1 sequence of 2 steps, 5 features"),
    (RNN, {"start": ragged([[1], []])}, "start has no symbol in sequence 1; a first symbol says what may"),
    (NARROW, {"start": [3]}, "symbol 3 is none of the 3 that can be fed"),
    (RNN, {"start": [2], "feed": np.zeros((2, 3))}, "symbol 2 is none of the 2 that can be fed"),
    (
        sn.RNN(embedded, weights(), memory=HIDDEN),
        {},
        "it is not known how symbols become inputs: make the model",
    ),
    (
        RNN,
        {"sampler": lambda scores, random: scores[:, 0]},
        "a sampler gives 2 whole numbers, one per row, not",
    ),
    (RNN, {"sampler": lambda scores, random: [7, 0]}, "the sampler gave symbol 7, and there are 5"),
    (RNN, {"scores": lambda out: out[:, 0]}, "scores are [rows, symbols], and the output is float64[2]"),
    (OTHER, {}, "scores are [rows, symbols], and the output is a dict; scores= makes them of it"),
    (NONE, {}, "the scores of row 0 have no highest: [nan nan nan]"),
    (RNN, {"identities": [1]}, "identities is 2 whole numbers, one per sequence, not int64[1]"),
    (BACKWARD, {}, "symbols follow one another: a recurrence with reverse=True begins at a sequence's last"),
    (sn.Stack([BACKWARD]), {}, "symbols follow one another: layer 0: a recurrence with reverse=True begins"),
    (sn.Bidirectional(NARROW, BACKWARD), {}, "symbols follow one another: a Bidirectional begins at a"),
    (ENDING, {}, "generated sequences end by stop=; make the recurrence without until="),
    ("gru", {}, "rnn is an RNN, a Stack, a Bidirectional or a Graph, not 'gru': give a model such as"),
]


@pytest.mark.parametrize(("rnn", "options", "message"), WRONG)
def test_what_cannot_be_generated(rnn: Any, options: dict[str, Any], message: str) -> None:
    given_ = {"start": [0, 1], "max_steps": 3, "engine": "interpret"} | options
    with pytest.raises(InputError, match=re.escape(message)):
        sn.generate(rnn, **given_)


def test_a_generator_without_a_limit() -> None:
    for make in (sn.generate, lambda *given_: sn.beam_search(*given_, beams=2)):
        with pytest.raises(InputError, match="max_steps= is missing"):
            make(RNN, [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams is how many sequences are kept, 1 or more, not 0"),
        ({"beams": 1.5}, "beams is how many sequences are kept, 1 or more, not 1.5"),
        ({"length_penalty": -1}, "length_penalty is 0 or more, not -1"),
        ({"stop": 5}, "stop is 5, and there are scores of 5 symbols"),
    ],
)
def test_beams_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        sn.beam_search(RNN, [0], **{"beams": 2, "max_steps": 3, "engine": "interpret"} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature is above 0, not 0; without a sampler the best is taken"),
        ({"top_k": 0}, "top_k is how many symbols may be drawn, 1 or more, not 0"),
        ({"top_p": 0}, "top_p is a probability above 0, not 0"),
        ({"top_p": 1.1}, "top_p is a probability above 0, not 1.1"),
    ],
)
def test_sampling_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        sn.sampling(**options)
