"""Checks of arguments: each returns the argument in a standard form, or raises `InputError`.

The parameter `meaning` of a check is the beginning of its message, which continues with "not ...".
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np

from stepnet.compiler.values.dtypes import DTYPES, dtype_text
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.errors import ArgumentError, FileError, InputError, StepnetError, printable

if TYPE_CHECKING:
    from pathlib import Path

Array = np.ndarray
Kind = TypeVar("Kind")
Given = ParamSpec("Given")
LARGEST = int(np.iinfo(np.int64).max)
ADDRESS = r"[A-Za-z][A-Za-z0-9+.-]+://"
SHOWN = 60
"""The largest number of characters of a wrong argument in a message."""
LIBRARY = "stepnet.build.load(path, trust=True) loads a library that you built"
"""The advice for a library for C, where a model file is expected."""
MOST_MEMORY: ContextVar[int | None] = ContextVar("MOST_MEMORY", default=None)
"""The bytes that may be allocated for the contents of a model's files, if the user sets a limit."""


def short_repr(value: Any) -> str:
    """Writes a wrong argument as text of one line, for an error message.

    >>> short_repr("yes"), short_repr(np.zeros((2, 3))), short_repr({1: 2})
    ("'yes'", 'an array float64[2, 3]', '{1: 2}')
    """
    if is_array(value) and value.ndim:
        return f"an array {value.dtype}{list(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python refuses to print an integer of more than some thousand digits
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_array(value: Any) -> TypeGuard[Array]:
    """Tells whether a value is a NumPy array."""
    return isinstance(value, np.ndarray)


def kind(value: Any) -> str:
    """Names the type of a wrong argument, for messages in which its value would say less.

    >>> kind(None), kind([1]), kind(int)
    ('None', 'a list', 'the class int')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def is_integer(value: Any) -> bool:
    """Tells whether a value is a Python or NumPy integer; a bool is not one."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_module(value: Any) -> bool:
    """Tells whether a value is a module of PyTorch, without loading PyTorch."""
    return isinstance(value, getattr(sys.modules.get("torch.nn"), "Module", ()))


def imported(name: str) -> Any:
    """Returns a module that the program has imported; None while another thread is importing it, or the
    package that it is in: to read its attributes could then import other parts of it, and end in a deadlock.
    """
    package = sys.modules.get(name.partition(".")[0])
    module = package and sys.modules.get(name)
    begun = (getattr(getattr(each, "__spec__", None), "_initializing", False) for each in (package, module))
    return None if any(begun) else module


def is_masked(value: Any) -> bool:
    """Tells whether a value is a masked array, without loading `numpy.ma`, for which a fork would wait."""
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


# ---- one thing ---------------------------------------------------------------------------------------------


def function(value: Any, meaning: str) -> Callable[..., Any]:
    """Returns an argument that is callable; raises `InputError` for any other.

    meaning: the beginning of the message, which says what the argument must be.

    >>> function(len, "until is a function until(output, memory)")
    <built-in function len>
    """
    if not callable(value):
        raise InputError(f"{meaning}, not {kind(value)}")
    return cast("Callable[..., Any]", value)


def advised(**advice: str) -> Callable[[Callable[Given, Kind]], Callable[Given, Kind]]:
    """Makes a decorator for a function that users may call by arguments that it lacks, or give twice.

    advice: the remedy, by the name of the argument. Raises `ArgumentError` with it for a call by that name
    where the function has no such argument, or has a value for it by position.

    >>> advised(output="write result= in place of it")(lambda result: result)(output="last")
    Traceback (most recent call last):
    stepnet.errors.ArgumentError: <lambda> has no argument output=: write result= in place of it
    """

    def decorated(function: Callable[Given, Kind]) -> Callable[Given, Kind]:
        """Returns the function with a check before each call: `InputError` with advice for these."""
        positions = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

        @wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Kind:
            """Calls the function; raises `InputError` if an argument that there is advice for is given by a
            name that the function lacks, or twice.
            """
            name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
            for argument, text in advice.items():
                if argument in kwargs and argument not in positions:
                    raise ArgumentError(f"{name} has no argument {argument}=: {text}")
                if argument in kwargs and positions[argument] < len(args):
                    raise ArgumentError(f"{name} has two values for {argument}: {text}")
            return function(*args, **kwargs)

        return checked

    return decorated


