"""How a gradient is run: results and what is saved, and later gradients of cotangents and of what was saved.

    forward    y, saved...  of x, W             backward    dx, dW  of x, W, dy, saved...

Halves of one net save what the second one reads of the first, of every step. `checkpoint.py` saves memories
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from stepnet.compiler.grad.gradient import vjp
from stepnet.compiler.grad.halves import halves
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import ROWS, is_static_extent
from stepnet.compiler.targets import Call, Order
from stepnet.model.nets import Arrays, run_net
from stepnet.model.program import NetProgram

Array = np.ndarray


class GradientRun(Protocol):
    """A way to run the gradient of a net."""

    @property
    def saved(self) -> tuple[int, ...]:
        """Which of the arrays that `forward` gives `backward` takes, by their places."""
        ...

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """The results of the net, and behind them what else is saved."""
        ...

    def backward(
        self,
        arrays: Arrays,
        cotangents: Sequence[Array],
        saved: Sequence[Array],
        call: Call,
        engine: Order,
    ) -> list[Array]:
        """The gradients of the inputs that they were wanted of.

        cotangents: one for each floating-point result, in the dtype that it is computed in.
        """
        ...


@dataclass(frozen=True)
class Halved:
    """Both halves of a gradient, run one after the other. own: how many of the first one's results are the
    net's own. apart: how many of these there are of each step; those that are only saved live equally long.
    blocks: how many steps each recurrence runs at a time, and why not more, where that was chosen.
    """

    first: NetProgram
    second: NetProgram
    saved: tuple[int, ...]
    own: int
    apart: int
    blocks: tuple[str, ...] = ()

    @classmethod
    def of(cls, net: Net, wanted: Sequence[int]) -> "Halved":
        """The halves for gradients of these inputs. What is saved and a result too is one result."""
        parts = halves(vjp(net, wanted), len(net.inputs), len(net.results))
        own = len(net.results)
        results, saved = list(parts.forward.results[:own]), list[int]()
        for number in parts.forward.results[own:]:
            if number not in results:
                results.append(number)
            saved.append(results.index(number))
        forward = replace(parts.forward, results=tuple(results))
        extents = [net.type_of(number).extent for number in net.results]
        apart = sum(len(extent) > len(ROWS) and not is_static_extent(extent) for extent in extents)
        return cls(NetProgram(forward), NetProgram(parts.backward), tuple(saved), own, apart)

    def forward(self, arrays: Arrays, call: Call, engine: Order) -> list[Array]:
        """See `GradientRun`."""
        return run_net(self.first, arrays, call, engine, self.apart)

    def backward(
        self,
        arrays: Arrays,
        cotangents: Sequence[Array],
        saved: Sequence[Array],
        call: Call,
        engine: Order,
    ) -> list[Array]:
        """See `GradientRun`."""
        return run_net(self.second, [*arrays, *cotangents, *saved], call, engine)
