"""Dataclasses whose methods are written once they are used often.

    @dataclass(frozen=True)          0.03 ms, where the standard library takes 0.5 ms
    class Form: ...
    Form(1)                          by the table of fields
    [Form(n) for n in range(100)]    now __init__ is written: 0.15 ms

The standard library writes and compiles six functions for each class when its module is imported. Most of
them are never called, most others a few times, and a process imports hundreds of such classes before its
first result. Everything else is the standard library's: `fields`, `replace`, defaults, and what a class may
inherit.

torch.compile cannot trace how a method is written: classes that it traces have `init=True`.
"""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

ASSIGN = "builtin_object.__setattr__"
"""The text, in written functions, of the function that sets an attribute of a frozen object. It is spelled as
in the standard library, which TorchDynamo looks for.
"""

FEW = 16
"""The uses of a method before it is written, which takes as long as some 50 of them."""


class Factory:
    """The default of an argument whose value a function makes when it is left out."""

    def __repr__(self) -> str:
        return "<factory>"


class WrittenAtUse:
    """A method of a class: `plain` serves its first uses; then it is written, and replaces this object.

    class_: the class. name: the name of the method. plain: a function of this object, the object of the class
    and the arguments. write: writes the function for a class. left: the uses before it is written.
    """

    def __init__(
        self, class_: type, name: str, plain: Callable[..., Any], write: Callable[[type], Any]
    ) -> None:
        """Prepares to write the method `name` of a class by the function `write`, after few uses."""
        self.class_, self.name, self.plain, self.write, self.left = class_, name, plain, write, FEW

    def __get__(self, instance: Any, owner: type) -> Any:
        """Returns the method, bound to `instance` if there is one."""
        if instance is None:
            return self.written()
        if self.left > 0 and "torch" not in sys.modules:  # TorchDynamo traces what is written
            self.left -= 1
            return partial(self.plain, self, instance)
        return self.written().__get__(instance, owner)

    def written(self) -> Any:
        """Writes the function into the class, and returns it."""
        function = self.write(self.class_)
        function.__name__ = self.name
        function.__qualname__ = f"{self.class_.__qualname__}.{self.name}"
        function.__module__ = self.class_.__module__
        setattr(self.class_, self.name, function)
        return function


def is_written_at_use(class_: type) -> bool:
    """Tells whether the `__init__` of a class is not written yet, and so assigns the fields alone."""
    return isinstance(vars(class_).get("__init__"), WrittenAtUse)


def written(name: str, parameters: str, lines: list[str], names: dict[str, Any]) -> Any:
    """Compiles a function of its parameters and lines, which refer to objects by `names`."""
    # In a function of this name, as those of the standard library are, it is not taken for the user's code.
    body = "\n        ".join((f"    def {name}({parameters}):", *(lines or ["pass"])))
    exec(f"def __create_fn__():\n{body}\n    return {name}", names)
    return names["__create_fn__"]()


def initialize(method: WrittenAtUse, new: Any, /, *values: Any, **named: Any) -> None:
    """Gives a new object the values of its fields, as the written `__init__` does. Arguments that do not fit
    are left to that, which refuses them.
    """
    class_: Any = method.class_
    own: list[Any] = list(dataclasses.fields(class_))
    places = [field.name for field in own if field.init and not field.kw_only]
    given, filled = {**dict(zip(places, values, strict=False)), **named}, dict[str, Any]()
    missing = False
    for field in own:
        if field.init and field.name in given:
            filled[field.name] = given.pop(field.name)
        elif field.default_factory is not MISSING:
            filled[field.name] = field.default_factory()
        elif field.init:
            filled[field.name] = field.default
            missing = missing or field.default is MISSING
    if missing or given or len(values) > len(places) or not named.keys().isdisjoint(places[: len(values)]):
        method.written()(new, *values, **named)
        return
    assign = object.__setattr__ if class_.__dataclass_params__.frozen else setattr
    for name, value in filled.items():
        assign(new, name, value)
    if hasattr(class_, "__post_init__"):
        new.__post_init__()


def write_init(class_: Any) -> Any:
    """Writes the `__init__` of a dataclass: an argument for each field, in their order, those by keyword at
    the end; then `__post_init__`, if the class has it.
    """
    own: list[Any] = list(dataclasses.fields(class_))
    names: dict[str, Any] = {"builtin_object": object, "FACTORY": Factory()}
    lines, annotations = list[str](), dict[str, Any]()
    is_frozen = class_.__dataclass_params__.frozen
    for field in own:
        value, made = field.name, f"make_{field.name}"
        if field.default_factory is not MISSING:
            names[made] = field.default_factory
            value = f"{made}() if {value} is FACTORY else {value}" if field.init else f"{made}()"
        elif not field.init:
            continue  # its default is an attribute of the class
        lines.append(
            f"{ASSIGN}(self, {field.name!r}, {value})" if is_frozen else f"self.{field.name} = {value}"
        )
    parameters = ["self"]
    for by_keyword in (False, True):
        chosen = [field for field in own if field.init and field.kw_only == by_keyword]
        parameters += ["*"] if by_keyword and chosen else []
        for field in chosen:
            annotations[field.name] = field.type
            parameters.append(field.name + default_of(field, names))
    if hasattr(class_, "__post_init__"):
        lines.append("self.__post_init__()")
    init = written("__init__", ", ".join(parameters), lines, names)
    init.__annotations__ = {**annotations, "return": None}
    return init


