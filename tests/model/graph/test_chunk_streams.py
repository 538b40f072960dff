"""Streams of chunks: the outputs of all chunks, one after the other, are those of one call, bit by bit."""

import pickle
import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from same_bits import assert_same_bits

import stepnet as sn
import stepnet.onnx
from stepnet.errors import FileError, InputError

INPUTS, UNITS = 4, 6
random = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return (random.normal(size=shape) / 2).astype("float32")


def gru(inputs: int, seed: int = 0, **options: Any) -> sn.RNN:
    return sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs, UNITS, seed=seed), **options)


READ, LOWER, UPPER = normal(INPUTS, INPUTS, 3), normal(INPUTS, INPUTS, 4), normal(INPUTS, INPUTS, 5)
FIRST, SECOND = gru(INPUTS), gru(UNITS, seed=1)


def middle(x: Any, params: Any) -> Any:
    return sn.conv1d(x, READ, padding="same")


def voice(x: Any, params: Any) -> Any:
    """A detector of speech: convolutions with a stride, a GRU, a score."""
    h, final = FIRST(sn.relu(sn.conv1d(middle(x, params), LOWER, stride=2, padding=(2, 1))))
    return {"score": sn.sigmoid(h @ params), "last": sn.reduce(h, "last"), "final": final}


def residual(x: Any, params: Any) -> Any:
    inner = sn.elu(sn.conv1d(x, READ, padding="same", dilation=3))
    return x + middle(inner, params) + sn.conv1d(x, READ, padding="causal")


def decoder(x: Any, params: Any) -> Any:
    """As a decoder of audio: a recurrence, and two transposed convolutions of which the ends are cut."""
    h = SECOND(FIRST(x)[0])[0] @ params
    h = sn.elu(sn.conv_transpose1d(h, LOWER[:1], stride=2, padding=(0, 2)))
    return sn.conv_transpose1d(h, UPPER, stride=3, padding=2, output_padding=1)


def reflected(x: Any, params: Any) -> Any:
    """As a codec of audio: strides and dilations that read copies of steps, and a recurrence between them."""
    fewer = sn.conv1d(sn.pad_steps(x, (2, 1)), LOWER, stride=2, padding="valid")
    h = FIRST(sn.elu(fewer))[0] @ params
    inner = sn.conv1d(sn.pad_steps(h, (4, 0)), READ[:1, :1], dilation=2, padding="valid")
    return {"inner": inner + h, "ends": sn.pad_steps(inner, (0, 3), mode="replicate")}


def subsampled(x: Any, params: Any) -> Any:
    pooled = sn.max_pool1d(sn.conv1d(x, READ, stride=2, padding=1), 3, stride=2, padding=1)
    return sn.avg_pool1d(pooled, 2, padding=1, count_include_pad=False)


def there_and_back(x: Any, params: Any) -> Any:
    fewer = sn.conv1d(x, LOWER, stride=2, padding=1)
    return sn.conv1d(x[..., :2] @ READ[:2, :, 0], READ), sn.conv_transpose1d(
        fewer, LOWER, stride=2, padding=1
    )


def counted(x: Any, params: Any) -> Any:
    """A recurrence that reads its index, over the results of a stride."""
    step = sn.RNN(lambda x, h, p, index: (x + h * index[:, None], h + x), memory=INPUTS)
    return step(sn.avg_pool1d(x, 2))[0]


MODELS: dict[str, Callable[[Any, Any], Any]] = {
    function.__name__: function
    for function in (voice, middle, decoder, residual, there_and_back, subsampled, counted, reflected)
}
MODELS |= {
    "the end": lambda x, params: sn.reduce(FIRST(x)[0], "last") @ params,
    "plain": lambda x, params: FIRST(np.tanh(x))[0] @ params,
    "a recurrence": lambda x, params: FIRST(x)[0],
    "far apart": lambda x, params: sn.conv1d(x, READ[..., :1], stride=3),
    "more zeros than the kernel": lambda x, params: sn.conv1d(x, READ, padding=(5, 4)),
    "no zeros": lambda x, params: sn.conv1d(x, READ, padding="valid", dilation=2),
    "both ends": lambda x, params: sn.pad_steps(sn.pad_steps(x, (3, 2)), (1, 4), mode="replicate"),
    "behind": lambda x, params: sn.conv1d(sn.pad_steps(x, (0, 2)), READ, padding="valid"),
    "each feature": lambda x, params: sn.conv1d(x, READ[:, :1], groups=INPUTS, padding="same"),
    "ends cut far": lambda x, params: sn.conv_transpose1d(x, LOWER, stride=2, padding=(3, 4)),
    "long steps": lambda x, params: sn.conv_transpose1d(x, READ, stride=4, dilation=2),
}
LENGTHS = {"reflected": (23, 9, 12), "both ends": (23, 4, 8), "behind": (23, 3, 8)}
"""The lengths of sequences of models that need several steps; those of others are 23, 1 and 8."""
PARAMS = normal(UNITS, 1)


