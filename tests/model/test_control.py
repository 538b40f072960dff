"""Masked steps and sequences that end early: against plain loops, Keras, and in pieces of any size."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import torch
from constants import Constants
from controlled_loop import assert_right, right
from hypothesis import given, settings
from tolerance import assert_close
from zoo import normal, rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves, rebuild
from stepnet.errors import InputError, StepError
from stepnet.model import control

Array = np.ndarray
F64 = np.float64
LENGTHS = st.lists(st.sampled_from([0, 1, 2, 5, 9]), max_size=5)
PARAMS = {
    "W": np.random.default_rng(1).uniform(-1, 1, (2, 3)),
    "R": np.random.default_rng(2).uniform(-1, 1, (3, 3)),
}


def step(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> Any:
    """Memories of several shapes and dtypes, the index, a static, and outputs of every kind."""
    here = x["x"] @ p["W"] + np.where((index % 2 == 0)[:, None], statics, 0.25)
    h = np.tanh(here + memory["h"] @ p["R"])
    square = 0.5 * memory["square"] + h[:, :2, None] * h[:, None, :2]
    count = memory["count"] + 1
    output = {"h": h, "rest": (count * 10, x["flag"], square), "none": None}
    return output, {"h": h, "square": square, "count": count, "seen": memory["seen"] | x["flag"]}


MEMORY = {
    "h": sn.Spec(3),
    "square": sn.Spec((2, 2)),
    "count": sn.Spec((), np.int64),
    "seen": sn.Spec((), bool),
}


def at_flag(output: Any, memory: Any) -> Any:
    return output["rest"][1]


def after_three(output: Any, memory: Any) -> Any:
    return memory["count"] >= 3


@dataclass(frozen=True)
class Given:
    """The arguments of one call."""

    x: sn.Ragged
    flag: sn.Ragged
    mask: sn.Ragged
    statics: Array
    initial: Any

    @property
    def inputs(self) -> Any:
        return {"x": self.x, "flag": self.flag}

    def __repr__(self) -> str:
        mask, flag = self.mask.to_list(), self.flag.to_list()
        return f"Given(mask {mask}, flag {flag}, initial {self.initial is not None})"


@st.composite
def given_calls(draw: st.DrawFn) -> Given:
    """Sequences of any lengths with masks, flags that are rare, and initial memories or none."""
    lengths = draw(LENGTHS)
    random = np.random.default_rng(draw(st.integers(0, 999)))
    total = sum(lengths)
    x = sn.Ragged(random.uniform(-1, 1, (total, 2)), (np.cumsum([0, *lengths], dtype=np.int64),))
    initial = {
        name: (random.uniform(-1, 1, (len(lengths), *spec.shape)) * 4).astype(spec.dtype or F64)
        for name, spec in MEMORY.items()
    }
    often = draw(st.sampled_from([0, 0.3, 0.7, 1]))
    return Given(
        x,
        x.with_values(random.uniform(0, 1, total) < draw(st.sampled_from([0, 0.2, 0.5]))),
        x.with_values(random.uniform(0, 1, total) < often),
        random.uniform(-1, 1, (len(lengths), 3)),
        initial if draw(st.booleans()) else None,
    )


def zeros_for(call: Given) -> Any:
    count = len(call.x)
    return call.initial or {n: np.zeros((count, *s.shape), s.dtype or F64) for n, s in MEMORY.items()}


@pytest.mark.long(examples=8)
@settings(max_examples=25)
@given(
    given_calls(),
    st.sampled_from(["repeat", "zero"]),
    st.sampled_from([None, at_flag, after_three]),
    st.data(),
)
@pytest.mark.parametrize("engine", ["interpret", "llvm"])
def test_controlled_steps_are_a_loop_with_ifs(
    engine: str, call: Given, masked: str, until: Any, data: st.DataObject
) -> None:
    reverse, mask = data.draw(st.booleans()), data.draw(st.sampled_from([None, call.mask]))
    rnn = sn.RNN(step, PARAMS, memory=MEMORY, reverse=reverse, until=until)
    with pytest.MonkeyPatch.context() as patch:
        pieces = data.draw(st.sampled_from([(1, 4), (2, 2), (8, 128)]))
        patch.setattr(control, "PIECES", pieces)
        found = rnn(call.inputs, call.initial, call.statics, mask=mask, masked=masked, engine=engine)
        last, last_final = rnn(
            call.inputs, call.initial, call.statics, mask=mask, masked=masked, engine=engine, last_only=True
        )
    wanted = right(
        step, PARAMS, call.inputs, zeros_for(call), call.statics, mask, masked, until, reverse=reverse
    )
    assert_right(found, wanted, until is not None)
    assert found[0]["rest"][0].dtype == np.int64
    assert found[0]["rest"][1].dtype == bool
    for one, other in zip(leaves(found[1]), leaves(last_final), strict=True):
        assert one.tobytes() == other.tobytes()
    for whole, one in zip(leaves(found[0]), leaves(last), strict=True):
        for place, sequence in enumerate(whole):
            kept = sequence[0 if reverse else -1] if len(sequence) else np.zeros_like(one[place])
            assert one[place].tobytes() == kept.tobytes()


# ---- masks


def gru(features: int = 4, hidden: int = 6, reverse: bool = False) -> sn.RNN:
    return rnn_of("gru", features, hidden, reverse=reverse)


numbers = partial(normal, seed=0)


def test_what_a_masked_step_is_given_enters_nothing(engine: str) -> None:
    x, mask = numbers(3, 7, 4), np.random.default_rng(1).uniform(size=(3, 7)) < 0.5
    spoilt = np.where(mask[..., None], x, np.float32(np.nan))
    for masked in ("repeat", "zero"):
        found = gru()(spoilt, mask=mask, masked=masked, engine=engine)
        for one, other in zip(found, gru()(x, mask=mask, masked=masked, engine=engine), strict=True):
            assert np.isfinite(one).all()
            assert one.tobytes() == other.tobytes()


def test_a_mask_that_lets_all_through_changes_no_bit(engine: str) -> None:
    x = sn.Ragged.from_list([numbers(length, 4) for length in (5, 0, 1, 3)])
    initial = numbers(4, 6)
    plain = gru()(x, initial, engine=engine)
    full = gru()(x, initial, mask=x.with_values(np.ones(9, bool)), engine=engine)
    assert full[0].values.tobytes() == plain[0].values.tobytes()
    assert full[1].tobytes() == plain[1].tobytes()


def test_a_mask_is_the_sequence_without_the_masked_steps(engine: str) -> None:
    x, mask = numbers(3, 7, 4), np.random.default_rng(1).uniform(size=(3, 7)) < 0.5
    shorter = sn.Ragged.from_list([one[kept] for one, kept in zip(x, mask, strict=True)])
    outputs, final = gru()(x, mask=mask, engine=engine)
    expected, last = gru()(shorter, engine=engine)
    assert outputs[mask].tobytes() == expected.values.tobytes()
    assert final.tobytes() == last.tobytes()


def test_a_mask_for_an_array_with_lengths(engine: str) -> None:
    x, mask = numbers(3, 7, 4), np.random.default_rng(1).uniform(size=(3, 7)) < 0.5
    lengths = np.array([7, 0, 4])
    outputs, final = gru()(x, lengths=lengths, mask=mask, engine=engine)
    ragged, last = gru()(
        sn.Ragged.from_padded(x, lengths), mask=sn.Ragged.from_padded(mask, lengths), engine=engine
    )
    assert outputs.tobytes() == ragged.to_padded(length=7)[0].tobytes()
    assert final.tobytes() == last.tobytes()


KERAS_MASK = np.array(
    [
        [True, True, True, True, True],
        [False, False, True, True, True],
        [True, True, False, False, False],
        [False, True, False, True, False],
        [False, False, False, False, False],
    ]
)
"""All steps, padding in front and behind, gaps, and no step at all."""


def keras_gru(hidden: int, **options: Any) -> tuple[Any, dict[str, Array]]:
    """A Keras GRU with random weights, and the same for ours: Keras has its gates z r h."""
    layer = keras.layers.GRU(hidden, return_sequences=True, return_state=True, **options)
    layer.build((None, None, 4))
    random = np.random.default_rng(5)
    layer.set_weights([random.uniform(-0.5, 0.5, each.shape).astype("float32") for each in layer.weights])
    W, R, bias = (each.value.detach().numpy().copy() for each in layer.weights)

    def ours(array: Array) -> Array:
        z, r, n = np.split(array, 3, axis=-1)
        return np.concatenate([r, z, n], axis=-1)

    return layer, {"W": ours(W), "R": ours(R), "b": ours(bias[0]), "d": ours(bias[1])}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("masked", ["repeat", "zero"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_mask_is_that_of_keras(masked: str, reverse: bool, engine: str) -> None:
    layer, params = keras_gru(6, go_backwards=reverse, zero_output_for_mask=masked == "zero")
    x, initial = numbers(5, 5, 4), numbers(5, 6, seed=2)
    with torch.no_grad():
        theirs, state = layer(x, mask=torch.from_numpy(KERAS_MASK), initial_state=torch.from_numpy(initial))
    rnn = sn.cells.rnn("gru", params, reverse=reverse)
    outputs, final = rnn(x, initial, mask=KERAS_MASK, masked=masked, engine=engine)
    assert_close(outputs, theirs.numpy()[:, ::-1] if reverse else theirs.numpy(), 5, 10)
    assert_close(final, state.numpy(), 5, 10)
    assert not outputs[4].any()
    last, _ = rnn(x, initial, mask=KERAS_MASK, masked=masked, last_only=True, engine=engine)
    assert last.tobytes() == outputs[:, 0 if reverse else -1].tobytes()


def test_a_mask_is_that_of_a_masking_layer_of_keras(engine: str) -> None:
    layer, params = keras_gru(6)
    x = np.where(KERAS_MASK[..., None], numbers(5, 5, 4), np.float32(0))
    with torch.no_grad():
        theirs, state = keras.Sequential([keras.layers.Masking(), layer])(x)
    outputs, final = sn.cells.rnn("gru", params)(x, mask=(x != 0).any(axis=-1), engine=engine)
    assert_close(outputs, theirs.numpy(), 5, 10)
    assert_close(final, state.numpy(), 5, 10)


# ---- until


def ends(output: Any, memory: Any) -> Any:
    return output[:, 0] > 0.3


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
def test_pieces_of_any_size_give_the_same_bits(reverse: bool, engine: str, constants: Constants) -> None:
    lengths = [0, 1, 40, 300, 25, 7, 300]
    x = sn.Ragged.from_list([numbers(length, 4, seed=place) for place, length in enumerate(lengths)])
    params = sn.cells.CELLS["gru"].parameters(4, 6)

    def counted(x: Any, h: Any, p: Any, index: Any) -> Any:
        h, _ = sn.cells.gru(x + np.sqrt(index.astype(np.float32))[:, None] / 50, h, p)
        return h, h

    initial = numbers(7, 6, seed=9) / 2
    plain, _ = sn.RNN(counted, params, memory=6, reverse=reverse)(x, initial, engine=engine)
    rnn = sn.RNN(counted, params, memory=6, reverse=reverse, until=ends)
    wanted = []
    for sequence in plain:
        taken = sequence[::-1] if reverse else sequence
        places = np.flatnonzero(taken[:, 0] > 0.3)
        kept = taken[: places[0] + 1] if len(places) else taken
        wanted.append(kept[::-1] if reverse else kept)
    found = [len(one) for one in wanted]
    assert found == ([0, 1, 40, 105, 25, 1, 35] if reverse else [0, 1, 2, 75, 25, 7, 1])
    for pieces in ((1, 1), (3, 3), (8, 128), (1000, 1000)):
        constants(control, PIECES=pieces)
        outputs, final = rnn(x, initial, engine=engine)
        assert outputs.lengths.tolist() == found
        assert outputs.values.tobytes() == np.concatenate(wanted).tobytes()
        for place, one in enumerate(wanted):
            last = one[0 if reverse else -1] if len(one) else initial[place]
            assert final[place].tobytes() == last.tobytes()


def test_sequences_that_have_ended_cost_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence goes on to the end, 63 end at their first step."""
    steps: list[int] = []

    def spied(run: Any, call: Any, net: Any, ended: int) -> Any:
        def one(piece: Any) -> Any:
            steps.append(piece.positions.total)
            return run(piece)

        one.ends_early = run.ends_early  # pyright: ignore[reportFunctionMemberAccess]
        return control.run_until(cast("Any", one), call, net, ended)

    monkeypatch.setattr("stepnet.model.reading.run_until", spied)
    x = np.ones((64, 1000))
    x[0] = 0
    rnn = sn.RNN(lambda x, h, p: (x, h + x), memory=(), until=lambda output, memory: output > 0.5)
    outputs, final = rnn(x, engine="interpret")
    assert outputs.lengths.tolist() == [1000] + [1] * 63
    assert final.tolist() == [0] + [1] * 63
    assert steps[:4] == [64 * 8, 16, 32, 64]
    assert max(steps[1:]) <= 128
    assert sum(steps) == 63 * 8 + 1000


