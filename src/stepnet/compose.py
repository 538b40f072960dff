"""Recurrences put together: two directions side by side, and one layer over another.

Both are called as an `RNN` is, on a Ragged or on an array with or without lengths, and nest in one another.
What belongs to the parts is given and comes back by part: `initial`, `statics` and the final memories of a
`Bidirectional` are {"forward": ..., "backward": ...}, those of a `Stack` a tuple with one entry per layer.
None stands for none, of the whole or of a part. A mask, and how many steps were begun, are the same for all.

Inside a step they run over its inner sequences; there `initial="zeros"` says that all memories begin anew.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack, cast

import numpy as np

from stepnet.arguments import choice, flag, kind, shown
from stepnet.batch import ZEROS
from stepnet.control import Controls
from stepnet.errors import InputError, StepnetError
from stepnet.nested import is_traced
from stepnet.prepared import Asked
from stepnet.ragged import Ragged
from stepnet.recurrence import RNN
from stepnet.stream import Stream, Turn, sources
from stepnet.structure import arranged, leaves, rebuild, skeleton

Array = np.ndarray


@dataclass(frozen=True)
class Bidirectional:
    """Two recurrences over the same sequences, from their first and from their last step.

    merge: how their outputs become one at every step: "concat" (features side by side), "sum", "average",
    "product", or None for the pair (forward, backward). Each direction is an `RNN`, or a `Stack` of them,
    made to run its own way: the backward one with reverse=True. With last_only the output merges each
    direction's own last: the backward one's is at a sequence's first step.

    >>> from stepnet import cells
    >>> params = cells.CELLS["gru"].parameters(inputs=3, hidden=4)
    >>> both = Bidirectional(cells.rnn("gru", params), cells.rnn("gru", params, reverse=True))
    >>> both
    Bidirectional(forward=RNN(gru, ...), backward=RNN(gru, ..., reverse=True), merge='concat')
    """

    forward: "Layer"
    backward: "Layer"
    merge: str | None = "concat"

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
        """The merged outputs, and each direction's final memories. See `RNN`."""
        given, still = by_direction(initial, "initial"), by_direction(statics, "statics")
        outputs: list[Any] = []
        final: dict[str, Any] = {}
        for name, layer in zip(DIRECTIONS, self.layers, strict=True):
            with named(f"the {name} direction"):
                output, final[name] = layer(
                    sequences, given[name], still[name], lengths, last_only, engine, **control
                )
            outputs.append(output)
        if self.merge is None:
            return tuple(outputs), final
        return merged(outputs[0], outputs[1], self.merge, last_only), final

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> dict[str, Any]:
        """Every named value of every step, {"forward": ..., "backward": ...}. See `RNN.trace_steps`."""
        given, still = by_direction(initial, "initial"), by_direction(statics, "statics")
        scopes: dict[str, Any] = {}
        for name, layer in zip(DIRECTIONS, self.layers, strict=True):
            with named(f"the {name} direction"):
                scopes[name] = layer.trace_steps(sequences, given[name], still[name], lengths, **control)
        return scopes

    def explain(self, engine: Asked = "auto") -> str:
        """Each direction's plan as text for people. See `RNN.explain`."""
        return explained(
            zip((f"the {name} direction" for name in DIRECTIONS), self.layers, strict=True), engine
        )


