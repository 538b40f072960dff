"""Messages and explanations have the names of the step's own parameters."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong calls are what this is about.

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import StepnetError

WEIGHTS = {"wide": np.ones((3, 4), "float32"), "deep": np.eye(4, dtype="float32")}
FRAMES = np.ones((2, 5, 3), "float32")


def listen(sound: Any, belief: Any, weights: Any) -> Any:
    """A step whose parameters have none of the usual names."""
    belief = np.tanh(sound @ weights["wide"] + belief @ weights["deep"])
    return belief, belief


def pair(sound: Any, belief: Any, weights: Any) -> Any:
    """A step whose arguments are tuples."""
    loud, soft = sound
    fast, slow = belief
    return fast, (fast + loud * weights[0], slow + soft)


EARS = sn.RNN(listen, WEIGHTS, memory=4, inputs=3)
BOTH = sn.RNN(pair, (np.float32([2, 2, 2]),), memory=[3, 3])
ONE = sn.RNN(lambda sound, belief, gain: (sound * gain, belief), np.ones(3, "float32"), memory=3, inputs=3)


def traced(step: Callable[..., Any], memory: Any = 4, params: Any = None) -> Any:
    """Traces a step for inputs of three features."""
    return sn.RNN(step, params, memory=memory, inputs=3)


NOTES = [
    sn.Ragged.from_list([np.ones((count, 4), "float32") for count in counts]) for counts in ((2, 3), (3, 1))
]


def attending(step: Callable[..., Any], *notes: Any) -> Any:
    """Runs a step of (sound, belief, weights, statics), with statics named `notes` and `prior`."""
    rnn = sn.RNN(step, memory=4)
    return rnn(FRAMES, statics=dict(zip(("notes", "prior"), notes, strict=False)))


def lost(loss: Callable[..., Any], **call: Any) -> Any:
    """The value of a loss whose targets have a feature too few."""
    return sn.value_and_grad(loss, EARS)(FRAMES, np.ones((2, 5, 3), "float32"), **call)


SAID: dict[str, tuple[Callable[[], Any], str]] = {
    # calls
    "a wrong width": (lambda: EARS(FRAMES[:, :, :2]), "input sound has features [2]"),
    "a wrong width of a part": (
        lambda: sn.RNN(pair, (np.ones(3, "f4"),), memory=[3, 3], inputs=[3, 3])((FRAMES, FRAMES[:, :, :2])),
        "input sound.1 has features [2]",
    ),
    "another structure of inputs": (lambda: EARS({"a": FRAMES}), "the inputs `sound` are {a: array}"),
    "a wrong dtype": (lambda: EARS(FRAMES.astype("complex64")), "input sound has dtype complex64"),
    "texts": (lambda: EARS(np.array([[["a"]]])), "input sound has dtype str32"),
    "a Ragged among arrays": (
        lambda: BOTH((FRAMES, sn.Ragged.from_list([*FRAMES]))),
        "input sound.1 is a Ragged among arrays, unlike input sound.0",
    ),
    "other numbers of steps": (
        lambda: BOTH((FRAMES, FRAMES[:, :4])),
        "inputs `sound.0` and `sound.1` have different batch and time",
    ),
    "other lengths": (
        lambda: BOTH((sn.Ragged.from_list([*FRAMES]), sn.Ragged.from_list([*FRAMES[:, :4]]))),
        "inputs `sound.0` and `sound.1` have sequences of different lengths",
    ),
    "a wrong initial memory": (
        lambda: EARS(FRAMES, initial=np.zeros((2, 5), "float32")),
        "the initial memory `belief` is [2, 5]; it should be [2, 4]",
    ),
    "a part of the initial memory": (
        lambda: BOTH((FRAMES, FRAMES), initial=[np.zeros((2, 3), "float32"), np.zeros((1, 3), "float32")]),
        "the initial memory `belief.1` is [1, 3]",
    ),
    "an initial memory of texts": (
        lambda: EARS(FRAMES, initial=np.array(["a"])),
        "the initial memory `belief` has dtype str32",
    ),
    "another structure of memories": (
        lambda: EARS(FRAMES, initial={"h": np.zeros((2, 4))}),
        "initial is {h: array}, the memory `belief` is array",
    ),
    "a wrong static": (
        lambda: sn.RNN(lambda sound, belief, _, statics: (sound, belief), memory=3)(
            FRAMES, statics=(np.zeros((2, 1)), np.zeros((3, 1)))
        ),
        "static statics.1 is [3, 1]; its first axis should be the 2 sequences",
    ),
    "a step of a stream": (
        lambda: EARS.stream(rows=2).step(np.ones((3, 3), "float32")),
        "input sound is [3, 3]; the stream has 2 rows",
    ),
    "the memory of a stream": (
        lambda: EARS.stream(rows=1, initial=np.ones((1, 9), "float32")).step(np.ones((1, 3), "float32")),
        "the initial memory `belief` is [1, 9]",
    ),
    "layers": (
        lambda: sn.Stack([EARS])(FRAMES, initial=(np.ones((2, 9), "float32"),)),
        "layer 0: the initial memory `belief` is [2, 9]",
    ),
    # parameters
    "a number": (lambda: traced(pair, [3, 3], (0.5,)), "parameter weights.0 is the Python number 0.5"),
    "a parameter that is no array": (
        lambda: traced(listen, 4, np.array(["a"])),
        "parameter weights has dtype str32",
    ),
    "a missing parameter": (
        lambda: traced(lambda sound, belief, weights: (weights["far"], belief), 4, WEIGHTS),
        "there is no parameter 'far' in `weights`; there are wide, deep",
    ),
    "other shapes": (
        lambda: ONE.with_params(np.ones(4, "float32")),
        "parameter gain is float32[4]; that of the recurrence is float32[3]",
    ),
    "another structure of parameters": (
        lambda: ONE.with_params({"a": np.ones(3, "float32")}),
        "the parameters `gain` are {a: array}; those of the recurrence are array",
    ),
    # steps
    "another shape": (
        lambda: traced(lambda sound, belief, weights: (sound, belief[:, :2])),
        "the memory `belief` enters the step as f32[4] and leaves as f32[2]",
    ),
    "another shape of a part": (
        lambda: traced(lambda sound, belief, weights: (sound, (belief[0], belief[1][:, :2])), [4, 4]),
        "the memory `belief.1` enters the step as f32[4] and leaves as f32[2]",
    ),
    "another dtype of a key": (
        lambda: traced(lambda s, belief, _: (s, {"a": belief["a"].astype("float64")}), {"a": 4}),
        "the memory `a` enters the step as f32[4] and leaves as f64[4]",
    ),
    "another structure": (
        lambda: traced(lambda sound, belief, weights: (sound, (belief, belief))),
        "the memory `belief` enters the step as array and leaves as (array, array)",
    ),
    "no such memory": (
        lambda: traced(lambda sound, belief, weights: (sound, belief["z"]), {"a": 4}),
        "there is no memory 'z' in `belief`; there are a",
    ),
    "a name after a dot": (
        lambda: traced(lambda sound, belief, weights: (sound @ weights.wide, belief), 4, WEIGHTS),
        "brackets, weights['wide'], and not as weights.wide",
    ),
    "a product that does not fit": (
        lambda: traced(lambda sound, belief, gain: (belief @ gain, belief), 4, np.ones((3, 3))),
        "`belief` f64[4] @ `gain` f64[3, 3] does not fit",
    ),
    "features that do not fit": (
        lambda: traced(lambda sound, belief, _: (sound + belief, belief)),
        "feature shapes do not fit together: f32[3] and f32[4] (here `sound` and `belief`)",
    ),
    "features beside a result": (
        lambda: traced(lambda sound, belief, _: (np.tanh(sound) + belief, belief)),
        "f32[3] and f32[4] (here a value and `belief`)",
    ),
    "features that no argument has": (
        lambda: traced(lambda sound, belief, _: (np.tanh(sound) + np.tanh(belief), belief)),
        "feature shapes do not fit together: f32[3] and f32[4]\n",
    ),
    "other numbers of axes": (
        lambda: traced(lambda sound, belief, _: (sound * belief, belief), (4, 3)),
        "add an axis with x[:, None] where it belongs (here `sound` and `belief`)",
    ),
    "a parameter beside rows": (
        lambda: traced(lambda sound, belief, weights: (sound * weights["wide"].T, belief), 4, WEIGHTS),
        "the rows of a value with 1 feature axes (here `sound` and a value)",
    ),
    "a product of rows": (
        lambda: traced(lambda sound, belief, _: (belief @ belief, belief)),
        "write x[:, None, :] @ m with m of [rows, k, n] (here `belief` and `belief`)",
    ),
    "a row": (
        lambda: traced(lambda sound, belief, _: (sound, belief[0])),
        "but a step treats all rows alike: write x[:, ...] (here `belief`)",
    ),
    "rows moved": (
        lambda: traced(lambda sound, belief, _: (sound, belief.T)),
        "or transpose the parameter (here `belief`)",
    ),
    "sequences of other lengths": (
        lambda: attending(
            lambda x, h, p, statics: (sn.reduce(statics["notes"] + statics["prior"]), h), *NOTES
        ),
        "they are of sequences of different lengths (here `notes` and `prior`)",
    ),
    "a value beside a sequence": (
        lambda: attending(lambda x, query, p, statics: (statics["notes"] * query, query), NOTES[0]),
        "sn.expand(value, sequence) repeats one along it (here `notes` and `query`)",
    ),
    "no sequence to repeat along": (
        lambda: attending(lambda x, h, p, statics: (sn.expand(h, statics["notes"]), h), FRAMES),
        "expand repeats a value along an inner sequence, and `notes` f32[5, 3] is none",
    ),
    # where a dtype comes from
    "a static in float64": (
        lambda: attending(lambda x, h, p, statics: (x, h * statics["notes"]), np.ones((2, 4))),
        "(cast it back with .astype); float64 comes from `notes`",
    ),
    "a scalar of NumPy": (
        lambda: traced(lambda sound, belief, _: (sound, np.tanh(belief) / np.sqrt(8))),
        "float64 comes from an array or a scalar of NumPy: give arrays a dtype",
    ),
    "integers": (
        lambda: traced(lambda sound, belief, _: (sound, belief * np.arange(4))),
        "float64 comes from a value of int64 that meets floats: cast it with .astype",
    ),
    # losses
    "a loss": (
        lambda: lost(lambda guess, aim: np.sum(guess - aim, -1)),
        "f32[4] and f32[3] (here a value and `aim`)",
    ),
    "a loss after the model": (
        lambda: lost(lambda guess, aim: np.sum(guess - aim, -1), checkpoint=2),
        "f32[4] and f32[3] (here `guess` and `aim`)",
    ),
    "an inner recurrence": (
        lambda: sn.RNN(
            lambda outer, h, p: (BOTH((outer, outer), initial=[h, h[:, :2]], last_only=True)[0], h),
            memory=3,
            inputs=sn.Spec(3, levels=1),
        ),
        "the initial memory `belief.1` is f32[2]; it should be f32[3]",
    ),
    "no sequence": (
        lambda: traced(lambda x, h, p: (BOTH((x, x), initial="zeros")[0], h), 3),
        "input `sound.0` of a recurrence inside a step is no sequence there",
    ),
}


@pytest.mark.parametrize(("call", "said"), SAID.values(), ids=SAID.keys())
def test_a_message_has_the_names_of_the_step(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(StepnetError) as caught:
        call()
    assert said in str(caught.value)


def test_explain_has_the_names_of_the_step() -> None:
    text = EARS.explain()
    assert "sound @ wide" in text
    assert "belief @ deep" in text
    assert "belief f32[4]" in text
    BOTH((FRAMES, FRAMES))
    text = BOTH.explain()
    assert "sound.0 f32[3], sound.1 f32[3]" in text
    assert "weights.0" in text
    stack = sn.Stack([BOTH])
    stack((FRAMES, FRAMES))
    assert "belief.0 f32[3], belief.1 f32[3]" in stack.explain()


def test_explain_has_the_names_of_a_step_that_reads_sequences() -> None:
    def step(token: Any, belief: Any, _: Any, statics: Any) -> Any:
        notes = statics["notes"]
        scores = np.sum(notes * sn.expand(belief["h"], notes), axis=-1)
        h = token @ np.ones((3, 4), "float32") + sn.reduce(notes * scores[:, None], "sum")
        return h, {"h": h}

    notes = {"notes": NOTES[0]}
    rnn = sn.RNN(step, memory={"h": 4})
    outputs, _ = rnn(FRAMES, statics=notes)
    text = rnn.explain()
    for line in ("inputs      token f32[3]", "memories    h f32[4]", "statics     notes f32[4]"):
        assert line in text
    h, notes = np.zeros((2, 4)), cast("Any", NOTES[0])
    for time in range(5):
        h = np.stack([FRAMES[row, time].sum() + each.T @ each @ h[row] for row, each in enumerate(notes)])
        np.testing.assert_allclose(outputs[:, time], h, rtol=1e-5)


def test_the_names_are_those_of_the_saved_step(tmp_path: Any) -> None:
    """A loaded model has no code of the step, and its messages have the names that it was saved with."""
    path = tmp_path / "ears.stepnet"
    EARS.save(path)
    loaded = sn.load(path)
    with pytest.raises(StepnetError, match=r"the initial memory `belief` is \[2, 5\]"):
        loaded(FRAMES, initial=np.zeros((2, 5), "float32"))
    loaded.save(tmp_path / "again.stepnet")
    assert path.read_bytes() == (tmp_path / "again.stepnet").read_bytes()


def test_names_that_python_does_not_take_are_not_used() -> None:
    """The parameters of a function in C, and of one with starred parameters, have the usual names."""
    starred = sn.RNN(lambda *arguments: (arguments[0], arguments[1]), memory=3, inputs=3)
    with pytest.raises(StepnetError, match=r"the initial memory `memory` is \[2, 5\]"):
        starred(FRAMES, initial=np.zeros((2, 5), "float32"))