def default_of(field: Any, names: dict[str, Any]) -> str:
    """Returns the text of a field's default in a function's parameters, and adds it to `names`; empty if the
    field has none.
    """
    if field.default_factory is not MISSING:
        return "=FACTORY"
    if field.default is MISSING:
        return ""
    names[f"default_{field.name}"] = field.default
    return f"=default_{field.name}"


def compared(class_: Any) -> list[str]:
    """Lists the fields by which objects are compared."""
    return [field.name for field in dataclasses.fields(class_) if field.compare]


def hashed(class_: Any) -> list[str]:
    """Lists the fields that the hash of an object is made of."""
    own = dataclasses.fields(class_)
    return [field.name for field in own if (field.compare if field.hash is None else field.hash)]


def text_of(names: list[str], of: str) -> str:
    """Returns the text of a tuple of the values that an object `of` has by some names."""
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def values_of(names: list[str], of: Any) -> tuple[Any, ...]:
    """Returns the values that an object has by some names."""
    return tuple([getattr(of, name) for name in names])


def equal(method: WrittenAtUse, one: Any, other: Any) -> Any:
    """Tells whether two objects are equal, as the written `__eq__` does."""
    if other.__class__ is not one.__class__:
        return NotImplemented
    names = compared(method.class_)
    return values_of(names, one) == values_of(names, other)


def write_equal(class_: Any) -> Any:
    """Writes the `__eq__` of a dataclass: of objects of equal classes, whose values are equal."""
    mine, others = (text_of(compared(class_), of) for of in ("self", "other"))
    lines = ["if other.__class__ is self.__class__:", f"    return {mine} == {others}"]
    return written("__eq__", "self, other", [*lines, "return NotImplemented"], {})


def hash_of(method: WrittenAtUse, one: Any) -> int:
    """Computes the hash of an object, as the written `__hash__` does."""
    return hash(values_of(hashed(method.class_), one))


def write_hash(class_: Any) -> Any:
    """Writes the `__hash__` of a frozen dataclass: that of the tuple of the values that are compared."""
    return written("__hash__", "self", [f"return hash({text_of(hashed(class_), 'self')})"], {})


def representation(self: Any) -> str:
    """Returns the text of a dataclass's object: its class, and the fields with their values."""
    values = (
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def is_fixed(one: Any, name: str) -> bool:
    """Tells whether an attribute may not change: a field, or any of an object of no plain subclass."""
    class_ = cast("Any", type(one))
    return "__dataclass_fields__" in vars(class_) or name in class_.__dataclass_fields__


def assign(self: Any, name: str, value: Any) -> None:
    """Sets an attribute of a frozen object if it may change; else raises `FrozenInstanceError`."""
    if is_fixed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def delete(self: Any, name: str) -> None:
    """Deletes an attribute of a frozen object if it may change; else raises `FrozenInstanceError`."""
    if is_fixed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def freeze(class_: type[Any]) -> None:
    """Gives a class the methods by which its objects refuse that attributes are assigned or deleted. Raises
    `TypeError` if it has such methods itself.
    """
    for name, method in (("__setattr__", assign), ("__delattr__", delete)):
        if name in vars(class_):
            raise TypeError(f"{class_.__name__} is frozen, and may not have a {name} of its own")
        setattr(class_, name, method)


def made(class_: Any, frozen: bool, eq: bool, has_text: bool) -> Any:
    """Makes a class a dataclass, whose methods are written when they are used often.

    frozen, eq: as for `dataclasses.dataclass`. has_text: whether it gets a `__repr__`.
    """
    own: dict[str, Any] = {**class_.__dict__}
    inherits = any(dataclasses.is_dataclass(base) for base in class_.__mro__[1:])
    class_ = dataclasses.dataclass(class_, init=False, repr=False, eq=False, frozen=frozen and inherits)
    if frozen and not inherits:
        freeze(class_)
        class_.__dataclass_params__.frozen = True
    if has_text and "__repr__" not in own:
        class_.__repr__ = recursive_repr()(representation)
    if "__init__" not in own:
        class_.__init__ = WrittenAtUse(class_, "__init__", initialize, write_init)
    if eq and "__eq__" not in own:
        class_.__eq__ = WrittenAtUse(class_, "__eq__", equal, write_equal)
    # Python gives a class with an __eq__ of its own the hash None.
    if eq and own.get("__hash__") is None and ("__hash__" not in own or "__eq__" in own):
        class_.__hash__ = WrittenAtUse(class_, "__hash__", hash_of, write_hash) if frozen else None
    return class_


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(class_=None, /, **options):
        """Makes a class a dataclass, as `dataclasses.dataclass` does, with the options frozen, eq and repr; a
        class with other options, such as init=True, is made by that, at once.
        """
        if class_ is None:
            return lambda given: dataclass(given, **options)
        if options.keys() - {"frozen", "eq", "repr"}:
            return dataclasses.dataclass(class_, **options)
        return made(class_, options.get("frozen", False), options.get("eq", True), options.get("repr", True))