@dataclass(frozen=True)
class Stack:
    """Layers over one another: the outputs of each are the next one's inputs.

    layers: `RNN`s, `Bidirectional`s and `Stack`s. With last_only the top layer gives just its last output;
    those below it give all, as it needs them.

    >>> from stepnet import cells
    >>> gru = cells.CELLS["gru"]
    >>> layers = [cells.rnn("gru", gru.parameters(inputs, hidden=4)) for inputs in (3, 4)]
    >>> outputs, final = Stack(layers)(np.ones((2, 5, 3), "float32"), engine="interpret")
    >>> outputs.shape, [h.shape for h in final]
    ((2, 5, 4), [(2, 4), (2, 4)])
    """

    layers: tuple["Layer", ...]

    def __init__(self, layers: Any) -> None:
        if not isinstance(layers, list | tuple | Iterator):
            raise InputError(
                f"layers of a Stack are a list of RNNs, Bidirectionals and Stacks, not {kind(layers)}"
            )
        object.__setattr__(self, "layers", tuple(cast("Iterable[Any]", layers)))
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
        """The last layer's outputs, and each layer's final memories. See `RNN`."""
        given, still = self.by_layer(initial, "initial"), self.by_layer(statics, "statics")
        outputs, top, last_only = sequences, len(self.layers) - 1, flag(last_only, "last_only")
        final: list[Any] = []
        for place, layer in enumerate(self.layers):
            with named(f"layer {place}"):
                alone = last_only and place == top
                outputs, memory = layer(
                    outputs, given[place], still[place], lengths, alone, engine, **control
                )
            final.append(memory)
        return outputs, tuple(final)

    def stream(
        self,
        rows: int = 1,
        initial: Any = None,
        statics: Any = None,
        engine: Asked = "auto",
        *,
        begun: Any = None,
    ) -> "StackStream":
        """A stream through all layers, one step at a time. See `RNN.stream`.

        Raises `InputError` for a layer that runs from the last step.
        """
        given, still = self.by_layer(initial, "initial"), self.by_layer(statics, "statics")
        streams: list[Stream | StackStream] = []
        for place, layer in enumerate(self.layers):
            with named(f"layer {place}"):
                if isinstance(layer, Bidirectional):
                    raise InputError("a Bidirectional begins at a sequence's last step: it has no stream")
                streams.append(layer.stream(rows, given[place], still[place], engine, begun=begun))
        return StackStream(self, tuple(streams))

    def trace_steps(
        self,
        sequences: Any,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        **control: Unpack[Controls],
    ) -> tuple[Any, ...]:
        """Every named value of every step, one entry for each layer. See `RNN.trace_steps`."""
        given, still = self.by_layer(initial, "initial"), self.by_layer(statics, "statics")
        outputs, scopes = sequences, list[Any]()
        for place, layer in enumerate(self.layers):
            with named(f"layer {place}"):
                called: Any = (outputs, given[place], still[place], lengths)
                scopes.append(layer.trace_steps(*called, **control))
                if place + 1 < len(self.layers):
                    outputs, _ = layer(*called, engine="interpret", **control)
        return tuple(scopes)

    def explain(self, engine: Asked = "auto") -> str:
        """Each layer's plan as text for people. See `RNN.explain`."""
        return explained(((f"layer {place}", layer) for place, layer in enumerate(self.layers)), engine)

    def by_layer(self, value: Any, what: str) -> tuple[Any, ...]:
        """What belongs to each layer; raises `InputError` where it is no tuple of so many."""
        count = len(self.layers)
        if value is None or is_zeros(value):
            return (value,) * count
        if not isinstance(value, tuple | list) or len(cast("list[Any]", value)) != count:
            raise InputError(
                f"{what} of a Stack is a tuple, one entry for each of its {count} layers, not {kind(value)}"
            )
        return tuple(cast("list[Any]", value))


@dataclass(frozen=True)
class StackStream:
    """Layers that wait for their next step; see `Stack.stream`, and `Stream` for what is the same.

    >>> from stepnet import cells
    >>> gru = cells.CELLS["gru"]
    >>> stack = Stack([cells.rnn("gru", gru.parameters(inputs, hidden=4)) for inputs in (3, 4)])
    >>> x, stream = np.ones((1, 5, 3), "float32"), stack.stream(rows=1)
    >>> steps = [stream.step(x[:, at]) for at in range(5)]
    >>> bool(np.array_equal(np.stack(steps, axis=1), stack(x)[0]))
    True
    """

    stack: Stack
    streams: tuple["Stream | StackStream", ...]
    turn: Turn = field(default_factory=Turn, repr=False)

    def __post_init__(self) -> None:
        self.share(self.turn)

    def step(self, x: Any) -> Any:
        """The top layer's outputs [rows, features...] of the next step."""
        outputs = self.look(x)
        self.go_on()
        return outputs

    def look(self, x: Any) -> Any:
        """The outputs of the next step, which no layer takes before `go_on` is called."""
        for place, stream in enumerate(self.streams):
            with named(f"layer {place}"):
                x = stream.look(x)
        return x

    def go_on(self) -> None:
        """Takes the step that was looked at, in every layer at once."""
        self.settle()
        self.turn.number += 1

    def settle(self) -> None:
        """Keeps what the first step laid out."""
        for stream in self.streams:
            stream.settle()

    def share(self, turn: Turn) -> None:
        """Steps when others do."""
        object.__setattr__(self, "turn", turn)
        for stream in self.streams:
            stream.share(turn)

    @property
    def state(self) -> tuple[Any, ...]:
        """Each layer's memory as it is now, copies."""
        return tuple(stream.state for stream in self.streams)

    def reset(self, rows: Any = None, initial: Any = None, statics: Any = None) -> None:
        """Begins anew, all rows or some. See `Stream.reset`."""
        given, still = self.stack.by_layer(initial, "initial"), self.stack.by_layer(statics, "statics")
        for place, stream in enumerate(self.streams):
            with named(f"layer {place}"):
                stream.reset(rows, given[place], still[place])

    def reorder(self, rows: Any) -> None:
        """Row i goes on from where row rows[i] stood, in every layer at once. See `Stream.reorder`."""
        self.set_out(sources(rows, self.rows))
        self.turn.number += 1

    def set_out(self, rows: Array) -> None:
        """Sets the rows out in another order, which counts from the next turn on."""
        for stream in self.streams:
            stream.set_out(rows)

    @property
    def rows(self) -> int:
        """How many sequences are stepped side by side."""
        return self.streams[0].rows


