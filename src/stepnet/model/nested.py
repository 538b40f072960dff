"""Recurrences inside recurrences: a step that calls another `RNN` over an inner level of its input.

    def step(utterances, h, params):                   # of one speaker: at each step an utterance
        _, said = frames(utterances, initial="zeros")  # a recurrence over its frames
        h = np.tanh(said @ params["W"] + h @ params["R"])
        return h, h

    outputs, final = sn.RNN(step, params, memory=16)(speakers)   # a Ragged of two levels

Each call says how the inner memory begins: `initial="zeros"` begins each inner sequence anew, and any value
of the step, such as the outer memory, continues from there.
"""

from typing import Any, cast

import numpy as np

from stepnet.compiler.net.ir import without_unread
from stepnet.compiler.net.meanings import REDUCTIONS
from stepnet.compiler.net.types import CONST, ROWS, STEPS, is_static_extent, whole_axis
from stepnet.compiler.trace.lines import refuse, user_line
from stepnet.compiler.trace.spec import Spec, TracedStep
from stepnet.compiler.trace.traced import Traced, apply, builder_of, lifted, title
from stepnet.compiler.values.arguments import is_one_of, short_repr
from stepnet.compiler.values.dtypes import DTYPES
from stepnet.compiler.values.structure import (
    arranged,
    leaves,
    named_leaves,
    rebuild,
    skeleton,
    titled_leaves,
    transform,
)
from stepnet.model.control import Control
from stepnet.model.declared import Declared
from stepnet.model.initial import ZEROS
from stepnet.model.reading import NO_LAST
from stepnet.model.watch import as_watched

FIXED_ROWS = (
    "; it is of {} sequences, and a call has any number: with PyTorch write torch.zeros(1, x.shape[0], size)"
)
"""Advice for an initial memory that code makes for a fixed number of sequences."""


# ---- inside a step -----------------------------------------------------------------------------------------


def in_step(
    rnn: Declared,
    sequences: Any,
    initial: Any,
    statics: Any,
    last_only: bool,
    mask: Any = None,
    masked: str = "repeat",
) -> tuple[Any, Any]:
    """Adds a recurrence over inner sequences (sequences inside a step) to the traced step around it; returns
    its outputs and final memory.

    Raises `StepError`, with the user's line, for values that are not inner sequences, and where the initial
    memory is not given.

    rnn: the recurrence.
    sequences, initial, statics, last_only, mask, masked: the other arguments of a call of it, as values of
        the step.
    """
    sequences = rnn.as_declared(sequences)
    rnn, output_of = as_watched(rnn)
    builder = builder_of([*leaves(sequences), *leaves(initial), *leaves(statics), *leaves(mask)])

    def here(leaf: Any) -> Any:
        """Returns the value in the net `builder` of a value of an enclosing net; other leaves as is."""
        return Traced(builder, lifted(builder, leaf, ())) if isinstance(leaf, Traced) else leaf

    sequences, initial, statics, mask = (
        transform(here, part) for part in (sequences, initial, statics, mask)
    )
    named = list(titled_leaves(sequences, rnn.arguments[0]))
    for name, leaf in named:
        if not isinstance(leaf, Traced) or len(leaf.type.extent) < 2:
            raise refuse(
                f"input `{name}` of a recurrence inside a step is no sequence there: an inner recurrence "
                "runs over an input of two levels or more"
            )
    inputs = [Spec(leaf.type.shape, leaf.type.dtype, len(leaf.type.extent) - 2) for _, leaf in named]
    statics = transform(still, statics)
    given = transform(static_spec, statics)
    traced = rnn.traced_for(rebuild(sequences, inputs), given).unrounded
    operands, memories = [leaf.number for _, leaf in named], memory_values(builder, initial, traced)
    running, own = traced, len(memories)
    if mask is not None:
        check_mask(mask, named[0][1])
        running = Control(masked).around(rnn.step, traced).unrounded
        operands.append(mask.number)
        memories += [zeros_of(builder, spec) for spec in leaves(running.memory)[own:]]
    operands += [value.number for value in memories]
    operands += [leaf.number for leaf in leaves(statics)]
    title = getattr(rnn.step, "__name__", type(rnn.step).__name__)
    operands += [
        lifted(builder, value, ())
        if isinstance(value, Traced)
        else builder.constant(value, f"{title}.{name}".rstrip("."))
        for name, value in named_leaves(rnn.params)
    ]
    recur, operands = without_unread(running.recur(rnn.reverse, rnn.unroll), operands)
    gives = recur.add_results(builder, operands, user_line())
    outputs = output_of(rebuild(running.output, [Traced(builder, number) for number in gives.outputs]))
    if last_only:
        if any(len(running.body.type_of(number).extent) > 1 for number in running.body.results):
            raise refuse(NO_LAST)
        outputs = transform(lambda output: reduce(output, "first" if rnn.reverse else "last"), outputs)
    return outputs, rebuild(traced.memory, [Traced(builder, number) for number in gives.memories[:own]])


