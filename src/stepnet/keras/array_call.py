"""Converts calls of layers with Keras' own cells to arrays for a compiled loop, on all backends but torch."""

import os
from inspect import currentframe
from typing import Any

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.keras.array_net import ArrayLoop, array_loop
from stepnet.keras.array_steps import ArraySettings
from stepnet.keras.cells import is_named
from stepnet.keras.dropout import read_dropout_masks
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs
from stepnet.keras.recurrences import LoopSettings, Results

keras: Any = installed()
ops: Any = keras.ops
tree: Any = keras.tree

FULL = {"float16": "float32", "bfloat16": "float32"}
"""The dtype in which steps compute, for dtypes in which values are only stored."""


@dataclass(frozen=True)
class ArrayCall:
    """A checked call of a recurrent layer, with its compiled loop.

    tensors: the inputs of the loop's net: the sequences, the initial states, dropout masks and weights.
    mask: [batch, time] or None. states: the initial states in Keras' structure and dtypes.
    """

    loop: ArrayLoop
    tensors: list[Any]
    mask: Any
    states: Any

    @classmethod
    def of(cls, layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool) -> "ArrayCall":
        """Checks a call of a layer on the sequences `packed`, and finds its compiled loop; returns both with
        the call's tensors.

        Raises `StepError` for a call that Keras' own loop must run. states: the initial states. mask: Keras'
            mask, or None. training: whether the layer is in training, where its cell may have dropout masks.
        """
        cell, x, flat = layer.cell, packed.parts, tree.flatten(states)
        check(layer, x, flat)
        stored: str = keras.backend.standardize_dtype(flat[0].dtype)
        dtype = FULL.get(stored, stored)
        x = ops.cast(ops.cast(x, stored), dtype)  # Keras rounds to this dtype
        masks = read_dropout_masks(cell) if training else {}
        initial, dropout_masks = (
            [ops.cast(tensor, dtype) for tensor in tensors] for tensors in (flat, tree.flatten(masks))
        )
        weights = [ops.cast(variable.value, dtype) for variable in cell.weights]
        specs = {
            name: tuple(Spec(tuple(tensor.shape[1:]), dtype) for tensor in masks[name]) for name in masks
        }
        loop = array_loop(
            cell,
            LoopSettings.of(layer, training),
            ArraySettings.of(layer),
            Spec(tuple(x.shape[2:]), dtype),
            tuple(Spec(tuple(state.shape[1:]), dtype) for state in initial),
            specs,
        )
        return cls(loop, [x, *initial, *dropout_masks, *weights], mask_of(mask, x), states)

    def results(self, results: list[Any]) -> Results:
        """Converts results of the net to the results of Keras' loop: (last output, outputs, final states).

        results: the outputs of all steps in the order of the sequences, or only those of the last step, and
        then the final states, as tensors. If the layer runs from the last step, Keras returns the outputs in
        that order.
        """
        output, *final_states = results
        settings, flat = self.loop.net.settings, tree.flatten(self.states)
        next_states = [
            ops.cast(state, initial.dtype) for state, initial in zip(final_states, flat, strict=True)
        ]
        states = tree.pack_sequence_as(self.states, next_states)
        if settings.last_only:
            return output, ops.expand_dims(output, 1), states
        outputs = ops.flip(output, axis=1) if settings.reverse else output
        last_output = last_step(outputs)
        return last_output, outputs, states


def last_step(outputs: Any) -> Any:
    """Returns the last step of outputs [batch, time, ...], as Keras does; zeros if there are no steps."""
    if outputs.shape[1] == 0:
        return ops.zeros((outputs.shape[0], *outputs.shape[2:]), dtype=outputs.dtype)
    return outputs[:, -1]


def mask_of(mask: Any, x: Any) -> Any:
    """Converts a mask of the sequences x to a bool tensor [batch, time] or None; raises `StepError` for other
    shapes. Of a structure of masks it takes the first; last axes of size one are left out.
    """
    if tree.is_nested(mask):
        mask = tree.flatten(mask)[0]
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    while mask.ndim > 2 and mask.shape[-1] == 1:
        mask = ops.squeeze(mask, -1)
    if mask.ndim != 2 or not all(map(may_be_equal, mask.shape, x.shape)):
        shapes = f"the mask is {list(mask.shape)}, and the sequences are {list(x.shape)}"
        raise StepError(f"{shapes}: a mask is [batch, time]")
    return mask


def may_be_equal(size: int | None, expected: int | None) -> bool:
    """Tells whether two sizes of an axis can be equal; None, a size that is not known yet, fits any other."""
    return size is None or expected is None or size == expected


def check(layer: Any, x: Any, states: list[Any]) -> None:
    """Raises `StepError` for a call that Keras' own loop must run: of a cell that is not Keras' own, for
    sequences or states of other shapes, or with cuDNN.

    layer: the recurrent layer. x: the sequences. states: the initial states.
    """
    name = keras.backend.backend()
    if tree.is_nested(x) or not is_named(layer.cell):
        raise StepError(
            f"on the {name} backend, the step of a cell that is not one of Keras' own is not traced"
        )
    if len(x.shape) != 3 or x.shape[2] is None:
        raise StepError(f"the sequences are {list(x.shape)}: they are [batch, time, features]")
    for state in states:
        if not may_be_equal(state.shape[0], x.shape[0]):
            raise StepError(f"an initial state is {list(state.shape)}, and there are {x.shape[0]} sequences")
    if getattr(layer, "use_cudnn", None) is True:
        raise StepError("use_cudnn=True asks for cuDNN, which is for GPUs")


# ---- exports: a saved graph must hold Keras' own operations, which run without stepnet ----

FOLDERS = [os.path.dirname(os.path.abspath(installed("keras.src.export").__file__)) + os.sep]
"""Folders with the functions of Keras and its backend that save graphs."""

EXPORTED = "the model is exported: its graph holds Keras' own operations"


def check_not_exported() -> None:
    """Raises `StepError` if a function that saves graphs is a caller: only Keras' own loop can be saved."""
    frame = currentframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(tuple(FOLDERS)):
            raise StepError(EXPORTED)
        frame = frame.f_back
