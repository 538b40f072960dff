"""Sources of the parts of a value that a step reads: items, attributes, closures, and names of modules."""

import dis
import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from functools import cache, partial
from threading import local
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

from stepnet.compiler.trace.lines import INSTALLED
from stepnet.compiler.values.arguments import is_jax_array
from stepnet.compiler.values.records import dataclass

PLAIN = (bool, int, float, complex, str, bytes, type(None))
BYTES = (bytearray, memoryview, array)
"""Classes of Python's library that are compared by their contents."""
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
"""Names in code that reads environment variables."""
CLOSED = sys.stdlib_module_names | {"numpy", "torch", "keras", "tensorflow", "jax", "stepnet"}
"""Packages whose functions are not inspected, and whose objects only if rules or `NAMESPACES` name their
class.
"""
NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
"""Classes of Python's library whose objects are inspected."""
GENERATED = frozenset({"__dict__", "__weakref__", "__annotations__", "__doc__", "__module__", "__slots__"})
"""Attributes of a class that Python sets, and that steps do not read."""
MISSING = object()


@dataclass(frozen=True)
class ReadSource:
    """Way to get the parts of a value again, to see whether they changed.

    names: the names of the parts; None for a part that is not inspected.
    now: returns the parts as they are now.
    of_code: whether the parts are variables of code, whose names are not preceded by that of the value.
    """

    names: tuple[str | None, ...]
    now: Callable[[], Iterable[Any]]
    of_code: bool = False


def sources_of(value: Any) -> Sequence[ReadSource] | None:
    """Lists objects that read the items or attributes of a value again, to see whether they changed: a
    `ReadSource` for each kind of them. Returns None if the value has no items or attributes to inspect.
    """
    # An array of JAX never changes, so that equal identities mean equal numbers.
    if value is os.environ or isinstance(value, BYTES) or is_jax_array(value):
        return None
    if isinstance(value, Mapping):
        return [of_mapping(cast("Mapping[Any, Any]", value), lambda key: f"[{key!r}]")]
    if isinstance(value, list | tuple | deque | Set):
        items = cast("Collection[Any]", value)
        return [ReadSource(tuple(f"[{index}]" for index in range(len(items))), items.__iter__)]
    if isinstance(value, partial):
        partial_call = cast("partial[Any]", value)
        return [
            ReadSource(
                ("func", "args", "keywords"),
                lambda: (partial_call.func, partial_call.args, partial_call.keywords),
            )
        ]
    if isinstance(value, MethodType):
        return [ReadSource(("__func__", "self"), lambda: (value.__func__, value.__self__))]
    if isinstance(value, FunctionType):
        return function_sources(value) if is_followed(value) else closure_sources(value)
    if isinstance(value, ContextVar):
        return [ReadSource(("get()",), lambda: [context_value(cast("ContextVar[Any]", value))])]
    if isinstance(value, type):
        own_class = cast("type[Any]", value)
        return [*base_sources(own_class), *of_classes(own_class)] if is_followed(own_class) else None
    if isinstance(value, local):
        return [of_mapping(vars(value), now=lambda: vars(value)), *of_classes(value)]
    kind = cast("Any", type(value))
    if package_of(kind) not in CLOSED or f"{kind.__module__}.{kind.__name__}" in NAMESPACES:
        own: Any = getattr(value, "__dict__", None)
        slots = slot_source(value)
        if own is None and not slots.names and not is_followed(kind):
            return None
        sources = [] if own is None else [of_mapping(own)]
        return [*sources, *([slots] if slots.names else []), *of_classes(value)]
    return None


def of_mapping(
    known: Mapping[Any, Any],
    name: Callable[[Any], str | None] = str,
    now: Callable[[], Mapping[Any, Any]] | None = None,
) -> ReadSource:
    """Makes a `ReadSource`, which reads the keys and values of a mapping again, to see whether they changed.

    known: the mapping.
    name: returns the name of the value under a key, for messages; None for a value that is not inspected.
    now: returns the mapping of the current thread, if each thread has another one; None if there is only
        `known`.
    """
    names = [name(key) for key in known]

    def items() -> Iterable[Any]:
        """Returns the current keys and values."""
        current = known if now is None else now()
        return (*current, *current.values())

    return ReadSource((*[None] * len(names), *names), items)


def slot_source(value: Any) -> ReadSource:
    """Makes a `ReadSource`, which reads the attributes in an object's slots (`__slots__`) again, to see
    whether they changed. Slots of classes in packages that are not inspected (`CLOSED`, as NumPy) are
    left out.
    """
    slots = {
        name: slot
        for kind in type(value).__mro__
        if package_of(kind) not in CLOSED
        for name, slot in vars(kind).items()
        if isinstance(slot, MemberDescriptorType)
    }
    return ReadSource(tuple(slots), lambda: [slot_value(slot, value) for slot in slots.values()])


