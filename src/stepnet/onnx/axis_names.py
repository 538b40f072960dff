"""The kinds of axes of an ONNX input by the names of their sizes, which people choose when they export.

["batch", "time", 8]    ->   "NT?"      dynamic_axes of PyTorch, Dim of torch.export, optimum, stepnet
["seq_len", "B", 8]     ->   "TN?"
["s77", "unk__3", 8]    ->   "???"      numbered by an exporter: they say nothing
"""

import re
from collections.abc import Sequence

from stepnet.importers.axes import FEATURE
from stepnet.layout.files.onnx.tensor import Proto

UNKNOWN = "?"
"""The letter of an axis of which the file does not say what it is."""
ALONE = {"n": "N", "b": "N", "bs": "N", "t": "T", "l": "T"}
"""The letters of names that are one of these and nothing more."""
WORDS = {
    **dict.fromkeys(("batch", "batches", "batchsize", "bsz", "minibatch", "sequences"), "N"),
    **dict.fromkeys(("time", "times", "timestep", "timesteps", "step", "steps", "frame", "frames"), "T"),
    **dict.fromkeys(("seq", "seqlen", "sequence", "len", "length", "token", "tokens", "word", "words"), "T"),
}
"""The letters of names with one of these words."""
NUMBERED = re.compile(r"_dynamic_axes_\d+$")
"""The end of a name that PyTorch made of the name of an input."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def letter_of(name: str) -> str:
    """Returns the letter of an axis by the name of its size: N for sequences, T for steps, or `UNKNOWN`.

    >>> [letter_of(name) for name in ("batch_size", "seqLen", "T", "s77", "batch x time", "n_mels")]
    ['N', 'T', 'T', '?', '?', '?']
    """
    if name.lower() in ALONE:
        return ALONE[name.lower()]
    words = [] if NUMBERED.search(name) else [word.lower() for word in WORD.findall(name)]
    letters = {WORDS[word] for word in words if word in WORDS}
    return letters.pop() if len(letters) == 1 else UNKNOWN


def letters_of(value: Proto) -> str:
    """Returns a letter for each axis of a model's input, by the names of its sizes: N, T, or `UNKNOWN`, also
    where two axes have one letter. value: the input as the model declares it.
    """
    found = "".join(letter_of(size.dim_param) for size in value.type.tensor_type.shape.dim)
    return "".join(letter if found.count(letter) == 1 else UNKNOWN for letter in found)


def named_axes(value: Proto, choices: Sequence[str]) -> list[str]:
    """Returns the axes that an input of a model may have, by the names of its sizes: texts with a letter for
    each axis, N for sequences, T for steps and _ for features.

    These are all of the choices if the names say nothing, and one if they say which axes are the sequences
    and the steps. value: the input as the model declares it. choices: its possible axes by other facts, such
    as "NT_".
    """
    letters = letters_of(value)
    if {"N", "T"} <= {*letters}:
        return [letters.replace(UNKNOWN, FEATURE)]
    fitting = [
        axes
        for axes in choices
        if all(own in (UNKNOWN, letter) for own, letter in zip(letters, axes, strict=True))
    ]
    return fitting or [letters.replace(UNKNOWN, FEATURE)]
