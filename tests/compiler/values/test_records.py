"""Dataclasses whose methods are written when used often, beside those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import sys
from functools import partial
from typing import Any

import pytest

from stepnet.compiler.values import dataclass

MAKERS = (dataclass, dataclasses.dataclass)
OFTEN = 20
"""Uses of a method, after which it is written."""


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods are written at once where torch was imported, as other tests of a process may have done."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def classes(make: Any) -> dict[str, Any]:
    """Makes the same classes by the function of a library that makes dataclasses."""

    @make(frozen=True)
    class Point:
        """Frozen, with defaults and a factory, and what is no field."""

        across: int
        down: int = 2
        names: tuple[str, ...] = dataclasses.field(default_factory=tuple[str, ...], kw_only=True)
        kept: int = dataclasses.field(default=3, compare=False, repr=False)
        total: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.across + self.down)

    @make(frozen=True)
    class Place(Point):
        """A frozen class below another one, with a field of the same name."""

        down: int = 5
        more: str = "more"

    @make
    class Count:
        """Neither frozen nor hashable."""

        number: float
        rest: list[int] = dataclasses.field(default_factory=list[int])

    @make(frozen=True, eq=False)
    class Same:
        """Equal to itself alone."""

        value: int

    @make(frozen=True, repr=False)
    class Own:
        """With an equality and a representation of its own."""

        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __repr__(self) -> str:
            return "own"

    @make(frozen=True)
    class Empty:
        """Without fields."""

    class Plain(Point):
        """An ordinary class below a frozen one."""

    return {each.__name__: each for each in (Point, Place, Count, Same, Own, Empty, Plain)}


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 2), {"names": ("a",), "kept": 4}),
    ("Point", (1,), {"down": 7}),
    ("Point", (), {}),
    ("Point", (1,), {"total": 3}),
    ("Point", (1, 2, ("a",)), {"names": ()}),
    ("Place", (1,), {"more": "x"}),
    ("Place", (1, 2, 3, "x"), {}),
    ("Plain", (1, 2), {}),
    ("Count", (1.5,), {}),
    ("Count", (1.0, [1]), {}),
    ("Same", (1,), {}),
    ("Own", (1,), {}),
    ("Empty", (), {}),
    ("Empty", (1,), {}),
]


def outcome(work: Any) -> tuple[str, Any]:
    """Returns the result of a function without arguments, or the error that it raises, as text."""
    try:
        return "result", work()
    except (TypeError, AttributeError, dataclasses.FrozenInstanceError) as error:
        return type(error).__name__, str(error)


def facts(class_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """Lists all that is asked of a dataclass and its objects: text, equality, hash, assignments, copies."""

    def made() -> Any:
        return class_(*arguments, **options)

    found: list[Any] = [[field.name for field in dataclasses.fields(class_)]]
    kind, one = outcome(made)
    if kind != "result":
        return [*found, kind, one, str(inspect.signature(class_))]
    found += [repr(one).partition("(")[2], vars(one), one == made(), one == copy.copy(one), one == 1]
    found += [outcome(lambda: hash(one) == hash(made())), class_.__match_args__]
    found += [outcome(partial(setattr, one, name, 9)) for name in ("down", "value", "other", "number")]
    found += [outcome(partial(delattr, one, name)) for name in ("down", "value", "other")]
    return [*found, vars(one), dataclasses.is_dataclass(class_), str(inspect.signature(class_))]


@pytest.mark.parametrize("uses", [0, OFTEN], ids=["unwritten", "written"])
@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
def test_they_do_what_those_of_the_standard_library_do(
    name: str, arguments: Any, options: Any, uses: int
) -> None:
    found: list[list[Any]] = []
    for make in MAKERS:
        made = classes(make)[name]
        for _ in range(uses):
            facts(made, arguments, options)
        found.append(facts(made, arguments, options))
    assert repr(found[0]) == repr(found[1])


def test_methods_are_written_when_they_are_used_often() -> None:
    made = classes(dataclass)["Point"]
    one, same, other = made(1), made(1, kept=5), made(1, down=3)

    def used() -> list[Any]:
        return [one == same, one == other, hash(one) == hash(same), vars(made(1, names=("a",)))]

    def are_written() -> set[bool]:
        return {inspect.isfunction(vars(made)[name]) for name in ("__init__", "__eq__", "__hash__")}

    assert used()[:3] == [True, False, True], "kept is not compared"
    assert dataclasses.replace(one, down=3, names=("x",)).total == 4
    assert are_written() == {False}
    assert [used() for _ in range(OFTEN)] == [used()] * OFTEN
    assert are_written() == {True}
    assert vars(made)["__init__"].__qualname__.endswith("Point.__init__")


def test_an_own_assignment_of_a_frozen_class_is_refused() -> None:
    class Own:
        """With an assignment of its own."""

        value: int

        def __setattr__(self, name: str, value: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Own is frozen, and may not have a __setattr__ of its own"):
        dataclass(frozen=True)(Own)


def test_slots_are_those_of_the_standard_library() -> None:
    @dataclass(frozen=True, slots=True)
    class Slotted:
        """With slots."""

        value: int

    assert not hasattr(Slotted(1), "__dict__")


def test_they_can_be_pickled() -> None:
    one = Pickled(1)
    assert pickle.loads(pickle.dumps(one)) == one


@dataclass(frozen=True)
class Pickled:
    """At the top of a module, where pickle finds it."""

    value: int