def graph(name: str) -> sn.Graph:
    return sn.Graph(MODELS[name], PARAMS, inputs=INPUTS)


def sequences(lengths: Sequence[int], features: int = INPUTS) -> sn.Ragged:
    return sn.Ragged.from_list([normal(length, features) for length in lengths])


def cut(sequences: sn.Ragged, chunks: int, seed: int) -> list[sn.Ragged]:
    """Cuts each sequence into as many chunks, at random places."""
    draw, parts = np.random.default_rng(seed), list[list[Any]]()
    for sequence in sequences.to_list():
        places = np.sort(draw.integers(0, len(sequence) + 1, chunks - 1))
        parts.append(np.split(sequence, places))
    return [
        sn.Ragged.from_list(list(each), sequences.dtype, sequences.features)
        for each in zip(*parts, strict=True)
    ]


def outputs_of(results: Sequence[Any]) -> Any:
    """The outputs of all chunks as those of one call: steps end to end, the last of what a row has once."""
    if isinstance(results[0], dict):
        return {name: outputs_of([result[name] for result in results]) for name in results[0]}
    if isinstance(results[0], tuple):
        return tuple(outputs_of(each) for each in zip(*results, strict=True))
    if not isinstance(results[0], sn.Ragged):
        return results[-1]
    rows = zip(*(result.to_list() for result in results), strict=True)
    return [np.concatenate(row) for row in rows]


