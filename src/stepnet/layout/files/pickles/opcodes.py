"""Reads pickles without running them: PyTorch's and Paddle's files are pickles of arrays.

1  A pickle is a program for a stack machine. Python's own reader imports and calls whatever it names. This
   one imports and calls nothing: a name is a text, and a call becomes a `PickledCall`, a record for the
   reader of the file to interpret. A kind of file that needs only few names refuses all others.
2  Dictionaries become `Pairs`: keys are never hashed, so a hostile file cannot make them collide.
3  Every count is compared with the bytes that are left before memory is allocated. The numbers of opcodes and
   of open marks have limits, and every value is counted (store.py).
4  Opcodes that pickles of arrays do not need are refused by name.

Source: CPython's Lib/pickletools.py, which documents every opcode of protocols 0 to 5.
"""

import pickletools
import struct
from collections.abc import Callable
from typing import cast

from stepnet.errors import FileError, StepnetError
from stepnet.layout.files.pickles.containers import MAKERS, Arguments, add
from stepnet.layout.files.pickles.machine import FileRange, StackMachine
from stepnet.layout.files.pickles.values import Name, Pairs, PickledCall
from stepnet.layout.files.store import OBJECT, Store

OPCODES = 1 << 21  # the most in a pickle; a tensor takes about 35
MARKS = 1000  # the most marks that are open at a time

# Names that are allowed and ignored: objects that often lie beside the arrays of a checkpoint.
INERT = frozenset(
    f"{module}.{name}"
    for module, names in {
        "argparse": ["Namespace"],
        "builtins": ["bool", "bytearray", "bytes", "complex", "dict", "float", "int", "list", "slice", "str"],
        "numpy": ["dtype", "ndarray"],
        "numpy.core.multiarray": ["scalar"],
        "numpy._core.multiarray": ["scalar"],
        "pathlib": ["PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"],
        "types": ["SimpleNamespace"],
    }.items()
    for name in names
)
OPCODE_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}

Action = Callable[[StackMachine], None]


def refuse(identity: object) -> object:
    """Raises `FileError` for any persistent id, a reference to a value outside the pickle."""
    raise FileError("its pickle asks for values outside it, which this kind of file does not have")


def load(
    source: FileRange,
    names: frozenset[str] | None = None,
    advice: str = "",
    persistent: Callable[[object], object] = refuse,
    encoding: str = "utf-8",
    store: Store | None = None,
) -> object:
    r"""Reads a pickle without running it. Returns None, bool, int, float, str, bytearray, tuple, list (for
    sets too), `Pairs`, `Name` or `PickledCall`; `source` is left behind the pickle.

    names: the names that the pickle may use, beside containers and `INERT`; any other name is refused, with
        `advice` on what to do about it. None allows all names.
    persistent: gives the value of a persistent id; by default these are refused.
    encoding: of the strings of Python 2.
    store: the limit on memory; by default that of the source's size.

    Raises `FileError`, a short sentence without the path, for any bytes that are no valid pickle.

    >>> import io
    >>> load(FileRange(io.BytesIO(b"(K\x01X\x01\x00\x00\x00at."), 0, 11))
    (1, 'a')
    >>> load(FileRange(io.BytesIO(b"cos\nsystem\n."), 0, 12))
    Name(text='os.system')
    >>> load(FileRange(io.BytesIO(b"cos\nsystem\n."), 0, 12), frozenset(), "save the arrays alone")
    Traceback (most recent call last):
    stepnet.errors.FileError: the file asks to run os.system, which stepnet never does; save the arrays alone
    """
    store = store or Store(None, source.end)
    machine = StackMachine(source, names, advice, encoding, persistent, store)
    for _ in range(OPCODES):
        store.take(OBJECT, "the values of its pickle")
        start = source.position
        code = source.take(1)
        if code == b".":
            return machine.pop()
        name = OPCODE_NAMES.get(code, f"{code[0]}, which is none,")
        if code not in ACTIONS:
            raise FileError(f"its pickle has opcode {name} at byte {start}, which arrays do without")
        try:
            ACTIONS[code](machine)
        except StepnetError:
            raise
        except ValueError as error:  # a broken number, or a text that its encoding does not allow
            raise FileError(f"its pickle has a broken {name} at byte {start}") from error
    raise FileError(f"its pickle has more than {OPCODES} opcodes, which no state dict needs")