@pytest.mark.parametrize("batch", [0, 3])
def test_until_without_any_step(batch: int, engine: str) -> None:
    params = sn.cells.CELLS["gru"].parameters(4, 6)
    rnn = sn.RNN(sn.cells.gru, params, memory=6, until=ends)
    initial = numbers(batch, 6)
    outputs, final = rnn(np.zeros((batch, 0, 4), "float32"), initial, engine=engine)
    assert (len(outputs), outputs.values.shape) == (batch, (0, 6))
    assert final.tobytes() == initial.tobytes()


def test_index_counts_on_from_the_steps_run_before(engine: str) -> None:
    def step(x: Any, h: Any, p: Any, index: Any) -> Any:
        return index, h + x * index

    x = sn.Ragged.from_list([np.ones(length) for length in (4, 0, 2)])
    rnn = sn.RNN(step, memory=())
    assert rnn(x, begun=3, engine=engine)[0].values.tolist() == [3, 4, 5, 6, 3, 4]
    outputs, final = rnn(x, begun=[1, 7, 10], engine=engine)
    assert outputs.values.tolist() == [1, 2, 3, 4, 10, 11]
    assert final.tolist() == [10, 0, 21]
    ends = sn.RNN(step, memory=(), until=lambda output, memory: memory >= 6)
    assert ends(x, begun=[1, 7, 10], engine=engine)[0].to_list()[0].tolist() == [1, 2, 3]


