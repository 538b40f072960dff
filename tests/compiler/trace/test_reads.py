"""Values that a step reads besides its arguments are found, by name, and their changes are noticed."""

import argparse
import copy
import dataclasses
import os
import pickle
import threading
import types
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.trace.reads import Latest, reads_of
from stepnet.errors import StepError

GAIN = 2.0
OTHER = {"deep": [np.ones(3)]}


class Settings:
    """A class as a namespace, and the class of an object that a step reads."""

    scale = 1.5

    def __init__(self) -> None:
        self.values = {"a": [1, 2]}

    def total(self, x: Any) -> Any:
        """A method that reads a global."""
        return x * self.values["a"][0] * OTHER["deep"][0]

    @property
    def doubled(self) -> float:
        """A property that reads a global."""
        return 2 * GAIN


class Derived(Settings):
    """A class whose method calls that of its base."""

    def total(self, x: Any) -> Any:
        """The same."""
        return super().total(x)


SETTINGS = Settings()


def helper(x: Any, power: float = 2.0) -> Any:
    """A function that a step calls."""
    return x**power * GAIN


def step(x: Any, memory: Any, params: Any) -> Any:
    """A step that reads much."""
    return helper(x) + SETTINGS.total(x) * Settings.scale, memory


def changed(change: Callable[[], Callable[[], None]], step: Any = step) -> str:
    """The names of what a change to what a step reads changes; it is undone."""
    before = reads_of(step)
    assert before.still_hold()
    undo = change()
    try:
        assert not before.still_hold()
        after = reads_of(step)
        assert before != after
    finally:
        undo()
    assert before == reads_of(step)
    assert hash(before) == hash(reads_of(step))
    return before.changes(after)


