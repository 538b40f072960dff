"""The arrays that each cell with a memory of its own shape takes: one table, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from stepnet.errors import InputError
from stepnet.trace.traced import Traced
from stepnet.values.arguments import array_of, is_one_of, kind, shown, whole

__all__ = ["FORMS", "Form", "arrays", "memory"]

AXES = {
    "r": "rows",
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
"""What the letters stand for. Axes of a cell with the same letter have the same size."""


@dataclass(frozen=True)
class Form:
    """The arrays of a cell, each as name:axes, with one letter for each axis after the rows.

    Attributes:
        family: The module of `stepnet.cells` that has the cell.
        inputs: The inputs.
        memory: The parts of the memory; letters alone for a memory that is one array.
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


def axes_of(text: str) -> dict[str, str]:
    """The letters by name; of an array without a name, by "".

    >>> axes_of("q:hk beta:h"), axes_of("hkv")
    ({'q': 'hk', 'beta': 'h'}, {'': 'hkv'})
    """
    return {name: letters for name, _, letters in (word.rpartition(":") for word in text.split())}


def arrays(cell: str, x: Any, memory: Any, params: Any = None) -> list[Any]:
    """The inputs of a cell, the parts of its memory and its parameters, in the order of its row in `FORMS`.

    A parameter that may be left out, and is, is None.

    Raises:
        InputError: For an array that is missing, and for one whose axes do not fit the cell or the others.

    >>> import numpy as np
    >>> shapes = {"q": (1, 2, 3), "k": (1, 2, 3), "v": (1, 2, 4), "beta": (1, 3)}
    >>> x = {name: np.ones(shape) for name, shape in shapes.items()}
    >>> arrays("delta_rule", x, np.zeros((1, 2, 3, 4)))
    Traceback (most recent call last):
    stepnet.errors.InputError: beta of delta_rule has 3 heads where others have 2: its axes are rows, heads
    """
    form, sizes, values = FORMS[cell], dict[str, int](), list[Any]()
    for what, given, text in (
        ("input", x, form.inputs),
        ("memory", memory, form.memory),
        ("parameter", params, form.parameters),
    ):
        for name, letters in axes_of(text).items():
            value = named(cell, what, given, name, text) if name else given
            if value is not None:
                title = f"{name.removesuffix('?') or f'the {what}'} of {cell}"
                check_axes(title, value, "" if what == "parameter" else "r", letters, sizes)
            values.append(value)
    return values


def named(cell: str, what: str, given: Any, name: str, text: str) -> Any:
    """The array of a name, or None for one that may be left out; raises `InputError` where there is none."""
    values: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    plain = name.removesuffix("?")
    if plain in values:
        return values[plain]
    if plain != name and (given is None or isinstance(given, Mapping)):
        return None
    names = ", ".join(axes_of(text)).replace("?", " (optional)")
    there = ", ".join(map(str, values)) or kind(given)
    raise InputError(f"{cell} has no {what} {plain}: it takes a dict of {names}, not {there}")


def check_axes(title: str, value: Any, lead: str, letters: str, sizes: dict[str, int]) -> None:
    """Raises `InputError` unless an array has the axes of the letters, in the sizes that other arrays have.

    lead: "r" for an array with rows. sizes: those known; the array's own are added.
    """
    shape = value.shape if isinstance(value, Traced) else array_of(value, title).shape
    words = [AXES[letter] for letter in lead + letters]
    if len(shape) != len(words):
        raise InputError(f"{title} has the {len(words)} axes {', '.join(words)}, and is {shown(value)}")
    for letter, size in zip(letters, shape[len(lead) :], strict=True):
        if (known := sizes.setdefault(letter, size)) != size:
            differ = f"{title} has {size} {AXES[letter]} where others have {known}"
            raise InputError(f"{differ}: its axes are {', '.join(words)}")


def memory(cell: str, **sizes: int) -> Any:
    """The features of a cell's memory, as `RNN` takes them.

    Args:
        cell: The name of a cell in `FORMS`.
        sizes: The size of each axis of the memory, by its word: heads, key, value, channels, states, ...

    Raises:
        InputError: For another name, and for sizes that the memory does not have, or lacks.

    >>> memory("gated_delta_rule", heads=2, key=4, value=8), memory("mamba", channels=6, states=16)
    ((2, 4, 8), (6, 16))
    """
    if not is_one_of(cell, FORMS):
        raise InputError(f"no cell is called {shown(cell)}; there are {', '.join(FORMS)}")
    parts = axes_of(FORMS[cell].memory)
    words = {letter: AXES[letter] for letters in parts.values() for letter in letters}
    if sizes.keys() != set(words.values()):
        given = ", ".join(sizes) or "none"
        raise InputError(f"the memory of {cell} has the sizes {', '.join(words.values())}; given are {given}")
    known = {name: whole(size, f"{name} is a size") for name, size in sizes.items()}
    shapes = {name: tuple(known[words[letter]] for letter in letters) for name, letters in parts.items()}
    return shapes.get("", shapes)
