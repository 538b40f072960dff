"""Looking inside a recurrence: the scopes of every step against plain loops."""

import functools
import sys
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, StepError
from tests.compiler.trace.test_lines import decorated, doubling

Array = np.ndarray
F32, F64 = np.float32, np.float64
LENGTHS = st.lists(st.sampled_from([0, 1, 2, 5]), max_size=4)
DRAWN = np.random.default_rng(3)
PARAMS = {"W": DRAWN.uniform(-1, 1, (2, 3)), "R": DRAWN.uniform(-1, 1, (3, 3)), "tau": np.array(0.5)}


# ---- scopes against a plain loop ---------------------------------------------------------------------------


def attend(scores: Any) -> Any:
    best = scores.max(axis=-1)
    return scores - best[:, None]


def step(x: Any, memory: Any, p: Any, statics: Any, index: Any) -> Any:
    """Locals of all kinds: structures, constants, names assigned twice, and a function called twice."""
    W = p["W"]
    decay = np.exp(-p["tau"])
    total = x["a"] @ W
    total = total + statics
    gates = {"r": sn.sigmoid(total), "late": index > 1}
    h = np.tanh(total + gates["r"] * (memory["h"] @ p["R"]) * decay)
    attend(total)
    centred = attend(h)
    flag = x["b"] & gates["late"]
    return (centred, flag), {"h": h, "count": memory["count"] + 1}


def scopes_by_hand(
    a: Any,
    b: Any,
    counts: Any,
    masked: str | None,
    static: Array,
    h: Array,
    count: int,
    begun: int,
    until: int,
) -> list[dict[str, Any]]:
    """The variables of `step` at each step of one sequence, until it ends.

    Where a step does not count its outputs and memory are those of the mask.
    """
    found: list[dict[str, Any]] = []
    shown = {"outputs.0": np.zeros(3), "outputs.1": False}
    for number in range(len(a)):
        index = begun + number
        one: dict[str, Any] = {"inputs.a": a[number], "inputs.b": b[number], "statics": static}
        one |= {"before.h": h, "before.count": count, "memory.h": h, "memory.count": count, "index": index}
        one |= {"x.a": a[number], "x.b": b[number], "decay": np.exp(-PARAMS["tau"])}
        one["total"] = a[number] @ PARAMS["W"] + static
        one["gates.r"] = 1 / (1 + np.exp(-one["total"]))
        one["gates.late"] = index > 1
        new = np.tanh(one["total"] + one["gates.r"] * (h @ PARAMS["R"]) * one["decay"])
        one |= {"h": new, "attend.scores": new, "attend.best": new.max(), "centred": new - new.max()}
        one["flag"] = bool(b[number]) and index > 1
        if counts[number]:
            h, count = new, count + 1
            shown = {"outputs.0": one["centred"], "outputs.1": one["flag"]}
        elif masked == "zero":
            shown = {"outputs.0": np.zeros(3), "outputs.1": False}
        one |= {**shown, "after.h": h, "after.count": count}
        found.append(one)
        if counts[number] and count >= until:
            break
    return found