def unknown_argument(
    what: str,
    function: Callable[..., Any],
    unknown: Collection[str],
    meant: Mapping[str, str],
    further: Iterable[str] = (),
) -> ArgumentError:
    """Makes the error for a call with an argument that a function lacks; it says which one is meant.

    what: the name of the function in the message.
    unknown: the names of such arguments, which the function takes by `**unknown`.
    meant: the text to write instead, by the name of the argument; for others a similar name is looked for.
    further: the names of arguments that it takes in this way, and that it has.

    >>> def call(sequences, initial=None, lengths=None, **unknown):
    ...     raise unknown_argument("a recurrence", call, unknown, {"h0": "write initial="})
    >>> call([], h0=1)
    Traceback (most recent call last):
    stepnet.errors.ArgumentError: a recurrence has no argument h0=: write initial=
    >>> call([], lenghts=1)
    Traceback (most recent call last):
    stepnet.errors.ArgumentError: a recurrence has no argument lenghts=: did you mean lengths=?
    """
    name = next(iter(unknown))
    parameters = [*inspect.signature(function).parameters.values()]
    unnamed = {"VAR_KEYWORD", "VAR_POSITIONAL", "POSITIONAL_ONLY"}
    known = [each.name for each in parameters if each.kind.name not in unnamed]
    known = [each for each in (*known, *further) if each != "self"]
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    others = f"did you mean {near[0]}=?" if near else f"its arguments are {', '.join(known)}"
    return ArgumentError(f"{what} has no argument {name}=: {meant.get(name, others)}")


def check_signature(
    function: Callable[..., Any], names: tuple[str, ...], further: tuple[str, ...] = ()
) -> None:
    """Raises `InputError` if a function cannot be called with arguments of these names, in this order.

    further: arguments passed by name if the function has parameters of these names. A function without a
    signature, such as some in C, passes.

    >>> check_signature(lambda x, params, statics: x, ("x", "params"), ("statics",))
    >>> check_signature(lambda x: x, ("x", "params"))
    Traceback (most recent call last):
    stepnet.errors.InputError: <lambda> is called as <lambda>(x, params), and takes (x): too many ...
    """
    try:
        signature = inspect.signature(
            function, follow_wrapped=False
        )  # the wrapper is called, not the wrapped function
    except (TypeError, ValueError):
        return
    extras = {name: None for name in further if name in signature.parameters}
    try:
        signature.bind(*names, **extras)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        called = f"{name}({', '.join([*names, *extras])})"
        raise InputError(f"{name} is called as {called}, and takes {signature}: {error}") from None


