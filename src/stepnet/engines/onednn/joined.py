"""Layers, and both directions of a layer, run by one primitive of oneDNN.

    member [layer][direction]   W [1, 1, x, gates, h]   ->   weights_layer [layers, directions, x, gates, h]
    y = concatenate f b                                 ->   direction "concat"
    b runs over the output of a                         ->   2 layers

A primitive has one padded array for all of its layers and directions. Padding at the end of sequences does
not affect a forward recurrence, but it affects a reverse one. So both directions run as one primitive only if
all sequences have the same length. Else the members run one after the other, each with padding on the side
that it needs.

Layers of one direction run as one primitive for any lengths, unless final memories are read that oneDNN
returns only at the last step of a primitive: those of inner layers, and c.

oneDNN alternates between layers every few steps. So the weights of all layers are read from memory again and
again if they exceed the cache, which with a single row dominates the time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from stepnet.engines.base import Arrays, Bound, Call, FrozenCall, OptionalArrays, Results, Steps
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
"""From this many bytes of weights on, layers with one row are faster one by one: an LSTM of 192 by 30%."""


@dataclass(frozen=True)
class OneDnnJoins:
    """The joined parts that oneDNN runs as one primitive; see `engines.base.Joins`."""

    def refuse(self, part: Part) -> str | None:
        """The reason why the members of a joined part do not run as one primitive; None if they do."""
        made = known_joined(part)
        return made if isinstance(made, str) else None

    def compile(self, part: Part) -> "JoinedKernel":
        """The kernel of a joined part that is not refused."""
        made = known_joined(part)
        assert not isinstance(made, str)
        return JoinedKernel(made)


@dataclass(frozen=True)
class KnownJoined:
    """Members that run as one recurrence of oneDNN.

    members: for each layer, its directions, forward first.
    recurrence: oneDNN's recurrence of all members.
    merge: how the directions are merged, as in the part.
    memories, parameters: the numbers of memories and parameters of each member, in order.
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
        """Whether final memories are read that oneDNN returns only at the last step of a primitive."""
        *inner, top = self.in_order
        return any(member.final for member in inner) or "c" in top.final

    @computed_once
    def layers_are_large(self) -> bool:
        """Whether there are several layers, whose weights together exceed the cache."""
        whole = self.recurrence
        numbers = sum(prod(whole.shape(name, 0, 0)) for name in whole.weights)
        return whole.layers > 1 and 4 * numbers >= LARGE

    def runs_in_one(self, places: Padding) -> bool:
        """Whether a call with this padding is a single run of the primitive."""
        if not places.steps or (places.rows == 1 and self.layers_are_large):
            return False
        return places.even or (self.recurrence.directions == 1 and not self.reads_inside)


def known_joined(part: Part) -> KnownJoined | str:
    """A joined part as one recurrence of oneDNN, or the reason why it cannot run as one."""
    layers: list[tuple[Known, ...]] = []
    for directions in part.members:
        made = [known_plan(member.plan) for member in directions if member.plan is not None]
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
    """The reasons why members are not one recurrence of oneDNN. first: the members of the first layer."""
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
    """The kernel of joined recurrences, to be bound to parameters."""

    known: KnownJoined

    def bind(self, parameters: Sequence[Array]) -> Bound:
        """The bound recurrences. The parameters are copied into oneDNN's layout here."""
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
    """Joined recurrences bound to their weights.

    members: the recurrences one by one, for calls that are not a single run of the primitive.
    """

    ends_early = False

    def __init__(self, known: KnownJoined, weights: Weights) -> None:
        self.known, self.library = known, library()
        self.take(weights)

    def take(self, weights: Weights) -> None:
        """Replaces the weights."""
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
        """The padding of a call: the positions of its steps in the primitive's arrays."""
        return padding(call, self.known.recurrence.direction == "right2left")

    def results(
        self, places: Padding, call: Call, sequences: Sequence[Array], initial: Sequence[Array | None]
    ) -> Results:
        """The results for arrays with the layout of a call. places: the positions of its padded steps."""
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
        """The results of a single run of the primitive."""
        known, recurrence = self.known, self.known.recurrence
        x = features(known.first, sequences, call.positions.total)
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
        output = call.positions.ends(made, recurrence.direction == "right2left") if call.last_only else made
        return Results([output], final)

    def one_by_one(
        self,
        places: Padding,
        call: Call,
        sequences: Sequence[Array],
        states: Sequence[Sequence[Array | None]],
    ) -> Results:
        """The results, computed member by member."""
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
        """Replaces the parameters; always possible."""
        self.take(JoinedKernel(self.known).weights(parameters))
        return True

    def release(self) -> None:
        """Does nothing: primitives and weights are in shared, bounded caches."""

    def again(self, call: Call, results: Results) -> Callable[[], None]:
        """A function that runs this call on the current contents of its arrays."""
        return called_again(self, call, results)

    def steps(self, call: Call, results: Results) -> Steps:
        """Runs single steps of a subset of this call's rows, each as a separate call."""
        return CalledSteps(self, call, results)

    def frozen(self, call: Call) -> FrozenCall | None:
        """A function that runs further calls with the same layout."""
        places = self.places(call)

        def run(sequences: Arrays, initial: OptionalArrays, statics: Arrays) -> Results:
            return self.results(places, call, sequences, initial)

        return FrozenCall(run, 0)  # primitives and paddings lie in caches of their own


MERGES: dict[str, Callable[[list[Array]], Array]] = {
    "": lambda outputs: outputs[0],
    "concat": lambda outputs: np.concatenate(outputs, -1),
    "sum": lambda outputs: outputs[0] + outputs[1],
}
"""How a layer merges the outputs of its directions."""