@pytest.mark.long(examples=10)
@settings(max_examples=40)
@given(
    LENGTHS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "repeat", "zero"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_scopes_are_the_variables_of_a_plain_loop(
    lengths: list[int], reverse: bool, padded: bool, ends: bool, masked: str | None, counted: bool, seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    a = sn.Ragged.from_list([drawn.uniform(-1, 1, (n, 2)) for n in lengths], np.float64, 2)
    b = a.with_values(drawn.uniform(size=a.total) < 0.5)
    mask = a.with_values((drawn.uniform(size=a.total) < 0.6) | (masked is None))
    statics = drawn.uniform(-1, 1, (len(lengths), 3))
    initial = {"h": drawn.uniform(-1, 1, (len(lengths), 3)), "count": drawn.integers(0, 9, len(lengths))}
    begun = drawn.integers(0, 3, len(lengths)) if counted else None
    most = 8 if ends else 99
    rnn = sn.RNN(
        step,
        PARAMS,
        memory={"h": 3, "count": sn.Spec((), np.int64)},
        reverse=reverse,
        until=(lambda output, memory: memory["count"] >= most) if ends else None,
    )
    x: Any = {"a": a, "b": b}
    told: dict[str, Any] = {"begun": begun}
    if masked is not None:
        told |= {"mask": mask.to_padded()[0] if padded else mask, "masked": masked}
    if padded:
        x, told["lengths"] = (
            {"a": a.to_padded(fill=7)[0], "b": b.to_padded(fill=True)[0]},
            lengths_of(lengths),
        )
    scopes = rnn.trace_steps(x, initial, statics, **told)
    outputs, final = rnn(x, initial, statics, **told, engine="interpret")
    back = -1 if reverse else 1
    for row in range(len(lengths)):
        h, count = initial["h"][row], int(initial["count"][row])
        values_a, values_b, counts = (np.asarray(one[row])[::back] for one in (a, b, mask))
        begin = 0 if begun is None else int(begun[row])
        wanted = scopes_by_hand(values_a, values_b, counts, masked, statics[row], h, count, begin, most)
        wanted = wanted[::back]
        assert {value.lengths[row] for value in scopes.values.values()} == {len(wanted)}
        for number, values in enumerate(wanted):
            found = scopes.step(row, number)
            assert set(found) == set(values)
            for name, right in values.items():
                assert_close(found[name], right, 5, 4, F64)
            for place, output in enumerate(outputs):
                assert found[f"outputs.{place}"].tobytes() == output[row][number].tobytes()
        if wanted:
            last = scopes.step(row, 0 if reverse else -1)
            assert last["after.h"].tobytes() == final["h"][row].tobytes()
            assert last["after.count"] == final["count"][row]


def lengths_of(lengths: list[int]) -> Array:
    return np.array(lengths, int)


def test_names_in_the_order_of_the_computation() -> None:
    rnn = sn.RNN(step, PARAMS, memory={"h": 3, "count": sn.Spec((), np.int64)})
    x = {"a": np.ones((1, 2, 2)), "b": np.ones((1, 2), bool)}
    scopes = rnn.trace_steps(x, statics=np.ones((1, 3)))
    assert list(scopes) == [
        *("inputs.a", "inputs.b", "before.h", "before.count", "statics"),
        *("x.a", "x.b", "memory.h", "memory.count", "index", "decay", "total", "gates.r", "gates.late"),
        *("h", "attend.scores", "attend.best", "centred", "flag"),
        *("outputs.0", "outputs.1", "after.h", "after.count"),
    ]
    assert "W" not in scopes
    assert "p.W" not in scopes
    assert len(scopes) == 23


def test_they_agree_with_a_call_bit_for_bit_and_the_recurrence_stays_as_it_was() -> None:
    rnn = sn.RNN(lambda x, h, p: (x + h, np.tanh(x - h)), memory=2, inputs=2)
    net = str(rnn.net)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 4, 2)).astype(F32)
    scopes = rnn.trace_steps(x)
    outputs, final = rnn(x, engine="interpret")
    assert scopes["outputs"].values.tobytes() == outputs.tobytes()
    before, after = (scopes[name].to_padded()[0] for name in ("before", "after"))
    assert after[:, -1].tobytes() == final.tobytes()
    assert before[:, 1:].tobytes() == after[:, :-1].tobytes()
    assert str(rnn.net) == net
    assert scopes["x"].dtype == F32


def traced(step: Any, memory: Any = 2, params: Any = None, x: Any = None) -> Any:
    x = np.arange(4, dtype=F32).reshape(1, 2, 2) if x is None else x
    return sn.RNN(step, params, memory=memory).trace_steps(x)


def test_a_variable_with_the_name_of_a_role_has_the_steps_name_before_it() -> None:
    def run(x: Any, before: Any, p: Any) -> Any:
        inputs = 2 * x
        outputs = inputs + before
        before = -x
        return outputs, outputs

    scopes = traced(run)
    assert list(scopes) == ["inputs", "before", "x", "run.inputs", "run.before", "outputs", "after"]
    assert scopes["run.inputs"].values.tolist() == [[0, 2], [4, 6]]
    assert scopes["run.before"].values.tolist() == [[0, -1], [-2, -3]]
    assert scopes["before"].values.tolist() == [[0, 0], [0, 2]]


def test_a_memory_changed_in_its_dict_is_the_one_that_came_in() -> None:
    def run(x: Any, memory: Any, p: Any) -> Any:
        memory["h"] = memory["h"] + x
        return None, memory

    scopes = traced(run, {"h": 2})
    assert scopes["before.h"].values.tolist() == [[0, 0], [0, 1]]
    assert scopes["after.h"].values.tolist() == scopes["memory.h"].values.tolist() == [[0, 1], [2, 4]]


