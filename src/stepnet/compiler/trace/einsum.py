"""np.einsum and np.tensordot of a step's values.

The first letter of each value of the step is the rows, the same for all; a parameter has no such letter.
Operands are multiplied from left to right, and a letter is summed over as soon as nothing to the right needs
it.
"""

from collections import Counter
from collections.abc import Sequence
from string import ascii_letters
from typing import Any, cast

import numpy as np

from stepnet.compiler.trace.contractions import Labelled, common_sizes, contracted, without_ones
from stepnet.compiler.trace.traced import (
    Traced,
    apply,
    array_of,
    builder_of,
    lifted,
    refuse,
    reshaped,
    transposed,
)
from stepnet.compiler.values.arguments import is_integer
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class Operand:
    """Operand of np.einsum and its letters as the step writes them, with the letter of the rows first."""

    value: Traced
    letters: str

    @property
    def features(self) -> str:
        """The letters of the operand's feature axes, without that of the rows."""
        return self.letters if self.value.is_constant else self.letters[1:]


def einsum(subscripts: Any, *operands: Any, optimize: Any = False) -> Traced:
    """Computes np.einsum in a step: products of values and parameters, summed over letters. Raises
    `StepError` for subscripts that do not fit the operands, or that would combine rows.

    optimize: accepted as in NumPy and ignored: the order is from left to right.
    """
    if not isinstance(subscripts, str):
        raise refuse(
            'np.einsum in a step takes the subscripts as its first argument: np.einsum("bk,bkn->bn", q, m)'
        )
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    check_letters(subscripts, inputs + output)
    terms_text = inputs.split(",")
    if len(terms_text) != len(operands):
        raise refuse(
            f"np.einsum: {subscripts!r} has subscripts for {len(terms_text)} operands, but {len(operands)} "
            "were given"
        )
    terms = terms_of(terms_text, operands)
    check_output(subscripts, terms, output if arrow else implied(inputs))
    return combined(terms, output if arrow else implied(inputs))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Traced:
    """Computes np.tensordot in a step: a value's product with a parameter, summed over some axes of both.

    axes: as in NumPy. Raises `StepError` for two values with rows, or if the rows do not stay first.
    """
    builder = builder_of((a, b))
    left, right = (Traced(builder, lifted(builder, value, (a, b))) for value in (a, b))
    if not left.is_constant and not right.is_constant:
        raise refuse(
            "np.tensordot of two values pairs all rows with all, which mixes them; write np.einsum with the "
            "rows as the first letter of both"
        )
    ours, theirs = paired_axes(left, right, axes)
    sizes = [
        [value.shape[axis] for axis in value_axes] for value, value_axes in ((left, ours), (right, theirs))
    ]
    if sizes[0] != sizes[1]:
        raise refuse(
            f"np.tensordot sums over axes of sizes {sizes[0]} of the first operand and {sizes[1]} of the "
            "second: they must be equal"
        )
    letters = ascii_letters[: left.ndim + right.ndim]
    first, second = list(letters[: left.ndim]), list(letters[left.ndim :])
    for left_axis, right_axis in zip(ours, theirs, strict=True):
        second[right_axis] = first[left_axis]
    over = {first[left_axis] for left_axis in ours}
    output = "".join(letter for letter in first + second if letter not in over)
    terms = terms_of(["".join(first), "".join(second)], (left, right))
    check_output("np.tensordot", terms, output)
    return combined(terms, output)


def paired_axes(a: Traced, b: Traced, axes: Any) -> tuple[list[int], list[int]]:
    """Returns, for each of two operands, the axes that np.tensordot sums over, counted from the first axis.
    Raises `StepError` for axes that the operands do not have, or of different numbers.

    axes: as for np.tensordot: a number of axes, or a pair of axes or lists of them.
    """
    if is_integer(axes):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise refuse(
                f"np.tensordot cannot sum over {axes} axes of operands with {a.ndim} and {b.ndim} axes"
            )
        return list(range(a.ndim - int(axes), a.ndim)), list(range(int(axes)))
    pair = [
        list(cast("Sequence[Any]", entry)) if isinstance(entry, list | tuple) else [entry] for entry in axes
    ]
    if len(pair) != 2 or len(pair[0]) != len(pair[1]):
        raise refuse(f"np.tensordot takes the same number of axes of both operands, not {axes}")
    for summed_axes, value in zip(pair, (a, b), strict=True):
        indices = {
            axis % value.ndim for axis in summed_axes if is_integer(axis) and -value.ndim <= axis < value.ndim
        }
        if len(indices) < len(summed_axes):
            raise refuse(f"np.tensordot takes some of {value.ndim} axes, each once, not {summed_axes}")
    return [axis % a.ndim for axis in pair[0]], [axis % b.ndim for axis in pair[1]]


# ---- subscripts --------------------------------------------------------------------------------------------


def check_letters(subscripts: str, letters: str) -> None:
    """Raises `StepError` for subscripts of np.einsum with other characters than letters."""
    if "..." in letters:
        raise refuse(f"np.einsum of {subscripts!r} in a step names every axis: write letters for the ...")
    if wrong := sorted(set(letters) - set(ascii_letters) - {","}):
        raise refuse(f"np.einsum: {subscripts!r} has {wrong[0]!r}, which is no letter")