def check_mask(mask: Any, like: Traced) -> None:
    """Raises `StepError` unless a mask is a bool at each step of the inner sequences `like`."""
    if not isinstance(mask, Traced) or mask.type.element != "bool[]" or mask.type.extent != like.type.extent:
        raise refuse(
            "the mask of a recurrence inside a step is a value of the step: a bool at each step of its inner "
            "sequences"
        )


def still(leaf: Any) -> Traced:
    """Returns a static of an inner recurrence: one entry per row, or in a model a sequence of each row, which
    each step of the recurrence reads whole. Raises `StepError` for others.

    leaf: a value of the step or model around it.
    """
    extent = leaf.type.extent if isinstance(leaf, Traced) else CONST
    if extent == ROWS:
        return leaf
    if not is_sequence(leaf):
        raise refuse(
            "a static of a recurrence inside a step is a value of the step, one per row; in a model it may "
            "also be a sequence"
        )
    if is_static_extent(extent):
        return leaf
    return apply("arrange", leaf, steps=whole_axis(extent[-1]), reverse=False)


def is_sequence(leaf: Any) -> bool:
    """Returns whether a value is a flat sequence for each row of a model that is being traced."""
    return isinstance(leaf, Traced) and leaf.builder.is_model and len(leaf.type.extent) == len(STEPS)


def static_spec(value: Traced) -> Spec:
    """Returns the `Spec` (features, dtype, axis) of a static of a recurrence, a value of the model around."""
    extent = value.type.extent
    return Spec(value.type.shape, value.type.dtype, axis=extent[-1] if is_static_extent(extent) else "")


def memory_values(builder: Any, initial: Any, traced: TracedStep) -> list[Traced]:
    """Returns the initial memories of an inner recurrence (one inside the step of another), as values of the
    step that is being traced.

    builder: the builder of the step or model.
    initial: "zeros", or values in the structure of the memory; in a model also None, for zeros. Raises
        `StepError` for others.
    traced: the step of the inner recurrence.
    """
    argument = traced.arguments[1]
    expected = list(titled_leaves(traced.memory, argument))
    if initial is None and builder.is_model:
        initial = ZEROS
    if initial is None:
        raise refuse(
            "a recurrence inside a step says how its memory begins: initial='zeros' anew for each inner "
            "sequence, or a value of the step to continue from"
        )
    if isinstance(initial, str):
        if initial != ZEROS:
            raise refuse(f"initial is 'zeros' or values of the step, not {initial!r}")
        return [zeros_of(builder, spec) for _, spec in expected]
    initial = arranged(initial, traced.memory)
    if skeleton(initial) != skeleton(traced.memory):
        raise refuse(f"initial is {skeleton(initial)}, the memory `{argument}` is {skeleton(traced.memory)}")
    values: list[Traced] = []
    for (name, spec), leaf in zip(expected, leaves(initial), strict=True):
        what = f"the initial memory `{name}`"
        if builder.is_model and isinstance(leaf, np.ndarray | np.number):
            leaf = Traced(builder, builder.constant(np.asarray(cast(Any, leaf))))
        if not isinstance(leaf, Traced) or leaf.type.extent not in (ROWS, CONST):
            raise refuse(
                f"{what} of a recurrence inside a step is a value of the step, one per row; zeros are "
                "initial='zeros', or np.zeros_like(value) beside other values"
            )
        if (leaf.type.shape, leaf.type.dtype) != (spec.shape, spec.dtype):
            shape = leaf.type.shape
            fixed = shape[1:] == spec.shape != shape
            advice = FIXED_ROWS.format(shape[0]) if fixed else ""
            raise refuse(
                f"{what} is {leaf.type.element}; it should be {DTYPES[spec.dtype].text}{list(spec.shape)}"
                f"{advice}"
            )
        values.append(apply("expand", leaf, extent=ROWS) if leaf.type.extent == CONST else leaf)
    return values