def test_what_is_the_same_at_every_step_is_there_too_without_memory_of_its_own() -> None:
    def run(x: Any, h: Any, p: Any) -> Any:
        scale = 2 * p["s"]
        weights = np.concatenate([p["s"], p["s"]])
        return (scale, np.array([1.5]), 3.0, h * scale), h + weights[:2]

    s = np.array([1, 2], F32)
    scopes = traced(run, params={"s": s})
    for name, right in (("scale", 2 * s), ("weights", [1, 2, 1, 2]), ("outputs.0", 2 * s)):
        assert scopes[name].to_list()[0].tolist() == [list(right)] * 2
        assert scopes[name].values.strides[0] == 0
    assert scopes["outputs.1"].to_list()[0].tolist() == [[1.5]] * 2
    assert scopes["outputs.2"].to_list()[0].tolist() == [3.0] * 2
    assert scopes["outputs.3"].values.tolist() == [[0, 0], [2, 8]]
    assert "outputs.3" in scopes
    assert "p.s" not in scopes


class Cell:
    """A step that is an object."""

    def __init__(self) -> None:
        self.factor = 2.0

    def __call__(self, x: Any, h: Any, p: Any) -> Any:
        scaled = self.factor * x
        return scaled, h + scaled

    def method(self, x: Any, h: Any, p: Any) -> Any:
        scaled = self.factor * x
        return scaled, h + scaled


FORMS: dict[str, tuple[Any, str]] = {
    "function": (doubling, "scaled"),
    "partial": (functools.partial(doubling, factor=2.0), "scaled"),
    "partial of a partial": (functools.partial(functools.partial(doubling), factor=2.0), "scaled"),
    "object": (Cell(), "scaled"),
    "method": (Cell().method, "scaled"),
    "decorated": (decorated(doubling), "scaled"),
    "another function": (lambda x, h, p: doubling(x, h, p), "doubling.scaled"),
}


@pytest.mark.parametrize("form", FORMS)
def test_steps_of_every_form(form: str) -> None:
    function, name = FORMS[form]
    scopes = traced(function)
    assert scopes[name].values.tolist() == [[0, 2], [4, 6]]
    assert not any(title.startswith("<") for title in scopes)


def test_the_last_call_of_a_function_is_kept_whole() -> None:
    def part(value: Any, more: bool) -> Any:
        if more:
            extra = value + 1
            return -extra
        return value * 3

    def run(x: Any, h: Any, p: Any) -> Any:
        return part(x, True), part(h, False)

    scopes = traced(run)
    assert scopes["part.value"].values.tolist() == scopes["before"].values.tolist()
    assert "part.extra" not in scopes


def test_what_is_no_value_of_this_step_is_left_out() -> None:
    other: list[Any] = []
    sn.RNN(lambda x, h, p: (other.append(x), (x, h))[1], memory=2, inputs=2)

    def run(x: Any, h: Any, p: Any) -> Any:
        kept = {"other": other[0], "word": "text", "number": 3}
        shifted = [x + place for place in range(2)]
        captured = (lambda: x * kept["number"])()
        return captured, h + shifted[1]

    assert [*traced(run)][2:-2] == ["x", "h", "shifted.0", "shifted.1", "captured"]


def test_variables_that_hold_anything() -> None:
    class Lazy(dict[str, Any]):
        """A mapping that may not be read."""

        def __getitem__(self, key: str) -> Any:
            raise AssertionError("nobody asks for it")

        __iter__ = items = values = keys = __getitem__  # type: ignore[assignment]

    class Untrue:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody asks")

        __bool__ = __len__ = __eq__  # type: ignore[assignment]

    def run(x: Any, h: Any, p: Any) -> Any:
        around = [x * 2]
        around.append(around)  # type: ignore[arg-type]
        lazy, untrue = Lazy(kept=x * 3), Untrue()
        pair = Pair(x - 1, {"deep": (h,), 3: x + 1})
        mine = (value for value in (x, h))
        parts = [value * 5 for value in mine]
        _, unused = parts
        del unused
        return around[0], h + pair.left + len(str((lazy is None, untrue is None)))

    scopes = traced(run)
    assert set(scopes) - {"inputs", "before", "outputs", "after"} == {
        *("x", "h", "around.0", "pair.left", "pair.right.deep.0", "pair.right.3", "parts.0", "parts.1"),
        "lazy.kept",
    }
    assert scopes["pair.right.3"].values.tolist() == [[1, 2], [3, 4]]
    assert scopes["parts.0"].values.tolist() == [[0, 5], [10, 15]]