Layer = RNN | Bidirectional | Stack

DIRECTIONS = ("forward", "backward")


def by_direction(value: Any, what: str) -> Mapping[str, Any]:
    """What belongs to each direction."""
    if value is None or is_zeros(value):
        return dict.fromkeys(DIRECTIONS, value)
    if not isinstance(value, Mapping) or set(cast("Mapping[str, Any]", value)) != set(DIRECTIONS):
        raise InputError(
            f"{what} of a Bidirectional is {{'forward': ..., 'backward': ...}}, not {shown(value)}"
        )
    return cast("Mapping[str, Any]", value)


def is_zeros(value: Any) -> bool:
    """Whether it is said that memories begin at zeros."""
    return isinstance(value, str) and value == ZEROS


def recurrences(layer: Any, what: str) -> list[RNN]:
    """Every recurrence of a layer; raises `InputError` for what is no layer."""
    if isinstance(layer, RNN):
        return [layer]
    if isinstance(layer, Bidirectional | Stack):
        return [rnn for one in layer.layers for rnn in recurrences(one, what)]
    raise InputError(f"{what} is an RNN, a Bidirectional or a Stack, not {kind(layer)}")


@contextmanager
def named(what: str) -> Generator[None]:
    """Puts the name of a part before the errors it raises."""
    try:
        yield
    except StepnetError as error:
        raise type(error)(f"{what}: {error}") from None


def explained(parts: Any, engine: Asked) -> str:
    """The plans of named parts, one under the other."""
    texts: list[str] = []
    for name, layer in parts:
        with named(name):
            texts.append(f"{name}:\n{layer.explain(engine)}")
    return "\n\n".join(texts)


# ---- merging two directions --------------------------------------------------------------------------------


def side_by_side(forward: Array, backward: Array, rows: int) -> Array:
    """The features of both, the first `rows` axes being none; numbers without features become two."""
    return (np.concatenate if forward.ndim > rows else np.stack)([forward, backward], axis=-1)


MERGES: dict[str, Callable[[Array, Array, int], Array]] = {
    "concat": side_by_side,
    "sum": lambda forward, backward, _: forward + backward,
    "average": lambda forward, backward, _: (forward + backward) / 2,
    "product": lambda forward, backward, _: forward * backward,
}


def checked_merge(merge: Any) -> str | None:
    """How two outputs become one, or None; raises `InputError` for what is neither."""
    return (
        None if merge is None else choice(merge, f"merge is {', '.join(map(repr, MERGES))} or None", MERGES)
    )


def merged(forward: Any, backward: Any, how: str, last_only: bool) -> Any:
    """The outputs of both directions as one, leaf by leaf."""
    backward = arranged(backward, forward)
    if skeleton(forward) != skeleton(backward):
        raise InputError(
            f"outputs of the two directions do not merge: {skeleton(forward)} and {skeleton(backward)}"
        )
    pairs = zip(leaves(forward), leaves(backward), strict=True)
    rows = 1 if last_only or is_traced(forward) else 2
    return rebuild(forward, [merged_leaf(one, other, how, rows) for one, other in pairs])


def merged_leaf(forward: Any, backward: Any, how: str, rows: int) -> Any:
    """One output of both directions as one; `rows` is how many first axes of an array are no features."""
    if isinstance(forward, Ragged):
        return forward.with_values(merged_leaf(forward.values, backward.values, how, 1))
    here, there = forward.shape, backward.shape
    if len(here) != len(there) or (here[:-1] != there[:-1] if how == "concat" else here != there):
        shapes = f"{here[rows:]} and {there[rows:]}"
        raise InputError(
            f"outputs of the two directions do not merge by {how!r}: their features are {shapes}"
        )
    return MERGES[how](forward, backward, rows)