def metadata(path: Path) -> dict[str, str]:
    """The texts of a .safetensors file."""
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def assert_equal(made: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, own in expected.items():
            assert_equal(made[name], own)
    elif isinstance(expected, tuple):
        for each, own in zip(made, expected, strict=True):
            assert_equal(each, own)
    elif isinstance(expected, sn.Ragged):
        for each, own in zip(made, expected.to_list(), strict=True):
            assert_same_bits(each, own)
    else:
        assert_same_bits(made, expected)


# ---- the bits of a call ------------------------------------------------------------------------------------


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_chunks_of_any_sizes_have_the_bits_of_a_call(name: str):
    model = graph(name)
    x = sequences(LENGTHS.get(name, (23, 1, 8)))
    expected = model(x)
    for chunks, seed in ((5, 1), (30, 2)):
        stream, parts = model.stream_chunks(rows=3), cut(x, chunks, seed)
        results = [stream.chunk(part, last=part is parts[-1]) for part in parts]
        assert_equal(outputs_of(results), expected)


@pytest.mark.parametrize("name", ["voice", "decoder", "residual"])
def test_single_steps_have_the_bits_of_a_call(name: str):
    model, x = graph(name), normal(2, 9, INPUTS)
    stream = model.stream_chunks(rows=2)
    results = [stream.chunk(x[:, time : time + 1], last=time == 8) for time in range(9)]
    expected = model(x)
    if isinstance(expected, dict):
        assert_same_bits(results[-1]["last"], expected["last"])
        results, expected = [result["score"] for result in results], expected["score"]
    assert_same_bits(np.concatenate(results, axis=1), expected)


READY = {
    "middle": [0, 1, 1, 1, 1],
    "plain": [1, 1, 1, 1, 1],
    "far apart": [0, 0, 1, 0, 0],
    "no zeros": [0, 0, 0, 0, 1],
    "more zeros than the kernel": [1 + 5 - 2, 1, 1, 1, 1],
    "long steps": [4, 4, 4, 4, 4],
    "subsampled": [0, 0, 0, 1, 0],
    "both ends": [0, 0, 0, 4 + 3 + 1, 1],
    "behind": [0, 0, 1, 1, 1],
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", READY)
def test_outputs_are_given_when_no_later_step_can_change_them(name: str):
    stream, x = graph(name).stream_chunks(), normal(1, 5, INPUTS)
    assert [stream.chunk(x[:, time : time + 1]).shape[1] for time in range(5)] == READY[name]


def test_a_sequence_without_steps_has_the_outputs_of_a_call():
    for name in ("middle", "ends cut far", "decoder", "more zeros than the kernel"):
        none = np.zeros((1, 0, INPUTS), "float32")
        assert graph(name).stream_chunks().chunk(none, last=True).shape == graph(name)(none).shape


def test_the_interpreter_agrees_up_to_rounding():
    model, x = graph("decoder"), sequences((6, 3))
    stream = model.stream_chunks(rows=2, engine="interpret")
    parts = cut(x, 3, 0)
    results = outputs_of([stream.chunk(part, last=part is parts[-1]) for part in parts])
    for made, expected in zip(results, model(x).to_list(), strict=True):
        np.testing.assert_allclose(made, expected, atol=1e-6)


def test_a_value_of_a_row_may_be_read_at_each_step_and_begin_a_recurrence(tmp_path: Path):
    def model(x: Any, params: Any, statics: Any) -> Any:
        seen = sn.conv1d(x + sn.expand(np.tanh(statics @ params["W"]), x), READ, padding="same")
        return FIRST(seen, initial=statics @ params["h"])[0]

    params = {"W": normal(3, INPUTS), "h": normal(3, UNITS)}
    made, x, statics = sn.Graph(model, params), sequences((7, 2, 5)), normal(3, 3)
    expected = made(x, statics=statics)
    stream = made.stream_chunks(rows=2, statics=statics[:2])
    stream.add(1, statics=statics[2:])
    parts = cut(x, 4, 3)
    for _ in range(2):  # the rows begin anew after their last steps, with the same statics
        results = [stream.chunk(part, last=part is parts[-1]) for part in parts]
        assert_equal(outputs_of(results), expected)
    begun = [stream.chunk(part) for part in parts[:2]]
    stream.save(path := tmp_path / "rows.safetensors")
    other = made.stream_chunks(rows=0)
    other.load(path)
    rest = [other.chunk(part, last=part is parts[-1]) for part in parts[2:]]
    assert_equal(outputs_of([*begun, *rest]), expected)
    third = made.stream_chunks(3, initial=stream.state, statics=statics)
    rest = [third.chunk(part, last=part is parts[-1]) for part in parts[2:]]
    assert_equal(outputs_of([*begun, *rest]), expected)
    assert "statics.0" not in stream.state
    stream.reorder([0, 0, 2])  # what is kept moves, the statics stay
    assert_same_bits(stream._rows.kept["statics.0"], statics)  # type: ignore[union-attr]
    for given, said in ((None, "this stream have statics"), (normal(1, 2), "the statics are .*; those of")):
        with pytest.raises(InputError, match=said):
            other.add(1, statics=given)


def test_models_of_files_take_chunks_too(tmp_path: Path):
    x = sequences((9, 4))
    for name, path in (("voice", tmp_path / "voice.stepnet"), ("subsampled", tmp_path / "subsampled.onnx")):
        (graph(name).save if path.suffix == ".stepnet" else partial(stepnet.onnx.save, graph(name)))(path)
        model = sn.load(path)
        stream, parts = model.stream_chunks(rows=2), cut(x, 3, 0)
        assert_equal(outputs_of([stream.chunk(part, last=part is parts[-1]) for part in parts]), model(x))


# ---- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_an_array_may_have_other_contents_after_its_chunk(rows: int):
    stream = sn.Graph(lambda x, params: sn.max_pool1d(x, 2)).stream_chunks(rows=rows)
    x = normal(rows, 3, INPUTS)
    last = x[:, 2:].copy()
    stream.chunk(x)
    x[...] = 100
    assert_same_bits(stream.chunk(last - 1), last)


def test_many_chunks_of_new_lengths_have_the_bits_of_a_call():
    """The third one and later ones run a prepared call, which refuses rows without a step."""
    graph = sn.Graph(lambda x, params: SECOND(FIRST(x)[0])[0])
    x, ends = normal(2, 40, INPUTS), [0, 1, 4, 6, 11, 18, 19, 31, 40]
    stream = graph.stream_chunks(rows=2)
    outputs = [stream.chunk(x[:, begin:end]) for begin, end in pairwise(ends)]
    assert_same_bits(np.concatenate(outputs, axis=1), graph(x))
    stream = graph.stream_chunks(rows=2)
    steps = [
        [x[0, begin:end], x[1, begin : begin + place % 2]]
        for place, (begin, end) in enumerate(pairwise(ends))
    ]
    parts = [stream.chunk(sn.Ragged.from_list(each)) for each in steps]
    for row in (0, 1):
        whole = np.concatenate([each[row] for each in steps])
        assert_same_bits(np.concatenate([part[row] for part in parts]), graph(whole[None])[0])


def test_rows_come_wait_end_and_go():
    model, x = graph("decoder"), [normal(1, length, INPUTS) for length in (6, 5, 4)]
    expected = [model(each) for each in x]
    stream = model.stream_chunks(rows=0)
    assert stream.add(2).tolist() == [0, 1]
    zero = [stream.chunk(x[0][:, :4], rows=0)]
    one = [stream.chunk(x[1][:, :1], rows=[1])]
    assert stream.add().tolist() == [2]
    two = [stream.chunk(x[2][:, :3], rows=[2])]
    zero.append(stream.chunk(x[0][:, 4:], rows=[True, False, False], last=True))
    stream.drop(0)
    assert stream.rows == 2
    rest = stream.chunk(sn.Ragged.from_list([x[1][0, 1:], x[2][0, 3:]]), last=True).to_list()
    for made, own in zip(([*zero], [*one, rest[0][None]], [*two, rest[1][None]]), expected, strict=True):
        assert_same_bits(np.concatenate(made, axis=1), own)
    assert_same_bits(stream.chunk(x[0], rows=1, last=True), expected[0])  # it has begun anew
    assert stream.chunk(x[0][:, :3], rows=[0]).shape[1] == 16
    stream.reset(0)
    assert_same_bits(stream.chunk(x[1], rows=0, last=True), expected[1])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["a recurrence", "decoder", "subsampled", "both ends"])
def test_a_saved_stream_goes_on_with_the_same_bits(name: str, tmp_path: Path):
    model, x = graph(name), sequences((9, 7, 8))
    parts, expected = cut(x, 3, 1), model(x).to_list()
    stream = model.stream_chunks(rows=3)
    first = outputs_of([stream.chunk(part) for part in parts[:2]])
    stream.save(tmp_path / "rows.safetensors", rows=[2, 0])
    other = model.stream_chunks(rows=0)
    assert other.load(tmp_path / "rows.safetensors").tolist() == [0, 1]
    rest = other.chunk(parts[2].take([2, 0]), last=True).to_list()
    for place, row in enumerate((2, 0)):
        assert_same_bits(np.concatenate([first[row], rest[place]]), expected[row])
    assert stream.load(tmp_path / "rows.safetensors").tolist() == [3, 4]
    again = stream.chunk(parts[2].take([2, 0]), rows=[3, 4], last=True).to_list()
    assert_same_bits(again[0], rest[0])


@pytest.mark.parametrize("name", ["decoder", "subsampled", "both ends"])
def test_rows_go_on_from_a_state_and_in_another_order(name: str):
    model, x = graph(name), sequences((9, 7, 8))
    parts, expected = cut(x, 3, 1), model(x).to_list()
    stream = model.stream_chunks(rows=3)
    first = outputs_of([stream.chunk(part) for part in parts[:2]])
    state = stream.state
    stream.reorder([2, 0, 2])
    rest = stream.chunk(parts[2].take([2, 0, 2]), last=True).to_list()
    for place, row in enumerate((2, 0, 2)):
        assert_same_bits(np.concatenate([first[row], rest[place]]), expected[row])
    other = model.stream_chunks(rows=3, initial=state)
    again = other.chunk(parts[2], last=True).to_list()
    for row in range(3):
        assert_same_bits(np.concatenate([first[row], again[row]]), expected[row])
    other.chunk(parts[0])
    other.reset(initial=state)
    assert other.add(3, initial=state).tolist() == [3, 4, 5]
    twice = other.chunk(parts[2].take([0, 1, 2, 0, 1, 2]), last=True).to_list()
    for row in range(6):
        assert_same_bits(twice[row], again[row % 3])
    for array in state.values():  # copies
        array[...] = 0
    assert_same_bits(stream.state["taken"], np.zeros(3, np.int64))


def test_states_that_do_not_fit_are_refused():
    model = graph("decoder")
    stream = model.stream_chunks(rows=2)
    stream.chunk(normal(2, 3, INPUTS))
    state = stream.state
    wrong: dict[str, Any] = {
        "initial is the state of rows of such a stream, a dict of arrays by name": normal(2, 3),
        "initial is the state": {"taken": [1, 2]},
        "initial: it has no array 'taken' of int64": {"other": normal(2)},
        "initial: it has an array 'other', which this stream has not": {**state, "other": normal(2)},
        r"initial: 'part\.[0-9.a-z]+' does not fit the steps of the rows": {
            **state,
            "taken": state["taken"] + 1,
        },
        r"initial has 'taken' of shape \(1,\), and there are 2 rows": {**state, "taken": state["taken"][:1]},
    }
    for message, initial in wrong.items():
        for call in (
            lambda initial=initial: stream.reset(initial=initial),
            lambda initial=initial: stream.add(2, initial=initial),
            lambda initial=initial: model.stream_chunks(2, initial=initial).chunk(normal(2, 3, INPUTS)),
        ):
            with pytest.raises(InputError, match=message):
                call()
    with pytest.raises(InputError, match="rows is 2 indices from 0 to 1"):
        stream.reorder([0, 2])
    for name, array in state.items():
        assert_same_bits(stream.state[name], array)


BEFORE: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "reorder": (lambda stream, state: stream.reorder([2, 0, 2]), (2, 0, 2)),
    "drop": (lambda stream, state: stream.drop(1), (0, 2)),
    "add": (lambda stream, state: stream.add(3, initial=state), (0, 1, 2, 0, 1, 2)),
    "reset": (lambda stream, state: stream.reset([0, 2], {n: rows_of(state, n) for n in state}), (2, 1, 0)),
    "state": (lambda stream, state: stream.state, (0, 1, 2)),
}
"""Methods of a stream before its first chunk, and the rows of the state that its rows then go on from."""


