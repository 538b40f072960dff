"""The arrays of the cells in `FORMS`, as a table, with the checks and shapes that follow from it."""

from collections.abc import Mapping
from typing import Any, cast

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import array_of, checked_integer, is_one_of, kind, short_repr
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError

__all__ = ["FORMS", "Form", "arrays", "memory"]

ROWS = "r"
AXES = {
    ROWS: "rows",
    "c": "channels",
    "d": "inputs",
    "g": "groups",
    "h": "heads",
    "k": "key",
    "l": "last",
    "m": "products",
    "n": "states",
    "p": "features",
    "v": "value",
    "w": "kernel",
}
"""The axis that each letter stands for. Axes of a cell with equal letters have equal sizes."""


@dataclass(frozen=True)
class Form:
    """The arrays that a cell takes: each as name:axes, with a letter for each axis but that of sequences.

    Attributes:
        family: The module of `stepnet.cells` that has the cell.
        inputs: The inputs.
        memory: The parts of the memory; only letters for a memory that is a single array.
        parameters: The parameters, which have no rows; one whose name ends in ? may be left out.
    """

    family: str
    inputs: str
    memory: str
    parameters: str = ""


FORMS = {
    "causal_convolution": Form("convolution", "c", "cl", "weight:cw bias?:c"),
    "delta_rule": Form("delta", "q:hk k:hk v:hv beta:h", "hkv"),
    "gated_delta_product": Form("delta", "q:hk k:mhk v:mhv g:h beta:mh", "hkv"),
    "gated_delta_rule": Form("delta", "q:hk k:hk v:hv g:h beta:h", "hkv"),
    "gla": Form("attention", "q:hk k:hk v:hv g:hk", "hkv"),
    "hgrn2": Form("attention", "q:hk v:hv g:hk", "hkv"),
    "kda": Form("delta", "q:hk k:hk v:hv g:hk beta:h", "hkv"),
    "linear_attention": Form("attention", "q:hk k:hk v:hv", "hkv"),
    "lru": Form("diagonal", "d", "re:n im:n", "nu:n theta:n gamma:n B_re:dn B_im:dn C_re:nd C_im:nd D?:d"),
    "mamba": Form("state_space", "x:c dt:c B:n C:n", "cn", "A:cn D?:c"),
    "mamba2": Form("state_space", "x:hp dt:h B:gn C:gn", "hpn", "A:h D?:h"),
    "min_gru": Form("minimal", "z:c n:c", "c"),
    "min_lstm": Form("minimal", "f:c i:c n:c", "c"),
    "mlstm": Form("xlstm", "q:hk k:hk v:hv i:h f:h", "C:hkv n:hk m:h"),
    "retnet": Form("attention", "q:hk k:hk v:hv", "hkv", "g:h"),
    "rg_lru": Form("diagonal", "x:c r:c i:c", "c", "lambda:c"),
    "rwkv4": Form("rwkv", "k:c v:c", "num:c den:c max:c", "w:c u:c"),
    "rwkv6": Form("rwkv", "r:hk k:hk v:hv w:hk", "hkv", "u:hk"),
    "rwkv7": Form("rwkv", "r:hk k:hk v:hv w:hk a:hk b:hk", "hkv"),
    "s5": Form("diagonal", "d", "re:n im:n", "A_re:n A_im:n step:n B_re:dn B_im:dn C_re:nd C_im:nd D?:d"),
    "simple_gla": Form("attention", "q:hk k:hk v:hv g:h", "hkv"),
    "slstm": Form("xlstm", "i:hp f:hp z:hp o:hp", "h:hp c:hp n:hp m:hp", "Ri:hpp Rf:hpp Rz:hpp Ro:hpp"),
    "ttt_linear": Form("at_test_time", "q:hk k:hk v:hk eta:h", "W:hkk b:hk", "scale:hk shift:hk"),
}


def axes_of(column: str) -> dict[str, str]:
    """Parses a column of `FORMS` to the letters of axes (see `AXES`) by array name; "" is the name of a
    single array, and a name that ends in ? is optional.

    >>> axes_of("q:hk beta:h"), axes_of("hkv")
    ({'q': 'hk', 'beta': 'h'}, {'': 'hkv'})
    """
    return {name: letters for name, _, letters in (word.rpartition(":") for word in column.split())}


def arrays(cell: str, x: Any, memory: Any, params: Any = None) -> list[Any]:
    """Checks the arrays that a call of a cell passes; returns its inputs, the parts of its memory and its
    parameters in the order of `FORMS`, for the cell to unpack; None for an optional one left out.

    Args:
        cell: The name of the cell in `FORMS`.
        x: The inputs: a dict of arrays by name, or an array for a cell with a single one.
        memory: The parts of the memory, likewise.
        params: The parameters, likewise; None for a cell that has none.

    Raises:
        InputError: For an array that is missing, and for one whose axes do not fit the cell or the others.

    >>> import numpy as np
    >>> shapes = {"q": (1, 2, 3), "k": (1, 2, 3), "v": (1, 2, 4), "beta": (1, 3)}
    >>> x = {name: np.ones(shape) for name, shape in shapes.items()}
    >>> arrays("delta_rule", x, np.zeros((1, 2, 3, 4)))
    Traceback (most recent call last):
    stepnet.errors.InputError: beta of delta_rule has 3 heads where q has 2: the axes of beta are rows, heads
    """
    form, sizes, values = FORMS[cell], dict[str, tuple[int, str]](), list[Any]()
    for role, argument, column in (
        ("input", x, form.inputs),
        ("memory", memory, form.memory),
        ("parameter", params, form.parameters),
    ):
        check_names(cell, role, argument, column)
        for name, letters in axes_of(column).items():
            value = named(cell, role, argument, name, column) if name else argument
            if value is not None:
                axes = letters if role == "parameter" else ROWS + letters
                check_axes(cell, name.removesuffix("?") or f"the {role}", value, axes, sizes)
            values.append(value)
    return values


