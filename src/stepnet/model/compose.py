"""Recurrences combined: two directions side by side, and one layer on top of another.

Both are called as an `RNN` is, on a `Ragged` or on an array with or without lengths, and may be nested in
one another. Arguments and results that belong to the parts have one entry per part: `initial`, `statics`
and the final memories of a `Bidirectional` are {"forward": ..., "backward": ...}, those of a `Stack` a
tuple with one entry per layer. None stands for nothing, for the whole or for one part. `mask` and `begun`
are the same for all parts.

Inside a step they run over its inner sequences. There `initial="zeros"` starts all memories from zeros.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, cast

from stepnet.compiler.values.arguments import kind, shown
from stepnet.compiler.values.once import computed_once
from stepnet.errors import InputError, named
from stepnet.explain.layers import explain_layers
from stepnet.model.batch import ZEROS
from stepnet.model.control import Controls
from stepnet.model.layers import LayersRun, scopes_of
from stepnet.model.merge import checked_merge, merged
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN

if TYPE_CHECKING:
    from stepnet.model.streams.layers import Layers, Leaf
    from stepnet.model.streams.stream import Stream


@dataclass(frozen=True)
class Bidirectional:
    """Two recurrences over the same sequences: one from the first step, one from the last.

    With last_only the output merges the last output of each direction: that of the backward one is at the
    first step of a sequence.

    Args:
        forward: An `RNN`, a `Stack`, or a nested layer whose recurrences all run forward.
        backward: The same, all made with reverse=True.
        merge: How the outputs are merged at every step: "concat" (features side by side), "sum", "average",
            "product", or None for the pair (forward, backward).

    Attributes:
        report: What `stepnet.quantize` chose, and the errors on its samples; None for what it has not made.

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

    forward: "Layer"
    backward: "Layer"
    merge: str | None = "concat"
    report: Any = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked_merge(self.merge)
        for name, layer, reverse in (("forward", self.forward, False), ("backward", self.backward, True)):
            for rnn in recurrences(layer, name):
                if rnn.reverse != reverse:
                    raise InputError(
                        f"the {name} direction is made with reverse={reverse}, and {rnn!r} is not"
                    )

    @property
    def layers(self) -> tuple["Layer", "Layer"]:
        """The two directions."""
        return self.forward, self.backward

    def __call__(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, dict[str, Any]]:
        """The merged outputs, and {"forward": final memories, "backward": final memories}.

        The arguments are those of `RNN.__call__`; `initial` and `statics` are {"forward": ..., "backward":
        ...}.
        """
        return self.run(sequences, initial, statics, lengths, last_only, engine, **control)

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> dict[str, Any]:
        """The value of every named variable at every step, of both directions.

        The arguments and errors are those of `RNN.trace_steps`.

        Returns:
            {"forward": ..., "backward": ...}, each as `RNN.trace_steps` returns it.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> def step(x, h, params):
        ...     doubled = 2 * x
        ...     return doubled, h
        >>> both = sn.Bidirectional(sn.RNN(step, memory=()), sn.RNN(step, memory=(), reverse=True))
        >>> both.trace_steps(np.array([[1.0, 2.0]]))["backward"]["doubled"].to_list()
        [array([2., 4.])]
        """
        return scopes_of(self, sequences, initial, statics, lengths, **control)

    def explain(self, engine: Asked = "auto", *, rows: int | None = None, steps: int | None = None) -> str:
        """The plan of each direction as text, and whether the engine runs both in one piece.

        Args:
            engine: An engine, or several in order of preference.
            rows: For a call of so many sequences, how threads share it, as in `RNN.explain`; also whether
                both directions run at the same time.
            steps: The same for sequences of so many steps.

        Returns:
            The text of `RNN.explain` for each direction.
        """
        return explain_layers(self, self.run, engine, (rows, steps))

    # ---- what it is made of, for `layers`

    part_names = "the forward direction", "the backward direction"

    @computed_once
    def run(self) -> LayersRun:
        """Both directions as one net."""
        return LayersRun(self, ends_early(self))

    def by_part(self, value: Any, what: str) -> tuple[Any, ...]:
        """The entry for each direction; raises `InputError` unless there is one for each."""
        if value is None or is_zeros(value):
            return value, value
        if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(DIRECTIONS):
            raise InputError(
                f"{what} of a Bidirectional is {{'forward': ..., 'backward': ...}}, not {shown(value)}"
            )
        return tuple(cast("Mapping[str, Any]", value)[name] for name in DIRECTIONS)

    def together(self, values: list[Any]) -> dict[str, Any]:
        """The values of both directions, as a dict."""
        return dict(zip(DIRECTIONS, values, strict=True))

    def input_of(self, sequences: Any, outputs: list[Any]) -> Any:
        """The input of the next part, given the outputs of the parts before it."""
        return sequences

    def ends_with(self, place: int) -> bool:
        """Whether the last output of a part is one of the whole."""
        return True

    def output_of(self, outputs: list[Any], last_only: bool) -> Any:
        """The output of the whole."""
        forward, backward = outputs
        if self.merge is None:
            return forward, backward
        if not last_only and ends_early(self):
            raise InputError(
                f"outputs of the two directions do not merge by {self.merge!r} at every step: with until= "
                "each direction ends at a step of its own; use last_only=True or merge=None"
            )
        return merged(forward, backward, self.merge, last_only)


