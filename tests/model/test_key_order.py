"""Dicts in another order of keys are the same structure; what comes back is in the declared order."""

from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError

A = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
B = -A - 1
XS = {"a": A, "b": B}
TURNED = {"b": B, "a": A}


def step(x: Any, memory: Any, params: Any) -> Any:
    """A step whose memory comes back in another order than it went in."""
    h, c = memory["h"], memory["c"]
    return h + 2 * c, {"c": c - x["b"], "h": h + x["a"]}


def made(inputs: Any = None, **options: Any) -> Any:
    """The recurrence of that step, its memory declared as h and c."""
    return sn.RNN(step, memory={"h": 2, "c": 2}, inputs=inputs, **options)


def right(initial: Any = None, statics: float = 0) -> tuple[Any, Any]:
    """Outputs and last memory by hand."""
    h, c = (np.zeros((2, 2), np.float32),) * 2 if initial is None else (initial["h"], initial["c"])
    outputs: list[Any] = []
    for at in range(3):
        outputs.append(h + 2 * c)
        h, c = h + A[:, at], c - B[:, at]
    return np.stack(outputs, axis=1), {"h": h, "c": c}


def check(found: Any, initial: Any = None) -> None:
    """Asserts that outputs and memory are right, in the order that was declared."""
    outputs, final = right(initial)
    np.testing.assert_array_equal(found[0], outputs)
    assert list(found[1]) == ["h", "c"]
    for name, value in final.items():
        np.testing.assert_array_equal(found[1][name], value)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("inputs", [None, {"a": 2, "b": 2}, {"b": 2, "a": 2}])
@pytest.mark.parametrize("xs", [XS, TURNED])
def test_inputs_and_memories(inputs: Any, xs: Any, engine: str) -> None:
    rnn = made(inputs)
    check(rnn(xs, engine=engine))
    initial = {"c": np.ones((2, 2), np.float32), "h": np.full((2, 2), 5, np.float32)}
    check(rnn(xs, initial, engine=engine), initial)
    raggeds = {name: sn.Ragged.from_padded(one) for name, one in xs.items()}
    outputs, final = rnn(raggeds, initial, engine=engine)
    check((outputs.to_padded()[0], final), initial)


def test_inputs_of_other_keys_are_refused() -> None:
    with pytest.raises(InputError, match=r"the inputs `\w+` are {a: array, c: array}; this recurrence was"):
        made({"a": 2, "b": 2})({"a": A, "c": B})


@pytest.mark.parametrize("masked", ["repeat", "zero"])
def test_under_a_mask(masked: str, engine: str) -> None:
    mask = np.ones((2, 3), bool)
    check(made()(TURNED, mask=mask, masked=masked, engine=engine))


def test_with_an_end(engine: str) -> None:
    outputs, final = made(until=lambda output, memory: memory["h"][:, 0] > 100)(TURNED, engine=engine)
    check((outputs.to_padded()[0], final))


def test_steps_of_a_stream(engine: str) -> None:
    initial = {"c": np.ones((2, 2), np.float32), "h": np.full((2, 2), 5, np.float32)}
    stream = made({"b": 2, "a": 2}).stream(2, initial, engine=engine)
    for again in range(2):
        outputs = [
            stream.step({"a": A[:, at], "b": B[:, at]} if at % 2 else {"b": B[:, at], "a": A[:, at]})
            for at in range(3)
        ]
        check((np.stack(outputs, axis=1), stream.state), initial)
        stream.reset(initial=initial if again else {"c": initial["c"], "h": initial["h"]})


def test_statics_of_a_stream(engine: str) -> None:
    rnn: Any = sn.RNN(lambda x, h, p, statics: (statics["a"] - 2 * statics["b"], h), memory=2)
    one, two = np.full((1, 2), 3, np.float32), np.full((1, 2), 5, np.float32)
    stream = rnn.stream(1, statics={"a": one, "b": two}, engine=engine)
    assert stream.step(one).tolist() == [[-7, -7]]
    stream.reset(statics={"b": one, "a": two})
    assert stream.step(one).tolist() == [[-1, -1]]
    with pytest.raises(InputError, match=r"the statics are {a: array}; they were {a: array, b: array}"):
        stream.reset(statics={"a": one})


def test_statics_of_a_stream_beside_sequences(engine: str) -> None:
    def of(x: Any, h: Any, params: Any, statics: Any) -> Any:
        return sn.reduce(statics["keys"], "sum") - 2 * statics["b"], h

    keys = sn.Ragged.from_list([np.ones((3, 2), np.float32)])
    two = np.full((1, 2), 5, np.float32)
    stream: Any = sn.RNN(of, memory=2).stream(1, statics={"keys": keys, "b": two}, engine=engine)
    assert stream.step(two).tolist() == [[-7, -7]]
    stream.reset(statics={"b": 2 * two, "keys": keys})
    assert stream.step(two).tolist() == [[-17, -17]]


def test_inside_a_step(engine: str) -> None:
    inner = made()

    def outer(x: Any, h: Any, params: Any) -> Any:
        _, last = inner(x, {"c": h, "h": 2 * h}, last_only=True)
        return last["h"] - 3 * last["c"], h + 1

    deep = {name: sn.Ragged.from_padded(one).group([2]) for name, one in TURNED.items()}
    outputs, _ = sn.RNN(outer, memory=2)(deep, engine=engine)
    expected: list[Any] = []
    for row in range(2):
        initial = {"h": np.full((2, 2), 2 * row, np.float32), "c": np.full((2, 2), row, np.float32)}
        final = right(initial)[1]
        expected.append((final["h"] - 3 * final["c"])[row])
    np.testing.assert_array_equal(outputs.values, expected)


def test_what_is_traced_and_looped_over() -> None:
    scopes = made({"b": 2, "a": 2}).trace_steps(TURNED)
    np.testing.assert_array_equal(scopes["after.h"].to_padded()[0][:, -1], right()[1]["h"])
    np.testing.assert_array_equal(scopes["inputs.a"].to_padded()[0], A)
    outputs, state = sn.foreach(
        lambda x, s: (s["h"], {"c": s["c"], "h": s["h"] + x}),
        A,
        {"h": np.zeros((2, 2), np.float32), "c": np.ones((2, 2), np.float32)},
    )
    assert list(state) == ["h", "c"]
    np.testing.assert_array_equal(state["h"], A.sum(axis=1))
    np.testing.assert_array_equal(state["c"], np.ones((2, 2)))
    assert outputs.shape == (2, 3, 2)


def test_two_directions_are_merged_by_key(engine: str) -> None:
    forward = sn.RNN(lambda x, h, p: ({"a": x, "b": 2 * x}, h), memory=2)
    backward = sn.RNN(lambda x, h, p: ({"b": 20 * x, "a": 10 * x}, h), memory=2, reverse=True)
    outputs, _ = sn.Bidirectional(forward, backward, merge="sum")(A, engine=engine)
    np.testing.assert_array_equal(outputs["a"], 11 * A)
    np.testing.assert_array_equal(outputs["b"], 22 * A)