def implied(inputs: str) -> str:
    """Returns np.einsum's output if none is written: the letters that occur once, in alphabetical order."""
    counts = Counter(inputs.replace(",", ""))
    return "".join(sorted(letter for letter, count in counts.items() if count == 1))


def terms_of(terms_text: Sequence[str], operands: Sequence[Any]) -> list[Operand]:
    """Makes the operands of np.einsum with their letters, cast to a common dtype; raises `StepError` if
    letters and axes do not fit. terms_text: for each operand the letters of its axes, that of the rows first.
    """
    builder = builder_of(operands)
    strong = [
        operand if isinstance(operand, Traced) else array_of(operand, "an operand") for operand in operands
    ]
    values = [Traced(builder, lifted(builder, operand, strong)) for operand in strong]
    dtype = np.result_type(*(value.dtype for value in values))
    terms: list[Operand] = []
    for value, letters in zip(values, terms_text, strict=True):
        if len(letters) != value.ndim:
            raise refuse(f"np.einsum: {letters!r} has {len(letters)} axes, but the operand has {value.ndim}")
        terms.append(Operand(value.astype(dtype), letters))
    check_rows(terms)
    check_sizes(terms)
    return terms


def check_rows(terms: Sequence[Operand]) -> None:
    """Raises `StepError` unless all operands of an einsum that have a value per row (the first axis) have the
    same first letter, and no feature axis has it.
    """
    rows = sorted({term.letters[0] for term in terms if not term.value.is_constant})
    if len(rows) > 1:
        raise refuse(
            f"the rows have the letters {' and '.join(rows)}, which pairs all rows with all; give them the "
            "same first letter"
        )
    if rows and any(rows[0] in term.features for term in terms):
        raise refuse(
            f"the letter {rows[0]} of the rows is also one of features or of a parameter, which mixes rows"
        )


def check_sizes(terms: Sequence[Operand]) -> None:
    """Raises `StepError` for a letter that has two sizes in the operands, neither of them 1."""
    sizes: dict[str, int] = {}
    for term in terms:
        for letter, size in zip(term.features, term.value.type.shape, strict=True):
            known = sizes.get(letter, 1)
            if size != known and 1 not in (size, known):
                raise refuse(
                    f"np.einsum: the axis {letter} has size {known} in one operand and size {size} in another"
                )
            sizes[letter] = size if known == 1 else known


def check_output(call: str, terms: Sequence[Operand], output: str) -> None:
    """Raises `StepError` unless the output of an einsum in a step begins with the rows (the sequences of the
    batch), and has letters of operands, each once.

    call: the subscripts or the function, for the message. output: the letters of the result.
    """
    rows = "".join({term.letters[0] for term in terms if not term.value.is_constant})
    if rows not in output:
        raise refuse(
            f"{call!r} sums over the rows ({rows}), which mixes them: every row is a sequence of its own; "
            f"begin the output with them: ->{rows}..."
        )
    if not output.startswith(rows):
        raise refuse(f"{call!r} moves the rows ({rows}); begin the output with them: ->{rows}...")
    known = {letter for term in terms for letter in term.letters}
    if len(set(output)) < len(output) or not set(output) <= known:
        raise refuse(
            f"np.einsum: the output {output!r} must consist of letters of the operands, each at most once"
        )


# ---- products and sums -------------------------------------------------------------------------------------


def combined(terms: Sequence[Operand], output: str) -> Traced:
    """Multiplies np.einsum's operands from left to right. A letter (axis) that the output lacks is summed
    over as soon as no later operand has it.
    """
    labelled = [diagonal(term) for term in terms]
    sizes = common_sizes(labelled)
    labelled = [without_ones(operand, sizes) for operand in labelled]
    needed_letters = [
        output + "".join(operand.letters for operand in labelled[index:])
        for index in range(1, len(terms) + 1)
    ]
    product = labelled[0]
    for other, needed in zip(labelled[1:], needed_letters[1:], strict=True):
        product = contracted(product, other, needed)
    rows = next((term.letters[0] for term in terms if not term.value.is_constant), "")
    return product.summed(output).with_axes(output.removeprefix(rows))


def diagonal(term: Operand) -> Labelled:
    """Takes the diagonal over axes with the same letter, as of "ii", so that each letter occurs once. Raises
    `StepError` for such axes of different sizes.
    """
    value, letters = term.value, term.features
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            size, other = value.type.shape[first], value.type.shape[second]
            if size != other:
                raise refuse(
                    f"np.einsum: the axes {letter} of one operand have different sizes, {size} and {other}"
                )
            rest = [index for index in range(len(letters)) if index not in (first, second)]
            needed_letters = tuple(value.type.shape[index] for index in rest)
            value = reshaped(transposed(value, (*rest, first, second)), (*needed_letters, size * size))
            value = apply("take", value, axis=-1, indices=tuple(range(0, size * size, size + 1)))
            letters = "".join(letters[index] for index in rest) + letter
    return Labelled(value, letters)