def rows_of(state: dict[str, Any], name: str) -> Any:
    """The part of a state that is of its rows 2 and 0."""
    if not name.endswith(".values"):
        return state[name][[2, 0]]
    parts = np.split(state[name], np.cumsum(state[name.replace(".values", ".lengths")])[:-1])
    return np.concatenate([parts[2], parts[0]])


@pytest.mark.parametrize("method", BEFORE)
def test_rows_that_go_on_from_a_state_have_it_before_the_first_chunk(method: str):
    model, x = graph("decoder"), sequences((9, 7, 8))
    parts = cut(x, 2, 1)
    stream = model.stream_chunks(rows=3)
    stream.chunk(parts[0])
    state = stream.state
    expected = stream.chunk(parts[1], last=True).to_list()
    call, rows = BEFORE[method]
    other = model.stream_chunks(rows=3, initial=state)
    for name, array in other.state.items():
        assert_same_bits(array, state[name])
    call(other, state)
    assert other.rows == len(rows)
    made = other.chunk(parts[1].take([*rows]), last=True).to_list()
    for own, row in zip(made, rows, strict=True):
        assert_same_bits(own, expected[row])


def test_a_stream_without_a_chunk_has_the_state_that_a_reset_one_has(tmp_path: Path):
    model = graph("voice")
    stream, other = model.stream_chunks(rows=2), model.stream_chunks(rows=2)
    other.chunk(normal(2, 3, INPUTS))
    other.reset()
    for name, array in other.state.items():
        assert_same_bits(stream.state[name], array)
    stream.reorder([1, 1])
    stream.save(tmp_path / "rows.safetensors")
    assert model.stream_chunks(rows=0).load(tmp_path / "rows.safetensors").tolist() == [0, 1]
    parts = normal(2, 9, INPUTS)
    assert_equal(stream.chunk(parts), other.chunk(parts))
    empty = model.stream_chunks(rows=0)
    assert empty.add(2, initial=model.stream_chunks(rows=2).state).tolist() == [0, 1]
    assert_equal(empty.chunk(parts), model.stream_chunks(rows=2).chunk(parts))