def argument_names(function: Callable[..., Any], usual: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of the parameters that take a function's first arguments, for messages.

    usual: as many names, which stand for arguments that no parameter of their own takes.

    >>> argument_names(lambda word, state, *others: word, ("x", "memory", "params"))
    ('word', 'state', 'params')
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return usual
    own = [
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return (*own, *usual[len(own) :])[: len(usual)]


def path_text(value: Any, name: str = "path") -> str:
    """Returns the text of an argument that can be the path of a file; raises `InputError` for any other.

    name: the argument's name in the message.

    >>> path_text(3)
    Traceback (most recent call last):
    stepnet.errors.InputError: path is a text or a Path, not 3
    """
    text: Any = os.fspath(cast("str", value)) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} is a text or a Path, not {short_repr(value)}")
    if not text:
        raise InputError(f"{name} is an empty text, and names no file or folder")
    if "\0" in text:
        raise InputError(f"{name} has a character of number 0, and no file has: {short_repr(text)}")
    return text


def file_path(value: Any, name: str = "path") -> "Path":
    """Returns an argument that can be the path of a file as a `Path`; raises `InputError` for any other.

    name: the argument's name in the message.

    >>> file_path("model.svg").suffix
    '.svg'
    """
    with IMPORTS:  # late: it takes longer to import than a stored model to load
        from pathlib import Path
    return Path(path_text(value, name))


def local_path(value: Any, name: str, written: str) -> "Path":
    """Returns an argument that names a file or folder to write as a `Path`; raises `FileError` for a URL,
    which a `Path` would take for folders.

    name: the argument's name in messages. written: what is written where, and what to do, for the message.
    """
    path, text = file_path(value, name), str(value)
    if re.match(ADDRESS, text):
        raise FileError(f"{printable(text)}: {written}")
    return path


def flag(value: Any, name: str) -> bool:
    """Returns a True or False of Python or NumPy as a bool; raises `InputError` for any other argument.

    name: the argument's name in the message.

    >>> flag(np.True_, "reverse")
    True
    """
    if value is True or value is False:
        return value
    if type(value) is not np.bool_:
        raise InputError(f"{name} is True or False, not {short_repr(value)}")
    return bool(value)


def checked_integer(value: Any, meaning: str, least: int = 0, most: int = LARGEST) -> int:
    """Returns a whole number from `least` to `most` as an int; raises `InputError` for any other argument.

    meaning: the beginning of the message, which says what the argument must be.

    >>> checked_integer(np.int32(3), "rows is how many there are, from 1 on", 1)
    3
    """
    if not is_integer(value) or not least <= value <= most:
        raise InputError(f"{meaning}, not {short_repr(value)}")
    return int(value)


def number(value: Any, meaning: str, holds: Callable[[float], bool], advice: str = "") -> float:
    """Returns a number for which `holds` is true as a float; raises `InputError` for any other argument.

    meaning, advice: the beginning and the end of the message. `holds` must be false for NaN, which here also
        stands for integers that are too large for a float.

    >>> number(1, "temperature is above 0", lambda value: value > 0)
    1.0
    """
    original: Any = value
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            converted = float(original)
        except OverflowError:
            converted = float("nan")
        if holds(converted):
            return converted
    raise InputError(f"{meaning}, not {short_repr(value)}{advice}")


def instance(value: Any, of: type[Kind], meaning: str) -> Kind:
    """Returns an argument that is an instance of the class `of`; raises `InputError` for any other.

    meaning: the beginning of the message, which says what the argument must be.

    >>> instance("h", str, "name is a text")
    'h'
    """
    if not isinstance(value, of):
        raise InputError(f"{meaning}, not {short_repr(value)}")
    return value


def choice(value: Any, meaning: str, among: Collection[str]) -> str:
    """Returns an argument that is one of the words `among`; raises `InputError` for any other.

    meaning: the beginning of the message, which says what the argument must be.

    >>> choice("sum", "merge is 'sum' or 'concat'", ("sum", "concat"))
    'sum'
    """
    if not is_one_of(value, among):
        raise InputError(f"{meaning}, not {short_repr(value)}")
    return value


def is_one_of(value: Any, among: Collection[str]) -> TypeGuard[str]:
    """Tells whether a value is one of several words; False for values that cannot be hashed."""
    return isinstance(value, str) and value in among


def mapping(value: Any, meaning: str) -> Mapping[str, Any]:
    """Returns an argument that is a mapping with text as keys; raises `InputError` for any other. meaning:
    the beginning of the message, which says what the argument must be.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"{meaning}, not {kind(value)}")
    named = cast("Mapping[Any, Any]", value)
    strange = [name for name in named if not isinstance(name, str)]
    if strange:
        raise InputError(f"{meaning}, and {short_repr(strange[0])} is no name")
    return named


# ---- arrays ------------------------------------------------------------------------------------------------


def array_of(value: Any, what: str) -> Array:
    """Converts an argument to an array of any dtype; raises `InputError` if that is not possible. what: the
    argument's name in the message.
    """
    if type(value) is np.ndarray:
        return value
    if is_masked(value):
        raise InputError(
            f"{what} is a masked array, and its mask would be lost; give .filled(...), and beside it mask= "
            "where steps are to be left out"
        )
    if is_tensor(value):
        refuse_tensor(value, what)
        if str(value.dtype) == "torch.bfloat16":  # PyTorch cannot convert it to a NumPy array
            return value.contiguous().view(sys.modules["torch"].int16).numpy().view("bfloat16")
    if is_jax_array(value):
        refuse_jax_array(value, what)
    try:
        return np.asarray(value)
    except StepnetError:
        raise
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"{what} is {kind(value)} that is not an array: {error}") from None


def is_tensor(value: Any) -> bool:
    """Tells whether a value is a PyTorch tensor, without importing PyTorch."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def refuse_tensor(tensor: Any, what: str) -> None:
    """Raises `InputError` for a PyTorch tensor that cannot become an array, as it is on a device or requires
    a gradient. what: the argument's name in the message.
    """
    if tensor.requires_grad:
        raise InputError(
            f"{what} is a tensor that requires a gradient, and none is computed here; give .detach()"
        )
    if tensor.device.type != "cpu":
        raise InputError(f"{what} is a tensor on {tensor.device}; give .cpu()")


def is_jax_array(value: Any) -> bool:
    """Tells whether a value is an array of JAX, or one that JAX traces, without importing JAX."""
    return isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))