class Pair(NamedTuple):
    left: Any
    right: Any


def test_values_of_a_generator_are_its_last() -> None:
    def parts(value: Any) -> Any:
        part = value * 2
        yield part
        part = value * 3
        yield part

    def run(x: Any, h: Any, p: Any) -> Any:
        one, other = parts(x)
        return one, h + other

    scopes = traced(run)
    assert scopes["parts.part"].values.tolist() == [[0, 3], [6, 9]]
    assert scopes["one"].values.tolist() == [[0, 2], [4, 6]]


# ---- steps that are no functions of the user's -------------------------------------------------------------


def test_a_step_that_python_wrote() -> None:
    assert list(traced(lambda *args: (args[0], args[1]), params=None)) == [
        *("inputs", "before", "args.0", "args.1", "outputs", "after"),
    ]
    with pytest.raises(TypeError) as caught:
        traced(getattr)
    assert type(caught.value) is TypeError, "an error of Python's stays what it is"


def test_a_block_has_the_names_of_its_variables() -> None:
    x = np.arange(6, dtype=F64).reshape(1, 3, 2)
    rnn = sn.create_rnn_op(output_num=2)
    with rnn.stepnet():
        word = rnn.add_input(x)
        h = rnn.add_memory(init=np.ones((1, 2)))
        c = rnn.add_memory(shape=[2])
        before = c.pre_state()
        total = word + h.pre_state()
        total = total * 2
        c.update(before + word)
        h.update(total)
        rnn.add_outputs(h, word)
    after = rnn()[0][0]
    recurrence = rnn.recurrence
    scopes = recurrence.trace_steps({"x": x}, {"memory": np.ones((1, 2)), "memory2": np.zeros((1, 2))})
    roles = ["inputs.x", "before.memory", "before.memory2"]
    last = ["outputs.0", "outputs.1", "after.memory", "after.memory2"]
    assert list(scopes)[: len(roles)] == roles
    assert list(scopes)[-len(last) :] == last
    assert set(scopes) == {*roles, *last, "word", "h", "c", "before", "total"}
    assert scopes["total"].values.tolist() == scopes["h"].values.tolist() == after.tolist()
    assert scopes["word"].values.tolist() == x[0].tolist()
    assert scopes["c"].values.tolist() == np.cumsum(x[0], axis=0).tolist()
    assert str(recurrence.net).count("output") == 0


def test_a_step_of_torch_has_the_roles_alone() -> None:
    torch = pytest.importorskip("torch")
    from stepnet.torch import trace

    def run(x: Any, h: Any, p: Any) -> Any:
        doubled = x * 2
        return doubled, h + doubled

    rnn = trace(run, (torch.zeros(1, 2), torch.zeros(1, 2)))
    scopes = rnn.trace_steps(np.arange(4, dtype=F32).reshape(1, 2, 2))
    assert list(scopes) == ["inputs", "before", "outputs", "after"]
    assert scopes["after"].values.tolist() == [[0, 2], [4, 8]]
    cell = trace(torch.nn.GRUCell(2, 3), (torch.zeros(1, 2), torch.zeros(1, 3)))
    scopes = cell.trace_steps(np.ones((1, 2, 2), F32))
    assert scopes["before"].values[1].tolist() == scopes["outputs"].values[0].tolist()


# ---- layers ------------------------------------------------------------------------------------------------