# ---- what is refused

RAGGED = sn.Ragged.from_list([numbers(3, 4), numbers(2, 4)])
WRONG: list[tuple[Any, Any, str]] = [
    (RAGGED, np.ones((2, 3), bool), "mask is a ndarray; it should be a Ragged, as the inputs are"),
    (numbers(2, 3, 4), RAGGED, "mask is a Ragged; it should be an array [batch, time]"),
    (
        RAGGED,
        sn.Ragged.from_list([np.ones(3, bool), np.ones(1, bool)]),
        "sequence 1 of mask has 1 steps, and that of the inputs 2",
    ),
    (
        RAGGED,
        sn.Ragged.from_list([np.ones(3, bool)]),
        "mask is Ragged(1 sequence of 3 steps, bool), and the inputs are Ragged(2 sequences of 2 to 3 steps",
    ),
    (RAGGED, RAGGED, "mask is float32[5, 4]; it should be bool[5], True at the steps that count"),
    (numbers(2, 3, 4), np.ones((2, 3)), "mask is float64[2, 3]; it should be bool[2, 3]"),
    (numbers(2, 3, 4), np.ones((3, 2), bool), "mask is bool[3, 2]; it should be bool[2, 3]"),
]


@pytest.mark.parametrize(("sequences", "mask", "message"), WRONG)
def test_masks_that_do_not_fit(sequences: Any, mask: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        gru()(sequences, mask=mask, engine="interpret")


def test_masked_in_an_unknown_way() -> None:
    with pytest.raises(InputError, match="masked is 'repeat' or 'zero', not 'drop'"):
        gru()(RAGGED, mask=RAGGED.with_values(np.ones(5, bool)), masked="drop", engine="interpret")


@pytest.mark.parametrize("begun", [-1, [1, 2, 3], 0.5])
def test_steps_before_that_are_none(begun: Any) -> None:
    with pytest.raises(
        InputError, match="begun is a whole number from 0, or 2 of them, one per sequence, not"
    ):
        gru()(RAGGED, begun=begun, engine="interpret")


def test_until_that_is_no_condition() -> None:
    with pytest.raises(InputError, match="until is a function until\\(output, memory\\), not a str"):
        sn.RNN(sn.cells.gru, memory=6, until="done")  # pyright: ignore[reportArgumentType]
    params = sn.cells.CELLS["gru"].parameters(4, 6)
    wrong: list[tuple[Any, str]] = [
        (lambda output, memory: output > 0, "until gives one bool per row, not rows bool[6]"),
        (lambda output, memory: output[:, 0], "until gives one bool per row, not rows f32[]"),
        (lambda output, memory: True, "until gives one bool per row, not a bool"),
    ]
    for until, message in wrong:
        with pytest.raises(StepError, match=re.escape(message)):
            sn.RNN(sn.cells.gru, params, memory=6, until=until)(RAGGED, engine="interpret")


def test_an_error_in_a_controlled_step_is_that_of_the_step() -> None:
    def mixes(x: Any, h: Any, p: Any) -> Any:
        return x.sum(axis=0), h

    rnn = sn.RNN(mixes, memory=4)
    with pytest.raises(StepError, match=r"(?s)mixes rows.*test_control.py.*return x.sum\(axis=0\), h"):
        rnn(RAGGED, mask=RAGGED.with_values(np.ones(5, bool)), engine="interpret")
    with pytest.raises(InputError, match=re.escape("the initial memory `h` is [2, 5]; it should be [2, 6]")):
        gru()(RAGGED, numbers(2, 5), mask=RAGGED.with_values(np.ones(5, bool)), engine="interpret")
    with pytest.raises(InputError, match=re.escape("initial is {h: array}, the memory `h` is array")):
        gru()(RAGGED, {"h": numbers(2, 6)}, mask=RAGGED.with_values(np.ones(5, bool)), engine="interpret")


def test_structures_come_back_as_the_step_gave_them(engine: str) -> None:
    """The memory beside the memory stays inside."""
    x, mask = numbers(2, 3, 4), np.array([[True, False, True], [False, False, True]])
    rnn = sn.RNN(
        lambda x, m, p: ([x, None], (m[0] + x, {"n": m[1]["n"] + 1})),
        memory=(sn.Spec(4), {"n": sn.Spec((), np.int32)}),
        until=lambda output, memory: memory[1]["n"] == 2,
    )
    outputs, final = rnn(x, mask=mask, engine=engine)
    assert outputs[1] is None
    assert isinstance(final, tuple)
    assert final[1]["n"].tolist() == [2, 1]
    assert final[1]["n"].dtype == np.int32
    assert outputs[0].lengths.tolist() == [3, 3]
    assert rebuild(final, [0, 0]) == (0, {"n": 0})


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    "output",
    [lambda params: params, lambda params: np.full(2, 3.0), lambda params: 3.0, lambda params: params[0] + 1],
)
def test_until_on_what_is_the_same_in_every_row(output: Any, engine: str) -> None:
    def step(x: Any, h: Any, params: Any) -> Any:
        return output(params), h + x

    def until(output: Any, memory: Any) -> Any:
        return (output if output.ndim == 1 else output[:, 1]) + memory > 6

    rnn = sn.RNN(step, np.full(2, 3.0), memory=(), until=until)
    outputs, final = rnn(np.array([[1.0, 3, 2, 1], [0, 0, 0, 1]]), engine=engine)
    assert outputs.lengths.tolist() == [2, 4]
    assert final.tolist() == [4, 1]
    np.testing.assert_array_equal(
        outputs.values, np.broadcast_to(output(np.full(2, 3.0)), outputs.values.shape)
    )


