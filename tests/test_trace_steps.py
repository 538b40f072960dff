"""Looking inside: the scopes of every step against plain loops, and errors that show the user's own line."""

import functools
import importlib.util
import inspect
import operator
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError, StepError, StepnetError
from stepnet.scopes import Scopes
from stepnet.structure import leaves

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


def scopes_by_hand(a: Any, b: Any, static: Array, h: Array, count: int, until: int) -> list[dict[str, Any]]:
    """What `step` has in its variables at each step of one sequence, until it ends."""
    found: list[dict[str, Any]] = []
    for index in range(len(a)):
        one: dict[str, Any] = {"inputs.a": a[index], "inputs.b": b[index], "statics": static}
        one |= {"before.h": h, "before.count": count, "memory.h": h, "memory.count": count, "index": index}
        one |= {"x.a": a[index], "x.b": b[index], "decay": np.exp(-PARAMS["tau"])}
        one["total"] = a[index] @ PARAMS["W"] + static
        one["gates.r"] = 1 / (1 + np.exp(-one["total"]))
        one["gates.late"] = index > 1
        h = np.tanh(one["total"] + one["gates.r"] * (h @ PARAMS["R"]) * one["decay"])
        count += 1
        one |= {"h": h, "attend.scores": h, "attend.best": h.max(), "centred": h - h.max()}
        one["flag"] = bool(b[index]) and index > 1
        one |= {"outputs.0": one["centred"], "outputs.1": one["flag"], "after.h": h, "after.count": count}
        found.append(one)
        if count >= until:
            break
    return found


