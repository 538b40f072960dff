"""The containers that a pickle makes by calls: dictionaries, lists and bytes."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from stepnet.errors import FileError
from stepnet.layout.files.pickles.machine import StackMachine
from stepnet.layout.files.pickles.values import Pairs, PickledCall

CHUNK = 1 << 16  # characters that are encoded at a time

Arguments = tuple[object, ...]
Container = TypeVar("Container", bound="Pairs | PickledCall")


def add(target: Container, values: Sequence[object]) -> Container:
    """Puts keys and values, alternating in `values`, into a pickle's dictionary or object `target`, and
    returns `target`; raises `FileError` for a key without a value.
    """
    if len(values) % 2:
        raise FileError("its pickle has a key without a value")
    target.items.extend(zip(values[::2], values[1::2], strict=True))
    return target


def pairs(machine: StackMachine, arguments: Arguments) -> object:
    """Makes the dictionary that a pickle asks for by a call of a class of dictionaries; arguments: none,
    another dictionary or, from Python 2, a list of pairs.
    """
    if not arguments:
        return Pairs([])
    if isinstance(arguments[0], Pairs):
        return arguments[0]
    dictionary = Pairs([])
    for item in sequence(machine, arguments):
        add(dictionary, sequence(machine, (item,)))
    return dictionary


def sequence(machine: StackMachine, arguments: Arguments) -> list[object] | tuple[object, ...]:
    """Returns the list or tuple of which a pickle makes a list, tuple or set, from the call's `arguments`,
    and counts its values; () without arguments. Raises `FileError` for other values.
    """
    value = arguments[0] if arguments else ()
    if not isinstance(value, list | tuple):
        raise FileError(f"its pickle makes a container of type {type(value).__name__}")
    values = cast(list[object] | tuple[object, ...], value)
    machine.spend(len(values))
    return values


def encoded(machine: StackMachine, arguments: Arguments) -> object:
    """Makes the bytes that a pickle asks for by a call with the arguments (text, "latin1"), as protocols
    before 3 write bytes: as a text of characters up to 255. Empty without arguments. Raises `FileError` for
    other arguments.
    """
    if not arguments:
        return bytearray()
    if len(arguments) != 2 or not isinstance(arguments[0], str) or arguments[1] not in ("latin1", "latin-1"):
        raise FileError("its pickle encodes something other than bytes")
    machine.spend(len(arguments[0]))
    return latin(arguments[0])


def latin(text: str) -> bytearray:
    """Converts a text of characters up to 255 to bytes, piece by piece, as a whole copy takes memory."""
    data = bytearray(len(text))
    for start in range(0, len(text), CHUNK):
        data[start : start + CHUNK] = text[start : start + CHUNK].encode("latin-1")
    return data


# Calls that make containers. They are made at once, because later opcodes put values in.
MAKERS: dict[str, Callable[[StackMachine, Arguments], object]] = {
    "collections.OrderedDict": pairs,
    "collections.Counter": pairs,
    "collections.defaultdict": lambda machine, arguments: pairs(machine, arguments[1:]),
    "builtins.tuple": sequence,
    "builtins.set": sequence,
    "builtins.frozenset": sequence,
    "builtins.bytes": encoded,
    "_codecs.encode": encoded,
}
