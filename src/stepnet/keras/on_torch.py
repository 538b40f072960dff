"""Runs a call of a recurrent layer compiled on Keras' torch backend, with gradients.

cell, its masks --> CellTrace      mask --> TensorSteps      data, states, variables --> results
"""

from collections.abc import Callable
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.errors import StepError
from stepnet.keras.backend import KerasBackend
from stepnet.keras.cells import is_named
from stepnet.keras.dropout import read_dropout_masks
from stepnet.keras.installed import installed
from stepnet.keras.packed_inputs import PackedInputs, pack_features
from stepnet.keras.recurrences import LoopSettings, Results, engine_of
from stepnet.keras.steps import FULL, StepArguments, call_cell, in_full, value_of
from stepnet.keras.tensor_steps import TensorSteps, step_of
from stepnet.keras.traces import CellTrace, find_trace
from stepnet.torch.recording import is_recorded
from stepnet.torch.sequences import HOST

keras: Any = installed()
torch: Any = installed("torch")
tree: Any = keras.tree


def symbolic_results(layer: Any, packed: PackedInputs, states: Any, training: bool) -> Results | None:
    """Finds the shapes of a layer's results from one step if the sequences (`packed`) are on the meta device.

    Returns last output, outputs and final states, all without numbers; None on other devices.
    """
    if tree.flatten(packed.parts)[0].device.type != "meta":
        return None
    batch, time = packed.shape[:2]
    output, next_states = call_cell(layer.cell, packed[:, 0, :], states, training)
    outputs = output.unsqueeze(1).expand(batch, time, *output.shape[1:])
    return output, outputs, tree.pack_sequence_as(states, tree.flatten(next_states))


def prepare(
    layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool
) -> Callable[[], Results]:
    """Checks a call of a layer on PyTorch and returns the function that runs it compiled.

    packed: the sequences. states: the initial states. mask: Keras' mask, or None. training: whether the layer
    is in training. Raises `StepError` for a call that Keras' own loop must run.
    """
    return CheckedCall.of(layer, packed, states, mask, training).run


@dataclass(frozen=True)
class CheckedCall:
    """A checked call of a layer, which `run` runs compiled.

    trace: the compiled cell. steps: which steps run. x: the data [batch, time, features].
    states: the initial states. masks: for dropout. settings: the settings of the layer's loop.
    engine: the engines in order of preference.
    """

    layer: Any
    trace: CellTrace
    steps: TensorSteps
    x: Any
    states: Any
    masks: list[Any]
    settings: LoopSettings
    engine: Order

    @classmethod
    def of(cls, layer: Any, packed: PackedInputs, states: Any, mask: Any, training: bool) -> "CheckedCall":
        """Checks a call of a layer on the sequences `packed`, and finds its compiled cell.

        states: the initial states. mask: Keras' mask, or None. training: whether the layer is in training,
        where its cell may have dropout masks. Raises `StepError` for a call that Keras' own loop must run.
        """
        cell, engine = layer.cell, engine_of(layer)
        if is_named(cell):  # Keras computes these cells in the dtype of their states
            packed = packed.cast(tree.flatten(states)[0].dtype)
        mask = mask_of(mask, packed)
        check(layer, packed, states, mask)
        masks = read_dropout_masks(cell) if training else {}
        settings = LoopSettings.of(layer, training)
        trace = find_trace(cell, settings, StepArguments(packed[:, 0, :], states, masks))
        flat = [mask_of_gate for masks_of_cell in masks.values() for mask_of_gate in masks_of_cell]
        steps, x = TensorSteps.of(mask), pack_features(packed.parts, 2)
        return cls(layer, trace, steps, x, states, flat, settings, engine)

    def run(self) -> Results:
        """Runs this call of a layer compiled; returns the last output, the outputs and the final states in
        Keras' dtypes.
        """
        layer, steps, settings = self.layer, self.steps, self.settings
        flat = tree.flatten(self.states)
        initial = [in_full(state) for state in flat]
        if layer.stateful:  # Keras assigns to the states before gradients are computed
            initial = [state.clone() for state in initial]
        parameters = [value_of(variable) for variable in self.trace.variables]
        output, *final_states = self.trace.runnable(
            self.trace.holder,
            steps.positions,
            in_full(steps.data(self.x)),
            initial,
            parameters,
            list(map(in_full, self.masks)),
            engine=self.engine,
        )
        stored = flat[0].dtype if flat else output.dtype
        output = output.to(stored) if stored in FULL and output.is_floating_point() else output
        next_states = [
            final_state.to(initial_state.dtype)
            for final_state, initial_state in zip(final_states, flat, strict=True)
        ]
        states = tree.pack_sequence_as(self.states, next_states)
        zero = layer.zero_output_for_mask
        if not layer.return_sequences:
            last_output = steps.last(output, settings.reverse, zero)
            return last_output, last_output.unsqueeze(1), states
        outputs = steps.outputs(output, settings.reverse, zero)
        return step_of(outputs, -1), outputs, states


def mask_of(mask: Any, packed: PackedInputs) -> Any:
    """Converts a mask of the sequences `packed` to a tensor [batch, time] or None; raises `StepError` for
    other shapes. Of a structure of masks it takes the first; last axes of size one are left out.
    """
    if tree.is_nested(mask):
        mask = tree.flatten(mask)[0]
    if mask is None:
        return None
    mask = keras.ops.convert_to_tensor(mask)
    while mask.ndim > 2 and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    if mask.shape != packed.shape[:2]:
        shapes = f"the mask is {list(mask.shape)}, and the sequences are {list(packed.shape)}"
        raise StepError(f"{shapes}: a mask is [batch, time]")
    return mask


def refuses_transforms() -> bool:
    """Tells whether torch.vmap or forward-mode differentiation is active, for which there is no rule."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    kinds = {transform.key().name for transform in transforms}
    return bool(kinds & {"Vmap", "Jvp"}) or torch.autograd.forward_ad._current_level >= 0


def check(layer: Any, packed: PackedInputs, states: Any, mask: Any) -> None:
    """Raises `StepError` for a call that Keras' own loop must run: for states of another number of sequences,
    on devices that the engines do not take, under transforms, in graphs, or with cuDNN where it refuses.

    packed: the sequences. states: the initial states. mask: [batch, time] or None.
    """
    batch = packed.shape[0]
    for state in tree.flatten(states):
        if state.shape[0] != batch:
            raise StepError(f"an initial state is {list(state.shape)}, and there are {batch} sequences")
    for part in tree.flatten(packed.parts):
        if part.device.type != HOST:
            raise StepError(f"the sequences are on {part.device}: machine code is for the CPU")
    if refuses_transforms():
        raise StepError(
            "torch.vmap or forward-mode differentiation is active, which machine code does not support"
        )
    if torch.compiler.is_exporting() or is_recorded():
        raise StepError("the model is exported or traced: its graph holds Keras' own operations")
    if getattr(layer, "use_cudnn", None) is True:
        cell = layer.cell
        if mask is not None or cell.recurrent_dropout or not getattr(cell, "reset_after", True):
            raise StepError("use_cudnn=True asks for cuDNN, which does not run this layer")


BACKEND = KerasBackend(prepare, symbolic_results, torch.compiler.disable)