@settings(max_examples=30)
@given(LENGTHS, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
def test_the_scopes_are_the_variables_of_a_plain_loop(
    lengths: list[int], reverse: bool, padded: bool, ends: bool, seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    a = sn.Ragged.from_list([drawn.uniform(-1, 1, (n, 2)) for n in lengths], np.float64, 2)
    b = a.with_values(drawn.uniform(size=a.total) < 0.5)
    statics = drawn.uniform(-1, 1, (len(lengths), 3))
    initial = {"h": drawn.uniform(-1, 1, (len(lengths), 3)), "count": drawn.integers(0, 9, len(lengths))}
    most = 8 if ends else 99
    rnn = sn.RNN(
        step,
        PARAMS,
        memory={"h": 3, "count": sn.Spec((), np.int64)},
        reverse=reverse,
        until=(lambda output, memory: memory["count"] >= most) if ends else None,
    )
    if padded:
        x = {"a": a.to_padded(fill=7)[0], "b": b.to_padded(fill=True)[0]}
        scopes = rnn.trace_steps(x, initial, statics, lengths=np.array(lengths, int))
    else:
        scopes = rnn.trace_steps({"a": a, "b": b}, initial, statics)
    back = -1 if reverse else 1
    for row in range(len(lengths)):
        h, count = initial["h"][row], int(initial["count"][row])
        wanted = scopes_by_hand(a[row][::back], b[row][::back], statics[row], h, count, most)[::back]
        assert {value.lengths[row] for value in scopes.values.values()} == {len(wanted)}
        for number, values in enumerate(wanted):
            found = scopes.step(row, number)
            assert set(found) == set(values)
            for name, right in values.items():
                assert_close(found[name], right, 5, 4, F64)


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


def traced(step: Any, memory: Any = 2, params: Any = None, x: Any = None) -> Scopes:
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


def doubling(x: Any, h: Any, p: Any, factor: float = 2.0) -> Any:
    scaled = factor * x
    return scaled, h + scaled


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


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        found = function(*args)
        first = found[0]
        return first, found[1]

    return around


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


def test_inputs_other_than_those_it_was_made_for() -> None:
    rnn = sn.RNN(doubling, memory=2, inputs=2)
    with pytest.raises(InputError, match=r"input has features \[3\]; this recurrence was made for \[2\]"):
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


# ---- errors show the user's own line -----------------------------------------------------------------------

INPUTS = {"x": sn.Spec(4), "m": sn.Spec((2, 3)), "k": sn.Spec((), np.int64)}
WEIGHTS = {"W": np.ones((4, 4), F32), "v": np.ones(4, F32)}
KEPT: list[Any] = []
sn.RNN(lambda x, h, p: (KEPT.append(x), (x, h))[1], memory=4, inputs=4)


def helper(value: Any) -> Any:
    return value.cumsum(axis=1)  # at fault


def mixes_rows(x: Any, h: Any, p: Any) -> Any:
    mean = x["x"].mean()  # at fault
    return mean, h


def product(x: Any, h: Any, p: Any) -> Any:
    h = x["x"] @ p["W"][:3]  # at fault
    return h, h


def product_by_name(x: Any, h: Any, p: Any) -> Any:
    y = np.matmul(x["x"], np.ones((3, 2), F32))  # at fault
    return y, h


def sum_of_shapes(x: Any, h: Any, p: Any) -> Any:
    return (
        (
            x["x"]  # at fault
            + x["x"][:, :3]
        ),
        h,
    )


def product_of_arrays(x: Any, h: Any, p: Any) -> Any:
    weights = np.ones((2, 3)) @ np.ones((2, 3))  # at fault
    return x["x"] @ weights, h


def no_such_parameter(x: Any, h: Any, p: Any) -> Any:
    return x["x"] @ p["U"], h  # at fault


def no_such_name(x: Any, h: Any, p: Any) -> Any:
    return x["x"] @ weights, h  # type: ignore[name-defined]  # noqa: F821  # at fault


def no_such_option(x: Any, h: Any, p: Any) -> Any:
    y = sn.softmax(x["x"], axes=1)  # pyright: ignore[reportCallIssue]  # at fault
    return y, h


def too_few_arguments(x: Any, h: Any, p: Any) -> Any:
    return sn.one_hot(x["k"]), h  # pyright: ignore[reportCallIssue]  # at fault


def no_such_dtype(x: Any, h: Any, p: Any) -> Any:
    return x["x"].astype("nonsense"), h  # at fault


def half(x: Any, h: Any, p: Any) -> Any:
    return x["x"].astype(np.float16), h  # at fault


def filled_with_a_list(x: Any, h: Any, p: Any) -> Any:
    return np.full_like(x["x"], [1, 2, 3]), h  # at fault


def filled_with_halves(x: Any, h: Any, p: Any) -> Any:
    return np.zeros_like(x["x"], dtype=np.float16), h  # at fault


def bad_axis_of_a_split(x: Any, h: Any, p: Any) -> Any:
    places: Any = ["a"]
    return np.split(x["x"], places, axis=1), h  # at fault


def bad_spec(x: Any, h: Any, p: Any) -> Any:
    spec = sn.Spec(-1)  # at fault
    return spec, h


def bad_ragged(x: Any, h: Any, p: Any) -> Any:
    table = sn.Ragged.from_list(3)  # at fault
    return table, h


def branches(x: Any, h: Any, p: Any) -> Any:
    if (x["x"] > 0).any():  # at fault
        return h, h
    return x["x"], h


def compares(x: Any, h: Any, p: Any) -> Any:
    return (h if x["x"][:, 0] > 0 else x["x"]), h  # at fault


def in_place(x: Any, h: Any, p: Any) -> Any:
    h += x["x"]  # at fault
    return h, h


def assigns(x: Any, h: Any, p: Any) -> Any:
    h[:, 0] = 1  # at fault
    return h, h


def converts(x: Any, h: Any, p: Any) -> Any:
    return [1, 2][x["k"]], h  # at fault


def in_a_helper(x: Any, h: Any, p: Any) -> Any:
    return helper(x["x"]), h


def in_a_comprehension(x: Any, h: Any, p: Any) -> Any:
    parts = [
        np.tanh(x["x"])[:, place]  # at fault
        for place in range(5)
    ]
    return parts, h


def through_functools(x: Any, h: Any, p: Any) -> Any:
    return functools.reduce(operator.add, [x["x"], x["m"]]), h  # at fault


def through_a_module_of_python(x: Any, h: Any, p: Any) -> Any:
    return random.choice(x["x"]), h  # at fault


def through_numpy(x: Any, h: Any, p: Any) -> Any:
    return np.cov(x["x"]), np.atleast_2d(h)  # at fault


def an_array_of_values(x: Any, h: Any, p: Any) -> Any:
    return np.array([x["x"], h]), h  # at fault


def another_steps_value(x: Any, h: Any, p: Any) -> Any:
    return x["x"] + KEPT[0], h  # at fault


def raises(x: Any, h: Any, p: Any) -> Any:
    raise RuntimeError("of my own")  # at fault


def raises_elsewhere(x: Any, h: Any, p: Any) -> Any:
    return int("four"), h  # at fault


def not_a_pair(x: Any, h: Any, p: Any) -> Any:  # at fault
    return h


def none(x: Any, h: Any, p: Any) -> Any:  # at fault
    pass


def another_structure(x: Any, h: Any, p: Any) -> Any:  # at fault
    return h, (h, h)


def another_shape(x: Any, h: Any, p: Any) -> Any:
    wide = np.concatenate([h, h], axis=1)  # at fault
    return h, wide


def another_shape_as_it_came(x: Any, h: Any, p: Any) -> Any:  # at fault
    return h, x["m"]


def another_dtype(x: Any, h: Any, p: Any) -> Any:
    return (
        h,
        h.astype(np.float64),  # at fault
    )


def text_for_an_output(x: Any, h: Any, p: Any) -> Any:  # at fault
    return "text", h


def output_of_another_step(x: Any, h: Any, p: Any) -> Any:  # at fault
    return KEPT[0], h


def object_for_a_memory(x: Any, h: Any, p: Any) -> Any:  # at fault
    return h, object()


class Wrong:
    """Steps that are objects, and methods."""

    def __call__(self, x: Any, h: Any, p: Any) -> Any:
        return self.mixed(x["x"]), h

    def mixed(self, value: Any) -> Any:
        return value.T  # at fault

    def method(self, x: Any, h: Any, p: Any) -> Any:
        return x["x"][0], h  # at fault


class NoPair:
    """A step that is an object and gives no pair."""

    def __call__(self, x: Any, h: Any, p: Any) -> Any:  # at fault
        return h


A_LAMBDA: Any = lambda x, h, p: (np.sort(x["x"]), h)  # noqa: E731  # at fault

WRONG: dict[str, tuple[Any, Any, type[Exception]]] = {
    function.__name__: (function, function, kind)
    for kind, functions in {
        StepError: [
            *(mixes_rows, product, product_by_name, sum_of_shapes, half, branches, compares, in_place),
            *(assigns, converts, in_a_comprehension, through_functools, through_a_module_of_python),
            *(
                through_numpy,
                an_array_of_values,
                another_steps_value,
                not_a_pair,
                none,
                another_structure,
                another_shape,
            ),
            *(another_shape_as_it_came, another_dtype, text_for_an_output, output_of_another_step),
            object_for_a_memory,
        ],
        StepnetError: [filled_with_halves, bad_spec, bad_ragged],
        ValueError: [product_of_arrays, filled_with_a_list, bad_axis_of_a_split, raises_elsewhere],
        TypeError: [no_such_option, too_few_arguments, no_such_dtype],
        KeyError: [no_such_parameter],
        NameError: [no_such_name],
        RuntimeError: [raises],
    }.items()
    for function in functions
} | {
    "in a helper": (in_a_helper, helper, StepError),
    "lambda": (A_LAMBDA, A_LAMBDA, StepError),
    "partial": (functools.partial(mixes_rows), mixes_rows, StepError),
    "partial that gives no pair": (functools.partial(functools.partial(not_a_pair)), not_a_pair, StepError),
    "object": (Wrong(), Wrong.mixed, StepError),
    "method": (Wrong().method, Wrong.method, StepError),
    "object that gives no pair": (NoPair(), NoPair.__call__, StepError),
    "decorated": (decorated(mixes_rows), mixes_rows, StepError),
    "decorated that gives text": (decorated(text_for_an_output), text_for_an_output, StepError),
}


def at_fault(function: Callable[..., Any]) -> str:
    """The line of a function that is marked, as errors name it."""
    lines, first = inspect.getsourcelines(function)
    place, text = next(pair for pair in enumerate(lines, first) if "# at fault" in pair[1])
    return f"  at {inspect.getsourcefile(function)}:{place}: {text.strip()}"


def told(error: BaseException) -> list[str]:
    """The lines that a person sees of an error, without those of its traceback."""
    return "".join(traceback.format_exception_only(error)).rstrip().split("\n")


def check(caught: pytest.ExceptionInfo[Exception], line: str) -> None:
    """Asserts that the error ends with the line, and says it once."""
    assert told(caught.value)[-1] == line
    assert sum(one.startswith("  at ") for one in told(caught.value)) == 1
    if isinstance(caught.value, StepnetError):
        assert str(caught.value).endswith(f"\n{line}")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_told_with_its_file_and_line(name: str) -> None:
    step_, guilty, kind = WRONG[name]
    with pytest.raises(kind) as caught:
        sn.RNN(step_, WEIGHTS, memory=4, inputs=INPUTS)
    check(caught, at_fault(guilty))
    if not issubclass(kind, StepnetError):
        assert type(caught.value) is kind, "an error of Python's stays what it is"


def test_wrong_steps_are_many() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("name", ["mixes_rows", "no_such_parameter", "not_a_pair"])
def test_watched_or_called_a_wrong_step_is_told_alike(name: str) -> None:
    step_, guilty, kind = WRONG[name]
    x = {"x": np.ones((1, 2, 4), F32), "m": np.ones((1, 2, 2, 3), F32), "k": np.ones((1, 2), int)}
    for run in (sn.RNN.trace_steps, sn.RNN.__call__):
        with pytest.raises(kind) as caught:
            run(sn.RNN(step_, WEIGHTS, memory=4), x)
        check(caught, at_fault(guilty))


MODULE = """import numpy as np

def step(x, h, p):
    y = x @ p["W"]
    return y.mean(axis=0), h  # at fault

def shapes(x, h, p):  # at fault
    return x, x[:, :2], h

bad = lambda x, h, p: (x.item(), h)  # at fault
"""


@pytest.mark.parametrize("name", ["step", "shapes", "bad"])
def test_a_wrong_step_of_another_module(name: str, tmp_path: Path) -> None:
    file = tmp_path / "steps_of_mine.py"
    file.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("steps_of_mine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(StepError) as caught:
        sn.RNN(getattr(module, name), WEIGHTS, memory=4, inputs=4)
    check(caught, at_fault(getattr(module, name)))
    assert told(caught.value)[-1].startswith(f"  at {file}:")


def test_a_step_without_lines_is_told_where_the_recurrence_is_made() -> None:
    def makes() -> Any:
        return sn.RNN(np.add, memory=4, inputs=4)  # at fault

    with pytest.raises(StepError) as caught:
        makes()
    check(caught, at_fault(makes))


def test_an_unwanted_static_is_told_where_the_step_is_defined() -> None:
    with pytest.raises(InputError, match="the step has no parameter named `statics`") as caught:
        sn.RNN(mixes_rows, WEIGHTS, memory=4, inputs=INPUTS, statics=2)
    first = mixes_rows.__code__.co_firstlineno
    check(caught, f"  at {__file__}:{first}: def mixes_rows(x: Any, h: Any, p: Any) -> Any:")


def number_for_an_end(output: Any, memory: Any) -> Any:  # at fault
    return output


def branching_end(output: Any, memory: Any) -> Any:
    return bool(output > 0)  # at fault


@pytest.mark.parametrize("until", [number_for_an_end, branching_end])
def test_a_wrong_end(until: Any) -> None:
    rnn = sn.RNN(lambda x, h, p: (x[:, 0], h), memory=1, until=until)
    for run in (rnn, rnn.trace_steps):
        with pytest.raises(StepError) as caught:
            run(np.ones((1, 2, 2)))
        check(caught, at_fault(until))


def test_a_wrong_step_inside_a_step() -> None:
    def inner(x: Any, h: Any, p: Any) -> Any:
        return x.sum(), h  # at fault

    def outer(x: Any, h: Any, p: Any) -> Any:
        return sn.RNN(inner, memory=2)(x, initial="zeros")[0], h

    def unsaid(x: Any, h: Any, p: Any) -> Any:
        return sn.RNN(doubling, memory=2)(x)[0], h  # at fault

    deep = sn.Ragged.from_list([[np.ones((2, 2))]])
    for step_, guilty in ((outer, inner), (unsaid, unsaid)):
        with pytest.raises(StepError) as caught:
            sn.RNN(step_, memory=2)(deep)
        check(caught, at_fault(guilty))


def test_the_scopes_hold_every_leaf_once() -> None:
    """Values with several names are computed and kept once."""
    scopes = traced(doubling)
    assert scopes["x"].values is scopes["inputs"].values
    assert leaves(scopes.values)[0] is scopes.values["inputs"]
