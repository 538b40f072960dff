"""Calls of few sequences, prepared for any lengths: bit for bit what first calls give."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from callers import interrupt, on_threads
from constants import Constants
from same_bits import assert_same_bits
from sharing import every_step_shared
from zoo import normal, rnn_of, simple, uniform

import stepnet as sn
from stepnet.errors import InputError
from stepnet.model import programs

Array = np.ndarray
RANDOM = np.random.default_rng(0)
RUNNING = "stepnet.compiler.targets.cpu.running"
pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture(autouse=True)
def one_thread(same_threads: None) -> None:
    """Calls run in one thread, but where a test asks for more."""
    sn.set_threads(1)


def both(inputs: int, seed: int) -> sn.Bidirectional:
    ahead, back = rnn_of("gru", inputs, 8, seed=seed), rnn_of("lstm", inputs, 8, seed=seed, reverse=True)
    return sn.Bidirectional(ahead, back)


def counter(x: Any, memory: Any, params: Any, index: Any) -> tuple[Any, Any]:
    """A step with a memory of integers and one of floats, which reads how many steps came before."""
    count, total = memory
    total = np.tanh(x @ params + total) + 0.01 * index[:, None].astype("float32")
    return {"count": count + 1, "total": total}, (count + 1, total)


def is_large(output: Any, memory: Any) -> Any:
    return output[..., 0] > 0.1


def tagger() -> sn.Graph:
    model, params = sn.Stack([both(4, 0), both(16, 1)]), {"E": normal(50, 4), "W": normal(16, 3)}
    return sn.Graph(lambda x, p: sn.softmax(model(p["E"][x])[0] @ p["W"]), params)


def classifier() -> sn.Graph:
    """The last memory of a layer, and a value per step."""
    layer = rnn_of("gru", 4, 8)
    return sn.Graph(lambda x, p: {"class": layer(x)[1] @ p, "x": layer(x)[0]}, normal(8, 3))


def strides() -> sn.Graph:
    """Outputs of fewer and of more steps than the sequences: none of fewer for a sequence of one step."""
    layer = rnn_of("gru", 8, 8)

    def model(x: Any, p: Any) -> Any:
        fewer = sn.conv1d(x, p["down"], stride=2, padding="valid")
        h = layer(fewer)[0] + fewer
        more = sn.conv_transpose1d(h, p["up"], stride=3)
        return {"fewer": h, "more": more, "x": x @ p["down"][0], "mean": sn.reduce(h, "mean")}

    return sn.Graph(model, {"down": normal(8, 4, 2), "up": normal(8, 3, 4)})


MODELS: dict[str, Any] = {
    "gru": lambda: rnn_of("gru", 4, 8),
    "lstm, reverse": lambda: rnn_of("lstm", 4, 8, reverse=True),
    "stack": lambda: sn.Stack([rnn_of("gru", 4, 8), rnn_of("lstm", 8, 8)]),
    "directions": lambda: sn.Stack([both(4, 0), both(16, 1)]),
    "memories": lambda: sn.RNN(
        counter, normal(4, 8), memory=(sn.Spec((), "int32"), sn.Spec(8, "float32")), inputs=4
    ),
    "tagger": tagger,
    "classifier": classifier,
    "strides": strides,
}
PREPARED = MODELS.keys() - {"classifier"}  # whose parts run in one go


def values(name: str, shape: tuple[int, ...]) -> Array:
    if name == "tagger":
        return RANDOM.integers(0, 50, shape)
    return RANDOM.normal(size=(*shape, 4)).astype("f4")


def sequences(name: str, lengths: Any) -> sn.Ragged:
    return sn.Ragged(values(name, (int(sum(lengths)),)), (np.cumsum([0, *lengths]).astype(np.int64),))


def kept(model: Any) -> list[programs.CallExecutable[Any]]:
    """The calls of a model that are prepared for any lengths."""
    return [one for idle in model.programs.calls.idle.values() for one in idle if one.prepared.longest]


def prepared(name: str, rows: int) -> Any:
    """A model with a call that is prepared for so many sequences."""
    model = MODELS[name]()
    for length in (3, 4, 2):
        model(sequences(name, [length] * rows))
    assert [one.prepared.longest for one in kept(model)] == [programs.LONGEST] * (name in PREPARED)
    return model


@pytest.mark.long(each=True)
@pytest.mark.parametrize("rows", [1, 2, 16, 64, 150])
@pytest.mark.parametrize("name", MODELS)
def test_sequences_of_lengths_never_seen_have_the_bits_of_a_first_call(name: str, rows: int):
    model = prepared(name, rows)
    results, expected = list[Any](), list[Any]()
    for _ in range(6):
        x = sequences(name, RANDOM.integers(1, 12, rows))
        results.append(model(x))
        expected.append(MODELS[name]()(x))
    assert_same_bits(results, expected)  # after all calls: none wrote into the results of another


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_arrays_of_lengths_never_seen(name: str):
    model = prepared(name, 3)
    for length in (5, 1, 9, 6):
        x = values(name, (3, length))
        assert_same_bits(model(x), MODELS[name]()(x))
    assert len(kept(model)) == (name in PREPARED)


@pytest.mark.long(pairs=True)
@pytest.mark.alone  # threads that wait for one another
@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("way", ["rows", "units"])
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", ["gru", "directions", "tagger"])
def test_threads_share_calls_of_lengths_never_seen(
    name: str, threads: int, way: str, monkeypatch: pytest.MonkeyPatch
):
    """By their sequences or by the units of each step, and both directions of one sequence at once."""
    lengths = {1: (1, 12), 5: (1, 12), 64: (2, 4)}
    inputs = {
        rows: [sequences(name, RANDOM.integers(*ends, rows)) for _ in range(6)]
        for rows, ends in lengths.items()
    }
    expected = {rows: [MODELS[name]()(x) for x in several] for rows, several in inputs.items()}
    sn.set_threads(threads)
    for rows, several in inputs.items():
        with every_step_shared(way == "units"), monkeypatch.context() as patch:
            model = prepared(name, rows)
            patch.setattr(f"{RUNNING}.prepared_chain.PreparedChain.__init__", None)  # nothing new is prepared
            assert_same_bits([model(x) for x in several], expected[rows])


@pytest.mark.usefixtures("small_calls_are_shared")
def test_threads_whose_lanes_would_have_several_sequences_are_not_prepared():
    """Python assigns the sequences to lanes at each call."""
    sn.set_threads(2)
    model = MODELS["gru"]()
    for _ in range(4):
        x = sequences("gru", RANDOM.integers(1, 12, 65))
        assert_same_bits(model(x), MODELS["gru"]()(x))
    assert not kept(model)


@pytest.mark.usefixtures("small_calls_are_shared")
def test_thousands_of_sequences_whose_lengths_come_again_are_prepared_for_these():
    sn.set_threads(2)
    model, x = MODELS["gru"](), sequences("gru", RANDOM.integers(1, 4, 2000))
    expected = MODELS["gru"]()(x)
    for _ in range(programs.RAGGED_CALLS + 2):
        assert_same_bits(model(x), expected)
    assert sum(map(len, model.programs.calls.idle.values())) == 1


@pytest.mark.parametrize("name", ["directions", "strides"])
def test_more_sequences_than_the_longest_may_have_steps(name: str):
    """Kernels whose steps do not depend on one another have all sequences in one lane, in order."""
    model, x = MODELS[name](), sequences(name, RANDOM.integers(2, 4, programs.LONGEST + 900))
    expected = MODELS[name]()(x)
    for _ in range(4):
        assert_same_bits(model(x), expected)
    assert kept(model)


@pytest.mark.alone
@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("rows", [1, 3])
def test_threads_pause_in_calls_of_any_lengths_and_an_interrupt_leaves_nothing_behind(
    rows: int, constants: Constants
):
    inputs = [sequences("directions", lengths[:rows]) for lengths in ([900, 700, 40], [600, 1, 800])]
    expected = [MODELS["directions"]()(x) for x in inputs]
    constants(f"{RUNNING}.prepared_chain", SLICE=1e-9)
    sn.set_threads(2)
    model = MODELS["directions"]()
    for length in (700, 650, 620):
        model(sequences("directions", [length, *[100] * (rows - 1)]))

    for x, right in zip(inputs, expected, strict=True):
        for count in (1, 4):
            interrupt(count, model, x)
        seen = list[sn.Progress]()
        with sn.progress(seen.append):
            assert_same_bits(model(x), right)
        steps = [now.steps for now in seen]
        assert len(seen) > 3
        assert steps == sorted(steps)
        assert (seen[-1].is_done, seen[-1].sequences) == (True, rows)


@pytest.mark.long(each=True)
@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_lengths_never_seen_on_several_threads(name: str, rows: int, constants: Constants):
    """The layers of both directions run at the same time, and threads share windows."""
    constants("stepnet.compiler.targets.cpu.running.across", SHARED_BYTES=0)
    sn.set_threads(2)
    model = MODELS[name]()
    for _ in range(8):
        x = sequences(name, RANDOM.integers(1, 40, rows))
        assert_same_bits(model(x), MODELS[name]()(x))
    if rows == 1:
        assert bool(kept(model)) == (name in PREPARED)


@pytest.mark.parametrize("sizes", [(512,), (64, 64)])
def test_lengths_never_seen_where_threads_share_units_or_layers(sizes: tuple[int, ...]):
    """Two threads share the units of a large step, or run the layers of a stack, one behind the other."""

    def made() -> sn.Stack:
        return sn.Stack([rnn_of("gru", *pair) for pair in pairwise((4, *sizes))])

    sn.set_threads(2)
    model = made()
    for length in (270, 300, 257, 511):
        x = sequences("gru", [length])
        assert_same_bits(model(x), made()(x))
    assert len(kept(model)) == 1


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("name", ["gru", "lstm, reverse", "stack", "directions"])
def test_the_last_output_alone(name: str, last_only: bool):
    model = MODELS[name]()
    for _ in range(8):
        x = sequences(name, RANDOM.integers(1, 12, 2))
        assert_same_bits(model(x, last_only=last_only), MODELS[name]()(x, last_only=last_only))


def test_initial_memories_come_and_go():
    model = prepared("stack", 2)
    initial = [uniform(2, 8), {"h": uniform(2, 8, seed=1), "c": uniform(2, 8, seed=2)}]
    for given in (None, initial, None, initial):
        x = sequences("stack", RANDOM.integers(1, 12, 2))
        assert_same_bits(model(x, given), MODELS["stack"]()(x, given))


@pytest.mark.parametrize("name", ["gru", "directions", "tagger"])
def test_other_sequences_go_the_way_of_all_calls(name: str):
    """Where there are more, longer ones, or features of another size."""
    model = prepared(name, 2)
    for lengths in ([3] * (2**14 + 1), [programs.LONGEST + 1, 2]):
        x = sequences(name, lengths)
        assert_same_bits(model(x), MODELS[name]()(x))
    if name != "tagger":
        with pytest.raises(InputError, match="features"):
            model(sn.Ragged.from_list([np.zeros((3, 5), "f4"), np.zeros((2, 5), "f4")]))


@pytest.mark.parametrize(("other", "usual"), [(0, 3), (programs.LONGEST + 1, 105)])
def test_many_sequences_of_which_one_is_empty_or_long(other: int, usual: int):
    model, initial = MODELS["gru"](), uniform(40, 8)
    for first in (usual, usual - 1, usual - 2):
        model(sequences("gru", [first, *[usual] * 39]))
    assert len(kept(model)) == 1
    for place in (0, 20, 39):
        lengths = [usual if other == 0 else 3] * 39
        lengths.insert(place, other)
        x = sequences("gru", lengths)
        assert_same_bits(model(x, initial), MODELS["gru"]()(x, initial))


@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize(("name", "threads"), [("gru", 2), ("directions", 1), ("strides", 1), ("strides", 2)])
def test_lengths_never_seen_in_fewer_lanes_than_sequences(name: str, threads: int, constants: Constants):
    """In long calls, most of whose lanes would soon be idle, lanes run several sequences in turn."""
    constants(f"{RUNNING}.sequence_layout", EVEN_SECONDS=0)
    sn.set_threads(threads)
    model = MODELS[name]()
    for longest in (60, 59, 61, 50, 40):
        x = sequences(name, [longest, *RANDOM.integers(2, 10, 39)])
        assert_same_bits(model(x), MODELS[name]()(x))
    assert kept(model)


@pytest.mark.parametrize("most", [2**23, 2**14])
def test_sizes_that_run_alike_share_a_prepared_call(most: int, constants: Constants):
    """The buffers of its values grow, and are kept up to `most` bytes."""
    constants(f"{RUNNING}.between", MOST_BYTES=most)
    model = MODELS["strides"]()
    results, expected = list[Any](), list[Any]()
    for length in (40, 41, 300, 3000, 700, 5):
        x = sequences("strides", [length])
        results.append(model(x))
        expected.append(MODELS["strides"]()(x))
    assert_same_bits(results, expected)
    assert len(kept(model)) > 3
    assert len({id(one) for one in kept(model)}) == 1


def test_values_that_got_fewer_are_not_read_beyond_their_end():
    model, x = prepared("gru", 2), sequences("gru", [5, 3])
    x.values.resize((3, 4), refcheck=False)
    with pytest.raises(InputError):
        model(x)


def test_each_size_is_prepared_once_and_sizes_are_few():
    model = MODELS["gru"]()
    for length in RANDOM.integers(1, 1000, 200):
        x = sequences("gru", [length])
        assert_same_bits(model(x), MODELS["gru"]()(x))
    assert len(kept(model)) <= 5


def test_dtypes_and_engines_are_apart():
    model = prepared("gru", 2)
    x = sequences("gru", [4, 2])
    wide = x.with_values(x.values.astype("f8"))
    for _ in range(3):
        assert_same_bits(model(wide), MODELS["gru"]()(wide))
        right = MODELS["gru"]()(x, engine="interpret")
        assert_same_bits(model(x, engine="interpret"), right)


def test_an_index_outside_a_table_is_an_error_and_the_next_call_is_right():
    model = prepared("tagger", 2)
    for length in (4, 6):
        x = sequences("tagger", [length, 3])
        outside = x.values.copy()
        outside[length - 1] = 50
        with pytest.raises(InputError, match="outside the rows of the parameter"):
            model(x.with_values(outside))
        assert_same_bits(model(x), MODELS["tagger"]()(x))


def test_calls_from_many_threads():
    model = prepared("stack", 2)
    inputs = [sequences("stack", RANDOM.integers(1, 12, 2)) for _ in range(20)]
    expected = [MODELS["stack"]()(x) for x in inputs]

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, len(inputs), 100):
            assert_same_bits(model(inputs[place]), expected[place])

    on_threads(4, work)


def test_masks_statics_and_early_ends_are_not_prepared_for_any_lengths():
    x = uniform(2, 6, 4)
    model = MODELS["gru"]()
    ending = sn.RNN(simple, {"W": uniform(4, 8), "R": uniform(8, 8)}, memory=8, until=is_large)
    for _ in range(4):
        mask = RANDOM.random((2, 6)) < 0.5
        assert_same_bits(model(x, mask=mask), MODELS["gru"]()(x, mask=mask))
        ending(x)
    assert not kept(model)
    assert not kept(ending)


# ---- padded arrays -----------------------------------------------------------------------------------------


def padded(name: str, lengths: Any, time_major: bool) -> Array:
    """An array for these lengths and some more steps, with NaN where a number must not be read."""
    x = values(name, (len(lengths), int(max(lengths)) + 2))
    if name != "tagger":
        x[np.arange(x.shape[1]) >= np.asarray(lengths)[:, None]] = np.nan
    return np.ascontiguousarray(x.swapaxes(0, 1)) if time_major else x


@pytest.mark.long(each=True)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "strides"])
def test_padded_arrays_of_lengths_never_seen(name: str, time_major: bool):
    """They have the bits of a first call, and zeros behind each sequence."""
    model, results, expected = MODELS[name](), list[Any](), list[Any]()
    drawn = [RANDOM.integers(1, 12, rows) for rows in (4, 3, 4, 3, 4)]
    calls = [(padded(name, lengths, time_major), lengths) for lengths in drawn]
    for x, lengths in calls:
        expected.append(MODELS[name]()(x, lengths=lengths, time_major=time_major))
    for x, lengths in calls:
        results.append(model(x, lengths=lengths, time_major=time_major))
    assert_same_bits(results, expected)
    assert len(kept(model)) == (name in PREPARED)


@pytest.mark.parametrize("time_major", [False, True])
def test_lengths_after_those_without_padding(time_major: bool):
    """Parts that need sequences end to end do not run on padding, although the first calls had none."""
    model = MODELS["strides"]()
    for lengths in ([6] * 4, [6] * 4, [6] * 4, [6, 3, 4, 5]):
        x = values("strides", (6, 4) if time_major else (4, 6))
        expected = MODELS["strides"]()(x, lengths=lengths, time_major=time_major)
        assert_same_bits(model(x, lengths=lengths, time_major=time_major), expected)
    assert not kept(model)


def test_whole_arrays_of_time_and_batch_of_other_lengths():
    model = MODELS["directions"]()
    for length in (5, 1, 9, 6):
        x = values("directions", (length, 3))
        assert_same_bits(model(x, time_major=True), MODELS["directions"]()(x, time_major=True))
    assert len(kept(model)) == 1


@pytest.mark.parametrize(
    "lengths", [[4, 0], [6, 1], [-1, 3], [1], [[1], [2]], [1.0, 2.0], [1, 2**70], [True, True], None, "45"]
)
def test_lengths_that_do_not_fit_are_those_of_a_first_call(lengths: Any):
    """Machine code refuses to run with them; what then runs says what is wrong, if anything is."""
    model, x = MODELS["gru"](), uniform(2, 5, 4)
    for each in ([5, 4], [3, 1], [2, 2]):
        model(x, lengths=np.array(each))
    assert len(kept(model)) == 1
    results = [result_of(each, x, lengths) for each in (MODELS["gru"](), model)]
    if any(isinstance(each, str) for each in results):
        assert results[0] == results[1]
    else:
        assert_same_bits(*results)


def result_of(model: Any, x: Array, lengths: Any) -> Any:
    """The results of a call, or the message of its error."""
    try:
        return model(x, lengths=lengths)
    except InputError as error:
        return str(error)


# ---- other numbers of sequences ----------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.usefixtures("small_calls_are_shared")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["lstm, reverse", "directions", "tagger", "strides"])
def test_a_call_prepared_for_eight_sequences_runs_fewer(name: str, threads: int, constants: Constants):
    """With more threads than sequences, too, and memories that come and go."""
    constants("stepnet.compiler.targets.cpu.running.across", SHARED_BYTES=0)
    sn.set_threads(threads)
    model = MODELS[name]()
    for rows in (7, 8, 5, 6, 8, 7):
        x = sequences(name, RANDOM.integers(3, 12, rows))
        assert_same_bits(model(x), MODELS[name]()(x))
        if name == "lstm, reverse":
            initial = {"h": uniform(rows, 8, seed=1), "c": uniform(rows, 8, seed=2)}
            assert_same_bits(model(x, initial), MODELS[name]()(x, initial))
    assert len({id(one) for one in kept(model)}) == 1


def test_a_memory_of_another_number_of_sequences_is_an_error():
    model = MODELS["gru"]()
    for rows in (4, 3, 4):
        model(sequences("gru", [2] * rows), uniform(rows, 8))
    with pytest.raises(InputError, match="memory"):
        model(sequences("gru", [2] * 3), uniform(4, 8))


def test_values_that_sequences_have_once_are_as_many():
    """Of values per sequence, a part computes others, and a constant is one for each."""

    def model(x: Any, p: Any) -> Any:
        h = rnn_of("gru", 4, 8)(x)[0]
        last = sn.reduce(h, "last") @ p
        return {"h": h, "class": last, "both": sn.expand(np.tanh(last), h) + h[..., :3]}

    def made() -> sn.Graph:
        return sn.Graph(model, normal(8, 3))

    graph = made()
    for rows in (7, 8, 5, 6, 8, 7):
        x = sequences("gru", RANDOM.integers(3, 12, rows))
        assert_same_bits(graph(x), made()(x))
    assert len(kept(graph)) == 1


@pytest.mark.parametrize("last_only", [False, True])
def test_numbers_of_sequences_and_the_last_output_alone(last_only: bool):
    model = MODELS["gru"]()
    for rows in (3, 4, 3, 4):
        x = sequences("gru", RANDOM.integers(1, 12, rows))
        assert_same_bits(model(x, last_only=last_only), MODELS["gru"]()(x, last_only=last_only))
    assert len(kept(model)) == 1


def test_other_parameters_have_calls_of_their_own():
    model = prepared("gru", 1)
    other = model.with_params({name: array + 1 for name, array in model.params.items()})
    x = sequences("gru", [5])
    expected = other(x)
    for _ in range(4):
        assert_same_bits(other(x), expected)
    assert_same_bits(model(x), MODELS["gru"]()(x))