def setting(owner: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """A change of an attribute."""

    def change() -> Callable[[], None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        return partial(setattr, owner, name, before)

    return change


def item(owner: Any, key: Any, value: Any) -> Callable[[], Callable[[], None]]:
    """A change of an item."""

    def change() -> Callable[[], None]:
        before = owner[key].copy() if isinstance(owner[key], np.ndarray) else owner[key]
        owner[key] = value
        return partial(owner.__setitem__, key, before)

    return change


def global_value(name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """A change of a global of this file."""
    return item(globals(), name, value)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (global_value("GAIN", 3.0), "`GAIN`"),
        (global_value("GAIN", 2), "`GAIN`"),
        (setting(SETTINGS, "values", {"a": [5, 2]}), "`SETTINGS.values['a'][0]`"),
        (item(SETTINGS.values["a"], 0, 7), "`SETTINGS.values['a'][0]`"),
        (setting(Settings, "scale", 0.5), "scale`"),
        (setting(helper, "__defaults__", (3.0,)), "`helper.defaults[0]`"),
        (item(OTHER["deep"][0], 1, 4.0), "deep'][0]`"),
        (global_value("helper", lambda x: x), "`helper`"),
    ],
)
def test_what_a_step_reads_is_seen_to_change(change: Any, name: str):
    assert name in changed(change)


@dataclasses.dataclass(slots=True)
class Slots:
    """An object without a dict."""

    k: float = 1.0
    other: float = dataclasses.field(init=False)


class Meta(type):
    """A metaclass that reads a global."""

    @property
    def gain(cls) -> float:
        """A property of the class."""
        return GAIN


class OfMeta(metaclass=Meta):
    """A class with a metaclass."""


SLOTS, VARIABLE, UNSET = Slots(), ContextVar[float]("variable", default=1.0), ContextVar[float]("unset")
LOCAL, BYTES, WHOLE = threading.local(), bytearray(b"a"), np.ones(2)
VIEW, NUMBERS = WHOLE.data, array("d", [1.0])
LOCAL.k = 1.0


@pytest.mark.parametrize(
    ("read", "change", "name"),
    [
        (lambda: SLOTS.k, setting(SLOTS, "k", 0.5), "SLOTS.k`"),
        (
            lambda: VARIABLE.get(),
            lambda: (lambda token: lambda: VARIABLE.reset(token))(VARIABLE.set(0.5)),
            "VARIABLE.get()`",
        ),
        (
            lambda: UNSET.get(),
            lambda: (lambda token: lambda: UNSET.reset(token))(UNSET.set(0.5)),
            "UNSET.get()`",
        ),
        (lambda: LOCAL.k, setting(LOCAL, "k", 0.5), "LOCAL.k`"),
        (lambda: float(BYTES[0]), item(BYTES, 0, 3), "BYTES`"),
        (lambda: float(VIEW[0]), item(WHOLE, 0, 0.5), "VIEW`"),
        (lambda: NUMBERS[0], item(NUMBERS, 0, 0.5), "NUMBERS`"),
        (lambda: os.environ["HOME"], item(os.environ, "HOME", "/other"), "os.environ`"),
        (lambda: os.getenv("HOME"), item(os.environ, "HOME", "/other"), "os.environ`"),
        (lambda: OfMeta.gain, global_value("GAIN", 3.0), "GAIN`"),
        (lambda: Derived.scale, setting(Settings, "scale", 0.5), "scale`"),
    ],
    ids=lambda value: value.strip("`") if isinstance(value, str) else "",
)
def test_what_is_held_in_another_way_is_seen_to_change(read: Any, change: Any, name: str):
    def one(x: Any, memory: Any, params: Any) -> Any:
        return x * read(), memory

    assert name in changed(change, one)


def test_an_attribute_that_is_added_to_a_class_is_seen():
    class Late(Settings):
        """A class that hides nothing of its base yet."""

    late = Late()
    before = reads_of(late.total)
    Late.scale = 9.0
    assert not before.still_hold()
    assert before != reads_of(late.total)


def test_each_thread_has_its_own_values():
    latest, found = Latest(), list[Any]()

    def one(x: Any) -> Any:
        return x * LOCAL.k * VARIABLE.get()

    def look() -> None:
        LOCAL.k = 4.0
        found.append(latest.current(lambda: reads_of(one)))

    mine = latest.current(lambda: reads_of(one))
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found[0].values["LOCAL.k"] == 4.0
    assert latest.current(lambda: reads_of(one)) == mine != found[0]


def test_a_global_with_the_name_of_an_attribute_is_not_read():
    def one(x: Any, memory: Any, params: Any) -> Any:
        return x.GAIN, memory

    assert not any("GAIN" in name for name in reads_of(one).values)


def test_closures_partials_methods_namespaces_and_modules_are_opened():
    scale, known = 0.5, argparse.Namespace(rate=3)
    own = types.ModuleType("own_settings")
    own.rate, own.unread = 4, 5  # type: ignore[attr-defined]

    def one(x: Any, memory: Any, params: Any) -> Any:
        return [x * scale * known.rate * own.rate for _ in range(2)], memory

    space = {"own": own}
    exec("def two(x): return x * own.rate", space)  # a global, as modules are
    values = reads_of(one).values
    assert values["scale"] == 0.5
    assert values["known.rate"] == 3
    found = reads_of(space["two"]).values
    assert found["own.rate"] == 4
    assert "own.unread" not in found
    assert reads_of(partial(helper, power=4.0)).values["keywords['power']"] == 4.0
    assert reads_of(SETTINGS.total).values["self.values['a'][1]"] == 2
    base = reads_of(Derived().total)
    assert any(name.endswith("OTHER['deep'][0]") for name in base.values)


def test_an_attribute_of_an_object_hides_none_of_its_class():
    one = Settings()
    before = reads_of(one.total)
    one.scale = 9.0
    assert before != reads_of(one.total)


def test_zeros_with_other_signs_and_arrays_with_other_bits_are_others():
    def at(value: Any) -> Any:
        return dict(reads_of(lambda x: x * value).key)["value"]

    assert at(0.0) != at(-0.0)
    assert at(float("nan")) == at(float("nan"))
    assert at(np.zeros(2)) != at(-np.zeros(2))
    assert at(np.zeros(2)) == at(np.zeros(2))


def test_objects_that_hold_themselves_end():
    one = Settings()
    one.values["self"] = one  # type: ignore[assignment]
    assert reads_of(one.total).still_hold()


def test_copies_and_files_do_not_hold_what_was_read():
    latest = Latest()
    first = latest.current(lambda: reads_of(step))
    assert latest.current(lambda: reads_of(step)) is first
    assert copy.deepcopy(latest).reads is None
    assert pickle.loads(pickle.dumps(latest)).reads is None


ROWS: dict[str, Callable[[Any], Any]] = {
    "0.5 * rows": lambda rows: 0.5 * rows,
    "rows / 2": lambda rows: rows / 2,
    "1 - rows": lambda rows: 1 - rows,
    "rows // 2": lambda rows: rows // 2,
    "2 % rows": lambda rows: 2 % rows,
    "rows ** 2": lambda rows: rows**2,
    "-rows": lambda rows: -rows,
    "rows @ 2": lambda rows: rows @ 2,
    "NumPy's number": lambda rows: np.float32(0.5) * rows,
    "array": lambda rows: np.ones(3) * rows,
    "np.sqrt": lambda rows: np.sqrt(rows),
    "rows == 1": lambda rows: rows == 1,
    "rows != 1": lambda rows: rows != 1,
    "rows > 1": lambda rows: rows > 1,
    "1 in shape": lambda rows: 1 in (rows, 3),
    "bool": bool,
    "int": int,
    "float": float,
    "round": round,
    "range": range,
    "index": lambda rows: [1.0, 2.0][rows],
    "divmod": lambda rows: divmod(rows, 2),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_number_of_rows_is_no_number(name: str):
    def one(x: Any, memory: Any, params: Any) -> Any:
        ROWS[name](x.shape[0])
        return x, memory

    with pytest.raises(StepError, match="the number of rows is not known in a step; use") as error:
        sn.RNN(one, memory=2, inputs=2)
    assert f"\n  at {__file__}:" in str(error.value)


def test_the_number_of_rows_times_a_value_is_refused():
    for multiplied in (lambda x: x * x.shape[0], lambda x: x.shape[0] * x):
        with pytest.raises(StepError, match="the number of rows is not known in a step; use"):
            sn.RNN(lambda x, memory, params, by=multiplied: (by(x), memory), memory=2, inputs=2)


def test_numbers_of_rows_are_equal():
    def one(x: Any, memory: Any, params: Any) -> Any:
        assert x.shape == memory.shape
        assert x.shape[0] == memory.shape[0]
        return x.reshape(x.shape[0], -1), memory

    sn.RNN(one, memory=2, inputs=2)