def gru(inputs: int, seed: int, reverse: bool = False) -> sn.RNN:
    return rnn_of("gru", inputs, 3, seed=seed, dtype="float64", reverse=reverse)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_layers_by_layer(padded: bool, masked: bool) -> None:
    drawn = np.random.default_rng(2)
    x: Any = sn.Ragged.from_list([drawn.uniform(-1, 1, (n, 2)) for n in (3, 0, 1)])
    mask: Any = x.with_values(drawn.uniform(size=x.total) < 0.5)
    lengths = lengths_of([3, 0, 1]) if padded else None
    if padded:
        x, mask = x.to_padded()[0], mask.to_padded()[0]
    told = {"lengths": lengths, "mask": mask if masked else None}
    both = sn.Bidirectional(gru(2, 0), gru(2, 1, reverse=True))
    top = gru(6, 2)
    initial = (
        {"forward": drawn.uniform(-1, 1, (3, 3)), "backward": None},
        None,
        drawn.uniform(-1, 1, (3, 3)),
    )
    same = gru(3, 3)
    stack = sn.Stack([both, top, same, same])
    lower, middle, third, last = stack.trace_steps(x, (*initial[:2], initial[2], None), **told)
    outputs, final = both(x, initial[0], **told, engine="interpret")
    for name, direction in (("forward", both.forward), ("backward", both.backward)):
        one, _ = direction(x, initial[0][name], **told, engine="interpret")
        assert lower[name]["outputs"].values.tobytes() == as_ragged(one, lengths).values.tobytes()
    assert middle["inputs"].equal(as_ragged(outputs, lengths))
    outputs, final = stack(x, (*initial[:2], initial[2], None), **told, engine="interpret")
    assert last["outputs"].equal(as_ragged(outputs, lengths))
    assert third["after"].to_list()[0][-1].tobytes() == final[2][0].tobytes()
    assert last["inputs"].equal(third["outputs"])


def as_ragged(outputs: Any, lengths: Any) -> sn.Ragged:
    return outputs if isinstance(outputs, sn.Ragged) else sn.Ragged.from_padded(outputs, lengths)


def test_the_part_that_is_wrong_is_named() -> None:
    stack = sn.Stack([sn.Bidirectional(gru(2, 0), gru(2, 1, reverse=True)), gru(7, 2)])
    with pytest.raises(InputError, match=r"^layer 1: input x has features \[6\]; .* made for \[7\]"):
        stack.trace_steps(np.ones((1, 2, 2)))
    with pytest.raises(InputError, match=r"^layer 0: the backward direction: input x has features \[2\]"):
        sn.Stack([sn.Bidirectional(gru(2, 0), gru(3, 1, reverse=True))]).trace_steps(np.ones((1, 2, 2)))
    with pytest.raises(InputError, match="initial of a Stack is a tuple, one entry for each of its 2 layers"):
        stack.trace_steps(np.ones((1, 2, 2)), np.ones((1, 3)))


def test_a_named_cell() -> None:
    params = sn.cells.CELLS["gru"].parameters(inputs=2, hidden=3)
    scopes = sn.cells.rnn("gru", params).trace_steps(sn.Ragged.from_list([np.ones((2, 2), F32)]))
    r, z, n, before = (scopes[name].values for name in ("r", "z", "n", "before"))
    assert_close(scopes["after"].values, (1 - z) * n + z * before, 2, 3)
    assert ((r > 0) & (r < 1)).all()


def test_sequences_of_sequences() -> None:
    frames = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2)

    def speaker(utterances: Any, h: Any, p: Any) -> Any:
        running, last = frames(utterances, initial="zeros")
        h = h + last
        return running, h

    deep = sn.Ragged.from_list([[np.ones((2, 2)), np.ones((3, 2))], [], [np.full((1, 2), 5.0)]])
    scopes = sn.RNN(speaker, memory=2).trace_steps(deep)
    assert scopes["running"].levels == 2
    assert scopes["running"].to_list()[0][1].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert np.asarray(scopes.step(0, 1)["inputs"]).tolist() == [[1, 1]] * 3
    assert scopes["last"].to_list()[0].tolist() == [[2, 2], [3, 3]]
    assert scopes["after"].to_list()[2].tolist() == [[5, 5]]
    assert repr(scopes).endswith(", 3 sequences of 0 to 2 steps)")


# ---- recurrences inside a step -----------------------------------------------------------------------------


def strokes_step(x: Any, c: Any, p: Any) -> Any:
    turned = -x
    return turned + c, c + turned


strokes = sn.RNN(strokes_step, memory=2)
words = sn.RNN(lambda x, c, p: (np.tanh(x @ p + c), np.tanh(x @ p + c)), PARAMS["W"][:, :2], memory=2)
backward = sn.RNN(strokes_step, memory=2, reverse=True)


def document(x: Any, h: Any, p: Any) -> Any:
    """Two recurrences over the inner sequences: begun anew, and continued from here to the last word."""
    said, _ = words(x, initial="zeros")
    back, _ = backward(x * 2, initial=h, last_only=True)
    mean = sn.reduce(said, "mean")
    return back, 0.5 * h + mean