def refuse_jax_array(array: Any, what: str) -> None:
    """Raises `InputError` for an array of JAX that cannot be read in place, as JAX traces it or it is on a
    device. what: the argument's name in the message.
    """
    jax: Any = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise InputError(
            f"{what} is {array.dtype}{list(array.shape)} that JAX traces (jit, grad, vmap), and has no "
            "numbers: stepnet.jax.scan is a function of JAX, and its params= are what a step captures"
        )
    if any(device.platform != "cpu" for device in array.devices()):
        raise InputError(f"{what} is an array of JAX on {array.device}; give jax.device_get(...)")


def checked_dtype(array: Array, what: str) -> str:
    """Returns the name of an array's dtype; raises `InputError` if stepnet has no such dtype. what: the
    array's name in the message.
    """
    if array.dtype == object:
        raise InputError(
            f"{what} is an array of Python objects; sequences of different lengths go in a "
            "Ragged: sn.Ragged.from_list(sequences), or sn.Ragged.from_arrow(column) for Arrow"
        )
    return dtype_name(array.dtype, what)


def dtype_name(dtype: Any, what: str) -> str:
    """Returns the name of a dtype that stepnet supports; raises `InputError` for any other. what: the name,
    in the message, of the argument that has the dtype.
    """
    name = dtype_text(dtype)
    if name not in DTYPES:
        raise InputError(unknown_dtype(name, what))
    return name


def unknown_dtype(name: str, what: str) -> str:
    """Makes the message, with advice, for a dtype that stepnet lacks. what: the name of its argument."""
    text = f"{what} has dtype {name}; use one of {', '.join(DTYPES)}"
    if name.startswith(("float", "bfloat", "longdouble")):
        return f"{text}: cast it, .astype(np.float32) or .float() of a tensor"
    return f"{text}: cast it, .astype(np.int64)" if name.startswith(("int", "uint")) else text


def checked_integers(
    original: Any, count: int | None, what: str, most: int = LARGEST, many: str = "one per sequence"
) -> Array:
    """Converts an argument to a 1-D int64 array of numbers from 0 to `most`; raises `InputError` for others.

    original: the argument. count: the required number of elements; None for any number.
    many: that number in words, for the message.
    what: the argument's name in the message.
    Numbers beyond int64, if `most` allows them, become the negative numbers with the same bits.
    """
    array = array_of(original, what)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu") or count not in (None, len(array)):
        number = "" if count is None else f"{count} "
        raise InputError(f"{what} is {number}whole numbers, {many}, not {array.dtype}{list(array.shape)}")
    if not array.size:
        return np.zeros(0, np.int64)
    wrong = (array < 0) | (array > most)
    if wrong.any():
        index = int(wrong.argmax())
        rule = "must not be negative" if array[index] < 0 else f"must be at most {most}"
        raise InputError(f"{what}[{index}] is {array[index]}, and {rule}")
    return array.astype(np.int64)


def stated_axes(axes: Any) -> dict[str, str]:
    """Returns the user's argument `axes`, the meaning of the axes of a file's inputs by their names; an empty
    dict for None. Raises `InputError` for anything else than texts by name.

    >>> stated_axes({"x": "NT"}), stated_axes(None)
    ({'x': 'NT'}, {})
    """
    given: Any = {} if axes is None else axes
    if not isinstance(given, Mapping) or {type(text) for text in cast("Any", given).values()} - {str}:
        raise InputError(f'axes= is a text for each input by name, as {{"x": "NT"}}, not {short_repr(axes)}')
    return dict(cast("Any", given))


def is_any(steps: str | None) -> bool:
    """Tells whether the user's argument `steps` is "any"; raises `InputError` for other values but None."""
    if steps not in (None, "any"):
        raise InputError(
            f"steps={short_repr(steps)}: there is only 'any', where no number in a file depends on its steps"
        )
    return steps == "any"
