"""Programs of a gradient: a forward pass that saves values, and a backward pass that reads them.

    forward    y, saved...  of x, W             backward    dx, dW  of x, W, dy, saved...

Two halves of one net save every value of the forward half that the backward half reads, of every step. The
gradient in `checkpoint.py` saves memories alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from stepnet.compiler.grad.by_sequence import per_sequence
from stepnet.compiler.grad.gradient import vjp
from stepnet.compiler.grad.halving import halves
from stepnet.compiler.grad.tangent_net import jvp
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import ROWS, is_static_extent
from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.targets import Call, Order
from stepnet.compiler.values.records import dataclass
from stepnet.model.nets import Arrays, run_net
from stepnet.model.program import NetProgram

Array = np.ndarray


def gradient_net(net: Net, wanted: Sequence[int]) -> Net:
    """Returns the net of a gradient, which has gradients itself: from the inputs of a net, followed by the
    cotangents of its floating-point results, to the gradients of the inputs at the positions `wanted`.
    """
    both = vjp(net, wanted)
    return prune(replace(both, results=both.results[len(net.results) :]))


def tangents_of_net(net: Net, moved: Sequence[int]) -> Net:
    """Returns the net of a tangent. It takes the inputs of a net, then the tangents of the inputs at
    positions `moved`, and returns the tangents of the floating-point results.
    """
    both = jvp(net, moved)
    return prune(replace(both, results=both.results[len(net.results) :]))


class GradientRun(Protocol):
    """The programs of a net's gradient: a forward and a backward pass."""

    @property
    def saved(self) -> tuple[int, ...]:
        """The positions of the values that `backward` reads among the arrays that `forward` returns."""
        ...

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """Runs the forward pass; returns the results of the net, followed by further saved values.

        arrays: the inputs of the net.
        call: the call, with the positions of the sequences.
        engine: the engines in order of preference.
        """
        ...

    def backward(
        self, arrays: Arrays, cotangents: Sequence[Array], saved: Sequence[Array], call: Call, engine: Order
    ) -> list[Array]:
        """Runs the backward pass; returns the gradients of the inputs that the programs were made for.

        arrays: the inputs of the net, as in the forward pass.
        cotangents: one for each floating-point result, in the dtype that it is computed in.
        saved: the arrays of the forward pass at the positions `saved`.
        call, engine: the call with the positions of the sequences, and the engines in order of preference.
        """
        ...


@dataclass(frozen=True)
class Halved:
    """The two halves of a gradient, which run one after the other.

    first, second: the programs of the forward and of the backward half.
    saved: the positions of the saved values among the results of the forward half.
    own: the number of these results that are results of the net; they come first.
    separate: the number of results of the net with a value per step. They need separate buffers; values that
        are only saved may share one. None if they need their own, too.
    blocks: a text for each recurrence: the number of steps that it runs at a time, and the reason.
    """

    first: NetProgram
    second: NetProgram
    saved: tuple[int, ...]
    own: int
    separate: int | None
    blocks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        net: Net,
        wanted: Sequence[int],
        is_each: bool = False,
        is_stored: bool = False,
        chunks: FitsChunks | None = None,
    ) -> "Halved":
        """Makes the forward and backward halves of a net's gradient for the inputs at the positions `wanted`.

        The forward half returns the results of the net, then further values to save for the backward half. A
        value that is both is one result.

        is_each: whether gradients of parameters are those of each sequence, and not their sum. Raises
            `RefusedError` where a net has no such gradient.
        is_stored: whether the backward half takes cotangents in the dtypes of the results, also in half
            precision.
        chunks: as of `vjp`.
        """
        both = vjp(net, wanted, is_stored, chunks)
        parts = halves(per_sequence(both) if is_each else both, len(net.inputs), len(net.results))
        own = len(net.results)
        results, saved = list(parts.forward.results[:own]), list[int]()
        for number in parts.forward.results[own:]:
            if number not in results:
                results.append(number)
            saved.append(results.index(number))
        forward = replace(parts.forward, results=tuple(results))
        extents = [net.type_of(number).extent for number in net.results]
        separate = sum(len(extent) > len(ROWS) and not is_static_extent(extent) for extent in extents)
        return cls(NetProgram(forward), NetProgram(parts.backward), tuple(saved), own, separate)

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """Runs the forward half of the gradient, with the arguments of `GradientRun.forward`."""
        return run_net(self.first, arrays, call, engine, self.separate)

    def backward(
        self, arrays: Arrays, cotangents: Sequence[Array], saved: Sequence[Array], call: Call, engine: Order
    ) -> list[Array]:
        """Runs the backward half, with the arguments of `GradientRun.backward`."""
        return run_net(self.second, [*arrays, *cotangents, *saved], call, engine)