def document_by_hand(x: Array, h: Array) -> dict[str, Any]:
    """The variables of `document`, and those of its recurrences at each of the words."""
    titles = ("words.before", "words.after", "backward.before", "backward.after")
    inside = {name: np.zeros((len(x), 2)) for name in titles}
    c = np.zeros(2)
    for place in range(len(x)):
        inside["words.before"][place] = c
        inside["words.after"][place] = c = np.tanh(x[place] @ PARAMS["W"][:, :2] + c)
    c, back = h, np.zeros(2)
    for place in reversed(range(len(x))):
        inside["backward.before"][place] = c
        inside["backward.after"][place] = back = c = c - 2 * x[place]
    mean = inside["words.after"].mean(0) if len(x) else np.zeros(2)
    found = {"inputs": x, "x": x, "before": h, "h": h, "back": back, "mean": mean, "outputs": back}
    found |= {**inside, "said": inside["words.after"], "after": 0.5 * h + mean}
    found |= {"words.inputs": x, "words.x": x, "backward.inputs": 2 * x, "backward.x": 2 * x}
    found |= {"backward.turned": -2 * x}
    for name in ("words", "backward"):
        found |= {f"{name}.c": inside[f"{name}.before"], f"{name}.outputs": inside[f"{name}.after"]}
    return found