def test_statics_of_rows_before_the_first_chunk_stay_with_them():
    def model(x: Any, params: Any, statics: Any) -> Any:
        return FIRST(sn.conv1d(x, READ, padding="same"), initial=statics @ params)[0]

    made, x, statics = sn.Graph(model, normal(3, UNITS)), normal(3, 6, INPUTS), normal(3, 3)
    stream = made.stream_chunks(3, statics=statics)
    stream.chunk(x[:, :2])
    state = stream.state
    rest = stream.chunk(x[:, 2:], last=True)
    other = made.stream_chunks(3, initial=state, statics=statics)
    other.drop(0)
    other.add(3, initial=state, statics=statics)
    again = other.chunk(x[[1, 2, 0, 1, 2], 2:], last=True)
    assert_same_bits(again, rest[[1, 2, 0, 1, 2]])


def test_what_is_kept_of_rows_is_not_known_before_the_inputs_are():
    state = graph("decoder").stream_chunks(rows=2).state
    begun = sn.Graph(MODELS["decoder"], PARAMS).stream_chunks(2, initial=state)
    calls: dict[str, Callable[[], Any]] = {
        "state": lambda: begun.state,
        "reorder": lambda: begun.reorder([0, 0]),
        "drop": lambda: begun.drop(0),
        "add": lambda: begun.add(1),
        "reset": lambda: begun.reset(0),
        "save": lambda: begun.save("unused"),
    }
    for call in calls.values():
        with pytest.raises(
            InputError, match=r"inputs of the graph are not known yet, .* or make it with inputs="
        ):
            call()
    assert begun.rows == 2
    begun.programs.program_of(sn.Spec((INPUTS,), "float64"), None)
    with pytest.raises(InputError, match=r"no array .* taken to be .* float64\[4\], as no chunk was"):
        begun.drop(0)


