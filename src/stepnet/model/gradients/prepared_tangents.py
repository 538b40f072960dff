"""Prepared tangents: a call of `jvp` as one net, prepared once for all calls of one form.

x, h0, dx, dh0, dW   ->   y, h, dy, dh
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.targets import Order, Results
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves_as, rebuild
from stepnet.model.gradients import prepared_gradients
from stepnet.model.gradients.arguments import CallArguments
from stepnet.model.program import NetProgram, Program
from stepnet.model.programs import Executable, memory_of
from stepnet.ragged import Ragged

Array = np.ndarray


class Moved(NamedTuple):
    """The tangent of one array of an argument, as a prepared net takes it.

    place: the position of the array among the inputs of the net without tangents.
    given: the shape in which the caller gives the tangent; None for a Ragged of the lengths of the inputs.
    shape, dtype: its shape in the net, and its dtype.
    """

    place: int
    given: prepared_gradients.Shape | None
    shape: prepared_gradients.Shape
    dtype: np.dtype[Any]

    def array(self, leaf: Any, sequences: Any) -> Array | None:
        """Returns the tangent `leaf` of a call for the net; None if it needs a check or a conversion."""
        return prepared_gradients.array_in_net(leaf, sequences, self.given, self.shape, self.dtype)


class KindOfTangent(NamedTuple):
    """The tangents of one kind of argument, such as "params".

    name, structure: the kind, and the structure of the argument.
    moved: for each of its arrays, how a tangent is taken; None for an array that is given none.
    """

    name: str
    structure: Any
    moved: list[Moved | None]


def kinds_of(
    arguments: CallArguments, given: Mapping[str, Any], moved: Mapping[int, Array]
) -> tuple[KindOfTangent, ...]:
    """Describes the tangents of a call, so that later calls take theirs without checks.

    arguments: the arguments of the call. given: the tangents of each kind of argument, as the caller has
    them. moved: the tangents in the shapes of the net, by the position of the input that each belongs to.
    """

    def of_array(place: int, leaf: Any) -> Moved | None:
        """Describes the tangent of one array; None if it is given none."""
        if leaf is None:
            return None
        array = moved[place]
        shape = None if isinstance(leaf, Ragged) else np.shape(leaf)
        return Moved(place, shape, array.shape, array.dtype)

    kinds = list[KindOfTangent]()
    for name, value in given.items():
        structure, places = arguments.structures[name], arguments.places[name]
        tangents = zip(places, leaves_as(value, structure) or (), strict=True)
        kinds.append(KindOfTangent(name, structure, [of_array(*pair) for pair in tangents]))
    return tuple(kinds)


@dataclass(frozen=True)
class TangentExecutable(Executable[Program]):
    """The results of a model and their tangents, prepared for calls of one form (key).

    inputs: the arrays of the inputs of the model's net. The tangents follow them.
    net: the net of the results and their tangents.
    kinds: the tangents that a call gives, by kind of argument.
    floats: for each result of the model's net, whether it has a tangent.
    """

    inputs: prepared_gradients.CallInputs
    net: prepared_gradients.PreparedNet
    kinds: tuple[KindOfTangent, ...]
    floats: tuple[bool, ...]

    @classmethod
    def of(
        cls,
        arguments: CallArguments,
        program: NetProgram,
        kinds: tuple[KindOfTangent, ...],
        moved: Sequence[Array],
        engine: Order,
        changes: bool,
    ) -> "TangentExecutable | None":
        """Prepares the tangents for later calls of one form (key); returns None if they cannot be prepared.

        arguments: the checked arguments of a call of the form.
        program: the net of the results and their tangents.
        kinds, moved: the kinds of arguments whose tangents these calls give, and the tangents of this call,
            the last inputs of the net.
        engine: the engines in order of preference.
        changes: whether these calls pass `params`, which may differ each time; else the model's are used.
        """
        own, inputs = arguments.reading.program, prepared_gradients.CallInputs.of(arguments)
        rows = arguments.call.positions.rows
        memory, outputs = memory_of(own, rows), prepared_gradients.shapes_of(own, arguments.batch, rows)
        zeros = [np.zeros(shape, dtype) for shape, dtype in memory]
        arrays = [*inputs.arrays(arguments.batch.arrays[0], zeros), *moved]
        changes = changes or any(kind.name == "params" for kind in kinds)
        net = prepared_gradients.PreparedNet.of(
            program, arrays, range(len(arrays)), arguments.call, engine, changes
        )
        if net is None:
            return None
        types = [own.net.type_of(number) for number in own.net.results]
        floats = tuple(type_.is_float for type_ in types)
        return cls(own, memory, outputs, inputs, net, kinds, floats)

    @cached_property
    def is_split(self) -> bool:
        """True: the results are in the order of the net, outputs and then the memories."""
        return True

    @property
    def bytes(self) -> int:
        """The number of bytes that the prepared net holds between calls."""
        return self.net.bytes + super().bytes

    def __call__(
        self, sequences: Any, tangents: Mapping[str, Any], initial: Any, params: Any
    ) -> tuple[tuple[Any, Any], tuple[Any, Any]] | None:
        """Runs the net; returns (outputs, final memories) and their tangents, or None if an argument needs a
        check or a conversion.
        """
        arrays = prepared_gradients.arrays_for(self, self.inputs, sequences, initial, params)
        moved = None if arrays is None else self.moved(sequences, tangents)
        if arrays is None or moved is None:
            return None
        made = self.net([*arrays, *moved])
        outputs, end = len(self.outputs), len(self.floats)
        slopes = iter(made[end:])
        tangent = [next(slopes) if is_float else None for is_float in self.floats]
        pairs = zip(tangent, self.outputs, strict=False)
        shaped = [None if array is None else self.like(sequences, array, shape) for array, shape in pairs]
        final = rebuild(self.program.memory, tangent[outputs:])
        own = self.answer(Results(made[:outputs], made[outputs:end]), sequences)
        return own, (rebuild(self.program.output, shaped), final)

    def moved(self, sequences: Any, tangents: Mapping[str, Any]) -> list[Array] | None:
        """Lists the tangents of a call in the order of the net's inputs; None if one needs a check or a
        conversion, or if other arrays have tangents than in the calls that were prepared.
        """
        by_place: dict[int, Array] = {}
        for kind in self.kinds:
            parts = leaves_as(tangents[kind.name], kind.structure)
            if parts is None:
                return None
            for leaf, moved in zip(parts, kind.moved, strict=True):
                if moved is None and leaf is None:
                    continue
                array = None if moved is None or leaf is None else moved.array(leaf, sequences)
                if moved is None or array is None:
                    return None
                by_place[moved.place] = array
        return [by_place[place] for place in sorted(by_place)]
