"""The values that a step reads besides its arguments: the variables that its functions close over, their
globals and defaults, and the attributes of the objects among these.

    def forward(self, x, h):                     self.scale      0.5
        return gain(x) * self.scale       ->     gain            its code
                                                 AMOUNT          2.0

A trace holds them as they were, so they are part of its key. Functions and classes of installed packages are
known by identity, and the variables that they close over.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.types import Literal
from stepnet.compiler.trace.read_sources import BYTES, MISSING, PLAIN, ReadSource, sources_of
from stepnet.compiler.values.arguments import imported, is_tensor
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass

Rule = Callable[[Any], Sequence[ReadSource] | None]
"""Returns the sources of the parts of a framework's own objects; None for other objects."""


class Same:
    """Wrapper that compares an object by identity, and keeps it alive so that its identity stays unique."""

    def __init__(self, value: Any) -> None:
        """Wraps an object, so that equality and hash go by its identity."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Tells whether both wrap one and the same object."""
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        """Hashes the identity of the wrapped object, as equality compares it."""
        return id(self.value)


@dataclass(frozen=True, eq=False)
class Reads:
    """The values that a step reads besides its arguments, by which a trace of the step is valid or not.

    Two are equal if their numbers, texts and arrays are equal, and their other objects identical.
    values: plain values, arrays and other objects, by the names that the step's author has for them. A value
        with several names occurs once.
    seen: pairs of a source, which returns parts of a value anew, and the parts that it returned.
    """

    values: dict[str, Any]
    seen: list[tuple[ReadSource, tuple[Any, ...]]]

    @computed_once
    def key(self) -> tuple[tuple[str, Any], ...]:
        """Names and contents, at first use, of the values that a step reads: a tuple to hash and compare."""
        return tuple((name, content_key(value)) for name, value in self.values.items())

    @computed_once
    def hash(self) -> int:
        """The hash of the names and contents of the values that a step reads, computed once."""
        return hash(self.key)

    def __hash__(self) -> int:
        """Hashes the names and contents of the values, by which equality goes."""
        return self.hash

    def __eq__(self, other: object) -> bool:
        """Tells whether both have equal values under equal names."""
        return self is other or (isinstance(other, Reads) and self.key == other.key)

    @computed_once
    def arrays(self) -> list[tuple[Any, Any]]:
        """Lists those values read by a step that may change in place, such as arrays, each with its contents
        at the time when `key` was computed, to detect changes.
        """
        return [
            (value, known)
            for value, (_, known) in zip(self.values.values(), self.key, strict=True)
            if not isinstance(known, Same) and not isinstance(value, PLAIN)
        ]

    def still_hold(self) -> bool:
        """Tells whether the values that the step reads are unchanged, so that its trace (the operations
        recorded by calling it) is still valid: each variable and attribute is still the same object, and each
        array has the contents recorded in `key`. This takes less time than collecting the values again.
        """
        for source, before in self.seen:
            now = tuple(source.now())
            if len(now) != len(before) or not all(map(is_, now, before)):
                return False
        return all(content_key(value) == known for value, known in self.arrays)

    def changes(self, after: "Reads") -> str:
        """Names up to three of the values read by a step that have changed since they were collected here,
        for messages; empty if none has. after: the values that the step reads now.
        """
        old, new = dict(self.key), dict(after.key)
        changed = (name for name in old | new if name not in old or name not in new or old[name] != new[name])
        names = list(dict.fromkeys(name.rstrip("'") for name in changed))
        return ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "")


