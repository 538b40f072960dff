"""A call of a layer with one of Keras' own cells, as the arrays that its loop takes: on every backend but
torch.
"""

from dataclasses import dataclass
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.array_net import ArrayLoop, array_loop
from stepnet.keras.array_steps import ArrayWay
from stepnet.keras.cells import is_named
from stepnet.keras.dropout import masks_of
from stepnet.keras.installed import installed
from stepnet.keras.way import Results, Way
from stepnet.keras.whole import Whole
from stepnet.trace.step import Spec

keras: Any = installed()
ops: Any = keras.ops
tree: Any = keras.tree

FULL = {"float16": "float32", "bfloat16": "float32"}
"""In which dtype a step computes whose values have one that is only stored."""


@dataclass(frozen=True)
class ArrayCall:
    """A call of a layer, ready to run: tensors in the order of its net's inputs, and its mask or None."""

    loop: ArrayLoop
    tensors: list[Any]
    mask: Any
    states: Any

    @classmethod
    def of(cls, layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> "ArrayCall":
        """The call; raises `StepError` for one that Keras' own loop is to run."""
        cell, x, flat = layer.cell, whole.parts, tree.flatten(states)
        check(layer, x, flat)
        given: str = keras.backend.standardize_dtype(flat[0].dtype)
        dtype = FULL.get(given, given)
        x = ops.cast(ops.cast(x, given), dtype)  # rounded as Keras does
        masks = masks_of(cell) if training else {}
        begin, drawn = ([ops.cast(part, dtype) for part in parts] for parts in (flat, tree.flatten(masks)))
        weights = [ops.cast(variable.value, dtype) for variable in cell.weights]
        specs = {name: tuple(Spec(tuple(part.shape[1:]), dtype) for part in masks[name]) for name in masks}
        loop = array_loop(
            cell,
            Way.of(layer, training),
            ArrayWay.of(layer),
            Spec(tuple(x.shape[2:]), dtype),
            tuple(Spec(tuple(state.shape[1:]), dtype) for state in begin),
            specs,
        )
        return cls(loop, [x, *begin, *drawn, *weights], mask_of(mask, x), states)

    def results(self, made: list[Any]) -> Results:
        """What a layer's `inner_loop` gives. made: the results of the net, as tensors."""
        output, *last = made
        way, flat = self.loop.net.way, tree.flatten(self.states)
        following = [ops.cast(now, before.dtype) for now, before in zip(last, flat, strict=True)]
        states = tree.pack_sequence_as(self.states, following)
        if way.last_only:
            return output, ops.expand_dims(output, 1), states
        outputs = ops.flip(output, axis=1) if way.reverse else output
        end = last_step(outputs)
        return end, outputs, states


def last_step(outputs: Any) -> Any:
    """The last step of outputs [batch, time, ...]; zeros where there is none."""
    if outputs.shape[1] == 0:
        return ops.zeros((outputs.shape[0], *outputs.shape[2:]), dtype=outputs.dtype)
    return outputs[:, -1]


def mask_of(mask: Any, x: Any) -> Any:
    """The mask of a call as a tensor [batch, time]; raises `StepError` for one that is per feature."""
    if tree.is_nested(mask):
        mask = tree.flatten(mask)[0]
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    while mask.ndim > 2 and mask.shape[-1] == 1:
        mask = ops.squeeze(mask, -1)
    if mask.ndim != 2 or not all(map(fits, mask.shape, x.shape)):
        shapes = f"the mask is {list(mask.shape)}, and the sequences are {list(x.shape)}"
        raise StepError(f"{shapes}: a mask is [batch, time]")
    return mask


def fits(size: int | None, expected: int | None) -> bool:
    """Whether sizes are the same, as far as they are known."""
    return size is None or expected is None or size == expected


def check(layer: Any, x: Any, states: list[Any]) -> None:
    """Raises `StepError` for what Keras' own loop is to run."""
    name = keras.backend.backend()
    if tree.is_nested(x) or not is_named(layer.cell):
        raise StepError(
            f"on the {name} backend, the step of a cell that is not one of Keras' own is not traced"
        )
    if len(x.shape) != 3 or x.shape[2] is None:
        raise StepError(f"the sequences are {list(x.shape)}: they are [batch, time, features]")
    for state in states:
        if not fits(state.shape[0], x.shape[0]):
            raise StepError(f"an initial state is {list(state.shape)}, and there are {x.shape[0]} sequences")
    if getattr(layer, "use_cudnn", None) is True:
        raise StepError("use_cudnn=True asks for cuDNN, which is for GPUs")