@pytest.mark.long(examples=10)
@settings(max_examples=30)
@given(st.lists(LENGTHS, max_size=3), st.booleans(), st.integers(0, 99))
def test_the_scopes_of_recurrences_inside(documents: list[list[int]], reverse: bool, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    deep = sn.Ragged.from_list(
        [[drawn.uniform(-1, 1, (n, 2)) for n in lengths] for lengths in documents], F64, 2, levels=2
    )
    initial = drawn.uniform(-1, 1, (len(documents), 2))
    scopes = sn.RNN(document, memory=2, reverse=reverse).trace_steps(deep, initial)
    assert scopes["words.c"].levels == scopes["said"].levels == 2
    assert set(scopes) == set(document_by_hand(np.zeros((1, 2)), np.zeros(2)))
    for row, lengths in enumerate(documents):
        h = initial[row]
        for number in range(len(lengths))[:: -1 if reverse else 1]:
            wanted = document_by_hand(deep.to_list()[row][number], h)
            found, h = scopes.step(row, number), wanted["after"]
            for name, right in wanted.items():
                assert_close(found[name], right, 9, 4, F64)


def test_the_scopes_of_three_levels() -> None:
    letters = sn.RNN(strokes_step, memory=2)

    def words_step(x: Any, c: Any, p: Any) -> Any:
        run, c = letters(x, initial=c)
        return run, c

    sentence = sn.RNN(words_step, memory=2)

    def text(x: Any, h: Any, p: Any) -> Any:
        run, h = sentence(x, initial="zeros")
        return run, h

    x = sn.Ragged.from_list([[[np.ones((2, 2)), np.ones((1, 2))]], [[np.zeros((0, 2))], []]], levels=3)
    scopes = sn.RNN(text, memory=2).trace_steps(x)
    turned = scopes["sentence.letters.turned"]
    assert turned.equal(x.with_values(-x.values))
    assert scopes["sentence.letters.c"].to_list()[0][0][1].tolist() == [[-2, -2]]
    assert scopes["sentence.c"].to_list()[0][0].tolist() == [[-2, -2], [-3, -3]]
    assert [scopes[name].levels for name in ("h", "sentence.before", "run")] == [1, 2, 3]


def test_recurrences_are_called_as_the_user_calls_them() -> None:
    class Step:
        def __init__(self) -> None:
            self.inner = sn.RNN(strokes_step, memory=2)

        def __call__(self, x: Any, h: Any, p: Any) -> Any:
            own = self.inner(x, initial=h)[1]
            other = sn.RNN(strokes_step, memory=2)(-x, initial=h)[1]
            unnamed = sn.RNN(lambda x, c, p: (x, c + x), memory=2)(x, initial=h)[1]
            twice = strokes(strokes(x, initial="zeros")[0], initial="zeros")[1]
            return own + other, unnamed + twice

    scopes = sn.RNN(Step(), memory=2).trace_steps(sn.Ragged.from_list([[np.ones((2, 2))]]))
    titles = [name.removesuffix(".before") for name in scopes if name.endswith(".before")]
    assert titles == ["strokes_step", "strokes_step2", "lambda", "strokes"]
    assert scopes["strokes_step.turned"].values.tolist() == [[-1, -1]] * 2
    assert scopes["strokes_step2.turned"].values.tolist() == [[1, 1]] * 2
    assert scopes["strokes.turned"].values.tolist() == [[1, 1], [2, 2]], "of the last call"


def test_steps_inside_are_as_they_were() -> None:
    """To be watched leaves no trace: neither in the recurrence inside nor in a later call."""
    inner = sn.RNN(strokes_step, memory=2, inputs=2)
    outer = sn.RNN(lambda x, h, p: inner(x, initial=h, last_only=True), memory=2)
    deep = sn.Ragged.from_list([[np.arange(6.0, dtype=F32).reshape(3, 2)]])
    before, net = outer(deep, engine="interpret"), str(inner.net)
    scopes = outer.trace_steps(deep)
    assert str(inner.net) == net
    assert outer(deep, engine="interpret")[0].equal(before[0])
    assert scopes["outputs"].equal(before[0])
    assert scopes["after"].values.tobytes() == before[1].tobytes()


# ---- statics that are sequences ----------------------------------------------------------------------------


def attention(query: Any, h: Any, p: Any, statics: Any) -> Any:
    keys = statics["keys"]
    scores = np.sum(keys * sn.expand(query + h, keys), axis=-1)
    weights = sn.softmax_over_steps(scores)
    context = sn.reduce(keys * weights[:, None], "sum")
    h = h + context + statics["row"]
    return context, h


@pytest.mark.long(examples=10)
@settings(max_examples=30)
@given(LENGTHS, st.booleans(), st.integers(0, 99))
def test_the_scopes_of_attention(lengths: list[int], padded: bool, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    query = sn.Ragged.from_list([drawn.uniform(-1, 1, (n, 3)) for n in lengths], F64, 3)
    spread = drawn.integers(0, 4, len(lengths))
    keys = sn.Ragged.from_list([drawn.uniform(-1, 1, (n, 3)) for n in spread], F64, 3)
    row_ = drawn.uniform(-1, 1, (len(lengths), 3))
    x = query.to_padded()[0] if padded else query
    rnn = sn.RNN(attention, memory=3)
    scopes = rnn.trace_steps(
        x, statics={"keys": keys, "row": row_}, lengths=lengths_of(lengths) if padded else None
    )
    roles = {"inputs", "before", "statics.row", "outputs", "after"}
    assert set(scopes) == roles | {"query", "scores", "weights", "context", "h"}, "keys are the caller's"
    assert scopes["weights"].levels == scopes["scores"].levels == 2
    for row in range(len(lengths)):
        h, own = np.zeros(3), np.asarray(keys[row])
        for number in range(lengths[row]):
            found = scopes.step(row, number)
            scores = own @ (query[row][number] + h)
            weights = np.exp(scores) / np.exp(scores).sum()
            context = weights @ own
            wanted = {"before": h, "scores": scores, "weights": weights, "context": context}
            h = h + context + row_[row]
            wanted |= {"h": h, "after": h, "outputs": context, "statics.row": row_[row]}
            for name, right in wanted.items():
                assert_close(found[name], right, 5, 4, F64)


# ---- looking at them ---------------------------------------------------------------------------------------


def test_the_table() -> None:
    def run(x: Any, h: Any, p: Any) -> Any:
        wide = x[:, None] * np.arange(6.0).reshape(2, 3)[None, 0]
        sign = x > 0
        return wide, h + sign.astype(np.int64)

    memory = sn.Spec((), np.int64)
    scopes = sn.RNN(run, memory=memory).trace_steps(sn.Ragged.from_list([[], [1.5, -2.0]], features=()))
    assert str(scopes).splitlines() == [
        "value    is      at step 0 of sequence 1",
        "inputs   f64[]   1.5",
        "before   i64[]   0",
        "x        f64[]   1.5",
        "h        i64[]   0",
        "wide     f64[3]  0 1.5 3",
        "sign     bool[]  True",
        "outputs  f64[3]  0 1.5 3",
        "after    i64[]   1",
    ]
    many = traced(lambda x, h, p: (x, h), x=np.arange(5.0).reshape(1, 1, 5))
    assert "inputs   f64[5]  0 1 2 3 ..." in str(many).splitlines()


def test_the_table_of_sequences_inside() -> None:
    def run(x: Any, h: Any, p: Any) -> Any:
        shown, last = strokes(x, initial="zeros")
        return shown, h + last

    deep = sn.Ragged.from_list([[], [np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((0, 2))]], levels=2)
    scopes = sn.RNN(run, memory=2).trace_steps(deep)
    assert str(scopes).splitlines()[:3] == [
        "value            is         at step 0 of sequence 1",
        "inputs           f64[*, 2]  1 2 3 4",
        "before           f64[2]     0 0",
    ]
    assert "strokes.turned   f64[*, 2]  -1 -2 -3 -4" in str(scopes).splitlines()
    assert scopes.step(1, 1)["strokes.c"].shape == (0, 2)


@pytest.mark.parametrize("count", [0, 2])
def test_no_steps_at_all(count: int) -> None:
    scopes = traced(doubling, x=np.zeros((count, 0, 2), F32))
    assert scopes["scaled"].lengths.tolist() == [0] * count
    assert "scaled   f32[2]" in str(scopes).splitlines()
    assert repr(scopes).startswith("Scopes(")


def test_a_value_or_a_step_that_there_is_not() -> None:
    scopes = traced(doubling)
    with pytest.raises(InputError, match="no value is called 'y'; there are inputs, before, x, h, scaled"):
        scopes["y"]
    assert "y" not in scopes
    for row in (1, -2, 0.5):
        with pytest.raises(InputError, match=f"there is no sequence {row}: there are 1"):
            scopes.step(row, 0)  # pyright: ignore[reportArgumentType]
    for number in (2, -3, None):
        with pytest.raises(InputError, match=f"sequence 0 has no step {number}: it has 2"):
            scopes.step(0, number)  # pyright: ignore[reportArgumentType]
    assert scopes.step(-1, -1)["scaled"].tolist() == [4, 6]


def test_what_it_is_not_given() -> None:
    def inside(x: Any, h: Any, p: Any) -> Any:
        return strokes.trace_steps(x, initial="zeros"), h

    deep = sn.Ragged.from_list([[np.ones((2, 2))]])
    with pytest.raises(StepError, match=r"is not for a recurrence inside .*\n  at .*: return strokes\.trace"):
        sn.RNN(inside, memory=2)(deep)
    rnn = sn.RNN(doubling, memory=2)
    x = np.ones((2, 3, 2), F32)
    wrong: dict[str, tuple[Any, ...]] = {
        "masked is 'repeat' or 'zero', not 'skip'": (x, {"masked": "skip"}),
        r"mask is bool\[2, 2\]; it should be bool\[2, 3\]": (x, {"mask": np.ones((2, 2), bool)}),
        "begun is a whole number from 0": (x, {"begun": -1}),
        r"the initial memory `\w+` is \[3, 2\]; it should be \[2, 2\]": (x, {"initial": np.ones((3, 2))}),
        r"the static is \[3, 2\]; its first axis should be the 2 sequences": (
            x,
            {"statics": np.ones((3, 2))},
        ),
        "there are no input sequences": (None, {}),
        "mask is a Ragged; it should be an array": (x, {"mask": deep}),
        r"mask .* lengths|sequence 0 of the mask|mask has": (
            sn.Ragged.from_list([np.ones((2, 2))]),
            {"mask": sn.Ragged.from_list([[True]])},
        ),
    }
    for message, (sequences, told) in wrong.items():
        with pytest.raises(InputError, match=message):
            rnn.trace_steps(sequences, **told)


def test_inputs_other_than_those_it_was_made_for() -> None:
    rnn = sn.RNN(doubling, memory=2, inputs=2)
    with pytest.raises(InputError, match=r"input x has features \[3\]; this recurrence was made for \[2\]"):
        rnn.trace_steps(np.ones((1, 2, 3)))


def test_the_profile_of_the_thread_is_put_back() -> None:
    seen: list[str] = []

    def mine(frame: Any, event: str, _: Any) -> None:
        seen.append(event)

    def fails(x: Any, h: Any, p: Any) -> Any:
        raise ValueError("no")

    sys.setprofile(mine)
    try:
        traced(doubling)
        after = sys.getprofile()
        with pytest.raises(ValueError, match="no"):
            traced(fails)
        last = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert after is last is mine


def test_the_scopes_hold_every_leaf_once() -> None:
    """Values with several names are computed and kept once."""
    scopes = traced(doubling)
    assert scopes["x"].values is scopes["inputs"].values
    assert leaves(scopes.values)[0] is scopes.values["inputs"]