def push(value: Callable[[StackMachine], object]) -> Action:
    """Returns the action of a pickle's opcode that calls `value` and pushes its result on the stack."""
    return lambda machine: machine.stack.append(value(machine))


def number(struct_format: str) -> Callable[[StackMachine], int]:
    """Returns a function that reads a number in `struct_format`, as for `struct`, from the pickle."""
    size = struct.calcsize(struct_format)
    return lambda machine: struct.unpack(struct_format, machine.source.take(size))[0]


def counted(struct_format: str, value: Callable[[bytes], object]) -> Action:
    """Returns the action that reads a count, of type `struct_format`, and pushes `value` of the bytes."""
    count = number(struct_format)
    return push(lambda machine: value(machine.source.take(count(machine))))


def block(struct_format: str) -> Action:
    """Returns the action of an opcode that pushes bytes; struct_format: their count's `struct` type."""
    count = number(struct_format)
    return push(lambda machine: machine.source.take_block(count(machine)))


def string(struct_format: str) -> Action:
    """Returns the action of an opcode that pushes a Python 2 string; struct_format: its length's type."""
    count = number(struct_format)
    return push(lambda machine: machine.source.take(count(machine)).decode(machine.encoding))


def line(value: Callable[[bytes], object]) -> Action:
    """Returns the action of a pickle's opcode that reads a line, and pushes `value` of it on the stack."""
    return push(lambda machine: value(machine.source.take_line()))


def text(data: bytes) -> str:
    """Decodes a text in UTF-8, where lone surrogates are allowed, as Python's picklers write them."""
    return data.decode("utf-8", "surrogatepass")


def integer(digits: bytes) -> int:
    """Converts the digits of a number of protocol 0, which writes True as 01 and False as 00."""
    return digits == b"01" if digits in (b"00", b"01") else int(digits.removesuffix(b"L"))


def long(data: bytes) -> int:
    """Converts up to 255 bytes, the lowest first and in two's complement, to a whole number in a pickle."""
    return int.from_bytes(data, "little", signed=True)


def tuple_of(count: int) -> Action:
    """Returns the action of a pickle's opcode that replaces the `count` topmost values by a tuple."""
    return push(lambda machine: tuple([machine.pop() for _ in range(count)][::-1]))


def drop(value: object) -> None:
    """Does nothing: discards a value that an opcode popped from the stack."""


def mark(machine: StackMachine) -> None:
    """Opcode action: records the current height of the stack (a mark in pickle's terms), so that later
    opcodes can take all values above it. Raises `FileError` for too many marks.
    """
    if len(machine.marks) == MARKS:
        raise FileError(f"its pickle nests deeper than {MARKS}")
    machine.marks.append(len(machine.stack))


def put(index: Callable[[StackMachine], int]) -> Action:
    """Returns the action of a pickle's opcode that stores the top value in the memo, the table of values to
    use again.

    index: a function that reads from the pickle the number under which the value is stored. Picklers number
    the memo in order, Python 2's from 1.
    """

    def action(machine: StackMachine) -> None:
        """Opcode action: stores the value at the top of the stack in the memo, the table of values to use
        again, under the number that the opcode has; raises `FileError` for a number that leaves a gap of more
        than one.
        """
        memo_index, notes = index(machine), len(machine.memo)
        if not 0 <= memo_index <= notes + 1:
            raise FileError(f"its pickle notes a value as number {memo_index} after {notes} others")
        value = machine.pop()
        machine.stack.append(value)
        machine.memo += [None] * (memo_index + 1 - notes)
        machine.memo[memo_index] = value

    return action


