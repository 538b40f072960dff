"""Recurrences combined: two directions side by side, and one layer on top of another.

Both are called as an `RNN` is, on a `Ragged` or on an array with or without lengths, and may be nested in
one another. Arguments and results that belong to the parts have one entry per part: `initial`, `statics`
and the final memories of a `Bidirectional` are {"forward": ..., "backward": ...}, those of a `Stack` a
tuple with one entry per layer. None stands for nothing, for the whole or for one part. `mask` and `begun`
are the same for all parts.

Inside a step they run over its inner sequences. There `initial="zeros"` starts all memories from zeros.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from stepnet.compiler.targets import Order
from stepnet.compiler.values.arguments import kind, short_repr
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import transform
from stepnet.errors import InputError, named
from stepnet.model.combination import Combination
from stepnet.model.initial import is_zeros
from stepnet.model.layers import Combined, Layer, LayerPrograms, recurrences_of
from stepnet.model.merge import checked_merge, merged
from stepnet.model.recurrence import RNN
from stepnet.model.specs import no_sequences

if TYPE_CHECKING:
    from stepnet.model.program import StepProgram
    from stepnet.model.streams.layers import Layers, StreamedRecurrence


@dataclass(frozen=True, repr=False)
class Bidirectional(Combination):
    """Two recurrences over the same sequences: one from the first step, one from the last.

    With last_only the output merges the last output of each direction. The backward direction computes its
    last output at the first step of a sequence.

    Args:
        forward: An `RNN`, a `Stack`, or a nested layer whose recurrences all run forward.
        backward: A layer of these kinds whose recurrences all run backward (reverse=True).
        merge: How the outputs are merged at every step: "concat" (features side by side), "sum", "average",
            "product", or None for the pair (forward, backward).

    Attributes:
        report: The choices of `stepnet.quantize`, and the errors on its samples; None where it made none.

    Raises:
        InputError: For a direction that runs the other way, and for another `merge`.

    >>> import numpy as np
    >>> from stepnet import cells
    >>> params = cells.CELLS["gru"].parameters(inputs=3, hidden=4)
    >>> both = Bidirectional(cells.rnn("gru", params), cells.rnn("gru", params, reverse=True))
    >>> both
    Bidirectional(forward=RNN(gru, ...), backward=RNN(gru, ..., reverse=True), merge='concat')
    >>> outputs, final = both(np.ones((2, 5, 3), "float32"))
    >>> outputs.shape, final["backward"].shape
    ((2, 5, 8), (2, 4))
    """

    noun: ClassVar[str] = "bidirectional layer"
    forward: "Layer"
    backward: "Layer"
    merge: str | None = "concat"
    report: Any = field(default=None, kw_only=True, compare=False)
    layers: tuple[RNN | Combined, ...] = field(init=False, compare=False)
    programs: LayerPrograms[Combined] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Checks the arguments; raises `InputError` for a layer that runs in the other direction."""
        checked_merge(self.merge)
        object.__setattr__(self, "layers", (self.forward, self.backward))
        object.__setattr__(self, "programs", LayerPrograms(self))
        for name, layer, reverse in (("forward", self.forward, False), ("backward", self.backward, True)):
            for rnn in recurrences(layer, name):
                if rnn.reverse != reverse:
                    raise InputError(
                        f"the {name} direction is made with reverse={reverse}, and {rnn!r} is not"
                    )

    def for_stream(self, engine: Order) -> "StreamedRecurrence | Layers":
        """Raises `InputError`: a stream has no last step, at which the backward direction would begin."""
        raise InputError(
            "a Bidirectional begins at a sequence's last step: it has no stream; its direction `forward` has"
        )

    # ---- parts

    @property
    def described(self) -> list[str]:
        """Both directions, and how their outputs are merged."""
        return [f"forward={self.forward!r}", f"backward={self.backward!r}", f"merge={self.merge!r}"]

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the directions in error messages."""
        return "the forward direction", "the backward direction"

    def with_layers(self, layers: Sequence[RNN | Combined], report: Any = None) -> Self:
        """Returns a copy with other directions, and with the report of a quantization."""
        made = replace(self, forward=layers[0], backward=layers[1], report=report)
        return made.on_engine(self.default_engine)

    def by_part(self, value: Any, what: str) -> tuple[Any, ...]:
        """Splits an argument {"forward": ..., "backward": ...} by direction; raises `InputError` for others.

        None and "zeros" stand for both directions.

        what: the name of the argument in messages.
        """
        if value is None or is_zeros(value):
            return value, value
        if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(DIRECTIONS):
            raise InputError(
                f"{what} of a Bidirectional is {{'forward': ..., 'backward': ...}}, not {short_repr(value)}"
            )
        return tuple(cast("Mapping[str, Any]", value)[name] for name in DIRECTIONS)

    def joined(self, values: list[Any]) -> dict[str, Any]:
        """Joins values of the two directions, such as parameters, into {"forward": ..., "backward": ...}."""
        return dict(zip(DIRECTIONS, values, strict=True))

    def input_of(self, sequences: Any, outputs: list[Any]) -> Any:
        """Returns the sequences of the call, which both directions read; the outputs so far are ignored."""
        return sequences

    def ends_with(self, place: int) -> bool:
        """Returns True: a call for last outputs needs only the last outputs of each direction (of a `Stack`,
        only the top layer's). place: the position of the direction, which has no effect.
        """
        return True

    def output_of(self, outputs: list[Any], last_only: bool) -> Any:
        """Merges the outputs of both directions; raises `InputError` if these end at different steps.

        outputs: the outputs of the forward and of the backward direction.
        last_only: whether they are last outputs, which can be merged wherever they end.
        """
        forward, backward = outputs
        if self.merge is None:
            return forward, backward
        if not last_only and self.ends_early:
            raise InputError(
                f"outputs of the two directions do not merge by {self.merge!r} at every step: with until= "
                "each direction ends at a step of its own; use last_only=True or merge=None"
            )
        return merged(forward, backward, self.merge, last_only)


@dataclass(frozen=True, repr=False)
class Stack(Combination):
    """Layers on top of each other: the outputs of each layer are the inputs of the next one.

    With last_only the top layer returns its last output alone; the layers below compute all of theirs.

    Args:
        layers: A list of `RNN`s, `Bidirectional`s and `Stack`s, the bottom one first.

    Attributes:
        report: The choices of `stepnet.quantize`, and the errors on its samples; None where it made none.

    Raises:
        InputError: For no layers, and for an object that is no layer.

    >>> import numpy as np
    >>> from stepnet import cells
    >>> gru = cells.CELLS["gru"]
    >>> layers = [cells.rnn("gru", gru.parameters(inputs, hidden=4)) for inputs in (3, 4)]
    >>> outputs, final = Stack(layers)(np.ones((2, 5, 3), "float32"), engine="interpret")
    >>> outputs.shape, [h.shape for h in final]
    ((2, 5, 4), [(2, 4), (2, 4)])
    """

    noun: ClassVar[str] = "stack"
    layers: tuple[RNN | Combined, ...]
    report: Any = field(default=None, kw_only=True, compare=False)
    programs: LayerPrograms[Combined] = field(init=False, compare=False)

    def __init__(self, layers: Any, *others: Any, report: Any = None) -> None:
        """Checks the layers; raises `InputError` for none, for a value that is not a layer, and for layers
        that are not in a list.

        report: the report of `stepnet.quantize`; None for layers that it did not make.
        """
        if others or not isinstance(layers, list | tuple | Iterator):
            raise InputError(
                f"layers of a Stack are a list of RNNs, Bidirectionals and Stacks, not {kind(layers)}; "
                "write Stack([first, second])"
            )
        object.__setattr__(self, "layers", tuple(cast("Iterable[Any]", layers)))
        object.__setattr__(self, "report", report)
        object.__setattr__(self, "programs", LayerPrograms(self))
        if not self.layers:
            raise InputError("a Stack has at least one layer")
        for place, layer in enumerate(self.layers):
            recurrences(layer, f"layer {place}")

    def for_stream(self, engine: Order) -> "StreamedRecurrence | Layers":
        """Returns the recurrences that a stream of the layers runs; raises `InputError` if a layer has no
        stream.

        engine: the engines in order of preference.
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.streams.layers import Layers

        parts: list[StreamedRecurrence | Layers] = []
        for name, part in zip(self.part_names, self.layers, strict=True):
            with named(name):
                parts.append(part.for_stream(engine))
        return Layers(self.by_part, tuple(parts), lambda inputs: self.one_step(inputs, engine))

    def one_step(self, inputs: Any, engine: Order) -> "StepProgram | None":
        """Returns the program of one step of all layers, to run them in a stream without Python between
        layers.

        It is made once. Returns None for layers that do not run as one step with the bits of a call.

        inputs: the `Spec`s (features and dtypes) of the inputs.
        engine: the engines in order of preference.
        """
        with IMPORTS:  # late: few processes have streams
            from stepnet.model.streams.composed import composed_layers

        if any(rnn.precision is not None for rnn in recurrences_of(self)):
            return None
        nothing = transform(no_sequences, inputs)
        program = self.programs.read(nothing, None, None, None, False).program
        if engine not in program.steps:
            program.steps[engine] = composed_layers(program, inputs, engine)
        return program.steps[engine]

    # ---- parts

    @property
    def described(self) -> list[str]:
        """The layers."""
        return [f"layers={self.layers!r}"]

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the layers in error messages."""
        return tuple(f"layer {place}" for place in range(len(self.layers)))

    def with_layers(self, layers: Sequence[RNN | Combined], report: Any = None) -> Self:
        """Returns a stack of other layers, with the report of a quantization."""
        return type(self)(layers, report=report).on_engine(self.default_engine)

    def by_part(self, value: Any, what: str) -> tuple[Any, ...]:
        """Splits an argument, a tuple, by layer; raises `InputError` for other values. None and "zeros" stand
        for all layers.

        what: the name of the argument in messages.
        """
        count = len(self.layers)
        if value is None or is_zeros(value):
            return (value,) * count
        if not isinstance(value, tuple | list) or len(cast("list[Any]", value)) != count:
            raise InputError(
                f"{what} of a Stack is a tuple, one entry for each of its {count} layers, not {kind(value)}"
            )
        return tuple(cast("list[Any]", value))

    def joined(self, values: list[Any]) -> tuple[Any, ...]:
        """Joins values of the layers of a stack, such as their parameters, into a tuple."""
        return tuple(values)

    def input_of(self, sequences: Any, outputs: list[Any]) -> Any:
        """Returns the input of the next layer: the outputs of the layer below, or the call's sequences."""
        return outputs[-1] if outputs else sequences

    def ends_with(self, place: int) -> bool:
        """Returns whether the layer at a position is the top one, whose last output a call may return."""
        return place == len(self.layers) - 1

    def output_of(self, outputs: list[Any], last_only: bool) -> Any:
        """Returns the output of the top layer, the last one; `last_only` has no effect here."""
        return outputs[-1]


DIRECTIONS = ("forward", "backward")


def recurrences(layer: Any, what: str) -> list[RNN]:
    """Lists every recurrence of a layer, in the order they run; raises `InputError` for another type.

    what: the name of the layer in messages.
    """
    if isinstance(layer, RNN):
        return [layer]
    if isinstance(layer, Combined):
        return list(recurrences_of(layer))
    raise InputError(f"{what} is an RNN, a Bidirectional or a Stack, not {kind(layer)}")