def check_names(cell: str, role: str, value: Any, column: str) -> None:
    """Raises `InputError` if a caller's dict has an array whose name the cell does not have. Any value passes
    for a cell with a single array, and only None or a dict for a cell without any.

    role: "input", "memory" or "parameter", for the message. value: the dict. column: the arrays that the cell
    takes in this role, as text (a column of `FORMS`).
    """
    names = axes_of(column)
    if "" in names:
        return
    unknown = set(by_name(value)) - {name.removesuffix("?") for name in names}
    if unknown or (value is not None and not names and not isinstance(value, Mapping)):
        takes = f"a dict of {listed(column)}" if names else "none"
        wrong = short_repr(min(unknown)) if unknown else kind(value)
        raise InputError(f"{cell} was given {wrong} as {role}: it takes {takes}")


def named(cell: str, role: str, value: Any, name: str, column: str) -> Any:
    """Returns a caller's array by name. If it is missing, returns None for an optional one, if the caller
    gave a dict or None; else raises `InputError`.

    role: "input", "memory" or "parameter", for the message. value: the caller's dict. name: the array's; an
    optional one ends in ?. column: the arrays that the cell takes in this role, as text (a column of
    `FORMS`).
    """
    values, plain = by_name(value), name.removesuffix("?")
    if plain in values:
        return values[plain]
    if plain != name and (value is None or isinstance(value, Mapping)):
        return None
    present = ", ".join(values) or kind(value)
    raise InputError(f"{cell} has no {role} {plain}: it takes a dict of {listed(column)}, not {present}")


def by_name(argument: Any) -> Mapping[str, Any]:
    """Returns a dict argument of a cell with names as text; an empty mapping for any other value."""
    if not isinstance(argument, Mapping):
        return {}
    values = cast("Mapping[Any, Any]", argument)
    return {str(name): value for name, value in values.items()}


def listed(column: str) -> str:
    """Formats the array names in a column of `FORMS` for messages, such as "A, D (optional)"."""
    return ", ".join(axes_of(column)).replace("?", " (optional)")


def check_axes(cell: str, name: str, value: Any, axes: str, sizes: dict[str, tuple[int, str]]) -> None:
    """Raises `InputError` unless an array has the axes of these letters (see `AXES`), in the same sizes as
    the other arrays of the call. The number of rows (sequences) is not compared.

    sizes: the sizes so far, by letter, each with the name of its array; those of this array are added.
    """
    shape = value.shape if isinstance(value, Traced) else array_of(value, f"{name} of {cell}").shape
    words = [AXES[letter] for letter in axes]
    if len(shape) != len(words):
        actual = f"{len(shape)} axes, {short_repr(value)}"
        raise InputError(f"{name} of {cell} has the axes {', '.join(words)}, not {actual}")
    for letter, size in zip(axes, shape, strict=True):
        if letter == ROWS:
            continue
        known_size, first = sizes.setdefault(letter, (size, name))
        if known_size != size:
            differ = f"{name} of {cell} has {size} {AXES[letter]} where {first} has {known_size}"
            raise InputError(f"{differ}: the axes of {name} are {', '.join(words)}")


def memory(cell: str, **sizes: int) -> Any:
    """Returns the feature shape of a cell's memory, which `RNN` takes as memory=.

    Args:
        cell: The name of a cell in `FORMS`.
        sizes: The size of each axis of the memory, by its word: heads, key, value, channels, states, ...

    Raises:
        InputError: For an unknown name, and for sizes that are missing or that the memory does not have.

    >>> memory("gated_delta_rule", heads=2, key=4, value=8), memory("mamba", channels=6, states=16)
    ((2, 4, 8), (6, 16))
    """
    if not is_one_of(cell, FORMS):
        raise InputError(f"no cell is called {short_repr(cell)}; there are {', '.join(FORMS)}")
    parts = axes_of(FORMS[cell].memory)
    words = {letter: AXES[letter] for letters in parts.values() for letter in letters}
    if sizes.keys() != set(words.values()):
        stated = ", ".join(sizes) or "none"
        raise InputError(f"the memory of {cell} has the sizes {', '.join(words.values())}, not {stated}")
    checked = {name: checked_integer(size, f"{name} is a size") for name, size in sizes.items()}
    shapes = {name: tuple(checked[words[letter]] for letter in letters) for name, letters in parts.items()}
    return shapes.get("", shapes)
