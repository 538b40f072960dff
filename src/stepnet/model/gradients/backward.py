"""Backward pass of one run: checks the cotangents of its results and computes the gradients."""

from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves_as, named_leaves, skeleton
from stepnet.errors import InputError
from stepnet.model.batch import checked_array
from stepnet.model.gradients.arguments import CallArguments, Gradients
from stepnet.model.gradients.runs import GradientRun, Halved
from stepnet.ragged import Ragged

Array = np.ndarray


@dataclass(frozen=True)
class Backward:
    """A function from the cotangents of one run's results to its gradients; it can be called several times.

    arguments: the checked arguments of the run.
    kinds: the arguments to differentiate, such as "params".
    places: the positions of these among the inputs of the net.
    run: the forward and backward programs, which is in halves, pieces or blocks of steps.
    engine: the engines in order of preference.
    made: the results of the net.
    saved: the values that were saved for the backward pass.
    """

    arguments: CallArguments
    kinds: tuple[str, ...]
    places: list[int]
    run: GradientRun
    engine: Order
    made: list[Array]
    saved: list[Array]

    @property
    def results(self) -> Any:
        """The forward results as a call returns them: outputs and final memories, or a graph's outputs."""
        return self.both if self.arguments.gives_final else self.both[0]

    @property
    def both(self) -> tuple[Any, Any]:
        """The forward outputs and final memories, in the structures of a call and of its cotangents."""
        count = len(self.arguments.reading.program.levels)
        return self.arguments.outputs(self.made), self.arguments.reading.program.final(self.made[count:])

    def __call__(self, outputs: Any = None, final: Any = None) -> Gradients:
        """Computes the gradients for cotangents of the outputs and final memories, in their structures.

        None stands for zeros, as a whole or at a leaf. Cotangents of integers are not read. Raises
        `InputError` for cotangents of another shape.
        """
        if final is not None and not self.arguments.gives_final:
            raise InputError("a graph gives no last memories: only its outputs have cotangents")
        pairs = zip(("outputs", "final"), (outputs, final), self.both, strict=True)
        program = self.arguments.reading.program
        axes = (*program.axes, *[""] * (len(self.made) - len(program.axes)))
        flat_cotangents = [
            cotangent for what, value, like in pairs for cotangent in cotangents(what, value, like)
        ]
        types = [self.arguments.net.type_of(number) for number in self.arguments.net.results]
        batch = self.arguments.batch
        arrays = [
            (np.zeros_like(flat) if cotangent is None else batch.of_output(cotangent, axis)).astype(
                type_.computed.dtype
            )
            for cotangent, flat, type_, axis in zip(flat_cotangents, self.made, types, axes, strict=True)
            if type_.is_float
        ]
        results = self.run.backward(
            self.arguments.arrays, arrays, self.saved, self.arguments.call, self.engine
        )
        return self.arguments.gradients(self.kinds, self.places, results)


@dataclass(frozen=True)
class GradientLayout:
    """The data that all calls of one form (cache key) share, without the workspaces of a prepared call.

    arguments: the arguments of one of the calls, without its arrays.
    kinds, places: the kinds of arguments to differentiate, and the positions of these among the net's inputs.
    run: the programs of the forward and the backward half.
    engine: the engines in order of preference.
    """

    arguments: CallArguments
    kinds: tuple[str, ...]
    places: list[int]
    run: Halved
    engine: Order

    @classmethod
    def of(
        cls, arguments: CallArguments, kinds: tuple[str, ...], places: list[int], run: Halved, engine: Order
    ) -> "GradientLayout":
        """Makes the data that later gradient calls of the same form (cache key) share, so that they are not
        computed again: the arguments of this call without their arrays, and all that is given here.

        kinds, places: the kinds of arguments to differentiate, and their positions among the net's inputs.
        run: the forward and the backward half of the gradient.
        engine: the engines in order of preference.
        """
        reading = arguments.reading
        batch, call = replace(reading.batch, structure=None, arrays=[]), reading.call.with_arrays([], [])
        without = replace(arguments, arrays=[], reading=replace(reading, batch=batch, call=call))
        return cls(without, kinds, places, run, engine)

    def backward(self, sequences: Any, arrays: list[Any], made: list[Array]) -> Backward:
        """Returns the backward pass of a call, as a function of cotangents that allocates its own arrays.

        It is used where the backward pass that was prepared for such calls is in use by another thread, or no
        longer cached.

        sequences: the sequences of the call.
        arrays, made: the arrays of the inputs of its net, and the results of its forward half.
        """
        reading = self.arguments.reading
        like = sequences if isinstance(sequences, Ragged) else reading.batch.like
        values = [arrays[place] for place in self.arguments.places["inputs"]]
        batch = replace(reading.batch, structure=sequences, arrays=values, like=like)
        arguments = replace(self.arguments, arrays=arrays, reading=replace(reading, batch=batch))
        own, saved = made[: self.run.own], [made[place] for place in self.run.saved]
        return Backward(arguments, self.kinds, self.places, self.run, self.engine, own, saved)


