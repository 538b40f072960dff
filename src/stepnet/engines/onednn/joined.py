"""Layers, and both directions of a layer, by one primitive of oneDNN.

    member [layer][direction]   W [1, 1, x, gates, h]   ->   weights_layer [layers, directions, x, gates, h]
    y = concatenate f b                                 ->   direction "concat"
    b runs over the output of a                         ->   2 layers

A primitive has one padded array for all of its layers and directions. Padding behind the steps changes no
step of a forward recurrence, and all steps of a reverse one. So both directions are one primitive where all
sequences are equally long. Else the members run one after the other, each with padding on its own side.

Layers of one direction are one primitive for any lengths, unless memories are read that oneDNN gives at its
own last step alone: those of inner layers, and c. oneDNN runs a few steps of one layer, then of the next: so
the weights of all layers pass through the cache again and again, and with one row there is little else to do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from stepnet.engines.base import Bound, Call, FrozenCall, Results, Steps
from stepnet.engines.onednn.bound import BoundRecurrence, features
from stepnet.engines.onednn.cache import MEGABYTE
from stepnet.engines.onednn.known import Known, known_plan
from stepnet.engines.onednn.library import library
from stepnet.engines.onednn.padding import Padding, padding
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.run import Start, ends, executed, run_of
from stepnet.engines.onednn.weights import Weights
from stepnet.engines.packed import CalledSteps, called_again
from stepnet.plan.schedule import Part
from stepnet.values.once import computed_once

Array = np.ndarray

LARGE = MEGABYTE
"""Of so many bytes of weights, layers with one row are faster one by one: an LSTM of 192 by 30%."""


@dataclass(frozen=True)
class OneDnnJoins:
    """How oneDNN runs several recurrences in one piece."""

    def refuse(self, part: Part) -> str | None:
        """Why the members of a joined part do not run by one primitive; None if they do."""
        made = known_joined(part)
        return made if isinstance(made, str) else None

    def compile(self, part: Part) -> "JoinedKernel":
        """The members as one recurrence of oneDNN's."""
        made = known_joined(part)
        assert not isinstance(made, str)
        return JoinedKernel(made)


@dataclass(frozen=True)
class KnownJoined:
    """Members that are one recurrence of oneDNN's.

    members: layer by layer, the forward direction first. merge: as that of the part. memories, parameters:
    how many of these each member has, in order.
    """

    members: tuple[tuple[Known, ...], ...]
    recurrence: Recurrence
    merge: str
    memories: tuple[int, ...]
    parameters: tuple[int, ...]

    @computed_once
    def in_order(self) -> list[Known]:
        """The members in the order of the part's memories and parameters."""
        return [member for layer in self.members for member in layer]

    @property
    def first(self) -> Known:
        """The member whose sequences are those of the call."""
        return self.members[0][0]

    @computed_once
    def reads_inside(self) -> bool:
        """Whether last memories are read that oneDNN gives at its own last step alone."""
        *inner, top = self.in_order
        return any(member.final for member in inner) or "c" in top.final

    @computed_once
    def layers_are_large(self) -> bool:
        """Whether there are layers with weights that a cache does not hold together."""
        whole = self.recurrence
        numbers = sum(prod(whole.shape(name, 0, 0)) for name in whole.weights)
        return whole.layers > 1 and 4 * numbers >= LARGE

    def runs_in_one(self, places: Padding) -> bool:
        """Whether a call with sequences at these places is one run of the primitive."""
        if not places.steps or (places.rows == 1 and self.layers_are_large):
            return False
        return places.even or (self.recurrence.directions == 1 and not self.reads_inside)


def known_joined(part: Part) -> KnownJoined | str:
    """What oneDNN runs of a joined part in one piece, or the reason why it does not."""
    layers: list[tuple[Known, ...]] = []
    for apart in part.members:
        made = [known_plan(member.plan) for member in apart if member.plan is not None]
        if reason := next((known for known in made if isinstance(known, str)), None):
            return reason
        layers.append(tuple(known for known in made if isinstance(known, Known)))
    members = [member for layer in layers for member in layer]
    listed = [member for layer in part.members for member in layer]
    if reason := next(differences(members, layers[0], part.merge), None):
        return reason
    first = members[0].recurrence
    whole = replace(first, direction=part.merge or first.direction, layers=len(layers))
    if reason := whole.refuse(library()):
        return reason
    memories, parameters = (
        tuple(counts)
        for counts in ((part.memories for part in listed), (len(part.parameters) for part in listed))
    )
    return KnownJoined(tuple(layers), whole, part.merge, memories, parameters)


def differences(members: Sequence[Known], first: Sequence[Known], merge: str) -> Iterator[str]:
    """Why members are not one recurrence of oneDNN's. first: those of the first layer."""
    kinds = [replace(m.recurrence, inputs=0, direction="", calibration=None) for m in members]
    dtypes = sorted({kind.dtype for kind in kinds})
    if len(dtypes) > 1:
        yield f"they run in {' and '.join(dtypes)}, and a primitive has one dtype"
    if "int8" in dtypes:
        yield "in int8 oneDNN has one scale for the weights of all layers and directions"
    if merge == "sum" and dtypes != ["float32"]:
        yield f"oneDNN rounds the sum of both directions to {dtypes[0]}"
    if any(kind != kinds[0] for kind in kinds):
        yield f"they are different recurrences: {members[0].recurrence}, and another"
    if any(m.recurrence.inputs != m.recurrence.output for m in members[len(first) :]) and not merge:
        yield "a layer has other inputs than the output of the one before"
    if any((m.reads, m.recurrence.inputs) != (first[0].reads, first[0].recurrence.inputs) for m in first):
        yield "the directions read their inputs in different orders"
    if any(m.outputs != ("h",) for m in members):
        yield "one gives c at each step"