class Latest:
    """Cache of the values that a step read when it was last inspected; copies and files have it empty."""

    def __init__(self) -> None:
        """Begins without values: the values that a step reads are found at the first call of `current`."""
        self.reads: Reads | None = None

    def current(self, find_reads: Callable[[], Reads]) -> Reads:
        """Returns the values that a step reads besides its arguments: the cached ones, or, if one has
        changed, those that `find_reads` finds, which are then cached.
        """
        reads = self.reads  # read once, as another thread may replace it meanwhile
        if reads is None or not reads.still_hold():
            reads = self.reads = find_reads()
        return reads

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes copies and pickles begin with an empty cache, as the values are of this process."""
        return Latest, ()


def no_rule(_: Any) -> None:
    """Returns None: the rule for steps that use no objects of a framework such as PyTorch."""


def reads_of(step: Any, rule: Rule = no_rule, name: str = "", everywhere: Sequence[ReadSource] = ()) -> Reads:
    """Finds all values that a step reads besides its arguments, such as globals and attributes, and the items
    and attributes of these. Each `ReadSource` that gave values is stored in the result, to see later whether
    they changed.

    step: the function or object that is the step.
    rule: returns for an object of a framework the sources of its attributes, and None for other values.
    name: the step's name, for the names of its attributes.
    everywhere: sources of values that every step reads.
    """
    values, opened, seen = dict[str, Any](), set[int](), list[tuple[ReadSource, tuple[Any, ...]]]()
    remaining = [(name, step)]

    def look(at: str, sources: Iterable[ReadSource]) -> None:
        """Reads the items or attributes of the value named `at`, such as "self.weights", from its sources,
        notes them in `seen`, and adds them to the values that are still to be inspected.
        """
        inner = list[tuple[str, Any]]()
        for source in sources:
            now = tuple(source.now())
            seen.append((source, now))
            inner += [
                (item if source.of_code else part_name(at, item), value)
                for item, value in zip(source.names, now, strict=True)
                if item is not None and value is not MISSING
            ]
        remaining.extend(reversed(inner))

    look("", everywhere)
    while remaining:
        at, value = remaining.pop()
        while at in values:  # a class and its object, or a class and its base, may have the same attribute
            at += "'"
        if isinstance(value, PLAIN):
            values[at] = value
            continue
        if id(value) in opened:
            continue
        opened.add(id(value))
        sources = rule(value)
        if sources is None:
            sources = sources_of(value)
        # An object whose parts are read themselves is represented by its class, or a function by its code.
        values[at] = value if sources is None else getattr(value, "__code__", cast("Any", type(value)))
        look(at, sources or ())
    return Reads(values, seen)


def part_name(outer: str, name: str) -> str:
    """Joins the name of a value and the name of a part of it, as in `self.scale` or `table[0]`."""
    return f"{outer}{name}" if name.startswith("[") else f"{outer}.{name}".strip(".")


def content_key(value: Any) -> Any:
    """Makes a key of a value that can be hashed: equal keys mean equal contents. Objects without plain
    contents are compared by identity.
    """
    if isinstance(value, float | complex):
        return type(value), repr(value)  # repr distinguishes 0.0 from -0.0, and makes NaNs equal
    if isinstance(value, PLAIN):
        return type(value), value
    if value is os.environ:
        return tuple(os.environ.items())
    if isinstance(value, BYTES):
        view = memoryview(cast("Any", value))
        return type(cast("Any", value)), view.format, view.shape, view.tobytes()
    if isinstance(value, np.ndarray | np.generic):
        numbers = cast("Any", np).array(value)
        return Same(cast("Any", value)) if numbers.dtype == object else Literal(numbers)
    return tensor_bits(value) if is_tensor(value) else Same(value)


def tensor_bits(tensor: Any) -> Any:
    """Returns dtype, shape and contents of a tensor as a key, by which a change of it is seen: PyTorch's own
    count of changes misses some.

    For a tensor that cannot be a constant of a step, returns its identity.
    """
    torch: Any = sys.modules["torch"]
    plain = type(tensor) is torch.Tensor and not torch._is_functional_tensor(tensor)
    if not plain or tensor.requires_grad or tensor.is_sparse or tensor.device.type != "cpu":
        return Same(tensor)
    with numbers_known():
        bits = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), bits


@contextmanager
def numbers_known() -> Generator[None]:
    """Context in which the values of PyTorch's tensors can be read, even inside PyTorch's own traces and
    transforms, where they otherwise cannot.
    """
    torch = imported("torch")
    if torch is None:
        yield
        return
    with torch._C._DisableFuncTorch(), torch.utils._python_dispatch._disable_current_modes():
        yield
