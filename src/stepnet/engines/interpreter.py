"""The interpreter as an engine: runs everything, slowly. It is never chosen unless it is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepnet.ends import Ends
from stepnet.engines.base import Array, Call, FrozenCall, Results
from stepnet.interpret import Segments, interpret
from stepnet.ir import Net
from stepnet.plan import Plan
from stepnet.ragged.offsets import ends_of, offsets_of, positions_of


@dataclass(frozen=True)
class Interpreter:
    """The oracle, as an engine."""

    name: str = "interpret"

    def refuse(self, plan: Plan) -> str | None:
        """None: it runs every net."""
        return None

    def compile(self, plan: Plan) -> "InterpreterKernel":
        """The net as it was traced."""
        return InterpreterKernel(plan.traced)


@dataclass(frozen=True)
class InterpreterKernel:
    """A net, to be run by the interpreter."""

    net: Net

    def bind(self, parameters: Sequence[Array]) -> "BoundNet":
        """What runs a call with these parameters."""
        return BoundNet(self.net, tuple(parameters))


@dataclass(frozen=True)
class BoundNet:
    """A net with its parameters."""

    net: Net
    parameters: tuple[Array, ...]

    def __call__(self, call: Call) -> Results:
        """The results of a call."""
        return run(self.net, self.parameters, call)

    def again(self, call: Call, results: Results, whole: bool = False) -> Callable[[], None]:
        """What runs this call whenever it is called."""

        def once() -> None:
            found = self(call)
            for kept, new in zip(results.arrays, found.arrays, strict=True):
                kept[...] = new

        return once

    def frozen(self, call: Call) -> FrozenCall | None:
        """None: it finds everything out at every step."""
        return None


def run(net: Net, parameters: Sequence[Array], call: Call) -> Results:
    """One call: the steps laid end to end, interpreted, and laid out as they came."""
    batch, ends = len(call.lengths), Ends.of(net)
    offsets, places = offsets_of(call.lengths), positions_of(call.starts, call.lengths)
    memories = [net.type_of(net.inputs[place]) for place in ends.memories]
    initial = [
        np.zeros((batch, *type_.shape), type_.dtype) if value is None else value
        for value, type_ in zip(call.initial, memories, strict=True)
    ]
    arrays = [*(sequence[places] for sequence in call.sequences), *initial, *call.statics, *parameters]
    kinds = (*ends.sequences, *ends.memories, *ends.statics, *ends.parameters)
    given = dict(zip(kinds, arrays, strict=True))
    found = interpret(
        net, [given[place] for place in range(len(given))], Segments(batch, (offsets,), call.begun)
    )
    outputs = [laid_out(found[place], call, offsets, places) for place in ends.steps]
    return Results(outputs, [found[place] for place in ends.rows], [found[place] for place in ends.totals])


def laid_out(output: Array, call: Call, offsets: Array, places: Array) -> Array:
    """The steps where the input's steps lay, or each sequence's last."""
    if call.last_only:
        return ends_of(output, offsets, call.reverse)
    whole = np.zeros((call.total, *output.shape[1:]), output.dtype)
    whole[places] = output
    return whole