def cotangents(what: str, value: Any, like: Any) -> list[Array | None]:
    """Checks cotangents against the results they belong to; returns an array for each result, None for a
    missing one. Raises `InputError` if structure, kind or shape differ from the results'.

    what: the name of the results in messages.
    value: the cotangents, in the structure of the results; None for none.
    like: the results.
    """
    expected = list(named_leaves(like))
    if value is None:
        return [None] * len(expected)
    parts = leaves_as(value, like)
    if parts is None:
        raise InputError(f"the cotangents of {what} are {skeleton(value)}; {what} are {skeleton(like)}")
    arrays: list[Array | None] = []
    for (name, right), leaf in zip(expected, parts, strict=True):
        title = f"the cotangent of {what} {name}".strip()
        if leaf is None:
            arrays.append(None)
            continue
        arrays.append(array_like(title, leaf, right))
    return arrays


def array_like(title: str, leaf: Any, right: Any, what: str = "result") -> Array:
    """Returns the array of a cotangent or tangent, of a Ragged its values, with the steps in their order.

    title: its name in messages.
    right: the value that it belongs to, whose layout it has. what: the name of this one, such as "result".

    Raises `InputError` for a value of another kind or shape.
    """
    if isinstance(right, Ragged) != isinstance(leaf, Ragged):
        kind = "a Ragged" if isinstance(right, Ragged) else f"an array {list(right.shape)}"
        raise InputError(f"{title} is a {type(leaf).__name__}; it should be {kind}, as the {what} is")
    array = checked_array(leaf.values if isinstance(leaf, Ragged) else leaf, title)
    values = right.values if isinstance(right, Ragged) else right
    if array.shape != values.shape or (
        isinstance(right, Ragged)
        and any(not np.array_equal(a, b) for a, b in zip(leaf.offsets, right.offsets, strict=False))
    ):
        given = leaf if isinstance(leaf, Ragged) else array
        own, wanted = other_length(given, right)
        raise InputError(f"{title} is {shape_text(given)}{own}; it should be {shape_text(right)}{wanted}")
    return array


def other_length(given: Any, right: Any) -> tuple[str, str]:
    """Returns texts for messages that name the first sequence whose length differs between two Raggeds of
    equally many sequences: its length in the one and in the other. Empty texts for other values.
    """
    if not (isinstance(given, Ragged) and isinstance(right, Ragged)):
        return "", ""
    for level, (own, wanted) in enumerate(zip(given.offsets, right.offsets, strict=False)):
        if len(own) != len(wanted):
            break
        lengths = np.diff(own), np.diff(wanted)
        differ = np.flatnonzero(lengths[0] != lengths[1])
        if len(differ):
            name = f"{'inner ' if level else ''}sequence {differ[0]}"
            own, wanted = (f", in which {name} has length {each[differ[0]]}" for each in lengths)
            return own, wanted
    return "", ""


def shape_text(value: Any) -> str:
    """Returns the shape of an array, or the description of a Ragged, for messages."""
    return str(value) if isinstance(value, Ragged) else str(list(value.shape))