def get(index: Callable[[StackMachine], int]) -> Action:
    """Returns the action of an opcode that pushes a value of the memo, the table of values to use again.
    index: a function that reads from the pickle the number of the value.
    """

    def noted(machine: StackMachine) -> object:
        """Returns the value in the memo at the opcode's number; raises `FileError` if there is none."""
        memo_index = index(machine)
        if not 0 <= memo_index < len(machine.memo):
            raise FileError(f"its pickle wants value {memo_index} of the {len(machine.memo)} it has noted")
        return machine.memo[memo_index]

    return push(noted)


def line_number(machine: StackMachine) -> int:
    """Reads a line of digits, the number of a value in the memo (values to use again), in protocol 0."""
    return int(machine.source.take_line())


def extend(machine: StackMachine, values: list[object]) -> None:
    """Appends values to the list or set at the top of the pickle's stack, or to the record of an object whose
    class is made of lists; raises `FileError` for others.
    """
    target = machine.top()
    if isinstance(target, PickledCall):  # of a class made of lists
        target.items.extend(enumerate(values, len(target.items)))
    elif isinstance(target, list):
        cast(list[object], target).extend(values)
    else:
        raise FileError(f"its pickle has type {type(target).__name__} where list must be")


def update(machine: StackMachine, values: list[object]) -> None:
    """Puts keys and values, which alternate in `values`, into the dictionary at the top of the pickle's
    stack, or into the record of an object there whose class is made of dictionaries; raises `FileError` if
    there is none.
    """
    target = machine.pop()
    if not isinstance(target, Pairs | PickledCall):  # a call of a class made of dictionaries
        raise FileError(f"its pickle has type {type(target).__name__} where Pairs must be")
    machine.stack.append(add(target, values))


def name(machine: StackMachine, module: str, text: str) -> None:
    """Pushes the name `module.text` on the stack of a pickle, or raises `FileError` if the file may not use
    it.

    Up to protocol 2 `builtins` is written `__builtin__`.
    """
    full = f"{'builtins' if module == '__builtin__' else module}.{text}"
    if machine.names is not None and full not in machine.names and full not in INERT and full not in MAKERS:
        shown = full if full.isprintable() and len(full) <= 100 else ascii(full[:100])
        raise FileError(f"the file asks to run {shown}, which stepnet never does; {machine.advice}")
    machine.stack.append(Name(full))


def name_in_lines(machine: StackMachine) -> None:
    """Opcode action: reads a module and a name from the next two lines, and pushes the full name."""
    module = machine.source.take_line().decode()
    name(machine, module, machine.source.take_line().decode())


def name_on_stack(machine: StackMachine) -> None:
    """Opcode action: pops a name and its module from the stack, and pushes the full name."""
    text = machine.pop_kind(str)
    name(machine, machine.pop_kind(str), text)


def call(machine: StackMachine) -> None:
    """Opcode action: pops arguments and a function; pushes the call's record, or the container it makes."""
    arguments = cast(Arguments, machine.pop_kind(tuple))
    machine.stack.append(called(machine, arguments))


def call_with_names(machine: StackMachine) -> None:
    """Opcode action: pops named arguments, other arguments and a class, and pushes the record of this call,
    with the named arguments as its state, or the container (a dict or list) that the call makes. machine: the
    stack machine that interprets the pickle.
    """
    named_arguments = machine.pop_kind(Pairs)
    arguments = cast(Arguments, machine.pop_kind(tuple))
    result = called(machine, arguments)
    machine.stack.append(
        PickledCall(result.name, result.arguments, named_arguments)
        if isinstance(result, PickledCall)
        else result
    )


def call_marked(machine: StackMachine) -> None:
    """Opcode action: pops a function and its arguments, which lie above the latest mark (a recorded height of
    the stack), and pushes the record of the call. Nothing is called.
    """
    function, *arguments = machine.pop_marked() or [None]
    machine.stack.append(function)
    machine.stack.append(called(machine, tuple(arguments)))


def call_in_lines(machine: StackMachine) -> None:
    """Opcode action: reads the name of a function or class from two lines, pops the arguments above the
    latest mark (a recorded height of the stack), and pushes the record of the call. Nothing is called.
    """
    arguments = tuple(machine.pop_marked())
    name_in_lines(machine)
    machine.stack.append(called(machine, arguments))