@pytest.mark.parametrize("name", ["voice", "decoder", "reflected"])
def test_files_whose_counts_do_not_fit_are_refused(name: str, tmp_path: Path):
    stream = graph(name).stream_chunks(rows=2)
    stream.chunk(sequences((5, 0)))
    stream.save(path := tmp_path / "rows.safetensors")
    arrays, described = load_file(path), metadata(path)
    counts = [name for name, array in arrays.items() if array.dtype == np.int64]
    assert len(counts) > 6
    for name in counts:
        own = arrays[name]
        for wrong in (own + 1, own - 9, own[:1], np.full(2, 2**61), np.array(5)):
            save_file({**arrays, name: wrong}, path, described)
            with pytest.raises(FileError, match=r"do(es)? not fit|has no array|outside 0 to|too many steps"):
                stream.load(path)
    save_file(arrays, path, described)
    assert stream.load(path).tolist() == [2, 3]


def test_files_of_other_streams_are_refused(tmp_path: Path):
    model = graph("voice")
    stream = model.stream_chunks()
    stream.chunk(normal(1, 3, INPUTS))
    stream.save(path := tmp_path / "rows.safetensors")
    with pytest.raises(FileError, match="is there already"):
        stream.save(path)
    for other in (graph("middle"), model.with_params(2 * PARAMS)):
        with pytest.raises(
            FileError, match="saved from another model, with other parameters, or from inputs"
        ):
            other.stream_chunks(rows=0).load(path)
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    for old, new in ((b'"taken"', b'"taker"'), (b"stepnet.chunks", b"stepnet.chunkz"), (b"[1]", b"[2]")):
        path.write_bytes(whole[:8] + whole[8 : 8 + size].replace(old, new, 1) + whole[8 + size :])
        with pytest.raises(FileError):
            stream.load(path)
    path.write_bytes(whole)
    assert stream.rows == 1
    with pytest.raises(InputError, match=r"inputs of the graph are not known yet, .*: give the first"):
        sn.Graph(middle).stream_chunks(rows=0).load(path)


# ---- refusals ----------------------------------------------------------------------------------------------

WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "it takes the mean over all steps of a sequence": lambda x, p: x - sn.expand(sn.reduce(x, "mean"), x),
    "a recurrence of it begins at a sequence's last step": lambda x, p: gru(INPUTS, reverse=True)(x)[0],
    "its attention reads all steps of a sequence": lambda x, p: sn.attention(x, x, x),
    "its steps read a value of the whole sequence": lambda x, p: x + sn.expand(sn.reduce(x, "last"), x),
    "the zeros around a sequence depend on its length, as with a stride and padding 'same'": lambda x, p: (
        sn.conv1d(x, READ, stride=2, padding="same")
    ),
}


