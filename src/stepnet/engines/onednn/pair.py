"""The gradient of a recurrence that a net describes, by oneDNN's primitives.

    parameters --net--> W R b d --arranged--> weights_layer ...    forward primitive  -> y, h, kept
    dparameters <--transposed-- dW dR db dd <-- dweights_layer ... backward primitive <- dy, dh, kept

What the weights are made of is a net, however the step is written. So their gradients go back through the
gradient of that net, which is one more net.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from stepnet.engines.base import Call
from stepnet.engines.onednn.arranged import arrays_gradient
from stepnet.engines.onednn.bound import OneDnnKernel, features
from stepnet.engines.onednn.engine import missing
from stepnet.engines.onednn.known import Known, known_plan
from stepnet.engines.onednn.latest import Latest
from stepnet.engines.onednn.library import library
from stepnet.engines.onednn.run import Ran
from stepnet.engines.onednn.training import Training
from stepnet.grad.gradient import vjp
from stepnet.net.ends import Ends
from stepnet.net.interpret import Segments, interpret
from stepnet.net.ir import Builder, Net, ancestors, with_inputs
from stepnet.net.types import CONST
from stepnet.plan.plan import Plan
from stepnet.ragged.positions import Positions
from stepnet.values.once import computed_once

Array = np.ndarray
Arrays = Sequence[Array | None]


@dataclass(frozen=True)
class OneDnnPairs:
    """See `engines.native_gradients.Pairs`."""

    between: str = "llvm"

    def pair(self, plan: Plan) -> "OneDnnPair | str":
        """What oneDNN runs of the gradient of a plan, or the reason why it does not."""
        if reason := missing():
            return reason
        known = known_plan(plan)
        if isinstance(known, str):
            return known
        if "c" in known.outputs:
            return "oneDNN takes the gradient of c at the last step alone, and c is read at each step"
        reason = known.recurrence.refuse_gradient(library())
        return reason or OneDnnPair(known, Latest(OneDnnKernel(known)))


@dataclass(frozen=True)
class OneDnnPair:
    """See `engines.native_gradients.Pair`."""

    known: Known
    latest: Latest

    @property
    def text(self) -> str:
        """What runs."""
        return str(replace(self.known.recurrence, training=True))

    @computed_once
    def ends(self) -> Ends:
        """The inputs and results of the net by kind."""
        return Ends.of(self.known.net)

    @computed_once
    def weights_gradient(self) -> Net:
        """From the parameters, and gradients of the cell's arrays, to gradients of the parameters."""
        net, cell, builder = self.known.net, self.known.cell, Builder()
        constants = [number for number in net.inputs if net.type_of(number).extent == CONST]
        place = {number: builder.input(net.type_of(number), net.nodes[number].name) for number in constants}
        for number in sorted(ancestors(net.nodes, self.known.parameters) - place.keys()):
            node = net.nodes[number]
            place[number] = builder.copy(node, [place[operand] for operand in node.inputs])
        inside = dict(
            zip(cell.weights.inputs, (place[number] for number in self.known.parameters), strict=True)
        )
        for number, node in enumerate(cell.weights.nodes):
            if number not in inside:
                inside[number] = builder.copy(node, [inside[operand] for operand in node.inputs])
        arrays = [inside[number] for number in cell.weights.results]
        both = vjp(with_inputs(builder, [place[number] for number in constants], arrays))
        return replace(both, results=both.results[len(arrays) :])

    def parameters(self, arrays: Arrays) -> list[Array]:
        """The parameters among the arrays of the inputs."""
        made = (arrays[place] for place in self.ends.parameters)
        return [array for array in made if array is not None]

    def training(self, arrays: Arrays, call: Call) -> Training:
        """The recurrence over the sequences of a call."""
        known, ends = self.known, self.ends
        recurrence, weights = self.latest.weights(self.parameters(arrays))
        sequences = [np.ascontiguousarray(arrays[place]) for place in ends.sequences]
        x = features(known, sequences, call.positions.total)
        initial = [arrays[ends.memories[place]] for place in known.memories]
        return Training(library(), recurrence, weights, call, x, initial)

    def forward(self, arrays: Arrays, call: Call) -> tuple[list[Array], Array]:
        """See `Pair`."""
        tape = self.training(arrays, call).forward()
        return self.results(tape.made), tape.kept

    def results(self, made: Ran) -> list[Array]:
        """The results in the order of the net's."""
        known, ends = self.known, self.ends
        by_place = dict.fromkeys(ends.steps, made.outputs)
        rows = {"h": made.h, "c": made.c}
        by_place |= {place: rows[kind] for place, kind in zip(ends.rows, known.final, strict=True)}
        return [np.array(by_place[place]) for place in range(len(by_place))]

    def backward(self, arrays: Arrays, cotangents: Sequence[Array], kept: Array, call: Call) -> list[Array]:
        """See `Pair`."""
        known, ends, net = self.known, self.ends, self.known.net
        training = self.training(arrays, call)
        rows = list(zip(ends.rows, known.final, strict=True))
        last = {kind: sum_of([cotangents[place] for place, own in rows if own == kind]) for kind in "hc"}
        outputs = sum_of([cotangents[place] for place in ends.steps])
        made = training.backward(kept, outputs, last["h"], last["c"])
        types = [net.type_of(number) for number in net.inputs]
        gradients = dict[int, Array]()
        begin = 0
        for place in (ends.sequences[read] for read in known.reads):
            width = prod(types[place].shape)
            gradients[place] = made.x[:, begin : begin + width].reshape(-1, *types[place].shape)
            begin += width
        for place, first in zip(
            (ends.memories[memory] for memory in known.memories), (made.h, made.c), strict=False
        ):
            assert first is not None
            gradients[place] = first
        gradients |= zip(ends.parameters, self.of_parameters(training, made.weights, arrays), strict=True)
        return [gradients[place] for place in range(len(net.inputs))]

    def of_parameters(self, training: Training, weights: dict[str, Array], arrays: Arrays) -> list[Array]:
        """The gradients of the parameters, for those of oneDNN's weights."""
        cell, parameters = self.known.cell, self.parameters(arrays)
        types = [cell.weights.type_of(number) for number in cell.weights.results]
        shapes = dict(zip(cell.names, (type_.shape for type_ in types), strict=True))
        made = arrays_gradient(training.recurrence, cell.semantics, shapes, weights)
        seeds = [
            made[name].reshape(type_.shape).astype(type_.computed.dtype)
            for name, type_ in zip(cell.names, types, strict=True)
        ]
        return interpret(self.weights_gradient, [*parameters, *seeds], Segments(1))

    def kept_bytes(self, rows: int, steps: int) -> int:
        """See `Pair`."""
        total, width = rows * steps, self.known.cell.inputs
        call = Call(Positions.end_to_end(np.arange(rows + 1) * steps))
        net, ends = self.known.net, self.ends
        types = [net.type_of(net.inputs[place]) for place in ends.parameters]
        recurrence, weights = self.latest.weights([np.zeros(t.shape, t.dtype) for t in types])
        training = Training(library(), recurrence, weights, call, np.zeros((total, width), np.float32))
        return training.primitive.block().nbytes


def sum_of(arrays: Sequence[Array]) -> Array | None:
    """The sum of arrays; None of none."""
    return np.asarray(sum(arrays[1:], arrays[0]), np.float32) if arrays else None
