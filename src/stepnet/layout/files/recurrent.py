"""The recurrent modules of a file as a layer of a graph, whose states are listed as frameworks list them.

LSTM forward and backward   -->   states h, c of the forward direction, then h, c of the backward one
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, lifted
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import transform
from stepnet.errors import ModelError
from stepnet.importers.values import repeated_at
from stepnet.layout.files.model import Module
from stepnet.layout.files.verified import weights
from stepnet.model.compose import DIRECTIONS, Bidirectional, Layer, Stack
from stepnet.model.merge import merged_leaf
from stepnet.model.recurrence import RNN


@dataclass(frozen=True)
class RecurrentLayer:
    """Recurrent layer of a file, ready to run in a graph.

    modules: its modules: one, or several of which each takes the outputs of the one before, as stacked cells.
    layer: the same as a layer.
    """

    modules: tuple[Module, ...]
    layer: Layer

    @classmethod
    def of(cls, modules: Sequence[Module]) -> "RecurrentLayer":
        """Makes a runnable layer of modules, with their weights: of one module, or of several as a stack."""
        layers = [weights(module).layers() for module in modules]
        return cls(tuple(modules), layers[0] if len(layers) == 1 else Stack(layers))

    def turned(self) -> "RecurrentLayer":
        """Returns the layer with its direction exchanged; raises `LayoutError` for one of both directions."""
        return self.of([replace(module, reverse=not module.reverse) for module in self.modules])

    @property
    def top(self) -> Module:
        """The module whose outputs are the layer's."""
        return self.modules[-1]

    @property
    def directions(self) -> int:
        """The number of directions of the top module."""
        return self.top.solved_sizes().directions

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the states of one direction of the top module; "" for the only one."""
        return slots_of(self.top)

    def run(
        self,
        x: Any,
        states: Sequence[Any] = (),
        last_only: bool = False,
        returned: bool = True,
        mask: Any = None,
        masked: str = "repeat",
    ) -> tuple[Any, list[Any]]:
        """Runs the layer over a value per step; returns its outputs and its final states.

        states: the initial states, direction by direction; none for zeros. last_only: whether to return only
        the last output. returned: whether the final states are returned; else their list is empty. mask: a
        bool per step; None for none. masked: the output at masked steps, "repeat" or "zero".
        """
        outputs, final = self.layer(
            x, initial=self.memories(states), last_only=last_only, mask=mask, masked=masked
        )
        return outputs, self.states(final) if returned else []

    def run_in_row(self, rows: Sequence[Any], last_only: bool) -> tuple[list[Any], list[Any]]:
        """Runs the layer over a list of values, such as one per letter of a word, without a loop; returns its
        outputs, or only the last one, and its final states. It begins at zeros.
        """
        outputs, last, final = in_row(self.layer, rows)
        return [last] if last_only else outputs, self.states(final) if self.top.states else []

    def memories(self, states: Sequence[Any]) -> Any:
        """Returns initial states in the form in which a call of the layer takes them; None for none. Raises
        `ModelError` for another number of states.
        """
        if not states:
            return None
        count, stacked = len(self.slots), [slots_of(module) for module in self.modules]
        if len(stacked) > 1 and len(states) == sum(map(len, stacked)):
            given = iter(states)
            cells = [[next(given) for _ in slots] for slots in stacked]
            return tuple(
                own[0] if len(own) == 1 else dict(zip(slots, own, strict=True))
                for slots, own in zip(stacked, cells, strict=True)
            )
        if len(self.modules) > 1 or len(states) != self.directions * count:
            raise ModelError(f"it has {len(states)} initial states, which is not supported")
        ways = [states[way * count : (way + 1) * count] for way in range(self.directions)]
        memories = [own[0] if count == 1 else dict(zip(self.slots, own, strict=True)) for own in ways]
        return memories[0] if len(memories) == 1 else dict(zip(DIRECTIONS, memories, strict=True))

    def states(self, final: Any) -> list[Any]:
        """Lists the final states of the layer one by one, direction by direction, or cell by cell of stacked
        cells. final: the final memory as a call of the layer returns it.
        """
        if len(self.modules) > 1:
            pairs = zip(self.modules, final, strict=True)
            return [
                memory if slot == "" else memory[slot]
                for module, memory in pairs
                for slot in slots_of(module)
            ]
        memories = [final] if self.directions == 1 else [final[way] for way in DIRECTIONS]
        return [memory if slot == "" else memory[slot] for memory in memories for slot in self.slots]


def in_row(layer: Layer, rows: Sequence[Traced]) -> tuple[list[Any], Any, Any]:
    """Computes the steps of a recurrent layer over values one after another, without a loop, from a memory of
    zeros: returns its outputs in the order of the values, its last output, and its final memory.
    """
    if isinstance(layer, Stack):
        made, last, finals = list(rows), None, list[Any]()
        for own in layer.layers:
            made, last, final = in_row(own, made)
            finals.append(final)
        return made, last, tuple(finals)
    if isinstance(layer, Bidirectional):
        (a, last_a, final_a), (b, last_b, final_b) = (in_row(own, rows) for own in layer.layers)
        both = [*zip(a, b, strict=True), (last_a, last_b)]
        *made, last = [merged_leaf(*pair, layer.merge, 1) for pair in both] if layer.merge else both
        return made, last, dict(zip(DIRECTIONS, (final_a, final_b), strict=True))
    assert isinstance(layer, RNN)
    builder = rows[0].builder
    params = transform(lambda array: Traced(builder, lifted(builder, array, ())), layer.params)
    memory = transform(lambda spec: zeros_at(spec, rows[0]), layer.memory)
    made = list[Any]()
    for row in reversed(rows) if layer.reverse else rows:
        output, memory = layer.step(row, memory, params)
        made.append(output)
    return made[::-1] if layer.reverse else made, made[-1], memory


def zeros_at(spec: Spec, like: Traced) -> Traced:
    """Returns a memory of zeros at each entry of a value, in its dtype."""
    return repeated_at(np.zeros(spec.shape, like.type.dtype), like)


def slots_of(module: Module) -> tuple[str, ...]:
    """Returns the names of the states of one direction of a module; "" for the only one."""
    return ("h", "c") if module.record.cell == "lstm" else ("",)