@pytest.mark.parametrize("reason", WHOLE)
def test_models_that_need_whole_sequences_are_refused(reason: str):
    stream = sn.Graph(WHOLE[reason]).stream_chunks()
    with pytest.raises(InputError, match=rf"no stream of chunks: {reason}.*test_chunk_streams\.py"):
        stream.chunk(normal(1, 3, INPUTS))


def test_an_input_with_steps_of_its_own_is_refused():
    model = sn.Graph(lambda x, p: (x["a"], sn.max_pool1d(x["b"], 2)))
    with pytest.raises(InputError, match="no stream of chunks: an input has steps of its own"):
        model.stream_chunks().chunk({"a": normal(1, 3, INPUTS), "b": normal(1, 4, INPUTS)})


def test_wrong_arguments_are_refused_and_change_nothing():
    model = graph("far apart")
    stream = model.stream_chunks(rows=2)
    assert stream.chunk(normal(2, 2, INPUTS)).shape == (2, 0, INPUTS)
    refused: dict[str, Callable[[], Any]] = {
        "there are steps of 1 sequences; the stream has 2 rows": lambda: stream.chunk(normal(1, 2, INPUTS)),
        r"there are steps of 2 sequences; rows= names 1": lambda: stream.chunk(normal(2, 2, INPUTS), rows=1),
        r"the inputs are .* float64\[4\]; those of this stream are .* float32\[4\]": lambda: stream.chunk(
            np.zeros((2, 1, INPUTS))
        ),
        "last is True or False": lambda: stream.chunk(normal(2, 1, INPUTS), last=1),
        "rows has the row 1 twice": lambda: stream.drop([1, 1]),
        "the rows of this stream have no statics": lambda: stream.add(1, statics=normal(1, 2)),
        "no static sequences": lambda: model.stream_chunks(1, statics=sn.Ragged.from_list([normal(2, 2)])),
        "not copied or pickled": lambda: pickle.dumps(stream),
        "the stream has no rows": lambda: model.stream_chunks(0).chunk(np.zeros((0, 1, INPUTS), "float32")),
    }
    for message, call in refused.items():
        with pytest.raises(InputError, match=message):
            call()
    stream.chunk(normal(1, 1, INPUTS), rows=0)
    with pytest.raises(
        InputError, match=r"the rows have 0 to 1 outputs ready, .*: give the steps as a Ragged"
    ):
        stream.chunk(normal(2, 1, INPUTS))
    assert stream.chunk(sequences((1, 1))).lengths.tolist() == [0, 1]


def test_a_sequence_that_ends_with_too_few_steps_is_named():
    stream = graph("both ends").stream_chunks(rows=2)
    assert stream.chunk(sequences((3, 4))).lengths.tolist() == [0, 8]
    with pytest.raises(InputError, match="at least 4 steps, and sequence 0 has 3"):
        stream.chunk(sequences((0, 0)), last=True)
    assert stream.chunk(sequences((1, 0)), last=True).lengths.tolist() == [14, 6]


def test_a_stream_of_steps_says_that_chunks_are_taken():
    with pytest.raises(InputError, match=r"reads 1 later step .*; graph\.stream_chunks\(\) takes chunks of"):
        graph("middle").stream()


@pytest.mark.parametrize("later", [False, True], ids=["stream", "add"])
def test_arrays_of_rows_may_be_filled_anew(later: bool) -> None:
    """Statics and states are those that were given, not what the arrays hold later."""
    recurrence = sn.RNN(lambda x, h, p: (h + x, h + x), memory=1)

    def model(x: Any, params: Any, statics: Any) -> Any:
        return recurrence(x)[0] + sn.expand(statics, x)

    one = sn.Spec((1,), "float32")
    graph = sn.Graph(model, inputs=one, statics=one)
    statics = np.array([[10]], "float32")
    before = graph.stream_chunks(rows=1, statics=np.zeros((1, 1), np.float32))
    before.chunk(np.array([[[1], [2]]], "float32"))
    state = before.state
    stream = graph.stream_chunks(rows=0) if later else graph.stream_chunks(1, initial=state, statics=statics)
    if later:
        stream.add(rows=1, initial=state, statics=statics)
    for array in (statics, *state.values()):
        array[...] = 99
    assert stream.chunk(np.array([[[1]]], "float32")).tolist() == [[[14.0]]]
    statics[...] = 99
    assert stream.chunk(np.array([[[1]]], "float32")).tolist() == [[[15.0]]]