@dataclass(frozen=True)
class Stack:
    """Layers on top of each other: the outputs of each layer are the inputs of the next one.

    With last_only the top layer returns its last output alone; the layers below compute all of theirs.

    Args:
        layers: A list of `RNN`s, `Bidirectional`s and `Stack`s, the bottom one first.

    Attributes:
        report: What `stepnet.quantize` chose, and the errors on its samples; None for what it has not made.

    Raises:
        InputError: For no layers, and for what is no layer.

    >>> import numpy as np
    >>> from stepnet import cells
    >>> gru = cells.CELLS["gru"]
    >>> layers = [cells.rnn("gru", gru.parameters(inputs, hidden=4)) for inputs in (3, 4)]
    >>> outputs, final = Stack(layers)(np.ones((2, 5, 3), "float32"), engine="interpret")
    >>> outputs.shape, [h.shape for h in final]
    ((2, 5, 4), [(2, 4), (2, 4)])
    """

    layers: tuple["Layer", ...]
    report: Any = field(default=None, kw_only=True, repr=False, compare=False)

    def __init__(self, layers: Any, *, report: Any = None) -> None:
        if not isinstance(layers, list | tuple | Iterator):
            raise InputError(
                f"layers of a Stack are a list of RNNs, Bidirectionals and Stacks, not {kind(layers)}"
            )
        object.__setattr__(self, "layers", tuple(cast("Iterable[Any]", layers)))
        object.__setattr__(self, "report", report)
        if not self.layers:
            raise InputError("a Stack has at least one layer")
        for place, layer in enumerate(self.layers):
            recurrences(layer, f"layer {place}")

    def __call__(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> tuple[Any, tuple[Any, ...]]:
        """The outputs of the top layer, and a tuple with the final memories of each layer.

        The arguments are those of `RNN.__call__`; `initial` and `statics` are tuples with one entry per
        layer.
        """
        return self.run(sequences, initial, statics, lengths, last_only, engine, **control)

    def stream(
        self,
        rows: int = 1,
        initial: Any = None,
        statics: Any = None,
        engine: Asked = "auto",
        *,
        begun: Any = None,
    ) -> "Stream":
        """A stream through all layers, one step at a time.

        The arguments are those of `RNN.stream`; `initial` and `statics` are tuples with one entry per layer.

        Returns:
            A `Stream`, whose state is a tuple with one entry per layer.

        Raises:
            InputError: For a layer that runs from the last step, and for arguments that do not fit.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> layer = sn.RNN(lambda x, total, p: (total + x, total + x), memory=())
        >>> stream = sn.Stack([layer, layer]).stream(rows=1)
        >>> [float(stream.step(np.array([1.0]))[0]) for _ in range(3)]
        [1.0, 3.0, 6.0]
        """
        from stepnet.model.streams.stream import Stream  # late: not everybody has streams

        return Stream(streamed(self), rows, initial, statics, engine, begun)

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> tuple[Any, ...]:
        """The value of every named variable at every step, of all layers.

        The arguments and errors are those of `RNN.trace_steps`.

        Returns:
            A tuple with one entry per layer, each as `RNN.trace_steps` returns it.

        >>> import numpy as np
        >>> import stepnet as sn
        >>> def step(x, h, params):
        ...     doubled = 2 * x
        ...     return doubled, h
        >>> stack = sn.Stack([sn.RNN(step, memory=()), sn.RNN(step, memory=())])
        >>> stack.trace_steps(np.array([[1.0, 2.0]]))[1]["doubled"].to_list()
        [array([4., 8.])]
        """
        return scopes_of(self, sequences, initial, statics, lengths, **control)

    def explain(self, engine: Asked = "auto", *, rows: int | None = None, steps: int | None = None) -> str:
        """The plan of each layer as text, and which of them the engine runs in one piece.

        Args:
            engine: An engine, or several in order of preference.
            rows: For a call of so many sequences, how threads share it, as in `RNN.explain`; also which
                layers run at the same time, one some steps behind the other.
            steps: The same for sequences of so many steps.

        Returns:
            The text of `RNN.explain` for each layer.
        """
        return explain_layers(self, self.run, engine, (rows, steps))

    # ---- what it is made of, for `layers`

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the layers in messages."""
        return tuple(f"layer {place}" for place in range(len(self.layers)))

    @computed_once
    def run(self) -> LayersRun:
        """All layers as one net."""
        return LayersRun(self, ends_early(self))

    def by_part(self, value: Any, what: str) -> tuple[Any, ...]:
        """The entry for each layer; raises `InputError` unless it is a tuple with one entry per layer."""
        count = len(self.layers)
        if value is None or is_zeros(value):
            return (value,) * count
        if not isinstance(value, tuple | list) or len(cast("list[Any]", value)) != count:
            raise InputError(
                f"{what} of a Stack is a tuple, one entry for each of its {count} layers, not {kind(value)}"
            )
        return tuple(cast("list[Any]", value))

    def together(self, values: list[Any]) -> tuple[Any, ...]:
        """The values of all layers, as a tuple."""
        return tuple(values)

    def input_of(self, sequences: Any, outputs: list[Any]) -> Any:
        """The input of the next layer, given the outputs of the layers below."""
        return outputs[-1] if outputs else sequences

    def ends_with(self, place: int) -> bool:
        """Whether the last output of a layer is the last output of the whole."""
        return place == len(self.layers) - 1

    def output_of(self, outputs: list[Any], last_only: bool) -> Any:
        """The output of the whole."""
        return outputs[-1]


Layer = RNN | Bidirectional | Stack

DIRECTIONS = ("forward", "backward")


def streamed(layer: Layer) -> "Leaf | Layers":
    """What a stream runs of a layer; raises `InputError` for one that begins at the last step."""
    from stepnet.model.streams.layers import Layers, Leaf

    if isinstance(layer, RNN):
        return Leaf.of(layer)
    if isinstance(layer, Bidirectional):
        raise InputError("a Bidirectional begins at a sequence's last step: it has no stream")
    parts: list[Leaf | Layers] = []
    for place, part in enumerate(layer.layers):
        with named(f"layer {place}"):
            parts.append(streamed(part))
    return Layers(layer.by_part, tuple(parts))


def is_zeros(value: Any) -> bool:
    """Whether a value is "zeros": memories that begin at zeros."""
    return isinstance(value, str) and value == ZEROS


def recurrences(layer: Any, what: str) -> list[RNN]:
    """Every recurrence of a layer; raises `InputError` for anything else than a layer."""
    if isinstance(layer, RNN):
        return [layer]
    if isinstance(layer, Bidirectional | Stack):
        return [rnn for part in layer.layers for rnn in recurrences(part, what)]
    raise InputError(f"{what} is an RNN, a Bidirectional or a Stack, not {kind(layer)}")


def ends_early(layer: "Bidirectional | Stack") -> bool:
    """Whether sequences of a layer may end before their last step."""
    return any(rnn.until is not None for rnn in recurrences(layer, "a layer"))
