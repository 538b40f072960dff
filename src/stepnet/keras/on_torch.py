"""The loop of a recurrent layer on Keras' torch backend, with gradients.

cell, its masks --> Traced      mask --> Steps      data, states, variables --> results
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepnet.errors import StepError
from stepnet.keras.cells import is_named
from stepnet.keras.dropout import masks_of
from stepnet.keras.installed import installed
from stepnet.keras.masks import Steps, step_of
from stepnet.keras.steps import FULL, Form, called, in_full, value_of
from stepnet.keras.traces import Traced, traced
from stepnet.keras.way import Results, Way
from stepnet.keras.whole import Whole, together
from stepnet.torch.recording import is_recorded

keras: Any = installed()
torch: Any = installed("torch")
tree: Any = keras.tree

untraced: Any = torch.compiler.disable
"""Makes a function one that torch.compile does not trace."""


def symbolic(layer: Any, whole: Whole, states: Any, training: bool) -> Results | None:
    """Results without numbers, of one step for all of them; None where the sequences have numbers."""
    if tree.flatten(whole.parts)[0].device.type != "meta":
        return None
    batch, time = whole.shape[:2]
    output, following = called(layer.cell, whole[:, 0, :], states, training)
    outputs = output.unsqueeze(1).expand(batch, time, *output.shape[1:])
    return output, outputs, tree.pack_sequence_as(states, tree.flatten(following))


def prepared(layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> Callable[[], Results]:
    """The function that runs a call of a layer; raises `StepError` for a call that Keras' own loop should
    run.
    """
    return Loop.of(layer, whole, states, mask, training).run


@dataclass(frozen=True)
class Loop:
    """A call of a layer, ready to run."""

    layer: Any
    traced: Traced
    steps: Steps
    x: Any
    states: Any
    masks: list[Any]
    way: Way

    @classmethod
    def of(cls, layer: Any, whole: Whole, states: Any, mask: Any, training: bool) -> "Loop":
        """The call; raises `StepError` for one that Keras' own loop is to run."""
        cell = layer.cell
        if is_named(cell):  # whose products take any dtype, and give that of the states
            whole = whole.cast(tree.flatten(states)[0].dtype)
        mask = mask_of(mask, whole)
        check(layer, whole, states, mask)
        masks = masks_of(cell) if training else {}
        way = Way.of(layer, training)
        known = traced(cell, way, Form(whole[:, 0, :], states, masks))
        flat = [part for parts in masks.values() for part in parts]
        return cls(layer, known, Steps.of(mask), together(whole.parts, 2), states, flat, way)

    def run(self) -> Results:
        """The results."""
        layer, steps, way = self.layer, self.steps, self.way
        flat = tree.flatten(self.states)
        begin = [in_full(state) for state in flat]
        if layer.stateful:  # they are assigned to before gradients are made
            begin = [state.clone() for state in begin]
        parameters = [value_of(variable) for variable in self.traced.variables]
        output, *last = self.traced.runnable(
            self.traced.holder,
            steps.place,
            in_full(steps.data(self.x)),
            begin,
            parameters,
            list(map(in_full, self.masks)),
        )
        stored = flat[0].dtype if flat else output.dtype
        output = output.to(stored) if stored in FULL and output.is_floating_point() else output
        following = [now.to(before.dtype) for now, before in zip(last, flat, strict=True)]
        states = tree.pack_sequence_as(self.states, following)
        zero = layer.zero_output_for_mask
        if not layer.return_sequences:
            last_output = steps.last(output, way.reverse, zero)
            return last_output, last_output.unsqueeze(1), states
        outputs = steps.outputs(output, way.reverse, zero)
        return step_of(outputs, -1), outputs, states


def mask_of(mask: Any, whole: Whole) -> Any:
    """The mask of a call as a tensor [batch, time]; raises `StepError` for one that is per feature."""
    if tree.is_nested(mask):
        mask = tree.flatten(mask)[0]
    if mask is None:
        return None
    mask = keras.ops.convert_to_tensor(mask)
    while mask.ndim > 2 and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    if mask.shape != whole.shape[:2]:
        shapes = f"the mask is {list(mask.shape)}, and the sequences are {list(whole.shape)}"
        raise StepError(f"{shapes}: a mask is [batch, time]")
    return mask


def refuses_transforms() -> bool:
    """Whether a transform is under way that `Runnable` has no rule for."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    kinds = {transform.key().name for transform in transforms}
    return bool(kinds & {"Vmap", "Jvp"}) or torch.autograd.forward_ad._current_level >= 0


def check(layer: Any, whole: Whole, states: Any, mask: Any) -> None:
    """Raises `StepError` for what Keras' own loop is to run."""
    batch = whole.shape[0]
    for state in tree.flatten(states):
        if state.shape[0] != batch:
            raise StepError(f"an initial state is {list(state.shape)}, and there are {batch} sequences")
    devices = {str(part.device) for part in tree.flatten(whole.parts)} - {"cpu"}
    if devices:
        raise StepError(f"the sequences are on {devices.pop()}: machine code is for the CPU")
    if refuses_transforms():
        raise StepError("torch.vmap or forward-mode differentiation is under way, which machine code has not")
    if torch.compiler.is_exporting() or is_recorded():
        raise StepError("the model is exported or traced: its graph holds Keras' own operations")
    if getattr(layer, "use_cudnn", None) is True:
        cell = layer.cell
        if mask is not None or cell.recurrent_dropout or not getattr(cell, "reset_after", True):
            raise StepError("use_cudnn=True asks for cuDNN, which does not run this")