def of_classes(value: Any) -> list[ReadSource]:
    """Lists objects that read the methods and attributes of an object's classes again, to see whether they
    changed: a `ReadSource` for each class that is the user's own.
    """
    return base_sources(cast("type[Any]", type(value)))


def base_sources(kind: type[Any]) -> list[ReadSource]:
    """Lists a `ReadSource` for each of a class and its bases that is the user's, to see if it changed."""
    return [class_source(base) for base in kind.__mro__ if is_followed(base)]


def class_source(kind: type[Any]) -> ReadSource:
    """Makes a `ReadSource` for the methods and attributes that a class itself defines: it reads them anew
    later, to see whether they changed. Names that Python generates are not compared.
    """
    own = vars(kind)
    names = [None if name in GENERATED else name for name in own]

    def now() -> Iterable[Any]:
        """Returns names and values of the class now, with functions in place of properties and methods."""
        # The functions in a staticmethod, a classmethod and a property.
        inner = [getattr(value, "__func__", getattr(value, "fget", value)) for value in own.values()]
        return (*own, *inner)

    return ReadSource((*[None] * len(names), *names), now)


def closure_sources(function: FunctionType) -> list[ReadSource]:
    """Returns one `ReadSource` that reads the variables of a function's closure again."""
    cells = function.__closure__ or ()
    names = function.__code__.co_freevars
    return [ReadSource(names, lambda: [cell_value(cell) for cell in cells], of_code=True)]


def function_sources(function: FunctionType) -> list[ReadSource]:
    """Lists objects that read the values a function uses again, to see whether they changed: a `ReadSource`
    each for closed-over variables, globals, defaults, the environment if the code names it, and the
    attributes of each of the user's own modules.
    """
    names, attributes = names_in(function.__code__)
    own = function.__globals__
    modules = [name for name in names if isinstance(own.get(name), ModuleType)]
    return [
        *closure_sources(function),
        ReadSource(names, lambda: [own.get(name, MISSING) for name in names], of_code=True),
        ReadSource(("defaults", "options"), lambda: (function.__defaults__, function.__kwdefaults__)),
        *(
            []
            if ENVIRONMENT.isdisjoint({*names, *attributes})
            else [ReadSource(("os.environ",), lambda: [os.environ], of_code=True)]
        ),
        *(source for name in modules for source in module_sources(name, own[name], attributes)),
    ]


def module_sources(name: str, module: ModuleType, attributes: frozenset[str]) -> Iterator[ReadSource]:
    """Yields a `ReadSource`, which reads attributes of a module again, to see whether they changed, and one
    for each module among these attributes. Yields nothing for modules of installed packages.

    name: the name of the module in the step's code.
    attributes: all names of attributes in this code; others are not read.
    """
    if is_followed(module):
        names = sorted(attributes & vars(module).keys())
        yield ReadSource(
            tuple(f"{name}.{inner}" for inner in names),
            lambda: [vars(module).get(inner, MISSING) for inner in names],
            of_code=True,
        )
        for inner in names:
            if isinstance(vars(module)[inner], ModuleType):
                yield from module_sources(f"{name}.{inner}", vars(module)[inner], attributes - {inner})


def cell_value(cell: CellType) -> Any:
    """Returns the value of a variable that a function closes over; MISSING if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def slot_value(slot: MemberDescriptorType, owner: Any) -> Any:
    """Returns the value of an object's attribute that is stored in a slot; MISSING if it has none yet."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return MISSING


def context_value(variable: ContextVar[Any]) -> Any:
    """Returns the value of a context variable in the current context; MISSING if it has none."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


@cache
def names_in(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Returns the names of the globals that a function's code reads, and all names in the code, those of
    attributes too. Functions inside it are included.
    """
    names, every = dict[str, None](), set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[str(instruction.argval)] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            further, others = names_in(inner)
            names |= dict.fromkeys(further)
            every |= others
    return tuple(names), frozenset(every)


def package_of(value: Any) -> str:
    """Returns the name of the top-level package of a class, a function or a module."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0]


def is_followed(value: Any) -> bool:
    """Tells whether a function, class or module is the user's own, so that what it reads is inspected."""
    return package_of(value) not in CLOSED and not is_installed(file_of(value))


def file_of(value: Any) -> str | None:
    """Returns the file that a function, class or module is written in; None if there is none.

    For functions and classes it is the file of the code: the module of a notebook or a doctest says which
    program runs it.
    """
    if isinstance(value, type):
        members = cast("dict[str, Any]", vars(value)).values()
        value = next((member for member in members if isinstance(member, FunctionType)), value)
    if isinstance(value, FunctionType):
        return value.__code__.co_filename
    module = value if isinstance(value, ModuleType) else sys.modules.get(str(value.__module__))
    return getattr(module, "__file__", None)


@cache
def is_installed(file: str | None) -> bool:
    """Tells whether a file is part of an installed package, and so not of the user's own code."""
    return file is not None and any(item in INSTALLED for item in file.split(os.sep))