@pytest.mark.parametrize("early", ["forward", "backward", "both"])
def test_directions_that_end_at_steps_of_their_own_merge_in_the_end_alone(early: str) -> None:
    def total(x: Any, h: Any, p: Any) -> Any:
        return h + x, h + x

    def direction(name: str, bound: float) -> sn.RNN:
        until = (lambda output, memory: output >= bound) if early in (name, "both") else None
        return sn.RNN(total, memory=(), reverse=name == "backward", until=until)

    layers = direction("forward", 3), direction("backward", 2)
    x = sn.Ragged.from_list([np.array([3.0, 1, 1]), np.array([1.0, 1, 3])])
    with pytest.raises(
        InputError, match="do not merge by 'concat' at every step: with until= each direction"
    ):
        sn.Bidirectional(*layers)(x)
    last, _ = sn.Bidirectional(*layers)(x, last_only=True)
    forward, backward = sn.Bidirectional(*layers, merge=None)(x)[0]
    ends = [[one[-1] for one in forward.to_list()], [one[0] for one in backward.to_list()]]
    np.testing.assert_array_equal(last, np.transpose(ends))


@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_a_mask_that_is_true_everywhere_changes_last_bits_at_most(masked: str):
    """A sum over products of two values of the memory stays in the loop where a masked step repeats it."""
    random, shape = np.random.default_rng(0), (3, 6)

    def sums(x: Any, h: Any, p: Any) -> Any:
        q, k = (np.reshape(h @ p[name], (x.shape[0], 16, 16)) for name in "AB")
        return np.einsum("bij,bik->bjk", np.tanh(q), k), np.tanh(x + 0.5 * h)

    params = {name: (random.normal(size=(8, 256)) / 4).astype("float32") for name in "AB"}
    x, mask = random.normal(size=(*shape, 8)).astype("float32"), np.ones(shape, bool)
    rnn = sn.RNN(sums, params, memory=8)
    outputs, _ = rnn(x, engine="llvm")
    found, _ = rnn(x, mask=mask, masked=masked, engine="llvm")
    assert_close(found, outputs, shape[1], 16)
    for row in range(shape[0]):
        alone, _ = rnn(x[row : row + 1], mask=mask[row : row + 1], masked=masked, engine="llvm")
        np.testing.assert_array_equal(alone[0], found[row])
