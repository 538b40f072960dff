"""Statics that are sequences: attention inside a step, over keys of lengths of their own, against loops."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError, StepError

Array = np.ndarray
RANDOM = np.random.default_rng(21)
PARAMS = {
    "W": RANDOM.uniform(-1, 1, (3, 4)).astype("float32"),
    "R": RANDOM.uniform(-0.5, 0.5, (4, 4)).astype("float32"),
    "K": RANDOM.uniform(-1, 1, (2, 4)).astype("float32"),
}


def attention(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """A recurrence that looks at keys, by its memory, and takes in a mean of values."""
    keys, values = statics["keys"] @ p["K"], statics["values"]
    weights = sn.softmax_over_steps(np.sum(keys * sn.expand(h, keys), axis=-1))
    context = sn.reduce(values * weights[:, None], "sum")
    h = np.tanh(x @ p["W"] + h @ p["R"] + context)
    return {"h": h, "context": context}, h


def by_hand(xs: Array, keys: Array, values: Array, h: Array) -> tuple[Array, Array, Array]:
    """The same for one sequence: the outputs, the contexts, the last memory."""
    outputs, contexts = np.zeros((len(xs), 4)), np.zeros((len(xs), 4))
    for at, x in enumerate(xs):
        context = np.zeros((1, 4))
        if len(keys):
            scores = (keys @ PARAMS["K"].astype("float64")) @ h[0]
            weights = np.exp(scores - scores.max())
            context = (weights / weights.sum()) @ values
        h = np.tanh(x[None] @ PARAMS["W"] + h @ PARAMS["R"] + context)
        outputs[at], contexts[at] = h[0], context
    return outputs, contexts, h


def sequences(lengths: list[int], features: int) -> sn.Ragged:
    """Random sequences."""
    return sn.Ragged.from_list(
        [RANDOM.uniform(-1, 1, (length, features)).astype("float32") for length in lengths]
        or [np.zeros((0, features), "float32")]
    )


@pytest.mark.long(examples=6)
@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=4),
    st.sampled_from(["interpret", "llvm"]),
)
def test_attention_is_what_a_loop_gives(lengths: list[tuple[int, int]], engine: str):
    xs, keys = sequences([n for n, _ in lengths], 3), sequences([n for _, n in lengths], 2)
    values = keys.with_values(RANDOM.uniform(-1, 1, (keys.total, 4)).astype("float32"))
    rnn = sn.RNN(attention, PARAMS, memory=4)
    outputs, final = rnn(xs, statics={"keys": keys, "values": values}, engine=engine)
    by_row = zip(xs.to_list(), keys.to_list(), values.to_list(), strict=True)
    for place, (x, key, value) in enumerate(by_row):
        h, contexts, last = by_hand(x, key, value, np.zeros((1, 4)))
        assert_close(outputs["h"][place], h, 20, 8)
        assert_close(outputs["context"][place], contexts, 20, 8)
        assert_close(final[place : place + 1], last, 20, 8)


def test_what_is_the_same_at_every_step_is_done_once():
    rnn = sn.RNN(attention, PARAMS, memory=4)
    keys = sequences([3, 2], 2)
    values = keys.with_values(np.ones((5, 4), "float32"))
    rnn(sequences([2, 1], 3), statics={"keys": keys, "values": values})
    first, whole = rnn.schedule.parts
    assert (first.kind, whole.kind) == ("plain", "recurrence")
    assert "@" in rnn.explain().partition("part 1")[0]


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
def test_arrays_with_statics_that_are_sequences(engine: str, lengths: list[int] | None):
    x = RANDOM.uniform(-1, 1, (3, 4, 3)).astype("float32")
    keys = sequences([2, 0, 3], 2)
    statics = {"keys": keys, "values": keys.with_values(np.ones((5, 4), "float32"))}
    rnn = sn.RNN(attention, PARAMS, memory=4)
    outputs, final = rnn(x, statics=statics, lengths=lengths, engine=engine)
    counts = lengths or [4, 4, 4]
    ragged = sn.Ragged.from_list([row[:count] for row, count in zip(x, counts, strict=True)])
    right, last = rnn(ragged, statics=statics, engine=engine)
    assert outputs["h"].shape == (3, 4, 4)
    for row, count in enumerate(counts):
        np.testing.assert_array_equal(outputs["h"][row, :count], right["h"][row])
        assert not outputs["h"][row, count:].any()
    np.testing.assert_array_equal(final, last)


def test_a_recurrence_over_a_static(engine: str):
    def reads(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["K"] + h @ p["R"])
        return h, h

    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        read, last = encoder(statics, initial=h)
        h = np.tanh(x @ p["W"] + last + sn.reduce(read, "mean"))
        return h, h

    encoder = sn.RNN(reads, PARAMS, memory=4)
    xs, keys = sequences([2, 1], 3), sequences([3, 0], 2)
    outputs, _ = sn.RNN(step, PARAMS, memory=4)(xs, statics=keys, engine=engine)
    for place in range(2):
        h = np.zeros((1, 4))
        for at, x in enumerate(xs.to_list()[place]):
            c, read = h, []
            for key in keys.to_list()[place]:
                c = np.tanh(key[None] @ PARAMS["K"] + c @ PARAMS["R"])
                read.append(c)
            mean = np.mean(read, axis=0) if read else np.zeros((1, 4))
            h = np.tanh(x[None] @ PARAMS["W"] + c + mean)
            assert_close(outputs[place][at : at + 1], h, 20, 8)


def test_a_sequence_is_the_same_whatever_is_beside_it():
    xs, keys = sequences([3, 5, 0, 1], 3), sequences([4, 1, 2, 9], 2)
    values = keys.with_values(RANDOM.uniform(-1, 1, (keys.total, 4)).astype("float32"))
    rnn = sn.RNN(attention, PARAMS, memory=4)
    together, _ = rnn(xs, statics={"keys": keys, "values": values})
    for place in range(4):
        one = slice(place, place + 1)
        alone, _ = rnn(xs[one], statics={"keys": keys[one], "values": values[one]})
        np.testing.assert_array_equal(alone["h"][0], together["h"][place])


# ---- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statics", "expected"),
    [
        (sequences([1, 2, 3], 2), "static is of 3 rows; there are 2 sequences"),
        (
            {"a": sequences([1, 2], 2), "b": np.ones((1, 2))},
            r"static b is \[1, 2\]; its first axis should be the 2 sequences",
        ),
        (
            sn.Ragged(np.ones((2, 2)), (np.array([0, 1, 2]), np.array([0, 1, 2]))),
            "static has 2 levels; a static is one sequence for each row",
        ),
    ],
)
def test_statics_that_do_not_fit(statics: Any, expected: str):
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        return h, h

    with pytest.raises(InputError, match=expected):
        sn.RNN(step, memory=4)(sequences([1, 2], 3), statics=statics)


def test_lengths_that_differ_do_not_meet():
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        return sn.reduce(statics["a"] * statics["b"], "sum"), h

    with pytest.raises(
        StepError,
        match=r"values along different axes meet: rows/a and rows/b; they are of.*\n.*test_attention",
    ):
        sn.RNN(step, memory=4)(sequences([1], 3), statics={"a": sequences([1], 2), "b": sequences([2], 2)})


def test_a_sequence_that_is_no_output():
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        return statics * 2, h

    with pytest.raises(StepError, match="the output is a sequence per row: reduce it"):
        sn.RNN(step, memory=4)(sequences([1], 3), statics=sequences([1], 2))


# ---- control and streams -------------------------------------------------------------------------------


def given_to_attention(dtype: str = "float32") -> tuple[sn.Ragged, dict[str, sn.Ragged]]:
    """Inputs of four sequences, and keys with values."""
    xs, keys = sequences([3, 0, 1, 5], 3), sequences([2, 4, 0, 3], 2)
    return xs, {"keys": keys, "values": keys.with_values(RANDOM.uniform(-1, 1, (9, 4)).astype(dtype))}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("form", ["ragged", "padded"])
@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_masked_steps_are_left_out(engine: str, masked: str, form: str):
    xs, statics = given_to_attention()
    mask = xs.with_values(np.array([1, 0, 1, 0, 0, 1, 1, 0, 1], bool))
    rnn = sn.RNN(attention, PARAMS, memory=4)
    given: dict[str, Any] = {"sequences": xs, "mask": mask}
    if form == "padded":
        given = {"sequences": xs.to_padded()[0], "mask": mask.to_padded()[0], "lengths": xs.lengths}
    outputs, final = rnn(**given, statics=statics, masked=masked, engine=engine)
    found = outputs["h"] if form == "ragged" else sn.Ragged.from_padded(outputs["h"], xs.lengths)
    kept = [x[counts] for x, counts in zip(xs.to_list(), mask.to_list(), strict=True)]
    right, last = rnn(sn.Ragged.from_list(kept), statics=statics, engine=engine)
    np.testing.assert_array_equal(final, last)
    for one, counts, wanted in zip(found.to_list(), mask.to_list(), right["h"].to_list(), strict=True):
        np.testing.assert_array_equal(one[counts], wanted)
        before = np.zeros(4, "float32")
        for h, counted in zip(one, counts, strict=True):
            before = h if counted or masked == "zero" else before
            np.testing.assert_array_equal(h, before if counted or masked == "repeat" else np.zeros(4))


def counting(x: Any, h: Any, p: Any, statics: Any, index: Any) -> tuple[Any, Any]:
    """Attention that knows how many steps were."""
    output, h = attention(x + index[:, None].astype(np.float32), h, p, statics)
    return output["h"], h


def test_steps_before_a_call_are_counted(engine: str):
    xs, statics = given_to_attention()
    rnn = sn.RNN(counting, PARAMS, memory=4)
    whole, last = rnn(xs, statics=statics, engine=engine)
    h, begun = None, np.zeros(4, np.int64)
    pieces: list[list[Array]] = [[], [], [], []]
    for steps in (2, 1, 9):
        piece = sn.Ragged.from_list([x[at : at + steps] for x, at in zip(xs.to_list(), begun, strict=True)])
        outputs, h = rnn(piece, h, statics, engine=engine, begun=begun)
        begun += piece.lengths
        for rows, output in zip(pieces, outputs.to_list(), strict=True):
            rows.append(output)
    np.testing.assert_array_equal(h, last)
    for rows, right in zip(pieces, whole.to_list(), strict=True):
        np.testing.assert_array_equal(np.concatenate(rows), right)


def test_a_stream_with_statics_that_are_sequences(engine: str):
    xs, statics = given_to_attention()
    x = xs.to_padded()[0]
    rnn = sn.RNN(counting, PARAMS, memory=4)
    whole, last = rnn(x, statics=statics, engine=engine)
    stream = rnn.stream(4, statics=statics, engine=engine)
    for at in range(5):
        np.testing.assert_array_equal(stream.step(x[:, at]), whole[:, at])
    np.testing.assert_array_equal(stream.state, last)
    # rows 1 and 3 begin anew, with the statics and a memory of others
    keys, values = (one.take([0, 1]) for one in statics.values())
    initial = RANDOM.uniform(-1, 1, (2, 4)).astype("float32")
    stream.reset([1, 3], initial, {"keys": keys, "values": values})
    again = stream.step(x[:, 0])
    right, _ = rnn(x[[1, 3], :1], initial, {"keys": keys, "values": values}, engine=engine)
    np.testing.assert_array_equal(again[[1, 3]], right[:, 0])
    still = {name: one.take([0, 2]) for name, one in statics.items()}
    others, _ = rnn(x[[0, 2], :1], last[[0, 2]], still, begun=5, engine=engine)
    np.testing.assert_array_equal(again[[0, 2]], others[:, 0])


@pytest.mark.parametrize(
    ("rows", "statics", "message"),
    [
        ([1], {"keys": None}, r"the statics are \{.*keys.*\}; they were \{.*keys.*values.*\}"),
        ([1], None, "static keys is Ragged.2 sequences.*of 1 rows"),
        ([0, 1], "arrays", "static keys is a ndarray.*as those the stream began with, of 2 rows"),
    ],
)
def test_statics_that_a_stream_cannot_go_on_with(rows: Any, statics: Any, message: str):
    xs, given = given_to_attention()
    stream = sn.RNN(counting, PARAMS, memory=4).stream(4, statics=given)
    stream.step(xs.to_padded()[0][:, 0])
    if statics is None:
        statics = {name: one.take([0, 1]) for name, one in given.items()}
    if statics == "arrays":
        statics = {name: np.ones((2, 3), "float32") for name in given}
    with pytest.raises(InputError, match=message):
        stream.reset(rows, statics=statics)


def stops(output: Any, h: Any) -> Any:
    return output["h"][:, 0] > 0.2


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", ["ragged", "padded"])
def test_sequences_that_end_early(
    engine: str, form: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(1))  # in any order of tests some end early
    lengths = [3, 0, 1, 40, 25, 30]
    xs, keys = sequences(lengths, 3), sequences([2, 4, 0, 3, 1, 6], 2)
    statics = {"keys": keys, "values": keys.with_values(RANDOM.uniform(-1, 1, (16, 4)).astype("float32"))}
    rnn = sn.RNN(attention, PARAMS, memory=4, reverse=reverse, until=stops)
    whole, _ = sn.RNN(attention, PARAMS, memory=4, reverse=reverse)(xs, statics=statics, engine=engine)
    given: dict[str, Any] = {"sequences": xs}
    if form == "padded":
        given = {"sequences": xs.to_padded()[0], "lengths": lengths}
    outputs, final = rnn(**given, statics=statics, engine=engine)
    last, same = rnn(**given, statics=statics, engine=engine, last_only=True)
    np.testing.assert_array_equal(same, final)
    ended = 0
    for row, all_steps in enumerate(whole["h"].to_list()):
        order = all_steps[::-1] if reverse else all_steps
        places = np.flatnonzero(order[:, 0] > 0.2)
        kept = order[: places[0] + 1] if len(places) else order
        ended += len(kept) < len(order)
        right = kept[::-1] if reverse else kept
        # NumPy's products depend on how many rows there are
        same_bits = np.testing.assert_array_equal if engine == "llvm" else assert_close
        same_bits(outputs["h"][row], right)
        same_bits(final[row], kept[-1] if len(kept) else np.zeros(4, "float32"))
        same_bits(last["h"][row], kept[-1] if len(kept) else np.zeros(4, "float32"))
    assert ended >= 3


# ---- what is written by attention ----------------------------------------------------------------------


def writing(symbol: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """A decoder: it looks at keys, and gives a score for each of four symbols."""
    output, h = attention(p["E"][symbol], h, p, statics)
    return output["h"] @ p["V"], h


def decoder() -> tuple[sn.RNN, dict[str, Array]]:
    random = np.random.default_rng(5)
    params = {**PARAMS, "E": random.normal(size=(4, 3)), "V": random.normal(size=(4, 4)) * 2}
    params = {name: array.astype("float64") for name, array in params.items()}
    return sn.RNN(writing, params, memory=4), params


def decoded(params: dict[str, Array], keys: Array, values: Array, start: int, most: int) -> list[int]:
    """The best symbols, one after the other, by hand."""
    h, symbol, written = np.zeros((1, 4)), start, list[int]()
    while len(written) < most and symbol != 3:
        _, _, h = by_hand(params["E"][symbol][None], keys, values, h)
        symbol = int((h @ params["V"]).argmax())
        written.append(symbol)
    return written


def test_a_decoder_writes_what_a_loop_writes(engine: str):
    rnn, params = decoder()
    _, given = given_to_attention("float64")
    statics = {name: one.with_values(one.values.astype("float64")) for name, one in given.items()}
    starts = [0, 1, 2, 0]
    options: dict[str, Any] = {"feed": np.asarray, "stop": 3, "max_steps": 6, "engine": engine}
    found = sn.generate(rnn, starts, statics=statics, **options)
    pairs = zip(statics["keys"].to_list(), statics["values"].to_list(), starts, strict=True)
    right = [decoded(params, keys, values, start, 6) for keys, values, start in pairs]
    assert [one.tolist() for one in found.to_list()] == right
    assert len({len(one) for one in right}) > 1
    beams, logs = sn.beam_search(rnn, starts, beams=3, statics=statics, **options)
    last = {name: one.take([3]) for name, one in statics.items()}
    alone, log = sn.beam_search(rnn, starts[3:], beams=3, statics=last, **options)
    assert beams.take([3]).equal(alone)
    assert logs.take([3]).equal(log)


# ---- training ------------------------------------------------------------------------------------------


def test_gradients_of_attention_to_wide_keys_are_those_of_finite_differences():
    """The parts of the backward pass, which several threads may share, read the keys or not."""
    sn.set_threads(2)
    random = np.random.default_rng(6)
    params = {name: random.normal(0, 0.3, (16, 4)) for name in ("K", "V")}

    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        weights = sn.softmax_over_steps(np.sum(statics * sn.expand(h @ p["K"].T, statics), axis=-1))
        h = np.tanh(x + sn.reduce(statics * weights[:, None], "sum") @ p["V"])
        return h, h

    rnn, xs, keys = sn.RNN(step, params, memory=4), random.normal(size=(2, 3, 4)), random.normal(size=(5, 16))
    statics = sn.Ragged(keys, (np.array([0, 3, 5]),))
    train = sn.value_and_grad(lambda y, t: np.sum((y - t) ** 2, axis=-1), rnn)
    targets = np.ones((2, 3, 4))
    _, gradients = train(xs, targets, statics=statics)
    for name, array in params.items():
        moved = 1e-6 * random.normal(size=array.shape)
        above, below = (
            train(xs, targets, statics=statics, params={**params, name: array + sign * moved})[0]
            for sign in (1, -1)
        )
        np.testing.assert_allclose((above - below) / 2, np.sum(gradients.params[name] * moved), rtol=1e-5)
