"""`vjp`: results of layers, and what takes the cotangents of these to gradients.

The net of both is run in halves: what the second one reads of the first is saved.
"""

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from stepnet.engines import Order, checked_engine
from stepnet.errors import InputError
from stepnet.grad.gradient import vjp as vjp_net
from stepnet.grad.halves import halves
from stepnet.net.ir import Net
from stepnet.ragged import Ragged
from stepnet.rnn.batch import checked_array
from stepnet.rnn.control import Controls
from stepnet.rnn.gradients import KINDS, Given, Gradients, Programs, checked_layer, run_net, wanted_kinds
from stepnet.rnn.layers import Layer, LayerPrograms
from stepnet.rnn.program import Asked, NetProgram
from stepnet.values.arguments import flag
from stepnet.values.structure import leaves_as, named_leaves, rebuild, skeleton

Array = np.ndarray


def vjp(layer: Layer) -> "Vjp":
    """What runs a recurrence and gives, besides its results, what takes their cotangents to gradients.

    Args:
        layer: An `RNN`, a `Stack` or a `Bidirectional`.

    Raises:
        InputError: For what is none of these.

    >>> import stepnet as sn
    >>> rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0]), memory=1)
    >>> run = sn.vjp(rnn)
    >>> (outputs, final), backward = run(np.array([[[1.0], [10.0]]]))
    >>> final
    array([[22.]])
    >>> gradients = backward(None, np.ones((1, 1)))
    >>> gradients.params, gradients.inputs.tolist(), gradients.initial
    (array([11.]), [[[2.0], [2.0]]], array([[1.]]))
    """
    return Vjp(checked_layer(layer))


class Vjp:
    """See `vjp`."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.run, self.programs = layer, LayerPrograms(layer), Programs()

    def __call__(
        self,
        sequences: Any,
        *,
        params: Any = None,
        initial: Any = None,
        statics: Any = None,
        lengths: Any = None,
        last_only: bool = False,
        wrt: Any = KINDS,
        engine: Asked = "auto",
        **control: Unpack[Controls],
    ) -> "tuple[tuple[Any, Any], Backward]":
        """(outputs, final memories), and the function from their cotangents to `Gradients`.

        params: other parameters than the layer's own, in their structure. wrt: what gradients are wanted of,
        some of "params", "inputs", "initial" and "statics". All others are as in a call of the layer.
        """
        asked, kinds = checked_engine(engine), wanted_kinds(wrt)
        given = Given.of(
            self.run,
            sequences,
            params,
            initial,
            statics,
            lengths,
            flag(last_only, "last_only"),
            control,
            asked,
        )
        places = given.places(kinds)
        forward, backward, saved = self.programs.get(
            (given.reading.program, tuple(places)), lambda: two_programs(given.net, places)
        )
        apart = sum(levels > 0 for levels in given.reading.program.levels)
        results = run_net(forward, given.arrays, given.call, asked, apart)
        own = len(given.net.results)
        assert len(results) == own + saved
        finish = Backward(given, kinds, places, backward, asked, results[:own], results[own:])
        return finish.results, finish


def two_programs(net: Net, places: list[int]) -> tuple[NetProgram, NetProgram, int]:
    """The programs of both halves of the gradient of a net, and how many values the first saves."""
    parts = halves(vjp_net(net, places), len(net.inputs), len(net.results))
    return NetProgram(parts.forward), NetProgram(parts.backward), parts.saved


@dataclass(frozen=True)
class Backward:
    """What takes the cotangents of one run's results to its gradients, as often as it is called."""

    given: Given
    kinds: tuple[str, ...]
    places: list[int]
    program: NetProgram
    engine: Order
    made: list[Array]
    saved: list[Array]

    @property
    def results(self) -> tuple[Any, Any]:
        """The outputs and the last memories of the run."""
        program, levels = self.given.reading.program, self.given.reading.program.levels
        outputs = list(map(self.given.batch.like_input, self.made, levels))
        return rebuild(program.output, outputs), program.final(self.made[len(levels) :])

    def __call__(self, outputs: Any = None, final: Any = None) -> Gradients:
        """The gradients for cotangents of the outputs and of the last memories, in their structures.

        None, for all of them or for one, is zeros. Raises `InputError` for cotangents of another shape.
        """
        made = self.results
        pairs = [*zip(("outputs", "final"), (outputs, final), made, strict=True)]
        flat_cotangents = [
            cotangent for what, value, like in pairs for cotangent in cotangents(what, value, like)
        ]
        types = [self.given.net.type_of(number) for number in self.given.net.results]
        arrays = [
            (np.zeros_like(flat) if cotangent is None else cotangent.reshape(flat.shape)).astype(
                type_.computed.dtype
            )
            for cotangent, flat, type_ in zip(flat_cotangents, self.made, types, strict=True)
            if type_.is_float
        ]
        inputs = [*self.given.arrays, *arrays, *self.saved]
        results = run_net(self.program, inputs, self.given.call, self.engine)
        return self.given.gradients(self.kinds, self.places, results)


def cotangents(what: str, value: Any, like: Any) -> list[Array | None]:
    """The cotangents of results, each as its flat values are; None for one that is not given."""
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
        if isinstance(right, Ragged) != isinstance(leaf, Ragged):
            kind = "a Ragged" if isinstance(right, Ragged) else f"an array {list(right.shape)}"
            raise InputError(f"{title} is a {type(leaf).__name__}; it should be {kind}, as the result is")
        array = checked_array(leaf.values if isinstance(leaf, Ragged) else leaf, title)
        values = right.values if isinstance(right, Ragged) else right
        if array.shape != values.shape or (
            isinstance(right, Ragged)
            and any(not np.array_equal(a, b) for a, b in zip(leaf.offsets, right.offsets, strict=False))
        ):
            raise InputError(f"{title} is {shape_text(leaf)}; it should be {shape_text(right)}")
        arrays.append(array)
    return arrays


def shape_text(value: Any) -> str:
    """A Ragged, or the shape of an array."""
    return str(value) if isinstance(value, Ragged) else str(list(value.shape))