def called(machine: StackMachine, arguments: Arguments) -> object:
    """Pops a function, to call it with `arguments`, from the pickle's stack; returns the container that it
    makes, if it is in `MAKERS`, or else the record of its call. A call that returns a function can be called
    too, unless names are restricted. Raises `FileError` if anything else is on the stack.
    """
    function = machine.pop()
    if isinstance(function, PickledCall) and machine.names is None:  # a call of the result of a call
        return PickledCall(function.name, (function, *arguments))
    if not isinstance(function, Name):
        raise FileError(f"its pickle has type {type(function).__name__} where Name must be")
    make = MAKERS.get(function.text)
    return make(machine, arguments) if make else PickledCall(function.text, arguments)


def build(machine: StackMachine) -> None:
    """Opcode action: pops the state of an object, and sets it in the record of the call that makes the
    object, next on the stack. A container there (a dict or list) stays as it is, without a state. machine:
    the stack machine that interprets the pickle; nothing of it is run.
    """
    state = machine.pop()
    target = machine.pop()
    if isinstance(target, PickledCall):
        target.state = state
    machine.stack.append(target)


def protocol(machine: StackMachine) -> None:
    """Opcode action: reads the protocol of a pickle; raises `FileError` for an unknown one."""
    if machine.source.take(1)[0] > 5:
        raise FileError("its pickle is of a protocol above 5, which stepnet does not know")


ACTIONS: dict[bytes, Action] = {
    b"\x80": protocol,
    b"\x95": lambda machine: machine.source.room(number("<Q")(machine)),
    b"N": push(lambda machine: None),
    b"\x88": push(lambda machine: True),
    b"\x89": push(lambda machine: False),
    b"I": line(integer),
    b"K": push(number("<B")),
    b"M": push(number("<H")),
    b"J": push(number("<i")),
    b"L": line(integer),
    b"\x8a": counted("<B", long),
    b"F": line(float),
    b"G": push(number(">d")),
    b"V": line(lambda data: data.decode("raw-unicode-escape")),
    b"\x8c": counted("<B", text),
    b"X": counted("<I", text),
    b"\x8d": counted("<Q", text),
    b"U": string("<B"),
    b"T": string("<i"),
    b"C": block("<B"),
    b"B": block("<I"),
    b"\x8e": block("<Q"),
    b"\x96": block("<Q"),
    b"(": mark,
    b")": push(lambda machine: ()),
    b"t": push(lambda machine: tuple(machine.pop_marked())),
    b"\x85": tuple_of(1),
    b"\x86": tuple_of(2),
    b"\x87": tuple_of(3),
    b"]": push(lambda machine: []),
    b"\x8f": push(lambda machine: []),
    b"l": push(StackMachine.pop_marked),
    b"\x91": push(StackMachine.pop_marked),
    b"a": lambda machine: extend(machine, [machine.pop()]),
    b"e": lambda machine: extend(machine, machine.pop_marked()),
    b"\x90": lambda machine: extend(machine, machine.pop_marked()),
    b"}": push(lambda machine: Pairs([])),
    b"d": push(lambda machine: add(Pairs([]), machine.pop_marked())),
    b"s": lambda machine: update(machine, [machine.pop(), machine.pop()][::-1]),
    b"u": lambda machine: update(machine, machine.pop_marked()),
    b"p": put(line_number),
    b"q": put(number("<B")),
    b"r": put(number("<I")),
    b"\x94": put(lambda machine: len(machine.memo)),
    b"g": get(line_number),
    b"h": get(number("<B")),
    b"j": get(number("<I")),
    b"c": name_in_lines,
    b"\x93": name_on_stack,
    b"R": call,
    b"\x81": call,
    b"\x92": call_with_names,
    b"o": call_marked,
    b"i": call_in_lines,
    b"0": lambda machine: drop(machine.pop()),
    b"1": lambda machine: drop(machine.pop_marked()),
    b"2": push(StackMachine.top),
    b"b": build,
    b"Q": push(lambda machine: machine.persistent(machine.pop())),
}
