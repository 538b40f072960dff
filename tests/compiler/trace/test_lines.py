"""Errors while a step is traced show the user's own line, and say what is wrong with it."""

import functools
import importlib.util
import inspect
import operator
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError, StepError, StepnetError

F32 = np.float32
INPUTS = {"x": sn.Spec(4), "m": sn.Spec((2, 3)), "k": sn.Spec((), np.int64)}
WEIGHTS = {"W": np.ones((4, 4), F32), "v": np.ones(4, F32)}
KEPT: list[Any] = []
sn.RNN(lambda x, h, p: (KEPT.append(x), (x, h))[1], memory=4, inputs=4)


def doubling(x: Any, h: Any, p: Any, factor: float = 2.0) -> Any:
    scaled = factor * x
    return scaled, h + scaled


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        found = function(*args)
        first = found[0]
        return first, found[1]

    return around


def helper(value: Any) -> Any:
    return value.partition(1)  # at fault


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


class Helpers:
    """Where else a line may stand."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def of_class(cls, x: Any, h: Any, p: Any) -> Any:
        return x["x"].max(axis=0), h  # at fault

    @staticmethod
    def static(x: Any, h: Any, p: Any) -> Any:
        return x["x"][:, 9], h  # at fault

    @property
    def total(self) -> Any:
        return np.sum(self.value)  # at fault


def makes() -> Any:
    def made(x: Any, h: Any, p: Any) -> Any:
        def inside(value: Any) -> Any:
            return value.item()  # at fault

        return inside(x["x"]), h

    return made


def a_lambda_inside(x: Any, h: Any, p: Any) -> Any:
    sort: Any = lambda value: np.median(value)  # noqa: E731  # at fault
    return sort(x["x"]), h


def a_property(x: Any, h: Any, p: Any) -> Any:
    return Helpers(x["x"]).total, h


def slices(value: Any) -> Any:
    for size in (4, 2):
        yield value + value[:, :size]  # at fault


def a_generator(x: Any, h: Any, p: Any) -> Any:
    return tuple(slices(x["x"])), h


A_LAMBDA: Any = lambda x, h, p: (np.median(x["x"]), h)  # noqa: E731  # at fault

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
            *(no_such_dtype, filled_with_a_list, bad_axis_of_a_split),
        ],
        StepnetError: [filled_with_halves, bad_spec, bad_ragged, no_such_parameter],
        ValueError: [product_of_arrays, raises_elsewhere],
        TypeError: [no_such_option, too_few_arguments],
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
    "in a class method": (Helpers.of_class, Helpers.of_class, StepError),
    "in a static method": (Helpers.static, Helpers.static, StepError),
    "in a function of a function": (makes(), makes, StepError),
    "in a lambda of a step": (a_lambda_inside, a_lambda_inside, StepError),
    "in a property": (a_property, Helpers.total.fget, StepError),
    "in a generator": (a_generator, slices, StepError),
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


SAID = {
    "no_such_parameter": "there is no parameter 'U' in `p`; there are W, v",
    "filled_with_a_list": "[1, 2, 3] does not broadcast to features (4,)",
    "bad_axis_of_a_split": "np.split takes a number of parts, or the places to cut at, not ['a']",
    "mixes_rows": "np.mean over all axes mixes rows: every row is a sequence of its own; give axis=-1",
    "product": "`x` f32[4] @ a value f32[3, 4] does not fit: the last size of the left must be the first of",
    "product_by_name": "`x` f32[4] @ a value f32[3, 2] does not fit: the last size of the left must be the",
    "sum_of_shapes": "feature shapes do not fit together: f32[4] and f32[3]",
    "half": "dtype float16 is none of float32, float64, int32, int64, bool",
    "branches": "np.any over all axes: a step cannot branch on a value",
    "compares": "a step cannot branch on a value: every row may differ; use np.where",
    "in_place": "a step's values never change in place: write a = a + b for a += b",
    "assigns": "a step's values never change; use np.where or np.concatenate to make a new one",
    "converts": "a step's value is not a number while it is traced",
    "in_a_comprehension": "index 4 is outside 4 features",
    "through_functools": "values with different numbers of feature axes meet (f32[4] and f32[2, 3])",
    "through_a_module_of_python": "len() of a step's value is its rows, which a step cannot know; use",
    "through_numpy": "np.cov is not an operation of a step",
    "an_array_of_values": "a step's value is not an array while it is traced; use NumPy's functions on it",
    "another_steps_value": "values of two different steps meet; hand the value in as an input, static or",
    "not_a_pair": "a step returns (output, memory), as one tuple of two",
    "none": "a step returns (output, memory), as one tuple of two",
    "another_structure": "the memory `h` enters the step as array and leaves as (array, array); return",
    "another_shape": "the memory `h` enters the step as f32[4] and leaves as f32[8]; return it with the",
    "another_shape_as_it_came": "the memory `h` enters the step as f32[4] and leaves as f32[2, 3]; return",
    "another_dtype": "the memory `h` enters the step as f32[4] and leaves as f64[4]; return it with the",
    "text_for_an_output": "the output is a str, not a value of the step",
    "output_of_another_step": "the output belongs to another step",
    "object_for_a_memory": "the memory `h` is a object, not a value of the step",
    "no_such_dtype": "dtype 'nonsense' is none of float32, float64, int32, int64, bool",
    "filled_with_halves": "dtype float16 is none of float32, float64, int32, int64, bool",
    "bad_spec": "a feature shape is made of whole numbers, not -1",
    "bad_ragged": "from_list takes a list of sequences, not a int",
    "in a helper": "array method .partition is not an operation of a step",
    "lambda": "np.median is not an operation of a step",
    "partial": "np.mean over all axes mixes rows",
    "partial that gives no pair": "a step returns (output, memory), as one tuple of two",
    "object": "x.T would move the rows; use np.swapaxes on feature axes, or transpose the parameter",
    "method": "the first index selects rows, but a step treats all rows alike: write x[:, ...]",
    "object that gives no pair": "a step returns (output, memory), as one tuple of two",
    "decorated": "np.mean over all axes mixes rows",
    "decorated that gives text": "the output is a str, not a value of the step",
    "in a class method": "np.max over axis 0 mixes rows",
    "in a static method": "index 9 is outside 4 features",
    "in a function of a function": "array method .item is not an operation of a step",
    "in a lambda of a step": "np.median is not an operation of a step",
    "in a property": "np.sum over all axes mixes rows",
    "in a generator": "feature shapes do not fit together: f32[4] and f32[2]",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_told_with_its_file_and_line(name: str) -> None:
    step_, guilty, kind = WRONG[name]
    with pytest.raises(kind) as caught:
        sn.RNN(step_, WEIGHTS, memory=4, inputs=INPUTS)
    check(caught, at_fault(guilty))
    assert (name in SAID) == issubclass(kind, StepnetError)
    assert str(caught.value).startswith(SAID.get(name, ""))
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