@dataclass(frozen=True)
class JoinedKernel:
    """Joined recurrences without their parameters."""

    known: KnownJoined

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """What runs a call with these parameters, which are arranged now."""
        return BoundJoined(self.known, self.weights(parameters))

    def weights(self, parameters: Sequence[Array]) -> Weights:
        """The weights of all layers and directions."""
        made, begin = list[dict[str, Array]](), 0
        for member, count in zip(self.known.in_order, self.known.parameters, strict=True):
            made.append(member.arrays(parameters[begin : begin + count]))
            begin += count
        whole = self.known.recurrence
        arrays = {
            name: np.concatenate([each[name] for each in made], 1).reshape(whole.shape(name, 0, 0))
            for name in whole.weights
        }
        return Weights.of(whole, arrays)


class BoundJoined:
    """Joined recurrences with their weights.

    members: the same one by one, for calls that are not one run of the primitive.
    """

    ends_early = False

    def __init__(self, known: KnownJoined, weights: Weights) -> None:
        self.known, self.library = known, library()
        self.take(weights)

    def take(self, weights: Weights) -> None:
        """Takes these weights."""
        self.weights = weights
        self.members = [
            [
                BoundRecurrence(member, self.library, member.recurrence, weights.at(layer, direction))
                for direction, member in enumerate(both)
            ]
            for layer, both in enumerate(self.known.members)
        ]

    def __call__(self, call: Call) -> Results:
        """The results of a call."""
        return self.results(self.places(call), call, call.sequences, call.initial)

    def places(self, call: Call) -> Padding:
        """Where the steps of a call lie in the primitive's arrays."""
        return padding(call, self.known.recurrence.direction == "right2left")

    def results(
        self, places: Padding, call: Call, sequences: Sequence[Array], initial: Sequence[Array | None]
    ) -> Results:
        """The results for arrays that lie as those of a call."""
        begin, states = 0, list[Sequence[Array | None]]()
        for count in self.known.memories:
            states.append(initial[begin : begin + count])
            begin += count
        run = self.in_one if self.known.runs_in_one(places) else self.one_by_one
        return run(places, call, sequences, states)

    def in_one(
        self,
        places: Padding,
        call: Call,
        sequences: Sequence[Array],
        states: Sequence[Sequence[Array | None]],
    ) -> Results:
        """The results by one run of the primitive."""
        known, recurrence = self.known, self.known.recurrence
        x = features(known.first, sequences, call.total)
        members = known.in_order
        start = Start.of(
            recurrence,
            *([state[place] for place in m.memories] for m, state in zip(members, states, strict=True)),
        )
        run = run_of(self.library, recurrence, places.steps, places.rows, self.weights)
        made, padded = executed(run, places, {"src_layer": x}, start)
        if places.even:
            slots = {"h": "dst_iter", "c": "dst_iter_c"}
            final = [
                np.array(run.states(slots[kind])[place], np.float32)
                for place, member in enumerate(members)
                for kind in member.final
            ]
        else:
            final = [ends(padded, places, start) for _ in members[-1].final]
        output = call.ends(made, recurrence.direction == "right2left") if call.last_only else made
        return Results([output], final)

    def one_by_one(
        self,
        places: Padding,
        call: Call,
        sequences: Sequence[Array],
        states: Sequence[Sequence[Array | None]],
    ) -> Results:
        """The results member by member."""
        whole, remaining, final = replace(call, last_only=False), iter(states), list[Array]()
        x, outputs = sequences, list[Array]()
        for layer in self.members:
            last = call if layer is self.members[-1] else whole
            made = [
                member.results(padding(call, member.known.cell.recur.reverse), last, x, next(remaining))
                for member in layer
            ]
            final += [array for results in made for array in results.final]
            outputs = [results.outputs[0] for results in made]
            x = [MERGES[self.known.merge](outputs)]
        return Results([*x], final)

    def rebind(self, parameters: Sequence[Array]) -> bool:
        """Takes other parameters."""
        self.take(JoinedKernel(self.known).weights(parameters))
        return True

    def release(self) -> None:
        """Nothing: primitives and weights are kept for others, and bounded."""

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """What runs this call whenever it is called."""
        return called_again(self, call, results)

    def steps(self, call: Call, results: Results) -> Steps:
        """What runs single steps of some rows of this call: each is a call of its own."""
        return CalledSteps(self, call, results)

    def frozen(self, call: Call) -> FrozenCall | None:
        """What runs calls like this one: where its steps lie is known."""
        places = self.places(call)

        def run(
            sequences: Sequence[Array], initial: Sequence[Array | None], statics: Sequence[Array] = ()
        ) -> Results:
            return self.results(places, call, sequences, initial)

        return run


MERGES: dict[str, Callable[[list[Array]], Array]] = {
    "": lambda outputs: outputs[0],
    "concat": lambda outputs: np.concatenate(outputs, -1),
    "sum": lambda outputs: outputs[0] + outputs[1],
}
"""What a layer does with the outputs of its directions."""