def zeros_of(builder: Any, spec: Spec) -> Traced:
    """Returns zeros of these features and dtype for each row of the net `builder`."""
    number = builder.constant(np.zeros(spec.shape, spec.dtype))
    return Traced(builder, builder.add("expand", number, extent=ROWS))


def reduce(sequence: Any, how: str) -> Traced:
    """Combines the steps of each inner sequence to one value per row; zeros where a sequence is empty.

    The dtype is the one that NumPy gives: the mean of integers is float64.

    Args:
        sequence: An inner sequence: an input of a step over two or more levels, a static that is a `Ragged`,
            or a value computed from one. Each step of it has any features.
        how: "sum", "mean", "max", "first" or "last", over the steps of each sequence.

    Raises:
        StepError: For a value that is no inner sequence, and for another `how`.

    >>> import stepnet as sn
    >>> def step(words, h, params):
    ...     h = h + sn.reduce(words, "max")
    ...     return h, h
    >>> documents = sn.Ragged.from_list([[np.array([1.0, 3.0]), np.array([2.0])], [np.zeros(0)]])
    >>> sn.RNN(step, memory=())(documents)[1]
    array([5., 0.])
    """
    if not isinstance(sequence, Traced) or len(sequence.type.extent) < 2:
        raise refuse("reduce takes inner sequences: values of a step that are sequences there")
    if not is_one_of(how, REDUCTIONS):
        raise refuse(f"how is one of {', '.join(REDUCTIONS)}, not {short_repr(how)}")
    wanted = REDUCTIONS[how](np.zeros((1, 1), sequence.dtype)).dtype
    return apply("reduce", sequence.astype(wanted), how=how)


def softmax_over_steps(scores: Any) -> Traced:
    """Returns the softmax of scores over the steps of each inner sequence: positive weights that sum to one.

    An empty sequence has no weights, so a sum weighted by them is zero.

    Args:
        scores: An inner sequence of scores; see `reduce`. With features, each feature has weights of its own.

    Raises:
        StepError: For a value that is no inner sequence.

    >>> import stepnet as sn
    >>> def step(query, h, params, statics):
    ...     weights = sn.softmax_over_steps(np.sum(statics * sn.expand(query, statics), axis=-1))
    ...     h = h + sn.reduce(statics * weights[:, None], "sum")
    ...     return h, h
    >>> keys = sn.Ragged.from_list([np.eye(2), np.zeros((0, 2))])
    >>> outputs, _ = sn.RNN(step, memory=2)(np.array([[[np.log(3), 0]], [[0, 0]]]), statics=keys)
    >>> outputs.round(2).tolist()
    [[[0.75, 0.25]], [[0.0, 0.0]]]
    """
    if not isinstance(scores, Traced) or len(scores.type.extent) < 2:
        raise refuse(
            "softmax_over_steps takes scores of sequences: values of a step that are sequences there"
        )
    grown = np.exp(scores - expand(reduce(scores, "max"), scores))
    return grown / expand(reduce(grown, "sum"), scores)


def expand(value: Any, like: Any) -> Traced:
    """Repeats a value of a step at every step of its row's inner sequence.

    Args:
        value: A value of the step, [rows, features...].
        like: The inner sequence that says how often each row is repeated.

    Raises:
        StepError: For arguments that are no values of a step, and for two values with an entry per row.

    >>> import stepnet as sn
    >>> def step(words, h, params):
    ...     h = sn.reduce(words * sn.expand(h, words), "sum")
    ...     return h, h
    >>> documents = sn.Ragged.from_list([[np.array([1.0, 3.0]), np.array([2.0])]])
    >>> sn.RNN(step, memory=())(documents, initial=np.array([10.0]))[0].to_list()
    [array([40., 80.])]
    """
    if not isinstance(value, Traced) or not isinstance(like, Traced):
        raise refuse(
            "expand takes a value of a step, and inner sequences that say how often it is repeated; statics "
            "that are sequences are given in the call, as statics=keys"
        )
    builder = builder_of((value, like))
    value, like = (Traced(builder, lifted(builder, operand, ())) for operand in (value, like))
    same = value.type.extent == like.type.extent
    if same and len(like.type.extent) < 2:
        raise refuse(
            f"expand repeats a value along an inner sequence, and {title(like)} {like.type.element} is none: "
            "sequences of a static are given as a Ragged"
        )
    return value if same else apply("expand", value, extent=like.type.extent)
